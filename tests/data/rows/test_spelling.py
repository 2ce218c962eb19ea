"""Characters of words in examples: unknown words have their own letters, in every source with characters."""

import json
from itertools import islice

import numpy as np
import pytest

from plm_jax.data import bptt, labelled, mixture
from plm_jax.data.rows import spelling, store
from plm_jax.text import chars, words
from tests.data import small

KNOWN = 'the cat saw a dog'
TEXTS = small.Texts(['the zog saw a dax', 'a zog', '', 'the cat'])


@pytest.fixture(scope='module')
def vocab():
  return words.train([KNOWN], size=20, min_frequency=1)


def spelt(text):
  return [chars.of_word(word).tolist() for word in text.split()]


@pytest.mark.parametrize('where', ['memory', 'disk'])
def test_unknown_words_have_their_own_characters_and_the_unknown_token(where, vocab, tmp_path):
  def made():
    on_disk = where == 'disk'
    tokens = store.on_disk(TEXTS, vocab=vocab, cache=tmp_path) if on_disk else store.in_memory(TEXTS, vocab=vocab)
    return tokens, spelling.spell(tokens, TEXTS, vocab=vocab)

  for tokens, found in (made(), made()):  # the second time from the cache
    assert len(found.table) == vocab.size + 2  # zog is one word in all positions
    ids = found.take(np.arange(tokens.offsets[-1]))
    every = ' '.join(TEXTS)
    assert found.characters(ids, np.ones(len(ids), bool)).tolist() == spelt(every)
    assert found.tokens(ids).tolist() == [vocab.encode(word)[0] for word in every.split()] == list(tokens.ids)
    part = found.part(range(3, 7))
    ids = part.take(np.arange(4))
    assert part.characters(ids, np.ones(4, bool)).tolist() == spelt('a dax a zog')
    assert not part.characters(ids, np.zeros(4, bool)).any()


def test_a_word_is_spelt_as_the_vocabulary_writes_words():
  lower = words.train(['the cat'], size=20, min_frequency=1, lowercase=True)
  texts = small.Texts(['The Zog'])
  found = spelling.spell(store.in_memory(texts, vocab=lower), texts, vocab=lower)
  assert found.characters(found.take(np.arange(2)), np.ones(2, bool)).tolist() == spelt('the zog')


def test_long_words_are_read_by_their_first_48_bytes(vocab):
  texts = small.Texts(['x' * 60, 'x' * 48 + 'y'])
  found = spelling.spell(store.in_memory(texts, vocab=vocab), texts, vocab=vocab)
  one, other = found.characters(found.take(np.arange(2)), np.ones(2, bool))
  assert one.tolist() == other.tolist() == [259, *[ord('x') + 1] * 48, 260]


def source_of(vocab, path, rows, **settings):
  small.write_rows(path / 'train.jsonl', rows)
  given = {'vocab': vocab, 'length': 12, 'batch_size': 2, 'seed': 0, 'path': str(path), 'cache': str(path / 'cache')}
  return labelled.make(**{**given, 'shuffle': False, 'characters': True, 'layout': 'elmo', **settings})


def check_row(vocab, tokens, characters, text):
  size = len(text.split())
  assert tokens[:size].tolist() == vocab.encode(text)
  assert characters[:size].tolist() == spelt(text)
  assert not characters[size:].any()


def test_a_pair_is_two_sentences(vocab, tmp_path):
  rows = [{'sentence1': 'the zog', 'sentence2': 'a dax saw', 'label': n % 2} for n in range(2)]
  batch = next(source_of(vocab, tmp_path, rows, both_orders=True).once())
  for prefix, text, segments in (
    ('', 'the zog a dax saw', [1, 1, 2, 2, 2]),
    ('swapped_', 'a dax saw the zog', [1, 1, 1, 2, 2]),
  ):
    check_row(vocab, batch[f'{prefix}tokens'][0], batch[f'{prefix}characters'][0], text)
    assert batch[f'{prefix}segment_ids'][0].tolist() == [*segments, *[0] * 7]


def test_labelled_words_keep_their_labels(vocab, tmp_path):
  rows = [{'words': ['the', 'zog', 'saw'], 'tags': [0, 1, 0]}, {'words': ['dax'], 'tags': [1]}]
  batch = next(source_of(vocab, tmp_path, rows, kind='words', fields=('words',), label='tags').once())
  check_row(vocab, batch['tokens'][0], batch['characters'][0], 'the zog saw')
  check_row(vocab, batch['tokens'][1], batch['characters'][1], 'dax')
  assert batch['labels'][:, :3].tolist() == [[0, 1, 0], [1, -1, -1]]


@pytest.mark.parametrize('layout', ['elmo', 'bare', 'begin', 'bert', 'roberta', 'plain', 'xlnet', 'text'])
def test_every_layout_has_characters(layout, vocab, tmp_path):
  """Spell special tokens as in the table of the vocabulary."""
  source = source_of(vocab, tmp_path, [{'text': 'the zog', 'label': n} for n in range(2)], layout=layout)
  batch, table = next(source.once()), chars.table(vocab)
  for token, characters, real in zip(
    batch['tokens'][0], batch['characters'][0], batch['segment_ids'][0] > 0, strict=True
  ):
    own = chars.of_word('zog') if token == vocab.unk_id else table[token]
    assert characters.tolist() == (own if real else np.zeros(50)).tolist()


def test_options_and_questions_have_characters(vocab, tmp_path):
  rows = [{'premise': 'the zog', 'endings': ['a dax', 'a cat'], 'label': 1} for _ in range(2)]
  batch = next(source_of(vocab, tmp_path, rows, kind='options', fields=('premise', 'endings')).once())
  assert batch['characters'].shape == (2, 2, 12, 50)
  check_row(vocab, batch['tokens'][0, 0], batch['characters'][0, 0], 'the zog a dax')
  rows = [{'question': 'the zog', 'context': 'a dax saw', 'answers': {'text': ['dax'], 'answer_start': [2]}}] * 2
  settings = {'kind': 'spans', 'fields': ('question', 'context'), 'label': 'answers', 'question_length': 4}
  batch = next(source_of(vocab, tmp_path, rows, **settings).once())
  check_row(vocab, batch['tokens'][0], batch['characters'][0], 'the zog a dax saw')
  assert batch['start'][0] == batch['end'][0] == 3


def test_a_mixture_hands_characters_on(vocab, tmp_path):
  small.write_rows(tmp_path / 'train.jsonl', [{'text': 'the zog', 'label': n % 2} for n in range(4)])
  part = {'name': 'labelled', 'path': str(tmp_path), 'layout': 'elmo', 'cache': str(tmp_path)}
  given = {'vocab': vocab, 'length': 12, 'batch_size': 2, 'seed': 0}
  source = mixture.make(parts={'one': part, 'other': part}, characters=True, **given)
  batch = next(source.once())
  check_row(vocab, batch['tokens'][0], batch['characters'][0], 'the zog')


def test_both_streams_read_unknown_words_and_predict_the_unknown_token(vocab, tmp_path):
  (tmp_path / 'train.txt').write_text('\n\n'.join(text for text in TEXTS if text))
  given = {'length': 4, 'batch_size': 1, 'seed': 0, 'path': str(tmp_path), 'cache': str(tmp_path / 'cache')}
  source = bptt.make(vocab=vocab, both_directions=True, shuffle=False, **given)
  batches = list(islice(source.read(0), source.steps_per_epoch))
  real = np.concatenate([batch['segment_ids'][0] > 0 for batch in batches])
  begin, end = (chars.boundary(one).tolist() for one in (chars.SENTENCE_BEGINS, chars.SENTENCE_ENDS))
  documents = [text.split() for text in TEXTS if text]
  forward = [word for text in documents for word in (begin, *spelt(' '.join(text)))]
  backward = [word for text in documents for word in (end, *spelt(' '.join(text[::-1])))]
  for key, expected in (('characters', forward), ('backward_characters', backward)):
    assert np.concatenate([batch[key][0] for batch in batches])[real].tolist() == expected
  following = np.concatenate([batch['next_tokens'][0] for batch in batches])[real]
  assert following.tolist() == [one for text in documents for one in (*vocab.encode(' '.join(text)), vocab.eos_id)]


def test_rows_without_characters_stay_as_they_were(vocab, tmp_path):
  rows = [{'text': 'the zog', 'label': n} for n in range(2)]
  plain, with_characters = (source_of(vocab, tmp_path, rows, characters=one) for one in (False, True))
  assert 'characters' not in plain.spec and plain.digest != with_characters.digest
  ours, theirs = (next(source.once()) for source in (plain, with_characters))
  for key in ours:
    np.testing.assert_array_equal(ours[key], theirs[key])
  assert json.dumps(sorted(theirs)) == json.dumps(sorted([*ours, 'characters']))
