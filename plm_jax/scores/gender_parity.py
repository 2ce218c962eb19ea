"""Share of pairs of rows, alike but for the gender of a pronoun, that get the same class: AX-g of SuperGLUE.

The rows of a pair follow each other in the data, the first at an even number ('idx'), unless the source groups them
(Rudinger et al. 2018; Wang et al. 2019, SuperGLUE §3.3).
"""

import re
from collections.abc import Sequence

from plm_jax.scores import Group, Row, glue, grouped

METRICS = ('gender_parity',)
READS = ('label',)
RECORDS = ('row',)
PRONOUNS = {'he', 'him', 'his', 'himself', 'she', 'her', 'hers', 'herself', 'they', 'them', 'their', 'theirs'}


def score(predictions: Sequence[Row], records: Sequence[Row]) -> dict[str, float]:
  """The share, 0 to 1.

  Raises:
    ValueError: a row without its pair.
  """
  paired = [{'group': glue.index(record, number) // 2, **record} for number, record in enumerate(records)]
  groups = grouped(predictions, paired)
  if alone := [group.records[0]['group'] for group in groups if not _is_pair(group)]:
    raise ValueError(
      f"score 'gender_parity' compares two rows that differ in a pronoun, which pair {alone[0]} does not"
    )
  same = [int(group.predictions[0]['label']) == int(group.predictions[1]['label']) for group in groups]
  return {'gender_parity': sum(same) / len(same)}


def _is_pair(group: Group) -> bool:
  """Whether there are two rows, whose texts differ in pronouns and in nothing else."""
  texts = [[text for text in record['row'].values() if isinstance(text, str)] for record in group.records]
  words = [[word for text in row for word in re.findall(r'\w+|\W', text.lower())] for row in texts]
  if len(words) != 2 or not words[0] or len(words[0]) != len(words[1]):
    return False
  return all(a == b or {a, b} <= PRONOUNS for a, b in zip(*words, strict=True))
