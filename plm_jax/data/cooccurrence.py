"""How often words stand near each other, as rows of (word, neighbour, count): what GloVe learns from.

Pennington et al. 2014, §3 and §4.2; stanfordnlp/GloVe, src/cooccur.c. Two words of a document that are at most `window`
apart count 1 / distance for each other, in both orders. Special tokens, unknown words among them, are left out before
distances are taken.

  # the cat sat the   window 2   cat sat 1   cat the 1 + 1/2   sat the 1 + 1/2   the the 0 (3 apart)

A corpus has more pairs than fit into memory, so they are counted in parts: each part of the text gives a run, a file of
its pairs in ascending order with their counts. Then the pairs of some words at a time are added up over all runs, and
put into random order. Runs stay on disk until the table is whole: who is killed meanwhile begins where the last run
ended. Every file has a digest, and one that is damaged is made again. Every byte of the table is compared with its
digest before it is used: those of a large table block by block, when a block is first read.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np

from plm_jax.core.errors import RunError
from plm_jax.core.types import Count, Source, Vocab
from plm_jax.data import made
from plm_jax.data.corpora.formats.txt import Boundary
from plm_jax.data.rows import order, store
from plm_jax.data.rows.documents import look as look
from plm_jax.data.rows.documents import tokenised
from plm_jax.data.rows.first_read import FirstRead
from plm_jax.io import files

log = logging.getLogger(__name__)
# of a smoke test (`file.py:quick`)
QUICK = dict(path='pydocs', text=None, documents='blank_line', length=64, batch_size=8)

GIVES = ('tokens', 'segment_ids', 'neighbours', 'cooccurrence')

TRIPLE = np.dtype([('word', '<i4'), ('neighbour', '<i4'), ('count', '<f4')])
BLOCK = 65_536  # triples with a digest of their own, 768 KiB
_CHECKED_AT_ONCE = 64 * 2**20  # bytes; the blocks of larger tables are checked when they are first read
_KEY, _COUNT = np.dtype('<u8'), np.dtype('<f8')


class Run(NamedTuple):
  """One line of the journal: a file of counted pairs.

  Attributes:
    pairs: how many. The file has their keys, uint64 in ascending order, and then their counts, float64.
    sha256: of the file.
  """

  pairs: int
  sha256: str


class Counting(NamedTuple):
  """What is counted.

  Attributes:
    tokens: the text.
    left_out: bool[v], the ids that are.
    window: the largest distance.
    room: pairs that are held in memory at once.
  """

  tokens: store.Tokens
  left_out: np.ndarray
  window: int
  room: int


class Triples:
  """The triples of a table, `TRIPLE`[n], read from disk; may be read by several threads at once.

  The first time that a block is read it is compared with its digest, and the table is made again where it is damaged.
  """

  def __init__(self, table: np.ndarray, digests: Sequence[str], remade: Callable[[], np.ndarray], *, known: bool):
    """Checks nothing yet.

    Args:
      table: a memory map of the file.
      digests: of its blocks.
      remade: makes the file again; a memory map of that.
      known: whether all blocks were compared with their digests already.
    """
    self._table, self._digests, self._remade = table, digests, remade
    self._first = FirstRead(len(digests), self._check, known=known)

  def __len__(self) -> int:
    return len(self._table)

  def take(self, places: np.ndarray) -> np.ndarray:
    """The triples at these places, an array of the same shape.

    Raises:
      RunError: a block is damaged and the text gives other triples now.
    """
    if not self._first.whole:
      self._first.see(np.unique(places // BLOCK))
    taken: np.ndarray = self._table[places]
    return taken

  def _check(self, number: int) -> None:
    if self._digest(number) == self._digests[number]:
      return
    log.warning('triples %d.. of the pairs of words are damaged: counting again.', number * BLOCK)
    self._table = self._remade()
    if self._digest(number) != self._digests[number]:
      raise RunError('the pairs of words were damaged, and the text gives others now: begin with another cache')

  def _digest(self, number: int) -> str:
    return hashlib.sha256(self._table[number * BLOCK : (number + 1) * BLOCK].tobytes()).hexdigest()


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
  """Counts the pairs of words of `path`, once, and serves them as rows.

  Args:
    vocab: gives ids.
    path: of the text, as `sources.documents` takes it.
    split: part of it, TFDS slicing allowed.
    length: triples per row.
    batch_size: rows per step over all hosts.
    seed: of the order of rows; which triples stand in a row is drawn once per corpus.
    window: the largest distance of two words.
    room: pairs that are held in memory at once while they are counted, of about 50 bytes each.
    text: the field that holds the text, where there are several.
    documents: what ends a document in a .txt file; no pair reaches beyond.
    quality: keywords of `filters.filter_documents`.
    max_bytes: most bytes of a document of a file, and of a .gz file unzipped, which is held in memory.
    shuffle: False keeps the order of the table in every epoch, which is random too.
    cache: folder for token stores and tables.
    host: index of this process.
    hosts: number of processes.

  Returns:
    Batches with the keys of `GIVES`: place k of a row is one triple.

  Raises:
    ValueError: no two words of the text stand near each other; a setting that cannot be met.
  """
  share = order.share(batch_size, host=host, hosts=hosts)
  read = {'split': split, 'text': text, 'documents': documents, 'quality': quality, 'max_bytes': max_bytes}
  tokens = tokenised(path, vocab=vocab, cache=cache, **read)
  left_out = np.isin(np.arange(vocab.size), vocab.special_ids)
  counting = Counting(tokens, left_out, window, room)
  triples = counted(counting)
  if not len(triples):
    raise ValueError(
      f'{path} ({split}): no two words of the vocabulary stand within {window} of each other in a document, among '
      f'{len(tokens.ids)} tokens: name a longer text, or a vocabulary that knows its words'
    )
  rows = -(-len(triples) // length)
  log.info(f'{path} ({split}): {len(tokens.ids):,} tokens, {len(triples):,} pairs of words, {rows:,} rows of {length}.')

  def batch(chosen: order.Chosen) -> order.Batch:
    places = chosen.rows[:, None] * length + np.arange(length)  # [b, l]
    real = places < len(triples)
    found = triples.take(np.minimum(places, len(triples) - 1))
    return {
      'tokens': np.where(real, found['word'], vocab.pad_id).astype(np.int32),
      'segment_ids': real.astype(np.int32),
      'neighbours': np.where(real, found['neighbour'], vocab.pad_id).astype(np.int32),
      'cooccurrence': np.where(real, found['count'], 0).astype(np.float32),
    }

  each = order.shuffled(rows, share, seed=seed, shuffle=shuffle)
  digest = store.digest_of(_digest(counting), length)
  return order.serve(batch, each, share=share, digest=digest, path=f'{path} ({split})')


def counted(c: Counting) -> Triples:
  """The triples of a text in random order; counted where they are not there yet.

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
    if found := digests is not None:
      _clear(folder)  # of a process that was killed behind its last triple
    else:
      digests = _count(c, folder)
    size = f'{files.size(file) // TRIPLE.itemsize:,} pairs of words'
    made.tell('pairs of words', digest=_digest(c), folder=folder, size=size, found=found)
    return Triples(mapped(), digests or [], remade, known=not large)


def _digest(c: Counting) -> str:
  """Of the table; `room` is in it, because the random order depends on it."""
  return store.digest_of(c.tokens.digest, 'cooccurrence', c.window, c.room)


def _whole(folder: Path) -> list[str] | None:
  """The digests of the blocks of a table that is there, in its size; None where it or its manifest is not sound."""
  manifest, file = _record(folder / 'manifest.json'), folder / 'triples.bin'
  if not manifest:
    return None
  if 'blocks' not in manifest and files.is_file(file) and files.sha256(file) == manifest.get('sha256'):
    return _seal(folder)  # of an earlier version, with one digest
  size, blocks = manifest.get('size'), manifest.get('blocks')
  if files.is_file(file) and files.size(file) == size and manifest.get('sha256') == store.digest_of(size, blocks):
    return list(blocks or [])
  log.warning('%s is damaged: counting again.', file)
  return None


def _digests(file: Path) -> Iterator[str]:
  """Of each block of a table, as its file is now."""
  with files.open(file, 'rb') as stream:
    while block := stream.read(BLOCK * TRIPLE.itemsize):
      yield hashlib.sha256(block).hexdigest()


def _seal(folder: Path) -> list[str]:
  """Writes the manifest of a table, which has a digest of its own; returns the digests of the blocks."""
  size, blocks = files.size(folder / 'triples.bin'), list(_digests(folder / 'triples.bin'))
  content = {'sha256': store.digest_of(size, blocks), 'size': size, 'blocks': blocks}
  files.write_json(folder / 'manifest.json', content, indent=None)
  return blocks


def _count(c: Counting, folder: Path) -> list[str]:
  """Makes the table; returns the digests of its blocks."""
  files.remove(folder / 'manifest.json')
  return _merge(c, folder, list(_runs(c, folder)))


# Runs ----------------------------------------------------------------------------------------------------------------


def _runs(c: Counting, folder: Path) -> Iterator[Run]:
  """The runs of all parts of the text; those that the journal lists and that are intact are not made again."""
  known = _known(folder)
  if known:
    log.info('%s: continuing after %d counted parts of the text.', folder, len(known))
  done = list(known)
  for number, (words, documents, old) in enumerate(_parts(c)):
    if number < len(known):
      continue
    keys, counts = pairs_of(words, documents, old=old, window=c.window, vocab_size=len(c.left_out))
    files.write_bytes(_file(folder, number), keys.tobytes() + counts.tobytes())
    done.append(Run(len(keys), files.sha256(_file(folder, number))))
    files.write_json(folder / 'runs.json', {'runs': done}, indent=None)
    log.info('%s: part %d counted, %d pairs.', folder, number, len(keys))
  yield from done


def _parts(c: Counting) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
  """Words of consecutive parts of the text, the documents that they stand in, and how many are of the part before."""
  size = max(c.room // (2 * c.window), 1)
  words = documents = np.zeros(0, np.int64)
  for start in range(0, len(c.tokens.ids), size):
    ids = np.asarray(c.tokens.ids[start : start + size]).astype(np.int64)
    kept = np.flatnonzero(~c.left_out[ids])
    old = min(len(words), c.window)
    words = np.concatenate([words[len(words) - old :], ids[kept]])
    own = np.searchsorted(c.tokens.offsets, start + kept, side='right')
    documents = np.concatenate([documents[len(documents) - old :], own])
    yield words, documents, old


def pairs_of(
  words: np.ndarray, documents: np.ndarray, *, old: int, window: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Counts the pairs of a part of a text.

  Args:
    words: int64[n], its words, and before them those of the part before that may be near.
    documents: int64[n], which document each stands in.
    old: words of the part before; pairs among them were counted there.
    window: the largest distance.
    vocab_size: v; the key of a pair is word * v + neighbour.

  Returns:
    Keys uint64[p] in ascending order, each once, and counts float64[p].
  """
  keys, weights = [np.zeros(0, _KEY)], [np.zeros(0, _COUNT)]
  for distance in range(1, min(window, len(words) - 1) + 1):
    first = np.arange(max(old - distance, 0), len(words) - distance)
    first = first[documents[first] == documents[first + distance]]
    one, other = words[first].astype(_KEY), words[first + distance].astype(_KEY)
    keys += [one * _KEY.type(vocab_size) + other, other * _KEY.type(vocab_size) + one]
    weights += [np.full(2 * len(first), 1 / distance)]
  return summed(np.concatenate(keys), np.concatenate(weights))


def summed(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Each key once, in ascending order, with the sum of its counts.

  # keys 5 2 5   counts 1 1 .5   result 2 5   1 1.5
  """
  places = np.argsort(keys, kind='stable')
  keys, counts = keys[places], counts[places]
  first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])[: len(keys)])
  return keys[first], np.add.reduceat(counts, first) if len(first) else counts


def _known(folder: Path) -> list[Run]:
  """The runs of a counting that was cut off, up to the first one that is missing or damaged."""
  found: list[Run] = []
  for number, (pairs, sha256) in enumerate(_record(folder / 'runs.json').get('runs', ())):
    file = _file(folder, number)
    if not files.is_file(file) or files.sha256(file) != sha256:
      log.warning('%s is damaged: counting from there.', file)
      break
    found.append(Run(pairs, sha256))
  return found


def _record(file: Path) -> dict[str, Any]:
  """What is in a JSON file of ours; nothing where it is missing or damaged."""
  try:
    value = files.read_json(file, default={})
  except ValueError:
    log.warning('%s is damaged: counting again.', file)
    return {}
  return value if isinstance(value, dict) else {}


def _file(folder: Path, number: int) -> Path:
  return folder / f'run-{number:05}.bin'


# The table -----------------------------------------------------------------------------------------------------------


def _merge(c: Counting, folder: Path, runs: list[Run]) -> list[str]:
  """Adds the runs up, writes the triples in random order with their manifest, and removes the runs.

  The sums of some words at a time are dealt out to files at random, and each file is put into random order, so that
  every order of all triples is as likely as any other and no more than `room` are in memory.
  """
  draw = np.random.default_rng(int(_digest(c)[:16], 16))
  hands = [folder / f'hand-{number:05}.bin' for number in range(1 + sum(run.pairs for run in runs) // c.room)]
  for hand in hands:
    files.write_bytes(hand, b'')
  for triples in _sums(c, folder, runs):
    dealt = draw.integers(0, len(hands), len(triples))
    for number, hand in enumerate(hands):
      with files.open(hand, 'ab') as file:
        file.write(triples[dealt == number].tobytes())
  with files.replacing(folder / 'triples.bin') as part:
    for hand in hands:
      triples = files.read_array(hand, TRIPLE)
      with files.open(part, 'ab') as file:
        file.write(triples[draw.permutation(len(triples))].tobytes())
  digests = _seal(folder)
  _clear(folder)
  return digests


def _clear(folder: Path) -> None:
  """Removes what a whole table was counted from."""
  for file in files.listing(folder):
    if file.name.startswith(('run-', 'hand-')) or file.name == 'runs.json':
      files.remove(file)


def _sums(c: Counting, folder: Path, runs: list[Run]) -> Iterator[np.ndarray]:
  """The triples of all runs, added up, `TRIPLE` arrays with all pairs of some words each."""
  size = len(c.left_out)
  opened = [_open(_file(folder, number), run.pairs) for number, run in enumerate(runs) if run.pairs]
  for low, high in _ranges(opened, vocab_size=size, room=c.room):
    keys, counts = [np.zeros(0, _KEY)], [np.zeros(0, _COUNT)]
    for run_keys, run_counts in opened:
      begin, end = np.searchsorted(run_keys, np.array([low * size, high * size], _KEY))
      keys.append(run_keys[begin:end])
      counts.append(run_counts[begin:end])
    found, sums = summed(np.concatenate(keys), np.concatenate(counts))
    triples = np.empty(len(found), TRIPLE)
    triples['word'], triples['neighbour'], triples['count'] = *np.divmod(found, size), sums
    yield triples


def _open(file: Path, pairs: int) -> tuple[np.ndarray, np.ndarray]:
  """The keys and the counts of a run, read from disk where they are used."""
  numbers = files.map_array(file, _KEY)
  return numbers[:pairs], numbers[pairs:].view(_COUNT)


def _ranges(opened: list[tuple[np.ndarray, np.ndarray]], *, vocab_size: int, room: int) -> Iterator[tuple[int, int]]:
  """Ranges of words [low, high) with about `room` pairs in all runs together, one word at least."""
  edges = np.arange(1, vocab_size + 1, dtype=np.uint64) * np.uint64(vocab_size)
  upto = np.sum([np.searchsorted(keys, edges) for keys, _ in opened], axis=0) if opened else np.zeros(vocab_size)
  low, before = 0, 0
  while low < vocab_size:
    high = max(int(np.searchsorted(upto, before + room, side='right')), low + 1)
    yield low, high
    low, before = high, int(upto[high - 1])
