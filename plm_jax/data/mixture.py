"""Examples of several sources by rate, mixed within a batch or from batch to batch (T5 §3.5.2: multi-task mixing).

The rate of a source with N examples is min(N, limit) ** (1 / temperature), divided by the sum over sources. Temperature
1 is examples-proportional mixing with an artificial limit; a higher temperature gives more equal rates. `rates` sets
the rates explicitly; with rates='equal' all are the same.

The source of an example is a pure function of the seed and the position. Positions are cut into rounds; in each round
every source has its exact share, in a random order. Examples of a source come in the order of that source, each once
before any is repeated. Small sources are therefore repeated during the first pass over large ones.

Examples of one batch have the same keys and length; missing options and shorter targets are padded. With per='step' the
source is sampled per batch, and sources may differ in keys. A batch then has the keys of all sources, as long as
in the longest source. Keys that a source lacks are filled (`types.BatchKey`) and unused: `adapters/multitask`, or
`objectives/mixture` without rates, runs the part of the batch, which has the same name there. Every second batch may
come from one part, `alternate`, as unlabelled text in cross-view training (Clark et al. 2018, §2.1).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.keywords import Count, Temperature
from plm_jax.core.types import Labels, Source, Template, Vocab
from plm_jax.data.rows import mixed, order, store

GIVES = ('part',)  # and the keys that all its parts give
UNION = {'per': 'step'}  # with these settings: and the keys that any of its parts gives
QUICK = dict(length=64, batch_size=8)  # settings of a smoke test (`file.py:quick`)

Per = Literal['row', 'step']


def shares(
  rows: Mapping[str, int],
  *,
  rates: Mapping[str, float] | Literal['equal'] | None = None,
  limit: float | None = None,
  temperature: float = 1.0,
) -> dict[str, float]:
  """Compute the share of each source by its number of examples.

  The shares sum to 1. `rates`, name -> weight or 'equal', replace the rule. `limit` is K, the most examples of a source
  that count; T5 tried 2**16 to 2**21. Raises ValueError for names that differ, or a value that is not positive.
  """
  if isinstance(rates, str):
    rates = dict.fromkeys(rows, 1.0)
  if rates is not None and set(rates) != set(rows):
    raise ValueError(f'rates has the names {sorted(rates)} and parts has {sorted(rows)}: name the same sources')
  if temperature <= 0 or (limit is not None and limit <= 0) or (rates is not None and min(rates.values()) <= 0):
    raise ValueError(f'temperature={temperature}, limit={limit} and rates={rates}: every value must be positive')
  if rates is None:
    rates = {name: min(count, limit or count) ** (1 / temperature) for name, count in rows.items()}
  total = sum(rates.values())
  return {name: rate / total for name, rate in rates.items()}


def counts(fractions: np.ndarray, *, total: int) -> np.ndarray:
  """Round `fractions * total` by largest remainders: int64[n], at least 1 each."""
  exact = fractions * total
  whole = np.maximum(np.floor(exact).astype(np.int64), 1)
  for index in np.argsort(-(exact - np.floor(exact)), kind='stable')[: max(0, total - whole.sum())]:
    whole[index] += 1
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
  """Mix sources.

  Args:
    vocab: vocabulary of every part.
    second_vocab: second vocabulary of the run, for parts that take one.
    parts: name -> a file of `data/` and its keywords, without batch_size and seed. A part may have its own split, and
      with per='step' a smaller length.
    seed: seed of all orders.
    split: split of every part without its own.
    per: what is sampled: the source of each example, or one source for all examples of a step.
    rates: name -> weight, or 'equal', instead of the rule.
    limit: the most examples of a source that count.
    temperature: 1 gives shares in proportion to examples; higher values give more equal shares.
    alternate: with per='step', the part of every second batch; rates and shares apply to the others.
    characters, length, batch_size, host, hosts: see `plm_jax.data`.

  Returns:
    Batches with the keys that all parts have, or with per='step' those that any part has. `row_id` is unique over the
    parts, and `part` int32[b] is the index of the part among the sorted names. `once` gives every example of every part
    once.

  Raises:
    ValueError: parts that do not fit into one batch, or rates that do not fit the parts.
  """
  if not parts:
    raise ValueError('data.parts is empty: name at least one source')
  errors.one_of('data.per', per, Per)
  _check_alternate(alternate, parts, per=per)
  share = order.share(batch_size, host=host, hosts=hosts)
  # 1. Open the sources: batches of one example, or whole batches.
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
  # 2. Count the positions of each sampled source in a round.
  rows = {name: source.rows for name, source in sources.items() if name != alternate}
  part_shares = shares(rows, rates=rates, limit=limit, temperature=temperature)
  total = mixed.ROUND // (1 if alternate is None else 2)
  per_round = counts(np.array([part_shares[name] for name in rows]), total=total)
  # 3. Mix them.
  mix: mixed.ByRow | mixed.ByStep
  if per == 'step':
    index = None if alternate is None else list(sources).index(alternate)
    mix = mixed.ByStep(sources, per_round=per_round, seed=seed, pad_id=vocab.pad_id, alternate=index)
  else:
    mix = mixed.ByRow(sources, per_round=per_round, seed=seed, pad_id=vocab.pad_id, share=share)
  return _source(mix, sources, per_round, per=per, alternate=alternate)


def _source(
  mix: mixed.ByRow | mixed.ByStep,
  sources: Mapping[str, Source],
  per_round: np.ndarray,
  *,
  per: Per,
  alternate: str | None,
) -> Source:
  every = list(sources.values())
  same_names = len({source.names for source in every}) == 1
  by_step = per == 'step'
  extra = [*[per] * by_step, *([alternate] if alternate else [])]
  return Source(
    spec=mix.spec,
    rows=sum(source.rows for source in every),
    read=mix.read,
    once=mix.once,
    digest=store.digest_of([source.digest for source in every], per_round.tolist(), *extra),
    names=every[0].names if not by_step and same_names else (),
    classes=0 if by_step else max(source.classes for source in every),
    steps_per_epoch=mix.steps,
    documents=max(source.documents for source in every),
    record=mix.record if any(source.record for source in every) else None,
    group=mix.group if any(source.group for source in every) else None,
    ids=mix.ids,
    unlabelled=any(source.unlabelled for source in every),
    parts=sources if by_step else {},
  )


def _check_alternate(alternate: str | None, parts: Mapping[str, Any], *, per: str) -> None:
  if alternate is not None and (per != 'step' or alternate not in parts or len(parts) < 2):
    raise ValueError(
      f'alternate={alternate!r} (per={per!r}) does not fit the parts {", ".join(parts)}: '
      "name one of two or more parts, with per='step'"
    )


def _check_lengths(parts: Mapping[str, Mapping[str, Any]], length: int) -> None:
  for name, block in parts.items():
    if block.get('length', length) > length:
      raise ValueError(
        f'data.parts.{name}.length={block["length"]} is more than data.length={length}: raise data.length or lower it'
      )


def look(
  *,
  parts: Mapping[str, Mapping[str, Any]],
  split: str = 'train',
  per: str = 'row',
  alternate: str | None = None,
  **rest: Any,
) -> Labels:
  """Check every part; an error is a ValueError that names the part."""
  _check_alternate(alternate, parts, per=per)
  labels_of_part = {}
  for name in sorted(parts):
    try:
      labels_of_part[name] = build.look({'split': split, **parts[name]}) or Labels()
    except (ValueError, FileNotFoundError) as error:
      said = str(error)
      for key in parts[name]:
        said = said.replace(f'data.{key}', f'data.parts.{name}.{key}')
      raise ValueError(f'parts.{name}{"." if said.startswith("parts.") else ": "}{said}') from error
  unlabelled = any(labels.unlabelled for labels in labels_of_part.values())
  if per == 'step':
    return Labels(unlabelled=unlabelled, parts=labels_of_part)
  return Labels(unlabelled=unlabelled, mixed=labels_of_part)


def template(*, vocab: Vocab, parts: Mapping[str, Mapping[str, Any]], **rest: Any) -> Template | None:
  """Return the special tokens of all parts; None if they differ."""
  templates = {build.template('data', parts[name], vocab=vocab) for name in parts}
  return templates.pop() if len(templates) == 1 else None
