"""Keys of a batch: their axes, dtypes and meanings."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

SLOTS = 50  # of a word that is read by its characters


class BatchKey(NamedTuple):
  """One key of a batch.

  Attributes:
    axes: by letter: b rows, l tokens, t tokens of targets, k sequences or options of a row, c the slots of a word.
    dtype: of its numbers.
    meaning: what it holds.
    filler: what stands where a row has nothing: 0, -1, or None for `Vocab.pad_id`.
  """

  axes: str
  dtype: str
  meaning: str
  filler: int | None = 0


# The only list of them. Objectives and adapters name those that they read in `READS`, files of `data/` those that they
# may give in `GIVES`. An entry of `READS` may say other axes, as 'tokens[bkl]' for k options per row. `row_id`, `epoch`
# and `row_weight` are always there, so nobody names them.
BATCH: Mapping[str, BatchKey] = MappingProxyType(
  {
    'tokens': BatchKey('bl', 'int32', 'ids, `Vocab.pad_id` where there is no token', None),
    'segment_ids': BatchKey('bl', 'int32', 'numbers the documents of a row from 1; 0 is padding'),
    'type_ids': BatchKey('bl', 'int32', 'which field of the example a token belongs to, from 0'),
    'label': BatchKey('b', 'int32', 'class, -1 where there is none; float32 for a value', -1),
    'labels': BatchKey('bl', 'int32', 'class of the word that begins here, -1 elsewhere', -1),
    'heads': BatchKey(
      'bl',
      'int32',
      'place of the head of the word that begins here, its own for a root, -2 if unknown; -1 elsewhere',
      -1,
    ),
    'target_tokens': BatchKey(
      'bt', 'int32', 'the text to write with its special tokens, `Vocab.pad_id` behind it', None
    ),
    'target_segment_ids': BatchKey('bt', 'int32', '1 at each token of the text to write; 0 is padding'),
    'start': BatchKey('b', 'int32', 'place of the first token of the answer, or of what stands for no answer'),
    'end': BatchKey('b', 'int32', 'place of the last token of the answer, or of what stands for no answer'),
    'context': BatchKey(
      'bl', 'int32', '1 for tokens of the text with the answer, 2 in the window with most around them, 3 for no answer'
    ),
    'option_tokens': BatchKey('bkt', 'int32', 'texts to choose from, as `target_tokens`; some may be empty', None),
    'option_segment_ids': BatchKey('bkt', 'int32', '1 at each token of an option; 0 is padding'),
    'option_lead': BatchKey('bk', 'int32', 'first tokens of an option that are read and not compared'),
    'option_characters': BatchKey('bk', 'int32', 'characters of an option that are compared'),
    'swapped_tokens': BatchKey('bl', 'int32', 'tokens with the fields in reverse order', None),
    'swapped_segment_ids': BatchKey('bl', 'int32', 'segment_ids with the fields in reverse order'),
    'swapped_type_ids': BatchKey('bl', 'int32', 'type_ids with the fields in reverse order'),
    'first': BatchKey('bl', 'int32', 'the segment that a pair begins with', None),
    'next': BatchKey('bl', 'int32', 'the segment that follows it in the text', None),
    'other': BatchKey('bl', 'int32', 'a segment of another document', None),
    'first_length': BatchKey('b', 'int32', 'tokens of `first`'),
    'next_length': BatchKey('b', 'int32', 'tokens of `next`'),
    'other_length': BatchKey('b', 'int32', 'tokens of `other`'),
    'num_tokens': BatchKey('b', 'int32', 'about how many tokens the row feeds, where segment_ids cannot tell'),
    'part': BatchKey('b', 'int32', 'which source of a mixture the row comes from'),
    'reset': BatchKey('b', 'bool', 'the row begins anew, not where the row before it in this place ended'),
    'next_token': BatchKey(
      'b', 'int32', 'what follows the last token of the row, `nothing_after` where nothing does', -1
    ),
    'next_tokens': BatchKey('bl', 'int32', 'what follows each token, `Vocab.pad_id` on padding', None),
    'characters': BatchKey('blc', 'int32', 'the slots of each word (text/chars.py), 0 where there is none'),
    'backward_tokens': BatchKey('bl', 'int32', 'tokens of the same texts, each from its end to its beginning', None),
    'backward_next_tokens': BatchKey('bl', 'int32', 'what follows each of `backward_tokens`', None),
    'backward_characters': BatchKey('blc', 'int32', '`characters` of `backward_tokens`'),
    'swapped_characters': BatchKey('blc', 'int32', '`characters` of `swapped_tokens`'),
    'neighbours': BatchKey('bl', 'int32', 'a word near each of `tokens`, `Vocab.pad_id` where there is none', None),
    'cooccurrence': BatchKey(
      'bl', 'float32', 'how often the word and its neighbour stand near each other, 0 on padding'
    ),
    'reversed': BatchKey('b', 'bool', 'the row holds text from its end to its beginning'),
    'row_id': BatchKey('b', 'int32', 'number of the row in its source, -1 where the row weighs nothing'),
    'epoch': BatchKey('b', 'int32', 'how often the source was gone through before'),
    'row_weight': BatchKey('b', 'float32', '1, or 0 for a copy of another row that only fills the batch up'),
  }
)


def axes_of(entry: str) -> tuple[str, str]:
  """The key and the axes of an entry of `READS`: 'tokens' -> ('tokens', 'bl'), 'tokens[bkl]' -> ('tokens', 'bkl')."""
  name, _, axes = entry.partition('[')
  return name, axes.removesuffix(']') or BATCH[name].axes
