"""Measure how fast one host reads rows from a token store in a bucket, against a local replacement of the bucket.

    pip install -r requirements/buckets.txt
    python -m benchmarks.in_place [--latency=0.05] [--tokens=100000000] [--window=16777216] [--held=134217728]

The store has random ids in documents of 1,000 tokens, and is read in rows of `--length` by one of `--hosts`. Every
answer of the bucket waits for `--latency` seconds. `--held` bytes of blocks stay in memory, less than the store, so
that every epoch reads it again. A v5e-16 with BERT-base (16 x 512 a chip, 55.8 ms a step by the compiler's cycles) eats
2.35 M tokens a second. Prints tokens a second of all hosts, the same with ids in memory, and bytes read by the host.
"""

import argparse
import functools
import hashlib
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np

EATEN = 16 * 16 * 512 / 0.0558  # tokens a second
_BLOCK = 2**20  # tokens


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--latency', type=float, default=0.05, help='seconds before every answer')
  parser.add_argument('--tokens', type=int, default=100_000_000)
  parser.add_argument('--length', type=int, default=512)
  parser.add_argument('--batch', type=int, default=128, help='rows a step over all hosts')
  parser.add_argument('--hosts', type=int, default=4)
  parser.add_argument('--window', type=int, default=2**24, help='tokens whose rows are mixed; 0 for all')
  parser.add_argument('--held', type=int, default=2**27, help='bytes of blocks in memory')
  parser.add_argument('--seconds', type=float, default=20.0)
  arguments = parser.parse_args()
  words = [sys.executable, '-m', 'tests.google_storage', str(arguments.latency)]
  server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
  try:
    assert server.stdout is not None
    os.environ['STORAGE_EMULATOR_HOST'] = f'http://127.0.0.1:{int(server.stdout.readline())}'
    os.environ['FSSPEC_GCS_TOKEN'] = 'anon'
    os.environ['GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT'] = 'false'
    measure(arguments)
    sys.stdout.flush()
    os._exit(0)  # threads still read ahead; the server ends with this process
  finally:
    server.kill()
    server.wait()


def measure(arguments: argparse.Namespace) -> None:
  """Read the store in memory and from the bucket in turn, and print both."""
  from plm_jax.data.rows import in_place, store
  from plm_jax.io import files, object_store

  in_place.HELD = arguments.held
  ids = np.random.default_rng(0).integers(0, 2**16, arguments.tokens, np.uint16)
  where = files.path('gs://bucket/tokens.bin')
  object_store.write(where, ids.tobytes())
  offsets = np.minimum(np.arange(0, arguments.tokens + 1_000, 1_000), arguments.tokens)
  blocks = []
  for start in range(0, arguments.tokens, _BLOCK):
    content = ids[start : start + _BLOCK]
    blocks.append(store.Block(0, 0, start, len(content), hashlib.sha256(content.tobytes()).hexdigest(), ''))

  class Counted(in_place.Blocks):
    """Blocks that count the bytes that are read."""

    count = 0

    def _read(self, block: store.Block) -> np.ndarray:
      self.count += 2 * block.tokens
      return super()._read(block)

  remote = Counted(where, blocks, ids.dtype)
  found = {'in memory': ids, 'in place': in_place.InPlace(remote, range(arguments.tokens))}
  rates = {name: rate(each, offsets, arguments) for name, each in found.items()}
  for name, measured in rates.items():
    print(f'{name:<10} {measured / 1e6:7.2f} M tokens/s, {measured / EATEN:6.1f} times what a v5e-16 eats')
  print(f'read by the host {remote.count / 1e6:,.0f} MB of {2 * arguments.tokens / 1e6:,.0f} MB')


def rate(ids: Any, offsets: np.ndarray, arguments: argparse.Namespace) -> float:
  """Return the tokens a second of all hosts, if each is as fast as the first."""
  from plm_jax.data.rows import order, packing

  rows = packing.stream(offsets, length=arguments.length, before=0, after=0)
  read = functools.partial(packing.assemble, rows, ids, frames=packing.frames((), ()), length=arguments.length, pad=0)
  share = order.share(arguments.batch, host=0, hosts=arguments.hosts)
  window = order.Window(_BLOCK // arguments.length, arguments.window // _BLOCK) if arguments.window else None
  each = order.shuffled(len(rows.rows) - 1, share, seed=0, window=window)
  source = order.serve(lambda chosen: {'tokens': read(chosen.rows)[0]}, each, share=share, digest='', documents=1)
  batches, began, count = source.read(0), time.monotonic(), 0
  while time.monotonic() < began + arguments.seconds:
    next(batches)
    count += 1
  return count * arguments.batch * arguments.length / (time.monotonic() - began)


if __name__ == '__main__':
  main()
