"""What a result says of the code that made it."""

import subprocess

import pytest

from plm_jax.config import signatures
from plm_jax.training import outcome


@pytest.fixture
def package(tmp_path, monkeypatch):
  """A package that is committed in a repository, in place of ours."""
  folder = tmp_path / 'package'
  folder.mkdir()
  (folder / 'core').mkdir()
  (folder / 'core' / 'types.py').write_text('one = 1\n')
  (tmp_path / 'notes.txt').write_text('one\n')
  for words in (['init', '-q'], ['add', '.'], ['commit', '-qm', 'first']):
    git(tmp_path, *words)
  monkeypatch.setattr(signatures, 'ROOT', folder)
  outcome.code.cache_clear()
  yield folder
  outcome.code.cache_clear()


def git(folder, *words):
  named = ['-c', 'user.name=a', '-c', 'user.email=a@b']
  return subprocess.run(['git', '-C', str(folder), *named, *words], check=True, capture_output=True, text=True).stdout


def test_the_commit_of_files_that_are_committed(package):
  (package.parent / 'notes.txt').write_text('two\n')  # no file of the package
  assert outcome.code() == git(package, 'rev-parse', '--short=12', 'HEAD').strip()


@pytest.mark.parametrize('name', ['core/types.py', 'new.py'])
def test_changes_of_the_package_are_said(package, name):
  (package / name).write_text('two = 2\n')
  assert outcome.code() == git(package, 'rev-parse', '--short=12', 'HEAD').strip() + '+changes'


def test_it_is_asked_once(package):
  before = outcome.code()
  (package / 'core' / 'types.py').write_text('two = 2\n')
  assert outcome.code() == before


def test_a_package_that_no_repository_keeps_has_no_commit(package, tmp_path, monkeypatch):
  git(package.parent, 'rm', '-q', '--cached', 'package/core/types.py')
  assert outcome.code() == ''
  outcome.code.cache_clear()
  monkeypatch.setenv('PATH', str(tmp_path))  # no git
  assert outcome.code() == ''
