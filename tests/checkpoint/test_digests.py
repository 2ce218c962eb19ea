"""Digests of a step: each byte is read by one of the hosts, when it is written and when it is read."""

import json
import os
import pathlib
import random
import shutil
import socket
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import checkpoint
from plm_jax.checkpoint import CheckpointError, digests, saved_steps

ROOT = pathlib.Path(__file__).resolve().parents[2]
OLD = ROOT / 'tests' / 'fixtures' / 'bert_mlm' / 'run' / 'checkpoints'  # of a version in which one process did all


def test_files_are_dealt_by_bytes() -> None:
  draw = random.Random(0)
  known = {f'{number:03}': (draw.randrange(1, 1000), '') for number in range(200)}
  for processes in (1, 2, 7, 300):
    dealt = digests.deal(known, processes)
    assert len(dealt) == processes
    assert sorted(name for names in dealt for name in names) == sorted(known)
    loads = [sum(known[name][0] for name in names) for names in dealt]
    assert max(loads) - min(loads) <= 1000
    assert dealt == digests.deal(dict(reversed(known.items())), processes)


def test_what_a_process_wrote_is_what_it_digests(tmp_path: pathlib.Path) -> None:
  """Also while Orbax still has a longer name for the folder of the item."""
  for name in (
    'ocdbt.process_1/d/a',
    'ocdbt.process_11/d/b',
    'array_metadatas/process_1',
    'd/c',
    'ocdbt.process_0/d/e',
  ):
    file = tmp_path / 'state.orbax-checkpoint-tmp-7' / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(name)
  digests.write_own(tmp_path, process=1, item='state')
  os.rename(tmp_path / 'state.orbax-checkpoint-tmp-7', tmp_path / 'state')
  found = digests.collect(tmp_path)
  assert found.keys() == {'state/ocdbt.process_1/d/a', 'state/array_metadatas/process_1'}
  assert found == digests.of_files({name: tmp_path / name for name in found})
  assert [path.name for path in tmp_path.iterdir()] == ['state']


@pytest.mark.parametrize('harm', ['{"state/x": [3, ', '{"state/x": 3}', '[]', '{"state/x": [4, "abc"]}'])
def test_digests_that_cannot_be_used_are_left_out(tmp_path: pathlib.Path, harm: str) -> None:
  (tmp_path / 'state').mkdir()
  (tmp_path / 'state' / 'x').write_text('abc')
  (tmp_path / 'digests.process_1.json').write_text(harm)
  assert digests.collect(tmp_path) == {}
  assert not (tmp_path / 'digests.process_1.json').exists()


TWO_PROCESSES = """
  import json, logging, pathlib, sys
  import jax, jax.numpy as jnp, numpy as np
  from jax.sharding import Mesh, NamedSharding, PartitionSpec

  process, port, folder, alone, old = int(sys.argv[1]), sys.argv[2], *map(pathlib.Path, sys.argv[3:6])
  jax.distributed.initialize(f'localhost:{port}', num_processes=2, process_id=process)
  from plm_jax import checkpoint
  from plm_jax.io import files
  from plm_jax.checkpoint import saved_steps

  place = NamedSharding(Mesh(np.array(jax.devices()), ('data',)), PartitionSpec('data'))
  values = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
  abstract = {'x': jax.ShapeDtypeStruct(values.shape, jnp.float32, sharding=place)}
  read, sha256 = [], files.sha256

  def told(file):
    read.append(pathlib.Path(file).relative_to(folder).as_posix())
    return sha256(file)

  def meet(name):
    jax.experimental.multihost_utils.sync_global_devices(name)

  files.sha256 = told
  said = {}
  with checkpoint.Checkpoints(folder, keep=3) as saved:
    assert saved.restore(abstract) is None
    for step in (1, 2):
      saved.save(step, {'x': jax.make_array_from_callback(values.shape, place, lambda index: values[index] + step)})
      saved.wait()
    said['written'] = sorted(read)
  meet('saved')
  read.clear()
  step, restored = checkpoint.restore(folder, abstract)
  said['read'], said['newest'] = sorted(read), step
  meet('read')
  if process == 1:  # damages what the other one wrote
    file = max((folder / '2' / 'state' / 'ocdbt.process_0').rglob('*'), key=lambda file: file.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(content)
  meet('damaged')
  step, restored = checkpoint.restore(folder, abstract)
  said['after damage'] = step
  for shard in restored['x'].addressable_shards:
    np.testing.assert_array_equal(shard.data, values[shard.index] + 1)
  try:
    checkpoint.restore(folder, abstract, step=2)
  except checkpoint.CheckpointError as error:
    said['refused'] = str(error)
  files.sha256 = sha256
  said['of one process'] = saved_steps.choose(alone, 'newest')
  said['old'] = saved_steps.choose(old, 'newest')
  print('SAID ' + json.dumps(said), flush=True)
"""


def damage(step: pathlib.Path) -> None:
  file = max((path for path in step.rglob('*') if path.is_file()), key=lambda path: path.stat().st_size)
  content = bytearray(file.read_bytes())
  content[len(content) // 2] ^= 1
  file.write_bytes(content)


def test_hosts_share_the_digests_of_a_checkpoint(tmp_path: pathlib.Path) -> None:
  """Saved and restored by two processes, saved by two and restored by one, and the other way round."""
  folder, alone, old = tmp_path / 'checkpoints', tmp_path / 'alone', tmp_path / 'old'
  shutil.copytree(OLD, old)
  with checkpoint.Checkpoints(alone, keep=2) as saved:
    for step in (5, 6):
      saved.save(step, {'x': jnp.full(10_000, step, jnp.float32)})
  damage(alone / '6')
  with socket.socket() as free:
    free.bind(('localhost', 0))
    port = str(free.getsockname()[1])
  environment = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': '--xla_force_host_platform_device_count=2'}
  running = [
    subprocess.Popen(
      [sys.executable, '-c', textwrap.dedent(TWO_PROCESSES), str(process), port, str(folder), str(alone), str(old)],
      cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )
    for process in range(2)
  ]  # fmt: skip
  try:
    ends = [process.communicate(timeout=120) for process in running]
  finally:
    for process in running:
      process.kill()
  said = []
  for process, (out, err) in zip(running, ends, strict=True):
    assert process.returncode == 0, err[-3000:]
    said += [json.loads(line.removeprefix('SAID ')) for line in out.splitlines() if line.startswith('SAID ')]
  first, second = said

  every = [
    f'{step}.orbax-checkpoint-tmp/{name}' for step in (1, 2) for name in saved_steps.read(folder / str(step)).files
  ]
  written = [[name.partition('/')[0] + '/' + short(name) for name in one['written']] for one in said]
  assert sorted(written[0] + written[1]) == sorted(every)  # each once
  assert all('process_1' in name for name in written[1])
  assert not any('process_1' in name for name in written[0])
  assert any('ocdbt.process_1' in name for name in written[1])
  assert not [name for name in every if 'digests' in name]

  sizes = {f'2/{name}': size for name, (size, _) in saved_steps.read(folder / '2').files.items()}
  assert sorted(first['read'] + second['read']) == sorted(sizes)
  shares = [sum(sizes[name] for name in one['read']) for one in said]
  assert max(shares) < 0.6 * sum(shares)
  for one in said:
    assert (one['newest'], one['after damage'], one['of one process'], one['old']) == (2, 1, 5, 4)
  assert 'sha256' in first['refused']
  assert 'process 0' in second['refused'] or 'log' in second['refused']

  abstract = {'x': jax.ShapeDtypeStruct((40_000,), jnp.float32)}
  step, restored = checkpoint.restore(folder, abstract)
  assert step == 1
  values = np.random.default_rng(0).standard_normal(40_000).astype(np.float32)
  np.testing.assert_array_equal(restored['x'], values + 1)
  with pytest.raises(CheckpointError, match=r'step 2 in .*damaged.*state/ocdbt\.process_0/.*sha256'):
    checkpoint.restore(folder, abstract, step=2)


def short(name: str) -> str:
  """A file of an unfinished step, as the record calls it."""
  _, item, *rest = name.split('/')
  return '/'.join((item.partition('.')[0], *rest))
