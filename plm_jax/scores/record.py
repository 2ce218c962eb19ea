"""ReCoRD, in per cent: exact match and F1 of the chosen entity, by the rule of SQuAD (Zhang et al. 2018).

Rows are made with kind='options' from `query` and `entities`; `answers` lists the right entities. If an answer is
written instead of chosen (T5), its text is compared.
"""

from collections.abc import Iterable, Sequence

from plm_jax.scores import Row
from plm_jax.scores.squad import exact_match, f1, mean, most

METRICS = ('exact_match', 'f1')
READS = ('label',)
RECORDS = ('row', 'options')
INSTEAD = (('text',), ('row',))
BY_ROW = ('exact_match', 'f1')


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Average queries' best values over right entities; raise ValueError without 'answers'."""
  check(records)
  each = [
    (record['options'][int(row['label'])] if 'label' in row else row['text'], record['row']['answers'])
    for row, record in zip(predictions, records, strict=True)
  ]
  return {
    'exact_match': 100 * mean([most(exact_match, entity, answers) for entity, answers in each]),
    'f1': 100 * mean([most(f1, entity, answers) for entity, answers in each]),
  }


def check(records: Iterable[Row]) -> None:
  """Raise ValueError for a row without 'answers'."""
  if not all(record['row'].get('answers') for record in records):
    raise ValueError("score 'record' needs rows with 'answers', but one has none: use labelled rows")
