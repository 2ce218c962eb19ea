"""AWD-LSTM after training: export, generation by every method, scores, scalar mix and probes."""

import json

import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.commands import convert, evaluate, probe
from plm_jax.commands import generate as generate
from plm_jax.core.errors import ConfigError
from plm_jax.generate.settings import DEFAULTS
from plm_jax.inference import continued, likelihood
from plm_jax.runs import predicted
from plm_jax.training import loop
from tests import runs

pytestmark = pytest.mark.turns

PROMPTS = ['In the morning Anna', 'One']


@pytest.fixture(scope='module')
def trained(data):
  """Train a short run."""
  one = runs.settings('awd_lstm', data, steps=40, eval_every=20, save_every=20)
  assert loop.train(one, data / 'AWD').exit_code == loop.DONE
  return data / 'AWD'


@pytest.fixture(scope='module')
def exported(trained, data):
  """Export the trunk."""
  assert convert.main(['export', str(trained), str(data / 'AWD_OWN'), '--form=own', '--step=newest']) == 0
  return data / 'AWD_OWN'


def test_what_is_saved_by_itself_says_the_same_as_the_run(trained, exported):
  run, alone = plm_jax.load(trained, step='newest'), plm_jax.load(exported)
  np.testing.assert_array_equal(run.encode(PROMPTS), alone.encode(PROMPTS))
  assert run.generate(PROMPTS, max_new=6) == alone.generate(PROMPTS, max_new=6)
  assert run.score(PROMPTS) == alone.score(PROMPTS)


def test_the_command_writes(trained, capsys):
  def run(*flags):
    assert (
      generate.main((f'--workdir={trained}', *(f'--prompt={text}' for text in PROMPTS), '--max_new=6', *flags)) == 0
    )
    return capsys.readouterr().out.splitlines()

  greedy, beam = run(), run('--method=beam', '--beams=3')
  drawn = ('--method=sample', '--num_samples=3', '--top_p=0.95')
  assert [text.startswith(prompt) for text, prompt in zip(greedy[::2], PROMPTS, strict=True)] == [True, True]
  assert all(len(text) > len(prompt) for text, prompt in zip(beam[::2], PROMPTS, strict=True))
  assert run(*drawn) == run(*drawn) != run(*drawn, '--seed=1')


@pytest.mark.parametrize(
  'settings', [{}, {'method': 'beam', 'beams': 3, 'length_penalty': 0.0}], ids=['greedy', 'beam']
)
def test_a_text_is_scored_as_it_was_written(trained, settings):
  """Compare the score of generation with the score of the whole text.

  The whole text is read without a cache; its prompt's score is subtracted.
  """
  model = plm_jax.load(trained, step='newest')
  every = {**DEFAULTS, **settings, 'max_new': 5}
  for prompt, (made,) in zip(PROMPTS, continued.write(model.folder, PROMPTS, every), strict=True):
    ids = np.array([[*made.prompt, *made.ids]], np.int32)
    nats = likelihood.next_nats(*model.folder.network, ids, np.ones_like(ids))[0, len(made.prompt) - 1 :]
    assert len(made.ids) == 5 and made.before == prompt
    assert -nats.sum() == pytest.approx(made.score, abs=1e-4)


def settings_of(trained, data, adapter):
  start = ({'source': str(trained), 'from_': 'trunk', 'to': 'trunk'},)
  one = runs.settings('classify', data)
  return config.resolve(one | {'model': config.load(str(trained))['model'], 'adapter': adapter, 'init_from': start})


def test_its_states_are_mixed(trained, data):
  inner = {'name': 'classify', 'classes': len(runs.CLASSES)}
  adapter = {'name': 'scalar_mix', 'inner': inner, 'lstm_layers': 0}
  assert loop.train(settings_of(trained, data, adapter), data / 'AWD_MIX').exit_code == loop.DONE
  before, after = (runs.params_of(runs.saved_state(run)) for run in (trained, data / 'AWD_MIX'))
  moved = [name for name, leaf in before.items() if not np.array_equal(leaf, after[name])]
  assert not moved and after['params/trunk/scalar_mix/weights'].any()
  assert {row['label'] for row in plm_jax.load(data / 'AWD_MIX').classify(PROMPTS)} <= set(runs.CLASSES)


@pytest.mark.slow
def test_classifiers_of_both_directions_are_averaged(trained, data, tmp_path, capsys):
  """Average ULMFiT's ensemble (Howard and Ruder 2018, §5).

  The commands are those of experiments/ulmfit/classify.py.
  """
  files = {}
  for name, backward in {'forward': False, 'backward': True}.items():
    adapter = {'name': 'classify', 'classes': len(runs.CLASSES), 'pool': 'concat', 'backward': backward}
    assert loop.train(settings_of(trained, data, adapter), data / name).exit_code == loop.DONE
    files[name] = tmp_path / f'{name}.jsonl'
    asked = (f'--workdir={data / name}', '--step=newest', '--evaluation=validation', f'--predictions={files[name]}')
    assert evaluate.main(asked) == 0
  one, other = (predicted.join([str(file)])[0] for file in files.values())
  both, records = predicted.join([str(file) for file in files.values()])
  means = [np.mean([row['probability'] for row in rows], axis=0) for rows in zip(one, other, strict=True)]
  assert (
    max(np.abs(np.subtract(a['probability'], b['probability'])).max() for a, b in zip(one, other, strict=True)) > 1e-3
  )
  np.testing.assert_allclose([row['probability'] for row in both], means, atol=1e-6)
  capsys.readouterr()
  assert evaluate.main(['--score', *map(str, files.values()), '--scores', 'accuracy']) == 0
  right = np.mean([np.argmax(mean) == record['label'] for mean, record in zip(means, records, strict=True)])
  assert capsys.readouterr().out == f'accuracy {right:.6g}\n'
  assert plm_jax.load(data / 'forward').encode(PROMPTS).shape[0] == len(PROMPTS)
  model = plm_jax.load(data / 'backward')
  assert {row['label'] for row in model.classify(PROMPTS)} <= set(runs.CLASSES)
  with pytest.raises(ConfigError, match=r'encode: .*adapter\.backward'):
    model.encode(PROMPTS)


def test_a_network_that_reads_from_the_end_is_asked_nothing(data, tmp_path):
  settings = runs.settings('awd_lstm', data, steps=2, eval_every=2, save_every=2, data={'reverse': True})
  assert loop.train(settings, tmp_path / 'backward').exit_code == loop.DONE
  model = plm_jax.load(tmp_path / 'backward')
  for ask in (model.score, model.generate, model.encode):
    with pytest.raises(ConfigError, match=r'data\.reverse.*adapter\.backward'):
      ask(['In the morning'])


def test_each_layer_is_probed(trained, data, tmp_path):
  adapter = {'name': 'classify', 'classes': len(runs.CLASSES)}
  file = runs.write_config(tmp_path / 'config.json', settings_of(trained, data, adapter))
  assert probe.main([f'--config={file}', f'--workdir={tmp_path / "probe"}', '--layers=0,1,mix']) == 0
  rows = json.loads((tmp_path / 'probe' / 'table.json').read_text())['rows']
  assert [row['layer'] for row in rows] == [0, 1, 'mix'] and (tmp_path / 'probe' / 'layers.png').stat().st_size > 1000
