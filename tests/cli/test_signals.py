"""Signals are never lost and always answered, from the first line of a command on."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pytest

from plm_jax import __main__
from plm_jax.cli import signals
from plm_jax.commands import vocab as vocabularies
from plm_jax.config import signatures
from plm_jax.data.corpora import local, records
from plm_jax.data.rows import order, store
from plm_jax.text import recipe, tokenizer
from plm_jax.training import parts
from tests import conftest, runs

BOTH = pytest.mark.parametrize('number', signals.SIGNALS, ids=lambda number: number.name)
READY = b'ready\n'
STAGES, SECONDS = 12, 15.0  # signals, spread over the time in which a command begins


def text_of(module: str) -> str:
  """Read the source of a command."""
  return (conftest.ROOT / signatures.path(module)).read_text()


# The handlers, without jax.


def script(body: str) -> subprocess.Popen[str]:
  """Start a program that installs the handlers, prints 'ready' and runs `body`."""
  text = 'from plm_jax.cli import command, signals\nsignals.begin()\nimport hashlib, os, signal, sys, time\n' + (
    "print('ready', flush=True)\n"
  )
  process = subprocess.Popen(
    [sys.executable, '-c', text + textwrap.dedent(body)],
    cwd=conftest.ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  assert process.stdout is not None
  # Not by readline, which takes all that has come: `communicate` would not find the rest.
  assert b''.join(os.read(process.stdout.fileno(), 1) for _ in READY) == READY
  return process


@BOTH
def test_a_signal_only_sets_a_flag(number: signal.Signals) -> None:
  process = script("""
    def main():
      for _ in range(200):  # as an import that loses what is raised in it
        try:
          time.sleep(0.01)
        except BaseException:
          print('raised', flush=True)
        if signals.asked():
          print('asked', flush=True)
          signals.check()
      return 0
    sys.exit(command.run(main))
  """)
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out) == (130, 'asked\n')
  assert re.fullmatch(rf'{number.name}: .*\binterrupted .*', err, re.DOTALL)


@BOTH
def test_a_second_one_ends_the_process_while_a_library_computes(number: signal.Signals) -> None:
  process = script("""
    hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)  # minutes in which nothing of Python runs in the main thread
  """)
  began = time.monotonic()
  process.send_signal(number)
  assert process.stderr is not None
  assert f'{number.name}: ' in process.stderr.readline()  # at once, too
  time.sleep(3 * signals.ONE)
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out) == (130, '')
  assert err.startswith(f'{number.name}: ') and err.count('\n') == 1
  assert time.monotonic() - began < 20


def test_one_request_may_come_twice() -> None:
  process = script("""
    time.sleep(1)
    sys.exit(3 if signals.asked() else 0)
  """)
  for _ in range(3):  # as `timeout` sends it, to the process and to its group
    process.send_signal(signal.SIGTERM)
  _, err = process.communicate(timeout=60)
  assert process.returncode == 3
  assert err.count('SIGTERM') == 1


def test_children_keep_signals_of_their_own() -> None:
  process = script("""
    child = os.fork()
    if not child:
      time.sleep(30)
      os._exit(0)
    time.sleep(0.3)
    os.kill(child, signal.SIGTERM)
    status = os.waitpid(child, 0)[1]
    time.sleep(0.3)
    print(os.WTERMSIG(status), signals.asked())
  """)
  out, err = process.communicate(timeout=60)
  assert (out, err) == ('15 False\n', '')


@BOTH
def test_the_first_one_ends_a_command_that_never_asks(number: signal.Signals) -> None:
  process = script(f"""
    signals.end()

    def main():
      with signals.caught():
        signals.notice()
        assert signals.asked()  # this one asks
      print('held back')
      os.kill(os.getpid(), {number})
      time.sleep(60)

    command.run(main)
  """)
  printed, said = process.communicate(timeout=30)
  assert (process.returncode, said, printed) == (130, f'{number.name}: interrupted\n', 'held back\n')


def test_signals_are_taken_before_a_command_is_imported() -> None:
  text = text_of('__main__')
  first = text.partition('\nfrom ')[2]
  assert re.match(r"plm_jax\.cli import signals\n\nif __name__ == '__main__':\n  signals\.begin\(", first)
  assert not re.search(r'^import ', text.partition('signals.begin(')[0], re.MULTILINE)


@pytest.mark.parametrize('name', __main__.commands().values())
def test_there_is_one_way_to_run_a_command(name: str) -> None:
  assert '__main__' not in text_of(name)


def test_what_was_taken_is_given_back() -> None:
  before = [signal.getsignal(number) for number in signals.SIGNALS]
  with signals.caught():
    with signals.caught():
      signal.raise_signal(signal.SIGINT)
    assert signals.asked()
    with pytest.raises(signals.Interrupted):
      signals.check()
  assert [signal.getsignal(number) for number in signals.SIGNALS] == before
  assert signal.set_wakeup_fd(-1) == -1
  with signals.caught():
    assert not signals.asked()


# While data is prepared.


@BOTH
def test_a_signal_is_raised_where_data_is_prepared(number: signal.Signals) -> None:
  process = script("""
    def main():
      with signals.raising():
        time.sleep(600)
    sys.exit(command.run(main))
  """)
  began = time.monotonic()
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out) == (130, '')
  assert err.endswith('interrupted before there was anything new to save\n') and 'Traceback' not in err
  assert time.monotonic() - began < 10


def test_what_swallows_it_loses_nothing_and_cleaning_up_is_not_interrupted() -> None:
  done = []
  with signals.caught():
    with pytest.raises(signals.Interrupted), signals.raising():
      with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
      signal.raise_signal(signal.SIGINT)  # of the same request: raised once
      done.append('body')
    with pytest.raises(signals.Interrupted), signals.raising():
      done.append('not begun')
  with signals.caught():
    signal.raise_signal(signal.SIGTERM)  # outside it sets a flag alone
    assert signals.asked()
  assert done == ['body']


def test_a_signal_in_a_destructor_is_raised_behind_it() -> None:
  """Raise a signal again after the interpreter dropped it.

  It drops exceptions of destructors and of jax's garbage collector callback.
  """

  class Dies:
    def __del__(self) -> None:
      signal.raise_signal(signal.SIGINT)

  with signals.caught():
    hook = sys.unraisablehook
    began = time.monotonic()
    with pytest.raises(signals.Interrupted), signals.raising():
      Dies()
      time.sleep(60)
    assert time.monotonic() - began < 30
    assert sys.unraisablehook is hook
  with signals.caught(), pytest.raises(signals.Interrupted), signals.raising():
    Dies()  # the body ends before it is raised again: asked, as ever
  time.sleep(3 * signals.ONE)  # no alarm is left


def test_what_computes_outside_the_interpreter_is_not_waited_for() -> None:
  process = script("""
    def main():
      with signals.raising():
        print(signals.waiting(lambda: 5), flush=True)
        try:
          signals.waiting(lambda: {}['x'])
        except KeyError as error:
          print(error, flush=True)
        signals.waiting(lambda: hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9))
    command.leave(command.run(main))
  """)
  assert process.stdout is not None and [process.stdout.readline() for _ in range(2)] == ['5\n', "'x'\n"]
  began = time.monotonic()
  process.send_signal(signal.SIGINT)
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out) == (130, '') and 'Traceback' not in err
  assert time.monotonic() - began < 10


def stop_at(count: int, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
  """Send a signal to this process at a method's `count`th call."""
  method, left = getattr(owner, name), [count]

  def called(*arguments: Any, **keywords: Any) -> Any:
    left[0] -= 1
    if not left[0]:
      signal.raise_signal(signal.SIGTERM)
    return method(*arguments, **keywords)

  monkeypatch.setattr(owner, name, called)


@pytest.mark.parametrize('rows', ['stream', 'pairs', 'labelled'])
@pytest.mark.parametrize(
  ('owner', 'name'),
  [(records.Records, '__getitem__'), (tokenizer.Vocab, 'encode_batch'), (local.File, 'lines'), (order, 'serve')],
)
def test_rows_are_not_made_to_their_end(
  rows: str, owner: Any, name: str, data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """Interrupt the construction of a source; the next call starts again."""
  settings = runs.settings('classify' if rows == 'labelled' else 'mlm', data)
  path = settings['data']['path']
  block = {'name': rows, 'path': path, 'length': 32, 'batch_size': 8, 'cache': str(tmp_path)}
  vocab = parts.make_vocab(settings)
  whole = parts.make_source({**block, 'cache': str(tmp_path / 'other')}, vocab, seed=1)
  with monkeypatch.context() as patch, signals.caught():
    stop_at(3 if name == '__getitem__' else 1, patch, owner, name)
    with pytest.raises(signals.Interrupted):
      parts.make_source(block, vocab, seed=1)
  again = parts.make_source(block, vocab, seed=1)
  assert again.digest == whole.digest and again.rows == whole.rows


def test_blocks_that_are_tokenised_are_kept(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  settings = runs.settings('mlm', data)
  block, vocab = {**settings['data'], 'cache': str(tmp_path)}, parts.make_vocab(settings)
  whole = parts.make_source({**block, 'cache': str(tmp_path / 'other')}, vocab, seed=1)
  monkeypatch.setattr(store, '_BLOCK_DOCUMENTS', 10)
  with monkeypatch.context() as patch, signals.caught():
    stop_at(4, patch, tokenizer.Vocab, 'encode_batch')
    with pytest.raises(signals.Interrupted, match=r'signal: 30 of 64 documents') as caught:
      parts.make_source(block, vocab, seed=1)
  assert caught.value.exit_code == 3
  texts: list[int] = []
  encode = tokenizer.Vocab.encode_batch
  monkeypatch.setattr(tokenizer.Vocab, 'encode_batch', lambda self, some: texts.append(len(some)) or encode(self, some))
  assert parts.make_source(block, vocab, seed=1).digest == whole.digest
  assert sum(texts) == 34


@pytest.mark.parametrize('kind', recipe.TRAINED)
def test_a_vocabulary_is_not_trained_to_its_end(
  kind: str, data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  if kind == 'sentencepiece':
    pytest.importorskip('sentencepiece')
  words = ['train', f'--source={data / "corpus"}', f'--name={kind}', '--size=420', f'--out={tmp_path / "out"}']
  for count in (3, 70):  # while words are counted, and later
    with monkeypatch.context() as patch, pytest.raises(signals.Interrupted):
      stop_at(count, patch, records.Texts, '__getitem__')
      vocabularies.main([*words, f'--cache={tmp_path / "cache"}'])
    assert not (tmp_path / 'out').exists()
  assert vocabularies.main([*words, f'--cache={tmp_path / "cache"}']) == 0


# The commands.


@pytest.fixture(scope='module')
def commands(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
  """List the arguments of commands that would take hours, by name."""
  folder = tmp_path_factory.mktemp('runs')
  endless = {'steps': 10**6, 'log_every': 1, 'save_every': 10**6, 'eval_every': 10**6, 'best': None}
  config = runs.write_config(folder / 'mlm.json', runs.settings('mlm', data, **endless))
  return {'train': runs.words('train', f'--config={config}', '--workdir={workdir}')}


@pytest.fixture(scope='module')
def more_commands(
  commands: dict[str, list[str]], data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
  """List the arguments of other slow commands.

  One follows an unfinished run, one starts from it.
  """
  folder = tmp_path_factory.mktemp('more')
  begun = folder / 'begun'
  train = [word.replace('{workdir}', str(begun)) for word in commands['train']]
  assert subprocess.run([*train, '--stop_at=1'], cwd=conftest.ROOT, check=False, timeout=240).returncode == 0
  splits = {name: {'data': {'split': name}} for name in ('validation', 'test')}
  changes = {'steps': 10**6, 'init_from': [{'source': str(begun)}], 'eval': splits, 'best': None}
  config = runs.write_config(folder / 'classify.json', runs.settings('classify', data, **changes))
  return {
    **commands,
    'evaluate': runs.words('evaluate', f'--workdir={begun}', '--follow'),
    'sample_efficiency': runs.words(
      'sample_efficiency', f'--config={config}', '--workdir={workdir}', '--sizes=2', '--seeds=1', '--rates=1e-3'
    ),
    'quickstart': runs.words('quickstart', '--workdir={workdir}'),
  }


def takes_signals(process: subprocess.Popen[bytes]) -> bool:
  """Return True if the process has a handler for SIGTERM.

  The interpreter alone handles earlier signals.
  """
  status = pathlib.Path(f'/proc/{process.pid}/status').read_text()
  found = re.search(r'^SigCgt:\s*(\w+)', status, re.MULTILINE)
  return found is not None and bool(int(found[1], 16) >> (signal.SIGTERM - 1) & 1)


def loads_jax(process: subprocess.Popen[bytes]) -> bool:
  return 'jaxlib' in pathlib.Path(f'/proc/{process.pid}/maps').read_text()


def check_stopped(
  command: list[str],
  tmp_path: pathlib.Path,
  number: signal.Signals,
  when: Callable[[subprocess.Popen[bytes]], bool],
  *,
  delay: float = 0.0,
) -> None:
  workdir, output = tmp_path / 'run', tmp_path / 'output'
  words = [word.replace('{workdir}', str(workdir)) for word in command]
  with runs.started(words, log=output) as process:
    runs.wait_until(lambda: takes_signals(process), process=process, log=output)
    runs.wait_until(lambda: when(process), process=process, log=output)
    time.sleep(delay)
    process.send_signal(number)
    code = process.wait(timeout=240)
  said = output.read_text()
  assert f'{number.name}: ' in said
  if code != 3:
    assert code == 130, said
    assert 'interrupted' in said
    assert not list(workdir.glob('checkpoints/*'))
  else:
    assert 'signal' in said
    if result := list(workdir.glob('result.json')):
      step = json.loads(result[0].read_text())['step']
      assert f'signal at step {step}; ' in said
      assert (workdir / 'checkpoints' / str(step)).is_dir()


@pytest.mark.skipif(not os.path.isdir('/proc/self'), reason='looks into /proc')
@pytest.mark.parametrize(('number', 'when'), [(signal.SIGTERM, takes_signals), (signal.SIGINT, loads_jax)])
def test_a_signal_to_a_run_that_begins(
  number: signal.Signals,
  when: Callable[[subprocess.Popen[bytes]], bool],
  commands: dict[str, list[str]],
  tmp_path: pathlib.Path,
) -> None:
  check_stopped(commands['train'], tmp_path, number, when)


NEVER_ASK = [name for name, module in __main__.commands().items() if 'signals.caught()' not in text_of(module)]


@pytest.mark.skipif(not os.path.isdir('/proc/self'), reason='looks into /proc')
@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=[] if name in ('params', 'convert') else [pytest.mark.turns], id=name)
    for name in NEVER_ASK
    if name != 'vectors'  # ends at once: it lists nothing
  ],
)
def test_a_command_that_never_asks_ends_at_once(name: str, tmp_path: pathlib.Path) -> None:
  output = tmp_path / 'output'
  number = signals.SIGNALS[NEVER_ASK.index(name) % 2]
  with runs.started(runs.words(name, *(['--text=a'] if name == 'heads' else []), '--list'), log=output) as process:
    runs.wait_until(lambda: takes_signals(process), process=process, log=output)
    process.send_signal(number)
    assert process.wait(timeout=30) == 130
  assert output.read_text() == f'{number.name}: interrupted\n'


@pytest.mark.slow
@pytest.mark.parametrize('name', ['train', 'evaluate', 'sample_efficiency', 'quickstart'])
def test_a_signal_at_any_moment(name: str, more_commands: dict[str, list[str]], tmp_path: pathlib.Path) -> None:
  for stage in range(STAGES):
    folder = tmp_path / str(stage)
    folder.mkdir()
    number, delay = signals.SIGNALS[stage % 2], SECONDS * stage / STAGES
    check_stopped(more_commands[name], folder, number, takes_signals, delay=delay)


@pytest.fixture(scope='module')
def preparing(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
  """List commands that prepare data for about a minute, by name.

  `{workdir}` is their output folder.
  """
  folder = tmp_path_factory.mktemp('large')
  text = (data / 'corpus' / 'train.txt').read_text()
  (folder / 'train.txt').write_text('\n\n'.join([text] * (80_000_000 // len(text))))
  (folder / 'validation.txt').write_text(text)
  changes = {'data': {'path': str(folder), 'cache': str(folder / 'cache')}}  # of the evaluation; training has its own
  config = runs.write_config(folder / 'mlm.json', runs.settings('mlm', data, **changes))
  vocabulary = [f'--source={folder}', '--size=8000', '--out={workdir}/vocab', '--cache={workdir}/cache']
  kinds = {kind: runs.words('vocab', 'train', f'--name={kind}', *vocabulary) for kind in recipe.TRAINED}
  return {
    **kinds,
    'pydocs': runs.words('data.pydocs', '--cache={workdir}/cache'),
    'train': runs.words(
      'train', f'--config={config}', '--config.data.cache={workdir}/cache', '--workdir={workdir}/run'
    ),
  }


@pytest.mark.slow
@pytest.mark.parametrize('name', [*recipe.TRAINED, 'pydocs', 'train'])
def test_a_signal_while_data_is_prepared(name: str, preparing: dict[str, list[str]], tmp_path: pathlib.Path) -> None:
  for stage in range(5):
    workdir, output = tmp_path / str(stage), tmp_path / f'output-{stage}'
    words = [word.replace('{workdir}', str(workdir)) for word in preparing[name]]
    with runs.started(words, log=output) as process:
      runs.wait_until(lambda process=process: takes_signals(process), process=process, log=output)
      time.sleep(2.0 * stage + (5 if name == 'train' else 0))
      began = time.monotonic()
      process.send_signal(signals.SIGNALS[stage % 2])
      code = process.wait(timeout=60)
    said = output.read_text()
    assert time.monotonic() - began < 20  # of a minute that it would take, and on a busy machine
    assert 'Traceback' not in said and f'{signals.SIGNALS[stage % 2].name}: ' in said
    assert code == 130 or (code == 3 and 'documents' in said)
    assert not (workdir / 'vocab').exists() and not (workdir / 'run' / 'config.json').exists()
    assert not list(workdir.rglob('*.tmp'))


ENDS = """
import time
from plm_jax.cli import signals
signals.begin()
print('begun', flush=True)
for _ in range(600):
  if signals.asked():
    raise SystemExit(3)
  time.sleep(0.1)
"""


@pytest.mark.parametrize('told', [True, False])
def test_a_process_ends_with_the_one_that_started_it_where_it_is_told_to(told):
  """Check that a process ends when its parent does.

  Its stdin closes however the parent ends.
  """
  env = {**os.environ, **({signals.ENDS_WITH_STDIN: '1'} if told else {})}
  words = [sys.executable, '-c', ENDS]
  with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as one:
    assert one.stdout.readline() == b'begun\n'
    one.stdin.close()
    if told:
      assert one.wait(30) == 3
    else:
      with pytest.raises(subprocess.TimeoutExpired):
        one.wait(1)
      one.kill()
