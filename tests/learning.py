"""Short training runs on rows that can be learned: each counts upwards from somewhere, so a token tells all others."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import step
from plm_jax.types import Batch, Task
from tests import tiny

FIRST = len(tiny.VOCAB.special_ids)
WORDS = 20


def make_batch(number: int, *, rows: int = 16, length: int = 12) -> Batch:
  """Batch `number`: [CLS], consecutive ids from a random one on, [SEP]; unpadded."""
  draw = np.random.default_rng(number)
  tokens = FIRST + (draw.integers(0, WORDS, (rows, 1)) + np.arange(length)) % WORDS
  tokens[:, 0], tokens[:, -1] = tiny.VOCAB.cls_id, tiny.VOCAB.sep_id
  batch = {
    'tokens': tokens.astype(np.int32),
    'segment_ids': np.ones_like(tokens, np.int32),
    'row_id': (number * rows + np.arange(rows)).astype(np.int32),
    'epoch': np.zeros(rows, np.int32),
    'row_weight': np.ones(rows, np.float32),
  }
  return {name: jnp.asarray(value) for name, value in batch.items()}


def held_out(
  task: Task, *, steps: int = 60, rate: float = 1e-2, **settings
) -> tuple[dict[str, float], dict[str, float]]:
  """Metrics on a batch that is not trained on, before and after some steps of AdamW."""
  unseen = make_batch(10_000)
  tx = tiny.make_optimiser(task, unseen, rate=rate, clip=1.0, **settings)
  state = tiny.make_state(task, unseen, tx)
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  evaluate = jax.jit(functools.partial(step.eval_step, task=task))
  key = jax.random.key(0)
  score = lambda: tiny.means(evaluate(state.params, unseen, (), key)[0])  # noqa: E731
  before = score()
  for number in range(steps):
    state, _ = train(state, make_batch(number), key)
  return before, score()
