"""What tests of adapters share: a task run once, its predictions, a few steps of training, peers of transformers."""

import functools

import jax
import numpy as np
import pytest

from plm_jax.noise import keys
from plm_jax.training import step
from tests import tiny

KEY = jax.random.key(0)


@functools.cache
def _function(task):
  """(what the model returns, Loss) of a batch by its parameters, compiled once."""

  @jax.jit
  def run(params, batch):
    example = task.prepare(KEY, keys.with_step(batch, 0))
    forward = step.bind(task, params, train=False, rng=KEY)
    return forward(**example.inputs), task.loss(forward, example, (), KEY)

  return run


def run(task, batch, params=None):
  """What the model returns and the loss of a batch, without dropout."""
  return _function(task)(tiny.init_params(task, batch) if params is None else params, batch)


@functools.cache
def _predictor(task):
  return jax.jit(functools.partial(step.predict_step, task=task))


def predict(task, batch, params=None):
  """The predictions of a batch."""
  return _predictor(task)(tiny.init_params(task, batch) if params is None else params, batch, KEY)


def start(task, batch):
  """Fresh parameters, as a run begins with them."""
  return jax.jit(lambda: step.nn.unbox(step.init_params(task, tiny.spec(batch), KEY)))()


@functools.cache
def _evaluator(task):
  return jax.jit(functools.partial(step.eval_step, task=task))


def metrics(task, batch, params):
  """What an evaluation measures of a batch, as sums and weights."""
  return _evaluator(task)(params, batch, (), KEY)[0]


def train(task, batch, *, steps=2, **settings):
  """The state before and after a few steps of AdamW with decay."""
  tx = tiny.make_optimiser(task, batch, **{'decay': 0.1, **settings})
  first = state = tiny.make_state(task, batch, tx)
  update = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  for _ in range(steps):
    state, _ = update(state, batch, KEY)
  return first, state


def check_that_the_trunk_is_kept(task, batch):
  """It gets no gradient, no weight decay and no optimiser state; every tensor beside it trains."""
  _, gradient = tiny.loss_and_gradient(task, tiny.init_params(task, batch), batch, train=True)
  assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient['trunk']))
  first, last = train(task, batch)
  assert tiny.same(last.params['trunk'], first.params['trunk'])
  heads = [{name: tree for name, tree in state.params.items() if name != 'trunk'} for state in (first, last)]
  assert not any(tiny.same(old, new) for old, new in zip(*map(jax.tree.leaves, heads), strict=True))
  held = sum(leaf.size for leaf in jax.tree.leaves(last.opt_state))
  assert held < 3 * sum(leaf.size for leaf in jax.tree.leaves(heads[1])) + 10


def nats_of(scores, labels):
  """-log softmax(scores)[label] of each row, in float64."""
  scores = np.asarray(scores, np.float64)
  return np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(labels)), np.asarray(labels)]


def torch_inputs(batch):
  """Tokens, and the keywords of a model of transformers that reads them, as tensors of torch."""
  torch = pytest.importorskip('torch')
  given = {name: torch.tensor(np.asarray(batch[name])).long() for name in ('tokens', 'segment_ids', 'type_ids')}
  return given['tokens'], {'attention_mask': given['segment_ids'], 'token_type_ids': given['type_ids']}


def their_bert(kind):
  """A small model of a class of transformers, as 'BertForQuestionAnswering', none of whose parameters is 0 or 1."""
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  torch.manual_seed(0)
  fields = {'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 64}
  settings = transformers.BertConfig(vocab_size=61, max_position_embeddings=32, **fields)
  return shaken(getattr(transformers, kind)(settings))


def shaken(model):
  """A model of torch in evaluation, with noise on its parameters."""
  torch = pytest.importorskip('torch')
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  return model.eval()
