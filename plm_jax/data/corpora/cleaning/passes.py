"""One pass over a corpus: each document goes into a file of the new corpus, or is left out for a reason.

    OUT/train.jsonl ...     the rows that stay
    OUT/left_out.jsonl      number of the row, reason, and the row or set that it copies
    OUT/corpus.json         what was asked, counts, sizes and digests; written last, so that a folder with it is whole
    OUT/.pass.sqlite        how far the pass came, removed at its end

Files grow and the database is committed every `TOGETHER` rows, and when the pass is asked to stop; one that was killed
cuts its files back to the last commit and goes on from there, to the same bytes. A row whose text is null is left out.
A folder that is whole is left as it is where the request, what was read and the files are those of before; what differs
is named.
"""

import contextlib
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora.records import PROGRESS, REPORT, Texts
from plm_jax.io import files, run_paths

log = logging.getLogger(__name__)

TOGETHER = 500
AT_ONCE = 8  # rows between two looks at whether to stop
NO_TEXT = 'no_text'
LEFT_OUT = 'left_out'
LOCK = '.lock'
# of every report
KEPT = {
  'asked': dict, 'read': int, 'kept': dict, 'kept_chars': dict, 'dropped': dict, 'bytes': dict, 'sha256': dict
}  # fmt: skip
SOURCE_DIGEST, SET_DIGESTS = 'source_digest', 'against_digests'  # keys of a request: of what was read


class Verdict(NamedTuple):
  """What becomes of a document.

  Attributes:
    split: the file that it goes into; empty for none.
    text: what is kept of it.
    reason: why it is left out.
    copies: the earlier row or the set that it copies.
  """

  split: str
  text: str
  reason: str = ''
  copies: int | str | None = None


Judge = Callable[[int, str], Verdict]


def run(
  texts: Texts,
  out: files.Where,
  make_judge: Callable[[sqlite3.Connection], Judge],
  *,
  splits: tuple[str, ...],
  asked: Mapping[str, Any],
  more: Callable[[sqlite3.Connection], Mapping[str, Any]] = lambda database: {},
  tell: Callable[[int], None] = lambda count: None,
  stops: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
  """Reads all documents once and writes the new corpus; a folder that is whole already is left as it is.

  Args:
    texts: of the old corpus.
    out: folder of the new one.
    make_judge: from the open database, in which it may keep what it needs.
    splits: the files that documents may go into.
    asked: what decides the result, as plain data, by the names of flags; another request for the same folder is
      refused. Below `SET_DIGESTS` it has the digests of evaluation sets, by name.
    more: for the report, of the database once all is read.
    tell: called with the number of rows that were read since the last call; it may stop the pass by raising.
    stops: asked every few rows whether `tell` would raise, so that it is called at once.

  Returns:
    What `corpus.json` holds.

  Raises:
    ConfigError: the folder holds something else, is damaged, or is a file.
  """
  folder = files.local_path(out, what='OUT')
  check_out(folder)
  request, names = {**asked, SOURCE_DIGEST: texts.digest}, (*splits, LEFT_OUT)
  if (report := _whole(folder, request, names)) is not None:
    return report
  files.make_named_folder(folder, name='OUT')
  with files.locked(folder / LOCK, doing='preparing a corpus'):
    if (report := _whole(folder, request, names)) is not None:  # made by the process that held the lock until now
      return report
    with _open(folder / PROGRESS) as database:
      judge = make_judge(database)
      _read(texts, folder, database, judge, names=names, request=request, tell=tell, stops=stops)
      report = {'asked': request, **_counts(database), **more(database)}
    report['bytes'] = {f'{name}.jsonl': files.size(folder / f'{name}.jsonl') for name in names}
    report['sha256'] = {f'{name}.jsonl': files.sha256(folder / f'{name}.jsonl') for name in names}
    files.write_json(folder / REPORT, report)
    files.remove(folder / PROGRESS)
  return report


def check_out(out: files.Where) -> None:
  """Raises ConfigError for a file, and for a folder with files of something else; of a pass, `run` looks closer."""
  folder = files.local_path(out, what='OUT')
  if not files.exists(folder / REPORT):  # of a pass that is done nothing is written again
    run_paths.check_new_folder(folder, name='OUT')
  there = {one.name for one in files.listing(folder)} - {LOCK} if files.is_folder(folder) else set()
  if there and not there & {REPORT, PROGRESS}:
    raise ConfigError(f'{folder} holds files that are not of such a pass: name another folder')


def _whole(folder: Path, request: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
  """The report of a folder that is whole; None of another one.

  Raises:
    ConfigError: the folder was made by another request, or its report or one of its files is missing or damaged.
  """
  if not files.is_file(folder / REPORT):
    return None
  try:
    report: Any = files.read_json(folder / REPORT)
    if isinstance(report, dict):
      report = {'bytes': {}, **report}  # which folders of before do not have
    if not isinstance(report, dict) or not all(isinstance(report.get(key), kind) for key, kind in KEPT.items()):
      raise ValueError('it does not hold what a pass writes')
  except ValueError as error:
    raise _damaged(folder / REPORT, error) from None
  _agree(report['asked'], request, folder)
  for name in names:
    _check_file(folder / f'{name}.jsonl', report)
  log.info(f'nothing to do: {folder} was made by the same request')
  return report


def _check_file(file: Path, report: Mapping[str, Any]) -> None:
  """Raises ConfigError where a file is missing, or is not the one whose size and digest the report has."""
  cure = f'or remove the folder {file.parent}; the pass begins again'
  if not files.is_file(file):
    raise ConfigError(f'{file} is missing: put it back, {cure}')
  size = report['bytes'].get(file.name, files.size(file))
  if size != files.size(file) or files.sha256(file) != report['sha256'].get(file.name):
    raise ConfigError(
      f'{file} is not as the pass wrote it (its sha256 is not the one in {REPORT}): put what was there back, {cure}'
    )


def _damaged(file: Path, error: Exception) -> ConfigError:
  return ConfigError(f'{file} is damaged ({error}): remove the folder {file.parent}; the pass begins again')


@contextlib.contextmanager
def _open(file: Path) -> Any:
  """The database of a pass.

  Raises:
    ConfigError: the file is damaged, which SQLite may find at any use of it.
  """
  with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
    try:
      database.executescript(
        'pragma journal_mode = delete; pragma synchronous = full; pragma cache_size = -65536;'
        'create table if not exists state (key text primary key, value text);'
      )
      yield database
    except sqlite3.DatabaseError as error:
      if type(error) is not sqlite3.DatabaseError:  # its subclasses are of full disks, locks and mistakes in code
        raise
      raise _damaged(file, error) from None


def _agree(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
  """Raises ConfigError where a request is not the old one, first by its flags, then by what they name."""
  plain = json.loads(json.dumps(new))
  for key in {**plain, **old}:
    if key in (SOURCE_DIGEST, SET_DIGESTS) or (key == 'text' and key not in old):  # of before: in the digest alone
      continue
    if old.get(key) != plain.get(key):
      raise ConfigError(
        f'{folder} was made {_flag(key, old.get(key))}, and is asked for {_flag(key, plain.get(key))} now: name '
        'another folder'
      )
  cure = f'name another folder, or remove {folder}; the pass begins again'
  if old.get(SOURCE_DIGEST) != plain[SOURCE_DIGEST]:
    other = '' if 'text' in old else f' (or it was made with another field than --text={plain.get("text")})'
    raise ConfigError(f'SOURCE={plain.get("source")} has changed since {folder} was made from it{other}: {cure}')
  for name, digest in plain.get(SET_DIGESTS, {}).items():
    known = old.get(SET_DIGESTS, {}).get(name)
    if known is None:  # a folder of before
      raise ConfigError(f'--against: what {name} held when {folder} was made is not known: {cure}')
    if known != digest:
      raise ConfigError(f'--against: {name} has changed since {folder} was made: {cure}')


def _flag(key: str, value: Any) -> str:
  """A part of a request in the words of a command line."""
  flag = {'command': 'command', 'source': 'SOURCE'}.get(key, f'--{key}')
  if value in (None, []):
    return f'without {flag}'
  return f'with {flag}={" ".join(map(str, value)) if isinstance(value, list) else value}'


def _state(database: sqlite3.Connection, key: str, default: Any) -> Any:
  found = database.execute('select value from state where key = ?', (key,)).fetchone()
  return default if found is None else files.parse_json(found[0])


def _keep(database: sqlite3.Connection, **values: Any) -> None:
  for key, value in values.items():
    database.execute('insert or replace into state values (?, ?)', (key, json.dumps(value)))


def _counts(database: sqlite3.Connection) -> dict[str, Any]:
  return {key: _state(database, key, {}) for key in ('read', 'kept', 'kept_chars', 'dropped')}


def _read(
  texts: Texts,
  folder: Path,
  database: sqlite3.Connection,
  judge: Judge,
  *,
  names: tuple[str, ...],
  request: Mapping[str, Any],
  tell: Callable[[int], None],
  stops: Callable[[], bool],
) -> None:
  if (asked := _state(database, 'asked', None)) is None:
    _keep(database, asked=dict(request))  # before the first file is there
  else:
    _agree(asked, request, folder)
  done, sizes = _state(database, 'read', 0), _state(database, 'sizes', dict.fromkeys(names, 0))
  none = {'kept': dict.fromkeys(names[:-1], 0), 'kept_chars': dict.fromkeys(names[:-1], 0), 'dropped': {}}
  kept, chars, dropped = (Counter({**begin, **_state(database, key, {})}) for key, begin in none.items())
  with contextlib.ExitStack() as stack:
    streams = {name: stack.enter_context(_cut_back(folder / f'{name}.jsonl', sizes[name])) for name in names}
    tell(done)
    began = time.monotonic()
    read = done
    while read < len(texts):
      start, stop = read, min(read + TOGETHER, len(texts))
      database.execute('begin')
      for number in range(start, stop):
        if number % AT_ONCE == 0 and number > start and stops():
          break
        text = text_of(texts, number)
        verdict = Verdict('', '', NO_TEXT) if text is None else judge(number, text)
        if verdict.split:
          kept[verdict.split] += 1
          chars[verdict.split] += len(verdict.text)
          line: dict[str, Any] = {'text': verdict.text}
        else:
          dropped[verdict.reason] += 1
          line = {'row': number, 'reason': verdict.reason, 'copies': verdict.copies}
        streams[verdict.split or LEFT_OUT].write(json.dumps(line, ensure_ascii=False) + '\n')
        read = number + 1
      for stream in streams.values():
        files.flush_to_disk(stream)
      sizes = {name: stream.tell() for name, stream in streams.items()}
      _keep(database, read=read, sizes=sizes, kept=kept, kept_chars=chars, dropped=dropped)
      database.execute('commit')
      tell(read - start)
  log.info(f'{len(texts) - done:,} documents in {time.monotonic() - began:.1f} s')


def text_of(texts: Texts, number: int) -> str | None:
  """A document; None where its field is null."""
  try:
    return texts[number]
  except ValueError:
    if texts.is_null(number):
      return None
    raise


@contextlib.contextmanager
def _cut_back(file: Path, size: int) -> Any:
  """A file to append to, without what was written behind the last commit.

  Raises:
    ConfigError: it holds less than was written by then.
  """
  there = files.size(file) if files.exists(file) else 0
  if there < size:
    raise _damaged(file, ValueError(f'it had {size:,} bytes and has {there:,}'))
  if there:
    with files.open(file, 'r+b') as stream:
      stream.truncate(size)
  with files.open(file, 'a') as text:
    yield text
