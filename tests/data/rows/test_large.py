"""Stores of billions of documents and rows: nothing of them is held, and row ids have two words."""

import hashlib
import json
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.data.rows import cached, order, packing, store
from plm_jax.noise.keys import row_keys
from tests import conftest
from tests.data import small

WORD = 2**31


def test_rows_beyond_one_word_have_their_own_ids_and_noise():
  rows, share = 2**33 + 5, order.share(8, host=0, hosts=1)
  places = np.array([3, WORD + 3, 2 * WORD + 3, 3 * WORD, WORD - 1, rows - 1, 0, WORD])

  def source(count, chosen):
    each = order.shuffled(count, share, seed=0)._replace(
      train=lambda step, _: order.Chosen(chosen, np.zeros(8, np.int64), np.arange(8) < 7)
    )
    return order.serve(lambda chosen: {'x': chosen.rows}, each, share=share, digest='')

  large, little = source(rows, places), source(WORD, places % WORD)
  batch, same = next(large.read(0)), next(little.read(0))
  assert 'row_high' in large.spec and 'row_high' not in little.spec and 'row_high' not in same
  assert batch['row_id'].tolist() == same['row_id'].tolist() == [3, 3, 3, 0, WORD - 1, 4, 0, -1]
  assert batch['row_high'].tolist() == [0, 1, 2, 3, 0, 4, 0, 0]
  keys, plain = (
    jax.random.key_data(jax.jit(lambda b: row_keys(jax.random.key(1), b, every='step'))({**b, 'step': jnp.int32(4)}))
    for b in (batch, same)
  )
  differ = (np.asarray(keys) != np.asarray(plain)).any(axis=-1)
  assert differ.tolist() == (batch['row_high'] > 0).tolist()  # rows of before keep their noise
  assert len({tuple(key) for key in np.asarray(keys)[:7].tolist()}) == 7


def test_rows_cut_from_offsets_on_disk_are_those_of_memory(tmp_path):
  offsets = np.concatenate([[0], np.cumsum(np.random.default_rng(0).integers(1, 90, 500))])
  offsets.tofile(tmp_path / 'offsets')
  on_disk, ids = np.memmap(tmp_path / 'offsets', np.int64, 'r'), np.arange(offsets[-1])
  for layout, stride in ((packing.stream, {'stride': 20}), (packing.stream, {}), (packing.full, {})):
    plans = [layout(given, length=32, before=1, after=1, **stride) for given in (offsets, on_disk)]
    rows = np.arange(len(plans[0].rows) - 1)
    read = [packing.assemble(p, ids, rows, frames=packing.frames((1,), (2,)), length=32, pad=0) for p in plans]
    np.testing.assert_array_equal(*read)
  assert plans[0].offsets is offsets  # not copied


def test_offsets_of_a_large_store_stay_on_disk(tmp_path, monkeypatch, caplog):
  sizes = [5, 0, 17, 3, 40, 1, 8, 8, 0, 25, 11]

  def offsets():
    texts = small.documents(sizes)
    return store.on_disk(texts, vocab=small.NumberVocab(), cache=str(tmp_path)).offsets

  expected = offsets()
  monkeypatch.setattr(store, '_HELD', 4)
  assert isinstance(made := offsets(), np.memmap) and made.tolist() == expected.tolist()
  (path,) = tmp_path.rglob('offsets.bin')
  damaged = bytearray(path.read_bytes())
  damaged[20] ^= 4
  path.write_bytes(damaged)
  assert offsets().tolist() == expected.tolist() and 'offsets.bin is damaged' in caplog.text


def test_large_arrays_next_to_a_store_are_mapped(tmp_path, monkeypatch):
  monkeypatch.setattr(cached, '_MAPPED', 200)
  tokens = store.on_disk(small.documents([3]), vocab=small.NumberVocab(), cache=str(tmp_path))
  arrays = {'many': np.arange(1_000).reshape(10, 100), 'few': np.arange(3, dtype=np.uint8)}
  for _ in range(2):  # made, then found
    read = cached.cached(tokens, 'rows-0', lambda: arrays)
    assert isinstance(read['many'], np.memmap) and not isinstance(read['few'], np.memmap)
    for name, array in arrays.items():
      np.testing.assert_array_equal(read[name], array)


HELD = """
import sys, time
import numpy as np
from plm_jax.data.rows import packing, store
from tests.data import small
class Texts:
  digest = 'x'
  def __len__(self): return 6_000_000
def held():  # MiB of this process that are no file
  _, resident, shared, *_ = map(int, open('/proc/self/statm').read().split())
  return (resident - shared) * 4096 / 2**20
before = held()
tokens = store.on_disk(Texts(), vocab=small.NumberVocab(), cache=sys.argv[1])
plan = packing.stream(tokens.offsets, length=64, before=0, after=1)
packing.assemble(plan, tokens.ids, np.arange(64) * 4_000, frames=packing.frames((), (6,)), length=64, pad=0)
print(held() - before)
"""


def test_a_process_holds_less_than_a_byte_for_each_document(tmp_path):
  blocks, each = 1_000, 6_000
  texts, vocab = types.SimpleNamespace(digest='x'), small.NumberVocab()
  folder = tmp_path / 'tokens' / store._digest(texts, vocab)
  folder.mkdir(parents=True)
  lengths, ids = np.full(each, 3, np.uint32).tobytes(), np.arange(3 * each, dtype=np.uint16).tobytes()
  (folder / 'lengths.bin').write_bytes(lengths * blocks)
  (folder / 'tokens.bin').write_bytes(ids * blocks)
  sha = [hashlib.sha256(ids).hexdigest(), hashlib.sha256(lengths).hexdigest()]
  listed = [[block * each, each, 3 * block * each, 3 * each, *sha] for block in range(blocks)]
  manifest = {'format': 1, 'blocks': listed, 'sha256': store.digest_of(listed)}
  (folder / 'manifest.json').write_text(json.dumps(manifest))
  words = [sys.executable, '-c', HELD, str(tmp_path)]
  for _ in range(2):  # the offsets are made, then found
    done = subprocess.run(words, cwd=conftest.ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) * 2**20 < 6_000_000 * 5, 'MiB'
