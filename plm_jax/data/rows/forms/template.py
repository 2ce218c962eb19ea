"""Texts with the fields of a row in braces: 'translate English to German: {en}' to write '{de}'.

A field that holds a list of texts is joined by spaces where it is a part of a text. Where it is the whole target or
the whole option, each text of the list is a right answer, or an option. Nested fields are named with dots,
'{answers.text}'.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from plm_jax.core import errors
from plm_jax.data.rows import written
from plm_jax.data.rows.written import BLANK, Form, Keep, Written


def make(
  *,
  inputs: str,
  target: str = '',
  options: tuple[str, ...] = (),
  label: str = 'label',
  keep: Keep = 'start',
) -> Form:
  """Rows written by templates.

  Args:
    inputs: what is read; '[MASK]' is the blank to fill.
    target: what is to be written; '' where the right option is.
    options: a text for each label, as ('negative', 'positive'), or the one field that holds them, ('{endings}',).
    label: field that holds the number of the right option, or its text.
    keep: what stays of inputs that are too long: their 'start', their 'end', or all but the ends of the 'fields'.

  Raises:
    ValueError: neither a target nor options, or more than one blank.
  """
  if not target and not options:
    raise ValueError('form.target and form.options are empty: say what is to be written, or what is to be chosen from')
  if inputs.count(BLANK) > 1:
    raise ValueError(f'form.inputs={inputs!r} has {inputs.count(BLANK)} blanks: one can be filled')
  errors.one_of('form.keep', keep, Keep)
  alike = () if any(map(written.names_in, options)) else options
  read = written.names_in(inputs)
  answers = tuple(name for name in written.names_in(target) if name not in read)
  chosen = dict.fromkeys(name for option in options for name in written.names_in(option) if name not in read)
  return Form(partial(write, inputs, target, options, label), read, alike, keep, answers, tuple(chosen))


def write(inputs: str, target: str, options: Sequence[str], label: str, row: Mapping[str, Any]) -> Written:
  """The text of a row, with the right option as its target where there is no other."""
  targets: tuple[str, ...]
  choices = tuple(text for template in options for text in written.each_filled(template, row))
  right = written.label_of(row, label, choices) if choices else -1
  if target and any(row.get(name.partition('.')[0], '') is None for name in written.names_in(target)):
    targets = ()
  elif target:
    targets = tuple(text for text in written.each_filled(target, row) if text)
  else:
    targets = choices[right : right + 1] if right >= 0 else ()
  return Written(written.filled(inputs, row), targets, choices, right)
