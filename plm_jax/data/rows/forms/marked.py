"""A text with a marked noun and a marked pronoun, and whether the pronoun refers to the noun (WSC).

    * Tom * told Bob that # he # had won.      False, True

A classifier reads it within its own special tokens (`adapter.name='classify'`). The marks are those of T5's released
code (`wsc` of t5/data/preprocessors.py).
"""

from plm_jax.data.rows import referents, written
from plm_jax.data.rows.written import Form, Row, Written

TRUTH = ('False', 'True')


def make() -> Form:
  """Build the form of WSC.

  Rows have 'text', the noun 'span1', the pronoun 'span2' and 'label', as in TensorFlow Datasets. New rows may have a
  text with its marks and nothing else.
  """
  return Form(write, ('text',), TRUTH)


def write(row: Row) -> Written:
  """Write the text of a row, and its truth."""
  label = written.label_of(row, 'label', TRUTH)
  text = referents.marked(row, span1='* ', span2='# ') if 'span1_text' in row else _with_marks(row)
  return Written(text, TRUTH[label : label + 1] if label >= 0 else (), TRUTH, label)


def _with_marks(row: Row) -> str:
  text = written.text_of(row, 'text')
  if any(text.count(mark) != 2 for mark in '*#'):
    raise ValueError(
      f'text {text!r}: put * around the noun and # around the pronoun, as "* Tom * told Bob that # he # had won.", or '
      'add span1_text, span1_index, span2_text and span2_index'
    )
  return text
