"""`plm-jax`: the list of commands, and the dispatch by its first word."""

import subprocess
import sys

import pytest

import plm_jax.__main__ as plm_jax
from plm_jax.cli import command
from plm_jax.core.errors import ConfigError
from tests import conftest


def test_every_command_has_a_purpose_and_one_line() -> None:
  known = plm_jax.commands()
  assert {'train', 'noise', 'generate', 'pydocs'} <= known.keys()
  listed = [name for names in plm_jax.PURPOSES.values() for name in names]
  assert sorted(listed) == sorted(known)
  text = plm_jax.listing(known)
  assert plm_jax.OTHERS not in text
  for line in text.splitlines():
    assert len(line) <= 120, line


def test_a_command_without_a_purpose_is_shown_all_the_same() -> None:
  lines = plm_jax.listing({**plm_jax.commands(), 'new': 'commands.train'}).splitlines()
  assert lines[-2:][0] == plm_jax.OTHERS
  assert lines[-1].split()[0] == 'new'


HEAVY = ('jax', 'flax', 'optax', 'orbax', 'grain', 'tensorflow_datasets')
HELP = """
import contextlib, io, os, sys
import plm_jax.__main__ as m
for words in [[], *([name, '--help'] for name in m.commands())]:
  with contextlib.redirect_stdout(io.StringIO()) as shown, contextlib.suppress(SystemExit):
    m.main(words)
  assert 'plm-jax' in shown.getvalue(), words
  print(words, sorted(set(sys.argv[1:]) & sys.modules.keys()))
  if not words:
    print(sum(os.times()[:2]))
"""


def test_no_help_takes_time_or_loads_a_heavy_library() -> None:
  done = subprocess.run(
    [sys.executable, '-c', HELP, *HEAVY], cwd=conftest.ROOT, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  first, seconds, *others = done.stdout.splitlines()
  assert float(seconds) < 1
  assert len(others) == len(plm_jax.commands())
  assert all(line.endswith('[]') for line in (first, *others)), done.stdout


def test_a_command_gets_its_words(capsys: pytest.CaptureFixture[str]) -> None:
  with pytest.raises(SystemExit) as left:
    plm_jax.main(['fill', '--help'])
  assert left.value.code == 0
  assert 'plm-jax fill' in capsys.readouterr().out
  with pytest.raises(ConfigError, match='--config=FILE'):
    plm_jax.main(['train'])


def test_a_wrong_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
  assert command.run(lambda: plm_jax.main(['trian'])) == 2
  said = capsys.readouterr().err
  assert "'trian'" in said
  assert "'train'" in said
