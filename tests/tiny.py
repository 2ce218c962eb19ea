"""Small parts that tests of models and tasks share: a vocabulary, trunks, batches, optimisers, comparisons."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax import optim
from plm_jax.core.batch import SLOTS
from plm_jax.core.types import Batch, Execution, PyTree, Task
from plm_jax.models import bert, gpt
from plm_jax.noise import keys
from plm_jax.training import step

SIZES = {
  'hidden_dim': 32,
  'num_layers': 2,
  'num_heads': 2,
  'mlp_dim': 64,
  'max_length': 32,
  'dropout': 0.0,
  'attention_dropout': 0.0,
}
PLAIN = Execution()
MAKERS = {'bert': bert.make, 'gpt': gpt.make}


@dataclasses.dataclass(frozen=True)
class FakeVocab:
  """Ids without text: seven special tokens, then words of one to three pieces of one to four bytes.

  `counts` are made up where they are left out; None stands for a vocabulary that has none.
  """

  size: int = 61
  pad_id: int = 0
  unk_id: int | None = 1
  cls_id: int | None = 2
  sep_id: int | None = 3
  mask_id: int | None = 4
  bos_id: int | None = 5
  eos_id: int | None = 6
  special_ids: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)
  digest: str = 'fake'
  counts: Any = dataclasses.field(default=(), compare=False)

  def __post_init__(self):
    if isinstance(self.counts, tuple):
      object.__setattr__(self, 'counts', 1 + np.arange(self.size) * 37 % 101)

  @property
  def starts_word(self) -> np.ndarray:
    return np.arange(self.size) % 3 != 0

  @property
  def num_bytes(self) -> np.ndarray:
    return np.where(np.arange(self.size) < len(self.special_ids), 0, 1 + np.arange(self.size) % 4)

  def encode(self, text: str) -> list[int]:
    """A token for each byte."""
    first = len(self.special_ids)
    return [first + byte % (self.size - first) for byte in text.encode()]

  def token(self, number: int) -> str:
    """A word of one to four letters; other numbers have other words."""
    return ''.join('abcdefghij'[int(digit)] for digit in str(number))

  def id(self, token: str) -> int:
    """The mask, whatever its name; there are no other tokens with names."""
    assert self.mask_id is not None and token.startswith('<'), token
    return self.mask_id


VOCAB = FakeVocab()


def make_trunk(
  name: str = 'bert', *, vocab_size: int = VOCAB.size, variant: str = 'tiny', execution: Execution = PLAIN, **fields
) -> nn.Module:
  """A trunk of hidden width 32 and two layers without dropout; `fields` change its config."""
  return MAKERS[name](vocab_size=vocab_size, variant=variant, overrides=SIZES | fields, execution=execution)


def make_batch(
  lengths: Sequence[Sequence[int]] = ((16,), (7, 5), (11,), (3, 4, 5)),
  *,
  length: int = 16,
  seed: int = 0,
  first: int = 0,
) -> Batch:
  """A batch whose rows pack documents of the given lengths, each [CLS] A [SEP] B [SEP], and then padding.

  Args:
    lengths: for each row the lengths of its documents.
    length: of a row.
    seed: of the tokens.
    first: the first row id.
  """
  draw = np.random.default_rng(seed)
  tokens = np.zeros((len(lengths), length), np.int32)
  segments, types = np.zeros_like(tokens), np.zeros_like(tokens)
  for row, documents in enumerate(lengths):
    start = 0
    for number, size in enumerate(documents, start=1):
      text = draw.integers(len(VOCAB.special_ids), VOCAB.size, size)
      text[0], text[-1], text[size // 2] = VOCAB.cls_id, VOCAB.sep_id, VOCAB.sep_id
      tokens[row, start : start + size] = text
      segments[row, start : start + size] = number
      types[row, start + size // 2 + 1 : start + size] = 1
      start += size
    assert start <= length, f'documents {documents} do not fit in {length}'
  rows = len(lengths)
  batch = {
    'tokens': tokens,
    'segment_ids': segments,
    'type_ids': types,
    'label': np.arange(rows, dtype=np.int32) % 2,
    'row_id': first + np.arange(rows, dtype=np.int32),
    'epoch': np.zeros(rows, np.int32),
    'row_weight': np.ones(rows, np.float32),
  }
  return {name: jnp.asarray(value) for name, value in batch.items()}


def make_pairs(
  lengths: Sequence[tuple[int, int, int]] = ((6, 7, 9), (13, 5, 4), (5, 0, 12), (2, 3, 16)),
  *,
  length: int = 16,
  seed: int = 0,
) -> Batch:
  """The segments of a batch of pairs: tokens of the first, the next and the other one of each row."""
  draw = np.random.default_rng(seed)
  batch = {}
  for name, sizes in zip(('first', 'next', 'other'), np.array(lengths, np.int32).T, strict=True):
    ids = draw.integers(len(VOCAB.special_ids), VOCAB.size, (len(lengths), length))
    batch[name] = jnp.asarray(np.where(np.arange(length) < sizes[:, None], ids, VOCAB.pad_id).astype(np.int32))
    batch[f'{name}_length'] = jnp.asarray(sizes)
  return batch


def make_counted(rows: Batch) -> Batch:
  """Counted pairs: the tokens of the rows with others that stand near them, from .5 to 15 times."""
  neighbours, places = jnp.roll(rows['tokens'], 1, axis=0), jnp.arange(rows['tokens'].size) % 30
  counts = 0.5 + 0.5 * places.reshape(neighbours.shape).astype(jnp.float32)
  return {'neighbours': neighbours, 'cooccurrence': jnp.where(rows['segment_ids'] > 0, counts, 0)}


def make_streams(rows: Batch) -> Batch:
  """Two streams of words: those of the rows, and the same from the end of each row to its beginning."""
  tokens, real = rows['tokens'], rows['segment_ids'] > 0
  size = real.sum(axis=1, keepdims=True)
  backward = jnp.take_along_axis(tokens, (size - 1 - jnp.arange(tokens.shape[1])) % tokens.shape[1], axis=1)
  made = {'backward_tokens': backward}
  for prefix, ids in (('', tokens), ('backward_', backward)):
    made[f'{prefix}next_tokens'] = jnp.where(real, jnp.roll(ids, -1, axis=1), 0)
    word = [jnp.full_like(ids, 259), 1 + ids, jnp.full_like(ids, 260), *[jnp.full_like(ids, 261)] * (SLOTS - 3)]
    made[f'{prefix}characters'] = jnp.where(real[..., None], jnp.stack(word, axis=-1), 0)
  return made


def spec(batch: Batch) -> dict[str, jax.ShapeDtypeStruct]:
  return {name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in batch.items()}


def make_optimiser(task: Task, batch: Batch, **settings: Any) -> optim.Optimiser:
  """Plain AdamW at a constant rate, where `settings` say nothing else."""
  settings = {'name': 'adamw', 'rate': 1e-3, 'schedule': 'constant', 'steps': 100} | settings
  return optim.make(params=step.abstract_params(task, spec(batch)), trains=task.trains, **settings)


def draw(abstract: PyTree, *, seed: int = 0) -> PyTree:
  """Parameters drawn by numpy: no compilation, no bias or scale that hides by being 0 or 1, no variance below 0."""

  def one(path, leaf):
    values = np.random.default_rng([seed, *map(ord, jax.tree_util.keystr(path))]).normal(0, 0.1, leaf.shape)
    return jnp.asarray(1 + values if path[-1].key in ('scale', 'variance') else values, jnp.float32)

  return jax.tree_util.tree_map_with_path(one, abstract)


def init_params(task: Task, batch: Batch, *, seed: int = 0) -> PyTree:
  """Parameters of a task on one device, by `draw`."""
  return draw(step.abstract_params(task, spec(batch)), seed=seed)


def make_state(task: Task, batch: Batch, tx: optim.Optimiser, *, seed: int = 0) -> step.TrainState:
  """A state on one device."""
  params = init_params(task, batch, seed=seed)
  zero = jnp.zeros((), jnp.int32)
  rows = batch['row_id'].shape[0]
  return step.TrainState(zero, params, tx.init(tx.split(params)[0]), zero, zero, task.init_carry(rows))


def loss_and_gradient(task: Task, params: PyTree, batch: Batch, *, key: int = 0, train: bool = False):
  """(Loss, gradient) of a whole batch at step 0, by the task alone."""

  @jax.jit
  def compute(params: PyTree, batch: Batch, root):
    def loss_of(params):
      example = task.prepare(keys.noise_root(root), keys.with_step(batch, 0))
      rng = step.step_rng(root, jnp.int32(0))
      carry = task.init_carry(jax.tree.leaves(batch)[0].shape[0])
      loss = task.loss(step.bind(task, params, train=train, rng=rng), example, carry, rng)
      return loss.value, loss

    gradient, loss = jax.grad(loss_of, has_aux=True)(params)
    return loss, gradient

  return compute(params, batch, jax.random.key(key))


def means(metrics: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
  return {name: float(total) / float(weight) for name, (total, weight) in metrics.items() if float(weight)}


def worst(ours: PyTree, theirs: PyTree) -> float:
  """The largest |difference| of two trees, relative to the largest |value| of each leaf of the second."""
  return max(
    float(np.max(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))) / max(np.max(np.abs(b)), 1e-30))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
  )


def gradient_error(ours: PyTree, theirs: PyTree) -> tuple[float, str]:
  """The largest ||a - b|| / max(||b||, 1e-3 ||all b||) over the leaves, and where it is."""
  norm = lambda x: float(np.linalg.norm(np.asarray(x, np.float64)))  # noqa: E731
  whole = float(np.sqrt(sum(norm(leaf) ** 2 for leaf in jax.tree.leaves(theirs))))
  named = jax.tree_util.tree_leaves_with_path(theirs)
  assert jax.tree.structure(ours) == jax.tree.structure(theirs)
  errors = [
    (
      norm(np.asarray(a, np.float64) - np.asarray(b, np.float64)) / max(norm(b), 1e-3 * whole),
      jax.tree_util.keystr(path),
    )
    for a, (path, b) in zip(jax.tree.leaves(ours), named, strict=True)
  ]
  return max(errors)


def same(ours: PyTree, theirs: PyTree) -> bool:
  """Whether two trees hold the same bits."""
  pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
  return jax.tree.structure(ours) == jax.tree.structure(theirs) and all(
    np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs
  )
