"""`plm-jax`: the list of commands, and the dispatch by its first word."""

import subprocess
import sys
import time

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


def test_the_list_takes_no_time_and_no_jax() -> None:
  code = 'import sys, plm_jax.__main__ as m\nm.main([])\nassert not {"jax", "numpy", "rich"} & sys.modules.keys()'
  began = time.process_time()
  done = subprocess.run([sys.executable, '-c', code], cwd=conftest.ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert 'train' in done.stdout
  assert time.process_time() - began < 1


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
