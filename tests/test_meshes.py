"""Meshes over the networks of TPUs, by descriptions of their devices: no TPU is needed."""

import itertools

import numpy as np
import pytest

from plm_jax.core import sharding
from tests.planning import described

# of chips: what jax places without splitting an axis of the network, and what it refuses to
TOPOLOGIES = (
  ('v4:4x4x4', 1), ('v5p:4x4x4', 1), ('v5p:4x8x8', 1), ('v5e:4x4', 1), ('v5e:8x16', 1), ('v6e:8x8', 1),
  ('v5e:4x4', 2), ('v5p:4x4x4', 2), ('tpu7x:2x2x4', 1),
)  # fmt: skip


def check(mesh, devices, *, data: int, model: int, slices: int) -> None:
  """Check that devices, slices and processes are placed correctly."""
  placed = mesh.devices
  assert placed.shape == (data, model)
  assert mesh.axis_names == ('data', 'model')
  assert sorted(device.id for device in placed.flat) == sorted(device.id for device in devices)
  if slices > 1:
    number = np.vectorize(lambda device: device.slice_index)(placed)
    assert (number == number[:, :1]).all()  # a copy of the model lies in one slice
    assert [slice_ for slice_, _ in itertools.groupby(number[:, 0])] == list(range(slices))
  for process in {device.process_index for device in devices}:
    mine = [place for place, there in enumerate(placed) if any(d.process_index == process for d in there)]
    assert mine == list(range(mine[0], mine[0] + len(mine)))
    assert mine[0] % len(mine) == 0


@pytest.mark.plan
@pytest.mark.parametrize('model', [1, 2, 4, 8, 16])
@pytest.mark.parametrize(('name', 'slices'), TOPOLOGIES)
def test_every_power_of_two_can_be_placed(name, slices, model):
  devices = described.tpus(name, slices=slices)
  data = len(devices) // model
  check(sharding.make_mesh({'data': -1, 'model': model}, devices), devices, data=data, model=model, slices=slices)


@pytest.mark.parametrize('slices', [1, 2, 4])
@pytest.mark.parametrize('model', [1, 2, 4, 8, 16])
def test_boxes_without_a_compiler(model, slices):
  devices = described.made_up((4, 4, 4), slices=slices)
  data = len(devices) // model
  check(sharding.make_mesh({'data': data, 'model': model}, devices), devices, data=data, model=model, slices=slices)


@pytest.mark.parametrize(('slices', 'replica'), [(2, 2), (4, 2), (2, 4), (1, 2), (4, 4)])
def test_copies_lie_in_slices(slices, replica):
  """Check that a copy has one slice or whole slices."""
  devices = described.made_up((4, 4, 4), slices=slices)
  mesh = sharding.make_mesh({'replica': replica, 'data': -1, 'model': 4}, devices)
  assert dict(mesh.shape) == {'replica': replica, 'data': 16 * slices // replica, 'model': 4}
  rows = sharding.make_mesh({'data': -1, 'model': 4}, devices).devices
  assert (mesh.devices.reshape(-1, 4) == rows).all()
  for copy in mesh.devices:
    assert len({device.slice_index for device in copy.flat}) == max(slices // replica, 1)


def distance(a: described.Device, b: described.Device, box: tuple[int, int, int]) -> int:
  """Count the links between two chips of a torus."""
  steps = [abs(x - y) for x, y in zip(a.coords, b.coords, strict=True)]
  return sum(min(step, size - step) for step, size in zip(steps, box, strict=True))


@pytest.mark.parametrize('model', [2, 4, 8, 16])
def test_a_copy_of_the_model_lies_in_one_part_of_the_network(model):
  box = (4, 4, 4)
  placed = sharding.make_mesh({'data': -1, 'model': model}, described.made_up(box)).devices
  # the largest distance in a box of this number of chips
  furthest = {2: 1, 4: 2, 8: 4, 16: 4}[model]
  for there in placed:
    assert max(distance(a, b, box) for a, b in itertools.combinations(there, 2)) <= furthest


def test_the_order_of_whole_axes_is_kept_where_processes_allow_it():
  devices = described.made_up((4, 4, 4))
  placed = sharding.make_mesh({'data': 4, 'model': 16}, devices).devices
  for there in placed:  # one axis of the box is 'data', the other two are 'model'
    assert min(len({device.coords[axis] for device in there}) for axis in range(3)) == 1


@pytest.mark.parametrize(
  ('shape', 'slices', 'message'),
  [
    ({'data': 2, 'model': 128}, 4, 'model=128.* 256 x TPU v5.*4 slice.*: data=4, model=64 or data=8, model=32'),
    ({'data': 1, 'model': -1}, 2, 'data.*1.*multiple of 2.*: data=2, model=64'),
    ({'replica': 3, 'data': 4, 'model': 16}, 2, '128 devices.*: data=8, model=16 or data=16, model=8'),
    (
      {'replica': 2, 'data': 1, 'model': 128},
      4,
      'replica x data.*2.*: replica=2, data=2, model=64 or replica=2, data=4, model=32',
    ),
    ({'data': 5}, 1, '64 devices.*: data=64, model=1 or data=32, model=2'),
    ({'data': -1, 'model': 6}, 1, '64 devices.*: data=8, model=8 or data=16, model=4'),
  ],
)
def test_what_cannot_be_placed_says_what_can(shape, slices, message):
  with pytest.raises(ValueError, match=message):
    sharding.make_mesh(shape, described.made_up((4, 4, 4), slices=slices))


def test_a_hole_is_refused():
  devices = described.made_up((4, 4, 4))
  corner = [device for device in devices if max(device.coords) < 2]  # 2 x 2 x 2, then one that is far away
  with pytest.raises(ValueError, match=r'data=8.*box.*none'):
    sharding.make_mesh({'data': 8}, [*corner[:7], devices[-1]])
