"""Prompts that a language model goes on with, without an update (Brown et al. 2020, §3 and appendix G).

    copa        My body cast a shadow over the grass because      the sun was rising.
    hellaswag   Removing ice from car: A man writes over the snow. Then, he      starts to scrape it off.
    lambada     "I never said that," she whispered to      him

What comes first of the inputs is cut where they are too long. A target or an option follows behind a space (`gap`).
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

from plm_jax.data.rows import written
from plm_jax.data.rows.written import Form, Row, Written


def make(*, task: Annotated[str, 'data.rows.forms.prompts:TASKS']) -> Form:
  """A task of the paper, a row of `TASKS`."""
  if task not in TASKS:
    raise ValueError(f'form.task={task!r}; choices are {", ".join(TASKS)}')
  return Form(TASKS[task], (), keep='end')


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


def _chosen(inputs: str, options: tuple[str, ...], row: Mapping[str, Any]) -> Written:
  label = written.label_of(row, 'label', options)
  return Written(inputs, options[label : label + 1] if label >= 0 else (), options, label)


def _lower(text: str) -> str:
  return text[:1].lower() + text[1:]


def _unmarked(text: str) -> str:
  """HellaSwag's texts from WikiHow without [title], [step] and the like."""
  text = text.strip().replace(' [title]', '. ')
  return re.sub(r'\[.*?\]', '', text).replace('  ', ' ')


TASKS: Mapping[str, Callable[[Row], Written]] = {'copa': copa, 'hellaswag': hellaswag, 'lambada': lambada}
