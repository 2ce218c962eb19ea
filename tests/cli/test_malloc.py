"""Page faults: with `reuse`, freed blocks are used again without new faults, and new blocks have large pages."""

import subprocess
import sys
from pathlib import Path

import pytest

from plm_jax.cli import malloc

CHILD = """
import ctypes, resource, sys
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
middle = ctypes.addressof(ctypes.c_char.from_buffer(block)) + len(block) // 2
for line in open('/proc/self/smaps'):
  first = line.split()[0]
  if not first.endswith(':'):
    low, high = (int(bound, 16) for bound in first.split('-'))
  elif first == 'VmFlags:' and low <= middle < high:
    print(again - before, int('hg' in line.split()))
"""
PAGES = Path('/sys/kernel/mm/transparent_hugepage')


@pytest.mark.skipif(not sys.platform.startswith('linux'), reason='glibc only')
def test_freed_memory_is_used_again():
  printed = (
    subprocess.run([sys.executable, '-c', CHILD, how], capture_output=True, text=True, check=True).stdout
    for how in ('kept', 'given back')
  )
  (kept, large), (given_back, small) = (map(int, figures.split()) for figures in printed)
  assert kept < given_back / 10
  assert (large, small) == (int(PAGES.exists()), 0)


def test_a_system_that_counts_reserved_memory_is_left_alone(tmp_path, monkeypatch):
  (tmp_path / 'overcommit_memory').write_text('2\n')
  monkeypatch.setattr(malloc, '_OVERCOMMIT', tmp_path / 'overcommit_memory')
  malloc._use_large_pages(None)  # a library without functions: nothing is called
