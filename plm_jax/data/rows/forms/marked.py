"""A text with a noun and a pronoun between marks, and whether the pronoun stands for the noun (WSC).

    * Tom * told Bob that # he # had won.      False, True

A classifier reads it with its own special tokens around (`adapter.name='classify'`). The marks are those of T5's
released code (`wsc` of t5/data/preprocessors.py).
"""

from plm_jax.data.rows import referents, written
from plm_jax.data.rows.written import Form, Row, Written

TRUTH = ('False', 'True')


def make() -> Form:
  """Rows with 'text', the noun 'span1', the pronoun 'span2' and 'label', as TensorFlow Datasets has WSC.

  New rows may have a text with its marks and nothing else.
  """
  return Form(write, ('text',), TRUTH)


def write(row: Row) -> Written:
  """The text of a row, and its truth."""
  label = written.label_of(row, 'label', TRUTH)
  text = referents.marked(row, span1='* ', span2='# ') if 'span1_text' in row else _with_marks(row)
  return Written(text, TRUTH[label : label + 1] if label >= 0 else (), TRUTH, label)


def _with_marks(row: Row) -> str:
  """The text of a row that has its marks already."""
  text = written.text_of(row, 'text')
  if any(text.count(mark) != 2 for mark in '*#'):
    raise ValueError(
      f'text {text!r}: a noun between two * and a pronoun between two #, as "* Tom * told Bob that # he # had won.", '
      'or say where they are by span1_text, span1_index, span2_text and span2_index'
    )
  return text
