"""Stores that several workers tokenise: the same tokens whatever the order, the number of workers and the kills."""

import json
import random

import numpy as np
import pytest

from plm_jax.data import made
from plm_jax.data.rows import store
from tests.data import small

SIZES = [5, 0, 17, 3, 40, 1, 8, 8, 0, 25, 11, 2, 30, 6, 6, 9]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
  monkeypatch.setattr(store, '_BLOCK_DOCUMENTS', 3)


class Stop(Exception):
  pass


def worker(cache, part=None, left=None):
  """Make a part or, without one, join them; stop after `left` calls of the tokenizer."""
  calls = []

  def each(texts):
    calls.append(len(texts))
    if left is not None and len(calls) > left:
      raise Stop

  with made.watching(part=part):
    tokens = store.on_disk(small.documents(SIZES), vocab=small.NumberVocab(each=each), cache=str(cache))
  return tokens, sum(calls)


def part(cache, *which, left=None):
  with pytest.raises(made.Partial) as partial:
    worker(cache, which, left)
  return partial.value.made


def content(tokens):
  return {name: (tokens.folder / name).read_bytes() for name in ('tokens.bin', 'lengths.bin', 'manifest.json')}


def test_any_order_any_kill_the_same_bytes(tmp_path):
  alone = content(worker(tmp_path / 'alone')[0])
  for index in range(4):
    part(tmp_path / 'orderly', index, 4)
  joined, tokenised = worker(tmp_path / 'orderly')
  expected = content(joined)
  assert tokenised == 0 and not (joined.folder / 'parts').exists()
  assert expected['tokens.bin'] == alone['tokens.bin'] and expected['lengths.bin'] == alone['lengths.bin']
  for seed in range(6):
    draw, cache = random.Random(seed), tmp_path / str(seed)
    for index in draw.sample(range(4), 4):
      for left in draw.choices(range(3), k=2):  # killed, and made again
        with pytest.raises((Stop, made.Partial)):
          worker(cache, (index, 4), left)
      assert part(cache, index, 4).found in (True, False)
      assert part(cache, index, 4).found
    assert content(worker(cache)[0]) == expected
    assert worker(cache, (0, 4))[1] == 0  # a whole store is opened, not made again


def test_a_killed_join_goes_on_and_missing_or_damaged_parts_are_made(tmp_path, monkeypatch):
  expected = np.asarray(worker(tmp_path / 'alone')[0].ids)
  for index in (0, 2, 3):
    made_part = part(tmp_path / 'cache', index, 4)
  damaged = bytearray((made_part.folder / 'tokens.bin').read_bytes())
  damaged[3] ^= 1
  (made_part.folder / 'tokens.bin').write_bytes(damaged)
  for left in (0, 1):  # before the missing part, and before the damaged block
    with pytest.raises(Stop):
      worker(tmp_path / 'cache', left=left)
    journal = (made_part.folder.parents[1] / 'blocks.jsonl').read_text().splitlines()
    assert json.loads(journal[0])[0] == 0
  tokens, tokenised = worker(tmp_path / 'cache')
  np.testing.assert_array_equal(np.asarray(tokens.ids), expected)
  assert 0 < tokenised < len(SIZES)


def test_more_workers_than_documents(tmp_path):
  for index in range(20):
    part(tmp_path, index, 20)
  tokens, tokenised = worker(tmp_path)
  assert tokenised == 0 and len(tokens.offsets) == len(SIZES) + 1
