"""Processes of studies: where they keep what they compile."""

import sys

import pytest

from plm_jax.studies import child

SAYS = "import os, sys; sys.stdout.write(os.environ.get('JAX_COMPILATION_CACHE_DIR', 'none'))"


@pytest.mark.parametrize(
  ('own', 'given', 'found'), [('', 'programs', 'programs'), ('elsewhere', 'programs', 'elsewhere'), ('', None, 'none')]
)
def test_compiled_programs_are_kept_unless_the_user_says_where(tmp_path, monkeypatch, own, given, found):
  monkeypatch.delenv(child.CACHE, raising=False)
  if own:
    monkeypatch.setenv(child.CACHE, own)
  with (tmp_path / 'out').open('w') as out:
    assert child.run([sys.executable, '-c', SAYS], out=out, compiled=given) == 0
  assert (tmp_path / 'out').read_text() == found
