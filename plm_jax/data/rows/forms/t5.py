"""Tasks as T5 reads and writes them (Raffel et al. 2020, appendix D; t5/data/preprocessors.py and glue_utils.py).

The inputs are the name of the benchmark, then each field with its name before it; the targets are words. What is
written is a label where it equals its words, and else wrong. A label that is not known has no target.

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


def _as_it_is(row: Row) -> Row:
  return row


class Task(NamedTuple):
  """How one task is written.

  Attributes:
    inputs: template of what is read.
    labels: the words for each label; () where the target is another text.
    target: template of what is to be written.
    change: of a row before it is written; None leaves the row out.
    value: field with the number that the target spells, -1 where it is not known; '' where it spells none.
    fields: of a row that the inputs are made of; () where the template names them.
    answers: of a row that only the target is made of; () where the template of the target names them.
    found: fields that `change` adds and scores read.
  """

  inputs: str
  labels: tuple[str, ...] = ()
  target: str = ''
  change: Callable[[Row], Row | None] = _as_it_is
  value: str = ''
  fields: tuple[str, ...] = ()
  answers: tuple[str, ...] = ()
  found: tuple[str, ...] = ()


def make(*, task: Annotated[str, 'data.rows.forms.t5:TASKS']) -> Form:
  """A task of T5's mixture, a row of `TASKS`."""
  if task not in TASKS:
    raise ValueError(f'form.task={task!r}; choices are {", ".join(TASKS)}')
  chosen = TASKS[task]
  fields = chosen.fields or written.names_in(chosen.inputs)
  answers = chosen.answers or (written.names_in(chosen.target) if chosen.change is _as_it_is else ())
  return Form(partial(write, chosen), fields, chosen.labels, answers=answers)


def write(task: Task, row: Mapping[str, Any]) -> Written | None:
  """The text of a row."""
  changed = task.change(row)
  if changed is None:
    return None
  inputs = written.filled(task.inputs, changed)
  if not task.labels:
    found = {name: changed[name] for name in task.found}
    return Written(inputs, written.each_filled(task.target, changed), value=_value(task, changed), found=found)
  label = written.label_of(changed, 'label', task.labels)
  return Written(inputs, task.labels[label : label + 1] if label >= 0 else (), task.labels, label)


def _value(task: Task, row: Row) -> float | None:
  """The number that the target spells."""
  if not task.value:
    return None
  return -1.0 if row[task.value] is None else float(row[task.value])


# Rows that are not written as they are -------------------------------------------------------------------------------


def _score(row: Row) -> Row:
  """STS-B's score as the nearest of 0.0, 0.2, ..., 5.0; half of a step goes to the even one, as in TensorFlow."""
  value = written.value_of(row, 'label')
  if isinstance(value, bool) or not isinstance(value, int | float | None):
    raise ValueError(f"'label' holds {value!r}, which is no number")
  return {**row, 'score': [] if value is None or value < 0 else [f'{round(value * 5) / 5:.1f}']}


def _without_markup(row: Row) -> Row:
  """MultiRC without the marks of HTML around its sentences."""
  fields = ('question', 'answer', 'paragraph')
  texts = {name: re.sub('</?b>', '', written.text_of(row, name).replace('<br>', ' ')) for name in fields}
  return {**row, **texts}


def _record(row: Row) -> Row:
  """ReCoRD's entities in one line, and its highlights run on as sentences."""
  passage = re.sub(r'([.?!"\'])\n@highlight\n', r'\1 ', written.text_of(row, 'passage'))
  entities = ', '.join(written.texts_of(row, 'entities'))
  return {**row, 'entities': entities, 'passage': passage.replace('\n@highlight\n', '. ')}


def _squad(row: Row) -> Row:
  """SQuAD with spaces around punctuation."""
  texts = {name: spaced(written.text_of(row, name)) for name in ('question', 'context')}
  return {**row, **texts, 'answers': {'text': [spaced(text) for text in written.known_texts(row, 'answers.text')]}}


def spaced(text: str) -> str:
  """ASCII punctuation with spaces around it, and single spaces elsewhere."""
  return re.sub(r'\s+', ' ', re.sub(r'([!-/:-@\[-`{-~])', r' \1 ', text)).strip()


def _wsc(row: Row) -> Row:
  """WSC with the pronoun between asterisks; the noun is the target of a row whose label is true.

  The pronoun is looked for in the words beside its place as well: one published row counts a word too few, which the
  released code mends by its text. Rows whose noun is the wrong one have no target, since what would be right is not
  known.
  """
  noun = [written.text_of(row, 'span1_text')] if row.get('label') == 1 else []
  return {**row, 'text': referents.marked(row, span2='*'), 'referent': noun}


def _wsc_marked(row: Row) -> Row:
  """WSC with `*` around the noun and `#` around the pronoun, each with spaces."""
  first, second = (written.whole_of(row, name) for name in ('span1_index', 'span2_index'))
  text = _marked(written.text_of(row, 'text'), written.text_of(row, 'span1_text'), first, '*')
  # the marks of the noun are two more words
  return {**row, 'text': _marked(text, written.text_of(row, 'span2_text'), second + 2 * (first < second), '#')}


def _marked(text: str, span: str, place: int, mark: str) -> str:
  """A text with a mark before and behind a span that begins with word `place`."""
  pattern = rf'^((?:\S+\s){{{place}}})({re.escape(span)})'
  return re.sub(pattern, lambda found: f'{found[1]}{mark} {found[2]} {mark}', text)


def _dpr(row: Row) -> Row:
  """Definite pronoun resolution as WSC: the first place of the pronoun between asterisks."""
  sentence, pronoun = written.text_of(row, 'sentence'), re.escape(written.text_of(row, 'pronoun'))
  label = written.label_of(row, 'label', written.texts_of(row, 'candidates'))
  marked = re.sub(rf' ({pronoun})( |\.|,)', r' *\1*\2', sentence, count=1)
  return {**row, 'text': marked, 'referent': [row['candidates'][label]] if label >= 0 else []}


def _wnli(row: Row) -> Row:
  """WNLI as WSC: the pronoun that the second sentence replaces, and the noun that it has there instead."""
  marked, noun = referents.replaced(written.text_of(row, 'sentence1'), written.text_of(row, 'sentence2'))
  return {**row, 'text': marked, 'span1_text': noun, 'referent': [noun] if row.get('label') == 1 else []}


# Tasks, by the names of TFDS. Fields are in the order of their names, unless the released code lists them ------------

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
