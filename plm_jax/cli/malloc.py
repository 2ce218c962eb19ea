"""Reuse of freed memory in the process and large pages for it, for training on a CPU.

The CPU backend allocates its work memory again at each step, and glibc returns freed blocks of that size to the system.
Every page then causes a page fault, which took a fifth of the CPU time of a small step. Pages of 2 MB instead of 4 KB
save a tenth of a step of fine-tuning (docs/benchmarks/finetune.md).
"""

import ctypes
import os

from plm_jax.io import files

# of <malloc.h>: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX
_SETTINGS = ((-1, -1), (-2, 256 * 2**20), (-4, 0), (-8, 1))
_LARGE, _HUGEPAGE = 2**21, 14  # bytes of a large page, and MADV_HUGEPAGE of <sys/mman.h>
_OVERCOMMIT = '/proc/sys/vm/overcommit_memory'
_ACCELERATORS = ('/dev/nvidia0', '/dev/accel0', '/dev/vfio/0')


def reuse() -> bool:
  """Configure glibc to retain freed memory.

  Call it before jax starts its threads, since a thread keeps its memory arena.

  Returns:
    True on success; False on a machine with an accelerator or with another C library.
  """
  if os.environ.get('JAX_PLATFORMS') != 'cpu' and any(map(files.exists, _ACCELERATORS)):
    return False
  try:
    libc = ctypes.CDLL('libc.so.6')
    mallopt = libc.mallopt
  except (OSError, AttributeError):
    return False
  accepted = [mallopt(name, value) == 1 for name, value in _SETTINGS]
  _use_large_pages(libc)
  return all(accepted)


def _use_large_pages(libc: ctypes.CDLL) -> None:
  """Request large pages for the memory that glibc will use.

  Linux gives them by default only to memory that `madvise` names. So glibc reserves half of the machine's memory, which
  costs none until it is used, and retains it. A system that counts reserved memory as used is left alone.
  """
  if not files.exists(_OVERCOMMIT):
    return
  with files.open(_OVERCOMMIT) as setting:
    if setting.read(1) == '2':
      return
  address = ctypes.c_void_p
  libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = address, [ctypes.c_size_t], [address]
  libc.madvise.argtypes = [address, ctypes.c_size_t, ctypes.c_int]
  size = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') // 2
  if block := libc.malloc(size):
    start = -(-block // _LARGE) * _LARGE
    libc.madvise(start, (block + size - start) // _LARGE * _LARGE, _HUGEPAGE)
    libc.free(block)
