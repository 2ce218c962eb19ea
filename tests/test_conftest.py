"""The choice of long tests, and the texts that other tests read."""

import hashlib
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from plm_jax.core.types import Vocab
from tests import conftest

ROOT = pathlib.Path(__file__).resolve().parent.parent

LONG_TESTS = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize('number', range(80))
def test_long(number): pass

def test_short(): pass
"""


@pytest.fixture
def suite(tmp_path: pathlib.Path) -> Callable[..., list[str]]:
  """A suite of 80 long tests and a short one under this conftest; called, it gives the lines of a run."""
  (tmp_path / 'tests').mkdir()
  for source, text in {'tests/conftest.py': None, 'pyproject.toml': None, 'tests/test_it.py': LONG_TESTS}.items():
    (tmp_path / source).write_text((ROOT / source).read_text() if text is None else text)

  def run(*arguments: str, code: int = 0) -> list[str]:
    command = [sys.executable, '-m', 'pytest', '-v', '-p', 'no:cacheprovider', *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == code, done.stdout
    return done.stdout.splitlines()

  return run


def passed(lines: list[str]) -> set[str]:
  return {line.split()[0] for line in lines if ' PASSED' in line}


@pytest.mark.turns
def test_long_tests_run_when_asked_for(suite: Callable[..., list[str]]) -> None:
  assert len(passed(suite('--slow=all'))) == 81
  assert len(passed(suite('tests/test_it.py::test_long'))) == 80


@pytest.mark.turns
def test_long_tests_left_out_are_counted(suite: Callable[..., list[str]]) -> None:
  for processes in ('0', '2'):
    assert '80 long tests left out; bash launch/test.sh --all runs them.' in suite(f'--numprocesses={processes}')


@pytest.mark.turns
def test_a_part_is_drawn_by_commit(suite: Callable[..., list[str]], tmp_path: pathlib.Path) -> None:
  without_history = suite('--slow=part')
  assert passed(without_history) == {'tests/test_it.py::test_short'}
  assert any('git does not say' in line for line in without_history)

  for command in ('init -q', '-c user.name=a -c user.email=a@b.c commit -q -m empty --allow-empty'):
    subprocess.run(['git', *command.split()], cwd=tmp_path, check=True)
  head = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=tmp_path, capture_output=True, text=True, check=True)
  names = [f'tests/test_it.py::test_long[{number}]' for number in range(80)]
  commit = head.stdout.strip()
  drawn = {name for name in names if part(name.replace('::test_long', '')) == part(commit)}
  assert len(drawn) < 20
  assert passed(suite('--slow=part')) == {'tests/test_it.py::test_short', *drawn}


TURNS = """
import pytest

@pytest.mark.turns
@pytest.mark.parametrize('number', range(160))
def test_case(number): pass
"""
IN_TURNS = """
import pytest

pytestmark = pytest.mark.turns

@pytest.mark.parametrize('number', range(3))
def test_case(number): pass

def test_other(): pass
"""


@pytest.mark.turns
def test_what_goes_by_turns_runs_in_few_commits(suite: Callable[..., list[str]], tmp_path: pathlib.Path) -> None:
  (tmp_path / 'tests' / 'test_it.py').write_text(TURNS)
  names = [f'test_whole_{number}' for number in range(80)]
  for name in names:
    (tmp_path / 'tests' / f'{name}.py').write_text(IN_TURNS)
  turn = part('', conftest.TURNS)  # without git
  cases = {f'tests/test_it.py::test_case[{number}]' for number in range(160)}
  drawn = {name for name in cases if part(name.replace('::test_case', ''), conftest.TURNS) == turn}
  files = [f'tests/{name}.py' for name in names if part(f'tests/{name}.py', conftest.TURNS) == turn]
  assert 5 < len(drawn) < 35 and 2 < len(files) < 20
  whole = {f'{file}::{test}' for file in files for test in (*(f'test_case[{i}]' for i in range(3)), 'test_other')}
  assert passed(suite()) == passed(suite('--slow=part')) == drawn | whole
  assert passed(suite('tests/test_it.py')) == cases
  assert len(passed(suite('--slow=all'))) == 160 + 4 * 80


FAILING = """
import pytest

@pytest.mark.slow
@pytest.mark.parametrize('text', ['a b', "it's"])
def test_fails(text): assert not text

@pytest.fixture
def broken(): raise OSError

def test_errs(broken): pass

def test_passes(): pass
"""


@pytest.mark.parametrize('processes', ['0', '2'])
def test_one_command_repeats_the_tests_that_failed(suite, tmp_path: pathlib.Path, processes: str) -> None:
  (tmp_path / 'tests' / 'test_it.py').write_text(FAILING)
  lines = suite('--slow=all', f'--numprocesses={processes}', code=1)
  (repeat,) = [line for line in lines if line.startswith('Repeat with: bash launch/test.sh -n 0 ')]
  names = shlex.split(repeat)[6:]
  file = 'tests/test_it.py::'
  assert sorted(names) == [f'{file}test_errs', f'{file}test_fails[a b]', f"{file}test_fails[it's]"]
  again = suite(*names, code=1)
  assert any('2 failed, 1 error' in line for line in again)
  assert not any('Repeat' in line for line in suite(f'{file}test_passes'))


def test_a_red_check_ends_with_the_command(tmp_path: pathlib.Path) -> None:
  """`.ci/run` with a suite that fails and lint that does, in a copy of the scripts alone."""
  for folder in ('launch', '.ci'):
    (tmp_path / folder).mkdir()
  script = (ROOT / '.ci' / 'run').read_text()
  (tmp_path / '.ci' / 'run').write_text(script)
  said = {'setup': 'true', 'test': "echo 'Repeat with: bash launch/test.sh -n 0 t.py::x'; echo '1 failed'; exit 1"}
  for name, text in (said | {'docs': "echo 'Documentation: here'", 'lint': 'exit 1'}).items():
    (tmp_path / 'launch' / f'{name}.sh').write_text(text + '\n')
  done = subprocess.run(['bash', '.ci/run'], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
  assert done.returncode == 1, done.stderr
  again = 'Repeat with: bash launch/test.sh -n 0 t.py::x'
  assert done.stdout.splitlines()[-7:] == [
    'tests: 1 failed',
    'documentation: Documentation: here',
    'programs for TPUs: 1 failed',
    'Failed: see the tests, the documentation and the lint above.',
    again,
    again,
    'Repeat with: bash launch/lint.sh',
  ]


def part(text: str, parts: int = conftest.PARTS) -> int:
  return hashlib.sha256(text.encode()).digest()[0] % parts


def test_tiny_corpus_is_text(tiny_corpus: Sequence[str]) -> None:
  assert len(set(tiny_corpus)) == len(tiny_corpus) == 400
  assert all(text.count('. ') + text.count('? ') + 1 >= 4 for text in tiny_corpus)
  assert 150_000 < sum(map(len, tiny_corpus)) < 180_000


def test_tiny_vocab_reads_the_corpus_back(tiny_vocab: Vocab, tiny_corpus: Sequence[str]) -> None:
  ids = tiny_vocab.encode(tiny_corpus[0])
  assert tiny_vocab.decode(ids) == tiny_corpus[0]
  assert len(ids) < len(tiny_corpus[0]) / 3
  assert tiny_vocab.size == 512
