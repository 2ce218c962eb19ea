"""MultiRC, ReCoRD and WSC as SuperGLUE publishes them, 'superglue:FOLDER', with the fields of TensorFlow Datasets.

A line of MultiRC and ReCoRD is a passage with its questions. A row is an answer to judge (MultiRC: `paragraph`,
`question`, `answer`, `label`) or a query with a blank (ReCoRD: `passage`, `query`, `entities` and the right ones,
`answers`, each text once, sorted). The spans of `target` of WSC become fields of the row. Lines of SuperGLUE's other
tasks are rows unchanged. Splits are files of the folder: train, val, test.
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
  """Open the rows of a split."""
  folder = files.path(path.removeprefix(SCHEME))
  if not files.is_folder(folder):
    raise FileNotFoundError(f'{path!r}: there is no folder {folder}')
  by_name = {local.unzipped(file.name).removesuffix('.jsonl'): file for file in files.listing(folder)}
  by_split = {name: file for name, file in by_name.items() if '.jsonl' in file.name}
  splits.check(split, sorted(by_split), path=path)
  file = local.File.at(downloads.fetched(by_split[split], cache), max_bytes=max_bytes, whole=True)
  lines = local.Rows(file, local.line_spans(file.lines()), jsonl.parse)
  return Opened(Rows(lines), f'{file.digest(cache=cache)} rows')


class Rows(Sequence[local.Row]):
  """The rows of the lines of a file.

  A line that cannot be read is one row, which raises a ValueError when it is read.
  """

  def __init__(self, lines: local.Rows):
    self.lines = lines
    self._indices = array.array('q')  # pairs of a line and a row within it
    for line in range(len(lines)):
      try:
        count = len(self._rows_of(line))
      except ValueError:
        count = 1
      for row in range(count):
        self._indices.extend((line, row))

  def __len__(self) -> int:
    return len(self._indices) // 2

  def __getitem__(self, index: int) -> local.Row:  # type: ignore[override]  # no slices
    line, row = self._indices[2 * index], self._indices[2 * index + 1]
    return self._rows_of(line)[row]

  def _rows_of(self, line: int) -> list[local.Row]:
    try:
      return list(unfolded(self.lines[line]))
    except (KeyError, TypeError, AttributeError) as error:
      raise ValueError(
        f'{self.lines.place(line)} is not in the format of MultiRC or ReCoRD ({type(error).__name__}: {error})'
      ) from error

  def place(self, index: int) -> str:
    """Return file and line of a row, for messages."""
    return self.lines.place(self._indices[2 * index])


def unfolded(line: Mapping[str, Any]) -> Iterator[local.Row]:
  """Yield the rows of a line."""
  if 'qas' in line:
    text = line['passage']['text']
    entities = sorted({text[span['start'] : span['end'] + 1] for span in line['passage']['entities']})
    for question in line['qas']:
      answers = {'answers': sorted({entry['text'] for entry in question['answers']})} if 'answers' in question else {}
      idx = {'passage': line['idx'], 'query': question['idx']}
      yield {'passage': text, 'query': question['query'], 'entities': entities, **answers, 'idx': idx}
  elif isinstance(line.get('passage'), dict):
    for question in line['passage']['questions']:
      for answer in question['answers']:
        label = {'label': answer['label']} if 'label' in answer else {}
        idx = {'paragraph': line['idx'], 'question': question['idx'], 'answer': answer['idx']}
        texts = {'paragraph': line['passage']['text'], 'question': question['question'], 'answer': answer['text']}
        yield {**texts, **label, 'idx': idx}
  elif isinstance(target := line.get('target'), dict):  # WSC
    yield {**{name: value for name, value in line.items() if name != 'target'}, **target}
  else:
    yield dict(line)
