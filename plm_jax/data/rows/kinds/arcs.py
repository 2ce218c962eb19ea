"""Dependency trees: words in one field, the index of each word's head in another, and the relation between the two.

    kind='arcs', fields=('tokens', 'head'), label='deprel'

Heads are indices as in CoNLL-U: 1 for the first word, 0 for the root. A word without a head ('_', 'None' or -1), such
as a contraction in Universal Dependencies before its parts, is not in the tree: it has no index, no head and no
dependants. Lists may also be one text with spaces between them. Rows to be predicted (`keep_unlabelled`) need no heads;
if a row has none, all of its words are in the tree.

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
TEXTS = 1  # number of fields with text; the second field, the heads, is predicted
QUICK = dict(path='pydocs/parameters', fields=('tokens', 'heads'), label='tags')  # of a smoke test (`file.py:quick`)
UNKNOWN = -2  # in `heads`: the head of the word is unknown, or was cut off
_NONE = ('_', 'None', None, -1, '-1')


def make(*, records: Records, asked: examples.ExampleSettings) -> examples.Examples:
  """Read every row with words; adds `labels` and `heads`, int32[b, width]."""
  if len(asked.fields) != 2 or asked.per_class is not None:
    raise ValueError(
      f"{records.where}: kind='arcs' takes two fields, the words and the indices of their heads, and no per_class: "
      f'fields={asked.fields}, per_class={asked.per_class}.'
    )
  field, heads = asked.fields
  if not asked.keep_unlabelled and heads not in records.fields and not examples.is_somewhere(heads, records):
    raise ValueError(f'{records.where}: no field {heads!r}; choose from {", ".join(records.fields)}.')

  def read_heads(row: Mapping[str, Any], index: int, count: int) -> list[int]:
    values = one_by_one(row.get(heads))
    if asked.keep_unlabelled and (values is None or (isinstance(values, list) and all(v in _NONE for v in values))):
      return [UNKNOWN] * count
    return heads_of(values, count, where=f'row {index} of {records.where}: {heads!r}')

  settings = asked._replace(fields=(field,))
  return words.rows_of(records, settings, kind='arcs', add=_add, per_word=words.PerWord(heads, read_heads))


def heads_of(value: Any, count: int, *, where: str) -> list[int]:
  """Return the position of each word's head in its row.

  The root has its own position, and a word outside of the tree -1. `value` holds `count` numbers, which may be written
  as 1.0, or texts of numbers. Raises ValueError, after `where`, for another form, an index of no word, or the index of
  the word itself.
  """
  # 2 _ 0 2   the tree has the words at 0, 2 and 3, which are 1, 2 and 3 in it   ->   2 -1 2 2
  values = one_by_one(value)
  if not isinstance(values, list | tuple) or len(values) != count:
    raise ValueError(f'{where} holds {value!r}: a list with the head of each of {count} words is needed')
  in_tree = [position for position, head in enumerate(values) if head not in _NONE]
  positions = [-1] * count
  for position in in_tree:
    head = values[position]
    index = int(head) if isinstance(head, str) and head.isdecimal() else head
    index = int(index) if isinstance(index, float) and index.is_integer() else index
    if not isinstance(index, int | np.integer) or isinstance(index, bool) or not 0 <= index <= len(in_tree):
      raise ValueError(
        f'{where} holds {head!r}: heads are word indices, here from 1 to {len(in_tree)}, and 0 for the root'
      )
    positions[position] = in_tree[index - 1] if index else position
    if index and positions[position] == position:
      raise ValueError(f'{where} holds {head!r} for word {head!r} itself: the root has 0')
  return positions


def _add(labels: np.ndarray, offsets: np.ndarray, place: examples.Place, *, others: np.ndarray) -> examples.Added:
  """Return the function that adds `labels` and `heads` to a batch.

  `labels` int32[b, width] are those of `words`; `heads` the position of each head's first token in the sequence. Word i
  has the tokens `offsets[i]:offsets[i+1]`. `others` int64[words] is the head of each word among all words of all rows:
  -1 outside of the tree, `UNKNOWN` in a row without heads.
  """
  relations = words.first_pieces(labels, offsets)
  # 1. At the first token of each word of all texts: the first token of its head.
  nonempty = np.diff(offsets) > 0
  head_token = np.full(offsets[-1], -1, np.int64)
  has_head = (others >= 0) & nonempty[others]
  outside = others == words.NOT_COUNTED
  head_token[offsets[:-1][nonempty]] = np.where(has_head, offsets[:-1][others], np.where(outside, -1, UNKNOWN))[
    nonempty
  ]
  token = np.arange(offsets[-1], dtype=np.int64)

  def added(chosen: np.ndarray, width: int) -> dict[str, np.ndarray]:
    own, target = place(token, chosen, width), place(head_token, chosen, width)  # [b, width], -1 for no token
    # 2. Tokens of a row are consecutive, so all have the same distance to their position in the sequence.
    first = (own >= 0).argmax(axis=1)[:, None]
    position = target - np.take_along_axis(own, first, axis=1) + first
    # 3. A head that was cut off is unknown.
    inside = (position >= 0) & (position < width)
    inside &= np.take_along_axis(own, np.where(inside, position, 0), axis=1) == target
    heads = np.where(target >= 0, np.where(inside, position, UNKNOWN), target)
    return {'labels': place(relations, chosen, width), 'heads': heads.astype(np.int32)}

  return added
