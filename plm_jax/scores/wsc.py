"""WSC by the written noun: is it the queried one (Raffel et al. 2020, §2.4)?

As in `wsc_simple` of t5/data/postprocessors.py, determiners are ignored, and one noun may be a part of the other.

Rows with a wrong noun have no right answer to write, so an evaluation keeps them by `keep_unlabelled=True`, and they
are scored (`UNLABELLED`): the row says that its noun is wrong.
"""

from collections.abc import Iterable, Sequence

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
  """Compute the share judged as their 'label'; raise ValueError as `check`.

  An empty text is always wrong.
  """
  check(records)
  rows = [record['row'] for record in records]
  right = [
    bool(cleaned(prediction['text'])) and names(prediction['text'], row['span1_text']) == row['label']
    for prediction, row in zip(predictions, rows, strict=True)
  ]
  return {'wsc_accuracy': sum(right) / len(right)}


def check(records: Iterable[Row]) -> None:
  """Raise ValueError for a row without noun or label."""
  rows = (record['row'] for record in records)
  wrong = next((row for row in rows if 'span1_text' not in row or row.get('label') not in (0, 1)), None)
  if wrong is not None:
    raise ValueError(f"score 'wsc' needs rows with 'span1_text' and a label of 0 or 1, but one has {sorted(wrong)}")


def names(text: str, noun: str) -> bool:
  """Return True if a text names a noun.

  The words of one must be words of the other, and both or neither must have an apostrophe.
  """
  text, noun = cleaned(text), cleaned(noun)
  words, wanted = set(text.split(' ')), set(noun.split(' '))
  return bool(text) and ("'" in text) == ("'" in noun) and (words <= wanted or wanted <= words)


def cleaned(text: str) -> str:
  """Convert to lower case, without determiners."""
  return ' '.join(word for word in text.strip().lower().split(' ') if word not in DETERMINERS)
