"""Similarities of texts, and their correlation with judgements of pairs."""

import csv
import json
import pathlib

import numpy as np
import pytest
from scipy import stats

import plm_jax
from plm_jax.commands import evaluate
from plm_jax.core.errors import ConfigError
from plm_jax.training import loop
from plm_jax.weights import convert
from tests import runs

CONFIG = 'experiments/sts/similarity.py'
SETS = ('stsb', 'stsb_dev', 'sickr', 'sickr_test', *(f'sts{year}' for year in range(12, 17)))
WORDS = ['the', 'clock', 'garden', 'Boris', 'Anna', 'found', 'was', 'old', 'in', 'a']


@pytest.fixture(scope='module')
def folder(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Export a tiny run of BERT."""
  made = tmp_path_factory.mktemp('similarity')
  assert loop.train(runs.settings('mlm', data, steps=2), made / 'run').exit_code == 0
  convert.export(made / 'run', made / 'out')
  return made / 'out'


@pytest.fixture(scope='module')
def pairs() -> list[dict[str, object]]:
  draw = np.random.RandomState(0)
  texts = [' '.join(draw.choice(WORDS, draw.randint(1, 60))) for _ in range(24)]
  return [
    {'sentence1': a, 'sentence2': b, 'label': round(float(draw.rand()), 2), 'source': 'ab'[index % 3 == 0]}
    for index, (a, b) in enumerate(zip(texts[:12], ['', *texts[13:]], strict=True))
  ]


def run(folder: pathlib.Path, path: pathlib.Path, *words: str) -> int:
  return evaluate.main([
    f'--config={CONFIG}', f'--weights={folder}', '--evaluation=sts12', f'--config.eval.sts12.data.path={path}', *words
  ])  # fmt: skip


def test_each_similarity_and_its_shapes(folder: pathlib.Path) -> None:
  a, b = ['Anna found the clock .', ''], ['Boris', 'a garden', 'Anna']
  about = folder / 'config_sentence_transformers.json'
  kept = about.read_text()
  model = plm_jax.load(folder)
  x, y = model.encode(a), model.encode(b)
  expected = {
    'cosine': x @ y.T / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(y, axis=1),
    'dot': x @ y.T,
    'euclidean': -np.sqrt(((x[:, None] - y) ** 2).sum(-1)),
    'manhattan': -np.abs(x[:, None] - y).sum(-1),
  }
  try:
    for name, values in expected.items():
      about.write_text(json.dumps({'similarity_fn_name': name}))
      model = plm_jax.load(folder)
      np.testing.assert_allclose(model.similarity(a, b), values, rtol=1e-4, atol=1e-5)
      np.testing.assert_allclose(model.similarity(a, b[:2], pairs=True), np.diagonal(values), rtol=1e-4, atol=1e-5)
    about.write_text(json.dumps({'similarity_fn_name': 'cosin'}))
    with pytest.raises(ConfigError, match=r'cosin.*cosine'):
      plm_jax.load(folder).similarity('a', 'b')
  finally:
    about.write_text(kept)
  model = plm_jax.load(folder)
  assert isinstance(model.similarity('a', 'b'), float)
  assert [model.similarity(*each).shape for each in (('a', b), (a, 'b'), ([], b), ([], []))] == [
    (3,),
    (2,),
    (0, 3),
    (0, 0),
  ]
  with pytest.raises(ConfigError, match='pairs=True'):
    model.similarity(a, b, pairs=True)
  with pytest.raises(ConfigError, match='similarity: text 0 of the list is tuple'):
    model.similarity([('a', 'b')], b)


def test_every_file_format_gives_the_correlations_of_scipy(
  folder: pathlib.Path, pairs: list[dict[str, object]], tmp_path: pathlib.Path
) -> None:
  pa, parquet = pytest.importorskip('pyarrow'), pytest.importorskip('pyarrow.parquet')
  for form in ('jsonl', 'csv', 'tsv', 'parquet'):
    (tmp_path / form).mkdir()
    file = tmp_path / form / f'test.{form}'
    if form == 'jsonl':  # labels that are texts
      file.write_text(''.join(json.dumps({**pair, 'label': str(pair['label'])}) + '\n' for pair in pairs))
    elif form == 'parquet':
      parquet.write_table(pa.Table.from_pylist(pairs), file)
    else:
      with file.open('w', newline='') as stream:
        writer = csv.DictWriter(stream, list(pairs[0]), delimiter=',' if form == 'csv' else '\t')
        writer.writeheader()
        writer.writerows(pairs)
    assert run(folder, tmp_path / form, f'--workdir={tmp_path / form}') == 0
  lines = [
    json.loads((tmp_path / form / 'evaluations.jsonl').read_text()) for form in ('jsonl', 'csv', 'tsv', 'parquet')
  ]
  model = plm_jax.load(folder)
  values = np.array([model.similarity(str(pair['sentence1']), str(pair['sentence2'])) for pair in pairs])
  labels, sources = (np.array([pair[key] for pair in pairs]) for key in ('label', 'source'))
  for metric, statistic in {'spearman': stats.spearmanr, 'pearson': stats.pearsonr}.items():
    each = {name: statistic(values[sources == name], labels[sources == name])[0] for name in 'ab'}
    expected = {
      '': statistic(values, labels)[0],
      '/a': each['a'],
      '/b': each['b'],
      '/mean': np.mean(list(each.values())),
    }
    for line in lines:
      for source, value in expected.items():
        assert line[f'sts12{source}/{metric}'] == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize('name', ['constant', 'no label', 'one field', 'not a number', 'no folder'])
def test_a_set_that_cannot_be_scored_is_refused(
  name: str, folder: pathlib.Path, pairs: list[dict[str, object]], tmp_path: pathlib.Path
) -> None:
  change, message = {
    'constant': ({'label': 3.0}, r"eval.sts12.data: 'label' is 3.0 in all 12 pairs.*another field"),
    'no label': ({'label': None, 'score': 1.0}, 'label'),
    'one field': ({}, r"fields=\('sentence1',\).*sentence2"),
    'not a number': ({'label': 'high'}, "'label' holds 'high', not a finite number"),
    'no folder': ({}, 'nowhere'),
  }[name]
  rows = [{key: value for key, value in {**pair, **change}.items() if value is not None} for pair in pairs]
  (tmp_path / 'test.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  words = ["--config.eval.sts12.data.fields=('sentence1',)"] * (name == 'one field')
  with pytest.raises((ConfigError, FileNotFoundError), match=message):
    run(folder, tmp_path / 'nowhere' if name == 'no folder' else tmp_path, *words)
  assert [file.name for file in tmp_path.iterdir()] == ['test.jsonl']


def test_predictions_are_scored_again_and_missing_sets_left_out(
  folder: pathlib.Path, pairs: list[dict[str, object]], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  (tmp_path / 'test.jsonl').write_text(''.join(json.dumps(pair) + '\n' for pair in pairs))
  changes = (f'path={tmp_path}', 'split=test')
  paths = [f'--config.eval.{name}.data.{change}' for name in SETS if name != 'sts13' for change in changes]
  assert evaluate.main([f'--config={CONFIG}', f'--weights={folder}', *paths]) == 0
  shown = capsys.readouterr().out
  assert 'eval.sts13 is left out: there is no' in shown and 'sts12/mean' in shown
  assert run(folder, tmp_path, f'--predictions={tmp_path / "p.jsonl"}') == 0
  capsys.readouterr()
  assert evaluate.main(['--score', str(tmp_path / 'p.jsonl')]) == 0
  value = float(capsys.readouterr().out.split('spearman')[1].split()[0])
  assert f'{100 * value:.2f}' in next(line for line in shown.splitlines() if ' sts12 ' in line)


def test_a_run_is_evaluated_at_each_step(
  folder: pathlib.Path, pairs: list[dict[str, object]], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  (tmp_path / 'test.jsonl').write_text(''.join(json.dumps(pair) + '\n' for pair in pairs))
  words = [f'--config={CONFIG}', f'--workdir={folder.parent / "run"}', '--evaluation=sts12']
  assert evaluate.main([*words, f'--config.eval.sts12.data.path={tmp_path}', '--step=all']) == 0
  assert 'sts12/mean/spearman' in capsys.readouterr().out


@pytest.mark.released
def test_minilm_has_its_published_number(released, capsys: pytest.CaptureFixture[str]) -> None:
  words = [f'--config={CONFIG}', f'--weights={released("minilm")}', '--evaluation=stsb']
  if not pathlib.Path('../shared/data/glue_stsb').is_dir():
    pytest.skip('../shared/data/glue_stsb is absent')
  assert evaluate.main(words) == 0
  assert '82.03' in capsys.readouterr().out  # MTEB's leaderboard
