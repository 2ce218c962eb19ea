"""Reuse of freed memory in the process, for training on a CPU.

The CPU backend allocates its work memory again at each step, and glibc returns freed blocks of that size to the system.
Every page then causes a page fault, which took a fifth of the CPU time of a small step.
"""

import ctypes
import os

from plm_jax.io import files

# of <malloc.h>: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX
_SETTINGS = ((-1, -1), (-2, 256 * 2**20), (-4, 0), (-8, 1))
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
    mallopt = ctypes.CDLL('libc.so.6').mallopt
  except (OSError, AttributeError):
    return False
  accepted = [mallopt(name, value) == 1 for name, value in _SETTINGS]
  return all(accepted)
