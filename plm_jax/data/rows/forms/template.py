"""Templates with the fields of a row in braces: 'translate English to German: {en}' with the target '{de}'.

The texts of a list are joined by spaces if the field is a part of a text. If the field is the whole target or the whole
option, each text of the list is a right answer, or an option. Nested fields have dots, '{answers.text}'.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from plm_jax.core import errors
from plm_jax.data.rows import written
from plm_jax.data.rows.written import BLANK, Form, Keep, Written


def make(
  *, inputs: str, target: str = '', options: tuple[str, ...] = (), label: str = 'label', keep: Keep = 'start'
) -> Form:
  """Build a form from templates.

  Args:
    inputs: template of the inputs; '[MASK]' is the blank.
    target: template of the target; '' for the right option.
    options: a text for each label, as ('negative', 'positive'), or the one field that holds them, ('{endings}',).
    label: field with the index of the right option, or its text.
    keep: part that remains of inputs that are too long: their 'start', their 'end', or all except the ends of the
      'fields'.

  Raises:
    ValueError: neither a target nor options, or more than one blank.
  """
  if not target and not options:
    raise ValueError('form.target and form.options are empty: set one of them')
  if inputs.count(BLANK) > 1:
    raise ValueError(f'form.inputs={inputs!r} has {inputs.count(BLANK)} blanks: keep one [MASK]')
  errors.one_of('form.keep', keep, Keep)
  read = written.names_in(inputs)
  in_options = dict.fromkeys(name for option in options for name in written.names_in(option) if name not in read)
  return Form(
    write=partial(write, inputs, target, options, label),
    fields=read,
    options=() if any(map(written.names_in, options)) else options,
    keep=keep,
    answers=tuple(name for name in written.names_in(target) if name not in read),
    whole=tuple(in_options),
  )


def write(inputs: str, target: str, options: Sequence[str], label: str, row: Mapping[str, Any]) -> Written:
  """Write a row, whose target is by default the right option."""
  targets: tuple[str, ...]
  choices = tuple(text for template in options for text in written.each_filled(template, row, spelt=True))
  right = written.label_of(row, label, choices) if choices else -1
  if target and any(row.get(name.partition('.')[0], '') is None for name in written.names_in(target)):
    targets = ()
  elif target:
    targets = tuple(text for text in written.each_filled(target, row) if text)
  else:
    targets = choices[right : right + 1] if right >= 0 else ()
  return Written(written.filled(inputs, row), targets, choices, right)
