"""Examples with a target text: inputs and targets, references, prefixes, numbers and names."""

import itertools

import numpy as np
import pytest

from plm_jax.data import labelled
from tests.conftest import SHARED_DATA
from tests.data import small
from tests.data.small import BOS, CLS, EOS, PAD, SEP

WRITTEN = ('target_tokens', 'target_segment_ids')


def t(*numbers):
  return [len(small.SPECIAL) + number for number in numbers]


def make(place, **changes):
  settings = {'kind': 'text', 'layout': 'text', 'length': 8, 'batch_size': 2, 'seed': 0} | changes
  return labelled.make(**({'vocab': small.NumberVocab(), 'path': str(place), 'cache': str(place.parent)} | settings))


@pytest.fixture
def pairs(tmp_path):
  rows = [{'en': '1 2 3', 'de': '4 5'}, {'en': '6', 'de': '7 8 9 10 11 12'}, {'en': '13', 'de': '14'}]
  small.write_rows(tmp_path / 'train.jsonl', rows)
  return tmp_path / 'train.jsonl'


def test_source_and_target_stand_in_rows_of_their_own(pairs):
  source = make(pairs, fields=('en',), label='de', target_length=5)
  assert {key: leaf.shape for key, leaf in source.spec.items() if key in WRITTEN} == dict.fromkeys(WRITTEN, (2, 5))
  first, second = source.once()
  assert first['tokens'].tolist() == [[*t(1, 2, 3), EOS, *[PAD] * 4], [*t(6), EOS, *[PAD] * 6]]
  assert first['target_tokens'].tolist() == [[*t(4, 5), EOS, PAD, PAD], [*t(7, 8, 9, 10), EOS]]
  assert first['target_segment_ids'].tolist() == [[1, 1, 1, 0, 0], [1] * 5]
  assert second['row_weight'].tolist() == [1, 0]
  assert all(source.spec[key].dtype == first[key].dtype for key in first)
  assert first.keys() == source.spec.keys()


@pytest.mark.parametrize(
  ('layouts', 'read', 'written'),
  [
    ({'layout': 'roberta'}, [CLS, *t(13), SEP], [CLS, *t(14), SEP]),
    ({'layout': 'bert', 'target_layout': 'text'}, [CLS, *t(13), SEP], [*t(14), EOS]),
    ({'layout': 'plain', 'target_layout': 'text'}, [BOS, *t(13), EOS], [*t(14), EOS]),
  ],
)
def test_both_sides_have_a_layout(pairs, layouts, read, written):
  source = make(pairs, fields=('en',), label='de', split='train[2:]', **layouts)
  (batch,) = source.once()
  assert batch['tokens'][0][batch['segment_ids'][0] > 0].tolist() == read
  assert batch['target_tokens'][0][batch['target_segment_ids'][0] > 0].tolist() == written


def test_a_second_vocabulary_reads_and_the_first_one_writes(pairs):
  class Shifted(small.NumberVocab):
    def encode(self, text):
      return [token + 100 for token in super().encode(text)]

  second = Shifted()
  second.digest = 'shifted'
  plain, shifted = (make(pairs, fields=('en',), label='de', second_vocab=one) for one in (None, second))
  one, other = next(plain.once()), next(shifted.once())
  words = one['tokens'] >= len(small.SPECIAL)
  np.testing.assert_array_equal(other['tokens'], one['tokens'] + 100 * words)
  np.testing.assert_array_equal(other['target_tokens'], one['target_tokens'])
  assert plain.digest != shifted.digest


def test_prefixes_stand_before_the_fields_as_t5_has_them(tmp_path):
  rows = [{'hypothesis': '4', 'premise': '5 6', 'label': 2}]
  path = small.write_rows(tmp_path / 'train.jsonl', rows)
  (tmp_path / 'labels.json').write_text('{"label": ["entailment", "neutral", "contradiction"]}')
  seen = []

  class Vocab(small.NumberVocab):
    def encode(self, text):
      seen.append(text)
      return [self.size - 1]

  settings = {'fields': ('hypothesis', 'premise'), 'prefixes': ('mnli hypothesis: ', 'premise: ')}
  labelled.make(
    vocab=Vocab(), path=path, kind='text', layout='text', length=8, batch_size=1, seed=0, cache=str(tmp_path),
    **settings,
  )  # fmt: skip
  assert seen == ['mnli hypothesis: 4', 'premise: 5 6', 'contradiction']
  with pytest.raises(ValueError, match=r'prefixes.*fields'):
    make(tmp_path / 'train.jsonl', **(settings | {'prefixes': ('a',)}))


@pytest.mark.parametrize(
  ('value', 'text'),
  [
    (3.8, '3.8'), (2.15, '2.2'), (0.0, '0.0'), (5.0, '5.0'), (0.25, '0.2'), (4.556, '4.6'),  # STS-B, as T5 writes it
    (True, 'True'), ('so it is', 'so it is'), (['one', 'two'], 'one'),
  ],
)  # fmt: skip
def test_what_a_label_is_written_as(tmp_path, value, text):
  path = small.write_rows(tmp_path / 'train.jsonl', [{'text': '1', 'label': value}])
  written = []

  class Vocab(small.NumberVocab):
    def encode(self, text):
      written.append(text)
      return [self.size - 1]

  source = labelled.make(
    vocab=Vocab(), path=path, kind='text', layout='text', length=8, batch_size=1, seed=0, cache=str(tmp_path)
  )
  assert written == ['1', text]
  assert source.record(0)['references'] == (value if isinstance(value, list) else [text])


def test_a_list_of_sentences_is_one_text_and_every_reference_is_kept(tmp_path):
  rows = [{'source': ['1 2', '3'], 'target': ['4', '5 6']}, {'source': [], 'target': '7'}]
  path = small.write_rows(tmp_path / 'train.jsonl', rows)
  source = make(tmp_path / 'train.jsonl', path=path, fields=('source',), label='target')
  (batch,) = source.once()
  assert batch['tokens'][0][:4].tolist() == [*t(1, 2, 3), EOS]
  assert batch['target_tokens'][0][:2].tolist() == [*t(4), EOS]
  assert [source.record(row)['references'] for row in (0, 1)] == [['4', '5 6'], ['7']]
  assert source.record(0)['row'] == rows[0]


def test_rows_without_a_text_are_left_out_or_kept_to_be_predicted(tmp_path):
  path = small.write_rows(tmp_path / 'test.jsonl', [{'en': '1', 'de': None}, {'en': '2'}, {'en': '3', 'de': '4'}])
  place = tmp_path / 'test.jsonl'
  with pytest.raises(ValueError, match=r"line 2: .*no field 'de'"):
    make(place, fields=('en',), label='de')
  source = make(place, path=path, fields=('en',), label='de', keep_unlabelled=True)
  assert (source.rows, source.unlabelled) == (3, True)
  made = list(source.once())
  some = np.concatenate([batch['target_segment_ids'].any(axis=1)[batch['row_weight'] > 0] for batch in made])
  assert some.tolist() == [False, False, True]  # not even an end token, which would count in the loss
  assert source.record(1)['references'] is None
  assert next(source.once())['target_tokens'][0][:2].tolist() == [PAD, PAD]


def test_per_class_is_refused(pairs):
  with pytest.raises(ValueError, match="kind='text'"):
    make(pairs, fields=('en',), label='de', per_class=2)


@pytest.mark.parametrize('hosts', [2, 4])
def test_hosts_together_read_the_batch_of_one(pairs, hosts):
  changes = {'fields': ('en',), 'label': 'de', 'batch_size': 4}
  whole = make(pairs, **changes)
  parts = [make(pairs, host=host, hosts=hosts, **changes) for host in range(hosts)]
  for batch, *pieces in zip(*(itertools.islice(one.read(3), 3) for one in (whole, *parts)), strict=True):
    for key in batch:
      np.testing.assert_array_equal(batch[key], np.concatenate([piece[key] for piece in pieces]), err_msg=key)


def test_parallel_files_are_the_same_rows(pairs):
  place = pairs.parent / 'side_by_side'
  place.mkdir()
  (place / 'train.en').write_text('1 2 3\n6\n13\n')
  (place / 'train.de').write_text('4 5\n7 8 9 10 11 12\n14\n')
  for field, label in (('en', 'de'), ('de', 'en')):
    one = make(pairs, fields=(field,), label=label)
    other = make(pairs, path=f'parallel:{place}', fields=(field,), label=label)
    for ours, theirs in zip(one.once(), other.once(), strict=True):
      for key in ours:
        np.testing.assert_array_equal(ours[key], theirs[key], err_msg=key)


@pytest.mark.skipif(not (SHARED_DATA / 'multi30k_en_de').is_dir(), reason='needs ../shared/data/multi30k_en_de')
def test_multi30k_is_read(tmp_path):
  class Letters(small.NumberVocab):
    def encode(self, text):
      return [len(small.SPECIAL) + ord(letter) % 5000 for letter in text]

  path = str(SHARED_DATA / 'multi30k_en_de')
  source = labelled.make(
    vocab=Letters(), path=path, split='test', kind='text', fields=('en',), label='de', layout='text', length=128,
    target_length=160, batch_size=50, seed=0, cache=str(tmp_path),
  )  # fmt: skip
  assert source.rows == 1000
  record = source.record(0)
  assert record['references'] == [record['row']['de']]
  assert sum(int(batch['row_weight'].sum()) for batch in source.once()) == 1000


class Letters(small.NumberVocab):
  """A vocabulary with one token per letter."""

  def encode(self, text):
    return [len(small.SPECIAL) + ord(letter) % 50 for letter in text]


def test_whole_numbers_of_a_table_are_written_as_their_cells_are(tmp_path):
  """Check years and quantities.

  A column with real numbers contains scores, as in STS-B.
  """
  for cells, texts in ((('1999', '042', '7'), ['1999', '042', '7']), (('3.14', '4', '5.0'), ['3.2', '4.0', '5.0'])):
    (tmp_path / 'train.csv').write_text('text,label\n' + ''.join(f'{n},{cell}\n' for n, cell in enumerate(cells)))
    source = labelled.make(
      vocab=Letters(), path=str(tmp_path), kind='text', layout='text', length=8, batch_size=1, seed=0,
      cache=str(tmp_path / 'cache'),
    )  # fmt: skip
    assert [source.record(row)['references'] for row in range(3)] == [[text] for text in texts]
