"""Several sources as one: the examples of a batch from several of them, or all from one (`data/mixture.py`)."""

import itertools
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from plm_jax.core.batch import BATCH
from plm_jax.core.types import Source
from plm_jax.data.rows import order

ROUND = 4096  # samples; shares are exact to 1 / 4096
OPTIONAL = ('word_marks', 'sentence_ids')  # their filler says that a source reports none


class Mixed:
  """Sources in the order of their names, with row ids that are unique over all of them.

  Attributes:
    parts: name -> source.
    per_round: int64[parts], samples of each part in a round of `ROUND` samples; given without `alternate`.
    seed: seed of the order of the samples.
    alternate: index of the part of every second sample; None for none.
  """

  def __init__(self, parts: Mapping[str, Source], *, per_round: np.ndarray, seed: int, alternate: int | None = None):
    self.parts = dict(parts)
    self.per_round = per_round if alternate is None else np.insert(per_round, alternate, ROUND // 2)
    self.seed = seed
    self.alternate = alternate
    self._ends = np.cumsum([source.ids or source.rows for source in parts.values()])
    self._starts = np.concatenate([[0], self._ends[:-1]])

  @property
  def ids(self) -> int:
    """See `Source`."""
    return int(self._ends[-1])

  def record(self, row_id: int) -> Mapping[str, Any]:
    """Return the record of an example, with its part."""
    part, source, own = self._part_of(row_id)
    return {**(source.record(own) if source.record else {}), 'part': part}

  def group(self, row_id: int) -> Hashable:
    """Return an example's group, itself if the part has none."""
    part, source, own = self._part_of(row_id)
    return part, source.group is not None, own if source.group is None else source.group(own)

  def _part_of(self, row_id: int) -> tuple[str, Source, int]:
    index = int(np.searchsorted(self._ends, row_id, side='right'))
    name = list(self.parts)[index]
    return name, self.parts[name], row_id - int(self._starts[index])

  def sampled(self, position: int) -> Iterator[tuple[int, order.Batch]]:
    """Yield endlessly, from a position on, a part and its next batch."""
    index, start = divmod(position, ROUND)
    parts = self._round(index)
    used = np.bincount(parts[:start], minlength=len(self.parts)) + index * self.per_round  # batches before `position`
    readers = [source.read(int(batch)) for source, batch in zip(self.parts.values(), used, strict=True)]
    while True:
      for part in parts[start:].tolist():
        yield part, next(readers[part])
      index, start = index + 1, 0
      parts = self._round(index)

  def _round(self, index: int) -> np.ndarray:
    """Return the part of each sample of a round, int64[ROUND]."""
    parts = np.repeat(np.arange(len(self.per_round)), self.per_round)
    sampled = parts[parts != self.alternate] if self.alternate is not None else parts
    sampled = sampled[order.permutation(len(sampled), self.seed, index)]
    if self.alternate is None:
      return sampled
    return np.stack([sampled, np.full_like(sampled, self.alternate)], axis=1).reshape(-1)

  def _numbered(self, part: int, batch: order.Batch) -> order.Batch:
    rows = batch['row_id'] + 2**31 * np.int64(batch.get('row_high', 0)) + self._starts[part]
    own = order.identity(rows, batch['row_weight'] > 0, of=int(self._ends[-1]))
    return {**batch, **own, 'part': np.full(len(rows), part, np.int32)}


class ByRow(Mixed):
  """Batches whose examples are sampled one by one; the parts are sources of single examples with the same keys.

  Examples may differ in their number of options and in the length of targets and options; smaller ones are padded with
  `pad_id`. Raises ValueError if the parts have different keys or other shapes.
  """

  def __init__(self, parts: Mapping[str, Source], *, per_round: np.ndarray, seed: int, pad_id: int, share: order.Share):
    super().__init__(parts, per_round=per_round, seed=seed)
    self.share, self.pad_id = share, pad_id
    (name, first), *others = self.parts.items()
    for other, source in others:
      if _fixed(source.spec) != _fixed(first.spec):
        raise ValueError(
          f'data.parts: {name!r} has {_shapes(first.spec)} but {other!r} has {_shapes(source.spec)}: '
          "set data.per='step'"
        )
    self._row = union({name: source.spec for name, source in self.parts.items()}, ids=self.ids)
    self.spec = order.spec(self._row, batch_size=share.batch_size)

  @property
  def steps(self) -> int:
    """Count the batches that hold each example once."""
    return -(-sum(source.rows for source in self.parts.values()) // self.share.batch_size)

  def read(self, step: int) -> Iterator[order.Batch]:
    """Yield batches from a step on; see `Source`."""
    return self._batches(self._padded(part, row) for part, row in self.sampled(step * self.share.batch_size))

  def once(self) -> Iterator[order.Batch]:
    """Yield every example once; see `Source`."""
    every = enumerate(self.parts.values())
    return self._batches(self._padded(part, row) for part, source in every for row in source.once())

  def _padded(self, part: int, row: order.Batch) -> order.Batch:
    return filled(self._numbered(part, row), self._row, pad_id=self.pad_id)

  def _batches(self, rows: Iterator[order.Batch]) -> Iterator[order.Batch]:
    """Yield this host's part of each batch, filled with weight 0."""
    while chosen := list(itertools.islice(rows, self.share.batch_size)):
      filler = {**chosen[0], 'row_id': np.full(1, -1, np.int32), 'row_weight': np.zeros(1, np.float32)}
      chosen += [filler] * (self.share.batch_size - len(chosen))
      mine = [chosen[index] for index in self.share.places]
      yield {key: np.concatenate([row[key] for row in mine]) for key in mine[0]}


class ByStep(Mixed):
  """Batches of one part each, with the keys of all parts, as long as the longest part.

  Raises ValueError if a key has other axes in other parts.
  """

  def __init__(
    self, parts: Mapping[str, Source], *, per_round: np.ndarray, seed: int, pad_id: int, alternate: int | None = None
  ):
    super().__init__(parts, per_round=per_round, seed=seed, alternate=alternate)
    self.pad_id = pad_id
    self.spec = union({name: source.spec for name, source in self.parts.items()}, ids=self.ids)

  @property
  def steps(self) -> int:
    """Count the batches that hold each example once."""
    return sum(source.steps_per_epoch for source in self.parts.values())

  def read(self, step: int) -> Iterator[order.Batch]:
    """Yield batches from a step on; see `Source`."""
    return (self._padded(part, batch) for part, batch in self.sampled(step))

  def once(self) -> Iterator[order.Batch]:
    """Yield every example once; see `Source`."""
    for part, source in enumerate(self.parts.values()):
      yield from (self._padded(part, batch) for batch in source.once())

  def _padded(self, part: int, batch: order.Batch) -> order.Batch:
    return filled(self._numbered(part, batch), self.spec, pad_id=self.pad_id)


def filled(batch: order.Batch, spec: Mapping[str, jax.ShapeDtypeStruct], *, pad_id: int) -> order.Batch:
  """Pad a batch to a spec with `pad_id` or fillers of `BATCH`."""
  padded = {}
  for key, leaf in spec.items():
    given, shape = batch.get(key), (len(batch['row_id']), *leaf.shape[1:])
    if given is not None and (given.shape, given.dtype) == (shape, leaf.dtype):
      padded[key] = given
      continue
    padded[key] = np.full(shape, pad_id if BATCH[key].filler is None else BATCH[key].filler, leaf.dtype)
    if given is not None:
      padded[key][tuple(map(slice, given.shape))] = given
  return padded


def union(specs: Mapping[str, Mapping[str, jax.ShapeDtypeStruct]], *, ids: int = 0) -> dict[str, jax.ShapeDtypeStruct]:
  """Return the keys of all parts with the largest shapes.

  A key that is an integer in some parts only is float32. Axes of one letter have one size in all keys, because tasks
  compare them token by token. Raises ValueError if a key has other axes in other parts.
  """
  sizes: dict[str, int] = {}
  leaves: dict[str, jax.ShapeDtypeStruct] = {}
  for name, spec in specs.items():
    for key, leaf in spec.items():
      earlier = leaves.get(key, leaf)
      if len(earlier.shape) != len(leaf.shape):
        raise ValueError(
          f'data.parts: {key} has the shape {leaf.shape} in {name!r} but {earlier.shape} in another part: '
          'examples with options cannot be mixed with others'
        )
      dtype = earlier.dtype if earlier.dtype == leaf.dtype else np.dtype(np.float32)
      leaves[key] = jax.ShapeDtypeStruct(leaf.shape, dtype)
      for axis, size in zip(_axes(key, leaf), leaf.shape, strict=True):
        sizes[axis] = max(size, sizes.get(axis, 0))
  leaves['part'] = leaves['row_id']
  leaves |= {'row_high': leaves['row_id']} if ids > 2**31 else {}
  shapes = {key: tuple(sizes[axis] for axis in _axes(key, leaf)) for key, leaf in leaves.items()}
  return {key: jax.ShapeDtypeStruct(shapes[key], leaf.dtype) for key, leaf in leaves.items()}


def _axes(key: str, leaf: jax.ShapeDtypeStruct) -> str:
  """Return the axes of a key by letter; k for several sequences."""
  first, rest = BATCH[key].axes[:1], BATCH[key].axes[1:]
  return first + 'k' * (len(leaf.shape) - len(BATCH[key].axes)) + rest


def _fixed(spec: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
  """Return keys, dtypes and sizes that examples of one batch share."""
  properties = {}
  for key, leaf in spec.items():
    if key in OPTIONAL:
      continue
    free = set('ktn') & set(BATCH[key].axes)
    sizes = zip(_axes(key, leaf), leaf.shape, strict=True)
    properties[key] = leaf.dtype, [(axis, None if axis in free else size) for axis, size in sizes]
  return properties


def _shapes(spec: Mapping[str, jax.ShapeDtypeStruct]) -> str:
  return ', '.join(f'{key} {leaf.dtype}{list(leaf.shape[1:])}' for key, leaf in sorted(spec.items()))
