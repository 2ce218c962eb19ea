"""Sources side by side, as one: the rows of a batch from several of them, or all from one (`data/mixture.py`)."""

import itertools
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from plm_jax.core.batch import BATCH
from plm_jax.core.types import Source
from plm_jax.data.rows import order

ROUND = 4096  # draws; shares are exact to 1 / 4096


class Mixed:
  """Sources in the order of their names, with numbers of rows that are unique over all of them.

  Attributes:
    parts: name -> source.
    per_round: int64[parts], how often each is drawn in a round of `ROUND` draws; given without `alternate`.
    seed: of the order of the draws.
    alternate: number of the part that every second draw is, if any.
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
    """As of `Source`."""
    return int(self._ends[-1])

  def record(self, row_id: int) -> Mapping[str, Any]:
    """The record of a row in its part, by the number that is unique over all parts; with the name of the part."""
    part, source, own = self._part_of(row_id)
    assert source.record is not None
    return {**source.record(own), 'part': part}

  def group(self, row_id: int) -> Hashable:
    """The group of a row in its part; a row of its own where the part has no groups."""
    part, source, own = self._part_of(row_id)
    return part, source.group is not None, own if source.group is None else source.group(own)

  def _part_of(self, row_id: int) -> tuple[str, Source, int]:
    """The part of a row, by name and source, and the number of the row in it."""
    part = int(np.searchsorted(self._ends, row_id, side='right'))
    name = list(self.parts)[part]
    return name, self.parts[name], row_id - int(self._starts[part])

  def drawn(self, position: int) -> Iterator[tuple[int, order.Batch]]:
    """Endlessly from a position on: the part that is drawn, and the next batch of its source."""
    number, place = divmod(position, ROUND)
    pattern = self._pattern(number)
    before = np.bincount(pattern[:place], minlength=len(self.parts)) + number * self.per_round
    readers = [source.read(int(start)) for source, start in zip(self.parts.values(), before, strict=True)]
    while True:
      for part in pattern[place:].tolist():
        yield part, next(readers[part])
      number, place = number + 1, 0
      pattern = self._pattern(number)

  def _pattern(self, number: int) -> np.ndarray:
    """int64[ROUND]: the part of each draw of a round."""
    parts = np.repeat(np.arange(len(self.per_round)), self.per_round)
    drawn = parts[parts != self.alternate] if self.alternate is not None else parts
    drawn = drawn[order.permutation(len(drawn), self.seed, number)]
    if self.alternate is None:
      return drawn
    return np.stack([drawn, np.full_like(drawn, self.alternate)], axis=1).reshape(-1)

  def _numbered(self, part: int, batch: order.Batch) -> order.Batch:
    """A batch of a part with numbers that are unique over all parts, and the number of the part."""
    rows = np.where(batch['row_weight'] > 0, batch['row_id'] + self._starts[part], -1).astype(np.int32)
    return {**batch, 'row_id': rows, 'part': np.full(len(rows), part, np.int32)}


class ByRow(Mixed):
  """Batches whose rows are drawn one by one; the parts are sources of single rows, with the same keys.

  Rows may differ in their number of options and in the length of targets and options: those of a part with fewer are
  filled up.

  Attributes:
    share: of this host.
    pad_id: what stands for a token where there is none.
    spec: as of `Source`.

  Raises:
    ValueError: their rows have different keys or other shapes.
  """

  def __init__(self, parts: Mapping[str, Source], *, per_round: np.ndarray, seed: int, pad_id: int, share: order.Share):
    super().__init__(parts, per_round=per_round, seed=seed)
    self.share, self.pad_id = share, pad_id
    (name, first), *others = self.parts.items()
    for other, source in others:
      if _fixed(source.spec) != _fixed(first.spec):
        raise ValueError(
          f'data.parts: rows of {name!r} have {_shapes(first.spec)}, those of {other!r} {_shapes(source.spec)}: mix '
          "them with data.per='step'"
        )
    self._row = union({name: source.spec for name, source in self.parts.items()})
    self.spec = order.spec(self._row, batch_size=share.batch_size)

  @property
  def steps(self) -> int:
    """Batches that hold each row once."""
    return -(-sum(source.rows for source in self.parts.values()) // self.share.batch_size)

  def read(self, step: int) -> Iterator[order.Batch]:
    """As of `Source`."""
    return self._batches(self._whole(*one) for one in self.drawn(step * self.share.batch_size))

  def once(self) -> Iterator[order.Batch]:
    """As of `Source`."""
    every = enumerate(self.parts.values())
    return self._batches(self._whole(part, row) for part, source in every for row in source.once())

  def _whole(self, part: int, row: order.Batch) -> order.Batch:
    """A row of a part, filled up to the shapes of all parts."""
    return filled(self._numbered(part, row), self._row, pad_id=self.pad_id)

  def _batches(self, rows: Iterator[order.Batch]) -> Iterator[order.Batch]:
    """This host's part of each batch; the last one is filled up with rows of weight 0."""
    while chosen := list(itertools.islice(rows, self.share.batch_size)):
      filler = {**chosen[0], 'row_id': np.full(1, -1, np.int32), 'row_weight': np.zeros(1, np.float32)}
      chosen += [filler] * (self.share.batch_size - len(chosen))
      mine = [chosen[place] for place in self.share.places]
      yield {key: np.concatenate([row[key] for row in mine]) for key in mine[0]}


class ByStep(Mixed):
  """Batches that are each of one part, with the keys of all parts and rows as long as the longest part has them.

  Attributes:
    pad_id: what stands for a token where there is none.
    spec: as of `Source`.

  Raises:
    ValueError: a key has other axes in other parts.
  """

  def __init__(
    self,
    parts: Mapping[str, Source],
    *,
    per_round: np.ndarray,
    seed: int,
    pad_id: int,
    alternate: int | None = None,
  ):
    super().__init__(parts, per_round=per_round, seed=seed, alternate=alternate)
    self.pad_id = pad_id
    self.spec = union({name: source.spec for name, source in self.parts.items()})

  @property
  def steps(self) -> int:
    """Batches that hold each row once."""
    return sum(source.steps_per_epoch for source in self.parts.values())

  def read(self, step: int) -> Iterator[order.Batch]:
    """As of `Source`."""
    return (self._filled(part, batch) for part, batch in self.drawn(step))

  def once(self) -> Iterator[order.Batch]:
    """As of `Source`."""
    for part, source in enumerate(self.parts.values()):
      yield from (self._filled(part, batch) for batch in source.once())

  def _filled(self, part: int, batch: order.Batch) -> order.Batch:
    """A batch of a part with every key, filled up to the shapes of `spec`."""
    return filled(self._numbered(part, batch), self.spec, pad_id=self.pad_id)


def filled(batch: order.Batch, spec: Mapping[str, jax.ShapeDtypeStruct], *, pad_id: int) -> order.Batch:
  """A batch with every key of a spec, in its shapes; `pad_id` stands for a token where there is none."""
  made = {}
  for key, leaf in spec.items():
    given, shape = batch.get(key), (len(batch['row_id']), *leaf.shape[1:])
    if given is not None and (given.shape, given.dtype) == (shape, leaf.dtype):
      made[key] = given
      continue
    made[key] = np.full(shape, pad_id if BATCH[key].filler is None else BATCH[key].filler, leaf.dtype)
    if given is not None:
      made[key][tuple(map(slice, given.shape))] = given
  return made


def union(specs: Mapping[str, Mapping[str, jax.ShapeDtypeStruct]]) -> dict[str, jax.ShapeDtypeStruct]:
  """The keys of all parts; float32 where a key is a whole number in some parts only.

  All keys have the longest rows of any, since tasks compare them token by token: axes of one letter have one size.

  Raises:
    ValueError: a key has other axes in other parts.
  """
  sizes: dict[str, int] = {}
  found: dict[str, jax.ShapeDtypeStruct] = {}
  for name, spec in specs.items():
    for key, leaf in spec.items():
      known = found.get(key, leaf)
      if len(known.shape) != len(leaf.shape):
        raise ValueError(
          f'data.parts: {key} has the shape {leaf.shape} in {name!r}, and {known.shape} in a part before it: rows of '
          'several sequences cannot be mixed with rows of one'
        )
      dtype = known.dtype if known.dtype == leaf.dtype else np.dtype(np.float32)
      found[key] = jax.ShapeDtypeStruct(leaf.shape, dtype)
      for axis, size in zip(_axes(key, leaf), leaf.shape, strict=True):
        sizes[axis] = max(size, sizes.get(axis, 0))
  found['part'] = jax.ShapeDtypeStruct(found['row_id'].shape, np.dtype(np.int32))
  return {
    key: jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in _axes(key, leaf)), leaf.dtype)
    for key, leaf in found.items()
  }


def _axes(key: str, leaf: jax.ShapeDtypeStruct) -> str:
  """The axes of a key by letter, as in `types.BATCH`; those of several sequences a row have a k."""
  first, rest = BATCH[key].axes[:1], BATCH[key].axes[1:]
  return first + 'k' * (len(leaf.shape) - len(BATCH[key].axes)) + rest


def _fixed(spec: Mapping[str, jax.ShapeDtypeStruct]) -> dict[str, Any]:
  """What rows of one batch have to have in common: keys, their dtypes, and sizes but those of options and targets."""
  found = {}
  for key, leaf in spec.items():
    free = set('kt') & set(BATCH[key].axes)
    sizes = zip(_axes(key, leaf), leaf.shape, strict=True)
    found[key] = leaf.dtype, [(axis, None if axis in free else size) for axis, size in sizes]
  return found


def _shapes(spec: Mapping[str, jax.ShapeDtypeStruct]) -> str:
  return ', '.join(f'{key} {leaf.dtype}{list(leaf.shape[1:])}' for key, leaf in sorted(spec.items()))
