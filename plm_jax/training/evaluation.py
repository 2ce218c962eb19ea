"""The scores of one evaluation: exact means over all rows of a source."""

import math
from collections.abc import Callable
from typing import Any

import jax

from plm_jax import sharding
from plm_jax.errors import ConfigError
from plm_jax.layers import losses
from plm_jax.training import metrics
from plm_jax.training.feed import to_devices
from plm_jax.types import Array, PyTree, Source, Task


def evaluate(
  source: Source,
  params: PyTree,
  key: Array,
  *,
  task: Task,
  step: Callable[..., Any],
  layout: sharding.Layout,
  units: int | None = None,
  check: Callable[[], None] = lambda: None,
) -> dict[str, float]:
  """Exact means over the rows of a source, each read once, and what the task derives from them (`Task.summary`).

  Args:
    source: its `once` is read.
    params: of the task's model.
    key: root key of the run.
    task: what is scored.
    step: the compiled `eval_step` of the task.
    layout: mesh and rules.
    units: in the text, see `schema.Evaluation`.
    check: called before each batch; it may end the evaluation with an exception.

  Raises:
    ConfigError: the source has no rows.
  """
  carry = task.init_carry(source.spec['row_id'].shape[0])
  totals: dict[str, tuple[Array, Array]] | None = None
  for _, batch in to_devices(source.once(), sharding.batch_sharding(layout)):
    check()
    sums, carry = step(params, batch, carry, key)
    totals = sums if totals is None else jax.tree.map(lambda a, b: a + b, totals, sums)
    if layout.mesh.size > 1:
      jax.block_until_ready(totals)  # queued collectives starve simulated devices
  if totals is None:
    raise ConfigError('data: the evaluation split has no rows')
  totals = jax.device_get(totals)
  means = metrics.mean(totals)
  scores = {**means, **task.summary(means)}
  if units is not None:
    nats = float(totals['loss'][0]) / units
    scores |= {'unit_perplexity': losses.perplexity(nats), 'bits_per_unit': nats / math.log(2)}
  return scores
