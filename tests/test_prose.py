"""Plain English, as docs/develop/style.md describes it: docstrings, comments, messages and pages.

Ruff checks the form of docstrings (D205, D401, D403, D415 in pyproject.toml). These tests check what it does not know:
the length and the first word of a first line, banned words, and the length of messages. What is left of old texts has a
budget, which only falls: where a test finds less, lower the number in `BUDGET`.
"""

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / 'plm_jax').rglob('*.py'))
WRITTEN = (
  '_build',
  'papers/family',
  'reference/commands',
  'reference/config',
  'reference/plugins',
  'reference/taxonomy',
  'results/table',
)  # folders of docs/ that docs/generate.py writes
PAGES = [ROOT / 'README.md', ROOT / 'WORKSPACE.md', ROOT / 'CONTRIBUTING.md'] + [
  page
  for page in sorted((ROOT / 'docs').rglob('*.md'))
  if not page.relative_to(ROOT / 'docs').as_posix().startswith(WRITTEN)
]
MOST_WORDS = 12  # of a first line
MOST_CHARACTERS = 240  # of a message; its values are counted as six characters each
ASKING = re.compile(r'(What|Whether|How|Where)\b')
# words that readers from elsewhere stumble over, and figures of speech; docs/develop/style.md lists what to write
# instead
BANNED = re.compile(
  r'\b(mends?|mended|nobody|somebody|anew|but for|so many|alike|in (the )?place of|goes on|go on|stands? in|is asked|'
  r'asked of|say so|draws? of|cures?)\b',
  re.IGNORECASE,
)
ERRORS = {'ConfigError', 'RunError', 'WeightsError', 'CheckpointError', 'ValueError', 'TypeError'}
BUDGET = {'first line': 0, 'banned in code': 0, 'banned in pages': 0, 'long message': 0}


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str, ast.AST]]:
  """Yield (line, text, node) of every docstring."""
  for node in ast.walk(tree):
    if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and (text := ast.get_docstring(node)):
      yield getattr(node, 'lineno', 1), text, node


def first_lines(tree: ast.Module) -> list[str]:
  """Return first lines of functions that are too long or ask a question."""
  found = []
  for line, text, node in docstrings(tree):
    first = text.partition('\n')[0]
    if isinstance(node, ast.FunctionDef) and (len(first.split()) > MOST_WORDS or ASKING.match(first)):
      found.append(f'{line}: {first}')
  return found


def texts(source: str) -> Iterator[tuple[int, str]]:
  """Yield (line, text) of docstrings, other strings with a space, and comments."""
  for node in ast.walk(ast.parse(source)):
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and ' ' in node.value:
      yield node.lineno, node.value
  for number, line in enumerate(source.splitlines(), 1):
    if comment := re.search(r'(?:^|\s)#\s(.*)$', line):
      yield number, comment[1]


def banned(source: str) -> list[str]:
  """Return the banned words of a file with their lines."""
  return [f'{line}: {match[0]}' for line, text in texts(source) for match in BANNED.finditer(text)]


def length(node: ast.AST) -> int:
  """Return the characters of a message; a value counts as six."""
  match node:
    case ast.Constant(value=str(text)):
      return len(text)
    case ast.JoinedStr():
      return sum(length(part) for part in node.values)
    case ast.BinOp():
      return length(node.left) + length(node.right)
    case ast.IfExp():
      return max(length(node.body), length(node.orelse))
  return 6


def long_messages(tree: ast.Module) -> list[str]:
  """Return messages of errors that are too long."""
  found = []
  for node in ast.walk(tree):
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
      name = ast.unparse(node.exc.func).rpartition('.')[2]
      if name in ERRORS and (size := length(node.exc.args[0])) > MOST_CHARACTERS:
        found.append(f'{node.lineno}: {size} characters')
  return found


def over_budget(kind: str, found: list[str]) -> str:
  """Return the complaint of a test, '' if the number is exactly the budget."""
  if len(found) == BUDGET[kind]:
    return ''
  if len(found) < BUDGET[kind]:
    return f'lower BUDGET[{kind!r}] to {len(found)}'
  return f'{len(found)} of {BUDGET[kind]} allowed:\n' + '\n'.join(found)


def test_first_lines_are_short_and_no_questions() -> None:
  found = [f'{file.relative_to(ROOT)}:{text}' for file in FILES for text in first_lines(ast.parse(file.read_text()))]
  assert not over_budget('first line', found), over_budget('first line', found)


def test_no_banned_words_in_code() -> None:
  found = [f'{file.relative_to(ROOT)}:{text}' for file in FILES for text in banned(file.read_text())]
  assert not over_budget('banned in code', found), over_budget('banned in code', found)


def test_no_banned_words_in_pages() -> None:
  found = [
    f'{page.relative_to(ROOT)}:{number}: {match[0]}'
    for page in PAGES
    if page.exists()
    for number, line in enumerate(page.read_text().splitlines(), 1)
    for match in BANNED.finditer(line)
  ]
  assert not over_budget('banned in pages', found), over_budget('banned in pages', found)


def test_messages_fit_two_lines() -> None:
  found = [f'{file.relative_to(ROOT)}:{text}' for file in FILES for text in long_messages(ast.parse(file.read_text()))]
  assert not over_budget('long message', found), over_budget('long message', found)


@pytest.mark.parametrize(
  'source',
  [
    'def f():\n  """Whether a thing holds."""',
    'def f():\n  """Return a thing that has a first line of very many more than twelve words."""',
  ],
)
def test_a_bad_first_line_is_found(source: str) -> None:
  assert len(first_lines(ast.parse(source))) == 1


def test_a_banned_word_and_a_long_message_are_found() -> None:
  assert banned('x = 1  # nobody reads it') == ['1: nobody']
  assert banned("raise ValueError('make it anew')") == ['1: anew']
  assert len(long_messages(ast.parse(f'raise ConfigError(f"{{x}} {"y" * 240}")'))) == 1
