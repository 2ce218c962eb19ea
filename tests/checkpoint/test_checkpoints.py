"""Checkpoints: nothing is lost when a process dies, nothing damaged is trusted, nothing changes on the way."""

import dataclasses
import logging
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from plm_jax import checkpoint
from plm_jax.checkpoint import CheckpointError, Checkpoints, saved_steps
from plm_jax.core.errors import ConfigError
from plm_jax.training.step import TrainState

LOSS = ('validation/loss', 'min')
ROOT = pathlib.Path(__file__).resolve().parents[2]


def make_state(seed: int) -> TrainState:
  """Every kind of leaf that a run has: float32, bfloat16, counters, optimiser tuples, an empty carry, odd floats."""
  key = jax.random.key(seed)
  params = {
    'trunk': {
      'token_embed': {'embedding': jax.random.normal(key, (64, 8))},
      'layers': {'query': {'kernel': jax.random.normal(key, (3, 8, 8), jnp.bfloat16)}},
      'odd': jnp.array([jnp.nan, -jnp.inf, -0.0, 1e-45]),
    },
    'head': {'bias': jnp.full((5,), seed, jnp.float32)},
  }
  opt_state = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)).init(params)
  number = jnp.int32(seed)
  return TrainState(number, params, opt_state, number, number)


def abstract(state: Any) -> Any:
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def same_bits(a: Any, b: Any) -> bool:
  """Same types of nodes, dtypes, shapes and bytes."""
  alike = jax.tree.structure(a) == jax.tree.structure(b)
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return alike and all(x.dtype == y.dtype and np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def save_steps(folder: pathlib.Path, numbers: list[int], **options: Any) -> None:
  with Checkpoints(folder, keep=len(numbers), **options) as saved:
    for number in numbers:
      saved.save(number, make_state(number))


def files_of(step: pathlib.Path) -> list[pathlib.Path]:
  return sorted(path for path in step.rglob('*') if path.is_file())


@pytest.fixture(scope='module')
def two_steps(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A folder with steps 10 and 20, to copy."""
  folder = tmp_path_factory.mktemp('run') / 'checkpoints'
  save_steps(folder, [10, 20])
  return folder


@pytest.fixture
def folder(two_steps: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
  """A copy of `two_steps` to damage."""
  return pathlib.Path(shutil.copytree(two_steps, tmp_path / 'checkpoints'))


# What is saved comes back.


def test_round_trip_keeps_bits_and_types(tmp_path: pathlib.Path) -> None:
  state = make_state(7)
  with Checkpoints(tmp_path, keep=1) as saved:
    assert saved.restore(abstract(state)) is None
    saved.save(7, state)
    step, restored = saved.restore(abstract(state))
  assert step == 7
  assert same_bits(restored, state)
  assert type(restored.opt_state[1][0]) is type(state.opt_state[1][0])


def test_state_may_be_donated_once_save_returns(tmp_path: pathlib.Path) -> None:
  state = {'x': jnp.arange(2_000_000, dtype=jnp.float32)}
  expected = np.asarray(state['x']).copy()
  update = jax.jit(lambda s: jax.tree.map(lambda x: x * 2 + 1, s), donate_argnums=0)
  with Checkpoints(tmp_path, keep=1) as saved:
    saved.save(1, state)
    for _ in range(5):
      state = update(state)
    jax.block_until_ready(state)
  np.testing.assert_array_equal(checkpoint.restore(tmp_path, abstract(state))[1]['x'], expected)


@pytest.mark.skipif(jax.device_count() < 4, reason='needs four devices')
def test_restores_onto_other_devices(tmp_path: pathlib.Path) -> None:
  devices = np.array(jax.devices()[:4])
  auto = (AxisType.Auto,)
  line = jax.sharding.Mesh(devices, ('data',), axis_types=auto)
  square = jax.sharding.Mesh(devices.reshape(2, 2), ('data', 'model'), axis_types=auto * 2)
  values = np.random.default_rng(0).standard_normal((8, 12)).astype(np.float32)
  state = {'x': jax.device_put(values, NamedSharding(line, PartitionSpec('data', None)))}
  with Checkpoints(tmp_path, keep=1) as saved:
    saved.save(1, state)
  places = [
    NamedSharding(square, PartitionSpec('model', 'data')),
    NamedSharding(square, PartitionSpec()),
    jax.sharding.SingleDeviceSharding(jax.devices()[2]),
  ]
  for place in places:
    _, restored = checkpoint.restore(tmp_path, {'x': jax.ShapeDtypeStruct((8, 12), jnp.float32, sharding=place)})
    assert restored['x'].sharding == place
    np.testing.assert_array_equal(restored['x'], values)
  _, restored = checkpoint.restore(tmp_path, {'x': jax.ShapeDtypeStruct((8, 12), jnp.float32)})
  assert restored['x'].devices() == {jax.devices()[0]}


# Which steps stay.


def test_newest_and_best_stay_across_restarts(tmp_path: pathlib.Path) -> None:
  losses = {10: 3.0, 20: 1.0, 30: 2.0, 40: 4.0, 50: 5.0, 60: 1.0}
  kept = {}
  for step, loss in losses.items():  # each save in a new Checkpoints, as after a restart
    with Checkpoints(tmp_path, keep=2, best=['validation/loss', 'min']) as saved:
      saved.restore(abstract(make_state(0)))
      saved.save(step, make_state(step), metrics={'validation/loss': loss, 'validation/accuracy': 0.5})
      saved.wait()
      kept[step] = (saved.steps(), saved.best_step())
  assert kept == {
    10: ([10], 10),
    20: ([10, 20], 20),
    30: ([20, 30], 20),
    40: ([20, 30, 40], 20),
    50: ([20, 40, 50], 20),
    60: ([20, 50, 60], 20),  # the earlier of equals
  }
  assert checkpoint.best_step(tmp_path) == 20
  assert saved_steps.read(tmp_path / '20').metrics == {'validation/loss': 1.0, 'validation/accuracy': 0.5}


def test_highest_is_best_where_asked(tmp_path: pathlib.Path) -> None:
  with Checkpoints(tmp_path, keep=1, best=('accuracy', 'max')) as saved:
    for step, accuracy in ((1, 0.5), (2, 0.75), (3, 0.25)):
      saved.save(step, make_state(step), metrics={'accuracy': accuracy})
    saved.wait()
    assert (saved.steps(), saved.best_step()) == ([2, 3], 2)


def test_some_states_are_never_best(tmp_path: pathlib.Path) -> None:
  with Checkpoints(tmp_path, keep=1, best=LOSS) as saved:
    saved.save(1, make_state(1), metrics={'validation/loss': 5.0})
    saved.save(2, make_state(2), metrics={'validation/loss': 0.1}, best_allowed=False)
    saved.save(3, make_state(3), metrics={'validation/loss': float('nan')})
    saved.save(4, make_state(4))
    saved.save(5, make_state(5), metrics={'other': 0.0})
    saved.wait()
    assert (saved.steps(), saved.best_step()) == ([1, 5], 1)


def test_without_best_there_is_none(folder: pathlib.Path) -> None:
  assert checkpoint.best_step(folder) is None
  with pytest.raises(CheckpointError, match=r"best.*'newest'.*\[10, 20\]"):
    checkpoint.restore(folder, abstract(make_state(0)), step='best')
  assert checkpoint.restore(folder, abstract(make_state(0)), step=None)[0] == 20


def test_steps_only_grow(folder: pathlib.Path) -> None:
  with Checkpoints(folder, keep=2) as saved:
    with pytest.raises(ValueError, match=r'\[10, 20\]'):
      saved.save(30, make_state(30))
    saved.restore(abstract(make_state(0)))
    with pytest.raises(ValueError, match=r'\bstep 15\b.*\bstep 20\b'):
      saved.save(15, make_state(15))
    saved.save(20, make_state(99))  # as when a signal comes just after a save
  assert same_bits(checkpoint.restore(folder, abstract(make_state(0)))[1], make_state(20))


def test_an_abandoned_future_is_set_aside(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
  with Checkpoints(folder, keep=5) as saved:
    assert saved.restore(abstract(make_state(0)), step=10)[0] == 10
    assert saved.steps() == [10, 20]  # looking changes nothing
    saved.save(20, make_state(21))
    saved.wait()
    assert saved.steps() == [10, 20]
  assert same_bits(checkpoint.restore(folder, abstract(make_state(0)))[1], make_state(21))
  assert same_bits(checkpoint.restore(folder / 'set_aside', abstract(make_state(0)))[1], make_state(20))
  assert str(folder / 'set_aside' / '20') in caplog.text


# What is damaged is not trusted.


def flip_bit(path: pathlib.Path, draw: random.Random) -> None:
  content = bytearray(path.read_bytes())
  content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
  path.write_bytes(content)


def test_every_flipped_bit_is_found_or_harmless(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
  draw = random.Random(0)
  files = files_of(folder / '20')
  found = 0
  for trial in range(200):
    path = files[trial % len(files)]
    sound = path.read_bytes()
    flip_bit(path, draw)
    caplog.clear()
    step, state = checkpoint.restore(folder, abstract(make_state(0)))
    assert same_bits(state, make_state(step))
    if step == 10:
      found += 1
      assert re.search(rf'step 20 in {folder} .*damaged', caplog.text)
      assert path.name in caplog.text
      assert re.search(r'\bstep 10\b', caplog.text)
    else:
      assert path.name in saved_steps.UNCHECKED
    path.write_bytes(sound)
  assert found >= 150
  assert checkpoint.restore(folder, abstract(make_state(0)))[0] == 20


@pytest.mark.parametrize('harm', ['deleted', 'emptied', 'shortened', 'lengthened'])
def test_missing_and_cut_files_are_found(folder: pathlib.Path, harm: str) -> None:
  for path in files_of(folder / '20'):
    if path.name in saved_steps.UNCHECKED - {saved_steps.RECORD}:
      continue
    sound = path.read_bytes()
    if harm == 'deleted':
      path.unlink()
    else:
      path.write_bytes({'emptied': b'', 'shortened': sound[:-1], 'lengthened': sound + b'\0'}[harm])
    if (harm, path.name) != ('lengthened', saved_steps.RECORD):
      assert list(saved_steps.records(folder)[0]) == [10], path
    assert checkpoint.restore(folder, abstract(make_state(0)))[0] == 10, path
    path.write_bytes(sound)


def test_what_orbax_touches_last_may_be_missing(folder: pathlib.Path) -> None:
  for name in saved_steps.UNCHECKED - {saved_steps.RECORD}:
    (folder / '20' / name).unlink()
  with Checkpoints(folder, keep=2) as saved:
    step, state = saved.restore(abstract(make_state(0)))
    assert step == 20
    assert same_bits(state, make_state(20))
    saved.save(30, make_state(30))
    saved.wait()
    assert saved.steps() == [20, 30]


def test_a_step_without_a_record_is_not_listed(folder: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
  (folder / '20' / saved_steps.RECORD).unlink()
  with Checkpoints(folder, keep=2) as saved:
    assert saved.steps() == [10]
    assert saved.restore(abstract(make_state(0)))[0] == 10
  assert 'digest.json' in caplog.text


def test_the_run_goes_on_over_a_damaged_step(folder: pathlib.Path) -> None:
  flip_bit(folder / '20' / 'state' / '_METADATA', random.Random(0))
  with Checkpoints(folder, keep=2) as saved:
    assert saved.restore(abstract(make_state(0)))[0] == 10
    saved.save(20, make_state(22))
    saved.save(30, make_state(30))
    saved.wait()
    assert saved.steps() == [20, 30]
  assert same_bits(checkpoint.restore(folder, abstract(make_state(0)), step=20)[1], make_state(22))


def test_all_damaged_is_an_error_and_not_a_new_start(folder: pathlib.Path) -> None:
  (folder / '10' / 'state' / '_METADATA').unlink()
  (folder / '20' / 'state' / '_sharding').write_text('{}')
  with Checkpoints(folder, keep=2) as saved, pytest.raises(CheckpointError) as error:
    saved.restore(abstract(make_state(0)))
  assert 'step 20: state/_sharding holds 2 bytes' in str(error.value)
  assert 'step 10: state/_METADATA is missing' in str(error.value)


def test_a_step_asked_for_by_number_has_no_substitute(folder: pathlib.Path) -> None:
  with pytest.raises(CheckpointError, match=r'\bstep 15\b.*\[10, 20\]'):
    checkpoint.restore(folder, abstract(make_state(0)), step=15)
  flip_bit(folder / '20' / 'state' / '_METADATA', random.Random(1))
  with pytest.raises(CheckpointError, match=r'step 20 in .*damaged.*state/_METADATA.*sha256'):
    checkpoint.restore(folder, abstract(make_state(0)), step=20)


def test_a_best_step_with_a_missing_file_is_not_best(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
  with Checkpoints(tmp_path, keep=3, best=LOSS) as saved:
    for step, loss in ((1, 1.0), (2, 2.0), (3, 3.0)):
      saved.save(step, make_state(step), metrics={'validation/loss': loss})
    saved.wait()
    (tmp_path / '1' / 'state' / '_METADATA').unlink()
    assert saved.best_step() == 2
  assert 'step 1 in' in caplog.text
  assert re.search(r'best.*state/_METADATA', caplog.text)


@pytest.mark.parametrize('name', [saved_steps.RECORD, 'state/_METADATA'])
@pytest.mark.parametrize('gone', [False, True])
def test_a_damaged_best_step_has_no_substitute(name: str, gone: bool, tmp_path: pathlib.Path) -> None:
  with Checkpoints(tmp_path / 'checkpoints', keep=3, best=LOSS) as saved:
    for step, loss in ((1, {'validation/loss': 1.0}), (2, {'validation/loss': 2.0}), (3, {})):
      saved.save(step, make_state(step), metrics=loss)
  file = tmp_path / 'checkpoints' / '1' / name
  if gone:
    file.unlink()
  else:
    flip_bit(file, random.Random(0))
  for best in ('best', None):
    with pytest.raises(CheckpointError, match=r"step 1 in .*damaged.*'newest'"):
      checkpoint.open_params(tmp_path, step=best).tree()
  assert checkpoint.open_params(tmp_path, step='newest').tree()['head']['bias'][0] == 3
  with Checkpoints(tmp_path / 'checkpoints', keep=3, best=LOSS) as saved:
    assert saved.restore(abstract(make_state(0)))[0] == 3  # of training, from the newest


# What differs is refused.


def test_other_states_are_refused_by_leaf(folder: pathlib.Path) -> None:
  state = abstract(make_state(0))
  kernel = state.params['trunk']['layers']['query']

  def refused(match: str, changed: Any) -> None:
    with pytest.raises(ValueError, match=match):
      checkpoint.restore(folder, changed)

  path = 'params/trunk/layers/query'
  refused(
    rf'step 20 in .*{path}/kernel.*bfloat16\[3, 8, 8\].*float32\[3, 8, 8\]',
    with_params(state, {'layers': {'query': {'kernel': jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)}}}),
  )
  refused(
    rf'{path}/kernel.*bfloat16\[3, 8, 8\].*bfloat16\[4, 8, 8\]',
    with_params(state, {'layers': {'query': {'kernel': jax.ShapeDtypeStruct((4, 8, 8), jnp.bfloat16)}}}),
  )
  refused(f'{path}/bias', with_params(state, {'layers': {'query': {**kernel, 'bias': kernel['kernel']}}}))
  refused('params/trunk/odd', with_params(state, {}, without='odd'))
  refused('opt_state/1/0/mu/head/bias', state.replace(opt_state=()))
  clip, (adam, *rest) = state.opt_state
  heads = adam._replace(mu={'head': adam.mu['head']}, nu={'head': adam.nu['head']})
  refused('optimi[sz]er state.* trunk', state.replace(opt_state=(clip, (heads, *rest))))


def with_params(state: TrainState, changes: dict[str, Any], *, without: str = '') -> TrainState:
  trunk = {name: leaf for name, leaf in {**state.params['trunk'], **changes}.items() if name != without}
  return state.replace(params={**state.params, 'trunk': trunk})


def test_states_hold_arrays_only(tmp_path: pathlib.Path) -> None:
  with Checkpoints(tmp_path, keep=1) as saved:
    with pytest.raises(TypeError, match=r'counts/steps.*int.*arrays'):
      saved.save(1, {'counts': {'steps': 3}})
    with pytest.raises(TypeError, match=r'rng.*key'):
      saved.save(1, {'rng': jax.random.key(0)})
    assert saved.steps() == []


@pytest.mark.parametrize(('keep', 'best'), [(0, None), (1, ('loss', 'lowest'))])
def test_settings_that_make_no_sense(tmp_path: pathlib.Path, keep: int, best: Any) -> None:
  with pytest.raises(ValueError, match=r'keep=0|min.*max'):
    Checkpoints(tmp_path, keep=keep, best=best)


# Disks and processes fail.


@pytest.fixture
def small_disk() -> Iterator[None]:
  """Files cannot grow beyond 100 kB."""
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
  yield
  resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_nothing_half_and_the_run_can_go_on(tmp_path: pathlib.Path, small_disk: None) -> None:
  small, large = {'x': jnp.arange(8.0)}, {'x': jax.random.normal(jax.random.key(0), (100_000,))}
  with Checkpoints(tmp_path, keep=1) as saved:
    saved.save(1, small)
    saved.save(2, large)
    with pytest.raises(CheckpointError, match=r'step 2 .*\[1\]'):
      saved.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ['1']
    assert saved.restore(abstract(small))[0] == 1
    saved.save(2, small)
    saved.wait()
    assert saved.steps() == [2]


def test_the_failure_of_a_save_does_not_hide_what_ended_the_run(
  tmp_path: pathlib.Path, small_disk: None, caplog: pytest.LogCaptureFixture
) -> None:
  with pytest.raises(KeyError, match='diverged'), Checkpoints(tmp_path, keep=1) as saved:
    saved.save(2, {'x': jax.random.normal(jax.random.key(0), (100_000,))})
    raise KeyError('diverged')
  assert 'step 2 ' in caplog.text


def test_a_folder_that_cannot_be_written_to(tmp_path: pathlib.Path) -> None:
  (tmp_path / 'file').write_text('in the way')
  with pytest.raises(CheckpointError, match=r'file/checkpoints.*--workdir'):
    Checkpoints(tmp_path / 'file' / 'checkpoints', keep=1)
  with pytest.raises(ConfigError, match='ftp://'):
    Checkpoints('ftp://bucket/run', keep=1)


def test_what_an_interrupted_save_left_is_removed(folder: pathlib.Path) -> None:
  shutil.copytree(folder / '20', folder / '30.orbax-checkpoint-tmp')
  (folder / 'notes').mkdir()
  with Checkpoints(folder, keep=2) as saved:
    assert saved.steps() == [10, 20]
    saved.restore(abstract(make_state(0)))
    saved.save(30, make_state(30))
    saved.wait()
    assert saved.steps() == [20, 30]
  assert sorted(path.name for path in folder.iterdir()) == ['20', '30', 'notes']


KILLED = """
  import logging, os, pathlib, random, signal, sys, time
  import jax, jax.numpy as jnp
  from plm_jax import checkpoint  # loads everything once; devices are found after the fork
  from plm_jax.checkpoint import saved_steps

  folder, kills = pathlib.Path(sys.argv[1]), int(sys.argv[2])

  def train():
    abstract = {'x': jax.ShapeDtypeStruct((500_000,), jnp.float32), 'step': jax.ShapeDtypeStruct((), jnp.int32)}
    with checkpoint.Checkpoints(folder, keep=2, best=('loss', 'min')) as saved:
      restored = saved.restore(abstract)
      step, state = restored or (0, {'x': jnp.zeros(500_000), 'step': jnp.int32(0)})
      assert restored is None or (int(state['step']) == step and bool((state['x'] == step).all()))
      (folder / 'started').touch()
      while True:
        step += 1
        state = {'x': jnp.full(500_000, step, jnp.float32), 'step': jnp.int32(step)}
        saved.save(step, state, metrics={'loss': abs(step - 5)})

  draw = random.Random(0)
  folder.mkdir(parents=True)
  for number in range(kills):
    (folder / 'started').unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
      train()
    while not (folder / 'started').exists():
      assert os.waitpid(child, os.WNOHANG) == (0, 0), 'could not go on from what a kill left'
      time.sleep(0.01)
    while number == kills - 1 and max(saved_steps.numbered(folder), default=0) < 6:  # past the best, on any machine
      time.sleep(0.01)
    time.sleep(draw.uniform(0.0, 0.6))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    whole, damaged = saved_steps.records(folder)
    for step in whole:
      saved_steps.check(folder / str(step))
    newest = max(saved_steps.numbered(folder), default=0)
    assert not whole or newest in whole, (newest, damaged)
    print(newest, 5 if newest < 5 or 5 in whole else 'best lost', flush=True)
"""


@pytest.mark.parametrize('kills', [4, pytest.param(50, marks=pytest.mark.slow)])
def test_a_killed_process_leaves_whole_steps(tmp_path: pathlib.Path, kills: int) -> None:
  result = subprocess.run(
    [sys.executable, '-c', textwrap.dedent(KILLED), str(tmp_path / 'checkpoints'), str(kills)],
    cwd=ROOT, env={**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': ''},
    capture_output=True, text=True, timeout=60 + 10 * kills, check=False,
  )  # fmt: skip
  assert result.returncode == 0, result.stderr[-3000:]
  reached = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
  assert len(reached) == kills
  assert int(reached[-1][0]) > 5
  assert all(best == '5' for _, best in reached)


TWO_PROCESSES = """
  import logging, pathlib, sys
  import jax, jax.numpy as jnp, numpy as np
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  process, port, folder = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
  jax.distributed.initialize(f'localhost:{port}', num_processes=2, process_id=process)
  from plm_jax import checkpoint
  from plm_jax.checkpoint import saved_steps

  place = NamedSharding(Mesh(np.array(jax.devices()), ('data',)), PartitionSpec('data'))
  values = np.arange(64, dtype=np.float32)
  abstract = {'x': jax.ShapeDtypeStruct((64,), jnp.float32, sharding=place)}

  def state(step):
    return {'x': jax.make_array_from_callback((64,), place, lambda index: values[index] + step)}

  with checkpoint.Checkpoints(folder, keep=3, best=('loss', 'min')) as saved:
    assert saved.restore(abstract) is None
    for step in (1, 2, 3):
      saved.save(step, state(step), metrics={'loss': float(step)})
    saved.wait()
    assert saved.steps() == [1, 2, 3] and saved.best_step() == 1
    jax.experimental.multihost_utils.sync_global_devices('saved')
    if process == 1:
      (folder / '3' / 'state' / '_METADATA').write_text('{}')
    jax.experimental.multihost_utils.sync_global_devices('damaged')
    step, restored = saved.restore(abstract)
    assert step == 2
    for shard in restored['x'].addressable_shards:
      np.testing.assert_array_equal(shard.data, values[shard.index] + 2)
    saved.save(3, state(30))
    saved.wait()
    assert saved.steps() == [1, 2, 3]
  file = checkpoint.save_params(folder / 'alone', {'trunk': state(5)})
  jax.experimental.multihost_utils.sync_global_devices('written')
  np.testing.assert_array_equal(checkpoint.open_params(file).tree()['trunk']['x'], values + 5)
  jax.experimental.multihost_utils.sync_global_devices('read')
  for step in (1, 2, 3):
    (folder / str(step) / saved_steps.RECORD).unlink(missing_ok=True)
  jax.experimental.multihost_utils.sync_global_devices('gone')
  try:
    checkpoint.restore(folder, abstract)
  except checkpoint.CheckpointError as error:
    print('refused', flush=True)
"""


@pytest.mark.slow
def test_two_processes_agree(tmp_path: pathlib.Path) -> None:
  import socket

  with socket.socket() as free:
    free.bind(('localhost', 0))
    port = str(free.getsockname()[1])
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_force_host_platform_device_count=2'}
  running = [
    subprocess.Popen(
      [sys.executable, '-c', textwrap.dedent(TWO_PROCESSES), str(process), port, str(tmp_path / 'checkpoints')],
      cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    for process in range(2)
  ]  # fmt: skip
  try:
    ends = [process.communicate(timeout=120) for process in running]
  finally:
    for process in running:
      process.kill()
  for process, (out, err) in zip(running, ends, strict=True):
    assert process.returncode == 0, err[-3000:]
    assert 'refused' in out


# Parameters on their own.


def test_open_params_reads_a_part_of_a_run(folder: pathlib.Path) -> None:
  expected = jax.tree.map(np.asarray, make_state(20).params)
  assert same_bits(checkpoint.open_params(folder).tree(), expected)
  assert same_bits(checkpoint.open_params(folder.parent).tree(), expected)
  trunk = checkpoint.open_params(folder.parent).tree('trunk')
  assert same_bits(trunk, expected['trunk'])
  assert isinstance(trunk['odd'], np.ndarray)
  leaf = checkpoint.open_params(folder.parent, step=10).tree('head/bias')
  np.testing.assert_array_equal(leaf, np.full(5, 10.0))
  with pytest.raises(ValueError, match=r"step 20 .*'trunk/layer'.*trunk/layers"):
    checkpoint.open_params(folder).tree('trunk/layer')


def test_open_params_finds_damage(folder: pathlib.Path) -> None:
  flip_bit(max(files_of(folder / '20' / 'state'), key=lambda path: path.stat().st_size), random.Random(2))
  np.testing.assert_array_equal(checkpoint.open_params(folder).tree()['head']['bias'], np.full(5, 10.0))
  with pytest.raises(CheckpointError, match=r'step 20 .*damaged'):
    checkpoint.open_params(folder, step=20).tree()


def test_open_params_of_the_best_step(tmp_path: pathlib.Path) -> None:
  with Checkpoints(tmp_path / 'checkpoints', keep=1, best=LOSS) as saved:
    for step, loss in ((1, 1.0), (2, 2.0), (3, 3.0)):
      saved.save(step, make_state(step), metrics={'validation/loss': loss})
  for step, found in (('best', 1), (None, 1), ('newest', 3)):
    np.testing.assert_array_equal(checkpoint.open_params(tmp_path, step=step).tree()['head']['bias'], np.full(5, found))


def test_open_params_of_a_run_that_averages(tmp_path: pathlib.Path) -> None:
  """They are what its evaluations read: averages of trained parameters, frozen ones as they are."""
  state = make_state(1)
  averaged = {'head': {'bias': jnp.full((5,), 0.5)}}
  with Checkpoints(tmp_path / 'checkpoints', keep=1) as saved:
    saved.save(1, dataclasses.replace(state, opt_state={'average': {'params': averaged}}))
  expected = jax.tree.map(np.asarray, state.params | averaged)
  assert same_bits(checkpoint.open_params(tmp_path).tree(), expected)
  assert same_bits(checkpoint.open_params(tmp_path).tree('trunk'), expected['trunk'])


def test_no_run_there(tmp_path: pathlib.Path) -> None:
  with pytest.raises(CheckpointError, match=r'elsewhere.*step'):
    checkpoint.open_params(tmp_path / 'elsewhere').tree()


def test_params_alone_round_trip(tmp_path: pathlib.Path) -> None:
  params = {**make_state(3).params, 'scalar': jnp.float32(2.5), 'turned': np.arange(6.0).reshape(2, 3).T}
  file = checkpoint.save_params(tmp_path / 'out', params)
  expected = jax.tree.map(np.asarray, params)
  assert same_bits(checkpoint.open_params(tmp_path / 'out').tree(), expected)
  assert same_bits(checkpoint.open_params(file).tree('trunk/layers'), expected['trunk']['layers'])
  assert sorted(path.name for path in file.parent.iterdir()) == ['params.safetensors', 'params.safetensors.sha256']
  digest, name = (tmp_path / 'out' / 'params.safetensors.sha256').read_text().split()
  assert (digest, name) == (subprocess.check_output(['sha256sum', file], text=True).split()[0], file.name)
  with pytest.raises(ValueError, match=r"'body'.*head, scalar, trunk, turned"):
    checkpoint.open_params(file).tree('body')


def test_params_alone_are_checked(tmp_path: pathlib.Path) -> None:
  file = checkpoint.save_params(tmp_path, make_state(3).params)
  sound, draw = file.read_bytes(), random.Random(3)
  for _ in range(40):
    flip_bit(file, draw)
    with pytest.raises(CheckpointError, match=r'damaged.*sha256'):
      checkpoint.open_params(file).tree()
    file.write_bytes(sound)
  (tmp_path / 'params.safetensors.sha256').unlink()
  with pytest.raises(CheckpointError, match='save_params'):
    checkpoint.open_params(tmp_path).tree()


@pytest.fixture(autouse=True)
def messages(caplog: pytest.LogCaptureFixture) -> None:
  caplog.set_level(logging.WARNING, logger='plm_jax')
