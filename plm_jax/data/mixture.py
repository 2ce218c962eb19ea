"""Rows of several sources in one batch, by rate (T5 §3.5.2: multi-task mixing).

The rate of a source with N rows is min(N, limit) ** (1 / temperature), divided by the sum over sources: temperature 1
is examples-proportional mixing with an artificial limit, a high temperature tends to equal shares, and `rates` gives
them explicitly.

Which source a row comes from is a pure function of the seed and the row's position: positions are cut into rounds, in
each of which every source has its exact share, in a random order. The rows of a source come in the order of that
source, each once before any of them is repeated, so small sources are repeated during the first pass over large ones.
"""

import itertools
from collections.abc import Hashable, Iterator, Mapping
from typing import Annotated, Any

import jax
import numpy as np

from plm_jax.data.rows import order, store
from plm_jax.plugins import build
from plm_jax.types import Count, Labels, Source, Temperature, Template, Vocab

GIVES = ('part',)  # beside what its parts give

_ROUND = 4096  # rows; shares are exact to 1 / 4096
QUICK = dict(length=64, batch_size=8)  # of a smoke test (`file.py:quick`)


def shares(
  rows: Mapping[str, int],
  *,
  rates: Mapping[str, float] | None = None,
  limit: float | None = None,
  temperature: float = 1.0,
) -> dict[str, float]:
  """The share of each source, summing to 1.

  Args:
    rows: name -> number of rows.
    rates: name -> weight, instead of the rule.
    limit: K, the most rows of a source that count; T5 tried 2**16 to 2**21.
    temperature: T.

  Raises:
    ValueError: names that differ, or a number that is not positive.
  """
  if rates is not None and set(rates) != set(rows):
    raise ValueError(f'rates names {sorted(rates)}, and parts {sorted(rows)}: name the same sources')
  if temperature <= 0 or (limit is not None and limit <= 0) or (rates is not None and min(rates.values()) <= 0):
    raise ValueError(f'temperature={temperature}, limit={limit} and rates={rates}: every number must be positive')
  if rates is None:
    rates = {name: min(count, limit or count) ** (1 / temperature) for name, count in rows.items()}
  total = sum(rates.values())
  return {name: rate / total for name, rate in rates.items()}


def counts(fractions: np.ndarray, *, total: int) -> np.ndarray:
  """int64[n] with sum `total`: `fractions * total` rounded by the method of largest remainders, at least 1 each."""
  exact = fractions * total
  whole = np.maximum(np.floor(exact).astype(np.int64), 1)
  for place in np.argsort(-(exact - np.floor(exact)), kind='stable')[: max(0, total - whole.sum())]:
    whole[place] += 1
  while whole.sum() > total:
    whole[whole.argmax()] -= 1
  return whole


def make(
  *,
  vocab: Vocab,
  parts: Mapping[str, Annotated[Mapping[str, Any], 'data']],
  length: Count,
  batch_size: Count,
  seed: int,
  split: str = 'train',
  rates: Mapping[str, Annotated[float, '0 < x <= 1_000_000']] | None = None,
  limit: Annotated[float, '1 <= x'] | None = None,
  temperature: Temperature = 1.0,
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Mixes sources.

  Args:
    vocab: of every part.
    parts: name -> a file of `data/` and its keywords, without length, batch_size, split and seed.
    length: tokens per row.
    batch_size: rows per step over all hosts.
    seed: of all orders.
    split: of every part that does not name its own.
    rates: name -> weight, instead of the rule.
    limit: most rows of a source that count.
    temperature: 1 gives shares in proportion to rows; higher is more even.
    host: index of this process.
    hosts: number of processes.

  Returns:
    Batches with the keys that all parts have, `row_id` unique over the parts, and `part` int32[b], the place of a row's
    part among the sorted names. `once` gives every row of every part once.

  Raises:
    ValueError: parts whose rows have different keys or shapes, or rates that do not fit.
  """
  if not parts:
    raise ValueError('data.parts is empty: name at least one source')
  share = order.share(batch_size, host=host, hosts=hosts)
  given = {'length': length, 'batch_size': 1, 'seed': seed, 'vocab': vocab, 'host': 0, 'hosts': 1}
  mixed = Mixed({name: build.make('data', {'split': split, **parts[name]}, **given) for name in sorted(parts)})
  rows = {name: source.rows for name, source in mixed.parts.items()}
  part_shares = shares(rows, rates=rates, limit=limit, temperature=temperature)
  per_round = counts(np.array([part_shares[name] for name in rows]), total=_ROUND)
  first = next(iter(mixed.parts.values()))
  return Source(
    spec={**order.spec(first.spec, batch_size=batch_size), 'part': jax.ShapeDtypeStruct((batch_size,), np.int32)},
    rows=sum(rows.values()),
    read=lambda step: _batches(mixed.endless(step * batch_size, per_round=per_round, seed=seed), share),
    once=lambda: _batches(mixed.once(), share),
    digest=store.digest_of([source.digest for source in mixed.parts.values()], per_round.tolist()),
    names=first.names if len({source.names for source in mixed.parts.values()}) == 1 else (),
    classes=max(source.classes for source in mixed.parts.values()),
    steps_per_epoch=-(-sum(rows.values()) // batch_size),
    documents=max(source.documents for source in mixed.parts.values()),
    record=mixed.record if all(source.record for source in mixed.parts.values()) else None,
    group=mixed.group if any(source.group for source in mixed.parts.values()) else None,
    ids=mixed.ids,
    unlabelled=any(source.unlabelled for source in mixed.parts.values()),
  )


def look(*, parts: Mapping[str, Mapping[str, Any]], split: str = 'train', **rest: Any) -> dict[str, Labels]:
  """Looks at every part: 'parts.NAME' -> its labels; parts of a part are 'parts.NAME.parts.INNER'.

  Raises:
    ValueError: what is wrong with a part.
  """
  del rest
  found: dict[str, Labels] = {}
  for name in sorted(parts):
    try:
      labels = build.look({'split': split, **parts[name]})
    except (ValueError, FileNotFoundError) as error:
      joined = '.' if str(error).startswith('parts.') else ': '
      raise ValueError(f'parts.{name}{joined}{error}') from error
    found |= {f'parts.{name}.{inner}'.removesuffix('.'): known for inner, known in labels.items()}
  return found


def template(*, vocab: Vocab, parts: Mapping[str, Mapping[str, Any]], **rest: Any) -> Template | None:
  """What stands around the texts of all parts; None where they differ."""
  del rest
  found = {build.template('data', parts[name], vocab=vocab) for name in parts}
  return found.pop() if len(found) == 1 else None


class Mixed:
  """Sources of single rows, in the order of their names.

  Raises:
    ValueError: their rows have different keys or shapes.
  """

  def __init__(self, parts: dict[str, Source]):
    self.parts = parts
    self._ends = np.cumsum([source.ids or source.rows for source in parts.values()])
    self._starts = np.concatenate([[0], self._ends[:-1]])
    (name, first), *others = parts.items()
    for other, source in others:
      if source.spec != first.spec:
        raise ValueError(
          f'data.parts: rows of {name!r} have {_shapes(first.spec)}, those of {other!r} {_shapes(source.spec)}'
        )

  def endless(self, position: int, *, per_round: np.ndarray, seed: int) -> Iterator[order.Batch]:
    """Rows from a position on, `per_round` of each part in every round."""
    number, place = divmod(position, _ROUND)
    pattern = _pattern(number, per_round=per_round, seed=seed)
    before = np.bincount(pattern[:place], minlength=len(self.parts)) + number * per_round
    readers = [source.read(int(start)) for source, start in zip(self.parts.values(), before, strict=True)]
    while True:
      for part in pattern[place:]:
        yield self._row(part, next(readers[part]))
      number, place = number + 1, 0
      pattern = _pattern(number, per_round=per_round, seed=seed)

  def once(self) -> Iterator[order.Batch]:
    """Every row of every part."""
    for part, source in enumerate(self.parts.values()):
      yield from (self._row(part, row) for row in source.once())

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

  def _row(self, part: int, row: order.Batch) -> order.Batch:
    """A row with a number that is unique over all parts, and its part."""
    numbered = np.where(row['row_weight'] > 0, row['row_id'] + self._starts[part], -1).astype(np.int32)
    return {**row, 'row_id': numbered, 'part': np.full(1, part, np.int32)}


def _pattern(number: int, *, per_round: np.ndarray, seed: int) -> np.ndarray:
  """int[_ROUND]: the part of each row of a round."""
  return np.repeat(np.arange(len(per_round)), per_round)[order.permutation(_ROUND, seed, number)]


def _batches(rows: Iterator[order.Batch], share: order.Share) -> Iterator[order.Batch]:
  """This host's part of each batch; the last one is filled up with rows of weight 0."""
  while chosen := list(itertools.islice(rows, share.batch_size)):
    filler = {**chosen[0], 'row_id': np.full(1, -1, np.int32), 'row_weight': np.zeros(1, np.float32)}
    chosen += [filler] * (share.batch_size - len(chosen))
    mine = [chosen[place] for place in share.places]
    yield {key: np.concatenate([row[key] for row in mine]) for key in mine[0]}


def _shapes(spec: Mapping[str, jax.ShapeDtypeStruct]) -> str:
  return ', '.join(f'{key} {leaf.dtype}{list(leaf.shape[1:])}' for key, leaf in sorted(spec.items()))
