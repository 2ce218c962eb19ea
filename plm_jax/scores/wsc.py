"""WSC by the noun that is written: whether it is the one that the row asks about (Raffel et al. 2020, §2.4).

As in `wsc_simple` of t5/data/postprocessors.py, determiners do not count, and one noun may be a part of the other.

Rows whose noun is the wrong one have no right answer to write, so an evaluation keeps them by `keep_unlabelled=True`,
and they are scored (`UNLABELLED`): the row says that its noun is wrong.
"""

from collections.abc import Sequence

from plm_jax.scores import Row

METRICS = ('wsc_accuracy',)
READS = ('text',)
RECORDS = ('row',)
BY_ROW = ('wsc_accuracy',)
UNLABELLED = ('text',)
DETERMINERS = {
  'a', 'an', 'few', 'her', 'his', 'each', 'every', 'many', 'much', 'my', 'our', 'some', 'that', 'the', 'their',
  'these', 'this', 'those', 'which', 'whose', 'your',
}  # fmt: skip


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The share of rows that are judged as their field 'label' says; an empty text is always wrong.

  Raises:
    ValueError: a row without 'span1_text', or without a label of 0 or 1.
  """
  rows = [record['row'] for record in records]
  wrong = next((row for row in rows if 'span1_text' not in row or row.get('label') not in (0, 1)), None)
  if wrong is not None:
    raise ValueError(f"score 'wsc' needs rows with 'span1_text' and a label of 0 or 1, and one has {sorted(wrong)}")
  pairs = zip(predictions, rows, strict=True)
  right = [bool(cleaned(one['text'])) and names(one['text'], row['span1_text']) == row['label'] for one, row in pairs]
  return {'wsc_accuracy': sum(right) / len(right)}


def names(text: str, noun: str) -> bool:
  """Whether a text names a noun: the words of one are words of the other, and both have an apostrophe or none."""
  text, noun = cleaned(text), cleaned(noun)
  found, wanted = set(text.split(' ')), set(noun.split(' '))
  return bool(text) and ("'" in text) == ("'" in noun) and (found <= wanted or wanted <= found)


def cleaned(text: str) -> str:
  """Lower case, without determiners."""
  return ' '.join(word for word in text.strip().lower().split(' ') if word not in DETERMINERS)
