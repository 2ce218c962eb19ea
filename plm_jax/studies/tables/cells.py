"""What came out of the runs of a table: `cells.json`, from which alone a table is rendered.

scale, command      of the command that made it
cells               row -> column -> digests of runs, by seed of pre-training and then of fine-tuning
runs                digest -> metrics (in `not_finite` those that are no finite number), what each row of the evaluation
                    scored (`rows`) or, of a metric that is no mean over rows, what groups of rows contribute
                    (`groups`), digests of the data, cost, versions, and where the run knows them the commit that made
                    its last step (`code`) and the machine
failed              digest -> why there is no result
plateau             loss of the reference row and entropy of its vocabulary's frequencies, in nats
machine, code       those of runs that were recorded without their own
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax import scores
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import predicted, run_folder, scoring
from plm_jax.scores import Row
from plm_jax.studies import metric_lines
from plm_jax.studies.tables import intervals
from plm_jax.studies.tables.file import Table
from plm_jax.studies.tables.run_folders import PREDICTIONS
from plm_jax.studies.tables.runs import Cell, Run

log = logging.getLogger(__name__)

EMPTY: dict[str, Any] = {
  'scale': '',
  'command': '',
  'cells': {},
  'runs': {},
  'failed': {},
  'plateau': {},
  'machine': '',
  'code': '',
}
NOT_KNOWN = 'not known'
NOT_FINITE = ('nan', 'inf', '-inf')  # as JSON has them
CLOSE = 1e-6  # a mean over rows that is a score up to rounding


def read(file: files.Path) -> dict[str, Any]:
  """The content of a `cells.json`; that of none where there is no such file.

  Raises:
    ConfigError: the file is damaged.
  """
  try:
    kept = files.read_json(file, default={})
    _check(kept)
  except ValueError as error:
    raise ConfigError(
      f'{file} is damaged ({error}): restore it or move it away; finished runs are found again'
    ) from None
  return {key: kept.get(key, type(default)(default)) for key, default in EMPTY.items()}


def _check(kept: Any) -> None:
  """Raises ValueError where the content of a file is not what `EMPTY` and the head of this file say."""
  if not isinstance(kept, dict) or not all(
    isinstance(kept.get(key, default), type(default)) for key, default in EMPTY.items()
  ):
    raise ValueError('it does not hold what a table keeps')
  for row, columns in kept.get('cells', {}).items():
    if not isinstance(columns, dict) or not all(_names_runs(by_seed) for by_seed in columns.values()):
      raise ValueError(f'its row {row!r} does not name runs by column and seed, as many for each seed')
  if not _are_texts(kept.get('failed', {}).values()):
    raise ValueError("its 'failed' does not say why")
  try:
    if plateau := kept.get('plateau'):
      float(plateau['loss']), float(plateau['frequencies'])
  except (KeyError, TypeError, ValueError):
    raise ValueError("its 'plateau' does not hold a loss and the entropy of frequencies") from None
  for digest, run in kept.get('runs', {}).items():
    try:
      _check_run(run)
    except (AttributeError, KeyError, TypeError, ValueError):
      raise ValueError(f'its run {digest} does not hold what came out of a run') from None


def _check_run(run: Any) -> None:
  """Raises some error where a run is not what `record` makes."""
  for value in run.get('metrics', {}).values():
    float(value)  # 'nan' and 'inf' are texts in JSON
  if 'jax' not in run.get('versions', {'jax': ''}):
    raise ValueError('versions without that of jax')
  for kind in ('rows', 'groups'):
    for values in run.get(kind, {}).values():
      unpacked(values)


def _names_runs(by_seed: Any) -> bool:
  runs_of_seeds = isinstance(by_seed, list) and all(isinstance(runs, list) and _are_texts(runs) for runs in by_seed)
  return runs_of_seeds and len(set(map(len, by_seed))) <= 1


def _are_texts(values: Iterable[Any]) -> bool:
  return all(isinstance(value, str) for value in values)


def write(file: files.Path, kept: Mapping[str, Any]) -> None:
  """Writes a `cells.json`; runs that no cell names, and that none of these begins with, are left out."""
  named = digests(kept['cells'])
  while more := {kept['runs'].get(digest, {}).get('source') for digest in named} - named - {None, ''}:
    named |= more
  pruned = {
    key: {digest: kept[key][digest] for digest in sorted(kept[key]) if digest in named} for key in ('runs', 'failed')
  }
  files.write_text(file, files.json_text({**kept, **pruned}, indent=1) + '\n')


def digests(names_of: Mapping[str, Mapping[str, Iterable[Iterable[str]]]]) -> set[str]:
  """The runs that cells name, which are as `names` gives them."""
  return {digest for row in names_of.values() for by_seed in row.values() for runs in by_seed for digest in runs}


def names(plan: Mapping[Cell, Sequence[Sequence[Run]]]) -> dict[str, dict[str, list[list[str]]]]:
  """The digests of the runs of each cell."""
  found: dict[str, dict[str, list[list[str]]]] = {}
  for cell, by_seed in plan.items():
    found.setdefault(cell.row, {})[cell.column] = [[run.digest for run in runs] for runs in by_seed]
  return found


def record(run: Run, folder: RunFolder, asked: Sequence[str]) -> dict[str, Any]:
  """What came out of a finished run.

  Args:
    run: which one.
    folder: where it lies.
    asked: metrics of columns; the parts by row of those of the evaluation that was predicted, that of the first, are
      kept.
  """
  result = _evaluated(folder) if run.evaluates else run_folder.read_result(folder)
  counted = ('seconds', 'tokens', 'parameters', 'steps', 'code', 'machine', 'versions')
  kept: dict[str, Any] = {key: result[key] for key in counted if key in result}
  data = run_folder.read_json(folder.data)
  digests = {key: value for key, value in data.items() if key.endswith('_digest')}
  measured = {key: value for key, value in result['metrics'].items() if '/' in key}
  numbers = {key: value for key, value in measured.items() if isinstance(value, int | float)}
  found: dict[str, Any] = {
    'name': run.name,
    'source': run.source and run.source.digest,
    **kept,
    'metrics': numbers,
    'data': digests,
  }
  if not_finite := {key: value for key, value in measured.items() if value in NOT_FINITE}:
    found['not_finite'] = not_finite
  if files.is_file(file := folder.root / PREDICTIONS):
    found |= {'rows': {}, 'groups': {}}
    for metric in (one for one in asked if one.partition('/')[0] == asked[0].partition('/')[0]):
      for kind, part in (('rows', by_row), ('groups', by_group)):
        values = part(file, metric)
        if values is None:
          continue
        if metric not in numbers or _is_close(values.mean(), numbers[metric]):
          found[kind][metric] = packed(values)
          break
        if kind == 'rows':
          log.warning(
            f'{file}: its rows have {metric}={values.mean():.5g} and the run {numbers[metric]:.5g}, so they are of '
            'another evaluation or step; intervals are made without them'
          )
  return found


def _evaluated(folder: RunFolder) -> dict[str, Any]:
  """What an evaluation without a run wrote, as the result of a run has it; earlier ones said not what made them."""
  made = run_folder.read_json(folder.evaluated_by)
  return {'metrics': files.parse_json(files.read_text(folder.evaluations).splitlines()[-1]), **made}


def by_row(file: files.Path, metric: str) -> np.ndarray | None:
  """What each row of a file of predictions scores, f64[rows]; None where the metric is no mean over rows.

  Windows of one question and the like are one row.

  Args:
    file: as `evaluate --predictions` writes it.
    metric: such as 'validation/accuracy'.
  """
  predictions, records = predicted.join([file])
  name, short = _score_of(metric, predictions, records)
  if not name or short not in scoring.known(name).by_row:
    return None
  try:
    whole = scoring.score(name, predictions, records)[short]
    rows = np.array([scoring.score(name, *group)[short] for group in scores.grouped(predictions, records)])
  except (ConfigError, ZeroDivisionError):  # no score of a single row
    return None
  return rows if _is_close(rows.mean(), whole) else None


def by_group(file: files.Path, metric: str) -> np.ndarray | None:
  """What groups of the rows of a file of predictions contribute to a metric, f64[groups] as `intervals.of_groups`.

  None where no score computes the metric of such rows.

  Args:
    file: as `evaluate --predictions` writes it.
    metric: such as 'validation/matthews'.
  """
  predictions, records = predicted.join([file])
  name, short = _score_of(metric, predictions, records)
  if not name:
    return None
  groups = scores.grouped(predictions, records)

  def score(indices: Sequence[int]) -> float:
    mine = [groups[index] for index in indices]
    rows = ([row for group in mine for row in group.predictions], [row for group in mine for row in group.records])
    return scoring.score(name, *rows)[short]

  try:
    return intervals.of_groups(score, len(groups))
  except (ConfigError, ZeroDivisionError):  # no score of some rows
    return None


def _score_of(metric: str, predictions: Sequence[Row], records: Sequence[Row]) -> tuple[str, str]:
  """The score that computes a metric of rows, empty where there is none, and the metric without its evaluation."""
  short = metric.rpartition('/')[2]
  fitting = (name for name in predicted.fitting(predictions, records) if short in scoring.known(name).metrics)
  return next(fitting, ''), short


def _is_close(one: float, other: float) -> bool:
  return abs(one - other) < CLOSE * max(1.0, abs(other))


def packed(rows: np.ndarray) -> dict[str, Any]:
  """Scores of rows as JSON: those that are 0 or 1 in hexadecimal digits, four rows each; others in one text."""
  if set(np.unique(rows)) <= {0.0, 1.0}:
    return {'count': len(rows), 'bits': np.packbits(rows.astype(bool)).tobytes().hex()}
  return {'count': len(rows), 'values': ' '.join(f'{round(float(value), 4):.12g}' for value in rows)}


def unpacked(kept: Mapping[str, Any]) -> np.ndarray:
  """The scores that `packed` packed, f64[rows].

  Raises:
    ValueError: they are damaged, or not as many as they should be.
  """
  if 'bits' in kept:
    whole = np.unpackbits(np.frombuffer(bytes.fromhex(kept['bits']), np.uint8))
    if not 0 <= len(whole) - kept['count'] < 8:  # bits to a byte
      raise ValueError(f'{len(whole)} bits of {kept["count"]} rows')
    return whole[: kept['count']].astype(float)
  values = kept['values']
  found = np.array(values.split() if isinstance(values, str) else values, float)  # earlier files have lists
  if len(found) != kept.get('count', len(found)):
    raise ValueError(f'{len(found)} scores of {kept["count"]} rows')
  return found


def plateau(table: Table, folder: RunFolder) -> dict[str, float]:
  """The loss of a pre-training beside that of a network that knows word frequencies only, in nats a token.

  Empty where the run has no perplexity that is finite, or its vocabulary no counts. The log names damaged lines of
  metrics, which are left out.
  """
  from plm_jax.text import tokenizer

  perplexities = metric_lines.series(folder.metrics, table.plateau)[1]
  counts = tokenizer.load(folder.vocab).counts if files.is_folder(folder.vocab) else None
  if not len(perplexities) or counts is None:
    return {}
  share = np.asarray(counts, float)
  share = share[share > 0] / share.sum()
  return {'loss': round(math.log(perplexities[-1]), 4), 'frequencies': round(float(-(share * np.log(share)).sum()), 4)}


def made_by(kept: Mapping[str, Any], key: str) -> dict[str, int]:
  """How many runs were made by each commit or machine, most of them first; runs that were only counted are left out.

  Args:
    kept: the content of a `cells.json`.
    key: 'code' or 'machine'. Of a run that does not know it the file does, where it is an old one.

  Returns:
    Commit or machine -> number of runs; '' stands for no repository, `NOT_KNOWN` for what nobody knows.
  """
  made = (run for run in kept['runs'].values() if 'metrics' in run)
  found = Counter(run.get(key, kept[key] or NOT_KNOWN) for run in made)
  return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
