"""Prompts that a language model continues without any update.

Those of GPT-3 (Brown et al. 2020, §3 and appendix G):

    copa        My body cast a shadow over the grass because      the sun was rising.
    hellaswag   Removing ice from car: A man writes over the snow. Then, he      starts to scrape it off.
    piqa        Question: How do I open a jar? Answer:      Turn the lid.
    lambada     "I never said that," she whispered to      him

Those of GPT (Radford et al. 2018, §5, "Zero-shot Behaviors"):

    cola        They      drank the pub dry.               the likelihood of the sentence after its first word
    sst2        a gorgeous, witty, seductive movie. very      positive
    race        (an article) (a question)      (an answer)
    winograd, dpr, winogrande
                The trophy does not fit in the suitcase because      [the trophy] is too big.

Those of GPT-2 (Radford et al. 2019, §3.2, §3.5, §3.7, §3.8):

    cbt         (20 sentences) She gave the      [dog] a bone.      each candidate, with the rest of the sentence
    de_en       ein Hund läuft =      a dog runs                    after pairs of the same form (`shots`)
    question    (a passage) Q: Who runs? A:      a dog

Each referent replaces the pronoun, and the text after it is scored. The referent itself, here in brackets, is read but
not scored. With `compare='all'` it is scored too (Trinh & Le 2018, §3: partial and full scoring).

Inputs that are too long lose their beginning. A target or an option follows after a space (`gap`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from plm_jax.core import errors
from plm_jax.data.rows import written
from plm_jax.data.rows.written import Form, Row, Written

Compare = Literal['rest', 'all']


def make(*, task: Annotated[str, 'data.rows.forms.prompts:TASKS'], compare: Compare = 'rest') -> Form:
  """Build the form of a task of `TASKS`.

  Args:
    task: name of the task.
    compare: for options that replace a pronoun: score the 'rest' of the sentence after them, or 'all'.
  """
  if task not in TASKS:
    raise ValueError(f'form.task={task!r} does not exist: choose one of {", ".join(TASKS)}')
  errors.one_of('form.compare', compare, Compare)
  return Form(partial(write, TASKS[task], compare), (), keep='end')


def write(task: Callable[[Row], Written], compare: Compare, row: Row) -> Written:
  """Write the text of a row."""
  text = task(row)
  return text if compare == 'rest' else text._replace(leads=())


def copa(row: Row) -> Written:
  """Write premise and "because" or "so"; lower-case choices (TFDS super_glue/copa)."""
  joint = {'cause': 'because', 'effect': 'so'}
  if (question := written.text_of(row, 'question')) not in joint:
    raise ValueError(f"'question' holds {question!r} but must be cause or effect")
  choices = tuple(_lower(written.text_of(row, name)) for name in ('choice1', 'choice2'))
  return _chosen(f'{written.text_of(row, "premise").rstrip(" .")} {joint[question]}', choices, row)


def hellaswag(row: Row) -> Written:
  """Write activity and unmarked context; the endings are options (TFDS hellaswag)."""
  context = f'{written.text_of(row, "activity_label")}: {written.text_of(row, "context")}'
  return _chosen(_unmarked(context), tuple(map(_unmarked, written.texts_of(row, 'endings'))), row)


def piqa(row: Row) -> Written:
  """Write "Question: ... Answer:" as lm-evaluation-harness; options are solutions (TFDS piqa)."""
  options = tuple(written.text_of(row, name) for name in ('sol1', 'sol2'))
  return _chosen(f'Question: {written.text_of(row, "goal")}\nAnswer:', options, row)


def lambada(row: Row) -> Written:
  """Write a passage without its last word, the target (TFDS lambada)."""
  before, _, last = written.text_of(row, 'passage').rstrip().rpartition(' ')
  if not before:
    raise ValueError("'passage' holds one word but needs a prompt before the last one")
  return Written(before, (last,))


def cola(row: Row) -> Written:
  """Write the first word, unscored by decoders; target the rest (TFDS glue/cola)."""
  first, _, rest = written.text_of(row, 'sentence').strip().partition(' ')
  if not rest:
    raise ValueError("'sentence' holds one word but the text after the first word is scored")
  return Written(first, (rest,))


def sst2(row: Row) -> Written:
  """Write the sentence and "very" (TFDS glue/sst2)."""
  return _chosen(f'{written.text_of(row, "sentence").strip()} very', ('negative', 'positive'), row)


def race(row: Row) -> Written:
  """Write the article and question; options are answers, the label a letter."""
  options = written.texts_of(row, 'options')
  letters = [chr(ord('A') + index) for index in range(len(options))]
  label = written.label_of(row, 'answer', options, names=letters)
  right = options[label : label + 1] if label >= 0 else ()
  return Written(f'{written.text_of(row, "article")} {written.text_of(row, "question")}', right, options, label)


def cbt(row: Row) -> Written:
  """Write a passage, and a sentence with each candidate (TFDS cbt)."""
  question = written.text_of(row, 'question')
  if (start := question.find(BLANK)) < 0:
    raise ValueError(f"'question' has no {BLANK}: {question!r}")
  passage = ' '.join(written.texts_of(row, 'sentences'))
  options = tuple(text for text in written.texts_of(row, 'options') if text)
  label = written.label_of(row, 'answer', options, names=options)
  texts = tuple(f'{option}{question[start + len(BLANK) :]}' for option in options)
  return Written(f'{passage} {question[:start]}'.strip(), texts[label : label + 1] if label >= 0 else (), texts, label)


def translate(row: Row, *, source: str, target: str) -> Written:
  """Write a sentence and "="; the target is its translation."""
  known = written.known_texts(row, target)
  return Written(f'{written.text_of(row, source).strip()} =', tuple(known[:1]))


def question(row: Row) -> Written:
  """Write a passage and a question; targets are its answers (TFDS squad)."""
  texts = {name: written.text_of(row, name).strip() for name in ('context', 'question')}
  answers = tuple(dict.fromkeys(written.known_texts(row, 'answers.text')))
  return Written(f'{texts["context"]}\nQ: {texts["question"]}\nA:', answers)


def winograd(row: Row) -> Written:
  """Write the 273 schemas of Levesque et al. 2012 (TFDS wsc273).

  The data gives the characters of the pronoun.
  """
  start, end = (written.whole_of(row, f'pronoun_{side}') for side in ('start', 'end'))
  texts = tuple(written.text_of(row, f'option{index}') for index in (1, 2))
  return _substituted(written.text_of(row, 'text'), (start, end), texts, written.label_of(row, 'label', texts))


def dpr(row: Row) -> Written:
  """Write definite pronoun resolution (TFDS definite_pronoun_resolution).

  The first occurrence of the pronoun counts.
  """
  sentence, pronoun = written.text_of(row, 'sentence'), written.text_of(row, 'pronoun')
  spans = [match.span() for match in re.finditer(rf'\b{re.escape(pronoun)}\b', sentence)]
  if not spans:
    raise ValueError(f"'pronoun' is {pronoun!r}, which is no word of {sentence!r}")
  texts = written.texts_of(row, 'candidates')
  return _substituted(sentence, spans[0], texts, written.label_of(row, 'label', texts))


def winogrande(row: Row) -> Written:
  """Write Winogrande (TFDS winogrande), with _ as pronoun and answers '1', '2'."""
  sentence = written.text_of(row, 'sentence')
  if (position := sentence.find('_')) < 0:
    raise ValueError(f"'sentence' has no _: {sentence!r}")
  texts = tuple(written.text_of(row, f'option{index}') for index in (1, 2))
  answer = row.get('answer', row.get('label'))
  label = written.label_of({'answer': None if answer == '' else answer}, 'answer', texts, names=('1', '2'))
  return _substituted(sentence, (position, position + 1), texts, label)


def _substituted(text: str, bounds: tuple[int, int], referents: Sequence[str], label: int) -> Written:
  """Write the text before a pronoun; options continue it by referent."""
  before, rest = text[: bounds[0]].rstrip(), text[bounds[1] :]
  if not before or not rest.strip():
    raise ValueError(f'there is no text {"after" if before else "before"} the pronoun of {text!r}')
  opens = text[bounds[0]].isupper() or before.endswith(('.', '!', '?'))
  leads = tuple(_inside(referent.strip(), opens=opens) for referent in referents)
  options = tuple(f'{lead}{rest}' for lead in leads)
  return Written(before, options[label : label + 1] if label >= 0 else (), options, label, leads=leads)


def _inside(referent: str, *, opens: bool) -> str:
  """Write a referent inside a sentence: "The trophy" becomes "the trophy"."""
  if referent.partition(' ')[0].lower() not in DETERMINERS:
    return referent
  return f'{referent[:1].upper()}{referent[1:]}' if opens else _lower(referent)


def _chosen(inputs: str, options: tuple[str, ...], row: Mapping[str, Any]) -> Written:
  label = written.label_of(row, 'label', options)
  return Written(inputs, options[label : label + 1] if label >= 0 else (), options, label)


def _lower(text: str) -> str:
  return text[:1].lower() + text[1:]


def _unmarked(text: str) -> str:
  """Remove [title], [step] and the like from HellaSwag's WikiHow texts."""
  text = text.strip().replace(' [title]', '. ')
  return re.sub(r'\[.*?\]', '', text).replace('  ', ' ')


BLANK = 'XXXXX'  # of the Children's Book Test
DETERMINERS = {
  'a', 'an', 'the', 'this', 'that', 'these', 'those', 'my', 'your', 'his', 'her', 'its', 'our', 'their',
}  # fmt: skip
TASKS: Mapping[str, Callable[[Row], Written]] = {
  'copa': copa, 'hellaswag': hellaswag, 'piqa': piqa, 'lambada': lambada,
  'cola': cola, 'sst2': sst2, 'race': race, 'winograd': winograd, 'dpr': dpr, 'winogrande': winogrande,
  'cbt': cbt, 'question': question,
  'en_de': partial(translate, source='en', target='de'), 'de_en': partial(translate, source='de', target='en'),
  'en_fr': partial(translate, source='en', target='fr'), 'fr_en': partial(translate, source='fr', target='en'),
  'en_ro': partial(translate, source='en', target='ro'), 'ro_en': partial(translate, source='ro', target='en'),
}  # fmt: skip
