"""Keeping freed memory in the process, for training on a CPU.

The CPU backend takes its work memory anew at each step, and glibc hands blocks of that size back to the system when
they are freed: every page is then faulted in again, which took a fifth of the CPU time of a small step.
"""

import ctypes
import os
import pathlib

# of <malloc.h>: M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX, M_ARENA_MAX
_SETTINGS = ((-1, -1), (-2, 256 * 2**20), (-4, 0), (-8, 1))
_ACCELERATORS = ('/dev/nvidia0', '/dev/accel0', '/dev/vfio/0')


def reuse() -> bool:
  """Tells glibc to keep what is freed; call it before jax starts its threads, which keep the arena they began with.

  Returns:
    Whether it did: not where there is an accelerator or another C library.
  """
  if os.environ.get('JAX_PLATFORMS') != 'cpu' and any(pathlib.Path(file).exists() for file in _ACCELERATORS):
    return False
  try:
    mallopt = ctypes.CDLL('libc.so.6').mallopt
  except (OSError, AttributeError):
    return False
  taken = [mallopt(name, value) == 1 for name, value in _SETTINGS]
  return all(taken)
