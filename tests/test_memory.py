"""Small files that hold gigabytes: every reader stays within `max_bytes`."""

import gzip
import json
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from plm_jax.data.corpora import sources
from tests import conftest

LIMIT = 2**23  # 8 MiB; the bombs hold 128 MiB
WORD = 'x' * 2**20
COUNT = 128


def repeated(folder: pathlib.Path) -> pathlib.Path:
  return written(folder, {'text': [WORD] * COUNT})


def listed(folder: pathlib.Path) -> pathlib.Path:
  return written(folder, {'text': ['a'], 'words': [[WORD] * COUNT]})


def in_structs(folder: pathlib.Path) -> pathlib.Path:
  return written(folder, {'text': ['a'], 'answers': [{'text': [{'word': WORD}] * COUNT}]})


def beginnings(folder: pathlib.Path) -> pathlib.Path:
  texts = [f'{WORD}{number}' for number in range(COUNT)]
  return written(folder, {'text': texts}, use_dictionary=False, column_encoding={'text': 'DELTA_BYTE_ARRAY'})


def zeros(folder: pathlib.Path) -> pathlib.Path:
  return written(folder, {'label': np.zeros(2**24, int)})


def pages(folder: pathlib.Path) -> pathlib.Path:
  return written(folder, {'text': [WORD * COUNT]}, use_dictionary=False)


def denied(folder: pathlib.Path) -> pathlib.Path:
  """Write the sizes of `pages` as small ones, by numbers with needless digits."""
  file = pages(folder)
  content, small = file.read_bytes(), b'\xd4\x80\x80\x80\x00'
  for size in (COUNT * 2**20 + size for size in range(200)):
    content = content[:200] + content[200:].replace(varint(2 * size), small)  # the footer; the page keeps its own
  file.write_bytes(content)
  return file


def varint(number: int) -> bytes:
  return bytes([*((number >> shift) & 127 | 128 for shift in (0, 7, 14, 21)), number >> 28])


def zipped_lines(folder: pathlib.Path) -> pathlib.Path:
  return zipped(folder / 'a.txt.gz', b'a line of text\n')


def zipped_vectors(folder: pathlib.Path) -> pathlib.Path:
  return zipped(folder / 'a.vec.gz', b'0.5 ' * 1024)


def zipped_binary_word(folder: pathlib.Path) -> pathlib.Path:
  return zipped(folder / 'a.bin.gz', b'x' * 1024, head=b'2 4\n')


def zipped_binary_line(folder: pathlib.Path) -> pathlib.Path:
  return zipped(folder / 'a.bin.gz', b'1' * 1024)


def zipped_binary_row(folder: pathlib.Path) -> pathlib.Path:
  return zipped(folder / 'a.bin.gz', b'x' * 1024, head=b'2 100000000\na ')


def zipped(file: pathlib.Path, piece: bytes, head: bytes = b'') -> pathlib.Path:
  file.write_bytes(gzip.compress(head) + gzip.compress(piece * 2**14) * (COUNT * 2**20 // (len(piece) * 2**14)))
  return file


def written(folder: pathlib.Path, columns: dict[str, Any], **form: Any) -> pathlib.Path:
  pyarrow = pytest.importorskip('pyarrow')
  from pyarrow import parquet

  table = pyarrow.table(columns)
  parquet.write_table(
    table, folder / 'a.parquet', compression='zstd', row_group_size=2**24, write_statistics=False, **form
  )
  return folder / 'a.parquet'


BOMBS: tuple[Callable[[pathlib.Path], pathlib.Path], ...] = (
  repeated, listed, in_structs, beginnings, zeros, pages, denied, zipped_lines, zipped_vectors, zipped_binary_word,
  zipped_binary_line, zipped_binary_row,
)  # fmt: skip
READ = """
import json, resource, sys
from plm_jax.data.corpora import sources
from plm_jax.weights import word_vectors
from pyarrow import parquet
said = {}
for name, file in json.loads(sys.argv[1]).items():
  before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  try:
    if word_vectors.is_vectors(file) and '.txt' not in file:
      word_vectors.read(file)
    else:
      sources.open_source(file, cache=sys.argv[2], max_bytes=int(sys.argv[3]))[0]
    said[name] = 'read'
  except ValueError as error:
    said[name] = str(error)
  said[name] = said[name], 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
print(json.dumps(said))
"""


def test_small_files_that_hold_gigabytes(tmp_path: pathlib.Path) -> None:
  """Before, each took the 128 MiB or more, and a parquet file of 23 kB 3.1 GiB."""
  files = {}
  for bomb in BOMBS:
    (tmp_path / bomb.__name__).mkdir()
    files[bomb.__name__] = str(bomb(tmp_path / bomb.__name__))
    assert pathlib.Path(files[bomb.__name__]).stat().st_size < 2**20
  command = [sys.executable, '-c', READ, json.dumps(files), str(tmp_path / 'cache'), str(LIMIT)]
  child = subprocess.run(command, cwd=conftest.ROOT, capture_output=True, text=True, check=False)
  assert child.returncode == 0, child.stderr
  for name, (said, grown) in json.loads(child.stdout).items():
    assert files[name] in said, name
    assert grown < 6 * LIMIT, (name, grown)


def test_a_group_that_fits_is_read_whatever_its_pages_are(tmp_path: pathlib.Path) -> None:
  rows = {
    'text': [' '.join(['word'] * (n % 7)) if n % 5 else None for n in range(500)],
    'label': [n % 3 for n in range(500)],
    'words': [[str(i) for i in range(n % 4)] for n in range(500)],
    'answers': [{'text': ['a'] * (n % 3), 'start': [1] * (n % 3)} for n in range(500)],
  }
  forms = (
    {},
    {'use_dictionary': False},
    {'data_page_version': '2.0'},
    {'data_page_size': 64},
    {'write_page_checksum': True},
  )
  delta = {'use_dictionary': False, 'column_encoding': {'text': 'DELTA_BYTE_ARRAY'}}
  for index, form in enumerate((*forms, delta)):
    (tmp_path / str(index)).mkdir()
    file = written(tmp_path / str(index), rows, **form)
    records = sources.open_source(str(file), cache=str(tmp_path / 'cache'), max_bytes=2**20)
    assert [dict(records[n]) for n in range(500)] == [{key: rows[key][n] for key in rows} for n in range(500)]
