"""launch/gke.yaml against the schema of JobSet, and launch/slurm.sh under a stub of SLURM with two real processes."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from plm_jax.checkpoint import saved_steps
from plm_jax.cli import command
from plm_jax.runs import metrics
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

yaml = pytest.importorskip('yaml')

# gke.yaml

SCHEMA = conftest.ROOT / 'tests' / 'fixtures' / 'jobset_v1alpha2.json'
KINDS = {'object': dict, 'array': list, 'string': str, 'integer': int, 'boolean': bool}


def wrong(value: Any, schema: dict[str, Any], where: str = 'jobset') -> Iterator[str]:
  """What of a value the schema of a custom resource does not allow; a cluster drops unknown fields without a word."""
  if schema.get('x-kubernetes-int-or-string'):
    if not isinstance(value, int | str):
      yield f'{where}: {value!r} is no number or string'
    return
  kind = schema.get('type')
  if kind is not None and (not isinstance(value, KINDS[kind]) or (kind == 'integer' and isinstance(value, bool))):
    yield f'{where}: {value!r} is no {kind}'
    return
  if 'enum' in schema and value not in schema['enum']:
    yield f'{where}: {value!r} is none of {schema["enum"]}'
  if 'pattern' in schema and not re.search(schema['pattern'], value):
    yield f'{where}: {value!r} does not match {schema["pattern"]}'
  if isinstance(value, dict):
    yield from (f'{where}: {name} is missing' for name in schema.get('required', ()) if name not in value)
    for name, item in value.items():
      if 'properties' not in schema:
        yield from wrong(item, schema.get('additionalProperties', {}), f'{where}.{name}')
      elif name not in schema['properties']:
        yield f'{where}: there is no field {name}'
      else:
        yield from wrong(item, schema['properties'][name], f'{where}.{name}')
  if isinstance(value, list):
    for i, item in enumerate(value):
      yield from wrong(item, schema.get('items', {}), f'{where}[{i}]')


@pytest.fixture
def jobset() -> dict[str, Any]:
  return yaml.safe_load((conftest.ROOT / 'launch' / 'gke.yaml').read_text())


@pytest.fixture
def schema() -> dict[str, Any]:
  """Names, types and choices of the fields of JobSet v1alpha2, of those that gke.yaml uses with what is below them.

  Of config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml of kubernetes-sigs/jobset, commit 08dfbdfd (after v0.12);
  the whole file does as well.
  """
  whole = os.environ.get('JOBSET_CRD')
  if whole is None:
    return json.loads(SCHEMA.read_text())
  versions = yaml.safe_load(pathlib.Path(whole).read_text())['spec']['versions']
  return versions[0]['schema']['openAPIV3Schema']


def test_the_jobset_fits_its_schema(jobset: dict[str, Any], schema: dict[str, Any]) -> None:
  assert not list(wrong(jobset, schema))


def test_the_schema_refuses_what_is_wrong(jobset: dict[str, Any], schema: dict[str, Any]) -> None:
  job = jobset['spec']['replicatedJobs'][0]['template']['spec']
  changes = [
    (jobset['spec'], 'failurepolicy', {}),
    (jobset['spec']['failurePolicy'], 'maxRestarts', '3'),
    (jobset['spec']['failurePolicy']['rules'][0], 'action', 'Fail'),
    (job, 'paralelism', 4),
    (job['podFailurePolicy']['rules'][0], 'onExitCodes', {'values': [2]}),
    (job['template']['spec'], 'nodeSelector', {'a': 1}),
    (job['template']['spec']['containers'][0], 'command', 'bash'),
  ]
  for place, name, value in changes:
    before = dict(place)
    place[name] = value
    assert list(wrong(jobset, schema)), name
    place.clear()
    place.update(before)
  assert not list(wrong(jobset, schema))


def test_the_jobset_is_consistent(jobset: dict[str, Any]) -> None:
  """Restarts end where they are of no use; hosts and chips fit the topology."""
  [rule] = jobset['spec']['failurePolicy']['rules']
  assert rule == {'name': rule['name'], 'action': 'FailJobSet', 'onJobFailureReasons': ['PodFailurePolicy']}
  assert jobset['spec']['failurePolicy']['maxRestarts'] > 0
  job = jobset['spec']['replicatedJobs'][0]['template']['spec']
  pod = job['template']['spec']
  [container] = pod['containers']
  codes = job['podFailurePolicy']['rules'][0]['onExitCodes']
  assert codes == {'containerName': container['name'], 'operator': 'In', 'values': [command.WRONG_USAGE, loop.DIVERGED]}
  assert (job['backoffLimit'], pod['restartPolicy']) == (0, 'Never')  # as pod failure policies need it
  x, y = map(int, pod['nodeSelector']['cloud.google.com/gke-tpu-topology'].split('x'))
  chips = container['resources']['limits']['google.com/tpu']
  assert job['parallelism'] == job['completions'] == x * y / chips


def test_the_container_prepares_and_becomes_the_run(jobset: dict[str, Any], tmp_path: pathlib.Path) -> None:
  [container] = jobset['spec']['replicatedJobs'][0]['template']['spec']['template']['spec']['containers']
  script = tmp_path / '.venv' / 'bin' / 'plm-jax'
  script.parent.mkdir(parents=True)
  script.write_text('#!/bin/sh\necho $$ "$@" >>asked\n')
  script.chmod(0o755)
  env = {**os.environ, 'WORKDIR': 'gs://bucket/a run', 'SHARED': 'gs://bucket/all'}
  process = subprocess.Popen([*container['command'], *container['args']], cwd=tmp_path, env=env)
  assert process.wait() == 0
  first, second = (line.split(maxsplit=1) for line in (tmp_path / 'asked').read_text().splitlines())
  config = container['args'][2]
  assert first[1] == f'prepare {config} --shared=gs://bucket/all/stores'
  cache = '--compile_cache=gs://bucket/all/compiled'
  assert second == [str(process.pid), f'train {config} --workdir=gs://bucket/a run {cache}']  # so SIGTERM reaches it
  assert (conftest.ROOT / config.removeprefix('--config=')).is_file()
  # and the job before it, on nodes without TPUs
  job = yaml.safe_load((conftest.ROOT / 'launch' / 'gke_prepare.yaml').read_text())
  [before] = job['spec']['template']['spec']['containers']
  assert subprocess.run([*before['command'], *before['args']], cwd=tmp_path, env=env, check=False).returncode == 0
  assert (tmp_path / 'asked').read_text().splitlines()[-1].split(maxsplit=1)[1] == first[1]
  assert before['image'] == container['image']
  assert {one['name']: one['value'] for one in before['env']}.items() <= {
    one['name']: one['value'] for one in container['env']
  }.items()
  assert 'google.com/tpu' not in str(job) and 'tpu' not in str(job['spec']['template']['spec'].get('nodeSelector'))


# sky.yaml, Dockerfile


def test_each_host_of_sky_copies_and_becomes_the_run(tmp_path: pathlib.Path) -> None:
  file = conftest.ROOT / 'launch' / 'sky.yaml'
  task = yaml.safe_load(file.read_text())
  assert set(task) == {'name', 'resources', 'workdir', 'envs', 'setup', 'run'}
  assert (conftest.ROOT / task['envs']['CONFIG']).is_file()
  script = tmp_path / '.venv' / 'bin' / 'plm-jax'
  script.parent.mkdir(parents=True)
  script.write_text('#!/bin/sh\necho "$@" >>asked\n')
  script.chmod(0o755)
  env = {**os.environ, **task['envs'], 'SKYPILOT_TASK_ID': 'sky-managed-1'}
  assert subprocess.run(['bash', '-ec', task['run']], cwd=tmp_path, env=env, check=False).returncode == 0
  config = '--config=experiments/bert/base.py'
  assert (tmp_path / 'asked').read_text().splitlines() == [
    f'prepare {config} --shared=gs://BUCKET/plm_jax/stores',
    f'train {config} --workdir=gs://BUCKET/sky-managed-1 --compile_cache=gs://BUCKET/plm_jax/compiled',
  ]


def test_the_image_copies_what_exists() -> None:
  text = (conftest.ROOT / 'Dockerfile').read_text()
  for line in re.findall('^COPY (.*) [^ ]+$', text, re.MULTILINE):
    assert all((conftest.ROOT / name).exists() for name in line.split())
  ignored = (conftest.ROOT / '.dockerignore').read_text().split()
  assert {'.git', 'runs'} <= set(ignored) and not {'plm_jax', 'launch', 'experiments', 'requirements'} & set(ignored)


# slurm.sh

SRUN = """#!{python}
# In place of srun: runs the command once per task, ends the others when one fails, and returns the highest exit code.
import os, signal, subprocess, sys, time
words = [word for word in sys.argv[1:] if word not in ('--kill-on-bad-exit=1', '--label')]
tasks = [
  subprocess.Popen(words, env=dict(os.environ, SLURM_PROCID=str(i), SLURM_LOCALID=str(i)))
  for i in range(int(os.environ['SLURM_NTASKS']))
]
with open('pids', 'w') as file:
  file.write(' '.join(str(task.pid) for task in tasks))
while None in (codes := [task.poll() for task in tasks]):
  if any(code not in (None, 0, 3, 130) for code in codes):  # --kill-on-bad-exit; those that save end together
    for task in tasks:
      task.kill()
  time.sleep(0.05)
sys.exit(max(codes))
"""
SCONTROL = """#!/bin/sh
case $1 in
  show) printf 'localhost\\nother\\n' ;;
  *) echo "$@" >>requeued ;;
esac
"""


class Slurm:
  """A job of two tasks on this machine, whose folder holds `pids` and `requeued`."""

  def __init__(self, folder: pathlib.Path):
    self.folder = folder
    tools = folder / 'tools'
    tools.mkdir()
    for name, text in {'srun': SRUN.format(python=sys.executable), 'scontrol': SCONTROL}.items():
      (tools / name).write_text(text)
      (tools / name).chmod(0o755)
    (folder / 'plm_jax').symlink_to(conftest.ROOT / 'plm_jax')
    (folder / 'experiments').symlink_to(conftest.ROOT / 'experiments')
    self.output = folder / 'output'
    port = os.getpid()  # the port follows from the job: two tests at once take two
    self.env = {
      'PATH': f'{tools}:{os.environ["PATH"]}',
      'PYTHON': sys.executable,
      'SLURM_SUBMIT_DIR': str(folder),
      'SLURM_JOB_ID': str(port),
      'SLURM_NTASKS': '2',
      'SLURM_JOB_NODELIST': 'node[0-1]',
      'JAX_DISABLE_MOST_OPTIMIZATIONS': '1',
    }

  def job(self, *words: str, **env: str) -> Any:
    command = ['bash', str(conftest.ROOT / 'launch' / 'slurm.sh'), *words]
    return runs.started(command, log=self.output, **self.env, **env)

  def requeued(self) -> int:
    file = self.folder / 'requeued'
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def slurm(tmp_path: pathlib.Path) -> Iterator[Slurm]:
  yield Slurm(tmp_path)
  pids = tmp_path / 'pids'
  for number in pids.read_text().split() if pids.exists() else ():  # of a test that failed; those of others have ended
    with contextlib.suppress(ProcessLookupError):
      os.kill(int(number), signal.SIGKILL)


def stopped_by_slurm(slurm: Slurm, data: pathlib.Path) -> tuple[list[str], int]:
  """A run whose two tasks get SIGTERM, as SLURM sends it before the end: its arguments, and the step that was saved."""
  endless = {'steps': 100_000, 'save_every': 100_000, 'eval_every': 100_000, 'best': None}
  file = runs.write_config(slurm.folder / 'config.json', runs.settings('mlm', data, **endless))
  workdir = slurm.folder / 'run'
  words = [f'--config={file}', f'--workdir={workdir}']
  with slurm.job(*words) as process:
    runs.wait_until(lambda: len(metrics.read(workdir)) >= 1, process=process, log=slurm.output)
    for number in (slurm.folder / 'pids').read_text().split():
      os.kill(int(number), signal.SIGTERM)
    assert process.wait(timeout=120) == 3, slurm.output.read_text()[-3000:]
  return words, json.loads((workdir / 'result.json').read_text())['step']


def test_a_job_whose_time_is_over_saves_and_goes_back_into_the_queue(slurm: Slurm, data: pathlib.Path) -> None:
  _, step = stopped_by_slurm(slurm, data)
  assert saved_steps.numbered(slurm.folder / 'run' / 'checkpoints') == [step]
  assert slurm.output.read_text().count(f'stopped by a signal at step {step}') == 2
  assert slurm.requeued() == 1


@pytest.mark.slow
def test_the_next_job_goes_on(slurm: Slurm, data: pathlib.Path) -> None:
  words, step = stopped_by_slurm(slurm, data)
  with slurm.job(*words, f'--stop_at={step + 2}', SLURM_RESTART_COUNT='1') as process:
    assert process.wait(timeout=180) == 0, slurm.output.read_text()[-3000:]
  assert f'from step {step}' in (slurm.folder / 'run' / 'log.txt').read_text()
  assert slurm.requeued() == 1


# The first bad exit ends the other tasks, so each task waits for all of them to have written.
FAKE = """#!/bin/sh
trap 'exit 3' TERM
echo "$@" >>"asked$SLURM_PROCID"
for turn in $(seq 600); do
  [ -s asked0 ] && { [ -s asked1 ] || [ "$SLURM_NTASKS" = 1 ]; } && [ -n "$CODE" ] && exit "$CODE"
  sleep 0.05
done
"""


@pytest.mark.parametrize(
  ('code', 'restarts', 'requeued'), [(0, 0, 0), (2, 0, 0), (4, 0, 0), (3, 0, 1), (130, 7, 1), (3, 100, 0)]
)
def test_only_a_saved_run_goes_back_into_the_queue(slurm: Slurm, code: int, restarts: int, requeued: int) -> None:
  fake(slurm)
  with slurm.job('--config=a b', CODE=str(code), SLURM_RESTART_COUNT=str(restarts)) as process:
    assert process.wait(timeout=60) == code
  assert slurm.requeued() == requeued
  asked = [(slurm.folder / f'asked{i}').read_text().strip() for i in (0, 1)]
  port = 61440 + os.getpid() % 4096
  shared = f'-m plm_jax train --config=a b --coordinator=localhost:{port} --processes=2'
  assert asked == [f'{shared} --process={i}' for i in (0, 1)]


def test_nodes_copy_what_was_prepared_before_the_run(slurm: Slurm) -> None:
  """And programs are stored next to the run; the job that prepares needs no accelerator."""
  fake(slurm)
  slurm.env['SLURM_NTASKS'] = '1'
  words = ['--config=c.py', '--config.seed=1', '--shared=gs://b/stores', '--workdir=gs://b/run']
  with slurm.job(*words, CODE='0') as process:
    assert process.wait(timeout=60) == 0
  prepare = '-m plm_jax prepare --config=c.py --config.seed=1 --shared=gs://b/stores'
  train = '-m plm_jax train --config=c.py --config.seed=1 --workdir=gs://b/run --compile_cache=gs://b/compiled'
  assert (slurm.folder / 'asked0').read_text().splitlines() == [prepare, train]
  with slurm.job(*words, CODE='0', PLM_JAX_PREPARE='1', SLURM_PROCID='0') as process:
    assert process.wait(timeout=60) == 0
  assert (slurm.folder / 'asked0').read_text().splitlines()[2:] == [prepare]


def test_the_run_waits_for_the_job_that_prepares(slurm: Slurm) -> None:
  sbatch = slurm.folder / 'tools' / 'sbatch'
  sbatch.write_text(
    '#!/bin/sh\nfor word in "$@"; do printf "%s|" "$word"; done >>sbatch\necho >>sbatch\necho "71;here"\n'
  )
  sbatch.chmod(0o755)
  del slurm.env['SLURM_SUBMIT_DIR']
  script = str(conftest.ROOT / 'launch' / 'slurm.sh')
  done = subprocess.run(
    ['bash', script, '--nodes=2', '--', '--config=a b', '--workdir=/runs/x'],
    cwd=slurm.folder,
    env={**os.environ, **slurm.env, 'PLM_JAX_PREPARE_FLAGS': '--partition=cpu --time=2-0'},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  first, second = ((line[:-1]).split('|') for line in (slurm.folder / 'sbatch').read_text().splitlines())
  run = [script, '--config=a b', '--workdir=/runs/x']
  assert first == ['--parsable', '--nodes=1', '--partition=cpu', '--time=2-0', '--export=ALL,PLM_JAX_PREPARE=1', *run]
  assert second == ['--nodes=2', '--dependency=afterok:71', '--kill-on-invalid-dep=yes', *run]


def test_one_task_looks_for_no_others(slurm: Slurm) -> None:
  fake(slurm)
  slurm.env['SLURM_NTASKS'] = '1'
  with slurm.job('--config=c.py', CODE='0') as process:
    assert process.wait(timeout=60) == 0
  assert (slurm.folder / 'asked0').read_text() == '-m plm_jax train --config=c.py\n'


def test_a_cancelled_job_saves_and_stays_away(slurm: Slurm) -> None:
  """scancel and preemption send SIGTERM to the tasks and to the batch script."""
  fake(slurm)
  with slurm.job('--config=c.py', CODE='') as process:
    asked = [slurm.folder / f'asked{i}' for i in (0, 1)]
    runs.wait_until(lambda: all(file.exists() for file in asked), process=process, log=slurm.output)
    process.send_signal(signal.SIGTERM)
    for number in (slurm.folder / 'pids').read_text().split():
      os.kill(int(number), signal.SIGTERM)
    assert process.wait(timeout=60) == 3
  assert slurm.requeued() == 0
  assert 'cancelled or preempted' in slurm.output.read_text()


def fake(slurm: Slurm) -> None:
  """A python that notes its arguments and ends with $CODE, or at SIGTERM with 3."""
  python = slurm.folder / 'python'
  python.write_text(FAKE)
  python.chmod(0o755)
  slurm.env['PYTHON'] = str(python)


def test_a_folder_that_is_no_checkout_is_refused(slurm: Slurm, tmp_path: pathlib.Path) -> None:
  (slurm.folder / 'plm_jax').unlink()
  with slurm.job('--config=c.py') as process:
    assert process.wait(timeout=60) == 2
  assert 'submit from the root of the repository' in slurm.output.read_text()


def test_flags_of_sbatch_stand_before_the_first_command() -> None:
  """sbatch reads no further than that."""
  lines = (conftest.ROOT / 'launch' / 'slurm.sh').read_text().splitlines()
  flags = [i for i, line in enumerate(lines) if line.startswith('#SBATCH')]
  first = next(i for i, line in enumerate(lines) if line and not line.startswith('#'))
  assert len(flags) >= 8
  assert max(flags) < first


def test_a_job_that_is_not_submitted_says_how() -> None:
  env = {name: value for name, value in os.environ.items() if name != 'SLURM_SUBMIT_DIR'}
  done = subprocess.run(
    ['bash', conftest.ROOT / 'launch' / 'slurm.sh'], env=env, capture_output=True, text=True, check=False
  )
  assert (done.returncode, 'run this by sbatch' in done.stderr) == (2, True)
