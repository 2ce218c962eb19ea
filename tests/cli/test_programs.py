"""Compiled programs are stored between commands; a damaged file is made again."""

import pathlib
import stat

import pytest

from tests import runs


def test_programs_are_stored_and_a_damaged_one_is_made_again(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR', raising=False)
  monkeypatch.setenv('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))

  def train(name: str, *words: str) -> list[pathlib.Path]:
    done = runs.command('train', f'--config={file}', f'--workdir={tmp_path / name}', '--stop_at=2', *words)
    assert done.returncode == 0, done.stderr[-3000:]
    assert 'compilation cache' not in done.stderr
    return sorted((tmp_path / 'cache').glob('plm_jax/programs/*/*-cache'))

  assert train('without', '--compile_cache=none') == []
  stored = train('first')
  assert any('logged_step' in program.name for program in stored)
  assert stat.S_IMODE(stored[0].parent.stat().st_mode) == 0o700
  damaged = {}
  for program in stored:
    entry = bytearray(program.read_bytes())
    entry[len(entry) // 2] ^= 64
    damaged[program] = bytes(entry)
    program.write_bytes(entry)
  assert train('second') == stored
  assert [program.name for program in stored if program.read_bytes() == damaged[program]] == []
  assert runs.curve(tmp_path / 'without') == runs.curve(tmp_path / 'first') == runs.curve(tmp_path / 'second')


def test_a_value_of_the_environment_is_respected(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setenv('JAX_COMPILATION_CACHE_DIR', '')
  monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  done = runs.command('train', f'--config={file}', f'--workdir={tmp_path / "run"}', '--stop_at=1')
  assert done.returncode == 0, done.stderr[-3000:]
  assert not (tmp_path / 'cache' / 'plm_jax').exists()
