"""Lists and objects that are spelled in a text, as the cells of tables hold them.

["Anna", "met"]             JSON, which `plm-jax predict` writes
['Anna', 'met']             Python, which pandas writes
['Anna' 'met']   [0 1]   [np.str_('a'), np.int64(1)]      numpy
{'text': array(['met'], dtype=object), 'answer_start': array([5])}     Python with arrays, as pandas reads Parquet
"""

import ast
import json
import re
from collections.abc import Mapping
from typing import Any

from plm_jax.io import files

_QUOTED = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_TOKEN = re.compile(rf"""(\s+)|({_QUOTED})|([\[({{])|([\])}}])|[,:]|([^\s,:\[\](){{}}'"]+)""", re.S)
_TYPE = re.compile(r',\s*dtype=[^()]*?(?=\))')
_PAIRS = ('[]', '()', '{}')
_NAMES = {'null': 'None', 'nan': 'None', 'NaN': 'None', 'true': 'True', 'false': 'False'}
_ARRAYS = ('array', 'list', 'tuple')
# a bracket before a quoted entry, or words with commas in one pair of brackets, as PostgreSQL writes arrays
_LIKE_A_LIST = re.compile(r'\[["\'](?=.*["\']\s*[,\]])|[\[{][^\s\[\]{}][^\[\]{}]*,[^\[\]{}]*[\]}]$', re.S)


def parse(text: str) -> list[Any] | dict[str, Any] | None:
  """Return the list or object in a text; None for other texts."""
  text = text.strip()
  if text[:1] + text[-1:] not in _PAIRS and not text.startswith('array('):
    return None
  try:
    value = files.parse_json(text)
  except json.JSONDecodeError:
    try:
      value = plain(ast.literal_eval(_python(text)))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
      return None
  return value if isinstance(value, list | dict) else None


def words(text: str) -> list[Any]:
  """Split a text into words or read its list; ValueError if unreadable."""
  value = parse(text)
  if isinstance(value, list):
    return value
  if value is not None or _LIKE_A_LIST.match(text.strip()):
    raise ValueError(
      f'{text[:60]!r} looks like a list and cannot be read: write JSON, ["a", "b"], or words with spaces between them'
    )
  return text.split()


def _python(text: str) -> str:
  """Return Python for a text of numpy; raise ValueError for others."""
  # {'text': array(['a' 'b'], dtype=object)}   ->   {'text': (['a', 'b'])}
  parts: list[str] = []
  text = _TYPE.sub('', text)
  position, ended, spaced = 0, False, False  # ended: the last token ends a value
  while position < len(text):
    match = _TOKEN.match(text, position)
    if match is None:
      raise ValueError('a quotation mark that is not closed')
    position = match.end()
    space, quoted, opening, closing, atom = match.groups()
    if space:
      spaced = True
      continue
    if atom == '...':
      raise ValueError('a list that numpy cut short')
    if ended and (quoted or opening or atom):
      if not spaced:
        raise ValueError('values without a space between them')
      parts.append(',')
    is_array = atom in _ARRAYS or (atom or '').startswith('np.')
    if not is_array:  # `array([...])` without its name is the list in parentheses
      parts.append(_NAMES.get(atom, atom) or match[0])
    ended, spaced = bool(quoted or closing or (atom and not is_array)), False
  return ''.join(parts)


def plain(value: Any) -> Any:
  """Convert mappings to dicts and tuples to lists, as in JSON."""
  if isinstance(value, Mapping):
    return {key: plain(inner) for key, inner in value.items()}
  return [plain(inner) for inner in value] if isinstance(value, list | tuple) else value
