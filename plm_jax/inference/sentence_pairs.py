"""Similarities of sentence vectors against human judgements of pairs, without training (STS; Cer et al. 2017).

The similarity of two texts is that of `load(...).similarity`. A set whose examples have a field `source` (STS12 to 16)
is scored over all its pairs, as in MTEB and SimCSE, by source, and as the mean of its sources, as in SentEval.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from plm_jax.checkpoint import Step
from plm_jax.cli import signals, tables
from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.data.rows import examples
from plm_jax.data.rows.field_texts import known, text_of
from plm_jax.inference import model
from plm_jax.io import files
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import by_class, predicted
from plm_jax.scores import Row, check_installed, correlation
from plm_jax.training import evaluate_saved

log = logging.getLogger(__name__)


class Pairs(NamedTuple):
  """Pairs of texts and the records of their examples, which have `label`."""

  first: list[str]
  second: list[str]
  records: Sequence[Row]

  @property
  def by_source(self) -> dict[str, list[int]]:
    """Return the indices of each source whose labels differ; {} without sources."""
    groups: dict[str, list[int]] = {}
    for index, record in enumerate(self.records):
      groups.setdefault(str(record['row'].get('source', '')), []).append(index)
    return {name: rows for name, rows in groups.items() if _differ(self.records[row] for row in rows)}


def read(block: Mapping[str, Any], *, where: str) -> Pairs:
  """Read all pairs of a data block; raise ConfigError for unusable ones."""
  with errors.stage(where), signals.raising():
    labels = build.look(block)
  records = [dict(labels.record(row)) for row in range(labels.rows)]
  fields = block['fields'] or known(examples.FIELDS, records[0]['row'])
  if len(fields) != 2:
    raise ConfigError(f"{where}.fields={tuple(fields)}: name the two fields to compare, as ('sentence1', 'sentence2')")
  if not _differ(records):
    raise ConfigError(
      f'{where}: {block["label"]!r} is {records[0]["label"]} in all {len(records)} pairs, so there is no correlation: '
      'name another field as label, or other data'
    )
  first, second = ([text_of(record['row'][field]) or '' for record in records] for field in fields)
  return Pairs(first, second, records)


def _differ(records: Any) -> bool:
  return len({record['label'] for record in records}) > 1


def score(pairs: Pairs, predictions: Sequence[Row]) -> dict[str, float]:
  """Compute both correlations over all pairs, by source and their mean."""
  scores, sources = correlation.score(predictions, pairs.records), pairs.by_source
  if len(sources) < 2:
    return scores
  each = {
    name: correlation.score(*([side[row] for row in rows] for side in (predictions, pairs.records)))
    for name, rows in sources.items()
  }
  scores |= {f'{name}/{metric}': value for name, one in each.items() for metric, value in one.items()}
  return scores | {f'mean/{key}': sum(one[key] for one in each.values()) / len(each) for key in correlation.METRICS}


def evaluate(
  sets: Mapping[str, Mapping[str, Any]],
  folder: Where,
  *,
  step: Step = None,
  every: bool = False,
  part: str | None = None,
  predictions: evaluate_saved.Output | None = None,
  results: RunFolder | None = None,
  devices: Sequence[jax.Device] = (),
) -> None:
  """Score a folder's model on sets of pairs, and print them.

  Args:
    sets: name -> data block, of kind 'regression'.
    every: score each checkpoint, instead of `step`.
    predictions: file for the similarities of the only set.
    results: run folder whose evaluations.jsonl gets a line; None writes none.
    devices: of the computation, stored next to it.

  Raises:
    ConfigError: sets or a folder that cannot be read.
  """
  if predictions:
    predicted.check_output(predictions.file, predictions.format, made=results.root if results else None)
    predicted.check_format(predictions.format, correlation.READS)
  check_installed('correlation', correlation.NEEDS)
  run = RunFolder.at(folder)
  is_run = files.is_folder(run.checkpoints)
  steps = evaluate_saved.present_steps(run, step, every=every) if is_run else [step]
  pairs = {name: read(block, where=f'eval.{name}.data') for name, block in sets.items()}
  lines = []
  for number in steps:
    opened = model.load(folder, step=number, part=part)
    line: dict[str, Any] = {'step': number} if is_run else {'weights': str(folder)}
    for name, given in pairs.items():
      signals.check()
      values = np.asarray(opened.similarity(given.first, given.second, pairs=True)).tolist()
      rows = [{'row_id': row, 'value': value} for row, value in enumerate(values)]
      if len(set(values)) < 2:
        log.warning(f'eval.{name}: all similarities are equal, so no correlation is defined; it is reported as 0')
      line |= {f'{name}/{metric}': value for metric, value in score(given, rows).items()}
      if predictions:
        predicted.write(predictions.file, rows, given.records, form=predictions.format)
    lines.append(line)
    if results is not None:
      evaluate_saved.store(results, line, devices=devices)
  if every:
    by_class.show_steps(lines)
  else:
    _show(lines[0], pairs)


def _show(line: Mapping[str, Any], pairs: Mapping[str, Pairs]) -> None:
  """Print a row per set and source, correlations times 100."""
  metrics = correlation.METRICS[::-1]
  table = tables.new(('set', 'pairs', *metrics), title='correlation x 100', left=('set',))
  for name, given in pairs.items():
    counts = {'': len(given.records), **{source: len(rows) for source, rows in given.by_source.items()}, 'mean': ''}
    for source, count in counts.items():
      key = f'{name}/{source}' if source else name
      if f'{key}/{metrics[0]}' in line:
        table.add_row(key, str(count), *(f'{100 * line[f"{key}/{metric}"]:.2f}' for metric in metrics))
  tables.show(table)
