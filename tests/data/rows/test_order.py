"""Order of rows: each once per epoch, a new order per epoch, independent of the first step that is read."""

import itertools

import numpy as np
import pytest

from plm_jax.data.rows import order


@pytest.mark.parametrize('rows', [1, 2, 7, 64, 1000])
def test_each_row_once_an_epoch(rows):
  chosen, epochs = order.rows_at(np.arange(3 * rows), rows=rows, seed=5)
  for epoch in range(3):
    assert sorted(chosen[epochs == epoch].tolist()) == list(range(rows))


def test_epochs_and_seeds_have_orders_of_their_own():
  orders = {
    (seed, epoch): tuple(order.rows_at(epoch * 500 + np.arange(500), rows=500, seed=seed)[0].tolist())
    for seed in range(4)
    for epoch in range(4)
  }
  assert len(set(orders.values())) == len(orders)


def test_a_shuffle_leaves_no_trace_of_the_order():
  chosen, _ = order.rows_at(np.arange(10_000), rows=10_000, seed=0)
  assert abs(np.corrcoef(np.arange(10_000), chosen)[0, 1]) < 0.05
  assert abs(np.corrcoef(chosen[:-1], chosen[1:])[0, 1]) < 0.05
  assert np.count_nonzero(np.abs(np.diff(chosen)) == 1) < 20


def test_far_positions_are_reached_directly():
  far = 10**12 + np.arange(8)
  chosen, epochs = order.rows_at(far, rows=999_983, seed=1)
  np.testing.assert_array_equal(epochs, far // 999_983)
  np.testing.assert_array_equal(order.rows_at(far[3:], rows=999_983, seed=1)[0], chosen[3:])


def test_the_order_stays_the_same_from_version_to_version():
  assert order.rows_at(np.arange(8), rows=8, seed=0)[0].tolist() == GOLDEN_ROWS
  assert order.permutation(8, 0, 1).tolist() == GOLDEN_PERMUTATION


GOLDEN_ROWS = [5, 3, 6, 7, 4, 2, 1, 0]
GOLDEN_PERMUTATION = [3, 7, 4, 2, 1, 6, 5, 0]


def test_host_slices_tile_the_batch():
  for hosts in (1, 2, 4, 8):
    places = [np.arange(16)[order.share(16, host=host, hosts=hosts).places] for host in range(hosts)]
    np.testing.assert_array_equal(np.concatenate(places), np.arange(16))


@pytest.mark.parametrize(('batch_size', 'host', 'hosts'), [(6, 0, 4), (0, 0, 1), (8, 2, 2), (8, -1, 2)])
def test_impossible_hosts_are_refused(batch_size, host, hosts):
  with pytest.raises(ValueError, match=r'batch_size=|host='):
    order.share(batch_size, host=host, hosts=hosts)


def test_iterate_delivers_in_order_and_ends():
  batches = list(order.iterate(lambda step: {'step': np.array([step])}, 3, 40))
  assert [int(batch['step'][0]) for batch in batches] == list(range(3, 40))
  endless = order.iterate(lambda step: {'step': np.array([step])}, 10**9)
  assert [int(batch['step'][0]) for batch in itertools.islice(endless, 3)] == [10**9, 10**9 + 1, 10**9 + 2]


def test_errors_of_the_reader_reach_the_loop():
  def broken(step):
    raise FileNotFoundError('tokens.bin')

  with pytest.raises(FileNotFoundError, match=r'tokens\.bin'):
    next(order.iterate(broken, 0))
