"""Counted pairs: equal to loops in Python for any amount of memory; a killed or damaged count is continued."""

import collections
import hashlib
import json
import shutil

import numpy as np
import pytest

from plm_jax.data import cooccurrence
from plm_jax.text import words

TEXT = '\n\n'.join(' '.join(f'w{n * n % 23 % (5 + d)}' for n in range(d, 60 + 7 * d)) for d in range(9))
HARD = '\n\n\n\n'.join(['a b a c', '', 'b', 'a unknown b', 'c a'])


@pytest.fixture
def folder(tmp_path):
  (tmp_path / 'train.txt').write_text(TEXT + '\n\nrare words\n')
  (tmp_path / 'hard.txt').write_text(HARD)
  return tmp_path


def make(folder, *, file='train.txt', known=None, **settings):
  text = (folder / file).read_text() if known is None else known
  vocab = words.train(text.split('\n\n'), size=100, min_frequency=1 if known else 2)
  source = cooccurrence.make(
    vocab=vocab, path=str(folder / file), length=8, batch_size=4, seed=1, cache=str(folder / 'cache'), **settings
  )
  return source, vocab


def found(source, vocab):
  """Return (word, neighbour) -> count of all sequences; each pair once."""
  counts = {}
  for batch in source.once():
    rows = batch['row_weight'] > 0
    for word, real, other, count in zip(*(batch[key][rows].ravel() for key in cooccurrence.GIVES), strict=True):
      if real:
        pair = vocab.token(int(word)), vocab.token(int(other))
        counts[pair] = counts.get(pair, 0) + float(count)
  return counts


def in_python(text, *, known, window):
  """Count as cooccur.c: unknown words are removed before distances."""
  counts = collections.Counter()
  for document in text.split('\n\n'):
    kept = [word for word in document.split() if word in known]
    for place, word in enumerate(kept):
      for back in range(1, min(window, place) + 1):
        counts[word, kept[place - back]] += 1 / back
        counts[kept[place - back], word] += 1 / back
  return counts


def rows_once(source):
  return [batch for batch in source.once() if batch['row_weight'].all()]


@pytest.mark.parametrize(('window', 'room'), [(15, 16_000_000), (15, 2000), (1, 120), (1000, 200_000)])
def test_counts_are_those_of_a_loop(folder, window, room):
  source, vocab = make(folder, window=window, room=room)
  known = {vocab.token(number) for number in range(vocab.size) if number not in vocab.special_ids}
  expected = in_python(TEXT, known=known, window=window)
  ours = found(source, vocab)
  assert len(known) + 15 > 20 and ours.keys() == expected.keys() and len(expected) > 40
  for pair, count in expected.items():
    assert ours[pair] == pytest.approx(count, rel=1e-6), pair
  assert (source.rows - 1) * 8 < len(expected) <= source.rows * 8


def test_unknown_words_and_ends_of_documents(folder):
  ours = found(*make(folder, file='hard.txt', known='a b c', window=15))
  expected = {
    ('a', 'b'): 1 + 1 + 1, ('a', 'a'): 2 * 1 / 2, ('a', 'c'): 1 + 1 / 3 + 1, ('b', 'c'): 1 / 2,
  }  # fmt: skip
  expected |= {(other, word): count for (word, other), count in expected.items()}
  assert ours == pytest.approx(expected)


def test_triples_are_in_random_order(folder):
  source, _ = make(folder, shuffle=False)
  order = np.concatenate([batch['tokens'].ravel() for batch in rows_once(source)])
  steps = np.diff(order)
  assert 0.3 < (steps < 0).mean() < 0.6 and len(set(order[:8].tolist())) > 3


def table_folder(folder):
  (manifest,) = folder.glob('cache/tokens/*/cooccurrence-*/manifest.json')
  return manifest.parent


def test_a_counting_that_was_cut_off_goes_on(folder, monkeypatch, caplog):
  caplog.set_level('INFO')
  pairs_of, calls = cooccurrence.pairs_of, []

  def cut_off(*args, **settings):
    calls.append(1)
    if len(calls) == 4:
      raise KeyboardInterrupt
    return pairs_of(*args, **settings)

  monkeypatch.setattr(cooccurrence, 'pairs_of', cut_off)
  with pytest.raises(KeyboardInterrupt):
    make(folder, room=3000)
  (journal,) = folder.glob('cache/tokens/*/cooccurrence-*/runs.json')
  assert len(json.loads(journal.read_text())['runs']) == 3
  (journal.parent / 'run-00002.bin').write_bytes(b'damaged')
  again = found(*make(folder, room=3000))
  parts = len(calls)
  assert 'after 2 counted parts' in caplog.text and 'run-00002.bin is damaged' in caplog.text
  calls[:] = [1] * 10
  assert not list(journal.parent.glob('run-*')) and not list(journal.parent.glob('hand-*')) and not journal.exists()
  assert found(*make(folder, room=3000)) == again and len(calls) == 10 and parts > 5
  expected = found(*make(folder))
  assert again == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize('sealed', [True, False])
def test_flipped_bits_of_a_journal_give_the_same_table(folder, monkeypatch, sealed):
  """The number of pairs too, which moved the counts to other pairs; without a checksum as earlier versions wrote it."""
  expected = found(*make(folder, room=3000))
  (folder / 'cache').rename(folder / 'whole')
  with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
    patched.setattr(cooccurrence, '_merge', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    make(folder, room=3000)
  (journal,) = folder.glob('cache/tokens/*/cooccurrence-*/runs.json')
  if not sealed:
    journal.write_text(json.dumps({'runs': json.loads(journal.read_text())['runs']}))
  before, draw = journal.read_bytes(), np.random.default_rng(0)
  shutil.copytree(folder / 'cache', folder / 'killed')
  first = before.index(b'[[') + 2  # the first number of pairs
  for place in [*range(first, first + 3), *draw.integers(len(before), size=12)]:
    shutil.rmtree(folder / 'cache')
    shutil.copytree(folder / 'killed', folder / 'cache')
    content = bytearray(before)
    content[place] ^= 1 << int(draw.integers(8))
    journal.write_bytes(content)
    assert found(*make(folder, room=3000)) == expected


def test_a_merge_that_was_cut_off_and_a_damaged_table_are_made_again(folder, monkeypatch, caplog):
  with monkeypatch.context() as patched:
    patched.setattr(cooccurrence.files, 'read_array', lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
      make(folder, room=3000)
  whole = found(*make(folder, room=3000))
  for name, content in (('triples.bin', b'short'), ('manifest.json', b'{"sha')):
    (table_folder(folder) / name).write_bytes(content)
    assert found(*make(folder, room=3000)) == whole
    assert 'damaged' in caplog.text
    caplog.clear()


def test_a_large_table_is_compared_block_by_block_when_it_is_read(folder, monkeypatch, caplog):
  """Detect a flipped byte before use; the triples are the same again.

  A start compares only the blocks that it reads.
  """
  monkeypatch.setattr(cooccurrence, 'BLOCK', 16)
  monkeypatch.setattr(cooccurrence, '_CHECKED_AT_ONCE', 0)
  whole = found(*make(folder))
  file = table_folder(folder) / 'triples.bin'
  sound = file.read_bytes()
  assert len(sound) > 3 * 16 * 12
  hashed, digest = [], cooccurrence.Triples._digest
  monkeypatch.setattr(
    cooccurrence.Triples, '_digest', lambda self, number: hashed.append(int(number)) or digest(self, number)
  )
  monkeypatch.setattr(cooccurrence, '_digests', lambda file: pytest.fail('the whole table is read at the start'))
  source, vocab = make(folder)
  assert len(hashed) < 3  # of the rows from which shapes are known
  assert found(source, vocab) == whole
  assert sorted(hashed) == list(range(-(-len(sound) // (16 * 12)))) == sorted(set(hashed))
  monkeypatch.undo()
  monkeypatch.setattr(cooccurrence, 'BLOCK', 16)
  monkeypatch.setattr(cooccurrence, '_CHECKED_AT_ONCE', 0)
  file.write_bytes(sound[:999] + bytes([sound[999] ^ 1]) + sound[1000:])
  assert found(*make(folder)) == whole
  assert 'damaged' in caplog.text and file.read_bytes() == sound


def test_a_table_of_an_earlier_version_has_one_digest(folder, caplog):
  whole = found(*make(folder))
  file, manifest = table_folder(folder) / 'triples.bin', table_folder(folder) / 'manifest.json'
  own = manifest.read_text()
  manifest.write_text(json.dumps({'sha256': hashlib.sha256(file.read_bytes()).hexdigest()}))
  assert found(*make(folder)) == whole and manifest.read_text() == own
  assert 'damaged' not in caplog.text
  manifest.write_text(json.dumps({'sha256': '0' * 64}))
  assert found(*make(folder)) == whole and 'damaged' in caplog.text


def test_a_text_without_pairs_is_refused(folder):
  (folder / 'one.txt').write_text('word\n\nword\n\nword\n')
  with pytest.raises(ValueError, match=r'no two words .* 15 '):
    make(folder, file='one.txt')
