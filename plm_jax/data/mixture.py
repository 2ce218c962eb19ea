"""Rows of several sources by rate, mixed in each batch or from batch to batch (T5 §3.5.2: multi-task mixing).

The rate of a source with N rows is min(N, limit) ** (1 / temperature), divided by the sum over sources: temperature 1
is examples-proportional mixing with an artificial limit, and a higher one is more even. `rates` gives them explicitly;
with rates='equal' all are the same.

Which source a row comes from is a pure function of the seed and the row's position: positions are cut into rounds, in
each of which every source has its exact share, in a random order. The rows of a source come in the order of that
source, each once before any of them is repeated, so small sources are repeated during the first pass over large ones.

Rows of one batch have the same keys and length; one with fewer options or a shorter target than another is filled up.
With per='step' a draw is not of a row but of a batch, and sources may differ in what they give: a batch has the keys
of all of them, and rows as long as the longest source has them. What a source lacks is filled up (`types.BatchKey`),
and read by nobody: `adapters/multitask`, or `objectives/mixture` without rates, runs that of its parts whose rows they
are. Parts have the same names there. Every second batch may be of one part, `alternate`, as unlabelled text is in
cross-view training (Clark et al. 2018, §2.1).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.types import Count, Labels, Source, Temperature, Template, Vocab
from plm_jax.data.rows import mixed, order, store

GIVES = ('part',)  # beside what all its parts give
UNION = {'per': 'step'}  # with these settings: beside what any of its parts gives
QUICK = dict(length=64, batch_size=8)  # of a smoke test (`file.py:quick`)

Per = Literal['row', 'step']


def shares(
  rows: Mapping[str, int],
  *,
  rates: Mapping[str, float] | Literal['equal'] | None = None,
  limit: float | None = None,
  temperature: float = 1.0,
) -> dict[str, float]:
  """The share of each source, summing to 1.

  Args:
    rows: name -> number of rows.
    rates: name -> weight, or 'equal', instead of the rule.
    limit: K, the most rows of a source that count; T5 tried 2**16 to 2**21.
    temperature: T.

  Raises:
    ValueError: names that differ, or a number that is not positive.
  """
  if isinstance(rates, str):
    rates = dict.fromkeys(rows, 1.0)
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
  second_vocab: Vocab | None = None,
  characters: bool = False,
  parts: Mapping[str, Annotated[Mapping[str, Any], 'data']],
  length: Count,
  batch_size: Count,
  seed: int,
  split: str = 'train',
  per: Per = 'row',
  rates: Mapping[str, Annotated[float, '0 < x <= 1_000_000']] | Literal['equal'] | None = None,
  limit: Annotated[float, '1 <= x'] | None = None,
  temperature: Temperature = 1.0,
  alternate: str | None = None,
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Mixes sources.

  Args:
    vocab: of every part.
    second_vocab: of the run, for parts that take one.
    characters: rows have the characters of their words, which a run asks for where its model reads them.
    parts: name -> a file of `data/` and its keywords, without batch_size and seed. A part may have a split of its own,
      and with per='step' a smaller length.
    length: tokens per row.
    batch_size: rows per step over all hosts.
    seed: of all orders.
    split: of every part that does not name its own.
    per: what is drawn: the source of each row, or one source for all rows of a step.
    rates: name -> weight, or 'equal', instead of the rule.
    limit: most rows of a source that count.
    temperature: 1 gives shares in proportion to rows; higher is more even.
    alternate: with per='step', a part that every second batch is of; rates and shares are those of the others.
    host: index of this process.
    hosts: number of processes.

  Returns:
    Batches with the keys that all parts have, or with per='step' those that any has; `row_id` unique over the parts,
    and `part` int32[b], the place of a row's part among the sorted names. `once` gives every row of every part once.

  Raises:
    ValueError: parts whose rows cannot stand in one batch, or rates that do not fit.
  """
  if not parts:
    raise ValueError('data.parts is empty: name at least one source')
  errors.one_of('data.per', per, Per)
  _check_alternate(alternate, parts, per=per)
  share = order.share(batch_size, host=host, hosts=hosts)
  given: dict[str, Any] = {'seed': seed, 'vocab': vocab}
  offered = {'second_vocab': second_vocab, 'characters': characters or None}
  if per == 'step':
    given |= {'batch_size': batch_size, 'host': host, 'hosts': hosts}
    _check_lengths(parts, length)
    settings = {name: {'split': split, 'length': length, **parts[name]} for name in sorted(parts)}
  else:
    given |= {'length': length, 'batch_size': 1, 'host': 0, 'hosts': 1}
    settings = {name: {'split': split, **parts[name]} for name in sorted(parts)}
  sources = {name: build.make('data', block, offered=offered, **given) for name, block in settings.items()}
  rows = {name: source.rows for name, source in sources.items()}
  drawn = {name: count for name, count in rows.items() if name != alternate}
  part_shares = shares(drawn, rates=rates, limit=limit, temperature=temperature)
  total = mixed.ROUND // (1 if alternate is None else 2)
  per_round = counts(np.array([part_shares[name] for name in drawn]), total=total)
  one: mixed.ByRow | mixed.ByStep
  if per == 'step':
    number = None if alternate is None else list(sources).index(alternate)
    one = mixed.ByStep(sources, per_round=per_round, seed=seed, pad_id=vocab.pad_id, alternate=number)
  else:
    one = mixed.ByRow(sources, per_round=per_round, seed=seed, pad_id=vocab.pad_id, share=share)
  return Source(
    spec=one.spec,
    rows=sum(rows.values()),
    read=one.read,
    once=one.once,
    digest=store.digest_of(
      [source.digest for source in sources.values()],
      per_round.tolist(),
      *([per] if per == 'step' else []),
      *([alternate] if alternate else []),
    ),
    names=next(iter(sources.values())).names if per == 'row' and _alike(sources) else (),
    classes=max(source.classes for source in sources.values()) if per == 'row' else 0,
    steps_per_epoch=one.steps,
    documents=max(source.documents for source in sources.values()),
    record=one.record if all(source.record for source in sources.values()) else None,
    group=one.group if any(source.group for source in sources.values()) else None,
    ids=one.ids,
    unlabelled=any(source.unlabelled for source in sources.values()),
    parts=sources if per == 'step' else {},
  )


def _alike(sources: Mapping[str, Source]) -> bool:
  """Whether all sources name their classes alike."""
  return len({source.names for source in sources.values()}) == 1


def _check_alternate(alternate: str | None, parts: Mapping[str, Any], *, per: str) -> None:
  """Raises ValueError where no batch is of the part that every second batch should be of, or none of another."""
  if alternate is not None and (per != 'step' or alternate not in parts or len(parts) < 2):
    raise ValueError(
      f'alternate={alternate!r} with per={per!r} and the parts {", ".join(parts)}: name one of two parts or more, with '
      "per='step'"
    )


def _check_lengths(parts: Mapping[str, Mapping[str, Any]], length: int) -> None:
  """Raises ValueError where the rows of a part are longer than those of the mixture."""
  for name, block in parts.items():
    if block.get('length', length) > length:
      raise ValueError(
        f'data.parts.{name}.length={block["length"]} is more than data.length={length}, the longest row: raise '
        'data.length'
      )


def look(
  *,
  parts: Mapping[str, Mapping[str, Any]],
  split: str = 'train',
  per: str = 'row',
  alternate: str | None = None,
  **rest: Any,
) -> Labels:
  """Looks at every part; what is wrong with one is a ValueError that names it."""
  del rest
  _check_alternate(alternate, parts, per=per)
  found = {}
  for name in sorted(parts):
    try:
      found[name] = build.look({'split': split, **parts[name]}) or Labels()
    except (ValueError, FileNotFoundError) as error:
      raise ValueError(f'parts.{name}{"." if str(error).startswith("parts.") else ": "}{error}') from error
  unlabelled = any(labels.unlabelled for labels in found.values())
  return Labels(unlabelled=unlabelled, parts=found) if per == 'step' else Labels(unlabelled=unlabelled, mixed=found)


def template(*, vocab: Vocab, parts: Mapping[str, Mapping[str, Any]], **rest: Any) -> Template | None:
  """What stands around the texts of all parts; None where they differ."""
  del rest
  found = {build.template('data', parts[name], vocab=vocab) for name in parts}
  return found.pop() if len(found) == 1 else None
