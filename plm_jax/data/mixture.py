"""Rows of several sources in one batch, by rate (T5 §3.5.2: multi-task mixing).

The rate of a source with N rows is min(N, limit) ** (1 / temperature), divided by their sum: temperature 1 is mixing
in proportion to examples with an artificial limit, a large one tends to equal shares, and `rates` sets them by hand.

Which source a row comes from is a pure function of the seed and the row's position: positions are cut into rounds, in
each of which every source has its exact share, in an order of the round's own. Inside a source rows come in its own
order, each once before any comes again, so small sources repeat while large ones are still on their first pass.
"""

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from plm_jax.data.rows import order, store
from plm_jax.plugins import build
from plm_jax.types import Source, Vocab

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
    limit: K, beyond which more rows do not count; T5 tried 2**16 to 2**21.
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
  """int64[n] that sums to `total`, as near to the fractions as whole numbers get (largest remainders), at least 1."""
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
  parts: Mapping[str, Mapping[str, Any]],
  length: int,
  batch_size: int,
  seed: int,
  split: str = 'train',
  rates: Mapping[str, float] | None = None,
  limit: float | None = None,
  temperature: float = 1.0,
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Mixes sources.

  Args:
    vocab: of every part.
    parts: name -> a file of `data/` and its keywords, without length, batch_size, split and seed.
    length: tokens a row.
    batch_size: rows a step over all hosts.
    seed: of all orders.
    split: of every part that does not name its own.
    rates: name -> weight, instead of the rule.
    limit: most rows of a source that count.
    temperature: 1 for shares in proportion to rows; larger is more even.
    host: number of this process, of
    hosts: processes.

  Returns:
    Batches with the keys that all parts have, `row_id` unique over the parts, and `part` int32[b], the place of a row's
    part among the sorted names. `once` gives every row of every part once.

  Raises:
    ValueError: parts whose rows have different keys or shapes, or rates that do not fit.
  """
  if not parts:
    raise ValueError('data.parts is empty: name at least one source')
  places = order.host_slice(batch_size, host=host, hosts=hosts)
  names = sorted(parts)
  given = {'length': length, 'batch_size': 1, 'seed': seed, 'vocab': vocab, 'host': 0, 'hosts': 1}
  sources = {name: build.make('data', {'split': split, **parts[name]}, **given) for name in names}
  first = sources[names[0]].spec
  for name in names[1:]:
    if sources[name].spec != first:
      raise ValueError(
        f'data.parts: rows of {names[0]!r} have {_shapes(first)}, those of {name!r} {_shapes(sources[name].spec)}'
      )
  rows = np.array([sources[name].rows for name in names])
  starts = np.concatenate([[0], np.cumsum(rows)[:-1]])
  part_shares = shares(dict(zip(names, rows.tolist(), strict=True)), rates=rates, limit=limit, temperature=temperature)
  per_round = counts(np.array([part_shares[name] for name in names]), total=_ROUND)

  def parts_at(number: int) -> np.ndarray:
    """int[_ROUND]: the part of each row of a round."""
    return np.repeat(np.arange(len(names)), per_round)[order.permutation(_ROUND, seed, number)]

  def row_of(part: int, row: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    numbered = np.where(row['row_weight'] > 0, row['row_id'] + starts[part], -1).astype(np.int32)
    return {**row, 'row_id': numbered, 'part': np.full(1, part, np.int32)}

  def endless(position: int) -> Iterator[dict[str, np.ndarray]]:
    number, place = divmod(position, _ROUND)
    pattern = parts_at(number)
    before = np.bincount(pattern[:place], minlength=len(names)) + number * per_round
    readers = [sources[name].read(int(start)) for name, start in zip(names, before, strict=True)]
    while True:
      for part in pattern[place:]:
        yield row_of(part, next(readers[part]))
      number, place = number + 1, 0
      pattern = parts_at(number)

  def batches(rows: Iterator[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    while chosen := list(itertools.islice(rows, batch_size)):
      missing = batch_size - len(chosen)
      filler = {**chosen[0], 'row_id': np.full(1, -1, np.int32), 'row_weight': np.zeros(1, np.float32)}
      chosen = (chosen + [filler] * missing)[places]
      yield {key: np.concatenate([row[key] for row in chosen]) for key in chosen[0]}

  def read(step: int) -> Iterator[dict[str, np.ndarray]]:
    return batches(endless(step * batch_size))

  def once() -> Iterator[dict[str, np.ndarray]]:
    return batches(row_of(part, row) for part, name in enumerate(names) for row in sources[name].once())

  spec = {key: jax.ShapeDtypeStruct((batch_size, *leaf.shape[1:]), leaf.dtype) for key, leaf in first.items()}
  return Source(
    spec={**spec, 'part': jax.ShapeDtypeStruct((batch_size,), np.int32)},
    rows=int(rows.sum()),
    read=read,
    once=once,
    digest=store.digest_of([sources[name].digest for name in names], per_round.tolist()),
    names=sources[names[0]].names,
    steps_per_epoch=-(-int(rows.sum()) // batch_size),
  )


def _shapes(spec: Mapping[str, jax.ShapeDtypeStruct]) -> str:
  return ', '.join(f'{key} {leaf.dtype}{list(leaf.shape[1:])}' for key, leaf in sorted(spec.items()))
