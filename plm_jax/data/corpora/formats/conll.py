"""Columns: one word per line, one column per kind of label, a blank line after each sentence (CoNLL).

`.conll` is the format of CoNLL-2003 and of WNUT-17, with tabs between the columns or, in a line without tabs, white
space. The first column gives the field `tokens`, the last one `tags`, and columns between them `column_2` and so on; a
file of one column has no tags. Lines that begin with `-DOCSTART-` are skipped. `.conllu` is the format of Universal
Dependencies: ten named columns, of which `tokens`, `lemmas`, `upos`, `xpos`, `feats`, `head` (whole numbers) and
`deprel` are read; comments, ranges of words (1-2) and empty words (1.1) are skipped.

A row is a sentence. Each field is a list with one entry per word, and `text` is the words with spaces between them.
Tags are text, as in the file: `labelled` maps them to indices by `labels.json`, and reads IOB1 as IOB2.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from plm_jax.data.corpora import local
from plm_jax.data.corpora.records import Opened

SUFFIXES = ('.conll', '.conllu')
SCHEME = None

_UNIVERSAL = {1: 'tokens', 2: 'lemmas', 3: 'upos', 4: 'xpos', 5: 'feats', 6: 'head', 7: 'deprel'}
_UNIVERSAL_COLUMNS = 10
_HEAD = 6
_DOCUMENT = b'-DOCSTART-'
_SPACE = ' \t\r\f\v'  # between columns; other spaces, such as in 10 000, are part of a word


def open(path: local.File, split: str, cache: str) -> Opened:
  """Open the sentences of a file."""
  path.check_line_ends()
  universal = path.suffix == '.conllu'
  bare = not universal and all(len(line.split()) < 2 for line in path.lines() if not line.startswith(_DOCUMENT))
  rows = local.Rows(path, _sentences(path.lines()), parse_universal if universal else parse_bare if bare else parse)
  return Opened(rows, f'{path.digest(cache=cache)} rows')


def parse_bare(text: str) -> local.Row:
  """Parse a sentence of words alone."""
  tokens = [word for line in text.split('\n') if (word := line.strip(_SPACE))]
  return {'text': ' '.join(tokens), 'tokens': tokens}


def parse(text: str) -> local.Row:
  """Parse a sentence of words and labels."""
  words: list[list[str]] = []
  for index, line in enumerate(text.split('\n')):
    columns = line.rstrip('\r').split('\t') if '\t' in line else re.split(f'[{_SPACE}]+', line.strip(_SPACE))
    if len(columns) < 2:
      raise local.BadRow(f'a word and a label are needed, got {line!r}', line=index)
    if words and len(columns) != len(words[0]):
      raise local.BadRow(f'{len(columns)} columns but the sentence begins with {len(words[0])}', line=index)
    words.append(columns)
  first, *between, last = (list(column) for column in zip(*words, strict=True))
  numbered = {f'column_{index}': column for index, column in enumerate(between, start=2)}
  return {'text': ' '.join(first), 'tokens': first, **numbered, 'tags': last}


def parse_universal(text: str) -> local.Row:
  """Parse a sentence of Universal Dependencies."""
  fields: dict[str, list[Any]] = {name: [] for name in _UNIVERSAL.values()}
  for index, line in enumerate(text.split('\n')):
    if line.startswith('#'):
      continue
    columns = line.rstrip('\r').split('\t')
    if len(columns) != _UNIVERSAL_COLUMNS:
      raise local.BadRow(f'{_UNIVERSAL_COLUMNS} columns with tabs between them are needed, got {line!r}', line=index)
    if not columns[0].isdecimal():  # a range of words or an empty one
      continue
    if not columns[_HEAD].isdecimal():
      raise local.BadRow(f'column {_HEAD + 1} must be the index of the head, got {columns[_HEAD]!r}', line=index)
    for column, name in _UNIVERSAL.items():
      fields[name].append(int(columns[column]) if column == _HEAD else columns[column])
  return {'text': ' '.join(fields['tokens']), **fields}


def _sentences(lines: Iterable[bytes]) -> Iterator[tuple[int, int]]:
  return local.block_spans(b' ' * len(line) if line.startswith(_DOCUMENT) else line for line in lines)
