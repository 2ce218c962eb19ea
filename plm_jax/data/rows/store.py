"""Token ids on disk: a corpus is tokenised once, even if the process is interrupted meanwhile.

`<cache>/tokens/<digest>/` holds `tokens.bin` (uint16, or uint32 for vocabularies over 65,536), `lengths.bin` (uint32
tokens of each document) and, when all is written, `manifest.json`. The files grow block by block; each finished block
is one line of `blocks.jsonl` with its SHA-256, so an interrupted run continues after its last intact block. The digest
depends on the text, the vocabulary and this format: if one changes, another store is made.
"""

import contextlib
import hashlib
import itertools
import json
import logging
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import rich.console
import rich.progress

from plm_jax import files
from plm_jax.types import Vocab

log = logging.getLogger(__name__)

_FORMAT = 1
_BLOCK_CHARACTERS = 4_000_000  # about a million tokens, 100 MB while they are in the tokenizer
_BLOCK_DOCUMENTS = 100_000
_ALWAYS_CHECKED = 64 * 2**20  # bytes; larger stores are checked again only when a file has changed
_REPORT_SECONDS = 10.0
_LENGTH = np.dtype(np.uint32)


class Texts(Protocol):
  """A sequence of documents; `digest` names their content and order."""

  @property
  def digest(self) -> str: ...

  def __len__(self) -> int: ...

  def __getitem__(self, index: int) -> str: ...


class Tokens(NamedTuple):
  """Documents as token ids.

  Attributes:
    ids: uint16 or uint32 [n], all documents end to end (a read-only memory map where it is a file).
    offsets: int64[documents+1], document i is `ids[offsets[i]:offsets[i+1]]`.
    digest: of the text and the vocabulary.
    folder: where it is stored, None in memory.
  """

  ids: np.ndarray
  offsets: np.ndarray
  digest: str
  folder: Path | None = None


class Block(NamedTuple):
  """One line of the journal: consecutive documents, and the digests of their tokens and lengths."""

  first_document: int
  documents: int
  first_token: int
  tokens: int
  tokens_sha256: str
  lengths_sha256: str


def digest_of(*parts: Any) -> str:
  """Hex SHA-256 of plain values."""
  return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def in_memory(texts: Texts, *, vocab: Vocab) -> Tokens:
  """Tokenises without writing a file."""
  encoded = [_encode(documents, vocab) for documents in _blocks(texts, 0)]
  ids = np.concatenate([ids for ids, _ in encoded]) if encoded else np.zeros(0, _dtype(vocab))
  lengths = np.concatenate([lengths for _, lengths in encoded]) if encoded else np.zeros(0, _LENGTH)
  return Tokens(ids, _offsets(lengths), _digest(texts, vocab))


def on_disk(texts: Texts, *, vocab: Vocab, cache: str) -> Tokens:
  """Opens the store of these texts, making, finishing or repairing it first where needed.

  Safe to call from many processes, and hosts that share `cache`, at once: one writes, the others wait.

  Raises:
    RuntimeError: a damaged block cannot be restored, because the text now gives other tokens.
  """
  digest = _digest(texts, vocab)
  folder = files.path(cache) / 'tokens' / digest
  with files.locked(folder / 'lock', doing='tokenising it'):
    blocks = _read_manifest(folder)
    if blocks is None:
      blocks = _build(folder, texts, vocab)
    _check(folder, blocks, texts, vocab)
  _, count = _extent(blocks)
  ids = files.map_array(folder / 'tokens.bin', _dtype(vocab)) if count else np.zeros(0, _dtype(vocab))
  return Tokens(ids, _offsets(files.read_array(folder / 'lengths.bin', _LENGTH)), digest, folder)


def cached(tokens: Tokens, name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  """`make()`, kept beside the store as `<name>.npz`; an unreadable file is made again."""
  if tokens.folder is None:
    return make()
  path = tokens.folder / f'{name}.npz'
  try:
    with files.open(path, 'rb') as file, np.load(file, allow_pickle=False) as saved:
      return dict(saved)
  except FileNotFoundError:
    pass
  except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
    log.warning('%s is damaged (%s): making it again.', path, error)
  arrays = make()
  with files.replacing(path) as part, files.open(part, 'wb') as file:
    np.savez(file, allow_pickle=False, **arrays)
  return arrays


def _build(folder: Path, texts: Texts, vocab: Vocab) -> list[Block]:
  """Tokenises the documents that the journal does not list yet, then writes the manifest."""
  blocks = _intact_blocks(folder, vocab)
  done, tokens = _extent(blocks)
  if blocks:
    log.info('%s: continuing after %d finished blocks (%d of %d documents).', folder, len(blocks), done, len(texts))
  files.write_text(folder / 'blocks.jsonl', ''.join(json.dumps(block) + '\n' for block in blocks))
  with (
    files.open(folder / 'tokens.bin', 'ab') as token_file,
    files.open(folder / 'lengths.bin', 'ab') as length_file,
    files.open(folder / 'blocks.jsonl', 'a') as journal,
    _progress(len(texts), done) as advance,
  ):
    token_file.truncate(tokens * _dtype(vocab).itemsize)
    length_file.truncate(done * _LENGTH.itemsize)
    for documents in _blocks(texts, done):
      ids, lengths = _encode(documents, vocab)
      for file, array in ((token_file, ids), (length_file, lengths)):
        file.write(array.tobytes())
        files.flush_to_disk(file)
      blocks.append(Block(done, len(lengths), tokens, len(ids), _sha256(ids.tobytes()), _sha256(lengths.tobytes())))
      done, tokens = done + len(lengths), tokens + len(ids)
      journal.write(json.dumps(blocks[-1]) + '\n')
      files.flush_to_disk(journal)
      advance(len(lengths), len(ids))
  files.write_json(folder / 'manifest.json', {'format': _FORMAT, 'blocks': blocks}, indent=None)
  files.remove(folder / 'blocks.jsonl')
  return blocks


def _intact_blocks(folder: Path, vocab: Vocab) -> list[Block]:
  """The blocks of an interrupted run, up to the first incomplete or damaged one."""
  journal = folder / 'blocks.jsonl'
  blocks: list[Block] = []
  for line in files.read_text(journal).splitlines() if files.exists(journal) else ():
    try:
      block = Block(*json.loads(line))
    except (ValueError, TypeError):
      break
    if not _is_intact(folder, block, vocab):
      log.warning('%s: block %d is damaged: tokenising from there.', folder, len(blocks))
      break
    blocks.append(block)
  return blocks


def _is_intact(folder: Path, block: Block, vocab: Vocab) -> bool:
  """Whether this block is on disk as it was written."""
  for name, first, count, item, digest in (
    ('tokens.bin', block.first_token, block.tokens, _dtype(vocab), block.tokens_sha256),
    ('lengths.bin', block.first_document, block.documents, _LENGTH, block.lengths_sha256),
  ):
    try:
      with files.open(folder / name, 'rb') as file:
        file.seek(first * item.itemsize)
        if _sha256(file.read(count * item.itemsize)) != digest:
          return False
    except FileNotFoundError:
      return False
  return True


def _check(folder: Path, blocks: list[Block], texts: Texts, vocab: Vocab) -> None:
  """Compares sizes always, digests where the store is small or has changed since the last check; repairs damage."""
  documents, tokens = _extent(blocks)
  expected = {'tokens.bin': tokens * _dtype(vocab).itemsize, 'lengths.bin': documents * _LENGTH.itemsize}
  stamp = folder / 'checked.json'
  if (
    sum(expected.values()) > _ALWAYS_CHECKED
    and files.exists(stamp)
    and files.read_text(stamp) == _state(folder, expected)
  ):
    return
  for name, size in expected.items():
    path = folder / name
    with files.open(path, 'ab') as file:
      if (there := files.size(path)) != size:
        log.warning('%s has %d bytes instead of %d.', path, there, size)
        file.truncate(size)
  for block in blocks:
    if _is_intact(folder, block, vocab):
      continue
    last = block.first_document + block.documents
    where = f'documents {block.first_document}..{last - 1} of {folder}'
    log.warning('%s are damaged: tokenising them again.', where)
    ids, lengths = _encode([texts[index] for index in range(block.first_document, last)], vocab)
    if (_sha256(ids.tobytes()), _sha256(lengths.tobytes())) != (block.tokens_sha256, block.lengths_sha256):
      raise RuntimeError(
        f'{where} are damaged, and now give other tokens, although text and vocabulary have the same digests. '
        'Delete the folder and start again.'
      )
    _overwrite(folder / 'tokens.bin', block.first_token, ids)
    _overwrite(folder / 'lengths.bin', block.first_document, lengths)
  files.write_text(stamp, _state(folder, expected))


def _state(folder: Path, names: Iterable[str]) -> str:
  return json.dumps([(name, files.size(folder / name), files.modified_ns(folder / name)) for name in names])


def _overwrite(path: Path, first: int, array: np.ndarray) -> None:
  with files.open(path, 'r+b') as file:
    file.seek(first * array.itemsize)
    file.write(array.tobytes())
    files.flush_to_disk(file)


def _read_manifest(folder: Path) -> list[Block] | None:
  try:
    return [Block(*block) for block in files.read_json(folder / 'manifest.json')['blocks']]
  except FileNotFoundError:
    return None
  except (ValueError, KeyError, TypeError) as error:
    log.warning('%s/manifest.json is damaged (%s): tokenising again.', folder, error)
    return None


def _encode(documents: Sequence[str], vocab: Vocab) -> tuple[np.ndarray, np.ndarray]:
  """Their ids end to end, and uint32 tokens of each."""
  encoded = vocab.encode_batch(documents)
  lengths = np.fromiter(map(len, encoded), _LENGTH, len(encoded))
  ids = np.fromiter(itertools.chain.from_iterable(encoded), _dtype(vocab), int(lengths.sum()))
  return ids, lengths


def _blocks(texts: Texts, first: int) -> Iterator[list[str]]:
  """The documents from `first` on, in blocks of bounded size; where a block ends does not depend on earlier blocks."""
  block: list[str] = []
  characters = 0
  for index in range(first, len(texts)):
    block.append(texts[index])
    characters += len(block[-1])
    if characters >= _BLOCK_CHARACTERS or len(block) == _BLOCK_DOCUMENTS:
      yield block
      block, characters = [], 0
  if block:
    yield block


def _extent(blocks: Sequence[Block]) -> tuple[int, int]:
  """Total number of documents and of tokens."""
  return sum(block.documents for block in blocks), sum(block.tokens for block in blocks)


@contextlib.contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[int, int], None]]:
  """Yields a function of (documents, tokens) that shows progress: a bar on a terminal, lines of the log elsewhere."""
  console = rich.console.Console(stderr=True)
  start = reported = time.monotonic()
  tokens = 0
  columns = (*rich.progress.Progress.get_default_columns(), rich.progress.TextColumn('{task.fields[rate]}'))
  with rich.progress.Progress(*columns, console=console, disable=not console.is_terminal) as bar:
    task = bar.add_task('Tokenising', total=total, completed=done, rate='')

    def advance(documents: int, count: int) -> None:
      nonlocal done, tokens, reported
      done, tokens, now = done + documents, tokens + count, time.monotonic()
      rate = f'{tokens / max(now - start, 1e-3) / 1e6:.2f} M tokens/s'
      bar.update(task, completed=done, rate=rate)
      if not console.is_terminal and (now - reported > _REPORT_SECONDS or done == total):
        log.info('Tokenising: %d of %d documents, %s.', done, total, rate)
        reported = now

    yield advance


def _digest(texts: Texts, vocab: Vocab) -> str:
  return digest_of('tokens', _FORMAT, texts.digest, vocab.digest)


def _dtype(vocab: Vocab) -> np.dtype:
  return np.dtype(np.uint16 if vocab.size <= 2**16 else np.uint32)


def _offsets(lengths: np.ndarray) -> np.ndarray:
  return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def _sha256(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()
