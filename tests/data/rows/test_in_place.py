"""Token stores read where they are: the same ids, checked, in bounded memory, for rows that are near each other."""

import json
import pathlib
import threading

import numpy as np
import pytest

from plm_jax.core.errors import ConfigError, RunError
from plm_jax.data import pairs, stream
from plm_jax.data.corpora import splits
from plm_jax.data.rows import documents, in_place, order, store
from plm_jax.io import files
from tests.data import small

SIZES = [5, 0, 17, 3, 40, 1, 8, 8, 0, 25, 11] * 4


@pytest.fixture
def text(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> str:
  """Provide a text whose store has a block for every few documents."""
  monkeypatch.setattr(store, '_BLOCK_CHARACTERS', 60)
  return small.write_text(tmp_path / 'train.txt', small.documents([size for size in SIZES if size]))


def leave(cache: pathlib.Path, elsewhere: pathlib.Path) -> pathlib.Path:
  """Move the ids of the only store of a cache; return its folder."""
  (tokens,) = cache.rglob('tokens.bin')
  elsewhere.mkdir()
  tokens.rename(elsewhere / 'tokens.bin')
  (tokens.parent / in_place.FILE).write_text(json.dumps({'tokens': str(elsewhere / 'tokens.bin')}))
  return tokens.parent


def corpus(text: str, tmp_path: pathlib.Path, **changes) -> store.Tokens:
  return documents.Corpus(path=text, cache=str(tmp_path / 'cache'), **changes).tokenise(small.NumberVocab())


def make(text: str, tmp_path: pathlib.Path, **changes):
  settings = dict(path=text, cache=str(tmp_path / 'cache'), length=16, batch_size=4, seed=0, layout='stream')
  return stream.make(vocab=small.NumberVocab(), **settings | changes)


def tokens_of(source, steps: int = 30) -> np.ndarray:
  batches = source.read(0)
  return np.stack([next(batches)['tokens'] for _ in range(steps)])


def test_ids_elsewhere_are_those_of_the_store(text, tmp_path):
  expected = np.array(corpus(text, tmp_path).ids)
  leave(tmp_path / 'cache', tmp_path / 'elsewhere')
  ids = corpus(text, tmp_path).ids
  assert isinstance(ids, in_place.InPlace) and len(ids) == len(expected)
  np.testing.assert_array_equal(np.asarray(ids), expected)
  np.testing.assert_array_equal(ids[7:90], expected[7:90])
  np.testing.assert_array_equal(ids[7:90][3:5], expected[10:12])
  places = np.random.default_rng(0).integers(0, len(expected), (5, 20))
  np.testing.assert_array_equal(ids.take(places), expected[places])
  assert ids.take(np.array([[-5], [10**6]]), mode='clip').tolist() == expected[[[0], [-1]]].tolist()
  assert ids.take(np.zeros((2, 0), int)).shape == (2, 0)
  with pytest.raises(IndexError, match=f'0 to {len(expected) - 1}'):
    ids.take(np.array([len(expected)]))
  np.testing.assert_array_equal(corpus(text, tmp_path, split='train[10tokens:50tokens]').ids, expected[10:50])


@pytest.mark.parametrize('layout', ['stream', 'full', 'rows', 'documents'])
def test_batches_are_bit_for_bit_those_of_a_copy(text, tmp_path, layout):
  expected = tokens_of(make(text, tmp_path, layout=layout, shuffle_window=64))
  leave(tmp_path / 'cache', tmp_path / 'elsewhere')
  np.testing.assert_array_equal(tokens_of(make(text, tmp_path, layout=layout, shuffle_window=64)), expected)


def test_memory_is_bounded_and_rows_of_a_window_read_few_blocks(text, tmp_path, monkeypatch):
  corpus(text, tmp_path)
  leave(tmp_path / 'cache', tmp_path / 'elsewhere')
  monkeypatch.setattr(in_place, 'HELD', 400)
  ids, read, original = corpus(text, tmp_path, near=True).ids, [], files.read_array
  monkeypatch.setattr(files, 'read_array', lambda *given, **named: read.append(named) or original(*given, **named))
  blocks, rows = len(ids.blocks.starts), len(ids) // 4
  assert blocks > 12

  def reads(window: order.Window | None) -> int:
    read.clear()
    for row in order.rows_at(np.arange(rows), rows=rows, seed=0, window=window)[0].tolist():
      ids.take(np.arange(4 * row, 4 * row + 4))
    return len(read)

  assert reads(order.Window(4, 4)) < 3 * blocks
  assert reads(None) > 5 * blocks
  assert ids.blocks._begin.cache_info().currsize * 2 * max(block.tokens for block in ids.blocks._blocks) <= 400


def test_threads_read_at_once(text, tmp_path):
  expected = np.array(corpus(text, tmp_path).ids)
  leave(tmp_path / 'cache', tmp_path / 'elsewhere')
  ids, found = corpus(text, tmp_path).ids, []
  draws = [np.random.default_rng(seed).permutation(len(expected)) for seed in range(4)]
  threads = [
    threading.Thread(target=lambda each=each: found.append((ids.take(each) == expected[each]).all())) for each in draws
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found == [True] * 4


def test_a_damaged_block_is_read_again_and_then_refused(text, tmp_path, monkeypatch, caplog):
  expected = np.array(corpus(text, tmp_path).ids)
  leave(tmp_path / 'cache', tmp_path / 'elsewhere')
  path = tmp_path / 'elsewhere' / 'tokens.bin'
  sound, original, tried = path.read_bytes(), files.read_array, []

  def once_damaged(*given, **named):
    array = original(*given, **named)
    tried.extend([1] * (given[0] == path))
    return array + 1 if given[0] == path and len(tried) == 1 else array

  with monkeypatch.context() as patched:
    patched.setattr(files, 'read_array', once_damaged)
    assert corpus(text, tmp_path).ids.take(np.arange(3)).tolist() == expected[:3].tolist()
  assert 'reading them again' in caplog.text
  ids = corpus(text, tmp_path).ids
  path.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
  with pytest.raises(RunError, match=r'elsewhere is damaged \(from token 0\): remove it, and repeat plm-jax prepare'):
    ids.take(np.arange(3))
  path.write_bytes(sound)
  assert ids.take(np.arange(3)).tolist() == expected[:3].tolist()  # not raised again
  for content in (sound[:-2], sound + b'12'):
    path.write_bytes(content)
    with pytest.raises(RunError, match=rf'elsewhere is damaged \(tokens.bin has {len(content)} bytes instead of'):
      corpus(text, tmp_path)
  path.unlink()
  with pytest.raises(RunError, match=r'tokens.bin does not exist: repeat plm-jax prepare with --shared and --in_place'):
    corpus(text, tmp_path).ids.take(np.arange(3))


DAMAGE = (
  [('lengths.bin', None), ('lengths.bin', b'1234')]
  + [(in_place.FILE, content) for content in (b'', b'{}', b'[]', b'{"tokens": 1}')]
  + [('manifest.json', content) for content in (b'', b'{}')]
)


@pytest.mark.parametrize(('name', 'content'), DAMAGE)
def test_damage_in_the_cache_names_its_folder(text, tmp_path, name, content):
  corpus(text, tmp_path)
  folder = leave(tmp_path / 'cache', tmp_path / 'elsewhere')
  (folder / name).unlink()
  if content is not None:
    (folder / name).write_bytes(content)
  fix = 'remove it, and repeat plm-jax prepare with --shared and --in_place'
  with pytest.raises(RunError, match=rf'{folder} is damaged \(.*{name}.*\): {fix}'):
    corpus(text, tmp_path)


def test_a_store_made_again_is_no_longer_elsewhere(text, tmp_path):
  expected = np.array(corpus(text, tmp_path).ids)
  folder = leave(tmp_path / 'cache', tmp_path / 'elsewhere')
  (folder / 'manifest.json').unlink()
  ids = corpus(text, tmp_path).ids
  assert isinstance(ids, np.ndarray) and not (folder / in_place.FILE).exists()
  np.testing.assert_array_equal(ids, expected)


def test_rows_from_everywhere_are_refused_before_they_are_read(text, tmp_path, monkeypatch):
  make(text, tmp_path)
  folder = leave(tmp_path / 'cache', tmp_path / 'elsewhere')
  make(text, tmp_path)  # held whole, so any order is fast
  monkeypatch.setattr(in_place, 'HELD', 100)
  near = dict(shuffle_window=2**26)
  fix = rf'data.shuffle_window=67108864 in layouts stream, full or rows.*Or copy it: remove {folder}'
  for refused in ({}, dict(shuffle_window=2**40), dict(shuffle_window=2**19), near | dict(layout='documents')):
    with pytest.raises(ConfigError, match=fix):
      make(text, tmp_path, **refused)
  with pytest.raises(ConfigError, match=fix):
    pairs.make(
      vocab=small.NumberVocab(), path=text, cache=str(tmp_path / 'cache'), length=16, batch_size=4, seed=0,
      sentences='line',
    )  # fmt: skip
  for accepted in (near, near | dict(layout='full'), dict(shuffle=False)):
    make(text, tmp_path, **accepted)


@pytest.mark.parametrize('rows', [1, 2, 7, 64, 1000, 1003])
@pytest.mark.parametrize('window', [order.Window(1, 1), order.Window(2, 2), order.Window(8, 5), order.Window(2000, 3)])
def test_each_row_once_an_epoch_also_in_windows(rows, window):
  chosen, epochs = order.rows_at(np.arange(3 * rows), rows=rows, seed=5, window=window)
  for epoch in range(3):
    assert sorted(chosen[epochs == epoch].tolist()) == list(range(rows))
  one = [order.rows_at(np.array([place]), rows=rows, seed=5, window=window)[0][0] for place in range(3 * rows)]
  assert chosen.tolist() == one


def test_windows_mix_rows_of_a_few_blocks():
  window = order.Window(64, 8)
  chosen, _ = order.rows_at(np.arange(64 * 800), rows=64 * 800, seed=0, window=window)
  for start in range(0, 64 * 800, 64 * 8):
    mixed = chosen[start : start + 64 * 8]
    assert 8 <= len(np.unique(mixed // 64)) <= 16  # blocks are cut anywhere
    assert abs(np.corrcoef(mixed[:-1], mixed[1:])[0, 1]) < 0.3
  assert abs(np.corrcoef(np.arange(len(chosen)), chosen)[0, 1]) < 0.1
  orders = {tuple(order.rows_at(epoch * 500 + np.arange(500), rows=500, seed=seed, window=window)[0].tolist())
            for seed in range(3) for epoch in range(3)}  # fmt: skip
  assert len(orders) == 9


@pytest.mark.parametrize(('rows', 'window'), [(1900, order.Window(1000, 64)), (2999, order.Window(1000, 2))])
def test_rows_left_over_are_mixed(rows, window):
  """No part of an epoch is in the order of the text."""
  chosen, _ = order.rows_at(np.arange(rows), rows=rows, seed=0, window=window)
  assert (np.diff(chosen) == 1).mean() < 0.02


def test_a_window_counts_tokens_also_where_rows_are_short(tmp_path, monkeypatch):
  monkeypatch.setattr(stream, '_BLOCK', 40)
  text = small.write_text(tmp_path / 'train.txt', small.documents([4] * 100))
  batches = make(text, tmp_path, layout='rows', shuffle_window=80).read(0)
  rows = np.sort(np.concatenate([next(batches)['row_id'] for _ in range(5)]))  # of 80 tokens
  gaps = np.diff(np.append(rows, rows[0] + 100))
  assert (gaps > 1).sum() <= 2  # two blocks of ten rows


def test_a_window_of_the_whole_text_mixes_all_rows(text, tmp_path):
  every = tokens_of(make(text, tmp_path))
  np.testing.assert_array_equal(tokens_of(make(text, tmp_path, shuffle_window=2**30)), every)
  assert (tokens_of(make(text, tmp_path, shuffle_window=64)) != every).any()


def test_sources_of_a_mixture_compute_each_window_once(monkeypatch):
  computed = []
  monkeypatch.setattr(order, 'permutation', lambda *key: computed.append(key) or splits.permutation(*key))
  share = order.share(4, host=0, hosts=1)
  orders = [order.shuffled(1000, share, seed=seed, window=order.Window(8, 8)) for seed in range(20)]
  for step in range(3):
    for each in orders:
      each.train(step, share.places)
  assert len(computed) == 40


def test_the_order_of_windows_stays_the_same_from_version_to_version():
  assert order.rows_at(np.arange(11), rows=11, seed=0, window=order.Window(2, 2))[0].tolist() == GOLDEN


GOLDEN = [7, 0, 1, 8, 4, 5, 3, 2, 6, 9, 10]  # the worked example of `order`
