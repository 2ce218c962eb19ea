"""Labelled tasks made from docstrings alone: no manual labels, no download.

Every function here maps the documents of one split to the rows of a task. A row uses only documents of this split.
Its choices (distractors, order) are sampled by the name of its document, so rows do not depend on each other.
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
  """A task."""

  description: str  # one line
  about: str  # field with the subject of a row; no value of it is in two splits
  rows: Callable[[Sequence[Document]], Iterator[Row]]  # documents of a split -> its rows


def corpus(documents: Sequence[Document]) -> Iterator[Row]:
  """Yield the documents themselves: text, package, name."""
  for document in documents:
    yield {'text': document.text, 'package': document.package, 'name': document.name}


def package(documents: Sequence[Document]) -> Iterator[Row]:
  """Yield text and label: the package that a text documents.

  Names of packages are masked. Every package has as many rows as the rarest.
  """
  groups: dict[str, list[Row]] = defaultdict(list)
  for document in documents:
    text = mask(_shorten(document.text, 600))
    if document.package in AREAS and len(text) >= 120:
      groups[document.package].append({'text': text, 'label': document.package})
  for n in range(min(map(len, groups.values()), default=0)):
    yield from (rows[n] for rows in groups.values())


def mask(text: str) -> str:
  """Replace every name of an area by `MASK`."""
  return _AREA_NAMES.sub(MASK, text)


def summary_pair(documents: Sequence[Document]) -> Iterator[Row]:
  """Yield summary and body (same package), and label: whether they belong together."""
  for document, body, others in _summarised(tuple(documents)):
    rng = random.Random(f'summary_pair/{document.name}')
    own = rng.random() < 0.5
    yield {'summary': document.summary if own else rng.choice(others), 'body': body, 'label': PAIR_LABELS[own]}


def summary_choice(documents: Sequence[Document]) -> Iterator[Row]:
  """Yield context, endings of its package, and label: which summary fits."""
  for document, body, others in _summarised(tuple(documents)):
    if len(others) >= 3:
      rng = random.Random(f'summary_choice/{document.name}')
      endings = rng.sample(others, 3)
      label = rng.randrange(4)
      endings.insert(label, document.summary)
      yield {'context': body, 'endings': endings, 'label': label}


def summarise(documents: Sequence[Document]) -> Iterator[Row]:
  """Yield source and target: a body and its summary."""
  for document, body, _ in _summarised(tuple(documents)):
    yield {'source': body, 'target': document.summary}


def parameters(documents: Sequence[Document]) -> Iterator[Row]:
  """Yield tokens, tags and heads: name, type and explanation of parameters.

  They are joined without the colons between them. The head of a word is the first word of its name, type or
  explanation. The head of the first words of type and explanation is the name, which is a root.
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
  """Yield SQuAD's fields: which words of Parameters sections describe a parameter."""
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
  """Build the rows of each split, without subjects of earlier splits."""
  rows: dict[str, list[Row]] = {}
  seen: set[str] = set()
  for split, documents in splits.items():
    rows[split] = [row for row in task.rows(documents) if str(row[task.about]) not in seen]
    seen.update(str(row[task.about]) for row in rows[split])
  return rows


@functools.lru_cache(maxsize=3)  # one entry per split, for three tasks
def _summarised(documents: tuple[Document, ...]) -> list[tuple[Document, str, list[str]]]:
  """Select documents with a good summary and body.

  Returns the document, its body, and other summaries as distractors. These are of the same package: of 64 that the name
  of the document samples, the 8 that share most words with the body.
  """
  owners: dict[str, Document] = {}  # by body; the first of several documents with the same body
  pools: dict[str, list[tuple[str, set[str]]]] = defaultdict(list)
  for document in documents:
    summary = document.summary
    body = _shorten(document.text[len(summary) :].lstrip('\n'), BODY_CHARS)
    whole = 20 <= len(summary) <= 200 and summary[-1] == '.' and summary[0].isupper()
    if whole and len(body) >= 150 and summary not in body and _overlap(_stems(summary), _stems(body)) >= 0.3:
      owners.setdefault(body, document)
      pools[document.package].append((summary, _stems(summary)))
  result = []
  for body, document in owners.items():
    pool = pools[document.package]
    start = random.Random(document.name).randrange(len(pool))
    stems = _stems(body)
    overlaps = {summary: _overlap(words, stems) for summary, words in (pool[start:] + pool[:start])[:64]}
    overlaps.pop(document.summary, None)
    others = sorted(overlaps, key=lambda summary: (-overlaps[summary], summary))[:8]
    if others:
      result.append((document, body, others))
  return result


def _stems(text: str) -> set[str]:
  return {word[:5] for word in re.findall(r'[a-z]{3,}', text.lower()) if word not in FUNCTION_WORDS}


def _overlap(summary: set[str], body: set[str]) -> float:
  return len(summary & body) / max(len(summary), 1)


def _section(document: Document) -> tuple[str, list[tuple[str, int, str]]]:
  """Return summary and parameters as context; (name, start, answer) of each."""
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
  """Keep the paragraphs that fit, or the sentences of the first one."""
  if len(text) <= limit:
    return text
  for separator in ('\n\n', '\n'):
    end = text.rfind(separator, 0, limit)
    if end >= limit // 2:
      return text[:end]
  ends = [match.start() for match in _SENTENCE.finditer(text[:limit])]
  return text[: ends[-1] if ends else text.rfind(' ', 0, limit)].rstrip()
