"""Make the English text that the small tables are pre-trained on: classic books and paragraphs of Wikipedia."""

import hashlib
import logging
from pathlib import Path

from plm_jax.core.errors import ConfigError
from plm_jax.data.corpora import local
from plm_jax.io import files

log = logging.getLogger(__name__)

# file -> its parts, joined by an empty line, and the sha256 of the text that the committed tables are made from
BOOKS, BOTH = ('classic_books/validation.txt',), ('classic_books/train.txt', 'english_wiki/train.txt')
TEXTS = {
  'validation.txt': (BOOKS, 'bd8491991b4dff0bd0fe6444bd41a7b196f63b47dea41142ee3697481d844725'),
  'train.txt': (BOTH, 'cf0dba7d33823beeba559c4b85fc9e4c09758d79597090d2438ea701e51317fa'),
}


def make(data: files.Where, out: files.Where) -> dict[str, str]:
  """Write the files of `TEXTS`; return the sha256 of each.

  Raises ConfigError: a part is missing or damaged, or `out` holds other files.

  Args:
    data: folder that holds `classic_books` and `english_wiki`.
  """
  content = {name: b'\n'.join(_part(files.path(data) / part) for part in parts) for name, (parts, _) in TEXTS.items()}
  folder = files.local_path(out, what='OUT')
  others = {file.name for file in files.listing(folder)} - set(content) if files.is_folder(folder) else set()
  existing = {name for name in content if files.is_file(folder / name)}
  if others or any(files.read_bytes(folder / name) != content[name] for name in existing):
    raise ConfigError(f'{folder} holds other files: name another folder')
  files.make_folder(folder)
  for name in content.keys() - existing:
    files.write_bytes(folder / name, content[name])
  sums = {name: hashlib.sha256(text).hexdigest() for name, text in content.items()}
  if unlike := [name for name, (_, expected) in TEXTS.items() if sums[name] != expected]:
    log.warning(f'{" and ".join(unlike)} differ from the text of the committed tables: runs are not shared with them')
  return sums


def _part(file: Path) -> bytes:
  zipped = file.with_name(f'{file.name}{local.ZIPPED}')
  present = next(filter(files.is_file, (zipped, file)), None)
  if present is None:
    raise ConfigError(f'{zipped} is missing: name the folder that holds classic_books and english_wiki')
  try:
    with local.File.at(present).stream() as stream:
      return stream.read()
  except ValueError as error:
    raise ConfigError(f'{present} is damaged ({error}): copy it again') from None
