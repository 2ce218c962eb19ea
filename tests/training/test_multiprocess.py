"""One run over several processes and over several layouts of devices: the same rows, the same losses, one checkpoint.

Rows and restored parameters are equal bit for bit; losses and later parameters as far as float32 sums in another order
are. Every device here is a simulated one, and the loop waits for each step.
"""

import contextlib
import functools
import itertools
import json
import pathlib
import shutil
import signal
import socket
import types
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from plm_jax.checkpoint import saved_steps
from plm_jax.core import param_paths, sharding
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import metrics
from plm_jax.training import begin, feed, loop, parts
from plm_jax.training.context import RunOptions
from plm_jax.training.outcome import Outcome
from plm_jax.training.stopping import catch_signals
from tests import runs

# Float32 sums in another order. Measured over 12 steps at rate 1e-2: 4e-7 for losses and gradient norms, 3e-6 for
# parameters, where Adam divides by the roots of tiny second moments.
LOSS_TOLERANCE = 4e-6
PARAMETER_TOLERANCE = 3e-5
GRACE_S = 120
# Only process 0 fills the compilation cache, so the other one always compiles: with little effort, then.


pytestmark = [pytest.mark.turns, pytest.mark.usefixtures('log')]


@pytest.fixture(scope='module')
def alone(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A run of this process on four devices."""
  if jax.device_count() != 4:
    pytest.skip('needs four devices')
  workdir = tmp_path_factory.mktemp('alone')
  assert loop.train(runs.settings('mlm', data), workdir).result['finished']
  return workdir


@pytest.fixture(scope='module')
def together(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """The same run by two processes, stopped on the way; checks of `verify_every` find nothing."""
  folder = tmp_path_factory.mktemp('together')
  file = runs.write_config(folder / 'config.json', runs.settings('mlm', data, verify_every=4))
  runs.two_processes(f'--config={file}', f'--workdir={folder / "run"}', '--stop_at=8')
  return folder / 'run'


def compare(workdir: pathlib.Path, other: pathlib.Path, *, upto: int = runs.STEPS) -> tuple[float, float]:
  """Largest differences of losses, and of parameters where both runs saved a step, relative to the largest of a leaf.

  Biases of keys are left out: they shift all the weights of a query alike, so that their gradient is rounding only,
  which Adam blows up.
  """
  ours, theirs = ({row['step']: row for row in runs.curve(folder)} for folder in (workdir, other))
  common = [step for step in theirs if step in ours and step <= upto and 'loss' in theirs[step]]
  assert len(common) >= 3
  names = ('loss', 'gradient_norm', 'validation/loss')
  losses = {
    (step, name): abs(ours[step][name] / theirs[step][name] - 1)
    for step in common
    for name in names
    if name in theirs[step]
  }
  found = [set(saved_steps.numbered(folder / 'checkpoints')) for folder in (workdir, other)]
  leaves = {}
  for step in found[0] & found[1]:
    a, b = (runs.params_of(runs.saved_state(folder, step=step)) for folder in (workdir, other))
    leaves |= {
      (step, name): np.abs(a[name] - b[name]).max() / np.abs(b[name]).max() for name in b if 'key/bias' not in name
    }
  worst = [max(((value, *key) for key, value in values.items()), default=(0.0,)) for values in (losses, leaves)]
  print(f'largest differences: {worst[0]}, {worst[1]}')
  return worst[0][0], worst[1][0]


def check_close(workdir: pathlib.Path, other: pathlib.Path, *, upto: int = runs.STEPS) -> None:
  loss, parameter = compare(workdir, other, upto=upto)
  assert loss < LOSS_TOLERANCE
  assert parameter < PARAMETER_TOLERANCE


def test_two_processes_are_one_run(together: pathlib.Path, alone: pathlib.Path) -> None:
  assert (together / 'data.json').read_bytes() == (alone / 'data.json').read_bytes()
  check_close(together, alone, upto=8)
  numbers = [row['step'] for row in metrics.read(together)]
  assert numbers == [2, 4, 6, 8]
  assert (together / 'log.txt').read_text().count('steps 0 to 8 of 12') == 1


def test_one_process_goes_on_where_two_stopped(
  together: pathlib.Path, alone: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  workdir = pathlib.Path(shutil.copytree(together, tmp_path / 'run'))
  outcome = loop.train(runs.settings('mlm', data), workdir)
  assert outcome.result['finished']
  assert 'going on from step 8' in (workdir / 'log.txt').read_text()
  check_close(workdir, alone)
  whole = json.loads((alone / 'result.json').read_text())
  assert outcome.result['tokens'] == whole['tokens']
  assert outcome.result['first_ten_batches'] == whole['first_ten_batches']


class Restored(NamedTuple):
  """What a run would go on from: its state, leaf by leaf, and its next ten batches, of all devices."""

  step: int
  devices: int
  cut: int  # leaves of which no device has all
  leaves: dict[str, np.ndarray]
  batches: list[dict[str, np.ndarray]]


def restored(settings: dict[str, Any], workdir: pathlib.Path) -> Restored:
  with contextlib.ExitStack() as stack:
    stopping = stack.enter_context(catch_signals())
    begun = begin.begin(settings, RunFolder.at(workdir), RunOptions(), stack, stopping)
    assert not isinstance(begun, Outcome)
    run, at = begun
    leaves = param_paths.flat(at.state)
    return Restored(
      run.first_step,
      run.data.layout.mesh.size,
      sum(not leaf.sharding.is_fully_replicated for leaf in leaves.values()),
      {name: np.asarray(leaf) for name, leaf in leaves.items()},
      [jax.device_get(batch) for _, batch in itertools.islice(run.batches, 10)],
    )


@pytest.mark.parametrize(
  ('devices', 'changes'),
  [
    (4, {}),
    (4, {'mesh': {'data': 2, 'model': 2}, 'rules': 'fsdp_tensor'}),
    (4, {'mesh': {'replica': 2, 'data': 2}, 'rules': 'fsdp'}),
    (1, {}),
  ],
)
def test_what_two_processes_saved_is_restored_on_other_devices(
  together: pathlib.Path,
  data: pathlib.Path,
  tmp_path: pathlib.Path,
  monkeypatch: pytest.MonkeyPatch,
  devices: int,
  changes: dict[str, Any],
) -> None:
  """The same bits, and the next ten batches are those that both processes would have fed."""
  if jax.device_count() != 4:
    pytest.skip('needs four devices')
  settings = runs.settings('mlm', data, sharding=changes)
  workdir = pathlib.Path(shutil.copytree(together, tmp_path / 'run'))
  monkeypatch.setattr(begin, 'make_layout', functools.partial(parts.make_layout, devices=jax.devices()[:devices]))
  found = restored(settings, workdir)
  assert (found.step, found.devices, found.cut > 0) == (8, devices, 'rules' in changes)
  assert runs.differing(found.leaves, runs.saved_state(together, step=8)) == []

  vocab = parts.make_vocab(settings)
  shares = [parts.make_source(settings['data'], vocab, seed=settings['seed'], share=(host, 2)) for host in range(2)]
  fed = [itertools.islice(share.read(8), 10) for share in shares]
  for batch, first, second in zip(found.batches, *fed, strict=True):
    for name, values in batch.items():
      np.testing.assert_array_equal(values, np.concatenate([first[name], second[name]]), err_msg=name)
  assert len(found.batches) == 10


@pytest.mark.parametrize('number', [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_to_one_process_stops_both_at_one_step(
  data: pathlib.Path, tmp_path: pathlib.Path, number: signal.Signals
) -> None:
  """Also the run of a model that is cut over both processes, so that each of them feeds all rows."""
  endless = {'steps': 100_000, 'save_every': 100_000, 'eval_every': 100_000, 'best': None}
  cut = {'mesh': {'data': 1, 'model': 4}, 'rules': 'tensor'}
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data, sharding=cut, **endless))
  workdir, output = tmp_path / 'run', tmp_path / 'output'
  flags = [f'--config={file}', f'--workdir={workdir}', f'--coordinator=localhost:{free_port()}', '--processes=2']
  with contextlib.ExitStack() as stack:
    processes = [
      stack.enter_context(
        runs.started(runs.words('train', *flags, f'--process={process}'), log=output, devices=2, **runs.QUICK)
      )
      for process in range(2)
    ]
    runs.wait_until(lambda: len(metrics.read(workdir)) >= 4, process=processes[0], log=output)
    processes[1].send_signal(number)
    assert [process.wait(timeout=GRACE_S) for process in processes] == [3, 3], output.read_text()[-3000:]
  result = json.loads((workdir / 'result.json').read_text())
  assert (result['exit_code'], result['finished']) == (3, False)
  assert saved_steps.numbered(workdir / 'checkpoints') == [result['step']]
  assert runs.saved_state(workdir)['step'] == result['step']
  assert output.read_text().count(f'stopped by a signal at step {result["step"]}') == 2

  loop.train(runs.settings('mlm', data, **endless), tmp_path / 'alone', stop_at=8)
  check_close(workdir, tmp_path / 'alone', upto=8)
  source = parts.make_source(runs.settings('mlm', data)['data'], parts.make_vocab(runs.settings('mlm', data)), seed=0)
  batches = source.read(0)
  fed = sum(int((next(batches)['segment_ids'] > 0).sum()) for _ in range(result['step']))
  assert result['tokens'] == fed


def test_a_model_cut_both_ways_is_the_model_on_one_device(
  alone: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  cut = {'mesh': {'data': 2, 'model': 2}, 'rules': 'fsdp_tensor'}
  assert loop.train(runs.settings('mlm', data, sharding=cut), tmp_path / 'cut').result['finished']
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  done = runs.command('train', f'--config={file}', f'--workdir={tmp_path / "one"}')
  assert done.returncode == 0, done.stderr
  assert '1 x cpu' in (tmp_path / 'one' / 'log.txt').read_text()
  check_close(tmp_path / 'cut', tmp_path / 'one')
  check_close(alone, tmp_path / 'one')


class Device(NamedTuple):
  """All that `host_share` asks of a device."""

  process_index: int


@pytest.mark.parametrize(
  ('processes', 'batch', 'share'),
  [
    ([[0], [0], [1], [1]], 'data', (0, 2)),
    ([[1], [1], [0], [0]], 'data', (1, 2)),
    ([[0, 0], [1, 1]], 'data', (0, 2)),
    ([[1, 0], [1, 0]], 'data', (0, 1)),
    ([[0, 0, 1, 1]], 'data', (0, 1)),
    ([[2, 3], [1, 0]], 'data', (1, 2)),
    ([[1], [2], [3], [0]], 'data', (3, 4)),
    ([[1], [0]], None, (0, 1)),
    ([[0], [1], [0], [1]], 'data', None),
    ([[[0], [0]], [[1], [1]]], ('replica', 'data'), (0, 2)),
    ([[[1], [0]], [[0], [1]]], ('replica', 'data'), None),
    ([[[1], [2]], [[0], [3]]], ('replica', 'data'), (2, 4)),
  ],
)
def test_processes_with_the_same_rows_feed_the_same_part(
  processes: list[Any], batch: sharding.MeshAxes | None, share: tuple[int, int] | None
) -> None:
  """This process is number 0."""
  numbers = np.array(processes)
  devices = np.empty(numbers.shape, object)
  for place, number in np.ndenumerate(numbers):
    devices[place] = Device(int(number))
  mesh: Any = types.SimpleNamespace(devices=devices, axis_names=('replica', 'data', 'model')[-numbers.ndim :])
  layout = sharding.Layout(mesh, {'batch': batch})
  if share is None:
    with pytest.raises(ConfigError, match='sharding'):
      feed.host_share(layout)
  else:
    assert feed.host_share(layout) == share


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    return probe.getsockname()[1]
