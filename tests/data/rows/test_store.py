"""The token store: written once, finished after any interruption, repaired after any damage."""

import json
import logging
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from plm_jax.core.errors import RunError
from plm_jax.data.rows import store
from plm_jax.data.rows.cached import cached
from tests.data import small

ROOT = pathlib.Path(__file__).resolve().parents[3]
SIZES = [5, 0, 17, 3, 40, 1, 8, 8, 0, 25, 11, 2, 30, 6, 6, 9]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  monkeypatch.setattr(store, '_BLOCK_DOCUMENTS', 3)


def files(tokens: store.Tokens) -> dict[str, bytes]:
  return {name: (tokens.folder / name).read_bytes() for name in ('tokens.bin', 'lengths.bin', 'manifest.json')}


def whole(cache) -> dict[str, bytes]:
  return files(store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(), cache=str(cache)))


class Stop(Exception):
  pass


def stop_after(blocks: int):
  """Interrupt after a number of blocks."""
  left = [blocks]

  def each(texts):
    left[0] -= 1
    if left[0] < 0:
      raise Stop

  return each


def test_holds_every_document(tmp_path):
  texts, vocab = small.documents(SIZES), small.NumberVocab()
  for tokens in (store.on_disk(texts, vocab=vocab, cache=str(tmp_path)), store.in_memory(texts, vocab=vocab)):
    assert tokens.offsets.tolist() == [0, *np.cumsum(SIZES)]
    for index, text in enumerate(texts):
      assert tokens.ids[tokens.offsets[index] : tokens.offsets[index + 1]].tolist() == vocab.encode(text)


@pytest.mark.parametrize(('size', 'dtype'), [(2**16 - len(small.SPECIAL), np.uint16), (2**16, np.uint32)])
def test_takes_the_smallest_type_that_holds_the_vocabulary(tmp_path, size, dtype):
  texts = small.Texts([f'0 {size - 1}'])
  for tokens in (
    store.on_disk(texts, vocab=small.NumberVocab(size), cache=str(tmp_path)),
    store.in_memory(texts, vocab=small.NumberVocab(size)),
  ):
    assert tokens.ids.dtype == dtype
    assert tokens.ids.tolist() == [10, size + 9]


def test_is_not_tokenised_twice(tmp_path):
  first = store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(), cache=str(tmp_path))
  again = store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(each=stop_after(0)), cache=str(tmp_path))
  assert again.folder == first.folder
  np.testing.assert_array_equal(again.ids, first.ids)


def test_other_text_or_vocabulary_is_another_store(tmp_path):
  made = [
    store.on_disk(texts, vocab=vocab, cache=str(tmp_path)).digest
    for texts, vocab in (
      (small.documents(SIZES), small.NumberVocab()),
      (small.documents(SIZES[:-1]), small.NumberVocab()),
      (small.documents(SIZES), small.NumberVocab(20_000)),
    )
  ]
  assert len(set(made)) == 3


@pytest.mark.parametrize('blocks', range(6))
def test_goes_on_after_the_last_finished_block(tmp_path, blocks):
  with pytest.raises(Stop):
    vocab = small.NumberVocab(each=stop_after(blocks))
    store.on_disk(small.documents(SIZES), vocab=vocab, cache=str(tmp_path / 'a'))
  seen = []
  vocab = small.NumberVocab(each=seen.append)
  finished = store.on_disk(small.documents(SIZES), vocab=vocab, cache=str(tmp_path / 'a'))
  assert len(seen) == 6 - blocks
  assert files(finished) == whole(tmp_path / 'b')


def test_flipped_bits_of_the_journal_of_a_killed_process(tmp_path):
  """The count of its last block too, of which the file has fewer bytes."""
  with pytest.raises(Stop):
    store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(each=stop_after(3)), cache=str(tmp_path / 'a'))
  (path,) = (tmp_path / 'a').rglob('blocks.jsonl')
  before, expected = path.read_bytes(), whole(tmp_path / 'b')
  last, draw = before.rindex(b'\n', 0, -1) + 1, np.random.default_rng(0)
  shutil.copytree(tmp_path / 'a', tmp_path / 'killed')
  for place in [*range(last, last + 16), *draw.integers(len(before), size=20)]:
    for bit in (0, 1) if place < last + 16 else (int(draw.integers(8)),):
      shutil.rmtree(tmp_path / 'a')
      shutil.copytree(tmp_path / 'killed', tmp_path / 'a')
      damage_bit(path, place=int(place), bit=bit)
      finished = store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(), cache=str(tmp_path / 'a'))
      assert files(finished) == expected, place - last


@pytest.mark.parametrize(
  ('name', 'change', 'blocks'),
  [
    ('tokens.bin', lambda data: data[:-3], 4),
    ('lengths.bin', lambda data: data[:-3], 4),
    ('blocks.jsonl', lambda data: data[:-3], 4),
    ('tokens.bin', lambda data: bytes([*data[:-1], data[-1] ^ 1]), 4),
    ('tokens.bin', lambda data: data + b'abc', 3),
    ('lengths.bin', lambda data: data + b'abc', 3),
    ('lengths.bin', lambda data: b'', 6),
  ],
)
def test_goes_on_after_a_torn_write(tmp_path, name, change, blocks):
  with pytest.raises(Stop):
    vocab = small.NumberVocab(each=stop_after(3))
    store.on_disk(small.documents(SIZES), vocab=vocab, cache=str(tmp_path / 'a'))
  (path,) = (tmp_path / 'a').rglob(name)
  path.write_bytes(change(path.read_bytes()))
  seen = []
  vocab = small.NumberVocab(each=seen.append)
  finished = store.on_disk(small.documents(SIZES), vocab=vocab, cache=str(tmp_path / 'a'))
  assert len(seen) == blocks, 'blocks that were whole are tokenised again, or torn ones only found at the end'
  assert files(finished) == whole(tmp_path / 'b')


def test_reports_progress_in_lines_where_there_is_no_terminal(tmp_path, caplog):
  caplog.set_level(logging.INFO)
  whole(tmp_path)
  (line,) = (record.message for record in caplog.records if record.message.startswith('Tokenising'))
  assert line.startswith(f'Tokenising: {len(SIZES)} of {len(SIZES)} documents, ')
  assert line.endswith(' M tokens/s.')


def test_goes_on_after_a_kill(tmp_path):
  code = (
    'from plm_jax.data.rows import store; from tests.data import small; store._BLOCK_DOCUMENTS = 3; '
    f'small.tokenise_slowly({str(tmp_path / "a")!r}, {SIZES}, 0.3)'
  )
  process = subprocess.Popen([sys.executable, '-c', code], cwd=ROOT, env={**os.environ, 'PYTHONPATH': str(ROOT)})
  deadline = time.monotonic() + 60
  while not any(path.read_text().count('\n') >= 2 for path in (tmp_path / 'a').rglob('blocks.jsonl')):
    assert process.poll() is None, 'finished before it could be killed'
    assert time.monotonic() < deadline
    time.sleep(0.02)
  process.send_signal(signal.SIGKILL)
  assert process.wait() == -signal.SIGKILL
  assert not list((tmp_path / 'a').rglob('manifest.json'))
  seen = []
  vocab = small.NumberVocab(each=seen.append)
  finished = store.on_disk(small.documents(SIZES), vocab=vocab, cache=str(tmp_path / 'a'))
  assert 0 < len(seen) <= 4
  assert files(finished) == whole(tmp_path / 'b')


def damage_bit(path: pathlib.Path, *, place: int | None = None, bit: int = 4) -> None:
  data = bytearray(path.read_bytes())
  data[len(data) // 2 if place is None else place] ^= 1 << bit
  path.write_bytes(data)


@pytest.mark.parametrize('name', ['tokens.bin', 'lengths.bin'])
@pytest.mark.parametrize(
  'damage',
  [
    damage_bit,
    lambda path: path.write_bytes(path.read_bytes()[:-10]),
    lambda path: path.write_bytes(path.read_bytes() + b'12'),
    lambda path: path.unlink(),
  ],
  ids=['bit', 'short', 'long', 'gone'],
)
def test_damage_is_noticed_and_repaired(tmp_path, caplog, name, damage):
  caplog.set_level(logging.WARNING)
  expected = whole(tmp_path)
  (path,) = tmp_path.rglob(name)
  damage(path)
  assert whole(tmp_path) == expected
  assert any('damaged' in record.message or ' bytes' in record.message for record in caplog.records)
  caplog.clear()
  assert whole(tmp_path) == expected
  assert not caplog.records


def large(cache, each=len) -> store.Tokens:
  return store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(each=each), cache=str(cache))


def test_blocks_of_a_large_store_are_checked_when_they_are_first_read(tmp_path, monkeypatch):
  expected = np.asarray(large(tmp_path).ids)
  monkeypatch.setattr(store, '_CHECKED_AT_ONCE', 0)
  checked = []
  intact = store._is_intact
  monkeypatch.setattr(
    store, '_is_intact', lambda *given, ids=True: checked.append((given[1].first_token, ids)) or intact(*given, ids=ids)
  )
  tokens = large(tmp_path)
  starts = sorted({first for first, _ in checked})
  assert not any(ids for _, ids in checked), 'ids were read when the store was opened'
  checked.clear()
  assert tokens.ids.take(np.array([0, 1])).tolist() == expected[:2].tolist()
  assert tokens.ids.take(np.array([[-5], [1]]), mode='clip').tolist() == expected[[[0], [1]]].tolist()
  assert [first for first, _ in checked] == [0]
  np.testing.assert_array_equal(tokens.ids[starts[2] - 1 : starts[2] + 1], expected[starts[2] - 1 : starts[2] + 1])
  assert [first for first, _ in checked] == [0, starts[1], starts[2]]
  np.testing.assert_array_equal(tokens.ids[3:3], expected[:0])
  np.testing.assert_array_equal(np.asarray(tokens.ids), expected)
  np.testing.assert_array_equal(tokens.ids.take(np.arange(len(expected))), expected)
  assert sorted(first for first, _ in checked) == starts


@pytest.mark.parametrize('name', ['tokens.bin', 'lengths.bin'])
def test_every_flipped_bit_of_a_large_store_is_repaired(tmp_path, monkeypatch, caplog, name):
  expected = large(tmp_path)
  ids, offsets = np.array(expected.ids), expected.offsets
  monkeypatch.setattr(store, '_CHECKED_AT_ONCE', 0)
  (path,) = tmp_path.rglob(name)
  draw = np.random.default_rng(0)
  for place in draw.integers(path.stat().st_size, size=60):
    damage_bit(path, place=int(place), bit=int(draw.integers(8)))
    caplog.clear()
    found = large(tmp_path)
    np.testing.assert_array_equal(found.ids.take(draw.permutation(len(ids))).sum(), ids.sum())
    np.testing.assert_array_equal(found.ids, ids)
    np.testing.assert_array_equal(found.offsets, offsets)
    assert 'damaged' in caplog.text


def test_threads_read_a_large_store_at_once(tmp_path, monkeypatch):
  expected = np.array(large(tmp_path).ids)
  monkeypatch.setattr(store, '_CHECKED_AT_ONCE', 0)
  (path,) = tmp_path.rglob('tokens.bin')
  path.write_bytes(bytes(path.stat().st_size))
  tokens, found = large(tmp_path), []
  places = [np.random.default_rng(seed).permutation(len(expected)) for seed in range(4)]
  threads = [
    threading.Thread(target=lambda each=each: found.append((tokens.ids.take(each) == expected[each]).all()))
    for each in places
  ]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert found == [True] * 4


@pytest.mark.parametrize('sealed', [True, False])
def test_a_flipped_bit_of_a_manifest_is_rebuilt(tmp_path, caplog, sealed):
  expected = whole(tmp_path)
  (path,) = tmp_path.rglob('manifest.json')
  manifest = json.loads(path.read_text())
  if not sealed:  # as earlier versions wrote it
    path.write_text(json.dumps({name: manifest[name] for name in ('format', 'blocks')}))
  before = path.read_bytes()
  draw = np.random.default_rng(0)
  for place in draw.integers(len(before), size=20):
    damage_bit(path, place=int(place), bit=int(draw.integers(8)))
    found = whole(tmp_path)
    assert {name: found[name] for name in ('tokens.bin', 'lengths.bin')} == {
      name: expected[name] for name in ('tokens.bin', 'lengths.bin')
    }
    path.write_bytes(before)
  assert 'manifest.json' in caplog.text


def test_a_damaged_manifest_starts_over(tmp_path):
  expected = whole(tmp_path)
  (path,) = tmp_path.rglob('manifest.json')
  path.write_text('{"blocks": [[')
  assert whole(tmp_path) == expected


def test_tokens_that_cannot_be_made_again_are_refused(tmp_path):
  whole(tmp_path)
  (path,) = tmp_path.rglob('tokens.bin')
  damage_bit(path)
  changed = small.NumberVocab()
  changed.encode = lambda text: []
  with pytest.raises(RunError, match=r'[Dd]elete the folder'):
    store.on_disk(small.documents(SIZES), vocab=changed, cache=str(tmp_path))


def test_two_writers_take_turns(tmp_path):
  calls, results = [], []

  def each(texts):
    calls.append(len(texts))
    time.sleep(0.02)

  def run():
    vocab = small.NumberVocab(each=each)
    results.append(files(store.on_disk(small.documents(SIZES), vocab=vocab, cache=str(tmp_path / 'a'))))

  threads = [threading.Thread(target=run) for _ in range(3)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert sum(calls) == len(SIZES)
  assert results == [whole(tmp_path / 'b')] * 3


def test_blocks_are_bounded_by_characters(tmp_path, monkeypatch):
  monkeypatch.setattr(store, '_BLOCK_DOCUMENTS', 1000)
  monkeypatch.setattr(store, '_BLOCK_CHARACTERS', 50)
  seen = []
  store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(each=seen.append), cache=str(tmp_path))
  assert sum(map(len, seen)) == len(SIZES)
  for block in seen:
    assert sum(map(len, block[:-1])) < 50


def test_an_array_beside_the_store_is_kept_and_made_again_when_damaged(tmp_path, caplog):
  tokens = store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(), cache=str(tmp_path))
  made = []

  def make():
    made.append(1)
    return {'a': np.arange(1000), 'b': np.zeros(0, np.int32)}

  for _ in range(2):
    np.testing.assert_array_equal(cached(tokens, 'rows', make)['a'], np.arange(1000))
  assert len(made) == 1
  path = tokens.folder / 'rows.npz'
  before = path.read_bytes()
  draw = np.random.default_rng(0)
  places = [*range(70), *draw.integers(len(before), size=230).tolist()]
  for number, place in enumerate(places, start=2):
    damage_bit(path, place=place, bit=int(draw.integers(8)))
    found = cached(tokens, 'rows', make)
    np.testing.assert_array_equal(found['a'], np.arange(1000))
    assert (set(found), len(made)) == ({'a', 'b'}, number)
  assert caplog.text.count('damaged') == len(places)
  np.savez(path, a=np.zeros(1))  # as earlier versions wrote it, without a digest
  np.testing.assert_array_equal(cached(tokens, 'rows', make)['a'], np.arange(1000))
