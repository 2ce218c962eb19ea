"""Preparation of data without an accelerator: the engine of `plm-jax prepare`.

With a shared folder or remote location, hosts reuse what one of them made. Files there are named by their digest, the
last file marks them as complete, and they are compared with their digests when opened, like the cache.
"""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.core.errors import RunError
from plm_jax.core.types import Source
from plm_jax.data import made
from plm_jax.data.made import Made
from plm_jax.data.rows import in_place
from plm_jax.io import downloads, files
from plm_jax.io.files import Where
from plm_jax.text import published
from plm_jax.training import feed
from plm_jax.training.before import from_data, preflight
from plm_jax.training.parts import Parts, make_parts, make_source, make_vocab

log = logging.getLogger(__name__)

# what a shared place keeps -> its files, the one that says that it is whole last; '' is the thing itself
SHARED = {
  'tokens': ('lengths.bin', 'tokens.bin', 'manifest.json'),
  'pairs of words': ('triples.bin', 'manifest.json'),
  'rows': ('',),
}

LARGEST_VOCAB = 10**8  # bytes


class Line(NamedTuple):
  """A file set that the examples of a block are made from."""

  place: str  # of the block in the config, such as 'eval.test.data'
  state: str  # 'there', 'made' or 'taken' from the shared place; 'in memory' where it is not kept
  made: Made


class Prepared(NamedTuple):
  """Everything prepared for a run; `facts` are the digests of `data.json`."""

  lines: list[Line]
  facts: dict[str, str]


def prepare(
  settings: Mapping[str, Any],
  *,
  shared: Where | None = None,
  part: tuple[int, int] | None = None,
  reads_in_place: bool = False,
) -> Prepared:
  """Make the token stores and tables of a run in `data.cache`.

  Complete ones are kept. Several processes may call it, and any may be killed: unfinished files have other names, or a
  journal. Raises ConfigError: there is no vocabulary, or no text; a split of any block is missing, which is said before
  anything is made; something is to be left in a shared place that cannot be written to; and as `parts.make_source`.

  Args:
    shared: where what is missing is taken from, and what was made is left; None for nowhere.
    part: a worker and the number of workers, of which each tokenises a part of each text; None to join the parts.
    reads_in_place: whether ids of tokens stay in the shared place, and training reads them there.
  """
  settings = from_data.filled(settings)
  vocab = make_vocab(settings)
  parts = make_parts(settings, vocab)
  preflight.look(config.of_data(settings), preflight.with_evaluations(settings, parts))  # before hours of tokenising
  lines: list[Line] = []
  facts = {}
  for place, block in config.of_data(settings).items():
    source, found = _opened(place, block, settings, parts, shared=shared, part=part, reads_in_place=reads_in_place)
    lines += found
    if place == 'data' and source is not None:
      facts = {
        'data_digest': source.digest,
        'vocab_digest': vocab.digest,
        'first_ten_batches': feed.first_batches_digest(source),
      }
  if parts.second_vocab is not None:
    facts['second_vocab_digest'] = parts.second_vocab.digest
  return Prepared(lines, facts)


def digests(settings: Mapping[str, Any], *, makes: bool) -> Iterator[tuple[str, str]]:
  """Return the digests that `data.json` of a run would have.

  Raises made.Unmade: it is not there, and `makes` says that it is not made; ConfigError: as `prepare`.

  Args:
    makes: whether what the rows are made from is made where it is not there.
  """
  settings = from_data.filled(settings)
  vocab = make_vocab(settings)
  yield 'vocab_digest', vocab.digest
  parts = make_parts(settings, vocab)
  if parts.second_vocab is not None:
    yield 'second_vocab_digest', parts.second_vocab.digest
  with made.watching(makes=makes):
    source = make_source(settings['data'], vocab, seed=settings['seed'], reader=parts)
  yield 'data_digest', source.digest


def _opened(
  place: str, block: Mapping[str, Any], settings: Mapping[str, Any], parts: Parts, **at: Any
) -> tuple[Source | None, list[Line]]:
  """Open a block, or make its part (None); `at` as for `prepare`."""
  shared: Where | None = at['shared']

  def make() -> Source:
    return make_source(block, parts.vocab, seed=settings['seed'], reader=parts, where=place)

  taken: set[Path | None] = set()
  renewed: set[Path | None] = set()  # what was made, or repaired, in this call
  while shared is not None:
    try:
      with made.watching(makes=False) as told:
        make()
      break
    except made.Unmade as unmade:
      if unmade.made.folder in taken or not _take(unmade.made, block, shared, reads_in_place=at['reads_in_place']):
        files.check_writable(shared, name='--shared')  # before it is made, which may take hours
        if at['part'] is None:
          _take_parts(unmade.made, block, shared)
        break
      taken.add(unmade.made.folder)
    except RunError:
      stores = [one.folder for one in told if one.what == 'tokens' and one.folder is not None]
      gone = [folder for folder in stores if (ids := in_place.location(folder)) and not files.is_file(ids)]
      for folder in gone:  # taken or made again
        files.remove(folder / 'manifest.json')
      if not gone:
        raise
    finally:
      renewed |= {one.folder for one in told if not one.found}
  try:
    with made.watching(part=at['part']) as told:
      source: Source | None = make()
  except made.Partial as partial:
    source, told = None, [partial.made]
  renewed |= {one.folder for one in told if not one.found}
  if shared is not None:
    for one in told:
      _leave(one, block, shared, replaces=one.folder in taken & renewed)
  return source, [Line(place, _state(one, taken=taken, renewed=renewed), one) for one in told]


def _state(one: Made, *, taken: set[Path | None], renewed: set[Path | None]) -> str:
  if one.folder is None:
    return 'in memory'
  return 'made' if one.folder in renewed else 'taken' if one.folder in taken else 'there'


def share_vocab(settings: Mapping[str, Any], shared: Where | None) -> None:
  """Copy vocabularies from the shared place, or to it, whichever lacks them.

  They are stored there under `vocab.path`. A folder that also holds weights is not copied.
  """
  for block in (settings['vocab'], settings['second_vocab']):
    if shared is None or block is None or files.is_address(path := files.path(block['path'])):
      continue
    there = files.path(shared) / 'vocab' / str(path).lstrip('/')
    for source, target in ((there, path), (path, there)):
      last = published.find(source)
      if last and not published.find(target) and sum(files.sizes_below(source).values()) < LARGEST_VOCAB:
        if target == there:
          files.check_writable(shared, name='--shared')
        for file in sorted(files.files_below(source) or [source], key=lambda file: file == last):
          _copy(file, target / file.relative_to(source))
        log.info('%s: copied to %s', source, target)


def _take(one: Made, block: Mapping[str, Any], shared: Where, *, reads_in_place: bool) -> bool:
  """Copy from the shared place to the cache; False if not possible."""
  there = _in_shared(one, block, shared)
  if one.folder is None or there is None or not files.is_file(there / SHARED[one.what][-1]):
    return False
  own = one.folder if one.what != 'rows' else one.folder.parent
  lock = own / 'lock' if one.what != 'rows' else one.folder.with_suffix('.lock')  # of who makes it
  with files.locked(lock, doing='making it'):
    for name in SHARED[one.what]:
      if reads_in_place and name == 'tokens.bin':
        files.write_json(one.folder / in_place.FILE, {'tokens': str(files.absolute(there / name))})
      else:
        if name == 'tokens.bin':
          files.remove(one.folder / in_place.FILE)  # of a call with --in_place
        _bring(there / name, one.folder / name)
    if one.what == 'tokens':
      files.remove(own / 'blocks.jsonl')  # of a store that was under way
  log.info('%s: taken from %s', one.folder, there)
  return True


def _take_parts(one: Made, block: Mapping[str, Any], shared: Where) -> None:
  """Copy the parts of a store, which joining them removes."""
  if one.what == 'tokens' and one.folder is not None and (there := _in_shared(one, block, shared)) is not None:
    for mark in files.listing(there, 'parts/*/manifest.json'):
      for name in SHARED[one.what]:
        _bring(mark.parent / name, one.folder / 'parts' / mark.parent.name / name)


def _bring(source: Path, target: Path) -> None:
  """Copy a file to the cache, resuming an interrupted download."""
  if files.is_address(source):
    downloads.fetched_file(source, target.parent, target.name)
  else:
    _copy(source, target)


def _leave(one: Made, block: Mapping[str, Any], shared: Where, *, replaces: bool) -> None:
  """Copy from the cache to the shared place, unless sound there."""
  there = _in_shared(one, block, shared)
  if one.folder is None or there is None or files.exists(one.folder / in_place.FILE):
    return
  last = there / SHARED[one.what][-1]
  if files.is_file(last):
    if not replaces:
      return
    log.warning('%s is damaged, and replaced', there)
    if last != there:
      files.remove(last)  # no host takes files that are being changed
  for name in SHARED[one.what]:
    _copy(one.folder / name, there / name)
  files.remove_folder(there / 'parts')
  log.info('%s: left in %s', one.folder, there)


def _in_shared(one: Made, block: Mapping[str, Any], shared: Where) -> Path | None:
  cache = files.path(block.get('cache') or '')
  if one.what not in SHARED or one.folder is None or cache not in one.folder.parents:
    return None
  return files.path(shared) / one.folder.relative_to(cache)


def _copy(source: Path, target: Path) -> None:
  files.make_folder(target.parent)
  with files.replacing(target) as temporary:
    files.copy(source, temporary)
