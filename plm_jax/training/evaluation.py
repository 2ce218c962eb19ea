"""Scores of one evaluation: exact means over all examples of a source, and scores of all predictions."""

import functools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Array, PyTree, Source, Task
from plm_jax.layers import losses
from plm_jax.runs import metrics, scoring
from plm_jax.training.feed import to_devices
from plm_jax.training.parts import Parts, Settings
from plm_jax.training.step import abstract_params, eval_step, predict_step, predicting_step

log = logging.getLogger(__name__)

_IN_FLIGHT = 2  # batches whose predictions are still on the device


def scores_of(settings: Settings, made: Parts, sources: Mapping[str, Source]) -> dict[str, tuple[str, ...]]:
  """Return each evaluation's scores; raise ConfigError if one cannot be computed."""
  wanted = asked(settings, made)
  for name, source in sources.items():
    check_scores(wanted[name], made.of(name), source.spec, where=f'eval.{name}')
    scoring.check_records(wanted[name], source, where=f'eval.{name}')
  return {name: wanted[name] for name in sources}


def asked(settings: Settings, made: Parts) -> dict[str, tuple[str, ...]]:
  """Return score names: those of the evaluation, else of the task."""
  found = {}
  for name, block in settings['eval'].items():
    names = made.of(name).task.scores if block['scores'] is None else tuple(block['scores'])
    found[name] = scoring.tokenized(names, block.get('tokenize') or (), where=f'eval.{name}')
  return found


def check_scores(names: Sequence[str], made: Parts, spec: Mapping[str, jax.ShapeDtypeStruct], *, where: str) -> None:
  """Raise ConfigError if scores cannot be computed, by shape; see `scoring.check`."""
  if names:
    scoring.check(names, predicted_keys(made.task, spec), where=where, user=made.user)


def predicted_keys(task: Task, spec: Mapping[str, jax.ShapeDtypeStruct]) -> list[str]:
  """Return the keys of an example's predictions, if any, by shape."""
  if task.predict is None:
    return []
  step = functools.partial(predict_step, task=task)
  keys = jax.eval_shape(step, abstract_params(task, spec), dict(spec), jax.random.key(0))
  return sorted({*keys, *task.words} - {'row_weight'})


class Steps(NamedTuple):
  """Compiled functions of one task: `eval_step` and `predicting_step`."""

  plain: Callable[..., Any]
  predicting: Callable[..., Any]


class Evaluated(NamedTuple):
  """Result of one evaluation."""

  metrics: dict[str, float]  # name -> number
  predictions: list[dict[str, Any]]  # of each row, in the order of `Source.once`; empty where none were asked for
  records: list[dict[str, Any]]  # of the same rows


def make_steps(task: Task, *, rows: int | None = None) -> Steps:
  """Jit both functions of a task; `rows` is that of `rows_at_once`."""
  plain = functools.partial(eval_step, task=task, rows=rows)
  return Steps(jax.jit(plain), jax.jit(functools.partial(predicting_step, task=task)))


def steps_of(settings: Settings, made: Parts, names: Iterable[str]) -> dict[str, Steps]:
  """Return `make_steps` of each evaluation, which those without their own task share."""
  steps = make_steps(made.task, rows=rows_at_once(settings))
  return {name: make_steps(made.of(name).task) if name in made.others else steps for name in names}


def rows_at_once(settings: Settings) -> int | None:
  """Return the rows of an accumulated micro-batch, which evaluations fit, or None."""
  parts = settings['accumulate']
  return None if parts == 1 else settings['data']['batch_size'] // parts


def evaluate(
  source: Source,
  params: PyTree,
  key: Array,
  *,
  task: Task,
  steps: Steps,
  layout: sharding.Layout,
  units: int | None = None,
  scores: Sequence[str] = (),
  keep: bool = False,
  check: Callable[[], None] = lambda: None,
) -> Evaluated:
  """Compute exact means over the examples of a source, and scores.

  Every process returns the same. A source with unlabelled examples (`Source.unlabelled`) has no metrics, unless its
  scores accept such examples; means are over the others then. Raises ConfigError: the source has no rows, or a score
  cannot be computed.

  Args:
    source: its `once` is read.
    steps: of `make_steps`.
    units: in the text, see `schema.Evaluation`.
    scores: names of files of `plm_jax/scores/`; a metric of theirs stands for one of the task with its name.
    keep: return predictions and records also where no score needs them.
    check: called before each batch; it may end the evaluation with an exception.
  """
  predicts = keep or bool(scores)
  totals, predictions = _over_rows(
    source, params, key, task=task, steps=steps, layout=layout, predicts=predicts, check=check
  )
  records = [scoring.record_of(source, int(row['row_id']), task) for row in predictions]
  predictions = [scoring.own(task, *row) for row in zip(predictions, records, strict=True)]
  if source.unlabelled and not scoring.takes_unlabelled(scores, task):
    return Evaluated({}, predictions, records)
  if 'loss' in totals and not totals['loss'][1]:
    log.warning('an evaluation measures nothing: no row of it has a target')
  found = means_of(task, totals)
  if units is not None:
    nats = float(totals['loss'][0]) / units
    found |= {'unit_perplexity': losses.perplexity(nats), 'bits_per_unit': nats / math.log(2)}
  for name in scores:
    found |= scoring.score(name, predictions, records)
  return Evaluated(found, predictions, records)


def means_of(task: Task, totals: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
  """Compute the means and the summary of summed metrics."""
  means = metrics.mean(task.exact(totals))
  return {**means, **task.summary(means)}


def _over_rows(
  source: Source,
  params: PyTree,
  key: Array,
  *,
  task: Task,
  steps: Steps,
  layout: sharding.Layout,
  predicts: bool,
  check: Callable[[], None],
) -> tuple[dict[str, tuple[Any, Any]], list[dict[str, Any]]]:
  """Sum metrics of all batches, and collect predictions if requested."""
  carry = task.init_carry(source.spec['row_id'].shape[0])
  totals: dict[str, tuple[Array, Array]] | None = None
  rows: list[dict[str, Any]] = []
  waiting: deque[dict[str, Array]] = deque()
  for _, batch in to_devices(source.once(), sharding.batch_sharding(layout)):
    check()
    if predicts:
      sums, carry, predicted = steps.predicting(params, batch, carry, key)
      waiting.append(predicted)
    else:
      sums, carry = steps.plain(params, batch, carry, key)
    totals = sums if totals is None else jax.tree.map(lambda a, b: a + b, totals, sums)
    if layout.mesh.size > 1:
      jax.block_until_ready(totals)  # queued collectives starve simulated devices
    while len(waiting) > _IN_FLIGHT:
      rows += rows_of(waiting.popleft())
  if totals is None:
    raise ConfigError('data: the evaluation split has no rows')
  for predicted in waiting:
    rows += rows_of(predicted)
  return jax.device_get(totals), rows


def rows_of(predicted: dict[str, Array]) -> list[dict[str, Any]]:
  """Return the examples of a batch over all processes.

  They are in batch order, without those of weight 0; leaves of `predicted` lead with the batch axis.
  """
  # label [4 7 5 5], row_id [8 9 10 -1], row_weight [1 1 1 0]   ->   (4, 8), (7, 9), (5, 10)
  alone = jax.process_count() == 1
  batch = jax.device_get(predicted) if alone else multihost_utils.process_allgather(predicted, tiled=True)
  real = np.flatnonzero(batch.pop('row_weight') > 0)
  return [{name: values[place] for name, values in batch.items()} for place in real]
