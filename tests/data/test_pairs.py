"""Segments: the runs of BERT's data script, positions of splits and other segments, hosts, epochs."""

import itertools

import numpy as np
import pytest

from plm_jax.data import pairs
from plm_jax.data.rows import boundaries
from plm_jax.data.rows.sentences import punctuation
from tests.data import small

WORDS = (*small.SPECIAL, '.', *(f'W{number}' for number in range(200)), 'Dr', '3', 'x', '"', '\n\n')


class WordVocab(small.NumberVocab):
  """A vocabulary of words with spaces between them, and the full stop."""

  def __init__(self):
    super().__init__(len(WORDS) - len(small.SPECIAL))

  def encode(self, text):
    return [WORDS.index(word) for word in text.split(' ') if word]

  def decode(self, ids):
    return ' '.join(self.token(token) for token in ids)

  def token(self, token_id):
    return WORDS[token_id]


VOCAB = WordVocab()
DOT = VOCAB.encode('.')[0]


def document(draw, sentences, *, low=2, high=9):
  """Sample sentences of random words; the last token is a full stop."""
  words = [[f'W{n}' for n in draw.integers(0, 200, size)] for size in draw.integers(low - 1, high, sentences)]
  return ' '.join(' '.join([*sentence, '.']) for sentence in words)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  place = tmp_path_factory.mktemp('pairs')
  draw = np.random.default_rng(0)
  texts = [document(draw, size) for size in (1, 2, 1, 30, 7, 12, 3, 60, 5, 9, 25, 4)]
  small.write_text(place / 'train.txt', texts)
  return place


def make(folder, **changes):
  settings = dict(vocab=VOCAB, path=str(folder), length=32, batch_size=8, seed=3, cache=str(folder))
  return pairs.make(**(settings | changes))


def take(source, start, count):
  return list(itertools.islice(source.read(start), count))


def same(left, right):
  assert left.keys() == right.keys()
  for key in left:
    assert left[key].dtype == right[key].dtype
    np.testing.assert_array_equal(left[key], right[key], err_msg=key)


def rows_of(batches):
  """Return row id -> (first, next, other) as lists of tokens."""
  return {
    int(batch['row_id'][row]): tuple(
      batch[name][row, : batch[f'{name}_length'][row]].tolist() for name in ('first', 'next', 'other')
    )
    for batch in batches
    for row in range(len(batch['row_id']))
    if batch['row_weight'][row]
  }


def corpus(folder):
  """Return documents as lists of sentences, each a list of ids."""
  out = []
  for text in (folder / 'train.txt').read_text().split('\n\n'):
    sentences, now = [], []
    for token in VOCAB.encode(text.strip()):
      now.append(token)
      if token == DOT:
        sentences, now = [*sentences, now], []
    out.append(sentences + ([now] if now else []))
  return out


def chunks(sentences, target):
  """Return the chunks of create_instances_from_document without putting sentences back."""
  out, now = [], []
  for index, sentence in enumerate(sentences):
    now.append(sentence)
    if index == len(sentences) - 1 or sum(map(len, now)) >= target:
      out, now = [*out, now], []
  return out


def test_boundaries_follow_the_rule():
  text = 'W1 W2 . W3 Dr . W4 3 . 3 W5 . x W5 . " W6 \n\n W7'
  ids = np.array(VOCAB.encode(text))
  starts = boundaries.sentences(ids, np.array([0, len(ids)]), vocab=VOCAB, longest=100)
  pieces = [VOCAB.decode(ids[low:high]) for low, high in itertools.pairwise(starts)]
  assert pieces == ['W1 W2 .', 'W3 Dr . W4 3 . 3 W5 . x W5 . "', 'W6 \n\n', 'W7']
  cut = boundaries.sentences(ids, np.array([0, 1, 1, len(ids)]), vocab=VOCAB, longest=4)
  assert np.diff(cut).max() == 4
  assert cut[:2].tolist() == [0, 1] and cut[-1] == len(ids)
  assert boundaries.documents(cut, np.array([0, 1, 1, len(ids)])).tolist() == [0, 1, len(cut) - 1]


@pytest.mark.parametrize('block', [1, 3, 7])
def test_boundaries_do_not_depend_on_the_block(folder, block, monkeypatch):
  ids = np.array([token for document in corpus(folder) for sentence in document for token in sentence])
  offsets = np.array([0, len(ids)])
  whole = boundaries.sentences(ids, offsets, vocab=VOCAB, longest=50)
  monkeypatch.setattr(punctuation, '_BLOCK', block)
  np.testing.assert_array_equal(boundaries.sentences(ids, offsets, vocab=VOCAB, longest=50), whole)


@pytest.mark.parametrize('short', [0.0, 0.5])
def test_runs_are_the_chunks_of_the_data_script(folder, short):
  documents = corpus(folder)
  targets = pairs.draw_targets(len(documents), room=29, short_probability=short, seed=3)
  assert (targets == 29).all() if short == 0 else 2 <= targets.min() < 29
  expected = [
    chunk for sentences, target in zip(documents, targets, strict=True) for chunk in chunks(sentences, target)
  ]
  rows = rows_of(make(folder, short_probability=short).once())
  assert sorted(rows) == list(range(len(expected)))
  for number, chunk in enumerate(expected):
    first, following, other = rows[number]
    assert first + following == list(itertools.chain(*chunk))
    ends = np.cumsum([len(sentence) for sentence in chunk]).tolist()
    assert len(first) in ends[:-1] if len(chunk) > 1 else following == []
    home = next(index for index, document in enumerate(documents) if chunk[0] in document)
    source = next(
      index for index, document in enumerate(documents) if other[: len(other)] and contains(document, other)
    )
    assert source != home
    wanted = max(targets[home] - len(first), 1)
    assert len(other) >= wanted or other[-len(documents[source][-1]) :] == documents[source][-1]


def contains(sentences, tokens):
  """Return True if `tokens` are consecutive whole sentences of the document."""
  for start in range(len(sentences)):
    now = []
    for sentence in sentences[start:]:
      now = now + sentence
      if now == tokens:
        return True
  return False


def test_targets_are_short_with_the_probability_and_uniform():
  targets = pairs.draw_targets(20_000, room=29, short_probability=0.1, seed=0)
  short = targets[targets < 29]
  assert len(short) / 20_000 == pytest.approx(0.1 * 27 / 28, abs=0.01)
  counts = np.bincount(short, minlength=29)[2:]
  assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 60


def test_split_points_and_sentences_of_other_documents_are_uniform():
  sentences = np.arange(0, 10 * 41, 10)
  heads = np.array([0, 8, 16, 24, 40])
  rows = pairs.Runs(sentences, heads, np.zeros(1, np.int64), np.full(1, 8), np.zeros(1, np.int64), np.full(1, 80))
  epochs = np.arange(8000)
  made = pairs.segments(rows, np.zeros(8000, np.int64), epochs, seed=1, unit='segment')
  split = np.bincount(made[0][1] // 10, minlength=9)
  assert split[0] == split[8] == 0
  assert (np.abs(split[1:8] - 8000 / 7) < 5 * (8000 / 7) ** 0.5).all()
  at = made[2][0] // 10
  assert at.min() >= 8, 'a segment of its own document'
  per_document = np.bincount(np.searchsorted(heads, at, side='right') - 1, minlength=4)
  assert (np.abs(per_document[1:] - 8000 / 3) < 5 * (8000 / 3) ** 0.5).all()
  inside = np.bincount(at[at >= 24] - 24, minlength=16)
  assert (np.abs(inside - inside.mean()) < 5 * inside.mean() ** 0.5).all()


def test_one_document_alone_still_has_pairs(tmp_path, caplog):
  small.write_text(tmp_path / 'train.txt', [document(np.random.default_rng(1), 20)])
  rows = rows_of(make(tmp_path, cache=str(tmp_path)).once())
  assert all(other for _, _, other in rows.values())
  assert 'single document' in caplog.text


def test_single_sentences(folder):
  rows = rows_of(make(folder, unit='sentence').once())
  expected = [
    (sentences[at], sentences[at + 1] if at + 1 < len(sentences) else [])
    for sentences in corpus(folder)
    for at in range(0, len(sentences), 2)
  ]
  assert [rows[number][:2] for number in range(len(rows))] == expected
  assert all(other.count(DOT) == 1 and other[-1] == DOT for _, _, other in rows.values())


@pytest.mark.parametrize('unit', ['segment', 'sentence'])
@pytest.mark.parametrize('hosts', [2, 4, 8])
def test_hosts_together_read_the_batch_of_one(folder, unit, hosts):
  parts = [make(folder, unit=unit, host=host, hosts=hosts) for host in range(hosts)]
  whole = make(folder, unit=unit)
  for batch, *pieces in zip(take(whole, 5, 3), *(take(part, 5, 3) for part in parts), strict=True):
    same(batch, {key: np.concatenate([piece[key] for piece in pieces]) for key in batch})
  for batch, *pieces in zip(whole.once(), *(part.once() for part in parts), strict=True):
    same(batch, {key: np.concatenate([piece[key] for piece in pieces]) for key in batch})


def test_read_is_pure_and_epochs_differ(folder):
  source = make(folder)
  batches = take(source, 0, 3 * source.steps_per_epoch)
  same(take(make(folder), 4, 1)[0], batches[4])
  assert {key: (a.shape, a.dtype) for key, a in batches[0].items()} == {
    key: (leaf.shape, leaf.dtype) for key, leaf in source.spec.items()
  }
  seen = {}
  for batch in batches:
    for row in range(8):
      key = int(batch['epoch'][row]), int(batch['row_id'][row])
      assert key not in seen, 'a row twice in an epoch'
      seen[key] = tuple(batch[name][row].tolist() for name in ('first', 'next', 'other'))
  assert {row for epoch, row in seen if epoch == 0} == set(range(source.rows))
  assert any(seen[0, row] != seen[1, row] for row in range(source.rows))
  assert any(seen[0, row][2] != seen[1, row][2] for row in range(source.rows))


def test_copies_repeat_draws(folder):
  source = make(folder, copies=1)
  found = {}
  for batch in take(source, 0, 2 * source.steps_per_epoch):
    for row in range(8):
      values = tuple(batch[name][row].tolist() for name in ('first', 'next', 'other'))
      assert found.setdefault(int(batch['row_id'][row]), values) == values


def test_what_is_too_long_loses_tokens_at_both_ends(tmp_path):
  words = ' '.join(f'W{n}' for n in range(40))
  small.write_text(tmp_path / 'train.txt', [f'{words} . W50 W51 .', *['W60 W61 .'] * 5])
  source = make(tmp_path, cache=str(tmp_path), length=43, batch_size=2, short_probability=0.0)
  rows = rows_of(source.once())
  assert len(rows[0][0]) == 40  # cut to the room of a sequence, as a separate sentence
  assert source.rows == 7


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'length': 4}, 'length=4.*5|5.*length=4|at least 5'),
    ({'unit': 'word'}, 'word.*segment, sentence'),
    ({'short_probability': 1.5}, 'short_probability=1.5'),
    ({'copies': 0}, 'copies=0'),
    ({'batch_size': 6, 'hosts': 4}, 'batch_size=6'),
  ],
)
def test_impossible_settings_are_refused(folder, changes, message):
  with pytest.raises(ValueError, match=message):
    make(folder, **changes)
