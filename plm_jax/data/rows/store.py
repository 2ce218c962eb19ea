"""Token ids on disk: a corpus is tokenised once, even if the process is interrupted.

`<cache>/tokens/<digest>/` holds `tokens.bin` (uint16, or uint32 for vocabularies over 65,536), `lengths.bin` (uint32,
tokens of each document) and, when complete, `manifest.json`. The files grow block by block. Each finished block is one
line of `blocks.jsonl` with its SHA-256, so an interrupted run continues after its last intact block. The digest depends
on the text, the vocabulary and this format: if one changes, another store is made.

Every byte is compared with its checksum before it is used; blocks of a large store are compared when they are first
read (`Ids`). Damaged blocks are made again, with a warning in the log.
"""

import contextlib
import gc
import hashlib
import itertools
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, Protocol

import numpy as np

from plm_jax.core.errors import STOPPED, ConfigError, Interrupted, RunError
from plm_jax.core.types import Vocab
from plm_jax.data import made
from plm_jax.data.rows import in_place
from plm_jax.data.rows.first_read import FirstRead
from plm_jax.data.rows.token_progress import showing_progress
from plm_jax.io import files

log = logging.getLogger(__name__)

_FORMAT = 1
_BLOCK_CHARACTERS = 4_000_000  # about a million tokens, 100 MB while they are in the tokenizer
_BLOCK_DOCUMENTS = 100_000
_GROUP_CHARACTERS = 500_000
_CHECKED_AT_ONCE = 64 * 2**20  # bytes; the blocks of larger stores are checked when they are first read
_HELD = 2**20  # documents of a store whose offsets are held in memory
_LENGTH = np.dtype(np.uint32)


class Texts(Protocol):
  """A sequence of documents; `digest` names their content and order."""

  @property
  def digest(self) -> str: ...

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> str: ...


class Block(NamedTuple):
  """One line of the journal: consecutive documents, and the checksums of their tokens and lengths."""

  first_document: int
  documents: int
  first_token: int
  tokens: int
  tokens_sha256: str
  lengths_sha256: str


class ChangedTokens(Exception):
  """Error: a block that is made again differs from the manifest. The message names its documents."""


class Ids:
  """The ids of a large store, uint16 or uint32 [n], read from disk; safe to read from several threads.

  A block is compared with its checksum when it is first read, and made again if it is damaged.
  """

  def __init__(self, ids: np.ndarray, blocks: Sequence[Block], check: Callable[[Block], None]):
    """Check nothing yet: `check` is called with each block before use."""
    self._ids = ids  # a memory map of the file
    self._blocks = [block for block in blocks if block.tokens]
    self._starts = np.array([block.first_token for block in self._blocks])
    self._first = FirstRead(len(self._blocks), lambda number: check(self._blocks[number]))

  def __len__(self) -> int:
    return len(self._ids)

  def __getitem__(self, positions: slice) -> np.ndarray:
    start, stop, _ = positions.indices(len(self))
    first, last = np.searchsorted(self._starts, (start, max(start, stop - 1)), side='right') - 1
    self._first.see(np.arange(first, last + 1))
    return self._ids[positions]

  def take(self, positions: np.ndarray, *, mode: Literal['raise', 'clip'] = 'raise') -> np.ndarray:
    """Return the ids at these positions, as `np.ndarray.take`."""
    if not self._first.whole:
      self._first.see(np.unique(np.searchsorted(self._starts, np.clip(positions, 0, len(self) - 1), side='right') - 1))
    return self._ids.take(positions, mode=mode)

  def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return np.array(self[:], dtype, copy=copy)


AnyIds = np.ndarray | Ids | in_place.InPlace


class Tokens(NamedTuple):
  """Documents as token ids."""

  ids: AnyIds  # uint16 or uint32 [n], all documents end to end; may be a file on disk, or elsewhere
  offsets: np.ndarray  # int64[documents+1], document i is `ids[offsets[i]:offsets[i+1]]`
  digest: str  # digest of the text and the vocabulary
  folder: Path | None = None  # folder of the store; None in memory


def digest_of(*parts: Any) -> str:
  """Compute the SHA-256 of plain values, in hex."""
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def in_memory(texts: Texts, *, vocab: Vocab) -> Tokens:
  """Tokenise without writing a file."""
  encoded = [_encode(documents, vocab) for documents in _blocks(texts, 0, len(texts))]
  ids = np.concatenate([ids for ids, _ in encoded]) if encoded else np.zeros(0, _dtype(vocab))
  lengths = np.concatenate([lengths for _, lengths in encoded]) if encoded else np.zeros(0, _LENGTH)
  digest = _digest(texts, vocab)
  made.tell('tokens', digest=digest, folder=None, size=_size(len(texts), len(ids)), found=True)
  return Tokens(ids, _offsets(lengths), digest)


def with_characters(texts: Texts, *, vocab: Vocab) -> tuple[Tokens, np.ndarray]:
  """Tokenise in memory; add characters [start, end) of tokens, int32[n, 2]."""
  ids: list[np.ndarray] = [np.zeros(0, _dtype(vocab))]
  characters: list[np.ndarray] = [np.zeros((0, 2), np.int32)]
  for index in range(len(texts)):
    text_ids, spans = vocab.encode_offsets(texts[index])
    ids.append(np.array(text_ids, _dtype(vocab)))
    characters.append(np.array(spans, np.int32).reshape(-1, 2))
  lengths = np.array([len(text_ids) for text_ids in ids[1:]], _LENGTH)
  return Tokens(np.concatenate(ids), _offsets(lengths), _digest(texts, vocab)), np.concatenate(characters)


def on_disk(texts: Texts, *, vocab: Vocab, cache: str) -> Tokens:
  """Open the store of these texts; complete or repair it first.

  Safe to call from many processes, and from hosts that share `cache`, at once: one writes, the others wait. Raises
  ConfigError if the cache is not writable, and RunError if a damaged block cannot be restored, because the text now
  gives other tokens.
  """
  digest = _digest(texts, vocab)
  folder = files.local_path(cache, what='data.cache') / 'tokens' / digest
  if not files.exists(folder / 'manifest.json'):
    made.missing('tokens', digest=digest, folder=folder, size=f'{len(texts):,} documents')
    files.check_writable(cache, name='data.cache')
    if made.part() is not None:
      _make_part(folder, texts, vocab, digest=digest)
    _check_room(folder, getattr(texts, 'tokens', 0) * _dtype(vocab).itemsize, cache=cache)
  with files.locked(folder / 'lock', doing='tokenising it'), files.named(folder):
    sealed, blocks = _read_manifest(folder, documents=len(texts))
    try:
      where = _elsewhere(folder, blocks)
      large, intact = _check(folder, blocks, texts, vocab) if blocks and where is None else (False, bool(blocks))
    except ChangedTokens as error:
      if sealed:
        raise _lost(folder, error) from error
      log.warning('%s differ from manifest.json: tokenising everything again.', error)
      blocks, large, intact = [], False, False
    if not blocks:
      files.remove(folder / in_place.FILE)
      blocks = _build(folder, texts, vocab, range(len(texts)))
  offsets = _offsets_on_disk(folder, len(texts))
  made.tell('tokens', digest=digest, folder=folder, size=_size(len(texts), int(offsets[-1])), found=intact)
  if not offsets[-1]:
    return Tokens(np.zeros(0, _dtype(vocab)), offsets, digest, folder)
  if where is not None:
    remote = in_place.Blocks(where, [block for block in blocks if block.tokens], _dtype(vocab))
    return Tokens(in_place.InPlace(remote, range(int(offsets[-1]))), offsets, digest, folder)
  ids = np.asarray(files.map_array(folder / 'tokens.bin', _dtype(vocab)))

  def check(block: Block) -> None:
    with _opened(folder) as parts:
      intact = _is_intact(parts, block, vocab)
    if not intact:
      with files.locked(folder / 'lock', doing='repairing it'):
        try:
          _repair(folder, block, texts, vocab)
        except ChangedTokens as error:
          raise _lost(folder, error) from error

  return Tokens(Ids(ids, blocks, check) if large else ids, offsets, digest, folder)


def _check_room(folder: Path, needed: int, *, cache: str) -> None:
  there, free = sum(files.sizes_below(folder).values()) if files.is_folder(folder) else 0, files.free_bytes(cache)
  if needed and free is not None:
    log.log(logging.INFO if needed > 1e8 else logging.DEBUG, '%s: the tokens need about %.2f GB, %.2f GB are free',
            folder, (needed - there) / 1e9, free / 1e9)  # fmt: skip
    if needed - there > free:
      raise ConfigError(
        f'the tokens need about {needed / 1e9:,.2f} GB, and data.cache={cache} has {free / 1e9:,.2f} GB free: set '
        'data.cache to a folder on a larger disk'
      )


def _lost(folder: Path, error: ChangedTokens) -> RunError:
  return RunError(
    f'{error} are damaged, and now give other tokens, although text and vocabulary have not changed. '
    f'Delete the folder and start again: {folder}'
  )


def _make_part(folder: Path, texts: Texts, vocab: Vocab, *, digest: str) -> None:
  """Make the store of one worker's documents, and raise made.Partial."""
  index, count = made.part() or (0, 1)
  own = range(len(texts) * index // count, len(texts) * (index + 1) // count)
  part = folder / 'parts' / f'{own.start}-{own.stop}'
  with files.locked(part / 'lock', doing='tokenising it'), files.named(part):
    found = _read_manifest(part, documents=len(own))[1]
    blocks = found or _build(part, texts, vocab, own)
  raise made.Partial(made.Made('tokens', digest, part, _size(*_extent(blocks)), bool(found)))


def _encoded(folder: Path, texts: Texts, vocab: Vocab, own: range) -> Iterator[tuple[np.ndarray, np.ndarray]]:
  """Yield ids and lengths of blocks of documents; remove the parts read."""
  done, width = own.start, _dtype(vocab).itemsize
  ready = [part for part in files.listing(folder / 'parts') if files.is_file(part / 'manifest.json')]
  for part in sorted(ready, key=lambda part: int(part.name.partition('-')[0])):
    first, last = map(int, part.name.split('-'))
    for block in _read_manifest(part, documents=last - first)[1]:
      begin = first + block.first_document
      if begin < done:  # read before the process was killed
        continue
      for documents in _blocks(texts, done, begin):  # that no worker has made
        yield _encode(documents, vocab)
      with _opened(part) as opened:
        intact = _is_intact(opened, block, vocab)
      done = begin + block.documents
      if intact:
        ids = files.read_array(part / 'tokens.bin', _dtype(vocab), count=block.tokens, offset=block.first_token * width)
        first_byte = block.first_document * _LENGTH.itemsize
        yield ids, files.read_array(part / 'lengths.bin', _LENGTH, count=block.documents, offset=first_byte)
      else:
        yield _encode([texts[index] for index in range(begin, done)], vocab)
    files.remove_folder(part)
  for documents in _blocks(texts, done, own.stop):
    yield _encode(documents, vocab)


def _build(folder: Path, texts: Texts, vocab: Vocab, own: range) -> list[Block]:
  """Tokenise the documents that the journal lacks, then write the manifest."""
  blocks = _intact_blocks(folder, vocab)
  done, tokens = _extent(blocks)
  if blocks:
    log.info('%s: continuing after %d finished blocks (%d of %d documents).', folder, len(blocks), done, len(own))
  files.write_text(folder / 'blocks.jsonl', ''.join(json.dumps(block) + '\n' for block in blocks))
  begun = len(blocks)
  with (
    _told(folder, blocks, begun=begun, documents=len(own)),
    files.open(folder / 'tokens.bin', 'ab') as token_file,
    files.open(folder / 'lengths.bin', 'ab') as length_file,
    files.open(folder / 'blocks.jsonl', 'a') as journal,
    showing_progress(len(own), done) as advance,
  ):
    token_file.truncate(tokens * _dtype(vocab).itemsize)
    length_file.truncate(done * _LENGTH.itemsize)
    for ids, lengths in _encoded(folder, texts, vocab, own[done:]):
      for file, array in ((token_file, ids), (length_file, lengths)):
        file.write(array.tobytes())
        files.flush_to_disk(file)
      block = Block(done, len(lengths), tokens, len(ids), _sha256(ids.tobytes()), _sha256(lengths.tobytes()))
      done, tokens = done + len(lengths), tokens + len(ids)
      journal.write(json.dumps(block) + '\n')
      files.flush_to_disk(journal)
      blocks.append(block)
      advance(len(lengths), len(ids))
  manifest = {'format': _FORMAT, 'blocks': blocks, 'sha256': digest_of(blocks)}
  files.write_json(folder / 'manifest.json', manifest, indent=None)
  files.remove(folder / 'blocks.jsonl')
  files.remove_folder(folder / 'parts')
  return blocks


@contextlib.contextmanager
def _told(folder: Path, blocks: Sequence[Block], *, begun: int, documents: int) -> Iterator[None]:
  try:
    yield
  except Interrupted:
    if len(blocks) == begun:
      raise
    done, _ = _extent(blocks)
    raise Interrupted(
      f'stopped by a signal: {done:,} of {documents:,} documents are tokenised in {folder}; repeat the command to '
      'continue', STOPPED
    ) from None  # fmt: skip


def _intact_blocks(folder: Path, vocab: Vocab) -> list[Block]:
  """Return the blocks of an interrupted run before the first damaged one."""
  journal = folder / 'blocks.jsonl'
  blocks: list[Block] = []
  lines = files.read_bytes(journal).decode(errors='replace').splitlines() if files.exists(journal) else []
  with contextlib.suppress(FileNotFoundError, ValueError, TypeError), _opened(folder) as parts:
    for line in lines:
      (block,) = _checked([files.parse_json(line)], after=_extent(blocks))
      if not _is_intact(parts, block, vocab):
        log.warning('%s: block %d is damaged: tokenising from there.', folder, len(blocks))
        break
      blocks.append(block)
  return blocks


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
  with files.open(folder / 'tokens.bin', 'rb') as tokens, files.open(folder / 'lengths.bin', 'rb') as lengths:
    yield tokens, lengths


def _is_intact(parts: tuple[BinaryIO, BinaryIO], block: Block, vocab: Vocab, *, ids: bool = True) -> bool:
  """Return True if a block matches its checksums (lengths without `ids`)."""
  for file, first, count, item, digest in (
    (parts[0], block.first_token, block.tokens, _dtype(vocab), block.tokens_sha256),
    (parts[1], block.first_document, block.documents, _LENGTH, block.lengths_sha256),
  )[1 - ids :]:
    file.seek(first * item.itemsize)
    content = file.read(count * item.itemsize)
    if len(content) != count * item.itemsize or _sha256(content) != digest:
      return False
  return True


def _check(folder: Path, blocks: list[Block], texts: Texts, vocab: Vocab) -> tuple[bool, bool]:
  """Compare sizes and checksums with the manifest, and repair damage.

  Returns True if the store is large, so that the checksums of its ids are compared later, and True if nothing was
  damaged. Raises ChangedTokens if a block cannot be repaired.
  """
  documents, tokens = _extent(blocks)
  expected = {'tokens.bin': tokens * _dtype(vocab).itemsize, 'lengths.bin': documents * _LENGTH.itemsize}
  intact = True
  for name, size in expected.items():
    path = folder / name
    with files.open(path, 'ab') as file:
      if (actual := files.size(path)) != size:
        log.warning('%s is damaged: it has %d bytes instead of %d.', path, actual, size)
        file.truncate(size)
        intact = False
  large = sum(expected.values()) > _CHECKED_AT_ONCE
  with _opened(folder) as parts:
    damaged = [block for block in blocks if not _is_intact(parts, block, vocab, ids=not large)]
  for block in damaged:
    _repair(folder, block, texts, vocab)
  return large, intact and not damaged


def _elsewhere(folder: Path, blocks: list[Block]) -> Path | None:
  """Return the location of ids elsewhere, and compare their lengths.

  A store without manifest is made again here.
  """
  if not files.exists(folder / 'manifest.json'):
    return None
  with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
    if (where := in_place.location(folder)) is None:
      return None
    if not blocks:
      raise RunError(in_place.damage(folder, 'manifest.json'))
    with files.open(folder / 'lengths.bin', 'rb') as file:
      if all(_sha256(file.read(block.documents * _LENGTH.itemsize)) == block.lengths_sha256 for block in blocks):
        return where
  raise RunError(in_place.damage(folder, 'lengths.bin or in_place.json'))


def _repair(folder: Path, block: Block, texts: Texts, vocab: Vocab) -> None:
  """Tokenise a block again; raise ChangedTokens if its tokens differ."""
  last = block.first_document + block.documents
  where = f'documents {block.first_document}..{last - 1} of {folder}'
  log.warning('%s are damaged: tokenising them again.', where)
  ids, lengths = _encode([texts[index] for index in range(block.first_document, last)], vocab)
  if (_sha256(ids.tobytes()), _sha256(lengths.tobytes())) != (block.tokens_sha256, block.lengths_sha256):
    raise ChangedTokens(where)
  _overwrite(folder / 'tokens.bin', block.first_token, ids)
  _overwrite(folder / 'lengths.bin', block.first_document, lengths)


def _overwrite(path: Path, first: int, array: np.ndarray) -> None:
  with files.open(path, 'r+b') as file:
    file.seek(first * array.itemsize)
    file.write(array.tobytes())
    files.flush_to_disk(file)


def _read_manifest(folder: Path, *, documents: int) -> tuple[bool, list[Block]]:
  """Return whether the manifest has a checksum, and blocks (none if damaged)."""
  blocks: list[Block] = []
  collects = gc.isenabled()
  gc.disable()  # a long list is read in a quarter of the time
  try:
    text = files.read_text(folder / 'manifest.json')
    manifest = files.parse_json(text)
    blocks = _checked(manifest['blocks'])
    listed = f'[{text[text.find("[") : text.rfind("]") + 1]}]'  # as `digest_of` writes the blocks, unless edited
    known = manifest.get('sha256')
    if known is not None and known != _sha256(listed.encode()) and known != digest_of(blocks):
      raise ValueError('another sha256')
    if _extent(blocks)[0] != documents:
      raise ValueError(f'not of {documents} documents')
  except FileNotFoundError:
    return False, []
  except (ValueError, KeyError, TypeError, AttributeError) as error:
    log.warning('%s/manifest.json is damaged (%s).', folder, error)
    return False, []
  finally:
    if collects:
      gc.enable()
  return 'sha256' in manifest, blocks


def _checked(values: Sequence[Sequence[Any]], *, after: tuple[int, int] = (0, 0)) -> list[Block]:
  """Build consecutive blocks from plain values; raise ValueError or TypeError."""
  blocks = list(map(Block._make, values))
  if {type(number) for block in blocks for number in block[:4]} - {int}:
    raise ValueError('a number is not an integer')
  numbers = np.array([block[:4] for block in blocks], np.int64).reshape(-1, 4)
  if numbers.min(initial=0) < 0:
    raise ValueError('a number is negative')
  for first, size, start in ((0, 1, after[0]), (2, 3, after[1])):
    if (numbers[:, first] != start + np.cumsum(numbers[:, size]) - numbers[:, size]).any():
      raise ValueError('blocks are not consecutive')
  return blocks


def _encode(documents: Sequence[str], vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
  """Return documents' ids end to end, and sizes of each, uint32."""
  encoded: list[list[int]] = []
  for group in _groups(documents):
    encoded += vocab.encode_batch(group)
  lengths = np.fromiter(map(len, encoded), _LENGTH, len(encoded))
  ids = np.fromiter(itertools.chain.from_iterable(encoded), _dtype(vocab), int(lengths.sum()))
  return ids, lengths


def _groups(documents: Sequence[str]) -> Iterator[Sequence[str]]:
  """Split documents so that signals are handled within a second."""
  start, characters = 0, 0
  for end, document in enumerate(documents, start=1):
    characters += len(document)
    if characters >= _GROUP_CHARACTERS or end == len(documents):
      yield documents[start:end]
      start, characters = end, 0


def _blocks(texts: Texts, first: int, last: int) -> Iterator[list[str]]:
  """Yield documents of a range in blocks whose ends are reproducible."""
  block: list[str] = []
  characters = 0
  for index in range(first, last):
    block.append(texts[index])
    characters += len(block[-1])
    if characters >= _BLOCK_CHARACTERS or len(block) == _BLOCK_DOCUMENTS:
      yield block
      block, characters = [], 0
  if block:
    yield block


def _size(documents: int, tokens: int) -> str:
  return f'{documents:,} documents, {tokens:,} tokens'


def _extent(blocks: Sequence[Block]) -> tuple[int, int]:
  """Return the documents and tokens of consecutive blocks from 0."""
  if not blocks:
    return 0, 0
  last = blocks[-1]
  return last.first_document + last.documents, last.first_token + last.tokens


def _digest(texts: Texts, vocab: Vocab) -> str:
  return digest_of('tokens', _FORMAT, texts.digest, vocab.digest)


def _dtype(vocab: Vocab) -> np.dtype:
  return np.dtype(np.uint16 if vocab.size <= 2**16 else np.uint32)


def _offsets(lengths: np.ndarray) -> np.ndarray:
  return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _offsets_on_disk(folder: Path, documents: int) -> np.ndarray:
  """Return the offsets, int64[documents+1]; map those of large stores.

  `offsets.bin` is made from the lengths, and again if it differs, in pieces.
  """
  path, total = folder / 'offsets.bin', 0
  if documents < _HELD:
    return _offsets(files.read_array(folder / 'lengths.bin', _LENGTH))
  lengths = files.map_array(folder / 'lengths.bin', _LENGTH)
  if files.is_file(path) and files.size(path) == 8 * (documents + 1):
    offsets = files.map_array(path, np.int64)
    pieces = (slice(start, start + _HELD) for start in range(0, documents, _HELD))
    if not offsets[0] and all((np.diff(offsets[p.start : p.stop + 1]) == lengths[p]).all() for p in pieces):
      return offsets
    log.warning('%s is damaged: making it again.', path)
  with files.replacing(path) as part, files.open(part, 'wb') as file:
    file.write(bytes(8))
    for start in range(0, documents, _HELD):
      ends = total + np.cumsum(lengths[start : start + _HELD], dtype=np.int64)
      file.write(ends.tobytes())
      total = int(ends[-1])
  return files.map_array(path, np.int64)


def _sha256(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()
