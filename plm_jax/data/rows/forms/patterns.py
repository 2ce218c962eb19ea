"""Patterns with a blank and its options: SuperGLUE as in GLM, sentiment as in PET.

GLM: Du et al. 2021, §2.3, Table 6 and the released tasks/superglue/pvp.py, pattern 0. PET: Schick and Schütze 2020, §4.

    copa   "the sun was rising" or "the grass was cut"? My body cast a shadow over the grass because [MASK].
    rte    "The sun rose" ? [MASK], "It was morning."      Yes, No
    sst2   A gorgeous, witty film. It was [MASK].          terrible, great
    wsc    Tom told Bob that *he* had won. The pronoun '*he*' refers to [MASK].      Tom, which is written
"""

import string
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from plm_jax.data.rows import referents, written
from plm_jax.data.rows.written import Form, Row, Written


class Pattern(NamedTuple):
  """Text format of a task."""

  inputs: str  # template with a blank
  words: tuple[str, ...] = ()  # word in the blank for each label; () if rows have their own options
  change: Callable[[Row], Row] = lambda row: row  # function that changes a row before it is written
  # row -> its options and the index of the right one; None if all rows have `words`
  options: Callable[[Row], tuple[tuple[str, ...], int]] | None = None
  # row -> right answers, if any text may be written; None if an option is chosen
  targets: Callable[[Row], tuple[str, ...]] | None = None
  fields: tuple[str, ...] = ()  # fields of a row that form the inputs; () for those of the template
  whole: tuple[str, ...] = ()  # further fields that a row needs; they are not cut if the inputs are too long
  answers: tuple[str, ...] = ()  # fields of a row that form only the answers
  # names of the labels; rows may hold them instead of indices, as SuperGLUE's published files do, and benchmarks take
  # them
  names: tuple[str, ...] = ()


def make(*, task: Annotated[str, 'data.rows.forms.patterns:TASKS']) -> Form:
  """Build the form of a task of `TASKS`."""
  if task not in TASKS:
    raise ValueError(f'form.task={task!r} does not exist: choose one of {", ".join(TASKS)}')
  pattern = TASKS[task]
  return Form(
    write=partial(write, pattern),
    fields=pattern.fields or written.names_in(pattern.inputs),
    options=pattern.words,
    keep='fields',
    answers=pattern.answers,
    whole=pattern.whole,
    names=pattern.names,
  )


def write(pattern: Pattern, row: Mapping[str, Any]) -> Written:
  """Write the text of a row."""
  changed = pattern.change(row)
  inputs = written.filled(pattern.inputs, changed)
  if pattern.targets is not None:
    return Written(inputs, pattern.targets(row))
  if pattern.options is not None:
    options, label = pattern.options(row)
  else:
    options, label = pattern.words, written.label_of(row, 'label', pattern.words, names=pattern.names)
  return Written(inputs, options[label : label + 1] if label >= 0 else (), options, label)


def bare(text: str) -> str:
  """Remove the punctuation at the end of a text."""
  return text.rstrip(string.punctuation)


def lower(text: str) -> str:
  """Lower the first letter of a text."""
  return text[:1].lower() + text[1:]


def _without_end(*fields: str) -> Callable[[Row], Row]:
  """Build the function that removes punctuation at the ends of fields."""
  return lambda row: {**row, **{name: bare(written.text_of(row, name).rstrip()) for name in fields}}


def _copa(row: Row) -> Row:
  choices = {name: bare(lower(written.text_of(row, name))) for name in ('choice1', 'choice2')}
  joint = {'cause': ' because', 'effect': ', so'}
  if (question := written.text_of(row, 'question')) not in joint:
    raise ValueError(f"'question' holds {question!r} but must be cause or effect")
  return {**row, **choices, 'premise': bare(written.text_of(row, 'premise')), 'joint': joint[question]}


def _copa_options(row: Row) -> tuple[tuple[str, ...], int]:
  choices = tuple(bare(lower(written.text_of(row, name))) for name in ('choice1', 'choice2'))
  return choices, written.label_of(row, 'label', choices)


def _record(row: Row) -> Row:
  query = written.text_of(row, 'query')
  if query.count('@placeholder') != 1:
    raise ValueError(f"'query' has {query.count('@placeholder')} times @placeholder but must have it once")
  return {**row, 'query': query.replace('@placeholder', written.MARK)}


def _record_options(row: Row) -> tuple[tuple[str, ...], int]:
  """Return the entities, and the index of the first answer."""
  entities, answers = written.texts_of(row, 'entities'), written.known_texts(row, 'answers')
  return entities, next((index for index, entity in enumerate(entities) if entity in answers), -1)


def _wsc_targets(row: Row) -> tuple[str, ...]:
  """Return the noun if it is right; otherwise the answer is unknown."""
  return (written.text_of(row, 'span1_text'),) if row.get('label') == 1 else ()


NLI, TRUTH = ('entailment', 'not_entailment'), ('False', 'True')
TASKS: Mapping[str, Pattern] = {
  'sst2': Pattern('{sentence} It was [MASK].', ('terrible', 'great'), names=('negative', 'positive')),
  'boolq': Pattern('{passage} Question: {question}? Answer: [MASK].', ('No', 'Yes'), names=TRUTH),
  'rte': Pattern('"{sentence2}" ? [MASK], "{sentence1}"', ('Yes', 'No'), _without_end('sentence2'), names=NLI),
  'super_glue_rte': Pattern(
    '"{hypothesis}" ? [MASK], "{premise}"', ('Yes', 'No'), _without_end('hypothesis'), names=NLI
  ),
  'cb': Pattern(
    '"{hypothesis}" ? [MASK], "{premise}"', ('Yes', 'No', 'Maybe'), _without_end('hypothesis'),
    names=('entailment', 'contradiction', 'neutral'),
  ),
  'mnli': Pattern(
    '"{hypothesis}" ? [MASK], "{premise}"', ('Yes', 'Maybe', 'No'), _without_end('hypothesis'),
    names=('entailment', 'neutral', 'contradiction'),
  ),
  'multirc': Pattern(
    '{paragraph}. Question: {question}? Is it {answer}? [MASK].', ('No', 'Yes'), _without_end('paragraph', 'question'),
    names=TRUTH,
  ),
  'wic': Pattern('"{sentence1}" / "{sentence2}" Similar sense of "{word}"? [MASK].', ('No', 'Yes'), names=TRUTH),
  'copa': Pattern(
    '"{choice1}" or "{choice2}"? {premise}{joint} [MASK].', (), _copa, _copa_options,
    fields=('choice1', 'choice2', 'premise'), whole=('question',),
  ),
  'wsc': Pattern(
    "{text} The pronoun '*{span2_text}*' refers to [MASK].", (),
    lambda row: {**row, 'text': referents.marked(row, span2='*')}, targets=_wsc_targets,
    fields=('text',), whole=('span2_text', 'span2_index'),
  ),
  'record': Pattern('{passage} {query}', (), _record, _record_options, whole=('entities',), answers=('answers',)),
}  # fmt: skip
