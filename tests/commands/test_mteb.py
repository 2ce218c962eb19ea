"""`plm-jax mteb`: a task over a local file gives the correlation of `evaluate`; what it refuses."""

import json
import pathlib

import numpy as np
import pytest
from scipy import stats

import plm_jax
from plm_jax.commands import mteb
from plm_jax.core.errors import ConfigError
from plm_jax.training import loop
from plm_jax.weights import convert
from tests import runs

TASKS = """
import datasets, mteb
from mteb.abstasks import AbsTaskSTS

class Mine(AbsTaskSTS):
  min_score, max_score = 0, 5
  metadata = mteb.TaskMetadata(
    name='Mine', description='pairs', type='STS', eval_splits=['test'], eval_langs=['eng-Latn'],
    main_score='cosine_spearman', dataset={'path': 'none', 'revision': 'none'},
  )

  def load_data(self, **settings):
    self.dataset, self.data_loaded = {'test': datasets.Dataset.from_list(ROWS)}, True
"""


def test_a_local_task_has_the_correlation_of_our_similarities(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  pytest.importorskip('mteb', reason='needs the extra mteb: bash launch/setup.sh mteb')
  assert loop.train(runs.settings('mlm', data, steps=2), tmp_path / 'run').exit_code == 0
  convert.export(tmp_path / 'run', tmp_path / 'out')
  texts = [f'{word} {other}' for word in ('Anna', 'the clock', 'a') for other in ('is here .', 'was old', 'in')]
  pairs = enumerate(zip(texts, texts[::-1], strict=True))
  rows = [{'sentence1': a, 'sentence2': b, 'score': float(index % 5)} for index, (a, b) in pairs]
  (tmp_path / 'tasks.py').write_text(f'{TASKS}\nROWS = {rows!r}\n')
  words = [f'--weights={tmp_path / "out"}', '--tasks=Mine', f'--include_path={tmp_path / "tasks.py"}']
  assert mteb.main([*words, f'--out={tmp_path / "scores.json"}']) == 0
  found = json.loads((tmp_path / 'scores.json').read_text())['Mine']['scores']['test'][0]
  model = plm_jax.load(tmp_path / 'out')
  values = np.array([model.similarity(str(row['sentence1']), str(row['sentence2'])) for row in rows])
  expected = stats.spearmanr(values, [row['score'] for row in rows])[0]
  assert found['spearman'] == pytest.approx(expected, abs=1e-4) == found['cosine_spearman']
  with pytest.raises(ConfigError, match=r'no task .Mime..*Mine'):
    mteb.main([*words[:1], '--tasks=Mime', *words[2:]])


def test_flags_are_checked_before_mteb_is_loaded(tmp_path: pathlib.Path) -> None:
  for words, message in {
    (): 'tasks',
    ('--tasks=x',): 'either --workdir=DIR or --weights=FOLDER',
    ('--tasks=x', '--weights=nowhere'): '--weights=nowhere',
    ('--tasks=,', f'--weights={tmp_path}'): '--tasks=STSBenchmark,SICK-R',
    ('--tasks=x', f'--weights={tmp_path}', '--include_path=nowhere.py'): 'include_path=nowhere.py: there is no such',
  }.items():
    with pytest.raises(ConfigError, match=message):
      mteb.main(list(words))
