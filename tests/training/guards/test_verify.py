"""Silent data corruption is found at the next check, and a check changes nothing that a run computes."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from plm_jax import config
from plm_jax.checkpoint import saved_steps
from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io.run_paths import RunFolder
from plm_jax.models import bert
from plm_jax.runs import metrics
from plm_jax.training import begin, loop
from plm_jax.training.context import RunContext
from plm_jax.training.guards import verify
from tests import runs

pytestmark = [
  pytest.mark.turns,
  pytest.mark.usefixtures('log'),
  pytest.mark.skipif(jax.device_count() != 4, reason='needs four (simulated) devices'),
]

ARRAY = 'params/trunk/token_embed/table'
CHECKED = {'verify_every': 4, 'eval_every': 12}
LAYOUTS: dict[str, dict[str, Any]] = {
  'data': {'accumulate': 2, 'sharding': {'mesh': {'data': 4}, 'rules': 'data'}},
  'fsdp': {'sharding': {'mesh': {'data': 4}, 'rules': 'fsdp'}},
  'fsdp_tensor': {'sharding': {'mesh': {'data': 2, 'model': 2}, 'rules': 'fsdp_tensor'}},
}


def flipped(array: jax.Array, *, device: int, bit: int, place: int = 0) -> jax.Array:
  """The array with one other bit in what a device holds of it."""
  parts = []
  for shard in array.addressable_shards:
    content = np.array(shard.data)
    if shard.device.id == device:
      content.reshape(-1).view(np.uint32)[place] ^= np.uint32(1 << bit)
    parts.append(jax.device_put(content, shard.device))
  return jax.make_array_from_single_device_arrays(array.shape, array.sharding, parts)


# Digests --------------------------------------------------------------------------------------------------------------


def digest(array: Any) -> tuple[int, ...]:
  return tuple(np.asarray(jax.jit(verify._digest)(array)).tolist())


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float16', 'int32', 'int8', 'uint32', 'bool'])
def test_a_digest_changes_with_every_word_and_with_their_order(dtype: str) -> None:
  values = np.arange(60).reshape(3, 4, 5) % 2 == 0 if dtype == 'bool' else np.arange(1, 61).reshape(3, 4, 5)
  array = np.asarray(jnp.asarray(values).astype(dtype))
  seen = {digest(array)}
  for place in range(array.size):
    for bit in (0,) if dtype == 'bool' else range(8 * array.dtype.itemsize):
      other = array.copy()
      other.reshape(-1).view(f'u{array.dtype.itemsize}')[place] ^= 1 << bit
      seen.add(digest(other))
  bits = 1 if dtype == 'bool' else 8 * array.dtype.itemsize
  assert len(seen) == 1 + array.size * bits
  swapped = array.copy()
  swapped[0, 0, 0], swapped[0, 0, 1] = array[0, 0, 1], array[0, 0, 0]
  assert digest(swapped) != digest(array)
  if dtype.startswith(('float', 'bfloat')):
    signs = array.copy()  # the highest bits of two words
    signs.reshape(-1)[:2] *= -1
    assert len({digest(array), digest(signs), digest(-array)}) == 3


def test_a_digest_is_the_sum_that_it_says() -> None:
  array = np.random.default_rng(0).standard_normal((7, 11)).astype(np.float32)

  def mixed(x: int) -> int:
    x = (x ^ x >> 16) * 0x85EBCA6B % 2**32
    x = (x ^ x >> 13) * 0xC2B2AE35 % 2**32
    return x ^ x >> 16

  words = array.reshape(-1).view(np.uint32).tolist()
  expected = [
    sum(mixed(word ^ mixed((place + seed) % 2**32)) for place, word in enumerate(words)) % 2**32
    for seed in (0x9E3779B9, 0x7F4A7C15)
  ]
  assert list(digest(array)) == expected
  assert digest(np.zeros((0, 3), np.float32)) == (0, 0)


def test_each_device_makes_digests_of_its_own_part() -> None:
  mesh = sharding.make_mesh({'data': 2, 'model': 2})
  values = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)
  places = {'cut': NamedSharding(mesh, PartitionSpec('model')), 'whole': NamedSharding(mesh, PartitionSpec())}
  arrays = {name: jax.device_put(values, place) for name, place in places.items()}
  made = np.asarray(jax.jit(lambda tree: verify.digests(tree, places=places))(arrays))
  halves = [digest(values[:2]), digest(values[2:])]
  assert made.tolist() == [[list(halves[place % 2]), list(digest(values))] for place in range(4)]
  devices = list(mesh.devices.flat)
  assert verify.between_devices(made, arrays, devices) == []
  assert verify._holders(arrays['cut'], devices) == [[0, 2], [1, 3]]

  other = made.copy()
  other[3, :, 0] += 1  # of two copies none is the majority, of four there is one
  found = verify.between_devices(other, arrays, devices)
  assert found == [
    verify.Found(['cut'], (1, 3), known=False, twice=False),
    verify.Found(['whole'], (3,), known=True, twice=False),
  ]
  assert verify.between_results(made, other, ['cut', 'whole']) == [
    verify.Found(['cut', 'whole'], [3], known=True, twice=True)
  ]
  assert verify.between_results(made, made.copy(), ['cut', 'whole']) == []
  (every,) = verify.between_results(made, made + 1, ['cut', 'whole'])
  assert (every.devices, every.known) == ([0, 1, 2, 3], False)


@pytest.mark.parametrize(
  ('steps', 'said'),
  [
    ((10, 20), r'The same command resumes from step 20$'),
    ((10, 20, 25, 27), r'\(step 25, 27\) may be wrong .* --to_step=20$'),
    ((25,), r'No step was saved before the last check: begin again in another --workdir$'),
    ((), r'begin again in another --workdir$'),
  ],
)
def test_the_way_on_does_not_trust_what_was_saved_since_the_last_check(
  steps: Sequence[int], said: str, tmp_path: pathlib.Path
) -> None:
  whole = NamedSharding(sharding.make_mesh({'data': 4}), PartitionSpec())
  check = verify.Check(10, (whole, whole), folder=RunFolder.at(tmp_path), saved=runs.Saved(*steps))
  assert re.search(said, check._way_on(30), re.DOTALL)


# Runs -----------------------------------------------------------------------------------------------------------------


def settings(data: pathlib.Path, **changes: Any) -> dict[str, Any]:
  return runs.settings('mlm', data, **LAYOUTS['data'], **{**CHECKED, **changes})


@pytest.fixture
def after_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[Any], Any]], None]:
  """`after_step(n, change)`: the state after step n becomes `change(state)`."""

  def patch(number: int, change: Callable[[Any], Any]) -> None:
    read = loop._read_metrics

    def changed(run: Any, at: Any, due: Any) -> None:
      if at.step == number:
        at.state = change(at.state)
      read(run, at, due)

    monkeypatch.setattr(loop, '_read_metrics', changed)

  return patch


@pytest.fixture
def call_of_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[Any], Any]], None]:
  """`call_of_step(n, change)`: call n of the compiled step returns `change(state)`."""

  def patch(number: int, change: Callable[[Any], Any]) -> None:
    open_run = begin.open_run

    def opened(*given: Any) -> Any:
      (run, at), calls = open_run(*given), []
      compiled = run.steps.get(runs.STEPS)

      def step(*arguments: Any) -> Any:
        calls.append(0)
        state, *others = compiled.logged(*arguments)
        return (change(state) if len(calls) == number else state, *others)

      steps = SimpleNamespace(get=lambda total_steps: compiled._replace(logged=step))
      return dataclasses.replace(run, steps=steps), at

    monkeypatch.setattr(begin, 'open_run', opened)

  return patch


def with_flip(state: Any, *, device: int) -> Any:
  """The state with one other bit of `ARRAY` on one device: the lowest of its significand."""
  params = jax.tree.map(lambda leaf: leaf, state.params)
  node = params
  *parents, name = ARRAY.split('/')[1:]
  for parent in parents:
    node = node[parent]
  node[name] = flipped(node[name], device=device, bit=0, place=7)
  return state.replace(params=params)


def test_a_flipped_bit_of_one_replica_is_found_at_the_next_check(
  data: pathlib.Path, tmp_path: pathlib.Path, after_step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
  after_step(5, lambda state: with_flip(state, device=2))
  with pytest.raises(RunError) as error:
    loop.train(settings(data), tmp_path)
  told = str(error.value)
  assert told.startswith('step 8: ') and '\n' not in told
  assert re.search(rf'device 2 of process 0 \(host \S+\) holds other bits of [^;]*{ARRAY}[ ,]', told)
  assert 'device 0' not in told and 'device 1' not in told and 'device 3' not in told
  assert 'made again' not in told  # the step itself repeats its bits
  assert 'Leave out the hosts of these devices. The same command resumes from step 4' in told
  assert 'silent data corruption (verify_every): device 2 of' in (tmp_path / 'log.txt').read_text()
  assert saved_steps.numbered(tmp_path / 'checkpoints') == [4]
  assert [row['step'] for row in metrics.read(tmp_path)] == [2, 4, 6]
  monkeypatch.undo()
  assert loop.train(settings(data), tmp_path).result['finished']


@pytest.mark.parametrize('call', [8, 9])
def test_a_step_that_gives_another_number_when_it_is_made_again_is_found(
  call: int, data: pathlib.Path, tmp_path: pathlib.Path, call_of_step: Any
) -> None:
  """On all devices alike, as a wrong sum over devices would be; checks make steps 4 and 8 twice."""
  call_of_step(call + 1, lambda state: state.replace(skipped=state.skipped + 1))
  with pytest.raises(RunError) as error:
    loop.train(settings(data), tmp_path)
  told = str(error.value)
  assert told.startswith('step 8: ')
  assert 'made again from the same state and batch, the step gave other bits of skipped on device 0' in told
  assert 'which of them is wrong is not known' in told and 'leave out one host after another' in told
  assert saved_steps.numbered(tmp_path / 'checkpoints') == [4]


def test_a_device_that_computes_wrong_in_one_of_the_two_is_named(
  data: pathlib.Path, tmp_path: pathlib.Path, call_of_step: Any
) -> None:
  call_of_step(5, lambda state: with_flip(state, device=1))  # step 4 the second time
  said = rf'^step 4: .*gave other bits of {ARRAY} on device 1 of process 0 \(host \S+\)\. '
  with pytest.raises(RunError, match=said):
    loop.train(settings(data), tmp_path)
  assert saved_steps.numbered(tmp_path / 'checkpoints') == []


@pytest.mark.parametrize('layout', ['data', pytest.param('fsdp', marks=pytest.mark.slow), 'fsdp_tensor'])
def test_a_check_changes_no_bits_and_compiles_no_second_step(
  layout: str, data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """With dropout and noise; also where it is asked for on the way."""
  made: list[RunContext] = []
  open_run = begin.open_run

  def kept(*given: Any) -> Any:
    run, at = open_run(*given)
    made.append(run)
    return run, at

  monkeypatch.setattr(begin, 'open_run', kept)
  plain, checked = tmp_path / 'plain', tmp_path / 'checked'
  asked = runs.settings('mlm', data, **LAYOUTS[layout])
  assert bert.CONFIGS[asked['model']['variant']].dropout > 0
  loop.train(asked, plain)
  loop.train(asked, checked, stop_at=4)
  assert loop.train({**asked, 'verify_every': 3}, checked).result['finished']
  assert not runs.differing(runs.saved_state(checked), runs.saved_state(plain))
  assert runs.curve(checked) == runs.curve(plain)
  assert len({run.steps.get(runs.STEPS).logged._cache_size() for run in made}) == 1
  assert config.load(str(checked))['verify_every'] == 3


def test_a_number_of_steps_is_asked_for(data: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match=r'verify_every'):
    settings(data, verify_every=0)
