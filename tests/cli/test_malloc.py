"""Page faults: with `reuse`, freed blocks are used again without new faults."""

import subprocess
import sys

import pytest

CHILD = """
import resource, sys
from plm_jax.cli import malloc
if sys.argv[1] == 'kept':
  assert malloc.reuse()
for turn in range(4):
  if turn == 1:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
  block = bytearray(64 * 2**20)
  del block
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='glibc only')
def test_freed_memory_is_used_again():
  faults = {
    how: int(subprocess.run([sys.executable, '-c', CHILD, how], capture_output=True, text=True, check=True).stdout)
    for how in ('kept', 'given back')
  }
  assert faults['kept'] < faults['given back'] / 10
