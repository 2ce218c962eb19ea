"""Words in one field, the number of each one's head in another, and the relation between the two: dependency trees.

    kind='arcs', fields=('tokens', 'head'), label='deprel'

Heads are numbers as CoNLL-U has them: 1 for the first word, 0 for the word that nothing stands above. A word without a
head ('_', 'None' or -1), as a contraction has in Universal Dependencies beside its parts, is no word of the tree: it is
not counted, hangs on nothing and nothing hangs on it. Lists may also be one text with spaces between them. Rows to be
predicted (`keep_unlabelled`) need no heads; where a row has none, all of its words are words of the tree.

    tokens  It has not rained     head  4 4 4 0     deprel  nsubj aux advmod root
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from plm_jax.data.corpora.records import Records
from plm_jax.data.rows import examples
from plm_jax.data.rows.class_names import one_by_one
from plm_jax.data.rows.kinds import words

GIVES = ('labels', 'heads')
SPACED = True  # each word is tokenised by itself, with a space before it
TEXTS = 1  # fields that hold text; behind the words stand their heads, which are asked for
QUICK = dict(path='pydocs/parameters', fields=('tokens', 'heads'), label='tags')  # of a smoke test (`file.py:quick`)
UNKNOWN = -2  # in `heads`, of a word whose head is not known or not in the row
_NONE = ('_', 'None', None, -1, '-1')


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Every row that has words, with `labels` and `heads` int32[b, width]."""
  if len(asked.fields) != 2 or asked.per_class is not None:
    raise ValueError(
      f"{records.where}: kind='arcs' takes two fields, of words and of the numbers of their heads, and no per_class: "
      f'fields={asked.fields}, per_class={asked.per_class}.'
    )
  field, heads = asked.fields
  if not asked.keep_unlabelled and heads not in records.fields and not examples.is_somewhere(heads, records):
    raise ValueError(f'{records.where}: there is no field {heads!r}, there are {", ".join(records.fields)}.')

  def above(row: Mapping[str, Any], index: int, count: int) -> list[int]:
    given = one_by_one(row.get(heads))
    if asked.keep_unlabelled and (given is None or (isinstance(given, list) and all(one in _NONE for one in given))):
      return [UNKNOWN] * count
    return heads_of(given, count, where=f'row {index} of {records.where}: {heads!r}')

  asked = asked._replace(fields=(field,))
  return words.rows_of(records, asked, kind='arcs', add=_add, beside=words.Beside(heads, above))


def heads_of(value: Any, count: int, *, where: str) -> list[int]:
  """The place of the head of each word among all words of a row, its own for the root; -1 of a word without one.

  Args:
    value: what the row holds: `count` numbers, which may be written as 1.0, or texts of numbers.
    count: of words.
    where: for messages.

  Raises:
    ValueError: it holds something else, the number of no word, or that of the word itself.
  """
  # 2 _ 0 2   the tree has the words 0, 2 and 3, which are 1, 2 and 3 in it   ->   2 -1 2 2
  given = one_by_one(value)
  if not isinstance(given, list | tuple) or len(given) != count:
    raise ValueError(f'{where} holds {value!r}: a list with the number of the head of each of {count} words is needed')
  in_tree = [place for place, head in enumerate(given) if head not in _NONE]
  found = [-1] * count
  for place in in_tree:
    head = given[place]
    number = int(head) if isinstance(head, str) and head.isdecimal() else head
    number = int(number) if isinstance(number, float) and number.is_integer() else number
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or not 0 <= number <= len(in_tree):
      raise ValueError(
        f'{where} holds {head!r}: heads are numbers of words from 1, here to {len(in_tree)}, and 0 for the root'
      )
    found[place] = in_tree[number - 1] if number else place
    if number and found[place] == place:
      raise ValueError(f'{where} holds {head!r} for word {head!r} itself: the root has 0')
  return found


def _add(labels: np.ndarray, offsets: np.ndarray, place: examples.Place, *, others: np.ndarray) -> examples.Added:
  """labels int32[b, width], as `words` has them, and heads: the place in the row of each head's first token.

  Args:
    labels: int32[words].
    offsets: int64[words+1], word i is tokens `offsets[i]:offsets[i+1]`.
    place: puts values of tokens where these stand in rows.
    others: int64[words], the head of each word among all words of all rows; -1 for a word outside the tree and
      `UNKNOWN` for one of a row without heads.
  """
  relations = words.first_pieces(labels, offsets)
  some = np.diff(offsets) > 0
  # for each token of all texts, where a word begins: the first token of its head
  above = np.full(offsets[-1], -1, np.int64)
  known = (others >= 0) & some[others]
  outside = others == words.NOT_COUNTED
  above[offsets[:-1][some]] = np.where(known, offsets[:-1][others], np.where(outside, -1, UNKNOWN))[some]
  itself = np.arange(offsets[-1], dtype=np.int64)

  def added(chosen: np.ndarray, width: int) -> dict[str, np.ndarray]:
    own, target = place(itself, chosen, width), place(above, chosen, width)  # [b, width], -1 for no token
    # the tokens of a row follow each other, so that all are as far from their place
    first = (own >= 0).argmax(axis=1)[:, None]
    found = target - np.take_along_axis(own, first, axis=1) + first
    inside = (found >= 0) & (found < width)
    inside &= np.take_along_axis(own, np.where(inside, found, 0), axis=1) == target
    placed = np.where(target >= 0, np.where(inside, found, UNKNOWN), target)
    return {'labels': place(relations, chosen, width), 'heads': placed.astype(np.int32)}

  return added
