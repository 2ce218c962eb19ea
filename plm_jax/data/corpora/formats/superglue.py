"""MultiRC, ReCoRD and WSC as SuperGLUE has them, 'superglue:FOLDER', with the fields that TensorFlow Datasets has.

A line of MultiRC and ReCoRD is a passage with its questions.

A row is an answer to judge (MultiRC: `paragraph`, `question`, `answer`, `label`) or a query with a blank (ReCoRD:
`passage`, `query`, `entities` and the right ones, `answers`, each text once, sorted). Of WSC, the spans of `target`
become fields of the row. What stands in a line of its own, as in SuperGLUE's other tasks, is a row as it is. Splits are
files of the folder: train, val, test.
"""

import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plm_jax.data.corpora import local, splits
from plm_jax.data.corpora.formats import jsonl
from plm_jax.data.corpora.records import Opened
from plm_jax.io import downloads, files

SUFFIXES = ()
SCHEME = 'superglue:'


def open(path: str, split: str, cache: str, *, max_bytes: int = local.MAX_BYTES) -> Opened:
  """The rows of a split."""
  folder = files.path(path.removeprefix(SCHEME))
  if not files.is_folder(folder):
    raise FileNotFoundError(f'{path!r}: there is no folder {folder}')
  found = {file.name.removesuffix(local.ZIPPED).removesuffix('.jsonl'): file for file in files.listing(folder)}
  found = {name: file for name, file in found.items() if '.jsonl' in file.name}
  splits.check(split, sorted(found), path=path)
  file = local.File.at(downloads.fetched(found[split], cache), max_bytes=max_bytes)
  return Opened(Rows(local.Rows(file, local.line_spans(file.lines()), jsonl.parse)), f'{file.digest(cache=cache)} rows')


class Rows(Sequence[local.Row]):
  """The rows of the lines of a file; a line that cannot be read is one row, and raises a ValueError when it is read."""

  def __init__(self, lines: local.Rows):
    self.lines = lines
    self._places = array.array('q')  # pairs of a line and a row of it
    for number in range(len(lines)):
      try:
        count = len(self._rows_of(number))
      except ValueError:
        count = 1
      for place in range(count):
        self._places.extend((number, place))

  def __len__(self) -> int:
    return len(self._places) // 2

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    line, place = self._places[2 * index], self._places[2 * index + 1]
    return self._rows_of(line)[place]

  def _rows_of(self, line: int) -> list[local.Row]:
    try:
      return list(unfolded(self.lines[line]))
    except (KeyError, TypeError, AttributeError) as error:
      raise ValueError(
        f'{self.lines.place(line)} is not laid out as MultiRC or ReCoRD ({type(error).__name__}: {error})'
      ) from error

  def place(self, index: int) -> str:
    """File and line of a row, for messages."""
    return self.lines.place(self._places[2 * index])


def unfolded(line: Mapping[str, Any]) -> Iterator[local.Row]:
  """The rows of a line."""
  if 'qas' in line:
    text = line['passage']['text']
    entities = sorted({text[span['start'] : span['end'] + 1] for span in line['passage']['entities']})
    for asked in line['qas']:
      answers = {'answers': sorted({one['text'] for one in asked['answers']})} if 'answers' in asked else {}
      idx = {'passage': line['idx'], 'query': asked['idx']}
      yield {'passage': text, 'query': asked['query'], 'entities': entities, **answers, 'idx': idx}
  elif isinstance(line.get('passage'), dict):
    for asked in line['passage']['questions']:
      for answer in asked['answers']:
        label = {'label': answer['label']} if 'label' in answer else {}
        idx = {'paragraph': line['idx'], 'question': asked['idx'], 'answer': answer['idx']}
        texts = {'paragraph': line['passage']['text'], 'question': asked['question'], 'answer': answer['text']}
        yield {**texts, **label, 'idx': idx}
  elif isinstance(target := line.get('target'), dict):  # WSC
    yield {**{name: value for name, value in line.items() if name != 'target'}, **target}
  else:
    yield dict(line)
