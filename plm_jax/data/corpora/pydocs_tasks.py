"""Labelled tasks made from docstrings alone: no hand-made label, no download.

Every function here maps the documents of one split to the rows of a task. A row draws only on documents of its own
split, and its choices (distractors, order) are drawn from its document's name, so rows do not depend on each other.
"""

import functools
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.data.corpora.docstrings import Document
from plm_jax.data.corpora.filters import FUNCTION_WORDS
from plm_jax.data.corpora.markup import Parameter

Row = dict[str, Any]

BODY_CHARS = 1000
TOKENS = 96

AREAS = ('python', 'numpy', 'scipy', 'jax', 'matplotlib', 'huggingface_hub', 'orbax-checkpoint', 'tensorflow-datasets')
PAIR_LABELS = ('other', 'own')
PARAMETER_TAGS = ('O', 'B-name', 'I-name', 'B-type', 'I-type')

MASK = 'LIBRARY'
_AREA_NAMES = re.compile(
  r'(?<![a-z])(c?python\d?|pythonic|py3k|stdlib|numpy|np|scipy|sp|jax|jnp|lax|matplotlib|mpl|pyplot|plt|mplot3d|'
  r'hugging ?face|hf|orbax|ocp|tensorflow|tfds|tf)(?![a-z])|\b(jax|numpy|scipy|orbax|tfds|matplotlib|huggingface)\w+',
  re.IGNORECASE,
)
_SENTENCE = re.compile(r'(?<=[.!?])\s+(?=[A-Z"\'(])')
_TOKEN = re.compile(r'\w+(?:[.\-]\w+)*|[^\w\s]')
_QUESTIONS = (
  'Which words describe the parameter {}?',
  'What does the documentation say about {}?',
  'How is the argument {} explained?',
)


class Task(NamedTuple):
  """A task.

  Attributes:
    description: one line.
    about: the field that says what a row is about; no value of it stands in two splits.
    rows: the rows of a split.
  """

  description: str
  about: str
  rows: Callable[[Sequence[Document]], Iterator[Row]]


def corpus(documents: Sequence[Document]) -> Iterator[Row]:
  """text, package, name: the documents themselves."""
  for document in documents:
    yield {'text': document.text, 'package': document.package, 'name': document.name}


def package(documents: Sequence[Document]) -> Iterator[Row]:
  """text, label: which package a text documents, names of packages masked; as many rows of each as the rarest has."""
  groups: dict[str, list[Row]] = defaultdict(list)
  for document in documents:
    text = mask(_shorten(document.text, 600))
    if document.package in AREAS and len(text) >= 120:
      groups[document.package].append({'text': text, 'label': document.package})
  for n in range(min(map(len, groups.values()), default=0)):
    yield from (rows[n] for rows in groups.values())


def mask(text: str) -> str:
  """The text with every name of an area replaced by `MASK`."""
  return _AREA_NAMES.sub(MASK, text)


def summary_pair(documents: Sequence[Document]) -> Iterator[Row]:
  """summary, body, label: whether the summary is the body's own; the others are of the same package."""
  for document, body, others in _summarised(tuple(documents)):
    rng = random.Random(f'summary_pair/{document.name}')
    own = rng.random() < 0.5
    yield {'summary': document.summary if own else rng.choice(others), 'body': body, 'label': PAIR_LABELS[own]}


def summary_choice(documents: Sequence[Document]) -> Iterator[Row]:
  """context, endings, label: which of four summaries is the body's own; the others are of the same package."""
  for document, body, others in _summarised(tuple(documents)):
    if len(others) >= 3:
      rng = random.Random(f'summary_choice/{document.name}')
      endings = rng.sample(others, 3)
      label = rng.randrange(4)
      endings.insert(label, document.summary)
      yield {'context': body, 'endings': endings, 'label': label}


def summarise(documents: Sequence[Document]) -> Iterator[Row]:
  """source, target: a body and its summary."""
  for document, body, _ in _summarised(tuple(documents)):
    yield {'source': body, 'target': document.summary}


def parameters(documents: Sequence[Document]) -> Iterator[Row]:
  """tokens, tags, heads: name, type and explanation of parameters, run together without the colons between them.

  A word hangs on the first one of its name, type or explanation, and these two on the name, which hangs on nothing.
  """
  # x  int or None  The value   ->   heads  0  1 2 2  1 5
  seen = set()
  for document in documents:
    tokens: list[str] = []
    tags: list[str] = []
    heads: list[int] = []
    for parameter in document.parameters:
      if not parameter.type or len(parameter.type) > 80:
        continue
      words = _TOKEN.findall(_SENTENCE.split(parameter.description)[0])
      parts = [(_TOKEN.findall(parameter.name), 'name'), (_TOKEN.findall(parameter.type), 'type'), (words, '')]
      if len(tokens) + sum(len(part) for part, _ in parts) > TOKENS:
        break
      name = len(tokens) + 1
      for part, kind in parts:
        first = len(tokens) + 1
        heads += [first if n else 0 if kind == 'name' else name for n in range(len(part))]
        tokens += part
        tags += [f'{"I" if n else "B"}-{kind}' if kind else 'O' for n in range(len(part))]
    if len(tokens) >= 8 and tuple(tokens) not in seen:
      seen.add(tuple(tokens))
      yield {'tokens': tokens, 'tags': tags, 'heads': heads}


def describe(documents: Sequence[Document]) -> Iterator[Row]:
  """SQuAD's fields: which words of a Parameters section describe one of the parameters."""
  for document in documents:
    context, spans = _section(document)
    if len(spans) >= 2:
      rng = random.Random(f'describe/{document.name}')
      for name, start, answer in rng.sample(spans, min(2, len(spans))):
        yield {
          'id': hashlib.sha256(f'{document.name}/{name}/{context}'.encode()).hexdigest()[:16],
          'title': document.name,
          'context': context,
          'question': rng.choice(_QUESTIONS).format(name),
          'answers': {'text': [answer], 'answer_start': [start]},
        }


TASKS: Mapping[str, Task] = {
  'corpus': Task('Docstrings as prose.', 'text', corpus),
  'package': Task('Which package a text documents; names of packages are masked.', 'text', package),
  'summary_pair': Task('Whether a summary line belongs to a body of the same package.', 'body', summary_pair),
  'parameters': Task('Names, types and explanations of parameters, token by token.', 'tokens', parameters),
  'describe': Task('Which words describe a parameter; the fields of SQuAD.', 'context', describe),
  'summary_choice': Task('Which of four summary lines belongs to a body.', 'context', summary_choice),
  'summarise': Task('From a body to its summary line.', 'source', summarise),
}


def make(task: Task, splits: Mapping[str, Sequence[Document]]) -> dict[str, list[Row]]:
  """The rows of each split; what an earlier split is about is left out of the later ones."""
  made: dict[str, list[Row]] = {}
  known: set[str] = set()
  for split, documents in splits.items():
    made[split] = [row for row in task.rows(documents) if str(row[task.about]) not in known]
    known.update(str(row[task.about]) for row in made[split])
  return made


@functools.lru_cache(maxsize=3)  # the splits: three tasks read them
def _summarised(documents: tuple[Document, ...]) -> list[tuple[Document, str, list[str]]]:
  """Documents with a good summary and body: the document, its body, and the summaries to confuse its own with.

  Those are of the same package and, of 64 that its name draws, the 8 that share most words with the body.
  """
  found: dict[str, Document] = {}  # by body: where two documents share one, the first has it
  pools: dict[str, list[tuple[str, set[str]]]] = defaultdict(list)
  for document in documents:
    summary = document.summary
    body = _shorten(document.text[len(summary) :].lstrip('\n'), BODY_CHARS)
    whole = 20 <= len(summary) <= 200 and summary[-1] == '.' and summary[0].isupper()
    if whole and len(body) >= 150 and summary not in body and _overlap(_stems(summary), _stems(body)) >= 0.3:
      found.setdefault(body, document)
      pools[document.package].append((summary, _stems(summary)))
  result = []
  for body, document in found.items():
    pool = pools[document.package]
    start = random.Random(document.name).randrange(len(pool))
    stems = _stems(body)
    drawn = {summary: _overlap(words, stems) for summary, words in (pool[start:] + pool[:start])[:64]}
    drawn.pop(document.summary, None)
    others = sorted(drawn, key=lambda summary: (-drawn[summary], summary))[:8]
    if others:
      result.append((document, body, others))
  return result


def _stems(text: str) -> set[str]:
  """The beginnings of the content words."""
  return {word[:5] for word in re.findall(r'[a-z]{3,}', text.lower()) if word not in FUNCTION_WORDS}


def _overlap(summary: set[str], body: set[str]) -> float:
  """The share of the summary's words that the body has too: a body of mere types tells nobody its summary."""
  return len(summary & body) / max(len(summary), 1)


def _section(document: Document) -> tuple[str, list[tuple[str, int, str]]]:
  """A context made of summary and parameters, and (name, start, answer) of each parameter in it."""
  context, spans = document.summary, []
  names = [parameter.name for parameter in document.parameters]
  for parameter in document.parameters:
    context = f'{context} {_heading(parameter)}: ' if context else f'{_heading(parameter)}: '
    description = parameter.description
    if len(context) + len(description) > BODY_CHARS:
      context = context[: context.rindex(_heading(parameter))].rstrip()
      break
    answer = description if len(description) <= 120 else _SENTENCE.split(description)[0]
    if 12 <= len(answer) <= 200 and names.count(parameter.name) == 1:
      spans.append((parameter.name, len(context), answer))
    context += description
    if context[-1] not in '.!?':
      context += '.'
  return context, spans


def _heading(parameter: Parameter) -> str:
  return f'{parameter.name} ({parameter.type})' if parameter.type else parameter.name


def _shorten(text: str, limit: int) -> str:
  """The paragraphs that fit, or the sentences of the first one that do."""
  if len(text) <= limit:
    return text
  for separator in ('\n\n', '\n'):
    end = text.rfind(separator, 0, limit)
    if end >= limit // 2:
      return text[:end]
  ends = [match.start() for match in _SENTENCE.finditer(text[:limit])]
  return text[: ends[-1] if ends else text.rfind(' ', 0, limit)].rstrip()
