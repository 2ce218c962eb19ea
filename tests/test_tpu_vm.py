"""launch/tpu_vm.sh and launch/tpu_worker.sh, with a gcloud that keeps its TPUs in a folder of this machine.

Each host is a folder there, in which the commands for it really run; its python writes down what it was asked for, and
trains until it is told how to end. Where Google's own gcloud is installed, its parser reads every command as well.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests import conftest

pytestmark = pytest.mark.turns

SETUP = """#!/usr/bin/env bash
# in place of launch/setup.sh: a python that notes its arguments and ends as the file `end` beside the host says
set -eu
root="$(cd -- "$(dirname -- "$0")/.." && pwd -P)"
mkdir -p "$root/.venv/bin"
cat >"$root/.venv/bin/python" <<'PYTHON'
#!/usr/bin/env bash
trap 'exit 3' TERM
for word in "$@"; do printf '%s\\0' "$word" >>"$HOME/asked"; done
printf '\\n' >>"$HOME/asked"
[[ ${3:-} == train ]] || exit "$(cat "$HOME/../code_of_others" 2>/dev/null || echo 0)"
printf '%s\\n' "${GREETING:-}" >>"$HOME/greetings"
while [[ ! -e $HOME/../end ]]; do sleep 0.05; done
exit "$(cat "$HOME/../end")"
PYTHON
chmod +x "$root/.venv/bin/python"
"""

GCLOUD = '''#!{python}
"""Stands in for gcloud: the TPUs are folders, and what is said to a host runs in its folder."""
import json, os, pathlib, shutil, subprocess, sys, time

cloud = pathlib.Path({cloud!r})
words = sys.argv[1:]
with open(cloud / 'asked.jsonl', 'a') as file:
  file.write(json.dumps(['gcloud', *words]) + '\\n')
fault = {{}}
for file in sorted(cloud.glob('fault*')):
  planned = json.loads(file.read_text())
  if planned['on'] in ' '.join(words) and planned['left'] > 0:
    fault = planned
    file.write_text(json.dumps(planned | {{'left': planned['left'] - 1}}))
    break


def fails():
  print(fault['error'], file=sys.stderr)
  if fault['code'] == 'hangs':
    subprocess.run(['/bin/sleep', '60'])  # a child, as ssh is one of gcloud
  sys.exit(fault['code'])


if fault and not fault['late']:
  fails()
flags = dict(word.partition('=')[::2] for word in words if word.startswith('--'))
plain = [word for word in words if not word.startswith('--')]
if plain[0] == 'storage':
  sys.exit(0)
if plain[1] != 'tpus':  # the CPU machine
  vm = cloud / 'vm'
  if plain[2] == 'create':
    vm.mkdir()
  elif plain[2] == 'delete':
    shutil.rmtree(vm)
  elif plain[1] == 'scp':
    shutil.copy(plain[2], vm / plain[3].partition(':')[2])
  else:
    sys.exit(subprocess.run(['bash', '-c', flags['--command']], cwd=vm, env=dict(os.environ, HOME=str(vm))).returncode)
  sys.exit(0)
kind, verb, *names = plain[2:]
state = cloud / 'state'
slices = int((cloud / 'slices').read_text()) if (cloud / 'slices').exists() else 1
hosts = [cloud / f'host{{i}}' for i in range(2 * slices)]
if verb == 'create':
  if state.exists():
    sys.exit('ERROR: ALREADY_EXISTS')
  (cloud / 'slices').write_text(flags.get('--node-count', '1'))
  state.write_text('ACTIVE')
  if fault:
    fails()
elif verb == 'delete':
  state.unlink()
  for file in cloud.glob('fault*'):
    if json.loads(file.read_text())['of_host']:
      file.unlink()
  for host in cloud.glob('host*'):
    shutil.rmtree(host)
elif (cloud / 'broken').exists():
  sys.exit('ERROR: (gcloud) PERMISSION_DENIED: no')
elif not state.exists():
  sys.exit(f'ERROR: (gcloud.{{kind}}.describe) NOT_FOUND: Resource was not found')
elif verb == 'describe':
  found = state.read_text()
  print({{'ACTIVE': 'READY'}}.get(found, found) if kind == 'tpu-vm' else found)
elif state.read_text() != 'ACTIVE':
  sys.exit('ERROR: no such host')
else:
  node = names[0 if verb == 'ssh' or ':' in names[0] else -1].partition(':')[0]
  first = 2 * int(node.rpartition('-')[2]) if slices > 1 else 0  # two hosts a slice
  chosen = hosts[first : first + (2 if flags['--worker'] == 'all' else 1)]
  code = 0
  for host in chosen:
    host.mkdir(exist_ok=True)
    if verb == 'scp':
      source, target = names
      if ':' in target:
        shutil.copy(source, host / target.partition(':')[2])
      else:
        shutil.copytree(host / source.partition(':')[2], pathlib.Path(target) / pathlib.Path(source).name)
    else:
      env = dict(os.environ, HOME=str(host))
      code |= subprocess.run(['bash', '-c', flags['--command']], cwd=host, env=env).returncode
  sys.exit(code)
'''

CLOCK = {
  'sleep': 'case $1 in *.*) ;; *) echo "$1" >>"$CLOUD/slept" ;; esac\nexec /bin/sleep 0.02\n',
  'date': 'echo $(($(/bin/date +%s) + $(paste -sd+ "$CLOUD/slept" 2>/dev/null | grep . || echo 0)))\n',
  'timeout': """
flags=()
while [[ $1 == --* ]]; do flags+=("$1"); shift; done
limit=$1
shift
grep -qs hangs "$CLOUD"/fault* || exec "$@"
code=0
/usr/bin/timeout "${flags[@]}" 4 "$@" || code=$?
[[ $code -ne 124 ]] || echo "$limit" >>"$CLOUD/slept"
exit "$code"
""",
}


class Cloud:
  """A checkout, a gcloud, and the folder of its TPUs.

  Attributes:
    folder: has `state`, `end` (the exit code with which runs end), and the hosts.
  """

  def __init__(self, folder: pathlib.Path):
    self.folder = folder / 'cloud'
    self.folder.mkdir()
    tools = folder / 'tools'
    tools.mkdir()
    self.script = folder / 'check out' / 'launch' / 'tpu_vm.sh'
    self.script.parent.mkdir(parents=True)
    for name in ('tpu_vm.sh', 'tpu_worker.sh'):
      shutil.copy(conftest.ROOT / 'launch' / name, self.script.parent)
    (self.script.parent / 'setup.sh').write_text(SETUP)
    checkout = self.script.parent.parent
    (checkout / 'experiments' / 'bert').mkdir(parents=True)
    (checkout / 'experiments' / 'bert' / 'base.py').write_text('')
    for words in (['init', '-q'], ['add', '.']):
      subprocess.run(['git', '-C', str(checkout), *words], check=True)
    (checkout / 'not for git').write_text('large')
    own = checkout / '.venv' / 'bin' / 'python'  # of this machine, which prepares
    own.parent.mkdir(parents=True)
    own.write_text(
      f"#!/bin/sh\nprintf '%s\\n' \"$*\" >>'{self.folder}/here'\nls '{self.folder}/state' 2>/dev/null\n"
      f"exit $(cat '{self.folder}/code_here' 2>/dev/null || echo 0)\n"
    )
    own.chmod(0o755)
    (tools / 'gcloud').write_text(GCLOUD.format(python=sys.executable, cloud=str(self.folder)))
    (tools / 'gcloud').chmod(0o755)
    self.env = {**os.environ, 'PATH': f'{tools}:{os.environ["PATH"]}', 'TMPDIR': str(folder)}

  def start(self, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
      ['bash', str(self.script), *words],
      cwd=self.folder,
      env=self.env,
      stdin=subprocess.DEVNULL,
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
    )

  def run(self, *words: str, code: int | None = 0) -> str:
    process = self.start(*words)
    out = process.communicate(timeout=120)[0]
    assert code is None or process.returncode == code, out
    return out

  def asked(self) -> list[list[str]]:
    """The commands of gcloud so far."""
    file = self.folder / 'asked.jsonl'
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

  def python(self, host: int) -> list[list[str]]:
    """The arguments of every python that a host has run."""
    lines = (self.folder / f'host{host}' / 'asked').read_text().splitlines()
    return [line.split('\0')[:-1] for line in lines]

  def fault(self, on: str, left: int = 1, *, code: int | str = 1, error: str = '', late=False, of_host=False) -> None:
    """Let the next `left` commands that contain `on` fail, or hang.

    Args:
      late: after the command was carried out.
      of_host: until the TPU is deleted.
    """
    file = self.folder / f'fault{len(list(self.folder.glob("fault*")))}'
    plan = {'on': on, 'left': left, 'code': code, 'error': error, 'late': late, 'of_host': of_host}
    file.with_suffix('.new').write_text(json.dumps(plan))
    file.with_suffix('.new').rename(file)

  def quick(self) -> None:
    """Let sleep take no time, date show the sum of the sleeps, and timeout end a planned fault that hangs."""
    for name, text in CLOCK.items():
      (self.script.parents[2] / 'tools' / name).write_text('#!/usr/bin/env bash\n' + text)
      (self.script.parents[2] / 'tools' / name).chmod(0o755)
    self.env['CLOUD'] = str(self.folder)

  def slept(self) -> list[int]:
    file = self.folder / 'slept'
    return [int(line) for line in file.read_text().split()] if file.exists() else []

  def of_kind(self, verb: str) -> list[list[str]]:
    return [words for words in self.asked() if verb in words]

  def wait_for(self, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true():
      assert time.monotonic() < deadline
      time.sleep(0.02)

  def trained(self, host: int = 0) -> int:
    """How often training began on a host, as it is now."""
    file = self.folder / f'host{host}' / 'asked'
    return sum('train' in words for words in self.python(host)) if file.exists() else 0


@pytest.fixture
def cloud(tmp_path: pathlib.Path):
  cloud = Cloud(tmp_path)
  yield cloud
  (cloud.folder / 'end').write_text('0')  # ends what a test has left running
  deadline = time.monotonic() + 10
  while any(processes(cloud)) and time.monotonic() < deadline:
    time.sleep(0.05)


def processes(cloud: Cloud) -> list[str]:
  """The ids of the runs that are going on."""
  ids = [file.read_text().strip() for file in cloud.folder.glob('host*/plm_jax_run/process')]
  return [number for number in ids if pathlib.Path('/proc', number).exists()]


TPU = ('one', '--zone=us-west4-a', '--type=v5litepod-16', '--poll=1')
RUN = ('--', '--config=experiments/bert/base.py', '--workdir=gs://bucket/run')
SHARED, COMPILED = '--shared=gs://bucket/plm_jax/stores', '--compile_cache=gs://bucket/plm_jax/compiled'
VARIANTS = {
  'queued': (),
  'spot': ('--spot', '--project=mine', '--internal_ip', '--create_flag=--network=net'),
  'slices': ('--slices=2', '--spot'),
  'direct': ('--direct', '--spot'),
}
COMMANDS = ('up', 'state', 'stop', 'fetch', 'delete')


def dry(cloud: Cloud, command: str, *flags: str) -> list[list[str]]:
  """The commands that a dry run prints."""
  before = len(cloud.asked())
  process = subprocess.run(
    ['bash', str(cloud.script), command, *TPU, '--dry_run', *flags, *RUN],
    cwd=cloud.folder,
    env={**cloud.env, 'PATH': os.environ['PATH']},
    capture_output=True,
    text=True,
    check=False,
  )
  assert process.returncode == 0, process.stderr
  assert len(cloud.asked()) == before
  return [shlex.split(line) for line in process.stdout.splitlines()]


def only_changes(commands: list[list[str]]) -> list[list[str]]:
  """Those that do something: states are asked for as often as it takes."""
  return [words for words in commands if words[0] == 'gcloud' and 'describe' not in words]


@pytest.mark.parametrize('variant', VARIANTS)
def test_a_dry_run_prints_what_a_run_does(cloud: Cloud, variant: str, tmp_path: pathlib.Path) -> None:
  """And Google's own parser can read it."""
  flags = VARIANTS[variant]
  (cloud.folder / 'end').write_text('0')
  printed = [words for command in COMMANDS for words in dry(cloud, command, *flags)]
  for command in COMMANDS:
    cloud.run(command, *TPU, *flags, *RUN)
  printed_changes, done = only_changes(printed), only_changes(cloud.asked())
  if variant == 'slices':  # which are asked at once
    assert sorted(printed_changes) == sorted(done)
    assert all(words[3] == 'tpu-vm' for words in done if words[4] in ('ssh', 'scp'))
    assert [sum(name in words for words in done) for name in ('one-0', 'one-1')] == [7, 5]
  else:
    assert printed_changes == done
  assert len(printed_changes) == (17 if variant == 'slices' else 10)
  assert {tuple(words) for words in printed if 'describe' in words} <= {tuple(words) for words in cloud.asked()}
  commands = [*cloud.asked(), *dry(cloud, 'tail', *flags), *dry(cloud, 'fetch', '--without_checkpoints')]
  check_by_gcloud(sorted({shlex.join(words) for words in commands if words[0] == 'gcloud'}), tmp_path)


def check_by_gcloud(commands: list[str], folder: pathlib.Path) -> None:
  if shutil.which('gcloud') is None:
    pytest.skip('gcloud is not installed')
  assert all(found := lint(commands, folder).values()), found
  changed = [text.replace('--zone', '--zones') for text in commands if '--zone' in text]
  assert changed
  assert not any(lint(changed, folder).values())


def lint(commands: list[str], folder: pathlib.Path) -> dict[str, bool]:
  """Whether gcloud can read each command; it runs none of them, and asks nobody."""
  (folder / 'commands.json').write_text(json.dumps([{'command_string': text} for text in commands]))
  settings = {'CLOUDSDK_CONFIG': str(folder), 'CLOUDSDK_CORE_DISABLE_USAGE_REPORTING': '1'}
  words = ['gcloud', 'meta', 'lint-gcloud-commands', f'--commands-file={folder / "commands.json"}', '--quiet']
  done = subprocess.run(words, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
  if done.returncode or not done.stdout:
    pytest.skip(f'this gcloud cannot check commands: {done.stderr[:200]}')
  found = json.loads(done.stdout)
  assert len(found) == len(commands)
  return {one['command_string']: one['success'] for one in found}


def test_arguments_reach_every_host_as_they_were_given(cloud: Cloud) -> None:
  strange = ['--config.log=["x", \'y\']', '--config.note=$HOME `a` "b" \\ *', "--config.data.path=it's here"]
  cloud.run('up', *TPU, "--env=GREETING=it's $me", *RUN, *strange)
  for host in (0, 1):
    cloud.wait_for(lambda host=host: (cloud.folder / f'host{host}' / 'greetings').exists())
    train, rest = ['-m', 'plm_jax', 'train', *RUN[1:], *strange, COMPILED], cloud.python(host)
    config, workdir = [RUN[1], *strange], [one for one in RUN if one.startswith('--workdir=')]
    assert rest == [
      ['-m', 'plm_jax', 'prepare', *config, SHARED],
      ['-m', 'plm_jax', 'doctor', *config, *workdir],
      train,
    ]
    assert (cloud.folder / f'host{host}' / 'greetings').read_text() == "it's $me\n"
  unpacked = cloud.folder / 'host0' / 'plm_jax'
  assert (unpacked / 'launch' / 'tpu_vm.sh').exists()
  assert not (unpacked / 'not for git').exists()


def test_what_is_changed_is_copied_and_what_is_deleted_is_not_missed(cloud: Cloud) -> None:
  checkout = cloud.script.parent.parent
  (checkout / 'experiments' / 'bert' / 'large.py').write_text('')
  (checkout / 'experiments' / 'a name.py').write_text('before')
  subprocess.run(['git', '-C', str(checkout), 'add', '.'], check=True)
  (checkout / 'experiments' / 'bert' / 'large.py').unlink()
  (checkout / 'experiments' / 'a name.py').write_text('after')
  cloud.run('create', *TPU)
  cloud.run('install', *TPU)
  unpacked = cloud.folder / 'host1' / 'plm_jax' / 'experiments'
  assert (unpacked / 'a name.py').read_text() == 'after'
  assert [file.name for file in (unpacked / 'bert').iterdir()] == ['base.py']


def test_a_config_that_would_not_be_copied_costs_no_tpu(cloud: Cloud) -> None:
  (cloud.script.parent.parent / 'mine.py').write_text('')
  for config in ('mine.py', './mine.py:quick', './/mine.py', '././mine.py'):
    assert 'git add mine.py' in cloud.run('up', *TPU, '--', f'--config={config}', '--workdir=gs://b/x', code=2)
  assert 'no such file' in cloud.run(
    'up', *TPU, '--', '--config=./experiments/bert/bass.py', '--workdir=gs://b/x', code=2
  )
  for config, said in (
    ('experiments/bert', 'no such file'),
    (f'{cloud.script.parent.parent}/experiments/bert/base.py', '--config=experiments/bert/base.py'),
  ):
    assert said in cloud.run('up', *TPU, '--', f'--config={config}', '--workdir=gs://b/x', code=2)
  assert not cloud.asked()


def test_a_slice_that_fails_is_not_passed_over(cloud: Cloud) -> None:
  flags = [*TPU, '--slices=2']
  cloud.run('create', *flags)
  (cloud.folder / 'host0').write_text('a file where the first slice has its home')
  cloud.run('install', *flags, code=1)
  (cloud.folder / 'host0').unlink()
  (cloud.folder / 'host2').write_text('and the second')
  cloud.run('install', *flags, code=1)
  (cloud.folder / 'host2').unlink()
  cloud.run('install', *flags)


def test_every_command_may_be_repeated(cloud: Cloud) -> None:
  cloud.run('up', *TPU, *RUN)
  said = cloud.run('up', *TPU, *RUN)
  assert 'one exists (ACTIVE)' in said
  assert said.count('running (process') == 2
  assert cloud.trained() == cloud.trained(1) == 1
  assert cloud.run('state', *TPU) == 'TPU: ACTIVE\nrun: running\n'
  for _ in range(2):
    cloud.run('stop', *TPU)
    assert cloud.run('state', *TPU).splitlines()[1] == 'run: ended 3'
  cloud.run('delete', *TPU)
  assert 'there is no one in us-west4-a' in cloud.run('delete', *TPU)
  assert len(cloud.of_kind('create')) == len(cloud.of_kind('delete')) == 1


def test_what_cannot_be_asked_is_not_gone(cloud: Cloud) -> None:
  cloud.run('create', *TPU)
  (cloud.folder / 'broken').touch()
  said = cloud.run('delete', *TPU, code=None)
  assert 'PERMISSION_DENIED' in said
  assert 'there is no' not in said
  assert (cloud.folder / 'state').exists()


@pytest.mark.parametrize(
  'variant', ['spot', *(pytest.param(name, marks=pytest.mark.slow) for name in ('slices', 'direct'))]
)
def test_watch_goes_on_after_a_preemption_and_ends_with_the_run(cloud: Cloud, variant: str) -> None:
  state = 'PREEMPTED' if variant == 'direct' else 'SUSPENDED'
  watch = cloud.start('watch', *TPU, *VARIANTS[variant], '--delete', *RUN)
  cloud.wait_for(lambda: cloud.trained() == 1)
  first = processes(cloud)
  (cloud.folder / 'state').write_text(state)
  for number in first:
    os.kill(int(number), 9)
  cloud.wait_for(lambda: len(cloud.of_kind('create')) == 2 and cloud.trained() == 1)
  (cloud.folder / 'end').write_text('0')
  said = watch.communicate(timeout=60)[0]
  assert watch.returncode == 0, said
  assert 'try 1 of 20' in said
  assert len(cloud.of_kind('delete')) == 2
  assert not (cloud.folder / 'state').exists()


def test_watch_starts_again_what_was_stopped_or_crashed(cloud: Cloud) -> None:
  """A run that a notice of maintenance has stopped, and one whose host was restarted under it."""
  watch = cloud.start('watch', *TPU, *RUN)
  cloud.wait_for(lambda: cloud.trained() == 1 and cloud.trained(1) == 1)
  for number in processes(cloud):
    os.kill(int(number), 15)
  cloud.wait_for(lambda: cloud.trained() == 2 and cloud.trained(1) == 2)
  for host in cloud.folder.glob('host*'):  # the wrapper that notes the exit code dies with its host
    parent = pathlib.Path('/proc', (host / 'plm_jax_run' / 'process').read_text().strip(), 'stat')
    os.kill(int(parent.read_text().split()[3]), 9)
  for number in processes(cloud):
    os.kill(int(number), 9)
  cloud.wait_for(lambda: cloud.trained() == 3)
  (cloud.folder / 'end').write_text('0')
  said = watch.communicate(timeout=60)[0]
  assert watch.returncode == 0, said
  assert 'ended 3: try 1 of 20' in said
  assert 'lost: try 2 of 20' in said
  assert len(cloud.of_kind('create')) == 1
  assert 'bash launch/tpu_vm.sh delete one' in said


def test_data_is_prepared_once_before_the_tpu(cloud: Cloud) -> None:
  """Also where the TPU is preempted; hosts copy."""
  cloud.quick()
  watch = cloud.start('watch', *TPU, '--delete', *RUN)
  cloud.wait_for(lambda: cloud.trained() == 1)
  assert len(cloud.of_kind('create')) == 1
  (cloud.folder / 'state').write_text('SUSPENDED')
  for number in processes(cloud):
    os.kill(int(number), 9)
  cloud.wait_for(lambda: len(cloud.of_kind('create')) == 2 and cloud.trained() == 1)
  assert 'prepare' in cloud.python(0)[0] and SHARED in cloud.python(0)[0]
  (cloud.folder / 'end').write_text('0')
  said = watch.communicate(timeout=60)[0]
  assert watch.returncode == 0, said
  assert (cloud.folder / 'here').read_text() == f'-m plm_jax prepare {RUN[1]} {SHARED}\n'
  assert str(cloud.folder / 'state') not in said  # which that python lists: there was no TPU yet


def test_without_prepared_data_there_is_no_tpu(cloud: Cloud) -> None:
  (cloud.folder / 'code_here').write_text('2')
  cloud.run('up', *TPU, *RUN, code=2)
  assert 'could not be started' in cloud.run('watch', *TPU, *RUN, code=1)
  assert not cloud.of_kind('create')


@pytest.mark.parametrize('ends', [0, 3])
def test_a_cpu_machine_prepares_where_this_one_cannot(cloud: Cloud, ends: int, tmp_path: pathlib.Path) -> None:
  shutil.rmtree(cloud.script.parents[1] / '.venv')
  (cloud.folder / 'code_of_others').write_text(str(ends))
  cloud.run('up', *TPU, '--project=mine', *RUN, code=ends)
  asked = [words[2:5] if words[2] == 'tpus' else words[1:4] for words in cloud.asked() if 'describe' not in words]
  vm = [['compute', 'instances', 'create'], *(['compute', verb, 'one-prepare'] for verb in ('ssh',)),
        ['compute', 'scp'], *[['compute', 'ssh', 'one-prepare']] * 2, ['compute', 'instances', 'delete']]  # fmt: skip
  assert [words[: len(one)] for words, one in zip(asked, vm, strict=False)] == vm
  assert len(asked) == (len(vm) if ends else 12)  # the TPU comes last
  assert not (cloud.folder / 'vm').exists()
  check_by_gcloud([shlex.join(words) for words in cloud.asked() if words[2] != 'tpus'], tmp_path)


def test_hosts_prepare_where_nothing_is_shared(cloud: Cloud) -> None:
  cloud.run('up', *TPU, '--shared=none', '--compile_cache=none', *RUN)
  cloud.wait_for(lambda: cloud.trained() == 1)
  prepared, _, trained = cloud.python(0)
  assert prepared == ['-m', 'plm_jax', 'prepare', RUN[1]]
  assert trained == ['-m', 'plm_jax', 'train', *RUN[1:]]
  assert not (cloud.folder / 'here').exists()


LOGIN = 'ERROR: (gcloud) There was a problem refreshing your current auth tokens: invalid_grant: Bad Request'
NO_CAPACITY = 'ERROR: (gcloud) RESOURCE_EXHAUSTED: no more capacity in the zone'
# name -> planned faults, exit code of the run, exit code of watch, what is said, number of commands
FAULTS: dict[str, tuple[list[dict], int, int, list[str], dict[str, int]]] = {
  'scp fails': ([{'on': 'scp', 'code': 255}], 0, 0, ['none: try 1 of 7'], {'create': 1, 'delete': 1}),
  'pip fails twice': (
    [{'on': 'worker.sh install', 'left': 2}], 0, 0, ['that failed', 'try 2 of 7'], {'create': 1, 'delete': 1},
  ),
  'pip never works on the first TPU': (
    [{'on': 'worker.sh install', 'left': 99, 'of_host': True}], 0, 0,
    ['nothing could be started on it'], {'create': 2, 'delete': 2},
  ),
  'pip never works': (
    [{'on': 'worker.sh install', 'left': 99}], 0, 1, ['none; all 7 tries are used'], {'create': 2, 'delete': 2},
  ),
  'no ssh while ready': (
    [{'on': 'ssh', 'left': 999, 'code': 255, 'of_host': True}], 0, 0,
    ['does not answer ssh', 'no answer by ssh for 15 minutes'], {'create': 2, 'delete': 2},
  ),
  'the login expires': (
    [{'on': 'install', 'code': 1}, {'on': 'value(state', 'left': 4, 'error': LOGIN}], 0, 0,
    ['gcloud auth login', 'the state of the TPU is unknown'], {'create': 1, 'delete': 1},
  ),
  'no login from the start': (
    [{'on': '', 'left': 9999, 'error': LOGIN}], 0, 1,
    ['gcloud auth login', 'not answered for 15 minutes', 'may cost money'], {'create': 0},
  ),
  'gcloud hangs while it is asked': (
    [{'on': 'describe', 'code': 'hangs'}], 0, 0, ['within 120 s: gcloud compute tpus queued-resources describe'],
    {'create': 1, 'delete': 1},
  ),
  'gcloud hangs while it installs': (
    [{'on': 'worker.sh install', 'code': 'hangs'}], 0, 0, ['no answer within 3600 s'], {'create': 1, 'delete': 1},
  ),
  'create hangs, and the TPU comes': (
    [{'on': ' create', 'code': 'hangs', 'late': True}], 0, 0, ['no answer within 900 s', 'one exists (ACTIVE)'],
    {'create': 1, 'delete': 1},
  ),
  'no capacity for long': (
    [{'on': ' create', 'left': 6, 'error': NO_CAPACITY}], 0, 0, ['away: try 6 of 7'], {'create': 7, 'delete': 1},
  ),
  'no capacity at all': (
    [{'on': ' create', 'left': 99, 'error': NO_CAPACITY}], 0, 1,
    ['away; all 7 tries are used'], {'create': 8, 'delete': 0},
  ),
  'arguments that gcloud refuses': (
    [{'on': ' create', 'left': 99, 'error': 'ERROR: INVALID_ARGUMENT: type'}], 0, 1, ['would not help'], {'create': 1},
  ),
  'delete fails': ([{'on': ' delete', 'left': 3}], 0, 0, [], {'create': 1, 'delete': 4}),
  'delete never works': ([{'on': ' delete', 'left': 99}], 0, 1, ['one could not be deleted'], {'delete': 5}),
  'doctor refuses': ([{'on': 'doctor', 'code': 2}], 0, 1, ['could not be started'], {'create': 1, 'delete': 1}),
  'training diverges': ([], 4, 4, ['exit code 4'], {'create': 1, 'delete': 1}),
  'the run always crashes': ([], 134, 1, ['ended 134; all 7 tries'], {'create': 1, 'delete': 1}),
  'start is not answered': ([{'on': 'worker.sh start', 'code': 255, 'left': 2}], 0, 0, [], {'create': 1}),
}  # fmt: skip


@pytest.mark.parametrize('name', FAULTS)
def test_watch_leaves_no_idle_tpu(cloud: Cloud, name: str) -> None:
  faults, ends, code, says, counts = FAULTS[name]
  cloud.quick()
  for fault in faults:
    cloud.fault(**fault)
  (cloud.folder / 'end').write_text(str(ends))
  said = cloud.run('watch', *TPU, '--poll=100', '--tries=7', '--delete', *RUN, code=code)
  assert all(words in said for words in says), said
  assert not re.search(r'\[tpu_vm\] [,;]', said)
  assert {verb: len(cloud.of_kind(verb)) for verb in counts} == counts, said
  assert (cloud.folder / 'state').exists() == (name == 'delete never works')


def test_watch_pauses_longer_while_there_is_no_capacity(cloud: Cloud) -> None:
  cloud.quick()
  cloud.fault(' create', 99, error=NO_CAPACITY)
  said = cloud.run('watch', 'one', '--zone=us-west4-a', '--type=v5litepod-16', '--tries=9', *RUN, code=1)
  assert cloud.slept() == [30, 60, 120, 240, 480, 900, 900, 900, 900]
  assert 'costs money' not in said  # nothing was created
  assert len(cloud.of_kind('create')) == 10


def test_watch_takes_over_and_replaces_a_tpu_that_went_silent(cloud: Cloud) -> None:
  """Faults while a run trains: no ssh, then a login that has expired while the TPU is preempted."""
  cloud.quick()
  watch = cloud.start('watch', *TPU, *RUN)
  cloud.wait_for(lambda: cloud.trained() == 1)
  watch.kill()
  watch.communicate()
  asked = len(cloud.asked())
  watch = cloud.start('watch', *TPU, '--poll=100', '--delete', *RUN)
  cloud.wait_for(lambda: len(cloud.asked()) > asked + 3)
  assert not any('scp' in words for words in cloud.asked()[asked:])
  cloud.fault('ssh', 9999, code=255, of_host=True)
  cloud.wait_for(lambda: len(cloud.of_kind('create')) == 2 and cloud.trained() == 1)
  cloud.fault('', 9, error=LOGIN)
  (cloud.folder / 'state').write_text('SUSPENDED')
  for number in processes(cloud):
    os.kill(int(number), 9)
  cloud.wait_for(lambda: len(cloud.of_kind('create')) == 3 and cloud.trained() == 1)
  (cloud.folder / 'end').write_text('0')
  said = watch.communicate(timeout=60)[0]
  assert watch.returncode == 0, said
  assert said.count('run gcloud auth login') >= 8
  assert 'away: try 2 of 20' in said
  assert not (cloud.folder / 'state').exists()


def test_a_login_that_never_returns_ends_watch(cloud: Cloud) -> None:
  cloud.quick()
  watch = cloud.start('watch', *TPU, '--poll=3000', *RUN)
  cloud.wait_for(lambda: cloud.trained() == 1)
  cloud.fault('describe', 999, error=LOGIN)
  said = watch.communicate(timeout=60)[0]
  assert watch.returncode == 1, said
  assert 'not answered for 24 hours' in said
  assert 'costs money until you delete it' in said


def test_a_folder_on_the_hosts_is_not_deleted_with_an_unfinished_run(cloud: Cloud) -> None:
  cloud.quick()
  (cloud.folder / 'end').write_text('4')
  cloud.run('watch', *TPU, '--delete', *RUN[:2], '--workdir=runs/here', code=4)
  assert not cloud.of_kind('delete')


@pytest.mark.parametrize(('ends', 'code', 'starts'), [(2, 2, 1), (4, 4, 1), (134, 1, 3)])
def test_watch_does_not_repeat_for_ever(cloud: Cloud, ends: int, code: int, starts: int) -> None:
  (cloud.folder / 'end').write_text(str(ends))
  said = cloud.run('watch', *TPU, '--tries=2', *RUN, code=code)
  assert cloud.trained() == starts
  assert ('(--tries)' in said) == (ends == 134)


def test_watch_ends_where_the_hosts_do_not_agree(cloud: Cloud) -> None:
  (cloud.folder / 'code_of_others').write_text('2')
  said = cloud.run('watch', *TPU, *RUN, code=1)
  assert 'could not be started' in said
  assert cloud.trained() == 0


def test_fetch_copies_from_a_host_where_there_is_no_bucket(cloud: Cloud) -> None:
  cloud.run('up', *TPU, '--', '--config=c.py', '--workdir=runs/mine')
  (cloud.folder / 'host0' / 'plm_jax' / 'runs' / 'mine').mkdir(parents=True)
  (cloud.folder / 'host0' / 'plm_jax' / 'runs' / 'mine' / 'result.json').write_text('{}')
  cloud.run('fetch', *TPU, '--', '--workdir=runs/mine')
  assert (cloud.folder / 'runs' / 'fetched' / 'one' / 'mine' / 'result.json').exists()
  (cloud.folder / 'host0' / 'runs' / 'at home').mkdir(parents=True)
  cloud.run('fetch', *TPU, '--to=here', '--', '--workdir=~/runs/at home')
  assert (cloud.folder / 'here' / 'at home').is_dir()


@pytest.mark.parametrize(
  ('words', 'fix'),
  [
    ([], 'name a command'),
    (['launch', 'one'], 'name a command'),
    (['up'], 'name the TPU'),
    (['up', '--zone=a'], 'name the TPU'),
    (['up', 'One', '--zone=a'], 'lower-case'),
    (['create', 'one', '--type=v4-8'], '--zone=ZONE'),
    (['create', 'one', '--zone=a'], '--type=TYPE'),
    (['create', 'one', '--zone=a', '--type=tpu7x-8'], 'gke.yaml'),
    (['create', 'one', '--zone=a', '--type=v4-8', '--direct', '--slices=2'], '--direct'),
    (['create', 'one', '--zone=a', '--type=v4-8', '--slices=0'], '--slices=0'),
    (['create', 'one', '--zone=a', '--type=v4-8', '--sport'], '--sport'),
    (['create', 'one', '--zone=a', '--type=v4-8', '--config=c.py'], 'after --'),
    (['create', 'one', '--zone', 'a', '--type=v4-8'], '--zone=VALUE'),
    (['create', 'one', '--zone=a', '--type=v4-8', '--env=FOO'], '--env=NAME=VALUE'),
    (['up', 'one', '--zone=a', '--type=v4-8'], '-- --config='),
    (
      ['up', 'one', '--zone=a', '--type=v4-8', '--', '--config=experiments/bert/bass.py:quick', '--workdir=gs://b/x'],
      'bass.py: there is no such',
    ),
    (['up', 'one', '--zone=a', '--type=v4-8', '--', '--config=c.py'], '--workdir='),
    (['fetch', 'one', '--zone=a'], '-- --workdir='),
    (['up', 'one', '--zone=a', '--type=v4-8', '--prepare_on=vm', '--', '--config=c.py', '--workdir=r'], '--shared='),
    (['up', 'one', '--zone=a', '--type=v4-8', '--in_place', '--', '--config=c.py', '--workdir=r'], 'needs --shared='),
    (['up', 'one', '--zone=a', '--type=v4-8', '--prepare_on=moon', '--', '--config=c.py'], '=here'),
  ],
)
def test_wrong_usage_is_explained(cloud: Cloud, words: list[str], fix: str) -> None:
  assert fix in cloud.run(*words, code=2)
  assert not cloud.asked()


@pytest.mark.parametrize('words', [['--help'], ['-h'], ['up', 'one', '--help']])
def test_help_lists_commands_and_flags(cloud: Cloud, words: list[str]) -> None:
  done = subprocess.run(['bash', cloud.script, *words], capture_output=True, text=True, check=False)
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout.startswith('Train on a Cloud TPU')
  assert '--dry_run' in done.stdout.splitlines()[-1]
  assert not cloud.asked()


def test_a_worker_explains_itself(cloud: Cloud) -> None:
  done = subprocess.run(
    ['bash', cloud.script.parent / 'tpu_worker.sh', 'dance'], capture_output=True, text=True, check=False
  )
  assert (done.returncode, 'start, state' in done.stderr) == (2, True)


def test_the_scripts_are_sound() -> None:
  """shellcheck, where it is installed."""
  if shutil.which('shellcheck') is None:
    pytest.skip('shellcheck is not installed')
  scripts = [conftest.ROOT / 'launch' / name for name in ('tpu_vm.sh', 'tpu_worker.sh', 'slurm.sh')]
  done = subprocess.run(['shellcheck', *scripts], capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout


def test_the_page_names_commands_that_exist(cloud: Cloud, tmp_path: pathlib.Path) -> None:
  """launch/README.md: its calls of the script as dry runs, those of gcloud by gcloud's parser, its files."""
  page = (conftest.ROOT / 'launch' / 'README.md').read_text()
  blocks = '\n'.join(re.findall(r'^```\n(.*?)^```', page, re.MULTILINE | re.DOTALL)).replace('\\\n', ' ')
  lines = [
    shlex.split(line, comments=True) for line in blocks.splitlines() if line.startswith(('bash launch/tpu', 'gcloud'))
  ]
  ours = [words for words in lines if words[1] == 'launch/tpu_vm.sh']
  assert {words[2] for words in ours} == {'up', 'tail', 'fetch', 'watch', 'delete'}
  for words in ours:
    cloud.run(*words[2:4], '--dry_run', *words[4:])
  assert not cloud.asked()
  for target in re.findall(r'\]\(([^)#:]+)\)', page):
    assert (conftest.ROOT / 'launch' / target).exists(), target
  assert all(len(line) <= 120 for line in page.splitlines() if not line.startswith('|'))
  theirs = [shlex.join(words) for words in lines if words[0] == 'gcloud' and words[1] != 'services']
  check_by_gcloud([*theirs, 'gcloud compute tpus queued-resources list --zone=us-west4-a'], tmp_path)
