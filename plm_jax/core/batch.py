"""Keys of a batch: their axes, dtypes and meanings."""

from collections.abc import Mapping
from typing import NamedTuple

SLOTS = 50  # characters per word


class BatchKey(NamedTuple):
  """One key of a batch."""

  # by letter: b rows, l tokens, t tokens of targets, k sequences or options of a row, c the slots of a word, n classes,
  # w windows of a text
  axes: str
  dtype: str  # of its numbers
  meaning: str  # description of its values
  filler: int | None = 0  # value of empty entries: 0, -1, or None for `Vocab.pad_id`


# The only list of batch keys. Objectives and adapters list the keys that they read in `READS`, files of `data/` those
# that they may provide in `GIVES`. An entry of `READS` may override the axes, as 'tokens[bkl]' for k options per row.
# `row_id`, `epoch` and `row_weight` are always present, so they are not listed.
BATCH: Mapping[str, BatchKey] = {
  # text
  'tokens': BatchKey('bl', 'int32', 'ids, `Vocab.pad_id` where there is no token', None),
  'segment_ids': BatchKey('bl', 'int32', 'index of the document in the row, from 1; 0 is padding'),
  'sentence_ids': BatchKey('bl', 'int32', 'rises by one where a sentence starts; -1 if the source reports none', -1),
  'type_ids': BatchKey('bl', 'int32', 'index of the field of the example, from 0'),
  'word_marks': BatchKey('bl', 'int32', 'by a segmenter: 2 where a word begins, 1 inside it, 0 for the vocabulary'),
  # labels
  'label': BatchKey('b', 'int32', 'class, -1 for none; float32 for a value', -1),
  'classes': BatchKey('bn', 'int32', '1 for each class of the example, else 0; -1 for all if they are unknown'),
  'labels': BatchKey('bl', 'int32', 'class of the word that begins here, -1 elsewhere', -1),
  'heads': BatchKey(
    'bl', 'int32', 'index of the head of the word that begins here, its own for a root, -2 if unknown; -1 elsewhere', -1
  ),
  # text to generate
  'target_tokens': BatchKey('bt', 'int32', 'the text to write with its special tokens, then `Vocab.pad_id`', None),
  'target_segment_ids': BatchKey('bt', 'int32', '1 at each token of the text to write; 0 is padding'),
  # spans in a context
  'start': BatchKey('b', 'int32', 'index of the first token of the answer, or of the token that means no answer'),
  'end': BatchKey('b', 'int32', 'index of the last token of the answer, or of the token that means no answer'),
  'context': BatchKey(
    'bl', 'int32', '1 for tokens of the text with the answer, 2 in the window with most around them, 3 for no answer'
  ),
  # options to choose from
  'option_tokens': BatchKey('bkt', 'int32', 'texts to choose from, as `target_tokens`; some may be empty', None),
  'option_segment_ids': BatchKey('bkt', 'int32', '1 at each token of an option; 0 is padding'),
  'option_lead': BatchKey('bk', 'int32', 'number of first tokens of an option that are read but not compared'),
  'option_characters': BatchKey('bk', 'int32', 'number of compared characters of an option'),
  # sequences of minimal pairs
  'pair': BatchKey('b', 'int32', 'index in the batch of the pair of the sequence'),
  'counted': BatchKey('bk', 'float32', '1 if the sequence counts for the good and for the bad sentence, else 0'),
  'masked_at': BatchKey('b', 'int32', 'index of the masked token to predict'),
  'hidden': BatchKey('bk', 'int32', 'the token there in the good and in the bad sentence'),
  # fields in reverse order
  'swapped_tokens': BatchKey('bl', 'int32', 'tokens with the fields in reverse order', None),
  'swapped_segment_ids': BatchKey('bl', 'int32', 'segment_ids with the fields in reverse order'),
  'swapped_type_ids': BatchKey('bl', 'int32', 'type_ids with the fields in reverse order'),
  # pairs of segments
  'first': BatchKey('bl', 'int32', 'the segment that a pair begins with', None),
  'next': BatchKey('bl', 'int32', 'the segment that follows it in the text', None),
  'other': BatchKey('bl', 'int32', 'a segment of another document', None),
  'first_length': BatchKey('b', 'int32', 'tokens of `first`'),
  'next_length': BatchKey('b', 'int32', 'tokens of `next`'),
  'other_length': BatchKey('b', 'int32', 'tokens of `other`'),
  # rows
  'num_tokens': BatchKey('b', 'int32', 'about how many tokens the row feeds, where segment_ids cannot tell'),
  'part': BatchKey('b', 'int32', 'index of the source in a mixture'),
  'reset': BatchKey('b', 'bool', 'the row does not continue the previous row at this index of the batch'),
  # language modelling
  'overlap': BatchKey('b', 'int32', 'number of first tokens that the row before has too; they are read, not scored'),
  'next_token': BatchKey('b', 'int32', 'token after the last token of the row, `nothing_after` if there is none', -1),
  'next_tokens': BatchKey('bl', 'int32', 'token after each token, `Vocab.pad_id` on padding', None),
  # words by their characters, and reversed text
  'characters': BatchKey('blc', 'int32', 'characters of each word (text/chars.py), 0 in empty slots'),
  'backward_tokens': BatchKey('bl', 'int32', 'tokens of the same texts, each from its end to its beginning', None),
  'backward_next_tokens': BatchKey('bl', 'int32', 'token after each of `backward_tokens`', None),
  'backward_characters': BatchKey('blc', 'int32', '`characters` of `backward_tokens`'),
  'swapped_characters': BatchKey('blc', 'int32', '`characters` of `swapped_tokens`'),
  # word vectors
  'neighbours': BatchKey('bl', 'int32', 'a word near each of `tokens`, `Vocab.pad_id` if there is none', None),
  'cooccurrence': BatchKey('bl', 'float32', 'how often the word and its neighbour occur together, 0 on padding'),
  'reversed': BatchKey('b', 'bool', 'the text of the row is reversed'),
  # in every batch
  'row_id': BatchKey('b', 'int32', 'index of the row in its source (below 2**31), -1 for a row without weight'),
  'row_high': BatchKey('b', 'int32', 'how often 2**31 is to be added to `row_id`; only in sources of more rows'),
  'epoch': BatchKey('b', 'int32', 'number of completed passes over the source'),
  'row_weight': BatchKey('b', 'float32', '1, or 0 for a copy of another row that fills the batch'),
}


def axes_of(entry: str) -> tuple[str, str]:
  """Split entries of `READS`: 'tokens[bkl]' -> ('tokens', 'bkl'), 'tokens' -> ('tokens', 'bl')."""
  name, _, axes = entry.partition('[')
  return name, axes.removesuffix(']') or BATCH[name].axes
