"""Store and read the results of a table's runs: `cells.json`, from which alone a table is rendered.

scale, command      scale and command of the table
cells               row -> column -> digests of runs, by seed of pre-training and then of fine-tuning
runs                digest -> metrics (`not_finite` has the non-finite ones), scores of each example of the evaluation
                    (`rows`) or, for a metric that is no mean over examples, contributions of groups of examples
                    (`groups`), checksums of the data, cost, versions, and if known the commit (`code`) and the machine
failed              digest -> why there is no result
plateau             loss of the reference row and of the best guess without context, in nats
machine, code       those of runs that were recorded without their own
sha256              checksum of all of these; files of earlier versions have none
"""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import entr

from plm_jax import scores
from plm_jax.core.errors import ConfigError
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import predicted, run_folder, scoring
from plm_jax.scores import Row
from plm_jax.studies import metric_lines
from plm_jax.studies.tables import intervals
from plm_jax.studies.tables.file import Table
from plm_jax.studies.tables.run_folders import PREDICTIONS
from plm_jax.studies.tables.runs import Cell, Run

log = logging.getLogger(__name__)

EMPTY: dict[str, Any] = dict(scale='', command='', cells={}, runs={}, failed={}, plateau={}, machine='', code='')
NOT_KNOWN = 'not known'
NOT_FINITE = ('nan', 'inf', '-inf')  # as stored in JSON
CLOSE = 1e-6  # relative rounding error of a mean over examples
ROUNDED = 5e-5  # maximum rounding error of a score by `packed`


def read(file: files.Path) -> dict[str, Any]:
  """Read a `cells.json`, empty if missing; raise ConfigError if damaged."""
  try:
    content = checksums.read_sealed(file, default={})
    _check(content)
  except ValueError as error:
    raise ConfigError(f'{file} is damaged ({error}): restore it, or move it away; finished runs are not lost') from None
  return {key: content.get(key, type(default)(default)) for key, default in EMPTY.items()}


def _check(content: Any) -> None:
  if not isinstance(content, dict) or not all(
    isinstance(content.get(key, default), type(default)) for key, default in EMPTY.items()
  ):
    raise ValueError('not the content of a table')
  for row, columns in content.get('cells', {}).items():
    if not isinstance(columns, dict) or not all(_names_runs(by_seed) for by_seed in columns.values()):
      raise ValueError(f'row {row!r}: expected runs by column and seed, equally many for each seed')
  if not _are_strings(content.get('failed', {}).values()):
    raise ValueError("'failed': expected reasons")
  try:
    if plateau := content.get('plateau'):
      float(plateau['loss']), float(plateau['frequencies'])
  except (KeyError, TypeError, ValueError):
    raise ValueError("'plateau': expected a loss and an entropy of frequencies") from None
  for digest, run in content.get('runs', {}).items():
    try:
      _check_run(run)
    except (AttributeError, KeyError, TypeError, ValueError):
      raise ValueError(f'run {digest}: not the result of a run') from None
    _check_scores(digest, run)


def _check_run(run: Any) -> None:
  for value in run.get('metrics', {}).values():
    float(value)  # 'nan' and 'inf' are strings in JSON
  if 'jax' not in run.get('versions', {'jax': ''}):
    raise ValueError('no version of jax')
  for kind in ('rows', 'groups'):
    for values in run.get(kind, {}).values():
      unpacked(values)


def _check_scores(digest: str, run: Mapping[str, Any]) -> None:
  metrics = run.get('metrics', {})
  for metric, stored in (run.get('rows', {}) | run.get('groups', {})).items():
    scores_ = unpacked(stored)
    if metric in metrics and len(scores_) and not _is_close(scores_.mean(), float(metrics[metric]), rounded=ROUNDED):
      raise ValueError(f'run {digest}: {metric}={metrics[metric]} but its examples give {scores_.mean():.6g}')


def _names_runs(by_seed: Any) -> bool:
  runs_of_seeds = isinstance(by_seed, list) and all(isinstance(runs, list) and _are_strings(runs) for runs in by_seed)
  return runs_of_seeds and len(set(map(len, by_seed))) <= 1


def _are_strings(values: Iterable[Any]) -> bool:
  return all(isinstance(value, str) for value in values)


def write(file: files.Path, results: Mapping[str, Any]) -> None:
  """Write a `cells.json` without runs that no cell needs."""
  used = digests(results['cells'])
  while more := {results['runs'].get(digest, {}).get('source') for digest in used} - used - {None, ''}:
    used |= more
  pruned = {
    key: {digest: results[key][digest] for digest in sorted(results[key]) if digest in used}
    for key in ('runs', 'failed')
  }
  checksums.write_sealed(file, {**results, **pruned}, indent=1)


def digests(names_of: Mapping[str, Mapping[str, Iterable[Iterable[str]]]]) -> set[str]:
  """Collect the digests in cells, which have the form of `names`."""
  return {digest for row in names_of.values() for by_seed in row.values() for runs in by_seed for digest in runs}


def names(plan: Mapping[Cell, Sequence[Sequence[Run]]]) -> dict[str, dict[str, list[list[str]]]]:
  """Map row and column to the digests of runs."""
  by_row: dict[str, dict[str, list[list[str]]]] = {}
  for cell, by_seed in plan.items():
    by_row.setdefault(cell.row, {})[cell.column] = [[run.digest for run in runs] for runs in by_seed]
  return by_row


def record(run: Run, folder: RunFolder, metrics: Sequence[str]) -> dict[str, Any]:
  """Collect the results of a finished run, whose columns have `metrics`.

  Scores of single examples are recorded for the evaluation of the first one, whose examples were predicted.
  """
  result = _evaluated(folder) if run.evaluates else run_folder.read_result(folder)
  facts = ('seconds', 'tokens', 'parameters', 'steps', 'code', 'machine', 'versions')
  data = run_folder.read_json(folder.data)
  measured = {key: value for key, value in result['metrics'].items() if '/' in key}
  numbers = {key: value for key, value in measured.items() if isinstance(value, int | float)}
  recorded: dict[str, Any] = {
    'name': run.name,
    'source': run.source and run.source.digest,
    **{key: result[key] for key in facts if key in result},
    'metrics': numbers,
    'data': {key: value for key, value in data.items() if key.endswith('_digest')},
  }
  if not_finite := {key: value for key, value in measured.items() if value in NOT_FINITE}:
    recorded['not_finite'] = not_finite
  if files.is_file(file := folder.root / PREDICTIONS):
    evaluation = metrics[0].partition('/')[0]
    recorded |= _scores(file, [metric for metric in metrics if metric.partition('/')[0] == evaluation], numbers)
  return recorded


def _scores(file: files.Path, metrics: Sequence[str], numbers: Mapping[str, float]) -> dict[str, dict[str, Any]]:
  """Compute 'rows' or 'groups' of each metric from predictions."""
  predictions, records = predicted.join([file])
  by_kind: dict[str, dict[str, Any]] = {'rows': {}, 'groups': {}}
  for metric in metrics:
    for kind, compute in (('rows', by_row), ('groups', by_group)):
      values = compute(metric, predictions, records)
      if values is None:
        continue
      if metric not in numbers or _is_close(values.mean(), numbers[metric]):
        by_kind[kind][metric] = packed(values)
        break
      if kind == 'rows':
        log.warning(
          f'{file}: {metric}={values.mean():.5g} of its examples differs from {numbers[metric]:.5g} of the run, so '
          'they are of another evaluation or step; intervals are computed without them'
        )
  return by_kind


def _evaluated(folder: RunFolder) -> dict[str, Any]:
  """Read an evaluation as a result; earlier versions lack `evaluated_by`."""
  made_by = run_folder.read_json(folder.evaluated_by)
  checksums.check(folder.evaluations)
  return {'metrics': files.parse_json(files.read_text(folder.evaluations).splitlines()[-1]), **made_by}


def by_row(metric: str, predictions: Sequence[Row], records: Sequence[Row]) -> np.ndarray | None:
  """Compute the score of each predicted example, f64[rows].

  Returns None if the metric, such as 'validation/accuracy', is no mean over examples. Parts of one example, such as the
  windows of a question, count as one. Predictions and records are those of `predicted.join`.
  """
  name, short = _score_of(metric, predictions, records)
  if not name or short not in scoring.known(name).by_row:
    return None
  try:
    total = scoring.score(name, predictions, records)[short]
    rows = np.array([scoring.score(name, *group)[short] for group in scores.grouped(predictions, records)])
  except (ConfigError, ZeroDivisionError):  # undefined for a single example
    return None
  return rows if _is_close(rows.mean(), total) else None


def by_group(metric: str, predictions: Sequence[Row], records: Sequence[Row]) -> np.ndarray | None:
  """Compute f64[groups], contributions of groups of examples (`intervals.of_groups`).

  Returns None if no score computes the metric from predictions. Arguments are as in `by_row`.
  """
  name, short = _score_of(metric, predictions, records)
  if not name:
    return None
  groups = scores.grouped(predictions, records)

  def score(indices: Sequence[int]) -> float:
    chosen = [groups[index] for index in indices]
    rows = ([row for group in chosen for row in group.predictions], [row for group in chosen for row in group.records])
    return scoring.score(name, *rows)[short]

  try:
    return intervals.of_groups(score, len(groups))
  except (ConfigError, ZeroDivisionError):  # undefined for some examples
    return None


def _score_of(metric: str, predictions: Sequence[Row], records: Sequence[Row]) -> tuple[str, str]:
  """Find a metric's score ('' for none), and its name without evaluation."""
  short = metric.rpartition('/')[2]
  fitting = (name for name in predicted.fitting(predictions, records) if short in scoring.known(name).metrics)
  return next((scoring.settled(name, records) for name in fitting), ''), short


def _is_close(value: float, reference: float, *, rounded: float = 0.0) -> bool:
  return abs(value - reference) < rounded + CLOSE * max(1.0, abs(reference))


def packed(rows: np.ndarray) -> dict[str, Any]:
  """Pack scores for JSON.

  Scores of 0 and 1 become hexadecimal digits, four scores each; others one string.
  """
  if set(np.unique(rows)) <= {0.0, 1.0}:
    return {'count': len(rows), 'bits': np.packbits(rows.astype(bool)).tobytes().hex()}
  return {'count': len(rows), 'values': ' '.join(f'{round(float(value), 4):.12g}' for value in rows)}


def unpacked(scores_: Mapping[str, Any]) -> np.ndarray:
  """Unpack scores from `packed`, f64[rows]; raise ValueError if damaged."""
  if 'bits' in scores_:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(scores_['bits']), np.uint8))
    if not 0 <= len(bits) - scores_['count'] < 8:  # padded to bytes
      raise ValueError(f'{len(bits)} bits of {scores_["count"]} scores')
    return bits[: scores_['count']].astype(float)
  text = scores_['values']
  values = np.array(text.split() if isinstance(text, str) else text, float)  # earlier files have lists
  if len(values) != scores_.get('count', len(values)):
    raise ValueError(f'{len(values)} of {scores_["count"]} scores')
  return values


def plateau(table: Table, folder: RunFolder) -> dict[str, float]:
  """Compute the losses of a pre-training and of guesses without context.

  Both are in nats per token. Empty if the run has no finite perplexity or its vocabulary no counts. Damaged lines of
  metrics are logged and left out.
  """
  from plm_jax.text import tokenizer

  perplexities = metric_lines.series(folder.metrics, table.plateau)[1]
  counts = tokenizer.load(folder.vocab).counts if files.is_folder(folder.vocab) else None
  if not len(perplexities) or counts is None:
    return {}
  objective = files.read_json(folder.config, default={}).get('objective') or {}
  least = without_context(np.asarray(counts, float), **_shown(objective))
  return {'loss': round(math.log(perplexities[-1]), 4), 'frequencies': round(least, 4)}


def _shown(objective: Mapping[str, Any]) -> dict[str, float]:
  """Return shares of hidden positions with random and right tokens."""
  edit = objective.get('edit') or {}
  if edit.get('name') == 'bert_80_10_10':
    return {'random': edit['random'], 'kept': 1 - edit['mask'] - edit['random']}
  return {'kept': objective['keep']} if 'keep' in objective else {}  # of a generator


def without_context(counts: np.ndarray, *, random: float = 0.0, kept: float = 0.0) -> float:
  """Compute the least loss of hidden tokens, guessed without context.

  It is a mean in nats: the entropy of the frequencies, where nothing is seen at the hidden positions. BERT shows a
  random token at some of them and the right one at others, and the best guess there weighs what it sees.

  Args:
    counts: f64[v], how often each token of the vocabulary occurs.
    random: share of the positions with a token drawn from the whole vocabulary.
    kept: share of the positions with the right token.
  """
  share, size = counts / counts.sum(), len(counts)
  # P(seen, right) is other[right], and same[right] where the two are one token; entr(p) is -p log p
  other = random * share / size
  same = other + kept * share
  seen = kept * share + random / size
  both = (size - 1) * entr(other).sum() + entr(same).sum()
  return float((1 - random - kept) * entr(share).sum() + both - entr(seen).sum())


def made_by(results: Mapping[str, Any], key: str) -> dict[str, int]:
  """Count the measured runs of each commit or machine, most frequent first.

  Returns commit or machine -> number of runs; '' means no repository. `key` is 'code' or 'machine'. Old files have one
  value for all runs.
  """
  measured = (run for run in results['runs'].values() if 'metrics' in run)
  counts = Counter(run.get(key, results[key] or NOT_KNOWN) for run in measured)
  return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
