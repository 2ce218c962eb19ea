"""Word co-occurrence counts as sequences of (word, neighbour, count), for GloVe.

Pennington et al. 2014, §3 and §4.2; stanfordnlp/GloVe, src/cooccur.c. Two words of a document at a distance of at most
`window` count 1 / distance for each other, in both orders. No pair crosses a document end. Special tokens, including
the unknown token, are removed before distances are computed.

  # the cat sat the   window 2   cat sat 1   cat the 1 + 1/2   sat the 1 + 1/2   the the 0 (3 apart)

A corpus has more pairs than fit into memory, so they are counted in parts. Each part of the text gives a run: a file of
its pairs in ascending order with their counts. Then the pairs of a range of words are summed over all runs, and put
into random order. Runs stay on disk until the table is complete, so an interrupted process continues after its last
run. Every file has a checksum, and a damaged one is made again. Every byte of the table is compared with its checksum
before it is used; blocks of a large table are compared when they are first read.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from plm_jax.core.errors import RunError
from plm_jax.core.keywords import Count
from plm_jax.core.types import Source, Vocab
from plm_jax.data import made
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import order, store
from plm_jax.data.rows.documents import Corpus
from plm_jax.data.rows.documents import look as look
from plm_jax.data.rows.first_read import FirstRead
from plm_jax.io import checksums, files

log = logging.getLogger(__name__)
QUICK = dict(path='pydocs', text=None, documents='blank_line', length=64, batch_size=8)  # of a smoke test

GIVES = ('tokens', 'segment_ids', 'neighbours', 'cooccurrence')

TRIPLE = np.dtype([('word', '<i4'), ('neighbour', '<i4'), ('count', '<f4')])
BLOCK = 65_536  # triples per checksum, 768 KiB
_CHECKED_AT_ONCE = 64 * 2**20  # bytes; the blocks of larger tables are checked when they are first read
_KEY, _COUNT = np.dtype('<u8'), np.dtype('<f8')


class Run(NamedTuple):
  """One line of the journal: a file of counted pairs."""

  pairs: int  # number of pairs. The file has their keys, uint64 in ascending order, and then their counts, float64
  sha256: str  # checksum of the file


class Counting(NamedTuple):
  """Settings of a table."""

  tokens: store.Tokens  # the text
  left_out: np.ndarray  # bool[v], True for ids that are not counted
  window: int  # the largest distance
  room: int  # pairs that are held in memory at once


class Triples:
  """The triples of a table, `TRIPLE`[n], read from disk; safe to read from several threads.

  A block is compared with its checksum when it is first read. The table is made again if the block is damaged.
  """

  def __init__(self, table: np.ndarray, digests: Sequence[str], remade: Callable[[], np.ndarray], *, known: bool):
    """Check nothing yet.

    `digests` are the checksums of the blocks of `table`, a memory map. `remade` makes the file again and returns a
    memory map of it. With `known` all blocks have already been compared.
    """
    self._table, self._digests, self._remade = table, digests, remade
    self._first = FirstRead(len(digests), self._check, known=known)

  def __len__(self) -> int:
    return len(self._table)

  def take(self, positions: np.ndarray) -> np.ndarray:
    """Return triples by position; RunError if damaged and the text now differs."""
    if not self._first.whole:
      self._first.see(np.unique(positions // BLOCK))
    taken: np.ndarray = self._table[positions]
    return taken

  def _check(self, block: int) -> None:
    if self._digest(block) == self._digests[block]:
      return
    log.warning('word pairs from %d on are damaged: counting again.', block * BLOCK)
    self._table = self._remade()
    if self._digest(block) != self._digests[block]:
      raise RunError('the word pairs were damaged, and the text now gives other pairs: set data.cache to a new folder')

  def _digest(self, block: int) -> str:
    return hashlib.sha256(self._table[block * BLOCK : (block + 1) * BLOCK].tobytes()).hexdigest()


def make(
  *,
  vocab: Vocab,
  path: str,
  split: str = 'train',
  length: Count,
  batch_size: Count,
  seed: int,
  window: Annotated[int, '1 <= x <= 1000'] = 15,
  room: Annotated[int, '1_000_000 <= x'] = 16_000_000,
  text: str | None = None,
  documents: Boundary = 'blank_line',
  quality: Annotated[Mapping[str, Any], 'data.corpora.filters:filter_documents'] | None = None,
  max_bytes: Count = 1_073_741_824,
  shuffle: bool = True,
  cache: str = '~/.cache/plm_jax',
  host: int = 0,
  hosts: int = 1,
) -> Source:
  """Count the word pairs of `path` once and serve them.

  Args:
    length: triples per sequence.
    seed: seed of the order of sequences. Which triples form a sequence is sampled once per corpus.
    window: the largest distance of two words.
    room: pairs that are held in memory at once while they are counted, about 50 bytes each.
    shuffle: False keeps the order of the table in every epoch, which is random too.
    vocab, path, split, batch_size, text, documents, quality, max_bytes, cache, host, hosts: see `plm_jax.data`.

  Returns:
    Batches with the keys of `GIVES`: index k of a sequence is one triple.

  Raises:
    ValueError: no two words of the text are within `window`, or settings that do not fit each other.
  """
  share = order.share(batch_size, host=host, hosts=hosts)
  corpus = Corpus(
    path=path, split=split, text=text, documents=documents, quality=quality, max_bytes=max_bytes, cache=cache
  )
  tokens = corpus.tokenise(vocab)
  left_out = np.isin(np.arange(vocab.size), vocab.special_ids)
  counting = Counting(tokens, left_out, window, room)
  triples = counted(counting)
  if not len(triples):
    raise ValueError(
      f'{corpus}: no two words of the vocabulary are within {window} tokens in its {len(tokens.ids)} tokens: '
      'use a longer text, or a vocabulary with its words'
    )
  rows = -(-len(triples) // length)
  log.info(f'{corpus}: {len(tokens.ids):,} tokens, {len(triples):,} word pairs, {rows:,} sequences of {length} pairs.')

  def batch(chosen: order.Chosen) -> order.Batch:
    positions = chosen.rows[:, None] * length + np.arange(length)  # [b, l]
    real = positions < len(triples)
    triple = triples.take(np.minimum(positions, len(triples) - 1))
    return {
      'tokens': np.where(real, triple['word'], vocab.pad_id).astype(np.int32),
      'segment_ids': real.astype(np.int32),
      'neighbours': np.where(real, triple['neighbour'], vocab.pad_id).astype(np.int32),
      'cooccurrence': np.where(real, triple['count'], 0).astype(np.float32),
    }

  each = order.shuffled(rows, share, seed=seed, shuffle=shuffle)
  digest = store.digest_of(_digest(counting), length)
  return order.serve(batch, each, share=share, digest=digest)


def counted(c: Counting) -> Triples:
  """Return the shuffled triples of a text; count missing ones.

  Safe to call from many processes at once: one counts, the others wait.
  """
  assert c.tokens.folder is not None, 'the text is stored'
  folder = c.tokens.folder / f'cooccurrence-{_digest(c)[:16]}'
  file = folder / 'triples.bin'
  if not files.exists(folder / 'manifest.json'):
    made.missing('pairs of words', digest=_digest(c), folder=folder)

  def mapped() -> np.ndarray:
    return files.map_array(file, TRIPLE) if files.size(file) else np.zeros(0, TRIPLE)

  def remade() -> np.ndarray:
    with files.locked(folder / 'lock', doing='counting pairs of words'), files.named(folder):
      if (digests := _whole(folder)) is None or digests != list(_digests(file)):  # else another process did
        _count(c, folder)
    return mapped()

  with files.locked(folder / 'lock', doing='counting pairs of words'), files.named(folder):
    digests = _whole(folder)
    large = digests is not None and files.size(file) > _CHECKED_AT_ONCE
    if digests is not None and not large and digests != list(_digests(file)):
      log.warning('%s is damaged: counting again.', file)
      digests = None
    if exists := digests is not None:
      _clear(folder)  # runs of a process that was killed after its last triple
    else:
      digests = _count(c, folder)
    size = f'{files.size(file) // TRIPLE.itemsize:,} word pairs'
    made.tell('pairs of words', digest=_digest(c), folder=folder, size=size, found=exists)
    return Triples(mapped(), digests or [], remade, known=not large)


def _digest(c: Counting) -> str:
  """Compute the digest; it includes `room`, on which the order depends."""
  return store.digest_of(c.tokens.digest, 'cooccurrence', c.window, c.room)


def _whole(folder: Path) -> list[str] | None:
  """Return the block checksums of an intact table; None otherwise."""
  manifest, file = _record(folder / 'manifest.json'), folder / 'triples.bin'
  if not manifest:
    return None
  if 'blocks' not in manifest and files.is_file(file) and files.sha256(file) == manifest.get('sha256'):
    return _seal(folder)  # from an earlier version, with one checksum
  size, blocks = manifest.get('size'), manifest.get('blocks')
  if files.is_file(file) and files.size(file) == size and manifest.get('sha256') == store.digest_of(size, blocks):
    return list(blocks or [])
  log.warning('%s is damaged: counting again.', file)
  return None


def _digests(file: Path) -> Iterator[str]:
  with files.open(file, 'rb') as stream:
    while block := stream.read(BLOCK * TRIPLE.itemsize):
      yield hashlib.sha256(block).hexdigest()


def _seal(folder: Path) -> list[str]:
  """Write the manifest of a table; return the checksums of its blocks."""
  size, blocks = files.size(folder / 'triples.bin'), list(_digests(folder / 'triples.bin'))
  content = {'sha256': store.digest_of(size, blocks), 'size': size, 'blocks': blocks}
  files.write_json(folder / 'manifest.json', content, indent=None)
  return blocks


def _count(c: Counting, folder: Path) -> list[str]:
  files.remove(folder / 'manifest.json')
  return _merge(c, folder, list(_runs(c, folder)))


def _runs(c: Counting, folder: Path) -> Iterator[Run]:
  """Yield the runs of all parts; intact runs are not made again."""
  done = _journal(folder)
  intact = len(done)
  if intact:
    log.info('%s: continuing after %d counted parts of the text.', folder, intact)
  for index, (words, documents, old) in enumerate(_parts(c)):
    if index < intact:
      continue
    keys, counts = pairs_of(words, documents, old=old, window=c.window, vocab_size=len(c.left_out))
    files.write_bytes(_file(folder, index), keys.tobytes() + counts.tobytes())
    done.append(Run(len(keys), files.sha256(_file(folder, index))))
    checksums.write_sealed(folder / 'runs.json', {'runs': done}, indent=None)
    log.info('%s: part %d counted, %d pairs.', folder, index, len(keys))
  yield from done


def _parts(c: Counting) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
  """Yield consecutive parts of the text.

  Each is its words after up to `window` words of the part before, int64[n], the document of each, int64[n], and the
  number of words of the part before.
  """
  size = max(c.room // (2 * c.window), 1)
  words = documents = np.zeros(0, np.int64)
  for start in range(0, len(c.tokens.ids), size):
    ids = np.asarray(c.tokens.ids[start : start + size]).astype(np.int64)
    counted_ids = np.flatnonzero(~c.left_out[ids])
    old = min(len(words), c.window)
    words = np.concatenate([words[len(words) - old :], ids[counted_ids]])
    own = np.searchsorted(c.tokens.offsets, start + counted_ids, side='right')
    documents = np.concatenate([documents[len(documents) - old :], own])
    yield words, documents, old


def pairs_of(
  words: np.ndarray, documents: np.ndarray, *, old: int, window: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Count the pairs of a part of a text.

  `words` int64[n] are its words, after `old` words of the part before, whose pairs have been counted. `documents`
  int64[n] is the document of each. Returns keys (word * vocab_size + neighbour) uint64[p] in ascending order, each
  once, and counts float64[p].
  """
  keys, weights = [np.zeros(0, _KEY)], [np.zeros(0, _COUNT)]
  for distance in range(1, min(window, len(words) - 1) + 1):
    first = np.arange(max(old - distance, 0), len(words) - distance)
    first = first[documents[first] == documents[first + distance]]
    word, neighbour = words[first].astype(_KEY), words[first + distance].astype(_KEY)
    keys += [word * _KEY.type(vocab_size) + neighbour, neighbour * _KEY.type(vocab_size) + word]
    weights += [np.full(2 * len(first), 1 / distance)]
  return summed(np.concatenate(keys), np.concatenate(weights))


def summed(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Sum the counts of equal keys; return each key once, ascending.

  # keys 5 2 5   counts 1 1 .5   result 2 5   1 1.5
  """
  ascending = np.argsort(keys, kind='stable')
  keys, counts = keys[ascending], counts[ascending]
  first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
  return keys[first], np.add.reduceat(counts, first) if len(first) else counts


def _journal(folder: Path) -> list[Run]:
  """Return an interrupted count's runs before the first damaged one."""
  runs: list[Run] = []
  for index, (pairs, sha256) in enumerate(_record(folder / 'runs.json', checksums.read_sealed).get('runs', ())):
    file = _file(folder, index)
    size = pairs * (_KEY.itemsize + _COUNT.itemsize)
    if not files.is_file(file) or files.size(file) != size or files.sha256(file) != sha256:
      log.warning('%s is damaged: counting from there.', file)
      break
    runs.append(Run(pairs, sha256))
  return runs


def _record(file: Path, read: Callable[..., Any] = files.read_json) -> dict[str, Any]:
  try:
    value = read(file, default={})
  except ValueError:
    log.warning('%s is damaged: counting again.', file)
    return {}
  return value if isinstance(value, dict) else {}


def _file(folder: Path, index: int) -> Path:
  return folder / f'run-{index:05}.bin'


def _merge(c: Counting, folder: Path, runs: list[Run]) -> list[str]:
  """Sum the runs, write the shuffled table, and remove the runs.

  The sums of a range of words are distributed over files at random, and each file is shuffled. Thus every order of all
  triples is equally likely, and no more than `room` triples are in memory.
  """
  rng = np.random.default_rng(int(_digest(c)[:16], 16))
  hands = [folder / f'hand-{index:05}.bin' for index in range(1 + sum(run.pairs for run in runs) // c.room)]
  for hand in hands:
    files.write_bytes(hand, b'')
  for triples in _sums(c, folder, runs):
    dealt = rng.integers(0, len(hands), len(triples))
    for index, hand in enumerate(hands):
      with files.open(hand, 'ab') as file:
        file.write(triples[dealt == index].tobytes())
  with files.replacing(folder / 'triples.bin') as part:
    for hand in hands:
      triples = files.read_array(hand, TRIPLE)
      with files.open(part, 'ab') as file:
        file.write(triples[rng.permutation(len(triples))].tobytes())
  digests = _seal(folder)
  _clear(folder)
  return digests


def _clear(folder: Path) -> None:
  """Remove the files that a complete table was made from."""
  for file in files.listing(folder):
    if file.name.startswith(('run-', 'hand-')) or file.name == 'runs.json':
      files.remove(file)


def _sums(c: Counting, folder: Path, runs: list[Run]) -> Iterator[np.ndarray]:
  """Yield the sums of all runs, one `TRIPLE` array per word range."""
  size = len(c.left_out)
  opened = [_open(_file(folder, index), run.pairs) for index, run in enumerate(runs) if run.pairs]
  for low, high in _ranges(opened, vocab_size=size, room=c.room):
    keys, counts = [np.zeros(0, _KEY)], [np.zeros(0, _COUNT)]
    for run_keys, run_counts in opened:
      begin, end = np.searchsorted(run_keys, np.array([low * size, high * size], _KEY))
      keys.append(run_keys[begin:end])
      counts.append(run_counts[begin:end])
    pairs, sums = summed(np.concatenate(keys), np.concatenate(counts))
    triples = np.empty(len(pairs), TRIPLE)
    triples['word'], triples['neighbour'], triples['count'] = *np.divmod(pairs, size), sums
    yield triples


def _open(file: Path, pairs: int) -> tuple[np.ndarray, np.ndarray]:
  words = files.map_array(file, _KEY)
  return words[:pairs], words[pairs:].view(_COUNT)


def _ranges(opened: list[tuple[np.ndarray, np.ndarray]], *, vocab_size: int, room: int) -> Iterator[tuple[int, int]]:
  """Yield ranges of words with about `room` pairs over all runs."""
  edges = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(vocab_size)
  upto = np.sum([np.searchsorted(keys, edges) for keys, _ in opened], axis=0) if opened else np.zeros(vocab_size)
  low, before = 0, 0
  while low < vocab_size:
    high = max(int(np.searchsorted(upto, before + room, side='right')), low + 1)
    yield low, high
    low, before = high, int(upto[high - 1])
