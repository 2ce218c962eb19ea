"""Blocks are checked once before use, by the first thread that reads them."""

import threading

import numpy as np
import pytest

from plm_jax.data.rows.first_read import FirstRead


def test_a_block_is_checked_once():
  seen = []
  blocks = FirstRead(4, seen.append)
  for numbers in ([2, 3], [3, 2], [], [0, 3]):
    blocks.see(np.array(numbers, int))
  assert (seen, blocks.whole) == ([2, 3, 0], False)
  blocks.see(np.arange(4))
  assert (seen, blocks.whole) == ([2, 3, 0, 1], True)
  FirstRead(2, lambda number: pytest.fail('it is known'), known=True).see(np.arange(2))


def test_a_block_that_is_refused_is_checked_again():
  def refuse(number):
    if not mended:
      raise ValueError(f'block {number}')

  mended = []
  blocks = FirstRead(1, refuse)
  for _ in range(2):
    with pytest.raises(ValueError, match='block 0'):
      blocks.see(np.arange(1))
  mended.append(True)
  blocks.see(np.arange(1))
  assert blocks.whole


def test_threads_do_not_check_twice():
  seen, together = [], threading.Barrier(4)
  blocks = FirstRead(50, seen.append)

  def read():
    together.wait()
    blocks.see(np.arange(50))

  threads = [threading.Thread(target=read) for _ in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert seen == list(range(50))
