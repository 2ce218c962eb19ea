"""One pass over a corpus: each document is written to a file of the new corpus, or dropped for a reason.

    OUT/train.jsonl ...     the rows that are kept
    OUT/left_out.jsonl      index of the row, reason, and the row or set that it copies
    OUT/corpus.json         the request, counts, sizes and checksums; written last, so a folder with it is complete
    OUT/.pass.sqlite        progress of the pass, removed at its end

Files are flushed and the database is committed every `TOGETHER` rows, and when the pass should stop. After a kill,
files are cut back to the last commit, and the pass continues to the same bytes. Each commit holds checksums of the
files and of the database, which are compared before a pass continues. A row whose text is null is dropped. A complete
folder is unchanged if the request, the source and the files are the same; otherwise an error names the difference.
"""

import contextlib
import hashlib
import json
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora.records import PROGRESS, REPORT, Texts
from plm_jax.io import checksums, files, run_paths

log = logging.getLogger(__name__)

TOGETHER = 500
AT_ONCE = 8  # rows between two calls of `stops`
NO_TEXT = 'no_text'
LEFT_OUT = 'left_out'
LOCK = '.lock'
# keys of every report, with their types
KEPT = {
  'asked': dict, 'read': int, 'kept': dict, 'kept_chars': dict, 'dropped': dict, 'bytes': dict, 'sha256': dict
}  # fmt: skip
SOURCE_DIGEST, SET_DIGESTS = 'source_digest', 'against_digests'  # keys of a request
SEAL = 'seal'  # key of the state with the checksum of all other keys


class Verdict(NamedTuple):
  """Decision about a document."""

  split: str  # the file that it is written to; '' for none
  text: str  # the text that is kept
  reason: str = ''  # reason for dropping it
  copies: int | str | None = None  # the earlier row or the set that it copies


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
  """Read all documents once and write the new corpus.

  A complete folder of the same request is unchanged; another request for it is an error. `make_judge` builds the judge
  from the open database, which it may use for its own data. `splits` are the files that documents may be written to.
  `asked` is the request as plain data, by the names of flags; its value of `SET_DIGESTS` is the digests of evaluation
  sets, by name. `more` gives additions to the report from the database after the pass.

  `tell` is called with the number of rows since the last call; it may stop the pass by raising. `stops` is called every
  few rows; it returns True if `tell` would raise, so that it is called at once.

  Returns the content of `corpus.json`. Raises ConfigError if the folder holds something else, is damaged, or is a file.
  """
  folder = files.local_path(out, what='OUT')
  check_out(folder)
  request, names = {**asked, SOURCE_DIGEST: texts.digest}, (*splits, LEFT_OUT)
  if (report := _report(folder, request, names)) is not None:
    return report
  files.make_named_folder(folder, name='OUT')
  with files.locked(folder / LOCK, doing='preparing a corpus'):
    if (report := _report(folder, request, names)) is not None:  # written by the process that held the lock before
      return report
    with _open(folder / PROGRESS) as (database, sums):
      judge = make_judge(database)
      _watch(database, sums)
      written = _read(texts, folder, database, judge, sums, names=names, request=request, tell=tell, stops=stops)
      counts = {key: _state(database, key, {}) for key in ('read', 'kept', 'kept_chars', 'dropped')}
      report = {'asked': request, **counts, **more(database)}
    report['bytes'] = {f'{name}.jsonl': files.size(folder / f'{name}.jsonl') for name in names}
    report['sha256'] = {f'{name}.jsonl': digest for name, digest in written.items()}
    for name in names:
      _check_file(folder / f'{name}.jsonl', report)
    report['sha256'][REPORT] = _seal_of(report)
    files.write_json(folder / REPORT, report)
    files.remove(folder / PROGRESS)
  return report


def check_out(out: files.Where) -> None:
  """Raise ConfigError for a file, or a folder with other files."""
  folder = files.local_path(out, what='OUT')
  if not files.exists(folder / REPORT):  # nothing is written to the folder of a complete pass
    run_paths.check_new_folder(folder, name='OUT')
  names = {file.name for file in files.listing(folder)} - {LOCK} if files.is_folder(folder) else set()
  if names and not names & {REPORT, PROGRESS}:
    raise ConfigError(f'{folder} holds other files: name another folder')


def _report(folder: Path, request: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any] | None:
  """Return a complete report or None; raise ConfigError if different or damaged."""
  if not files.is_file(folder / REPORT):
    return None
  try:
    report: Any = files.read_json(folder / REPORT)
    if isinstance(report, dict):
      report = {'bytes': {}, **report}  # missing in folders of earlier versions
    if not isinstance(report, dict) or not all(isinstance(report.get(key), kind) for key, kind in KEPT.items()):
      raise ValueError('keys are missing')
    if report['sha256'].get(REPORT, _seal_of(report)) != _seal_of(report):  # missing in those of earlier versions
      raise ValueError('its sha256 is not that of its content')
  except ValueError as error:
    raise _damaged(folder / REPORT, error) from None
  _agree(report['asked'], request, folder)
  for name in names:
    _check_file(folder / f'{name}.jsonl', report)
  log.info(f'nothing to do: {folder} was made by the same request')
  return report


def _seal_of(report: Mapping[str, Any]) -> str:
  of_files = {name: digest for name, digest in report['sha256'].items() if name != REPORT}
  return checksums.digest_of_plain({**report, 'sha256': of_files})


def _check_file(file: Path, report: Mapping[str, Any]) -> None:
  fix = f'or remove the folder {file.parent} to begin again'
  if not files.is_file(file):
    raise ConfigError(f'{file} is missing: put it back, {fix}')
  size = report['bytes'].get(file.name, files.size(file))
  if size != files.size(file) or files.sha256(file) != report['sha256'].get(file.name):
    raise ConfigError(f'{file} is changed (its sha256 differs from {REPORT}): put the old file back, {fix}')


def _damaged(file: Path, error: Exception) -> ConfigError:
  return ConfigError(f'{file} is damaged ({error}): remove the folder {file.parent} to begin again')


@contextlib.contextmanager
def _open(file: Path) -> Any:
  """Provide the checked database and the sums of its tables."""
  with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
    sums = _checked(database, file)
    try:
      database.executescript(
        'pragma journal_mode = delete; pragma synchronous = full; pragma cache_size = -65536;'
        'create table if not exists state (key text primary key, value text);'
      )
      yield database, sums
    except sqlite3.DatabaseError as error:
      if type(error) is not sqlite3.DatabaseError:  # its subclasses report full disks, locks and errors in code
        raise
      raise _damaged(file, error) from None


def _agree(old: Mapping[str, Any], new: Mapping[str, Any], folder: Path) -> None:
  """Raise ConfigError if a request differs, comparing flags before data."""
  plain = json.loads(json.dumps(new))
  for key in {**plain, **old}:
    if key in (SOURCE_DIGEST, SET_DIGESTS) or (key == 'text' and key not in old):  # earlier versions: in the digest
      continue
    if old.get(key) != plain.get(key):
      raise ConfigError(
        f'{folder} was made {_flag(key, old.get(key))}, and this command is {_flag(key, plain.get(key))}: name '
        'another folder'
      )
  fix = f'name another folder, or remove {folder} to begin again'
  if old.get(SOURCE_DIGEST) != plain[SOURCE_DIGEST]:
    other = '' if 'text' in old else f' (or it was made with another field than --text={plain.get("text")})'
    raise ConfigError(f'SOURCE={plain.get("source")} has changed since {folder} was made from it{other}: {fix}')
  for name, digest in plain.get(SET_DIGESTS, {}).items():
    old_digest = old.get(SET_DIGESTS, {}).get(name)
    if old_digest is None:  # a folder of an earlier version
      raise ConfigError(f'--against: the content of {name} when {folder} was made is unknown: {fix}')
    if old_digest != digest:
      raise ConfigError(f'--against: {name} has changed since {folder} was made: {fix}')


def _flag(key: str, value: Any) -> str:
  flag = {'command': 'command', 'source': 'SOURCE'}.get(key, f'--{key}')
  if value in (None, []):
    return f'without {flag}'
  return f'with {flag}={" ".join(map(str, value)) if isinstance(value, list) else value}'


def _state(database: sqlite3.Connection, key: str, default: Any) -> Any:
  value = database.execute('select value from state where key = ?', (key,)).fetchone()
  return default if value is None else files.parse_json(value[0])


def _save(database: sqlite3.Connection, **values: Any) -> None:
  for key, content in values.items():
    database.execute('insert or replace into state values (?, ?)', (key, json.dumps(content)))


def _read(
  texts: Texts,
  folder: Path,
  database: sqlite3.Connection,
  judge: Judge,
  sums: Mapping[str, int],
  *,
  names: tuple[str, ...],
  request: Mapping[str, Any],
  tell: Callable[[int], None],
  stops: Callable[[], bool],
) -> dict[str, str]:
  """Judge the documents that are left; return the checksums of the files."""
  if (old_request := _state(database, 'asked', None)) is None:
    _save(database, asked=dict(request))  # before the first file exists
  else:
    _agree(old_request, request, folder)
  done, sizes = _state(database, 'read', 0), _state(database, 'sizes', dict.fromkeys(names, 0))
  zero = {'kept': dict.fromkeys(names[:-1], 0), 'kept_chars': dict.fromkeys(names[:-1], 0), 'dropped': {}}
  kept_rows, chars, dropped = (Counter({**begin, **_state(database, key, {})}) for key, begin in zero.items())
  with contextlib.ExitStack() as stack:
    streams = {name: stack.enter_context(_cut_back(folder / f'{name}.jsonl', sizes[name])) for name in names}
    hashes = {name: _hash_of(folder / f'{name}.jsonl') for name in names}
    for name, digest in _state(database, 'sha256', {}).items():
      if hashes[name].hexdigest() != digest:
        raise _damaged(folder / f'{name}.jsonl', ValueError('its sha256 is not that of what was written'))
    tell(done)
    began, read = time.monotonic(), done
    while read < len(texts):
      start, stop = read, min(read + TOGETHER, len(texts))
      database.execute('begin')
      for row in range(start, stop):
        if row % AT_ONCE == 0 and row > start and stops():
          break
        text = text_of(texts, row)
        verdict = Verdict('', '', NO_TEXT) if text is None else judge(row, text)
        if verdict.split:
          kept_rows[verdict.split] += 1
          chars[verdict.split] += len(verdict.text)
          line: dict[str, Any] = {'text': verdict.text}
        else:
          dropped[verdict.reason] += 1
          line = {'row': row, 'reason': verdict.reason, 'copies': verdict.copies}
        written = json.dumps(line, ensure_ascii=False) + '\n'
        streams[verdict.split or LEFT_OUT].write(written)
        hashes[verdict.split or LEFT_OUT].update(written.encode())
        read = row + 1
      for stream in streams.values():
        files.flush_to_disk(stream)
      sizes = {name: stream.tell() for name, stream in streams.items()}
      digests = {name: one.hexdigest() for name, one in hashes.items()}
      _save(
        database, read=read, sizes=sizes, kept=kept_rows, kept_chars=chars, dropped=dropped, sha256=digests, tables=sums
      )
      _save(database, **{SEAL: _seal(database)})
      database.execute('commit')
      tell(read - start)
  log.info(f'{len(texts) - done:,} documents in {time.monotonic() - began:.1f} s')
  return {name: one.hexdigest() for name, one in hashes.items()}


def _hash_of(file: Path) -> Any:
  with files.open(file, 'rb') as stream:
    return hashlib.file_digest(stream, 'sha256')  # type: ignore[arg-type]  # `open` gives BufferedIOBase


def _row_hash(values: Sequence[Any]) -> int:
  return int.from_bytes(hashlib.blake2b(repr(tuple(values)).encode(), digest_size=16).digest(), 'little')


def _checked(database: sqlite3.Connection, file: Path) -> dict[str, int]:
  """Check the database; sum the hashes of each table's rows.

  Tables only grow, so that a sum does not depend on the order of rows. A pass of an earlier version has no checksums.
  """
  try:
    database.execute('begin immediate')  # a header may be damaged so that nothing can be written
    sound = database.execute('pragma integrity_check').fetchone() == ('ok',)
    tables = [table for (table,) in database.execute("select name from sqlite_master where type = 'table'")]
    rows = {table: database.execute(f'select * from {table}') for table in tables if table != 'state'}
    sums = {table: sum(map(_row_hash, of_table)) % 2**128 for table, of_table in rows.items()}
    seal = _state(database, SEAL, None) if tables else None
    if not sound or (seal is not None and (seal != _seal(database) or sums != _state(database, 'tables', {}))):
      raise ValueError('its checksum is not that of its content')
    database.execute('rollback')
  except (sqlite3.Error, ValueError) as error:
    raise _damaged(file, error) from None
  return sums


def _seal(database: sqlite3.Connection) -> str:
  state = database.execute('select * from state where key != ? order by key', (SEAL,)).fetchall()
  return checksums.digest_of_plain([state, database.execute('select sql from sqlite_master order by name').fetchall()])


def _watch(database: sqlite3.Connection, sums: dict[str, int]) -> None:
  """Add the hashes of new rows to `sums`."""

  def see(table: str, *values: Any) -> None:
    sums[table] = (sums.get(table, 0) + _row_hash(values)) % 2**128

  database.create_function('see', -1, see)
  tables = database.execute("select name from sqlite_master where type = 'table' and name != 'state'").fetchall()
  for (table,) in tables:
    sums.setdefault(table, 0)
    new = ', '.join(f'new.{column}' for _, column, *_ in database.execute(f'pragma table_info({table})'))
    database.execute(f"create temp trigger see_{table} after insert on {table} begin select see('{table}', {new}); end")


def text_of(texts: Texts, row: int) -> str | None:
  """Return a document; None if its field is null."""
  try:
    return texts[row]
  except ValueError:
    if texts.is_null(row):
      return None
    raise


@contextlib.contextmanager
def _cut_back(file: Path, size: int) -> Any:
  """Open a file for appending at the last commit, or raise ConfigError."""
  actual = files.size(file) if files.exists(file) else 0
  if actual < size:
    raise _damaged(file, ValueError(f'it had {size:,} bytes and has {actual:,}'))
  if actual:
    with files.open(file, 'r+b') as stream:
      stream.truncate(size)
  with files.open(file, 'a') as text:
    yield text
