"""Distillation: each term against a plain one, what the teacher must not do, where a student starts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import checkpoint, optim
from plm_jax.checkpoint import init_from
from plm_jax.config import build
from plm_jax.layers import losses
from plm_jax.noise import keys
from plm_jax.objectives import distill, mlm
from tests import learning, tiny

pytestmark = pytest.mark.turns

V = tiny.VOCAB
SMALL = {'num_layers': 1, 'hidden_dim': 16, 'mlp_dim': 32}
TEACHER = {'name': 'bert', 'variant': 'tiny', 'overrides': {**tiny.SIZES, **SMALL, 'num_layers': 2, 'num_heads': 4}}
BATCH = tiny.make_batch()


def make_task(**settings):
  settings = {'teacher': TEACHER, 'where': {'name': 'fixed_count', 'rate': 0.4}} | settings
  return distill.make(trunk=tiny.make_trunk('bert', num_types=0, **SMALL), vocab=V, **settings)


@functools.cache
def run(**settings):
  """(task, parameters, Loss, gradient) at step 0, with dropout on where there is any."""
  task = make_task(**settings)
  params = tiny.init_params(task, BATCH)
  return task, params, *tiny.loss_and_gradient(task, params, BATCH, train=True)


@functools.cache
def numbers():
  """(student's and teacher's states and logits at all positions, example), computed apart from the task's loss."""
  task, params, *_ = run()
  example = jax.jit(task.prepare)(keys.noise_root(jax.random.key(0)), keys.with_step(BATCH, 0))
  inputs = {name: value for name, value in example.inputs.items() if name != 'predict'}
  everywhere = jnp.broadcast_to(jnp.arange(16), (4, 16))

  @jax.jit
  def compute(params):
    teacher = mlm.Model(task.model.teacher.trunk, task.model.teacher.mlm)
    student = mlm.Model(task.model.trunk, task.model.mlm)
    own = {name: params[name] for name in ('trunk', 'mlm')}
    return [
      (
        model.trunk.clone(parent=None).apply({'params': tree['trunk']}, **inputs)['hidden'],
        model.apply({'params': tree}, predict=everywhere, **inputs),
      )
      for model, tree in ((student, own), (teacher, params['teacher']))
    ]

  return jax.tree.map(lambda x: np.asarray(x, np.float64), compute(params)), example


# Formulas -----------------------------------------------------------------------------------------------------------


def test_divergence_and_cosine_equal_torch():
  torch = pytest.importorskip('torch')
  draw = np.random.default_rng(0)
  student, teacher = draw.normal(0, 3, (2, 7, 11))
  for temperature in (1.0, 2.0):
    theirs = torch.nn.functional.kl_div(
      torch.log_softmax(torch.tensor(student) / temperature, -1),
      torch.softmax(torch.tensor(teacher) / temperature, -1),
      reduction='batchmean',
    )
    ours = losses.divergence(jnp.asarray(student), jnp.asarray(teacher), temperature=temperature)
    assert float(ours.mean()) == pytest.approx(float(theirs) * temperature**2, rel=1e-5)
  theirs = torch.nn.functional.cosine_embedding_loss(torch.tensor(student), torch.tensor(teacher), torch.ones(7))
  assert float(distill.cosine_distance(student, teacher).mean()) == pytest.approx(float(theirs), rel=1e-5)


def test_divergence_is_zero_between_equals_and_not_symmetric():
  a, b = jnp.array([1.0, 2.0, -1.0]), jnp.array([0.0, 0.5, 3.0])
  one = functools.partial(losses.divergence, temperature=2.0)
  assert float(one(a, a)) == pytest.approx(0, abs=1e-7)
  assert float(one(a, a + 5)) == pytest.approx(0, abs=1e-6)
  assert float(one(a, b)) != pytest.approx(float(one(b, a)), rel=1e-2)


def test_cosine_distance_of_known_angles():
  x = jnp.array([1.0, 0.0])
  others = jnp.array([[2.0, 0], [0, 3], [-1, 0], [0, 0]])
  np.testing.assert_allclose(distill.cosine_distance(x, others), [0, 1, 2, 1], atol=1e-6)


# The objective ------------------------------------------------------------------------------------------------------


def test_loss_equals_a_naive_one():
  _, _, loss, _ = run()
  ((hidden, logits), (taught, known)), example = numbers()
  real = np.asarray(BATCH['segment_ids']) > 0
  p, q = (np.exp(x / 2) / np.exp(x / 2).sum(-1, keepdims=True) for x in (known, logits))
  kl = (p * np.log(p / q)).sum(-1)[real].mean() * 4
  cosine = (hidden * taught).sum(-1) / np.linalg.norm(hidden, axis=-1) / np.linalg.norm(taught, axis=-1)
  share = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
  used = np.asarray(example.targets['weights']) > 0
  rows, places = np.nonzero(used)[0], np.asarray(example.inputs['predict'])[used]
  nats = -np.log(share[rows, places, np.asarray(example.targets['ids'])[used]]).mean()
  means = tiny.means(loss.metrics)
  assert means['kl_loss'] == pytest.approx(kl, rel=1e-5)
  assert means['mlm_loss'] == pytest.approx(nats, rel=1e-5)
  assert means['cosine_loss'] == pytest.approx((1 - cosine)[real].mean(), rel=1e-5)
  assert float(loss.value) == pytest.approx(5 * kl + 2 * nats + (1 - cosine)[real].mean(), rel=1e-5)
  assert means['loss'] == pytest.approx(float(loss.value), rel=1e-5)


def test_other_weights_and_positions():
  settings = {'kl_weight': 3.0, 'mlm_weight': 0.0, 'cosine_weight': 0.0, 'mse_weight': 0.5, 'positions': 'masked'}
  _, _, loss, _ = run(**settings)
  ((_, logits), (_, known)), example = numbers()
  used = np.asarray(example.targets['weights']) > 0
  rows, places = np.nonzero(used)[0], np.asarray(example.inputs['predict'])[used]
  p, q = (np.exp(x / 2) / np.exp(x / 2).sum(-1, keepdims=True) for x in (known, logits))
  kl = (p * np.log(p / q)).sum(-1)[rows, places].mean() * 4
  mse = np.square(known - logits).sum(-1)[rows, places].mean()
  means = tiny.means(loss.metrics)
  assert set(means) == {'kl_loss', 'mse_loss', 'loss'}
  assert means['mse_loss'] == pytest.approx(mse, rel=1e-5)
  assert float(loss.value) == pytest.approx(3 * kl + 0.5 * mse, rel=1e-5)


def test_the_teacher_gets_no_gradient_and_does_not_drop_out():
  _, params, loss, gradient = run()
  assert all(float(jnp.abs(leaf).max()) == 0 for leaf in jax.tree.leaves(gradient['teacher']))
  assert all(float(jnp.abs(leaf).max()) > 0 for leaf in jax.tree.leaves(gradient['mlm']))
  wild = {**TEACHER, 'overrides': {**TEACHER['overrides'], 'dropout': 0.5, 'attention_dropout': 0.5}}
  other = make_task(teacher=wild)
  assert other.model.teacher.trunk.config.dropout == 0.5
  same, _ = tiny.loss_and_gradient(other, params, BATCH, train=True)
  assert tiny.same(same, loss)


def test_a_frozen_teacher_stays_as_it_is():
  task, params, *_ = run()
  tx = tiny.make_optimiser(task, BATCH, decay=0.1, scale=(('teacher/.*', None), ('.*', 1.0)))
  trainable, frozen = tx.split(params)
  assert all(leaf is None for leaf in jax.tree.leaves(trainable['teacher'], is_leaf=lambda leaf: leaf is None))
  assert tiny.same(frozen['teacher'], params['teacher'])
  assert tiny.same(optim.merge(trainable, frozen), params)


def test_a_student_starts_from_layers_of_its_teacher(tmp_path):
  pretrained = mlm.make(trunk=tiny.make_trunk('bert', **SMALL | {'num_layers': 12, 'num_heads': 4}), vocab=V)
  source = tiny.init_params(pretrained, BATCH, seed=5)
  checkpoint.save_params(tmp_path, source)
  teacher = {**TEACHER, 'overrides': {**TEACHER['overrides'], 'num_layers': 12}}
  trunk = tiny.make_trunk('bert', num_types=0, **SMALL | {'num_layers': 6, 'num_heads': 4})
  task = distill.make(trunk=trunk, vocab=V, teacher=teacher, where={'name': 'fixed_count'})
  kept = (0, 2, 4, 7, 9, 11)
  params, report = init_from.initialise(
    tiny.init_params(task, BATCH),
    [
      {'source': tmp_path, 'from_': '', 'to': 'teacher'},
      {'source': tmp_path, 'layers': kept},
      {'source': tmp_path, 'from_': 'mlm', 'to': 'mlm'},
    ],
  )
  assert report.new == ()
  assert report.skipped == (f'{tmp_path}:trunk/type_embed/table',)
  assert tiny.same(params['teacher'], source)
  assert tiny.same(params['mlm'], source['mlm'])
  for ours, theirs in zip(*map(jax.tree.leaves, (params['trunk']['layers'], source['trunk']['layers'])), strict=True):
    assert tiny.same(ours, theirs[jnp.array(kept)])
  assert tiny.same(params['trunk']['token_embed'], source['trunk']['token_embed'])


def test_rare_tokens_are_masked_by_the_counts_of_the_vocabulary():
  counts = np.full(V.size, 1000)
  counts[7:20] = 1
  trunk = tiny.make_trunk('bert', **SMALL)
  task = distill.make(trunk=trunk, vocab=tiny.FakeVocab(counts=counts), teacher=TEACHER)
  batch = tiny.make_batch([[16]] * 100)
  example = jax.jit(task.prepare)(jax.random.key(0), keys.with_step(batch, 0))
  chosen = np.asarray(example.targets['ids'])[np.asarray(example.targets['weights']) > 0]
  tokens = np.asarray(batch['tokens'])
  rare = lambda ids: ((ids >= 7) & (ids < 20)).mean()  # noqa: E731
  assert rare(chosen) > 2 * rare(tokens[tokens > 6])
  with pytest.raises(ValueError, match=r'how often each token is|counts'):
    distill.make(trunk=trunk, vocab=tiny.FakeVocab(counts=None), teacher=TEACHER)


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r'\b16 .*teacher.* 32'):
    make_task(teacher={**TEACHER, 'overrides': tiny.SIZES})
  make_task(teacher={**TEACHER, 'overrides': tiny.SIZES}, cosine_weight=0.0)
  with pytest.raises(ValueError, match='all, masked'):
    make_task(positions='some')
  with pytest.raises(ValueError, match=r'temperature=0\.0'):
    make_task(temperature=0.0)
  with pytest.raises(ValueError, match=r'objective\.kl_weight=0'):
    make_task(kl_weight=0.0, mlm_weight=0.0, cosine_weight=0.0)
  with pytest.raises(ValueError, match=r"'distill'.*bidirectional"):
    distill.make(trunk=tiny.make_trunk('gpt'), vocab=V, teacher=TEACHER)


@pytest.mark.slow
def test_sixty_steps_lower_the_held_out_loss():
  """With a teacher that has learned what is taught: one that has not says otherwise than the text."""
  trunk = build.make('models', TEACHER, vocab_size=V.size)
  *_, taught = learning.run(mlm.make(trunk=trunk, vocab=V, where={'name': 'fixed_count', 'rate': 0.4}), steps=120)
  before, after = learning.held_out(make_task(), given={'teacher': taught}, scale=(('teacher/.*', None), ('.*', 1.0)))
  for name in ('loss', 'kl_loss', 'mlm_loss', 'cosine_loss'):
    assert after[name] < 0.8 * before[name], name
