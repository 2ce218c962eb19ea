"""Markdown from docstrings and values."""

import ast
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from plm_jax.config import annotations
from plm_jax.config.signatures import Keyword, Missing

FLAG = re.compile(r'(?<![\w`/.-])(--[a-z]\w*(?:\.\w+)*(?:=[^\s,;)]*[^\s,;:).])?)')
COMMAND = re.compile(r'(plm-jax|bash|python|pip|\.venv/bin/\S+) ')
LONG = 84  # characters of a line of code that a page shows whole


def escape(text: str) -> str:
  """Return text in which nothing outside of `code` has a meaning for Markdown; flags become code."""
  parts = re.split(r'(`[^`]*`)', text)
  parts[::2] = [FLAG.sub(r'`\1`', part) for part in parts[::2]]
  parts = re.split(r'(`[^`]*`)', ''.join(parts))
  parts[::2] = [re.sub(r'([\\*\[\]<>#|~]|(?<!\w)_|_(?!\w))', r'\\\1', part) for part in parts[::2]]
  return ''.join(parts)


def code(lines: Sequence[str]) -> str:
  """Return a fenced block, of commands as shell; long ones are broken before their flags."""
  language = 'sh' if lines and COMMAND.match(lines[0]) else 'text'
  whole = re.sub(r' *\\\n *', ' ', '\n'.join(lines)).splitlines()
  return '\n'.join([f'```{language}', *[short for line in whole for short in _broken(line)], '```'])


def _broken(line: str) -> list[str]:
  if COMMAND.match(line) and (told := re.match(r'(.*?\S) {3,}(?!--|\\)(?:# )?(\S.*)', line)):
    return [f'# {told.group(2)}', *_broken(told.group(1))]
  line = re.sub(r'(?<=\S) {3,}(?=--)', ' ', line)
  if len(line) <= LONG or not COMMAND.match(line.strip()):
    return [line]
  made = ['']
  for word in line.split(' '):
    if made[-1] and len(made[-1]) + len(word) > LONG - 2:
      made[-1] += '\\'
      made.append('    ')
    made[-1] += f'{word} '
  return [one.rstrip() for one in made]


def prose(docstring: str) -> str:
  """Return a docstring as Markdown: paragraphs, commands and indented lines as code."""
  made = []
  for paragraph in re.split(r'\n\s*\n', textwrap.dedent(docstring).strip('\n')):
    for is_code, lines in _runs(paragraph.splitlines()):
      made.append(
        code(textwrap.dedent('\n'.join(lines)).splitlines()) if is_code else escape(' '.join(map(str.strip, lines)))
      )
  return '\n\n'.join(part for part in made if part.strip())


def _runs(lines: Sequence[str]) -> list[tuple[bool, list[str]]]:
  """Group neighbouring lines into code and text: commands, their continuations and indented lines are code."""
  runs: list[tuple[bool, list[str]]] = []
  for line in lines:
    goes_on = bool(runs) and runs[-1][0] and runs[-1][1][-1].endswith('\\')
    is_code = goes_on or line.startswith('  ') or bool(COMMAND.match(line))
    if not runs or runs[-1][0] != is_code:
      runs.append((is_code, []))
    runs[-1][1].append(line)
  return runs


def sections(docstring: str) -> dict[str, str]:
  """Return name -> text for the lines below 'Attributes:' or 'Args:' of a docstring."""
  found: dict[str, str] = {}
  match = re.search(r'^ *(?:Attributes|Args):\n(.*?)(?=\n\s*\n *\S+:\n|\Z)', docstring, re.MULTILINE | re.DOTALL)
  name = ''
  if match is None:
    return found
  body = textwrap.dedent(match.group(1))
  for line in body.splitlines():
    if begun := re.match(r'(\*{0,2}\w+): ?(.*)', line):
      name, first = begun.groups()
      found[name] = first
    elif name:
      found[name] += f' {line.strip()}'
  return found


def comments(source: str, name: str) -> dict[str, str]:
  """Return field -> its comment, beside it or in the lines above it, of a class of a file."""
  node = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
  found: dict[str, str] = {}
  above: list[str] = []
  for line in source.splitlines()[node.lineno : node.end_lineno]:
    if alone := re.match(r' *# (.*)', line):
      above.append(alone[1])
      continue
    field = re.match(r'  (\w+): [^#]*(?:  # (.*))?$', line)
    if field and (told := ' '.join([*above, field[2] or '']).strip()):
      found[field[1]] = told if told.endswith('.') else f'{told}.'
    above = []
  return found


def summary(docstring: str) -> str:
  """Return a docstring without its sections."""
  return re.split(r'^ *(?:Attributes|Args|Returns|Raises|Yields|Example|Examples):\s*$', docstring, flags=re.MULTILINE)[
    0
  ]


def item(term: str, *paragraphs: str) -> str:
  """Return an entry of a definition list."""
  kept = [part for part in paragraphs if part] or ['']
  return f'{term}\n: ' + '\n\n  '.join(kept)


def keyword(name: str, one: Keyword, told: str = '', links: Mapping[str, str] = MappingProxyType({})) -> str:
  """Return the entry of one keyword: type, bound, default and description."""
  wanted = annotations.readable(one.annotation).replace('`', "'")
  default = {Missing.REQUIRED: 'required', Missing.COMPUTED: 'default: see the source'}.get(
    one.default if isinstance(one.default, Missing) else Missing, f'default: `{value(one.default)}`'
  )
  kinds = {part.inner for part in annotations.parts(one.annotation) if part.form in ('block', 'name')}
  choices = [links[kind] for whole in sorted(kinds) for kind in whole.split(' | ') if kind in links]
  return item(f'`{name}`', '; '.join([f'`{wanted}`', default, *choices]), escape(told))


def keywords(known: Mapping[str, Keyword], told: Mapping[str, str], links: Mapping[str, str]) -> str:
  """Return a definition list of keywords.

  Args:
    known: name -> keyword.
    told: name -> description.
    links: kind of a block or name -> a link to its choices.
  """
  return '\n\n'.join(keyword(name, one, told.get(name, ''), links) for name, one in known.items())


def value(thing: Any) -> str:
  """Return a default as a config writes it, shortened where it is long."""
  text = repr(thing).replace('`', "'")
  return text if len(text) <= 160 else f'{text[:157]}...'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
  """Return a table."""
  lines = [head, ['---'] * len(head), *rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def toctree(names: Iterable[str], *, depth: int = 1) -> str:
  """Return a table of contents."""
  return '\n'.join(['```{toctree}', f':maxdepth: {depth}', '', *names, '```'])
