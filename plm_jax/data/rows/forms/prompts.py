"""Prompts that a language model goes on with, without an update.

Those of GPT-3 (Brown et al. 2020, §3 and appendix G):

    copa        My body cast a shadow over the grass because      the sun was rising.
    hellaswag   Removing ice from car: A man writes over the snow. Then, he      starts to scrape it off.
    lambada     "I never said that," she whispered to      him

Those of GPT (Radford et al. 2018, §5, "Zero-shot Behaviors"):

    cola        They      drank the pub dry.               the likelihood of the sentence behind its first word
    sst2        a gorgeous, witty, seductive movie. very      positive
    race        (an article) (a question)      (an answer)
    winograd, dpr, winogrande
                The trophy does not fit in the suitcase because      [the trophy] is too big.

Each referent stands in place of the pronoun, and what follows it is compared: the referent itself, here in brackets, is
read only. With `compare='all'` it counts too (Trinh & Le 2018, §3: partial and full scoring).

What comes first of the inputs is cut where they are too long. A target or an option follows behind a space (`gap`).
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
  """A task of the papers, a row of `TASKS`.

  Args:
    task: its name.
    compare: of options that stand in place of a pronoun: the 'rest' of the sentence behind them, or 'all'.
  """
  if task not in TASKS:
    raise ValueError(f'form.task={task!r}; choices are {", ".join(TASKS)}')
  errors.one_of('form.compare', compare, Compare)
  return Form(partial(write, TASKS[task], compare), (), keep='end')


def write(task: Callable[[Row], Written], compare: Compare, row: Row) -> Written:
  """The text of a row."""
  text = task(row)
  return text if compare == 'rest' else text._replace(leads=())


def copa(row: Row) -> Written:
  """The premise and "because" or "so", then each choice in lower case (TFDS super_glue/copa)."""
  joint = {'cause': 'because', 'effect': 'so'}
  if (asked := written.text_of(row, 'question')) not in joint:
    raise ValueError(f"'question' holds {asked!r}, and must be cause or effect")
  choices = tuple(_lower(written.text_of(row, name)) for name in ('choice1', 'choice2'))
  return _chosen(f'{written.text_of(row, "premise").rstrip(" .")} {joint[asked]}', choices, row)


def hellaswag(row: Row) -> Written:
  """The activity and the context, then each ending, without marks in brackets (TFDS hellaswag)."""
  context = f'{written.text_of(row, "activity_label")}: {written.text_of(row, "context")}'
  return _chosen(_unmarked(context), tuple(map(_unmarked, written.texts_of(row, 'endings'))), row)


def lambada(row: Row) -> Written:
  """A passage without its last word, and this word (TFDS lambada)."""
  before, _, last = written.text_of(row, 'passage').rstrip().rpartition(' ')
  if not before:
    raise ValueError("'passage' holds one word, and a prompt has to stand before the last one")
  return Written(before, (last,))


def cola(row: Row) -> Written:
  """The first word, then the rest of the sentence (TFDS glue/cola); a decoder gives its first token no likelihood."""
  first, _, rest = written.text_of(row, 'sentence').strip().partition(' ')
  if not rest:
    raise ValueError("'sentence' holds one word, and its likelihood is that of what follows the first one")
  return Written(first, (rest,))


def sst2(row: Row) -> Written:
  """The sentence and "very" (TFDS glue/sst2)."""
  return _chosen(f'{written.text_of(row, "sentence").strip()} very', ('negative', 'positive'), row)


def race(row: Row) -> Written:
  """The article and a question, then each answer; a row has one question and the letter of its answer."""
  options = written.texts_of(row, 'options')
  letters = [chr(ord('A') + number) for number in range(len(options))]
  label = written.label_of(row, 'answer', options, names=letters)
  right = options[label : label + 1] if label >= 0 else ()
  return Written(f'{written.text_of(row, "article")} {written.text_of(row, "question")}', right, options, label)


def winograd(row: Row) -> Written:
  """The 273 schemas of Levesque et al. 2012, where the place of the pronoun is given (TFDS wsc273)."""
  start, end = (written.whole_of(row, f'pronoun_{side}') for side in ('start', 'end'))
  texts = tuple(written.text_of(row, f'option{number}') for number in (1, 2))
  return _substituted(written.text_of(row, 'text'), (start, end), texts, written.label_of(row, 'label', texts))


def dpr(row: Row) -> Written:
  """Definite pronoun resolution (TFDS definite_pronoun_resolution): the first place of the pronoun counts."""
  sentence, pronoun = written.text_of(row, 'sentence'), written.text_of(row, 'pronoun')
  places = [found.span() for found in re.finditer(rf'\b{re.escape(pronoun)}\b', sentence)]
  if not places:
    raise ValueError(f"'pronoun' is {pronoun!r}, and is no word of {sentence!r}")
  texts = written.texts_of(row, 'candidates')
  return _substituted(sentence, places[0], texts, written.label_of(row, 'label', texts))


def winogrande(row: Row) -> Written:
  """Winogrande, where _ stands for the pronoun, and the answer is '1' or '2' (TFDS winogrande)."""
  sentence = written.text_of(row, 'sentence')
  if (place := sentence.find('_')) < 0:
    raise ValueError(f"'sentence' has no _: {sentence!r}")
  texts = tuple(written.text_of(row, f'option{number}') for number in (1, 2))
  given = row.get('answer', row.get('label'))
  label = written.label_of({'answer': None if given == '' else given}, 'answer', texts, names=('1', '2'))
  return _substituted(sentence, (place, place + 1), texts, label)


def _substituted(text: str, place: tuple[int, int], referents: Sequence[str], label: int) -> Written:
  """The text up to a pronoun, then each referent with the rest of the text behind it."""
  before, rest = text[: place[0]].rstrip(), text[place[1] :]
  if not before or not rest.strip():
    raise ValueError(f'nothing stands {"behind" if before else "before"} the pronoun of {text!r}')
  opens = text[place[0]].isupper() or before.endswith(('.', '!', '?'))
  leads = tuple(_inside(referent.strip(), opens=opens) for referent in referents)
  options = tuple(f'{lead}{rest}' for lead in leads)
  return Written(before, options[label : label + 1] if label >= 0 else (), options, label, leads=leads)


def _inside(referent: str, *, opens: bool) -> str:
  """A referent as it stands within a sentence: "The trophy" in lower case unless it `opens` one, names as they are."""
  if referent.partition(' ')[0].lower() not in DETERMINERS:
    return referent
  return f'{referent[:1].upper()}{referent[1:]}' if opens else _lower(referent)


def _chosen(inputs: str, options: tuple[str, ...], row: Mapping[str, Any]) -> Written:
  label = written.label_of(row, 'label', options)
  return Written(inputs, options[label : label + 1] if label >= 0 else (), options, label)


def _lower(text: str) -> str:
  return text[:1].lower() + text[1:]


def _unmarked(text: str) -> str:
  """HellaSwag's texts from WikiHow without [title], [step] and the like."""
  text = text.strip().replace(' [title]', '. ')
  return re.sub(r'\[.*?\]', '', text).replace('  ', ' ')


DETERMINERS = {
  'a', 'an', 'the', 'this', 'that', 'these', 'those', 'my', 'your', 'his', 'her', 'its', 'our', 'their',
}  # fmt: skip
TASKS: Mapping[str, Callable[[Row], Written]] = {
  'copa': copa, 'hellaswag': hellaswag, 'lambada': lambada,
  'cola': cola, 'sst2': sst2, 'race': race, 'winograd': winograd, 'dpr': dpr, 'winogrande': winogrande,
}  # fmt: skip
