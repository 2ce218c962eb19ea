"""Short training runs: on rows that count upwards, whose tokens tell each other, and on English text, letter by letter.

The text is what Python's `help()` says about its topics, which comes with every interpreter.
"""

import dataclasses
import functools
import string
from collections.abc import Callable, Mapping
from pydoc_data import topics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Batch, Example, PyTree, Task
from plm_jax.training import step
from tests import tiny

FIRST = len(tiny.VOCAB.special_ids)
WORDS = 20


# Rows that count ------------------------------------------------------------------------------------------------------


def make_batch(number: int, *, rows: int = 16, length: int = 12) -> Batch:
  """Batch `number`: [CLS], consecutive ids from a random one on, [SEP]; unpadded."""
  draw = np.random.default_rng(number)
  tokens = FIRST + (draw.integers(0, WORDS, (rows, 1)) + np.arange(length)) % WORDS
  tokens[:, 0], tokens[:, -1] = tiny.VOCAB.cls_id, tiny.VOCAB.sep_id
  return _batch(number, tokens=tokens, segment_ids=np.ones_like(tokens))


def _batch(number: int, **fields: np.ndarray) -> Batch:
  rows = len(next(iter(fields.values())))
  fields |= {'row_id': number * rows + np.arange(rows), 'epoch': np.zeros(rows)}
  batch = {name: jnp.asarray(value, jnp.int32) for name, value in fields.items()}
  return batch | {'row_weight': jnp.ones(rows)}


# Text -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Letters(tiny.FakeVocab):
  """Special tokens, modes, a blank that starts a word, the full stop, the letters, and 24 sentinels that count down."""

  size: int = 64
  special_ids: tuple[int, ...] = (*range(10), *range(40, 64))
  counts: np.ndarray | None = None

  @property
  def starts_word(self) -> np.ndarray:
    return np.isin(np.arange(self.size), [BLANK, STOP])

  def token(self, token_id: int) -> str:
    names = {7: '[R]', 8: '[S]', 9: '[X]', BLANK: '_', STOP: '.'}
    if token_id >= 40:
      return f'<extra_id_{63 - token_id}>'
    return names.get(token_id) or (string.ascii_lowercase[token_id - 12] if 12 <= token_id < 38 else f'<{token_id}>')


BLANK, STOP = 10, 11
ROWS = 32


@functools.cache
def spelled(held_out: bool) -> np.ndarray:
  """int32[n]: topics one after the other, every sixth of them held out; what is no letter or full stop is a blank."""
  chosen = [text for number, text in enumerate(topics.topics.values()) if (number % 6 == 5) == held_out]
  known = {'.': STOP} | {letter: 12 + number for number, letter in enumerate(string.ascii_lowercase)}
  text = ''.join(letter if letter in known else ' ' for letter in ' '.join(chosen).lower())
  return np.array([known.get(letter, BLANK) for letter in ' '.join(text.split())], np.int32)


LETTERS = Letters(counts=np.bincount(spelled(False), minlength=64))


def make_text(number: int, *, held_out: bool = False, length: int = 48) -> Batch:
  """Batch `number` of text, [CLS], letters, [SEP], from anywhere in it."""
  tokens, _ = _passages(number, held_out=held_out, length=length - 2)
  tokens = np.pad(tokens, ((0, 0), (1, 1)), constant_values=((0, 0), (LETTERS.cls_id, LETTERS.sep_id)))
  return _batch(number, tokens=tokens, segment_ids=np.ones_like(tokens))


def make_pairs(number: int, *, held_out: bool = False, length: int = 48) -> Batch:
  """Batch `number` of pairs: a passage, what follows it, and another one."""
  size = (length - 3) // 2
  first, following = _passages(number, held_out=held_out, length=size)
  other, _ = _passages(number + 500_000, held_out=held_out, length=size)
  fields = {'first': first, 'next': following, 'other': other}
  wide = {name: np.pad(value, ((0, 0), (0, length - size))) for name, value in fields.items()}
  return _batch(number, **wide, **{f'{name}_length': np.full(ROWS, size) for name in fields})


def _passages(number: int, *, held_out: bool, length: int) -> tuple[np.ndarray, np.ndarray]:
  text = spelled(held_out)
  start = np.random.default_rng([number, held_out]).integers(0, len(text) - 2 * length, (ROWS, 1))
  return text[start + np.arange(length)], text[start + length + np.arange(length)]


def entropy(example: Example) -> float:
  """Nats a target that the best constant guess would cost on these very targets."""
  targets = example.targets
  weights = targets['weights'] if 'weights' in targets else targets['masked'] + targets['causal']  # of gpt_bert
  ids, weights = np.asarray(targets['ids']), np.asarray(weights)
  shares = np.bincount(ids[weights > 0]) / (weights > 0).sum()
  shares = shares[shares > 0]
  return float(-(shares * np.log(shares)).sum())


# Runs -----------------------------------------------------------------------------------------------------------------


def held_out(task: Task, **settings: Any) -> tuple[dict[str, float], dict[str, float]]:
  """Metrics on a batch that is not trained on, before and after some steps; `settings` are those of `run`."""
  before, after, _ = run(task, **settings)
  return before, after


def run(
  task: Task,
  *,
  steps: int = 60,
  rate: float = 1e-2,
  rows: Callable[[int], Batch] = make_batch,
  unseen: Batch | None = None,
  given: Mapping[str, PyTree] | None = None,
  **settings: Any,
) -> tuple[dict[str, float], dict[str, float], PyTree]:
  """Trains by AdamW.

  Args:
    task: what is learned.
    steps: of training.
    rate: of learning.
    rows: number of a step -> its batch.
    unseen: another batch; one of `rows` if None.
    given: parameters that are not drawn, by the name of their module.
    settings: of the optimiser.

  Returns:
    Metrics on the unseen batch before and after, and the parameters.
  """
  unseen = rows(10_000) if unseen is None else unseen
  tx = tiny.make_optimiser(task, unseen, **{'rate': rate, 'clip': 1.0, 'steps': steps, **settings})
  state = tiny.make_state(task, unseen, tx)
  if given is not None:
    state = dataclasses.replace(state, params={**state.params, **given})
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  evaluate = jax.jit(functools.partial(step.eval_step, task=task))
  key = jax.random.key(0)
  score = lambda: tiny.means(evaluate(state.params, unseen, state.carry, key)[0])  # noqa: E731
  before = score()
  for number in range(steps):
    state, _ = train(state, rows(number), key)
  return before, score(), state.params
