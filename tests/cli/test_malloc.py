"""Page faults: with `reuse`, freed blocks are used again without new faults, and new blocks have large pages."""

import subprocess
import sys
from pathlib import Path

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
again = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block = bytearray(256 * 2**20)
print(again - before, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - again)
"""
PAGES = Path('/sys/kernel/mm/transparent_hugepage/enabled')


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='glibc only')
def test_freed_memory_is_used_again():
  printed = (
    subprocess.run([sys.executable, '-c', CHILD, how], capture_output=True, text=True, check=True).stdout
    for how in ('kept', 'given back')
  )
  (kept, large), (given_back, small) = (map(int, faults.split()) for faults in printed)
  assert kept < given_back / 10
  if PAGES.exists() and '[madvise]' in PAGES.read_text():
    assert large < small / 10
