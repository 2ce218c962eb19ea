"""Tasks in the text format of T5 (Raffel et al. 2020, appendix D; t5/data/preprocessors.py and glue_utils.py).

The inputs are the name of the benchmark, then each field after its name; the targets are words. A generated text that
is not exactly the words of a label is wrong. An unknown label has no target.

    mnli     mnli hypothesis: I am home. premise: I have just arrived.     entailment
    stsb     stsb sentence1: A plane lands. sentence2: A plane is landing.     4.6
    record   record query: A @placeholder is a bird. entities: penguin, potato passage: This is it.     penguin
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

from plm_jax.data.rows import referents, written
from plm_jax.data.rows.written import Form, Row, Written

ENTAILMENT, TRUTH = ('entailment', 'not_entailment'), ('False', 'True')


def _unchanged(row: Row) -> Row:
  return row


class Task(NamedTuple):
  """Text format of a task."""

  inputs: str  # template of the inputs
  labels: tuple[str, ...] = ()  # the words of each label; () if the target is another text
  target: str = ''  # template of the target
  # function that changes a row before it is written; returns None to drop the row
  change: Callable[[Row], Row | None] = _unchanged
  value: str = ''  # field with the number that the target spells, -1 if unknown; '' for none
  fields: tuple[str, ...] = ()  # fields of a row that form the inputs; () for those of the template
  answers: tuple[str, ...] = ()  # fields of a row that form only the target; () for those of the template of the target
  found: tuple[str, ...] = ()  # fields that `change` adds and scores read


def make(*, task: Annotated[str, 'data.rows.forms.t5:TASKS']) -> Form:
  """Build the form of a task of `TASKS`, T5's mixture."""
  if task not in TASKS:
    raise ValueError(f'form.task={task!r} does not exist: choose one of {", ".join(TASKS)}')
  t5_task = TASKS[task]
  return Form(
    write=partial(write, t5_task),
    fields=t5_task.fields or written.names_in(t5_task.inputs),
    options=t5_task.labels,
    answers=t5_task.answers or (written.names_in(t5_task.target) if t5_task.change is _unchanged else ()),
  )


def write(task: Task, row: Mapping[str, Any]) -> Written | None:
  """Write the text of a row; None if the row is dropped."""
  changed = task.change(row)
  if changed is None:
    return None
  inputs = written.filled(task.inputs, changed)
  if not task.labels:
    targets, value = written.each_filled(task.target, changed), _value(task, changed)
    return Written(inputs, targets, value=value, found={name: changed[name] for name in task.found})
  label = written.label_of(changed, 'label', task.labels)
  return Written(inputs, task.labels[label : label + 1] if label >= 0 else (), task.labels, label)


def _value(task: Task, row: Row) -> float | None:
  if not task.value:
    return None
  return -1.0 if row[task.value] is None else float(row[task.value])


# Changes of rows -----------------------------------------------------------------------------------------------------


def _score(row: Row) -> Row:
  """Round STS-B's score to the nearest .2, halves to even steps."""
  value = written.value_of(row, 'label')
  if isinstance(value, bool) or not isinstance(value, int | float | None):
    raise ValueError(f"'label' holds {value!r}, not a number")
  return {**row, 'score': [] if value is None or value < 0 else [f'{round(value * 5) / 5:.1f}']}


def _without_markup(row: Row) -> Row:
  """Remove the HTML around the sentences of MultiRC."""
  fields = ('question', 'answer', 'paragraph')
  texts = {name: re.sub('</?b>', '', written.text_of(row, name).replace('<br>', ' ')) for name in fields}
  return {**row, **texts}


def _record(row: Row) -> Row:
  """Join ReCoRD's entities, and its highlights as sentences."""
  passage = re.sub(r'([.?!"\'])\n@highlight\n', r'\1 ', written.text_of(row, 'passage'))
  entities = ', '.join(written.texts_of(row, 'entities'))
  return {**row, 'entities': entities, 'passage': passage.replace('\n@highlight\n', '. ')}


def _squad(row: Row) -> Row:
  texts = {name: spaced(written.text_of(row, name)) for name in ('question', 'context')}
  return {**row, **texts, 'answers': {'text': [spaced(text) for text in written.known_texts(row, 'answers.text')]}}


def spaced(text: str) -> str:
  """Put spaces around ASCII punctuation; use single spaces elsewhere."""
  return re.sub(r'\s+', ' ', re.sub(r'([!-/:-@\[-`{-~])', r' \1 ', text)).strip()


def _wsc(row: Row) -> Row:
  """Put asterisks around the pronoun of WSC.

  The noun is the target of a row whose label is true. Other rows have no target, because the right noun is unknown. The
  pronoun is also searched one word away from its index: one published row counts a word too few, which the released
  code corrects by its text.
  """
  noun = [written.text_of(row, 'span1_text')] if row.get('label') == 1 else []
  return {**row, 'text': referents.marked(row, span2='*'), 'referent': noun}


def _wsc_marked(row: Row) -> Row:
  """Put `*` around the noun and `#` around the pronoun, with spaces."""
  first, second = (written.whole_of(row, name) for name in ('span1_index', 'span2_index'))
  text = _marked(written.text_of(row, 'text'), written.text_of(row, 'span1_text'), first, '*')
  # The marks of the noun are two additional words.
  return {**row, 'text': _marked(text, written.text_of(row, 'span2_text'), second + 2 * (first < second), '#')}


def _marked(text: str, span: str, index: int, mark: str) -> str:
  pattern = rf'^((?:\S+\s){{{index}}})({re.escape(span)})'
  return re.sub(pattern, lambda match: f'{match[1]}{mark} {match[2]} {mark}', text)


def _dpr(row: Row) -> Row:
  """Convert definite pronoun resolution to WSC, marking the pronoun's first occurrence."""
  sentence, pronoun = written.text_of(row, 'sentence'), re.escape(written.text_of(row, 'pronoun'))
  label = written.label_of(row, 'label', written.texts_of(row, 'candidates'))
  marked = re.sub(rf' ({pronoun})( |\.|,)', r' *\1*\2', sentence, count=1)
  return {**row, 'text': marked, 'referent': [row['candidates'][label]] if label >= 0 else []}


def _wnli(row: Row) -> Row:
  """Convert WNLI to WSC by the pronoun that the second sentence replaces."""
  marked, noun = referents.replaced(written.text_of(row, 'sentence1'), written.text_of(row, 'sentence2'))
  return {**row, 'text': marked, 'span1_text': noun, 'referent': [noun] if row.get('label') == 1 else []}


# Tasks by the names of TFDS. Fields are in alphabetical order, unless the released code lists them -------------------

TASKS: Mapping[str, Task] = {
  'cola': Task('cola sentence: {sentence}', ('unacceptable', 'acceptable')),
  'sst2': Task('sst2 sentence: {sentence}', ('negative', 'positive')),
  'mrpc': Task('mrpc sentence1: {sentence1} sentence2: {sentence2}', ('not_equivalent', 'equivalent')),
  'stsb': Task(
    'stsb sentence1: {sentence1} sentence2: {sentence2}',
    target='{score}', change=_score, value='label', answers=('label',),
  ),
  'qqp': Task('qqp question1: {question1} question2: {question2}', ('not_duplicate', 'duplicate')),
  'mnli': Task('mnli hypothesis: {hypothesis} premise: {premise}', ('entailment', 'neutral', 'contradiction')),
  'qnli': Task('qnli question: {question} sentence: {sentence}', ENTAILMENT),
  'rte': Task('rte sentence1: {sentence1} sentence2: {sentence2}', ENTAILMENT),
  'boolq': Task('boolq passage: {passage} question: {question}', TRUTH),
  'cb': Task('cb hypothesis: {hypothesis} premise: {premise}', ('entailment', 'contradiction', 'neutral')),
  'copa': Task(
    'copa choice1: {choice1} choice2: {choice2} premise: {premise} question: {question}', ('choice1', 'choice2')
  ),
  'multirc': Task(
    'multirc question: {question} answer: {answer} paragraph: {paragraph}', TRUTH, change=_without_markup
  ),
  'record': Task(
    'record query: {query} entities: {entities} passage: {passage}',
    target='{answers}', change=_record, answers=('answers',),
  ),
  'super_glue_rte': Task('rte hypothesis: {hypothesis} premise: {premise}', ENTAILMENT),
  'axb': Task('rte hypothesis: {sentence2} premise: {sentence1}', ENTAILMENT),
  'axg': Task('rte hypothesis: {hypothesis} premise: {premise}', ENTAILMENT),
  'wic': Task('wic sentence1: {sentence1} sentence2: {sentence2} word: {word}', TRUTH),
  'wsc': Task('wsc: {text}', target='{referent}', change=_wsc, fields=('text', 'span2_text', 'span2_index')),
  'wsc_marked': Task(
    'wsc text: {text}', TRUTH, change=_wsc_marked,
    fields=('text', 'span1_text', 'span1_index', 'span2_text', 'span2_index'),
  ),
  'dpr': Task('wsc: {text}', target='{referent}', change=_dpr, fields=('sentence', 'pronoun', 'candidates')),
  'wnli': Task(
    'wsc: {text}', target='{referent}', change=_wnli, fields=('sentence1', 'sentence2'), found=('span1_text',)
  ),
  'squad': Task(
    'question: {question} context: {context}', target='{answers.text}', change=_squad, answers=('answers',)
  ),
  'cnn_dailymail': Task('summarize: {article}', target='{highlights}'),
  'xsum': Task('summarize: {document}', target='{summary}'),
  'scitldr': Task('summarize: {source}', target='{target}'),
  'wmt_en_de': Task('translate English to German: {en}', target='{de}'),
  'wmt_en_fr': Task('translate English to French: {en}', target='{fr}'),
  'wmt_en_ro': Task('translate English to Romanian: {en}', target='{ro}'),
}  # fmt: skip
