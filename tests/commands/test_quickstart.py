"""The stages of the quick start: what each goes on from, and how long they are."""

import pytest

from plm_jax.commands import quickstart
from plm_jax.core.errors import ConfigError

pytestmark = pytest.mark.turns


def test_each_stage_goes_on_from_the_one_before(tmp_path):
  stages = [
    quickstart._settings(quickstart.PRETRAIN, tmp_path),
    quickstart._settings(quickstart.CONTRAST, tmp_path, source=quickstart.PRETRAIN),
    quickstart._settings(quickstart.CLASSIFY, tmp_path, source=quickstart.CONTRAST),
  ]
  sources = [[entry['source'] for entry in stage['init_from']] for stage in stages]
  assert sources == [[], [str(tmp_path / 'pretrain')], [str(tmp_path / 'contrast')]]
  assert {stage['vocab']['path'] for stage in stages} == {str(tmp_path / 'vocab')}
  trunks = [{**stage['model'], 'overrides': _sizes(stage)} for stage in stages]
  assert trunks[0] == trunks[1] == trunks[2], 'parameters are handed on, so the networks are one'


def test_config_files_name_the_folders_of_the_stages_before_them():
  contrast, classify = (
    quickstart.config.load(f'experiments/quickstart/{name}.py') for name in ('contrast', 'classify')
  )
  assert contrast['init_from'][0]['source'] == 'runs/quickstart/pretrain'
  assert classify['init_from'][0]['source'] == 'runs/quickstart/contrast'


def test_minutes_lengthen_both_kinds_of_pretraining(tmp_path):
  for name in (quickstart.PRETRAIN, quickstart.CONTRAST):
    steps = quickstart._settings(name, tmp_path)['steps']
    assert quickstart._settings(name, tmp_path, longer=3)['steps'] == 3 * steps


def test_fewer_minutes_than_it_takes_are_refused():
  with pytest.raises(ConfigError, match=r'--minutes=2.* 6 '):
    quickstart._parse(['--minutes=2'])


def test_published_weights_that_are_missing_are_named(tmp_path, monkeypatch):
  monkeypatch.setattr(quickstart, 'ROOT', tmp_path)
  with pytest.raises(ConfigError, match=r'minilm is missing; `bash launch/released\.sh minilm` makes it'):
    quickstart.main(['--released', f'--workdir={tmp_path}'])


def test_published_weights_are_printed_next_to_the_tiny_ones(tmp_path, monkeypatch, capsys):
  from plm_jax.commands import pydocs, train

  (tmp_path / 'runs' / 'released' / 'minilm').mkdir(parents=True)
  (tmp_path / 'released').mkdir()
  (tmp_path / 'released' / 'result.json').write_text('{"metrics": {"test/accuracy": 0.7}}')
  monkeypatch.setattr(quickstart, 'ROOT', tmp_path)
  monkeypatch.setattr(pydocs, 'main', lambda words, sets: 0)
  monkeypatch.setattr(train, 'main', lambda words: 0)
  flags = ['--released', f'--workdir={tmp_path}']
  assert quickstart.main(flags) == 0
  assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if '%' in line] == ['31%', '54%', '70%']
  (tmp_path / 'classify').mkdir()
  (tmp_path / 'classify' / 'table.json').write_text('{"rows": [{"pretrained": [0.5, 0.7], "scratch": [0.2]}]}')
  assert quickstart.main(flags) == 0
  assert [line.split()[0] for line in capsys.readouterr().out.splitlines() if '%' in line] == ['20%', '60%', '70%']


def _sizes(stage):
  """The overrides that are sizes and starts; rates of dropout may differ from stage to stage."""
  return {name: value for name, value in stage['model']['overrides'].items() if 'dropout' not in name}
