"""Classification and regression: pooling, the three losses of GPT, feature extraction and fine-tuning."""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import classify, multitask, texts
from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core import param_paths as paths
from plm_jax.core.types import EVERYTHING, HEADS
from plm_jax.layers import pooling
from plm_jax.layers.lstm import StackedLstm
from plm_jax.models import bart
from plm_jax.noise import keys
from plm_jax.objectives import causal_lm, mlm
from plm_jax.training import parts as training_parts
from plm_jax.training import step
from tests import tiny
from tests.adapters.running import check_that_the_trunk_is_kept, nats_of, predict, run, train

ROWS = ((16,), (7,), (11,), (1,))


def make_task(trunk: str = 'gpt', *, fields=None, **settings):
  return classify.make(trunk=tiny.make_trunk(trunk, **(fields or {})), vocab=tiny.VOCAB, **settings)


BERT = make_task('bert', classes=3)
GPT = make_task('gpt', classes=3)


@pytest.mark.parametrize('frozen', [False, True])
def test_a_bilstm_reads_the_states_of_a_trunk_both_ways_before_they_are_pooled(frozen):
  task = make_task('gpt', classes=3, lstm_layers=2, pool='mean', frozen=frozen)
  batch = {**tiny.make_batch(ROWS), 'label': jnp.array([2, 0, 1, 2])}
  params = tiny.init_params(task, batch)
  outputs, hidden = run(task, batch, params)[0]
  layers = StackedLstm(task.model.trunk.hidden_dim // 2, num_layers=2)
  states = np.asarray(layers.apply({'params': params['lstm']}, hidden, batch['segment_ids'], train=False), np.float64)
  means = np.stack([states[row, :size].mean(axis=0) for row, (size,) in enumerate(ROWS)])
  want = means @ np.asarray(params['head']['kernel'], np.float64) + np.asarray(params['head']['bias'])
  np.testing.assert_allclose(outputs, want, atol=2e-6)
  if frozen:
    return check_that_the_trunk_is_kept(task, batch)
  first, last = train(task, batch)
  assert not any(tiny.same(first.params[name], last.params[name]) for name in ('trunk', 'lstm', 'head'))


def test_a_bilstm_reads_one_layer():
  with pytest.raises(ValueError, match='remove it or adapter'):
    make_task(lstm_layers=1, layers=(-2, -1))


@pytest.mark.parametrize('name', ['bert', 'gpt'])
def test_a_class_costs_its_nats(name):
  task = {'bert': BERT, 'gpt': GPT}[name]
  batch = {**tiny.make_batch(ROWS), 'label': jnp.array([2, 0, 1, 2])}
  params = tiny.init_params(task, batch)
  (outputs, hidden), loss = run(task, batch, params)
  # the vector that is classified: tanh of [CLS], or the state of the last real token
  trunk = params['trunk']
  if name == 'bert':
    pooled = np.tanh(np.asarray(hidden)[:, 0] @ np.asarray(trunk['pooler']['kernel']) + trunk['pooler']['bias'])
  else:
    pooled = np.stack([np.asarray(hidden)[row, size - 1] for row, (size,) in enumerate(ROWS)])
  expected = np.asarray(pooled) @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])
  assert tiny.worst(outputs, expected) < 1e-5
  nats = nats_of(outputs, batch['label'])
  assert float(loss.value) == pytest.approx(nats.mean(), rel=1e-5)
  means = tiny.means(loss.metrics)
  assert means['loss'] == pytest.approx(nats.mean(), rel=1e-5)
  assert means['accuracy'] == (np.asarray(outputs).argmax(-1) == [2, 0, 1, 2]).mean()


def test_regression_costs_the_squared_error():
  task = make_task('bert', kind='regression')
  batch = {**tiny.make_batch(ROWS), 'label': jnp.array([0.5, -2.0, 3.25, 1.0])}
  params = tiny.init_params(task, batch)
  (outputs, _), loss = run(task, batch, params)
  assert outputs.shape == (4, 1)
  errors = (np.asarray(outputs, np.float64)[:, 0] - [0.5, -2.0, 3.25, 1.0]) ** 2
  assert float(loss.value) == pytest.approx(errors.mean(), rel=1e-5)
  assert tiny.means(loss.metrics)['squared_error'] == pytest.approx(errors.mean(), rel=1e-5)
  predicted = predict(task, batch)
  assert tiny.worst(predicted['value'], np.asarray(outputs)[:, 0]) < 1e-6


def test_several_classes_cost_binary_cross_entropy():
  torch = pytest.importorskip('torch')
  task = make_task('bert', classes=3, several=True, threshold=0.4)
  flags = [[1, 0], [0, 0], [1, 1], [-1, -1]]  # the data have two classes of three, and no label in the last row
  batch = {**tiny.make_batch(ROWS), 'classes': jnp.array(flags)}
  params = tiny.init_params(task, batch)
  (outputs, _), loss = run(task, batch, params)
  gold = np.pad(flags[:3], ((0, 0), (0, 1)))
  logits = torch.tensor(np.asarray(outputs)[:3])
  expected = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(gold, dtype=torch.float32))
  assert float(loss.value) == pytest.approx(expected.item(), rel=1e-5)
  means = tiny.means(loss.metrics)
  assert means['loss'] == pytest.approx(expected.item(), rel=1e-5)
  predicted = predict(task, batch, params)
  assert tiny.worst(predicted['probability'], 1 / (1 + np.exp(-np.asarray(outputs, np.float64)))) < 1e-6
  assert np.allclose(predicted['threshold'], 0.4)
  assert means['subset_accuracy'] == ((np.asarray(predicted['probability'])[:3] > 0.4) == gold).all(axis=1).mean()
  # weights of classes: the mean of their terms
  weighted = make_task('bert', classes=3, several=True, class_weights=(1, 3, 0))
  terms = torch.nn.functional.binary_cross_entropy_with_logits(
    logits, torch.tensor(gold, dtype=torch.float32), weight=torch.tensor([0.25, 0.75, 0.0]), reduction='sum'
  )
  assert float(run(weighted, batch, params)[1].value) == pytest.approx(terms.item() / 3, rel=1e-5)
  assert make_task('bert', classes=1, several=True).classes == 1
  with pytest.raises(ValueError, match='label_smoothing'):
    make_task('bert', several=True, label_smoothing=0.1)


def test_predictions_are_labels_and_probabilities():
  batch = tiny.make_batch(ROWS)
  params = tiny.init_params(BERT, batch)
  (outputs, _), _ = run(BERT, batch, params)
  predicted = predict(BERT, batch, params)
  assert predicted['label'].tolist() == np.asarray(outputs).argmax(-1).tolist()
  shares = np.exp(np.asarray(outputs, np.float64))
  assert tiny.worst(predicted['probability'], shares / shares.sum(-1, keepdims=True)) < 1e-5
  assert predicted['row_id'].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize('name', ['bert', 'gpt'])
def test_rows_of_weight_zero_and_padding_count_for_nothing(name):
  task = {'bert': BERT, 'gpt': GPT}[name]
  batch = {**tiny.make_batch(ROWS), 'row_weight': jnp.array([1.0, 0, 1, 0])}
  params = tiny.init_params(task, batch)
  _, loss = run(task, batch, params)
  real = batch['segment_ids'] > 0
  noise = jnp.where(real & (batch['row_weight'] > 0)[:, None], batch['tokens'], 51)
  _, other = run(task, {**batch, 'tokens': noise, 'label': batch['label'].at[1].set(1)}, params)
  assert tiny.same(loss, other)
  pair = {name: value[jnp.array([0, 2, 0, 0])] for name, value in batch.items()}
  pair['row_weight'] = jnp.array([1.0, 1, 0, 0])
  assert tiny.worst(loss, run(task, pair, params)[1]) < 1e-6


LM = make_task('gpt', classes=3, lm_weight=0.5)


def test_l3_is_l2_and_half_of_l1():
  batch = tiny.make_batch(((16,), (7,), (11,), (2,)))
  params = tiny.init_params(LM, batch)
  (outputs, hidden), loss = run(LM, batch, params)
  own = nats_of(outputs, batch['label'])
  logits = np.asarray(hidden, np.float64) @ np.asarray(params['trunk']['token_embed']['table'], np.float64).T
  # the mean over the tokens of a text, then over texts (released code)
  texts = [
    np.mean([nats_of(logits[row, place][None], [tokens[place + 1]])[0] for place in range(size - 1)])
    for row, (size, tokens) in enumerate(zip((16, 7, 11, 2), np.asarray(batch['tokens']), strict=True))
  ]
  means = tiny.means(loss.metrics)
  assert means['task_loss'] == pytest.approx(own.mean(), rel=1e-5)
  assert means['lm_loss'] == pytest.approx(np.mean(texts), rel=1e-5)
  assert float(loss.value) == pytest.approx(own.mean() + 0.5 * np.mean(texts), rel=1e-5)
  assert means['loss'] == pytest.approx(float(loss.value), rel=1e-6)
  # without the term it is L2
  assert float(run(GPT, batch, params)[1].value) == pytest.approx(own.mean(), rel=1e-5)


def test_padding_on_the_left_is_as_good_as_on_the_right():
  batch = tiny.make_batch(ROWS)
  left = dict(batch)
  for name in ('tokens', 'segment_ids', 'type_ids'):
    left[name] = jnp.stack([jnp.roll(row, 16 - size) for row, (size,) in zip(batch[name], ROWS, strict=True)])
  params = tiny.init_params(LM, batch)
  ((outputs, _), ours), ((expected, _), theirs) = run(LM, left, params), run(LM, batch, params)
  assert tiny.worst((outputs, ours), (expected, theirs)) < 1e-5
  # nor does what stands in it matter, also not just before the first token
  noise = {**left, 'tokens': jnp.where(left['segment_ids'] > 0, left['tokens'], 9)}
  assert tiny.same(run(LM, noise, params)[1], ours)


def test_only_the_last_layer_is_new():
  batch = tiny.make_batch(ROWS)
  for name, pretraining, added in (('bert', mlm, {'pooler'}), ('gpt', causal_lm, set())):
    before = step.abstract_params(pretraining.make(trunk=tiny.make_trunk(name), vocab=tiny.VOCAB), tiny.spec(batch))
    after = step.abstract_params(make_task(name, classes=5), tiny.spec(batch))
    assert set(after) == {'trunk', 'head'}
    assert {name: leaf.shape for name, leaf in after['head'].items()} == {'kernel': (32, 5), 'bias': (5,)}
    # the trunk is that of pre-training, with the pooler that masked language modelling has no use for
    assert set(after['trunk']) == set(before['trunk']) | added
    for part, tree in before['trunk'].items():
      assert jax.tree.map(lambda leaf: leaf.shape, tree) == jax.tree.map(lambda leaf: leaf.shape, after['trunk'][part])


def test_an_untied_output_matrix_is_kept():
  task = make_task('gpt', fields={'tied': False})
  assert 'output' in step.abstract_params(task, tiny.spec(tiny.make_batch()))['trunk']


@pytest.mark.parametrize(('layer', 'index'), [(0, 0), (1, 1), (-2, 1)])
def test_any_layer_can_be_read(layer, index):
  batch = tiny.make_batch(ROWS)
  task = make_task('gpt', layer=layer)
  params = tiny.init_params(task, batch)
  (outputs, _), _ = run(task, batch, params)
  states = jax.jit(
    lambda params: task.model.trunk.apply({'params': params}, batch['tokens'], segment_ids=batch['segment_ids'])
  )(params['trunk'])['layers']
  pooled = np.stack([np.asarray(states)[index, row, size - 1] for row, (size,) in enumerate(ROWS)])
  assert tiny.worst(outputs, pooled @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])) < 1e-5


@pytest.mark.turns
@pytest.mark.parametrize('join', ['concat', 'sum', 'weighted', 'mix'])
@pytest.mark.parametrize('name', ['bert', 'gpt'])
def test_several_layers_can_be_read_each_pooled_by_itself(name, join):
  batch = tiny.make_batch(ROWS)
  weights = (0.5, -2.0, 1.5)
  task = make_task(
    name, classes=3, layers=(0, -2, -1), join=join, layer_weights=weights if join == 'weighted' else (), dropout=0.0
  )
  params = tiny.init_params(task, batch)
  (outputs, _), _ = run(task, batch, params)
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids')}
  out = jax.jit(lambda params: task.model.trunk.apply({'params': params}, **inputs))(params['trunk'])
  pooled = []
  for hidden in (out['layers'][0], out['layers'][1], out['hidden']):
    if name == 'gpt':
      pooled.append(np.stack([np.asarray(hidden)[row, size - 1] for row, (size,) in enumerate(ROWS)]))
    else:
      dense = params['trunk']['pooler']
      pooled.append(np.tanh(np.asarray(hidden)[:, 0] @ np.asarray(dense['kernel']) + np.asarray(dense['bias'])))
  if join == 'concat':
    joined = np.concatenate(pooled, axis=-1)
  else:
    if join == 'mix':
      mix = params['states']['mix']
      weights = float(mix['gamma']) * np.asarray(jax.nn.softmax(mix['weights']))
    joined = sum(weight * each for weight, each in zip(weights if join != 'sum' else (1, 1, 1), pooled, strict=True))
  assert params['head']['kernel'].shape == (96 if join == 'concat' else 32, 3)
  assert tiny.worst(outputs, joined @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])) < 1e-5


@pytest.mark.parametrize('settings', [{}, {'class_weights': (1.0, 2.0)}, {'label_smoothing': 0.1}])
def test_a_row_without_a_class_weighs_nothing(settings):
  task = make_task('bert', **settings)
  batch = tiny.make_batch()
  params = tiny.init_params(task, batch)
  none = {**batch, 'label': batch['label'].at[1].set(-1)}
  left_out = {**batch, 'row_weight': batch['row_weight'].at[1].set(0.0)}
  found, expected = (tiny.loss_and_gradient(task, params, one) for one in (none, left_out))
  assert tiny.worst(found, expected) < 1e-6
  assert np.isfinite(float(found[0].value))


def test_a_value_of_minus_one_is_a_value():
  task, batch = make_task('bert', kind='regression'), tiny.make_batch()
  batch['label'] = jnp.full(4, -1.0)
  params = tiny.init_params(task, batch)
  loss, _ = tiny.loss_and_gradient(task, params, batch)
  outputs, _ = task.model.apply({'params': params}, **task.prepare(jax.random.key(0), batch).inputs)
  assert float(loss.value) == pytest.approx(float(jnp.square(outputs[:, 0] + 1).mean()), rel=1e-5)


def test_weights_of_classes_weigh_as_in_torch():
  torch = pytest.importorskip('torch')
  weights = (0.25, 0.0, 0.125)  # less than 1 in all, and a class without weight
  task = make_task('bert', classes=3, class_weights=weights)
  batch = {**tiny.make_batch(ROWS), 'label': jnp.array([2, 0, 1, 2])}
  params = tiny.init_params(task, batch)
  (outputs, _), loss = run(task, batch, params)
  peer = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights))
  expected = float(peer(torch.tensor(np.asarray(outputs)), torch.tensor([2, 0, 1, 2])))
  assert float(loss.value) == pytest.approx(expected, rel=1e-5)
  assert tiny.means(loss.metrics)['loss'] == pytest.approx(expected, rel=1e-5)
  assert tiny.means(loss.metrics)['accuracy'] == (np.asarray(outputs).argmax(-1) == [2, 0, 1, 2]).mean()
  # over batches as well: sums and weights add up
  parts = [
    run(task, {name: value[rows] for name, value in batch.items()}, params)[1] for rows in (slice(2), slice(2, 4))
  ]
  sums = jax.tree.map(lambda a, b: a + b, *(part.metrics for part in parts))
  assert tiny.means(sums)['loss'] == pytest.approx(expected, rel=1e-5)


def test_labels_are_smoothed_as_in_torch():
  torch = pytest.importorskip('torch')
  task = make_task('bert', classes=3, label_smoothing=0.1)
  batch = {**tiny.make_batch(ROWS), 'label': jnp.array([2, 0, 1, 2])}
  params = tiny.init_params(task, batch)
  (outputs, _), loss = run(task, batch, params)
  given = torch.tensor(np.asarray(outputs)), torch.tensor([2, 0, 1, 2])
  smoothed, plain = (float(torch.nn.CrossEntropyLoss(label_smoothing=share)(*given)) for share in (0.1, 0.0))
  assert float(loss.value) == pytest.approx(smoothed, rel=1e-5)
  means = tiny.means(loss.metrics)
  assert (means['smoothed_loss'], means['loss']) == pytest.approx((smoothed, plain), rel=1e-5)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'label_smoothing': 0.1, 'kind': 'regression'}, r'adapter\.label_smoothing=0\.1.*regression'),
    ({'class_weights': (1, 2)}, r'adapter\.class_weights=\(1, 2\).*3'),
    ({'class_weights': (0, 0, 0)}, r'adapter\.class_weights=\(0, 0, 0\).*3'),
    ({'class_weights': (1,), 'kind': 'regression'}, r'adapter\.class_weights=\(1,\).*regression'),
    ({'class_weights': (1, 1, 1), 'lm_weight': 0.5}, r'adapter\.class_weights.*adapter\.lm_weight=0\.5'),
    ({'layer': -2, 'layers': (-1,)}, r'adapter\.layer=-2.*adapter\.layers=\(-1,\)'),
    ({'norms': True}, r'adapter\.norms=True.*adapter\.hidden=0'),
    ({'input_dropout': 0.4}, r'adapter\.input_dropout=0\.4.*adapter\.hidden=0'),
    ({'layers': (-1, -2), 'join': 'weighted'}, r"join='weighted'"),
  ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    make_task('gpt', **{'classes': 3, **settings})


def test_a_layer_that_is_not_there_is_refused():
  with pytest.raises(ValueError, match=r'adapter\.layers=\(12,\).*-3.*2'):
    tiny.init_params(make_task('bert', layer=12), tiny.make_batch(ROWS))


# Feature extraction and fine-tuning ---------------------------------------------------------------------------------


def test_a_frozen_trunk_is_kept():
  check_that_the_trunk_is_kept(make_task('bert', frozen=True, fields={'dropout': 0.5}), tiny.make_batch(ROWS))


def test_a_frozen_trunk_does_not_drop_out_and_gets_no_gradient():
  batch = tiny.make_batch(ROWS)
  dropout = {'dropout': 0.5, 'attention_dropout': 0.5}
  frozen, tuned = (make_task('bert', frozen=frozen, dropout=0.0, fields=dropout) for frozen in (True, False))
  params = tiny.init_params(frozen, batch)
  _, gradient = tiny.loss_and_gradient(frozen, params, batch, train=True)
  assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient['trunk']))
  assert all((np.asarray(leaf) != 0).all() for leaf in jax.tree.leaves(gradient['head']))
  example = tuned.prepare(jax.random.key(0), batch)

  @functools.partial(jax.jit, static_argnums=0)
  def outputs(task, params, key):
    return step.bind(task, params, train=True, rng=key)(**example.inputs)[0]

  keys = jax.random.key(0), jax.random.key(1)
  assert tiny.same(*(outputs(frozen, params, key) for key in keys))
  assert not tiny.same(*(outputs(tuned, params, key) for key in keys))


def test_fine_tuning_changes_every_tensor_of_every_layer():
  first, last = train(make_task('bert', dropout=0.0), tiny.make_batch(ROWS), rate=1e-2)
  old, new = (jax.tree_util.tree_leaves_with_path(state.params) for state in (first, last))
  for (path, before), (_, after) in zip(old, new, strict=True):
    path = paths.path_name(path)
    for layer in range(len(before)) if paths.is_stacked(path, before) else [...]:
      # nothing but decay moves a key bias: softmax does not see what is added to all logits of a query
      assert not tiny.same(before[layer], after[layer]), path


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r"adapter\.kind='rank'.*class, regression"):
    make_task(kind='rank')
  with pytest.raises(ValueError, match=r'adapter\.classes=1\b'):
    make_task(classes=1)
  with pytest.raises(ValueError, match=r"adapter\.activation='swish'.*gelu_erf, gelu_tanh, relu, silu, tanh"):
    make_task(hidden=8, activation='swish')
  with pytest.raises(ValueError, match=r'adapter\.hidden=-1'):
    make_task(hidden=-1)
  with pytest.raises(ValueError, match=r'classify.*causal.*Bert.*bidirectional'):
    make_task('bert', lm_weight=0.5)
  with pytest.raises(ValueError, match=r'adapter\.lm_weight=0\.5.*adapter\.frozen'):
    make_task(lm_weight=0.5, frozen=True)


def test_an_encoder_decoder_reads_the_text_on_both_sides():
  tokens = jnp.array([[5, 11, 12, 6, 0, 0], [0, 0, 0, 5, 13, 6], [9, 0, 0, 0, 0, 0]])
  segment_ids = (tokens > 0).astype(jnp.int32)
  inputs = texts.both_sides(tokens, segment_ids)
  assert tiny.same(inputs['encoder_tokens'], tokens)
  assert tiny.same(inputs['encoder_segment_ids'], segment_ids)
  assert tiny.same(inputs['decoder_segment_ids'], segment_ids)
  shifted = np.where(np.asarray(segment_ids) > 0, np.asarray(inputs['decoder_tokens']), 0)
  assert shifted.tolist() == [[6, 5, 11, 12, 0, 0], [0, 0, 0, 6, 5, 13], [9, 0, 0, 0, 0, 0]]


def test_an_encoder_decoder_is_classified_by_the_last_state_of_its_decoder():
  trunk = bart.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=tiny.SIZES)
  task = classify.make(trunk=trunk, vocab=tiny.VOCAB, classes=3, dropout=0.0)
  batch = tiny.make_batch(ROWS)
  params = tiny.init_params(task, batch)
  (outputs, hidden), _ = run(task, batch, params)
  given = texts.both_sides(batch['tokens'], batch['segment_ids'])
  states = np.asarray(jax.jit(lambda: trunk.apply({'params': params['trunk']}, **given)['hidden'])())
  assert tiny.worst(hidden, states) < 1e-6
  pooled = np.stack([states[row, size - 1] for row, (size,) in enumerate(ROWS)])
  expected = pooled @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])
  assert tiny.worst(outputs, expected) < 1e-5


def test_the_mean_is_of_the_real_tokens():
  hidden = np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32)
  segment_ids = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0]])
  expected = np.stack([hidden[0, :3].mean(axis=0), hidden[1, 1:].mean(axis=0), np.zeros(4)])
  np.testing.assert_allclose(pooling.mean(jnp.asarray(hidden), jnp.asarray(segment_ids)), expected, atol=1e-6)


def test_pooling_by_the_mean_needs_no_pooler():
  task = classify.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, classes=3, pool='mean')
  batch = tiny.make_batch() | {'label': np.array([0, 1, 2, 0], np.int32)}
  assert 'pooler' not in tiny.init_params(task, batch)['trunk']
  with pytest.raises(ValueError, match='trunk, mean, concat'):
    classify.make(trunk=tiny.make_trunk(), vocab=tiny.VOCAB, pool='max')


def test_the_head_of_ulmfit():
  """[last; largest; mean] under two layers with relu, and a norm before each; by numpy on each row without padding."""
  settings = {'pool': 'concat', 'hidden': 5, 'activation': 'relu', 'norms': True}
  task, batch = make_task('gpt', classes=3, **settings), tiny.make_batch(ROWS)
  params = tiny.init_params(task, batch)
  (outputs, hidden), _ = run(task, batch, params)
  head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params['head'])

  def norm(x, own):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * own['scale'] + own['bias']

  for row, (size,) in enumerate(ROWS):
    states = np.asarray(hidden, np.float64)[row, :size]
    x = norm(np.concatenate([states[-1], states.max(axis=0), states.mean(axis=0)]), head['input_norm'])
    x = np.maximum(x @ head['hidden']['kernel'] + head['hidden']['bias'], 0)
    expected = norm(x, head['hidden_norm']) @ head['out']['kernel'] + head['out']['bias']
    assert tiny.worst(outputs[row], expected) < 1e-5, row


BATCH_NORMS = {'pool': 'concat', 'hidden': 5, 'activation': 'relu', 'norms': 'batch', 'dropout': 0.0}
AVERAGES = [f'head/{norm}/{name}' for norm in ('hidden_norm', 'input_norm') for name in ('mean', 'variance')]


@functools.cache
def with_batch_norms():
  """A task, a batch with a row of padding, an optimiser with decay and a first state."""
  task = make_task('gpt', classes=3, **BATCH_NORMS)
  batch = tiny.make_batch((*ROWS[:3], ()))
  tx = tiny.make_optimiser(task, batch, name='adamw', rate=0.1, decay=0.5)
  return task, batch, tx, tiny.make_state(task, batch, tx)


def test_the_head_of_ulmfit_normalises_over_the_batch():
  """A step by numpy: what is trained on, the averages behind it, and what is predicted from these."""
  task, batch, tx, state = with_batch_norms()
  head = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state.params['head'])
  outputs, hidden, kept = step.bind(task, state.params, train=True, rng=jax.random.key(0))(
    tokens=batch['tokens'], segment_ids=batch['segment_ids']
  )
  states = [np.asarray(hidden, np.float64)[row, :size] for row, (size,) in enumerate(ROWS[:3])]
  x = np.stack([np.concatenate([own[-1], own.max(axis=0), own.mean(axis=0)]) for own in states])
  wanted = {}

  def norm(x, name):
    averages = {'mean': x.mean(axis=0), 'variance': x.var(axis=0, ddof=1)}
    wanted.update({f'head/{name}/{key}': 0.9 * head[name][key] + 0.1 * value for key, value in averages.items()})
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5) * head[name]['scale'] + head[name]['bias']

  inner = np.maximum(norm(x, 'input_norm') @ head['hidden']['kernel'] + head['hidden']['bias'], 0)
  expected = norm(inner, 'hidden_norm') @ head['out']['kernel'] + head['out']['bias']
  assert tiny.worst(outputs[:3], expected) < 1e-4
  assert sorted(kept) == sorted(wanted) == AVERAGES
  assert tiny.worst(kept, wanted) < 1e-5
  new, _ = jax.jit(functools.partial(step.train_step, task=task, tx=tx))(state, batch, jax.random.key(0))
  leaves = paths.flat(new.params)
  assert tiny.worst({path: leaves[path] for path in AVERAGES}, wanted) < 1e-5  # decay has no part in them
  # an evaluation reads them, row by row
  rows = [predict(task, {key: value[:count] for key, value in batch.items()}, new.params) for count in (1, 4)]
  assert tiny.worst(rows[0]['probability'][0], rows[1]['probability'][0]) < 1e-6


def test_copies_that_fill_a_batch_up_have_no_part_in_batch_norms():
  """The last batch of an epoch holds rows of weight 0, which are copies of another."""
  task, _, _, state = with_batch_norms()
  alone = tiny.make_batch(ROWS[:3])
  filled = tiny.make_batch((*ROWS[:3], ROWS[0], ROWS[0]))
  filled = {**filled, 'row_weight': jnp.array([1.0, 1, 1, 0, 0])}

  @jax.jit
  def trained_on(batch):
    example = task.prepare(jax.random.key(0), keys.with_step(batch, 0))
    forward = step.bind(task, state.params, train=True, rng=jax.random.key(0))
    return task.loss(forward, example, (), jax.random.key(0))

  wanted, found = map(trained_on, (alone, filled))
  assert sorted(found.kept) == AVERAGES
  assert tiny.worst((found.value, found.kept), (wanted.value, wanted.kept)) < 1e-6


def test_averages_of_batch_norms_are_updated_by_themselves_alone():
  """Decay, and Adam's step for it, have no part in them, nor in an average of the parameters."""
  task, batch, _, _ = with_batch_norms()
  states = {}
  for decay in (0.0, 0.5):
    tx = tiny.make_optimiser(task, batch, name='adam', rate=0.1, decay=decay, ema=0.5)
    states[decay], _ = jax.jit(functools.partial(step.train_step, task=task, tx=tx))(
      tiny.make_state(task, batch, tx), batch, jax.random.key(0)
    )
    first, live = (paths.flat(one.params) for one in (tiny.make_state(task, batch, tx), states[decay]))
    averaged = paths.flat(tx.eval_params(states[decay].opt_state, states[decay].params))
    for path in AVERAGES:
      assert not tiny.same(live[path], first[path])
      assert tiny.worst(averaged[path], (first[path] + live[path]) / 2) < 1e-6, path
  without, decayed = (paths.flat(states[decay].params) for decay in (0.0, 0.5))
  assert all(tiny.worst(without[path], decayed[path]) < 1e-7 for path in AVERAGES)
  assert not tiny.same(without['head/out/kernel'], decayed['head/out/kernel'])


def test_what_a_loss_keeps_has_to_be_a_parameter():
  task, batch, tx, state = with_batch_norms()
  wrong = task._replace(loss=lambda *given: task.loss(*given)._replace(kept={'head/men': jnp.zeros(5)}))
  with pytest.raises(KeyError, match="'head/men'"):
    step.train_step(state, batch, jax.random.key(0), task=wrong, tx=tx)


def test_batch_norms_refuse_a_batch_of_one_row():
  settings = {
    'accumulate': 1,
    'adapter': {'name': 'classify', 'classes': 3, **BATCH_NORMS},
    'data': {'batch_size': 1, 'length': 8},
  }
  with pytest.raises(errors.ConfigError, match=r"data\.batch_size=1.*'classify'"):
    training_parts.parts_of(tiny.make_trunk('gpt'), settings, tiny.VOCAB)


def test_a_step_that_is_skipped_leaves_the_averages():
  task, batch, tx, state = with_batch_norms()
  params = paths.nested(paths.flat(state.params) | {'head/out/bias': jnp.full(3, jnp.nan)})
  broken = state.replace(params=params)
  new, metrics = jax.jit(functools.partial(step.train_step, task=task, tx=tx))(broken, batch, jax.random.key(0))
  assert float(metrics['skipped'][0]) == 1
  old, leaves = paths.flat(state.params), paths.flat(new.params)
  assert all(tiny.same(leaves[path], old[path]) for path in AVERAGES)


def test_batch_norms_need_the_whole_batch():
  task, batch, tx, state = with_batch_norms()
  with pytest.raises(ValueError, match='accumulate'):
    step.train_step(state, batch, jax.random.key(0), task=task, tx=tx, accumulate=2)
  settings = {'accumulate': 2, 'adapter': {'name': 'classify', 'classes': 3, **BATCH_NORMS}}
  with pytest.raises(errors.ConfigError, match=r"accumulate=2.*'classify'"):
    training_parts.parts_of(tiny.make_trunk('gpt'), settings, tiny.VOCAB)
  parts = {'one': {'name': 'classify', **BATCH_NORMS}}
  with pytest.raises(ValueError, match=r"adapter\.parts.*'one'.*norms=True"):
    multitask.make(trunk=tiny.make_trunk('gpt'), vocab=tiny.VOCAB, parts=parts)


@pytest.mark.parametrize('wrapper', ['lora', 'distil'])
def test_a_wrapper_hands_on_what_batch_norms_keep(wrapper):
  """Averages behind a step are those of the task alone, where LoRA adds zeros and where distil has a teacher beside."""
  own = {'name': 'classify', 'classes': 3, **BATCH_NORMS}
  more = {'teacher': {'name': 'gpt', 'variant': 'tiny', 'overrides': tiny.SIZES}} if wrapper == 'distil' else {}
  block = {'name': wrapper, 'inner': own, **more}
  task = build.make('adapters', block, trunk=tiny.make_trunk('gpt'), vocab=tiny.VOCAB)
  alone, batch, _, _ = with_batch_norms()
  tx = tiny.make_optimiser(task, batch, name='adam', rate=0.1)
  state = tiny.make_state(task, batch, tx)
  zeros = {path: jnp.zeros_like(leaf) for path, leaf in paths.flat(state.params).items() if path.startswith('lora/')}
  state = state.replace(params=paths.nested(paths.flat(state.params) | zeros))
  new, _ = jax.jit(functools.partial(step.train_step, task=task, tx=tx))(state, batch, jax.random.key(0))
  params = {name: state.params[name] for name in ('trunk', 'head')}
  loss, _ = tiny.loss_and_gradient(alone, params, batch, train=True)
  leaves = paths.flat(new.params)
  assert sorted(loss.kept) == AVERAGES
  assert tiny.worst({path: leaves[path] for path in AVERAGES}, dict(loss.kept)) < 1e-5


def test_what_a_trunk_holds_fixed_stays_so_under_an_adapter():
  """CoVe's vectors of words, of which those of words that a file lacks are zero."""
  trunk = SimpleNamespace(FIXED=('token_embed/table',))
  (pattern,) = texts.trained(False, trunk)
  paths = {'trunk/token_embed/table': False, 'trunk/lstm_0/kernel': True, 'head/kernel': True}
  assert {path: bool(re.fullmatch(pattern, path)) for path in paths} == paths
  assert texts.trained(False, SimpleNamespace()) == EVERYTHING
  assert texts.trained(True, trunk) == HEADS
