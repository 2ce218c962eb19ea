"""Several tasks over one trunk: a step is that of the task whose rows it reads, and each has a head and scores."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import weights
from plm_jax.adapters import lora, multitask
from plm_jax.config import build, one_part
from plm_jax.core import param_paths
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Labels
from plm_jax.noise import keys
from plm_jax.runs import scoring
from plm_jax.training import evaluation, step
from plm_jax.training.parts import check_labels
from plm_jax.weights.folders import WeightsError
from tests import tiny

pytestmark = pytest.mark.turns

PARTS = {
  'names': {'name': 'tag', 'tags': ('O', 'B-a', 'I-a'), 'dropout': 0.0},
  'sentiment': {'name': 'classify', 'classes': 2, 'dropout': 0.0},
  'similarity': {'name': 'classify', 'kind': 'regression', 'dropout': 0.0},
}
NAMES = sorted(PARTS)
KEY = jax.random.key(4)


@functools.cache
def make():
  return multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=PARTS)


@functools.cache
def params():
  return tiny.init_params(make(), batch(0))


def batch(part):
  """Rows of one part, with what the others lack filled up as `data/mixture` does."""
  rows = dict(tiny.make_batch())
  labels = jnp.asarray(np.arange(64, dtype=np.int32).reshape(4, 16) % 4 - 1)
  values = {'sentiment': rows['label'].astype(jnp.float32), 'similarity': jnp.asarray([0.5, 2.0, -1.0, 3.5])}
  rows['label'] = values.get(NAMES[part], jnp.full(4, -1.0))
  rows['labels'] = labels if NAMES[part] == 'names' else jnp.full((4, 16), -1)
  return {**rows, 'part': jnp.full(4, part, jnp.int32)}


def alone(part):
  """The task, the batch and the parameters of a part by itself."""
  task = build.make('adapters', PARTS[NAMES[part]], trunk=tiny.make_trunk(), vocab=tiny.VOCAB)
  rows = batch(part)
  if NAMES[part] == 'sentiment':
    rows = {**rows, 'label': rows['label'].astype(jnp.int32)}
  return task, rows, {'trunk': params()['trunk'], **params()[NAMES[part]]}


def loss_of(task, rows, variables):
  example = task.prepare(keys.noise_root(KEY), keys.with_step(rows, 0))
  loss = task.loss(step.bind(task, variables, train=False, rng=KEY), example, (), KEY)
  return loss.value, loss.metrics


@pytest.mark.parametrize('part', range(3))
def test_a_step_is_that_of_the_part_alone(part):
  own, rows, variables = alone(part)
  ours = jax.jit(jax.value_and_grad(functools.partial(loss_of, make(), batch(part)), has_aux=True))
  theirs = jax.jit(jax.value_and_grad(functools.partial(loss_of, own, rows), has_aux=True))
  ((value, metrics), gradient), ((wanted, known), other) = ours(params()), theirs(variables)
  np.testing.assert_allclose(value, wanted, rtol=1e-6)
  name = NAMES[part]
  trunk = {key: leaf for key, leaf in gradient['trunk'].items() if key in other['trunk']}
  error, where = tiny.gradient_error({'trunk': trunk, **gradient[name]}, other)
  assert error < 1e-5, where
  for key, (total, weight) in known.items():
    np.testing.assert_allclose(metrics[f'{name}/{key}'], (total, weight), rtol=1e-6)
  for still in set(NAMES) - {name}:
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradient[still])), 'a head of another task moves'
    assert metrics[f'{still}/loss'][1] == 0
  np.testing.assert_allclose(metrics['loss'], metrics[f'{name}/loss'])


def test_heads_are_of_their_own_and_the_trunk_is_as_without_them():
  assert set(params()) == {'trunk', *NAMES}
  shapes = {name: params()[name]['head']['kernel'].shape[-1] for name in NAMES}
  assert shapes == {'names': 3, 'sentiment': 2, 'similarity': 1}
  boxed = functools.partial(step.init_params, key=jax.random.key(0))
  whole, plain = (
    jax.device_get(boxed(task, tiny.spec(rows))) for task, rows in ((make(), batch(1)), (alone(1)[0], alone(1)[1]))
  )
  for ours, theirs in zip(*map(jax.tree.leaves, (whole['trunk'], plain['trunk'])), strict=True):
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize('part', range(3))
def test_evaluation_scores_the_part_of_the_batch(part):
  metrics, _ = step.eval_step(params(), batch(part), (), KEY, task=make())
  for name in NAMES:
    assert (metrics[f'{name}/loss'][1] > 0) == (name == NAMES[part])
  own, rows, variables = alone(part)
  known, _ = step.eval_step(variables, rows, (), KEY, task=own)
  for key, value in known.items():
    np.testing.assert_allclose(metrics[f'{NAMES[part]}/{key}'], value, rtol=1e-6)
  means = {key: float(total) / max(float(weight), 1.0) for key, (total, weight) in metrics.items()}
  assert 'names/f1' in make().summary(means)


@pytest.mark.parametrize('part', range(3))
def test_predictions_are_those_of_the_part(part):
  found = step.predict_step(params(), batch(part), KEY, task=make())
  own, rows, variables = alone(part)
  known = step.predict_step(variables, rows, KEY, task=own)
  assert found['part'].tolist() == [part] * 4
  for key in set(known) - {'row_weight', 'row_id'}:
    np.testing.assert_allclose(found[f'{NAMES[part]}/{key}'], known[key], rtol=1e-5)


def test_an_objective_trains_on_text_next_to_a_task():
  parts = {'sentiment': PARTS['sentiment'], 'text': {'name': 'mlm'}}
  task = multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=parts)
  text = {**batch(1), 'part': jnp.full(4, 1, jnp.int32)}
  variables = tiny.init_params(task, text)
  alone = build.make('objectives', parts['text'], trunk=tiny.make_trunk(), vocab=tiny.VOCAB)
  own = {'trunk': variables['trunk'], **variables['text']}
  (value, _), gradient = jax.value_and_grad(functools.partial(loss_of, task, text), has_aux=True)(variables)
  (wanted, _), other = jax.value_and_grad(functools.partial(loss_of, alone, text), has_aux=True)(own)
  np.testing.assert_allclose(value, wanted, rtol=1e-6)
  error, where = tiny.gradient_error({'trunk': other['trunk'], **gradient['text']}, other)
  assert error < 1e-5, where
  found = step.predict_step(variables, text, KEY, task=task)
  assert {'sentiment/label', 'text/ids'} <= found.keys()
  settings = {'adapter': {'name': 'multitask', 'parts': parts}, 'objective': None, 'data': {'parts': parts}}
  assert one_part.adapter_of(settings, 'sentiment') == parts['sentiment']
  assert one_part.adapter_of(settings, 'text') == {}


def test_a_frozen_trunk_is_kept_where_no_part_trains_it():
  both = {'names': {**PARTS['names'], 'frozen': True}, 'sentiment': {**PARTS['sentiment'], 'frozen': True}}
  for parts, counts in ((both, {'trunk': 0, 'names': 2, 'sentiment': 2}), ({**PARTS, 'names': both['names']}, None)):
    task = multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=parts)
    shapes = step.abstract_params(task, tiny.spec(batch(0)))
    trainable, frozen = tiny.make_optimiser(task, batch(0)).split(shapes)
    if counts is None:
      assert not jax.tree.leaves(frozen)
    else:
      assert {name: len(jax.tree.leaves(tree)) for name, tree in trainable.items()} == counts


# Wrappers ------------------------------------------------------------------------------------------------------------

WRAPPED = {**PARTS, 'sentiment': {'name': 'lora', 'targets': ('query', 'out'), 'inner': PARTS['sentiment']}}


def gradient_of(task, rows, variables):
  return jax.jit(jax.grad(functools.partial(loss_of, task, rows), has_aux=True))(variables)[0]


def moving(gradient):
  return {path for path, leaf in param_paths.flat(gradient).items() if np.any(leaf)}


def test_lora_of_one_part_trains_what_it_adds_and_no_other_part_reads_it():
  task, rows = multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=WRAPPED), batch(1)
  variables = tiny.init_params(task, rows)
  own, added = gradient_of(task, rows, variables), param_paths.flat(variables['sentiment'])
  assert {path.split('/')[0] for path in added} == {'lora', 'head'}
  assert moving(own) == {f'sentiment/{path}' for path in added}
  alone = build.make('adapters', WRAPPED['sentiment'], trunk=tiny.make_trunk(), vocab=tiny.VOCAB)
  single = {'trunk': variables['trunk'], **variables['sentiment']}
  rows = {**rows, 'label': rows['label'].astype(jnp.int32)}
  known = gradient_of(alone, rows, single)
  error, where = tiny.gradient_error(own['sentiment'], {name: known[name] for name in ('head', 'lora')})
  assert error < 1e-5, where
  other = gradient_of(task, batch(0), variables)
  assert {path.split('/')[0] for path in moving(other)} == {'trunk', 'names'}
  plain = gradient_of(make(), batch(0), {**variables, 'sentiment': {'head': variables['sentiment']['head']}})
  assert tiny.same(other['trunk'], plain['trunk'])


def test_a_part_that_keeps_the_trunk_gives_it_no_gradient_where_others_train_it():
  frozen = {**PARTS, 'names': {**PARTS['names'], 'frozen': True}}
  task = multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=frozen)
  found = {name: moving(gradient_of(task, batch(number), params())) for number, name in enumerate(NAMES[:2])}
  assert {path.split('/')[0] for path in found['names']} == {'names'}
  assert {path.split('/')[0] for path in found['sentiment']} == {'trunk', 'sentiment'}


def test_a_trunk_that_only_wrapped_parts_read_is_frozen():
  parts = {name: {'name': 'lora', 'inner': block} for name, block in PARTS.items()}
  task = multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=parts)
  shapes = step.abstract_params(task, tiny.spec(batch(0)))
  trainable, frozen = tiny.make_optimiser(task, batch(0)).split(shapes)
  assert not jax.tree.leaves(trainable['trunk'])
  assert {path.split('/')[0] for path in param_paths.flat(frozen)} == {'trunk'}


def test_one_lora_around_all_parts_is_shared_by_them():
  task = lora.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, inner={'name': 'multitask', 'parts': PARTS})
  variables = tiny.init_params(task, batch(0))
  found = moving(gradient_of(task, batch(0), variables))
  assert {path for path in found if path.startswith('lora/')} == {
    f'lora/{path}' for path in param_paths.flat(variables['lora'])
  }
  trainable, _ = tiny.make_optimiser(task, batch(0)).split(step.abstract_params(task, tiny.spec(batch(0))))
  assert not jax.tree.leaves(trainable['trunk'])
  with pytest.raises(ValueError, match=r"adapter\.inner\.name='multitask'"):
    lora.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, inner={'name': 'multitask', 'parts': WRAPPED})


def test_the_trunk_of_such_a_run_alone_is_refused(tmp_path):
  (tmp_path / 'config.json').write_text(json.dumps({'adapter': {'name': 'multitask', 'parts': WRAPPED}}))
  with pytest.raises(WeightsError, match=r"adapter 'lora'.*'sentiment'"):
    _ = weights.open(tmp_path).params


# Scores --------------------------------------------------------------------------------------------------------------

SCORED = {'names': (), 'sentiment': ('matthews', 'accuracy')}


def test_scores_are_of_the_rows_and_predictions_of_a_part():
  task = multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=PARTS, scores=SCORED)
  assert task.scores == ('sentiment/matthews', 'sentiment/accuracy', 'similarity/correlation')
  draw = np.random.default_rng(0)
  names, predictions, records = draw.choice(NAMES, 60), [], []
  for row, name in enumerate(names):
    label, found = draw.integers(0, 2, 2)
    records.append({'part': name, 'label': label})
    every = {'sentiment/label': found, 'similarity/value': found / 2, 'names/labels': np.zeros(3, int)}
    predictions.append(scoring.own(task, {'row_id': row, 'part': NAMES.index(name), **every}, records[-1]))
    assert {key.partition('/')[0] for key in predictions[-1]} == {'row_id', 'part', name}
  mine = names == 'sentiment'
  gold = np.array([record['label'] for record in records])[mine]
  found = np.array([row.get('sentiment/label', 0) for row in predictions])[mine]
  expected = np.corrcoef(gold, found)[0, 1]  # of two binary variables
  assert scoring.score('sentiment/matthews', predictions, records) == {'sentiment/matthews': pytest.approx(expected)}
  assert scoring.metrics(task.scores)[:2] == ['sentiment/matthews', 'sentiment/accuracy']
  assert 'similarity/spearman' in scoring.score('similarity/correlation', predictions, records)
  keys = evaluation.predicted_keys(task, tiny.spec(batch(1)))
  scoring.check(task.scores, keys, where='eval.x', user='multitask')
  with pytest.raises(ConfigError, match=r"'mathews'.*'matthews'"):
    scoring.check(['sentiment/mathews'], keys, where='eval.x', user='multitask')
  with pytest.raises(ConfigError, match=r"'names/matthews'.*names/label"):
    scoring.check(['names/matthews'], keys, where='eval.x', user='multitask')
  with pytest.raises(ValueError, match=r"adapter\.scores.*'sentimnt'"):
    multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=PARTS, scores={'sentimnt': ()})


def test_metrics_and_predictions_of_one_pass_are_those_of_two():
  both = jax.jit(functools.partial(step.predicting_step, task=make()))
  metrics, _, predicted = both(params(), batch(1), (), KEY)
  known, _ = step.eval_step(params(), batch(1), (), KEY, task=make())
  np.testing.assert_allclose(metrics['sentiment/loss'], known['sentiment/loss'], rtol=1e-6)
  found = step.predict_step(params(), batch(1), KEY, task=make())
  np.testing.assert_allclose(predicted['sentiment/probability'], found['sentiment/probability'], rtol=1e-5)


def test_data_with_other_parts_are_refused():
  sound = {'names': Labels(('O', 'B-a', 'I-a'), 3), 'sentiment': Labels(classes=2), 'similarity': Labels()}
  check_labels(make(), Labels(parts=sound), path='data')
  with pytest.raises(ValueError, match=r'names, sentiment, similarity.*data'):
    check_labels(make(), Labels(), path='data')
  with pytest.raises(ValueError, match=r'names, sentiment\b'):
    check_labels(make(), Labels(parts={name: sound[name] for name in NAMES[:2]}), path='data')
  with pytest.raises(ValueError, match=r"data.*'sentiment'.*4"):
    check_labels(make(), Labels(parts={**sound, 'sentiment': Labels(classes=5)}), path='data')


@pytest.mark.parametrize(
  ('parts', 'message'), [({}, r'adapter\.parts'), ({'trunk': {'name': 'classify'}}, r'adapter\.parts.*trunk.*train')]
)
def test_wrong_parts_are_refused(parts, message):
  with pytest.raises(ValueError, match=message):
    multitask.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, parts=parts)
