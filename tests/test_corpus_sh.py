"""launch/corpus.sh: sets of TensorFlow Datasets for `tfds:`; with Apache Beam where its environment is there."""

import importlib
import os
import pathlib
import subprocess
import sys
import types

import pytest

from plm_jax.data.corpora import sources
from tests import conftest

SCRIPT = conftest.ROOT / 'launch' / 'corpus.sh'
BEAM = pathlib.Path(os.environ.get('PLM_JAX_BEAM_VENV') or conftest.ROOT / '.venv-beam')
BUILDER = """
import tensorflow_datasets as tfds

class TinyTales(tfds.core.GeneratorBasedBuilder):
  VERSION = tfds.core.Version('1.0.0')

  def _info(self):
    return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict({'text': tfds.features.Text()}))

  def _split_generators(self, dl_manager):
    return {'train': self._generate_examples(range(40)), 'validation': self._generate_examples(range(40, 44))}

  def _generate_examples(self, numbers):
    for number in numbers:
      yield number, {'text': f'tale {number}'}
"""
WITH_BEAM = BUILDER.replace('GeneratorBased', 'BeamBased').replace('dl_manager', 'dl_manager, pipeline')
WITH_BEAM = (
  WITH_BEAM[: WITH_BEAM.index('    for number')]
  + """
    import apache_beam as beam
    return beam.Create(numbers) | beam.Map(lambda number: (number, {'text': f'tale {number}'}))
"""
)
# in place of the environment's python: notes what is asked, and lacks `module` once
PYTHON = """#!/usr/bin/env bash
printf '%s|' "$@" >>'{folder}/asked'; echo >>'{folder}/asked'
[[ $1 == -c && ! -e '{folder}/lacked' ]] || exit 0
touch '{folder}/lacked'
for word in "$@"; do [[ $word != --missing=* ]] || echo {module} >"${{word#*=}}"; done
exit 1
"""


def corpus(*words: str, **env: str) -> tuple[int, str]:
  done = subprocess.run(
    ['bash', SCRIPT, *words], env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=300
  )
  return done.returncode, done.stderr + done.stdout


def venv(folder: pathlib.Path, module: str) -> pathlib.Path:
  python = folder / 'venv' / 'bin' / 'python'
  python.parent.mkdir(parents=True)
  python.write_text(PYTHON.format(folder=folder, module=module))
  python.chmod(0o755)
  (folder / 'venv' / '.installed').write_bytes((conftest.ROOT / 'requirements' / 'beam.txt').read_bytes())
  return folder / 'venv'


@pytest.mark.parametrize(
  ('words', 'fix'),
  [
    ([], 'corpus.sh tfds NAME'),
    (['tfds'], 'corpus.sh tfds wiki40b/en'),
    (['tfds', 'a b'], 'corpus.sh tfds wiki40b/en'),
    (['tfds', 'c4/en', '--runner=Flink'], 'FlinkRunner'),
    (['tfds', 'c4/en', '--workers=0'], '1 or more'),
    (['tfds', 'c4/en', '--region=x'], 'after --'),
  ],
)
def test_wrong_usage_is_explained(words: list[str], fix: str, tmp_path: pathlib.Path) -> None:
  code, said = corpus(*words, f'--venv={tmp_path / "venv"}') if len(words) > 1 else corpus(*words)
  assert (code, fix in said) == (2, True), said
  assert not (tmp_path / 'venv').exists()


@pytest.mark.parametrize(
  ('module', 'package'), [('tensorflow', 'tensorflow'), ('apache_beam_gcp', 'apache-beam[gcp]'), ('odd', None)]
)
def test_a_package_of_the_builder_is_installed_in_that_environment(
  module: str, package: str | None, tmp_path: pathlib.Path
) -> None:
  code, said = corpus('tfds', 'c4/en', f'--venv={venv(tmp_path, module)}', '--', '--region=x')
  text = (tmp_path / 'asked').read_text()
  asked = [line.split('|') for line in text.replace('\n', ' ').split('| ')[:-1]]
  assert text.count('|--|--region=x|') == (2 if package else 1)
  if package is None:
    assert (code, f'pip install {module}, then the same command' in said) == (2, True)
  else:
    assert (code, asked[1]) == (0, ['-m', 'pip', 'install', '--quiet', package]), said
    assert len(asked) == 3


def made(folder: pathlib.Path, builder: str, *words: str, python: str = sys.executable) -> tuple[int, str]:
  """Runs the script with an environment whose python is the given one."""
  (folder / 'tiny_tales.py').write_text(builder)
  own = venv(folder, '') if not (folder / 'venv').exists() else folder / 'venv'
  (own / 'bin' / 'python').write_text(f'#!/bin/sh\nexec "{python}" "$@"\n')
  flags = [f'--module={folder / "tiny_tales.py"}', f'--data_dir={folder / "sets"}', '--workers=2', f'--venv={own}']
  return corpus('tfds', words[0], *flags, *words[1:])


def check_reads(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """The set is read by its name, without the builder's code."""
  monkeypatch.setenv('TFDS_DATA_DIR', str(folder / 'sets'))
  for split, numbers in (('train', range(40)), ('validation', range(40, 44))):
    rows = sources.open_source('tfds:tiny_tales', split=split, cache=str(folder / 'cache'))
    assert sorted(rows[i]['text'] for i in range(len(rows))) == sorted(f'tale {number}' for number in numbers)


def test_a_set_is_read_by_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  code, said = made(tmp_path, BUILDER, 'tiny_tales')
  assert (code, 'train 40, validation 4 examples' in said) == (0, True), said
  check_reads(tmp_path, monkeypatch)
  assert 'tiny_tales is there' in made(tmp_path, BUILDER, 'tiny_tales')[1]
  for words, fix in (
    (['tiny_tale'], 'no tiny_tale.'),
    (['tiny_tales/x'], 'Configs of tiny_tales: none'),
    (['tiny_tales', '--module=none.py'], 'no such file'),
  ):
    code, said = made(tmp_path, BUILDER, *words)
    assert (code, fix in said) == (2, True), said


def test_the_disk_is_checked_where_sizes_are_published(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
  monkeypatch.syspath_prepend(conftest.ROOT / 'launch')
  fits = importlib.import_module('corpus_tfds').fits
  for size, fit in ((3e15, False), (3e5, True), (None, True)):
    builder = types.SimpleNamespace(info=types.SimpleNamespace(download_size=2e6, dataset_size=size))
    assert fits(builder, str(tmp_path / 'new' / 'sets')) is fit
  assert 'up to 6000000.0 GB of disk' in capsys.readouterr().err


def test_a_set_of_beam_is_read_by_its_name(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  if not (BEAM / 'bin' / 'python').exists():
    pytest.skip('no environment with Apache Beam: bash launch/corpus.sh tfds NAME makes .venv-beam')
  code, said = made(tmp_path, WITH_BEAM, 'tiny_tales', python=str(BEAM / 'bin' / 'python'))
  assert (code, 'train 40, validation 4 examples' in said) == (0, True), said[-2000:]
  check_reads(tmp_path, monkeypatch)
