"""Share of pairs of rows with the same class that differ only in the gender of a pronoun: AX-g of SuperGLUE.

The rows of a pair follow each other in the data, the first at an even index ('idx'), unless the source groups them
(Rudinger et al. 2018; Wang et al. 2019, SuperGLUE §3.3).
"""

import re
from collections.abc import Iterable, Sequence

from plm_jax.scores import Group, Row, glue, grouped

METRICS = ('gender_parity',)
READS = ('label',)
RECORDS = ('row',)
PRONOUNS = {'he', 'him', 'his', 'himself', 'she', 'her', 'hers', 'herself', 'they', 'them', 'their', 'theirs'}


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """Compute the share, 0 to 1; raise ValueError as `check`."""
  groups = _pairs(predictions, records)
  same = [int(group.predictions[0]['label']) == int(group.predictions[1]['label']) for group in groups]
  return {'gender_parity': sum(same) / len(same)}


def check(records: Iterable[Row]) -> None:
  """Raise ValueError for a row without its pair."""
  given = list(records)
  _pairs(given, given)


def _pairs(predictions: Sequence[Row], records: Sequence[Row]) -> list[Group]:
  paired = [{'group': glue.index(record, index) // 2, **record} for index, record in enumerate(records)]
  groups = grouped(predictions, paired)
  if alone := [group.records[0]['group'] for group in groups if not _is_pair(group)]:
    raise ValueError(
      f"score 'gender_parity' compares two rows that differ only in a pronoun, and pair {alone[0]} does not: remove it"
    )
  return groups


def _is_pair(group: Group) -> bool:
  texts = [[text for text in record['row'].values() if isinstance(text, str)] for record in group.records]
  words = [[word for text in row for word in re.findall(r'\w+|\W', text.lower())] for row in texts]
  if len(words) != 2 or not words[0] or len(words[0]) != len(words[1]):
    return False
  return all(a == b or {a, b} <= PRONOUNS for a, b in zip(*words, strict=True))
