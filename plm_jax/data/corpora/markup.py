"""Conversion of a docstring to readable English prose.

Knows the three conventions of Python docstrings: numpydoc, Google, Sphinx fields. It knows enough of reStructuredText
and Markdown to drop code, tables and directives and to unwrap the rest. It is no validating parser. Text of unknown
form becomes a paragraph, and lines that do not read like prose are dropped.
"""

import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

from plm_jax.data.corpora.filters import FUNCTION_WORDS

# Sections whose body is a list of entries; PARAMETER_SECTIONS describe arguments.
PARAMETER_SECTIONS = ('Parameters', 'Other Parameters', 'Args', 'Arguments', 'Keyword Args', 'Keyword Arguments')
ENTRY_SECTIONS = (*PARAMETER_SECTIONS, 'Attributes', 'Returns', 'Yields', 'Raises', 'Warns', 'Methods', 'Receives')
DROPPED_SECTIONS = ('See Also', 'See also', 'References', 'Methods', 'Todo', 'TODO')
GOOGLE_SECTIONS = (*ENTRY_SECTIONS, *DROPPED_SECTIONS, 'Return', 'Example', 'Examples', 'Note', 'Notes', 'Warning')
KEPT_DIRECTIVES = ('note', 'warning', 'important', 'tip', 'hint', 'caution', 'attention', 'admonition')

_UNDERLINE = re.compile(r'\s*([-=~^*#])\1{2,}\s*$')
_GOOGLE = re.compile(rf'\s*({"|".join(GOOGLE_SECTIONS)}):\s*$')
_DIRECTIVE = re.compile(r'\.\.\s+([\w:+-]+)::\s*(.*)$')
_TABLE = re.compile(r'(\+[-=+]{3,}|=+(\s+=+)+|-+(\s+-+)+|\|.*\|)$')
_BULLET = re.compile(r'([-*+•]|\(?\d{1,2}[.)]|\(?[a-z]\))\s+(?=\S)')
_CODE = re.compile(
  r'(import \w|from [\w.]+ import|def \w+\(|class \w+[(:]|@\w|\$ |% |#|return [\w.]+$|for .+ in .+:$|if .+:$|\w+ = '
  r'|[\w.]+\([^()]*\)$|[\w.\[\]]+\s*[-+*/|]?=\s)'
)
_SIGNATURE = re.compile(r'[\w.*]+\s?\(.*\)(\s*(->|=>|-->)\s*\S.{0,60})?$')
_SPHINX = re.compile(
  r':(param|parameter|arg|key|keyword|type|returns?|rtype|raises?|except|[ic]?var|yields?)(?: ([^:]+))?:\s*(.*)$'
)
_TEMPLATE = re.compile(r'(\$?\{\w+\}|%\([\w:]+\)s)$')
_GOOGLE_ENTRY = re.compile(
  r'(\*{0,2}`?[\w.\[\]*]+`?(?:,? (?:and )?\*{0,2}`?\w+`?)*)\s*(?:\(([^:]*)\))?\s*:(?:\s+(\S.*))?$'
)
_LISTED = re.compile(r'[\w.*()\'"`/]+(,? [\w()]+){0,5}( ?:| --?) \S')
_NUMPY_NAMES = re.compile(r'[`*\\]*[\w.]+[`*]*(, ?[`*\\]*[\w.]+[`*]*|, ?\.\.\.)*$')

_INLINE = (
  (re.compile(r'%\([\w:]+\)[sd]'), ''),
  (re.compile(r'!?\[([^\]]+)\]\((?:https?:|\.|/|#)[^)]*\)'), r'\1'),
  (re.compile(r'\[`~?!?(?:[\w.]+\.)?(\w+)`\]'), r'\1'),
  (re.compile(r':[\w:+-]+:`[~!](?:[^`<>]*\.)?([^`<>]+)`'), r'\1'),
  (re.compile(r':[\w:+-]+:`([^`<>]+?)\s*<[^`]*>`'), r'\1'),
  (re.compile(r':[\w:+-]+:`([^`]+)`'), r'\1'),
  (re.compile(r'``(.+?)``'), r'\1'),
  (re.compile(r'`([^`<>]+?)\s*<[^`<>]+>`_{0,2}'), r'\1'),
  (re.compile(r'`[~!](?:[\w.]+\.)?(\w+)`'), r'\1'),
  (re.compile(r'`\.((?:[\w.]+\.)?[A-Z]\w+|[\w.]+\.\w+)`'), r'\1'),
  (re.compile(r'`([^`]+)`_{0,2}'), r'\1'),
  (re.compile(r'\s*\[(?:#\w*|[\d, ]+)\]_'), ''),
  (re.compile(r'\[(\w[\w.-]*)\]_'), r'\1'),
  (re.compile(r'\b([A-Z][A-Za-z]+)_{1,2}(?!\w)'), r'\1'),
  (re.compile(r'\[!(?:TIP|NOTE|WARNING|IMPORTANT)\]'), ''),
  (re.compile(r'(?<![\w*\\])\*\*(?=[^\s*])([^*]+?)(?<=\S)\*\*(?![\w*])'), r'\1'),
  (re.compile(r'(?<![\w*\\])\*(?=[^\s*])([^*]+?)(?<=\S)\*(?![\w*])'), r'\1'),
  (re.compile(r'</?(?:Tip|br|p|b|i|a|code|hfoptions?|ul|li|small|sup|sub)\b[^>]*>'), ''),
  (re.compile(r'\s*[(<]https?://[^\s>)]+[)>]'), ''),
  (re.compile(r'\$([^$\n]+)\$'), r'\1'),
  (re.compile(r'\\(?:left|right|text|mathrm|mathbf|mathcal|mathbb|operatorname|quad|big|Big|displaystyle)\b\s?'), ''),
  (re.compile(r'\\([a-zA-Z]{2,})'), r'\1'),
  (re.compile(r'\\([^\w\s])'), r'\1'),
  (re.compile(r'\\ '), ''),
  (re.compile(r'\s+'), ' '),
  (re.compile(r' ([,.;](?:\s|$))'), r'\1'),
)


class Parameter(NamedTuple):
  """One documented argument; `type` is '' if the docstring has none."""

  name: str
  type: str
  description: str


class Prose(NamedTuple):
  """The prose of a docstring."""

  paragraphs: tuple[str, ...]  # unwrapped paragraphs, the summary first; list items are separate lines of one paragraph
  parameters: tuple[Parameter, ...]  # entries of the Parameters or Args section
  summary: str = ''  # the first paragraph if it is one line before any section, else ''


def read(docstring: str) -> Prose:
  """Extract prose and parameters of a docstring, without code, tables and markup."""
  lines = list(_without_code(inspect.cleandoc(docstring).expandtabs().splitlines()))
  paragraphs: list[str] = []
  parameters: list[Parameter] = []
  summary = ''
  for title, body in _sections(lines):
    if title in DROPPED_SECTIONS:
      continue
    entries = _entries(body, title=title) if title in ENTRY_SECTIONS else []
    if title in PARAMETER_SECTIONS:
      parameters += [Parameter._make(entry) for entry in entries if entry[0] and entry[2]]
    if entries:
      spoken = [_spoken(*entry) for entry in entries]
      paragraphs.append('\n'.join([f'{title}:', *(text for text in spoken if text)]))
    else:
      texts = [text for text in _paragraphs(body) if not _SIGNATURE.match(text)]
      if title.startswith('Example'):  # the code after a colon has been dropped
        texts = [re.sub(':$', '.', text) for text in texts]
      elif texts and title in ENTRY_SECTIONS:
        texts[0] = f'{title}: {texts[0]}'
      elif texts and not title and not paragraphs and '\n' not in texts[0]:
        summary = texts[0]
      paragraphs += texts
  return Prose(tuple(paragraphs), tuple(parameters), summary)


def clean(text: str) -> str:
  """Remove roles, literals, emphasis, links, footnotes and LaTeX; join to one line."""
  for pattern, replacement in _INLINE:
    text = pattern.sub(replacement, text)
  return text.strip()


def is_prose(line: str) -> bool:
  """Return True for English, not for code, formulas or table rows."""
  letters = sum(char.isalpha() or char == ' ' for char in line)
  shouted = sum(char.isupper() for char in line) > 0.5 * len(line)  # as in licences
  if not line or shouted or letters < 0.7 * len(line) or _CODE.match(line):
    return False
  words = re.findall(r'[a-z]+', line.lower())
  title = len(words) > 2 and line[-1] == '.' and letters > 0.75 * len(line)
  return title or not FUNCTION_WORDS.isdisjoint(words)


def _indent(line: str) -> int:
  return len(line) - len(line.lstrip())


def _deeper(lines: list[str], start: int, indent: int) -> int:
  """Return the first line from `start` neither blank nor indented deeper."""
  while start < len(lines) and (not lines[start].strip() or _indent(lines[start]) > indent):
    start += 1
  return start


def _blank(lines: list[str], start: int) -> int:
  while start < len(lines) and lines[start].strip():
    start += 1
  return start


def _without_code(lines: list[str]) -> Iterator[str]:
  here = 0
  while here < len(lines):
    line, text = lines[here], lines[here].strip()
    here += 1
    if text.startswith('>>>'):
      here = _blank(lines, here)
      yield ''
    elif _TEMPLATE.match(text):
      continue
    elif text.startswith('> '):
      yield line[: _indent(line)] + text[2:]
    elif text.startswith(('```', '~~~')):
      while here < len(lines) and not lines[here].strip().startswith(text[:3]):
        here += 1
      here += 1
      yield ''
    elif _TABLE.match(text):
      here = _blank(lines, here)
      yield ''
    elif text == '..' or text.startswith('.. '):
      directive = _DIRECTIVE.match(text)
      if directive and directive[1] in KEPT_DIRECTIVES:
        yield ''
        # After the colons is a title, or the first line of the text below.
        below = lines[here] if here < len(lines) and lines[here].strip() else line
        yield ' ' * _indent(below) + directive[2] if directive[1] != 'admonition' else ''
      else:
        here = _deeper(lines, here, _indent(line))
    elif text.endswith('::'):
      if text != '::':
        yield line.rstrip().rstrip(':') + '.'  # the block after the colon is dropped
      yield ''
      here = _deeper(lines, here, _indent(line))
    else:
      yield line


def _sections(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
  title, body = '', list[str]()
  here = 0
  while here < len(lines):
    line = lines[here]
    google = _GOOGLE.match(line)
    underlined = line.strip() and here + 1 < len(lines) and _UNDERLINE.match(lines[here + 1]) and not line[0].isspace()
    if google or underlined:
      yield title, body
      title, body = (google[1] if google else line.strip().rstrip(':')), []
      here += 1 if google else 2
      if google:
        end = _deeper(lines, here, _indent(line))
        yield title, lines[here:end]
        title, here = '', end
    else:
      if not _UNDERLINE.match(line):
        body.append(line)
      here += 1
  yield title, body


def _paragraphs(lines: list[str]) -> list[str]:
  blocks: list[list[str]] = [[]]
  for line in lines:
    if line.strip():
      blocks[-1].append(line)
    elif blocks[-1]:
      blocks.append([])
  result: list[str] = []
  for block in blocks:
    prose = [text for text in map(clean, _unwrap(block)) if is_prose(text)]
    if prose and result and _BULLET.match(prose[0]) and _BULLET.match(result[-1].rsplit('\n', 1)[-1]):
      result[-1] = '\n'.join([result[-1], *prose])  # a list with blank lines between its items is one paragraph
    elif prose:
      result.append('\n'.join(prose))
  return result


def _unwrap(block: list[str]) -> list[str]:
  """Join hard-wrapped lines, except items, terms and intended ends."""
  result: list[str] = []
  width = max(map(len, block), default=0)
  bare_list = 2 * sum(_LISTED.match(line.strip()) is not None for line in block) >= max(4, len(block))
  previous, item_indent, defined = '', -1, False
  for line in block:
    text, indent = line.strip(), _indent(line)
    field = _SPHINX.match(text)
    starts = field or _BULLET.match(text) or (bare_list and _LISTED.match(text))
    if result and not starts and indent > _indent(previous) and _is_term(previous, text):
      item_indent, defined = _indent(previous), True
      result[-1] += (' ' if previous.endswith(':') else ': ') + text
    elif result and not starts and (indent > item_indent > -1 or (not defined and _continues(previous, text, width))):
      result[-1] += ' ' + text
    else:
      result.append(_field(*field.groups()) if field else text)
      item_indent = indent if starts or defined else -1
    previous = line.rstrip()
  return result


def _is_term(line: str, text: str) -> bool:
  """Return True if `line` heads a definition with the indented `text`."""
  if len(line.strip()) >= 40 or line[-1] in '.,;':
    return False
  return not text[0].islower() or ' ' not in line.strip()


def _continues(previous: str, text: str, width: int) -> bool:
  """Return True if the line before was full or its sentence open."""
  full = len(previous) + len(text.split(' ', 1)[0]) > width - 8
  return full or (previous[-1] not in '.:;!?' and (text[0].islower() or len(previous) >= 40))


def _field(kind: str, argument: str | None, text: str) -> str:
  """Convert a Sphinx field (`:param x: ...`) to a plain line."""
  if kind in ('type', 'rtype'):
    return ''
  return f'{argument.split()[-1]}: {text}' if argument else text


def _entries(body: list[str], *, title: str) -> list[tuple[str, str, str]]:
  body = [line for line in body if line.strip()]
  if not body:
    return []
  edge = min(map(_indent, body))
  heads = [n for n, line in enumerate(body) if _indent(line) == edge]
  entries, misfits = [], 0
  for start, end in zip(heads, [*heads[1:], len(body)], strict=True):
    head, tail = body[start].strip(), body[start + 1 : end]
    text = ' '.join(line for line in map(clean, _unwrap(tail)) if line)
    google = _GOOGLE_ENTRY.match(head)
    names, colon, kind = head.partition(' :')
    if google and not colon and (google[3] or text):
      entries.append((clean(google[1]).lstrip('*'), clean(google[2] or ''), clean(f'{google[3] or ""} {text}')))
    elif tail and colon and _NUMPY_NAMES.match(names.strip()):
      if len(kind) > 60 and '{' not in kind:  # a wrapped explanation, no type
        kind, text = '', f'{clean(kind)} {text}'
      entries.append((clean(names).lstrip('*'), clean(kind), text))
    elif tail and len(head) < 60 and not head.endswith('.'):
      # In numpydoc an argument may have no type, and a return value or an error no name.
      named = title in PARAMETER_SECTIONS and _NUMPY_NAMES.match(head) is not None
      entries.append((clean(head).lstrip('*'), '', text) if named else ('', clean(head).rstrip(':'), text))
    else:
      misfits += 1
      entries.append(('', '', clean(f'{head} {text}')))
  return entries if 2 * misfits < len(entries) else []


def _spoken(name: str, kind: str, description: str) -> str:
  if not description:
    return ''
  head = f'{name} ({kind})' if name and kind else name or kind
  return f'{head}: {description}' if head else description if is_prose(description) else ''
