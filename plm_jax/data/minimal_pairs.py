"""Pairs of a good and a bad sentence, as sequences whose likelihood a task computes (evaluation only).

The task says which (`types.Sentences`): each whole sentence, or a copy of it for each masked token. The sentences of a
pair share the copies that they have in common. A batch holds all sequences of its pairs, which are sorted by length:

    the cat sleeps    [M] cat sleeps    the [M] sleeps    the cat [M]
    the cat sleep     [M] cat sleep     the [M] sleep     the same copy, with another hidden token
"""

import dataclasses
import logging
from typing import Any, NamedTuple

import numpy as np

from plm_jax.core import errors
from plm_jax.core.keywords import Count
from plm_jax.core.types import Labels, Sentences, Source, Vocab
from plm_jax.data.corpora import local, sources
from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import order, store
from plm_jax.data.rows.checked import BadRows, OnBadRow
from plm_jax.text import chars

log = logging.getLogger(__name__)

GIVES = ('tokens', 'segment_ids', 'characters', 'pair', 'counted', 'masked_at', 'hidden')
QUICK = dict(path='pydocs/describe', good='question', bad='title', length=128, batch_size=8)
GROUPS = ('field', 'linguistics_term', 'UID')  # of BLiMP, from the largest
MANY = 64  # batches from which every second length has a shape; else every eighth


class Pairs(NamedTuple):
  """Read pairs: the index of each row, its two sentences, and its record."""

  rows: list[int]
  texts: list[tuple[str, str]]
  records: list[dict[str, Any]]


class Copies(NamedTuple):
  """Sequences of a pair: ids [n, l], tokens of each [n], masked places [n], hidden tokens [n, 2] or -1."""

  ids: np.ndarray
  sizes: np.ndarray
  places: np.ndarray
  hidden: np.ndarray


@dataclasses.dataclass(frozen=True)
class Chosen(order.Chosen):
  """The pairs of a batch, and the rows of it that this host reads."""

  members: np.ndarray
  places: np.ndarray


def make(
  *,
  vocab: Vocab,
  characters: bool = False,
  sequences: Sentences | None = None,
  path: str,
  split: str = 'test',
  good: str = 'sentence_good',
  bad: str = 'sentence_bad',
  groups: tuple[str, ...] | None = None,
  length: Count = 128,
  batch_size: Count = 256,
  seed: int,
  on_bad_row: OnBadRow = 'stop',
  max_bytes: Count = 1_073_741_824,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Read pairs of sentences and serve their sequences.

  Args:
    sequences: which sequences a sentence becomes; a run gets it from its task.
    good, bad: fields with the sentence that should be more likely, and the other one.
    groups: fields by whose values accuracy is also reported; None takes those of BLiMP that the data have.
    length: most tokens of a sentence, special tokens included; longer ones are refused.
    batch_size: sequences per batch; more if a pair has more.
    Other keywords: see `plm_jax.data`.

  Raises:
    ValueError: a field is missing, a sentence is empty or too long.
  """
  sentences, asked = sequences or Sentences(), dict[str, Any](good=good, bad=bad, groups=groups, on_bad_row=on_bad_row)
  records = sources.open_source(path, split=split, cache=cache, max_bytes=max_bytes)
  pairs = _read(records, **asked)
  if same := sum(first == second for first, second in pairs.texts):
    log.warning(f'{records.where}: {same} of {len(pairs.rows):,} pairs have two equal sentences and count as right')
  limit = min(length, sentences.longest or length)
  ids, table = _tokenised(pairs, vocab, sentences, limit=limit, characters=characters, records=records)
  words = vocab.words([text for both in pairs.texts for text in both]) if sentences.rest_of_word else None
  made = [_sequences(ids[at : at + 2], words and words[at : at + 2], sentences) for at in range(0, len(ids), 2)]
  lengths = np.array([max(map(len, ids[at : at + 2])) for at in range(0, len(ids), 2)])
  counts = [len(each.ids) for each in made]
  rows = -(-max(batch_size, *counts) // batch_size) * batch_size
  plan = _plan(counts, lengths, rows)
  row_ids, step = np.array(pairs.rows), 2 if len(plan) >= MANY else 8
  unk_id = vocab.pad_id if vocab.unk_id is None else vocab.unk_id

  def choose(number: int, places: np.ndarray) -> Chosen:
    members, real = plan[number % len(plan)], places < len(plan[number % len(plan)])
    chosen = row_ids[members[np.where(real, places, 0)]]
    return Chosen(chosen, np.full(len(places), number // len(plan)), real, members, places)

  def batch(chosen: Chosen) -> order.Batch:
    width = min(-(-int(lengths[chosen.members].max()) // step) * step, limit)
    tokens, segments = np.zeros((rows, width), np.int32), np.zeros((rows, width), np.int32)
    hidden, places, pair = np.full((rows, 2), -1, np.int32), np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    row = 0
    for number, index in enumerate(chosen.members):
      one, at = made[index], slice(row, row + counts[index])
      tokens[at, : one.ids.shape[1]], segments[at] = one.ids, np.arange(width) < one.sizes[:, None]
      hidden[at], places[at], pair[at], row = one.hidden, one.places, number, at.stop
    tokens = np.where(segments > 0, tokens, np.int32(vocab.pad_id))
    arrays = {'segment_ids': segments, 'pair': pair, 'counted': (hidden >= 0).astype(np.float32), 'masked_at': places}
    known = {'tokens': tokens, 'hidden': np.maximum(hidden, 0)}
    arrays |= {name: np.where(each < vocab.size, each, np.int32(unk_id)) for name, each in known.items()}
    if table is not None:
      arrays['characters'] = np.where(segments[..., None] > 0, table[tokens], 0)
    return {name: array[chosen.places] for name, array in arrays.items()}

  record_of = dict(zip(pairs.rows, pairs.records, strict=True))
  return order.serve(
    batch,
    order.Order(len(pairs.rows), len(plan), choose, choose),
    share=order.share(rows, host=host, hosts=hosts),
    digest=store.digest_of(records.digest, vocab.digest, sorted(asked.items()), sentences, limit),
    widest=lambda chosen: dataclasses.replace(chosen, members=plan[-1]),
    ids=pairs.rows[-1] + 1,
    record=record_of.__getitem__,
  )


def look(
  *, path: str, split: str = 'test', cache: str = sources.CACHE, max_bytes: int = local.MAX_BYTES, **settings: Any
) -> Labels:
  """Read and check the pairs for `make`, without tokenising them."""
  records = sources.open_source(path, split=split, cache=cache, max_bytes=max_bytes)
  asked = {name: settings[name] for name in ('good', 'bad', 'groups', 'on_bad_row') if name in settings}
  pairs = _read(records, **asked)
  return Labels(rows=len(pairs.rows), record=pairs.records.__getitem__)


def _read(
  records: Records,
  *,
  good: str = 'sentence_good',
  bad: str = 'sentence_bad',
  groups: tuple[str, ...] | None = None,
  on_bad_row: OnBadRow = 'stop',
) -> Pairs:
  for key, name in [('good', good), ('bad', bad), *[('groups', name) for name in groups or ()]]:
    errors.check_choice(f'data.{key}', 'field', name, records.fields, place=records.where)
  if good == bad:
    raise errors.ConfigError(f'data.good and data.bad are both {good!r}: name the other field with data.bad')
  wanted = [name for name in GROUPS if name in records.fields] if groups is None else groups

  def read(index: int) -> tuple[tuple[str, str], dict[str, Any]]:
    texts = records.text(index, good), records.text(index, bad)
    if not all(map(str.strip, texts)):
      raise ValueError(f'row {index} of {records.where} has an empty sentence ({good}, {bad})')
    own = {name: str(records.value(index, name)) for name in wanted}
    return texts, {'row': records[index], 'options': list(texts), 'groups': own}

  bad_rows = BadRows(records, on_bad_row)
  found = bad_rows.read(read)
  bad_rows.report()
  return Pairs(found.rows, [texts for texts, _ in found.values], [record for _, record in found.values])


def _tokenised(
  pairs: Pairs, vocab: Vocab, sentences: Sentences, *, limit: int, characters: bool, records: Records
) -> tuple[list[np.ndarray], np.ndarray | None]:
  """Tokenise sentences, good and bad ones in turn.

  Also return the characters of ids, int32[v + k, 50], of which the last are unknown words; None without characters.
  """
  texts, new = [text for both in pairs.texts for text in both], dict[str, int]()
  encoded = vocab.encode_batch(texts)
  least = 1 if sentences.before or sentences.mask_id is not None else 2  # the first token has no probability
  for index, ids in enumerate(encoded):
    size = len(sentences.before) + len(ids) + len(sentences.after)
    if len(ids) < least or size > limit:
      count = f'{len(ids)} tokens' if len(ids) < least else f'{size} tokens, more than {limit} (data.length, model)'
      place = records.place(pairs.rows[index // 2]) or f'row {pairs.rows[index // 2]}'
      raise ValueError(f'{place}: {texts[index][:40]!r} has {count}: remove the pair')
    for position, word in vocab.unknown(texts[index]) if characters and vocab.unk_id in ids else ():
      ids[position] = vocab.size + new.setdefault(word, len(new))
  spelt = [chars.table(vocab), *(chars.of_word(word)[None] for word in new)] if characters else None
  around = [np.array([*sentences.before, *ids, *sentences.after], np.int32) for ids in encoded]
  return around, np.concatenate(spelt).astype(np.int32) if spelt else None


def _sequences(pair: list[np.ndarray], words: list[list[int | None]] | None, sentences: Sentences) -> Copies:
  sides = []
  for side, ids in enumerate(pair):
    inner = np.arange(len(sentences.before), len(ids) - len(sentences.after))
    masked = np.eye(len(ids), dtype=bool)[inner]
    if words is not None:
      own = np.array(words[side])
      masked[:, inner] |= (own[:, None] == own) & (inner > inner[:, None])
    if sentences.mask_id is None:
      inner, masked = np.zeros(1, np.int64), np.zeros((1, len(ids)), bool)
    sides.append((np.where(masked, np.int32(sentences.mask_id or 0), ids), inner, ids[inner]))
  # copies of the good sentence, then those of the bad one that differ from the copy with the same mask
  (good, places, token), (bad, others, other) = sides
  new = (good != bad).any(axis=1) if good.shape == bad.shape else np.ones(len(bad), bool)
  count, size = len(good), len(good) + int(new.sum())
  ids, hidden = np.zeros((size, max(good.shape[1], bad.shape[1])), np.int32), np.full((size, 2), -1, np.int32)
  ids[:count, : good.shape[1]], ids[count:, : bad.shape[1]] = good, bad[new]
  hidden[:count, 0], hidden[count:, 1] = token, other[new]
  hidden[np.flatnonzero(~new), 1] = other[~new]
  sizes = np.repeat([good.shape[1], bad.shape[1]], [count, size - count])
  return Copies(ids, sizes, np.concatenate([places, others[new]]), hidden)


def _plan(counts: list[int], lengths: np.ndarray, rows: int) -> list[np.ndarray]:
  """Assign pairs to batches of at most `rows` sequences, by rising length."""
  plan: list[list[int]] = [[]]
  used = 0
  for index in np.argsort(lengths, kind='stable').tolist():
    if used + counts[index] > rows:
      plan.append([])
      used = 0
    plan[-1].append(index)
    used += counts[index]
  return [np.array(members) for members in plan]
