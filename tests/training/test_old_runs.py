"""Runs begun by an earlier version of the package, at commit 1997bc3, go on and give the same numbers.

Each folder of `tests/fixtures/` holds a run that was stopped at step 4 of 8, the text it reads, and in `expected.json`
the metrics of steps 5 to 8, under the XLA flags of these tests. They were written again once, when the order of
dropout's bits changed (`layers/dropout.py`); with the bits of 1997bc3 they were those of that version. Since then some
of their numbers changed in the last bits (by less than 6e-7): an evaluation sums parts of its batch where training
accumulates, noise that is drawn on each device for its own rows is compiled into other sums, each device adds up the
gradients of its parts of a batch first, and the norm of updates reads them before they are stored.
"""

import hashlib
import json
import pathlib
import shutil
from importlib import metadata

import pytest

from plm_jax import config
from plm_jax.runs import metrics
from plm_jax.training import loop
from tests import conftest, runs

FIXTURES = conftest.ROOT / 'tests' / 'fixtures'
EXACT = ('step', 'skipped', 'skipped_in_a_row', 'targets_without_slot', 'accuracy')  # counts, and shares of counts


def same_machine() -> bool:
  """Whether the compiler has the versions and the instructions of the machine that wrote `expected.json`.

  XLA and Eigen order the terms of a sum by the width of the CPU's vectors, and other versions of XLA fuse other
  operations: then the last bits of a float differ (up to 8e-7 relatively between AVX2 and AVX-512), though data, noise
  and dropout are the same.
  """
  about = json.loads((FIXTURES / 'about.json').read_text())
  try:
    lines = pathlib.Path('/proc/cpuinfo').read_text().splitlines()
  except OSError:
    return False
  flags = next((line for line in lines if line.startswith('flags')), '').split()
  packages = ('jax', 'jaxlib', 'flax', 'optax', 'numpy')
  return about['flags'] == hashlib.sha256(' '.join(sorted(flags)).encode()).hexdigest()[:12] and {
    name: about[name] for name in packages
  } == {name: metadata.version(name) for name in packages}


@pytest.mark.parametrize('name', ['bert_mlm', 'gpt_causal_lm'])
def test_an_old_run_is_continued(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  shutil.copytree(FIXTURES / name, tmp_path / name, copy_function=shutil.copyfile)
  monkeypatch.chdir(tmp_path / name)  # its config has relative paths
  begun_with = json.loads(pathlib.Path('run', 'data.json').read_text())
  done = metrics.read('run')
  outcome = loop.train(config.resolve(config.load('run/config.json')), 'run')
  assert outcome.result['finished']
  assert {key: outcome.result[key] for key in begun_with} == begun_with  # digests of text, vocabulary and batches
  rows = runs.curve(pathlib.Path('run'))
  expected = json.loads((FIXTURES / name / 'expected.json').read_text())
  assert len(done) == 4
  assert [row['step'] for row in rows] == list(range(1, 9))
  largest = [row.pop('gradient_norm_max') for row in rows[4:]]  # which that version did not write
  assert largest == [row['gradient_norm'] for row in rows[4:]]  # with a line for each step
  for ours, theirs in zip(rows[4:], expected, strict=True):
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
      exact = key.rpartition('/')[2] in EXACT
      assert ours[key] == (value if exact else pytest.approx(value, rel=1e-6 if key.endswith('loss') else 1e-5)), key
  if same_machine():
    assert rows[4:] == expected
