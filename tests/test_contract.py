"""What every model, objective and adapter keeps to; a new file in one of the three folders is tested the day it lands.

Tests go by names of files. What they build is built inside them, so a broken file fails its own tests and no others:

  objectives/mlm         the task on the first model that it accepts
  models/t5              the first task that accepts the model; skipped where that pair stands for a task already
  objectives/mlm-albert  any pair, in long tests; skipped where the task refuses the model

What files decide and no pair changes is not asked of pairs: places under every table, the same numbers outside of jit.

A file whose `make` has keywords without defaults gets a line in `SETTINGS`, a parameter that rightly has no gradient
gets one in `NO_GRADIENT`.
"""

import dataclasses
import functools
import importlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, get_args

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import build, signatures
from plm_jax.core import sharding
from plm_jax.core.batch import BATCH, axes_of
from plm_jax.core.errors import require
from plm_jax.core.param_paths import flat, is_stacked, path_name, virtual_paths
from plm_jax.core.trunk import Attends, AttentionKind, SharesTokens
from plm_jax.core.types import Batch, Execution, Paper, Task
from plm_jax.noise import keys
from plm_jax.training.step import (
  abstract_params,
  advanced,
  eval_step,
  init_params,
  predict_step,
  state_maker,
  train_step,
)
from tests import tiny

# keywords of `make`, by file: those without a default, and dropout of a head's own
SETTINGS: dict[str, dict[str, Any]] = {
  'fasttext': {'buckets': 21, 'subsample': 0.0},
  'bottleneck': {'width': 8, 'inner': {'name': 'classify', 'dropout': 0.0}},
  'choose': {'dropout': 0.0},
  'classify': {'dropout': 0.0},
  'cloze': {'words': ('a', 'b', 'c', 'd')},
  'denoise_seq2seq': {
    'rearrange': ({'name': 'rotate', 'rate': 0.5},),
    'where': {'name': 'poisson_spans'},
    'edit': {'name': 'collapse_to_mask'},
    'target': 'text',
    'start': 'eos',
    'append_eos': False,
  },
  'distil': {
    'teacher': {'name': 'bert', 'variant': 'tiny', 'overrides': tiny.SIZES},
    'inner': {'name': 'classify', 'dropout': 0.0},
  },
  'lora': {'inner': {'name': 'classify', 'dropout': 0.0}},
  'mixture': {
    'parts': {
      'bert': {'name': 'mlm'},
      'iid': {'name': 'mlm', 'where': {'name': 'iid', 'rate': 0.3}, 'edit': {'name': 'to_mask'}},
    },
    'rates': {'bert': 0.5, 'iid': 0.5},
  },
  'prune': {'inner': {'name': 'classify', 'dropout': 0.0}},
  'quantise': {'inner': {'name': 'classify', 'dropout': 0.0}},
  'prefix': {'length': 3, 'mlp_dim': 16, 'inner': {'name': 'classify', 'dropout': 0.0}},
  'scalar_mix': {
    'inner': {'name': 'tag', 'tags': ('O', 'B-name', 'I-name'), 'dropout': 0.0},
    'vectors': 4,
    'dropout': 0.0,
    'penalty': 0.1,
  },
  'multiview': {'tags': {'one': ('O', 'B-name', 'I-name')}, 'hidden': 16, 'unlabelled_dropout': 0.0},
  'parse': {'relations': ('root', 'subject', 'object'), 'width': 8, 'dropout': 0.0},
  'multitask': {'parts': {'one': {'name': 'classify', 'dropout': 0.0}, 'two': {'name': 'classify', 'dropout': 0.0}}},
  'similarity': {'dropout': 0.0},
  'tag': {'tags': ('O', 'B-name', 'I-name'), 'dropout': 0.0},
  'translate': {'word_dim': 16, 'dropout': 0.0},
  'translate_views': {'word_dim': 16, 'dropout': 0.0, 'attention_dropout': 0.0},
  'translate_bart': {'source': {'name': 'bert', 'variant': 'tiny', 'overrides': tiny.SIZES}, 'stage': 'second'},
  'span_boundary': {'where': {'name': 'geometric_spans', 'rate': 0.3, 'max_words': 1}},
  'rtd': {'sharing': 'all', 'weight': 1.0},
  'distill': {'teacher': {'name': 'bert', 'variant': 'tiny', 'overrides': tiny.SIZES}},
}
# (file, or folder or name of the task and model; pattern of parameters): why they get no gradient
NO_GRADIENT: dict[tuple[str, str], str] = {
  ('', r'(?!.*prefix/trunk/).*/key/bias'): 'softmax does not see what is added to all logits of a query',
  ('distill', r'teacher/.*'): 'the teacher is frozen',
  ('distil', r'distil/.*'): 'the teacher is frozen',
  ('prune', r'prune/.*'): 'masks follow the weights',
  ('quantise', r'quantise/.*'): 'scales follow the weights',
  ('choose', r'.*head/bias'): 'softmax does not see what is added to all options',
  ('choose', r'trunk/(final_norm|decoder/layers/1/mlp_norm)/bias'): 'nor the bias of the last norm, without a pooler',
  ('span', r'.*head/bias'): 'softmax does not see what is added to all places of a row',
  ('span', r'trunk/(final_norm|last/mlp_norm|decoder/layers/1/mlp_norm)/bias'): 'nor the bias of the last norm',
  ('span-bert', r'trunk/layers/1/mlp_norm/bias'): 'which in BERT is that of the last layer',
  ('span-xlnet', r'trunk/layers/1/mlp_norm/bias'): 'and in XLNet',
  ('scalar_mix', r'trunk/(?!scalar_mix/|vectors/).*'): 'the trunk is frozen',
  ('contrastive-gpt_bert', r'trunk/head/.*'): 'no logits',
  ('minimal_pairs-xlnet', r'trunk/layers/./type(s|_bias)'): 'softmax does not see what is added to all words',
  ('adapters-gpt_bert', r'trunk/head/.*'): 'no logits',
  ('multitask', r'two/.*'): 'the rows are those of another part',
  ('multiview', r'text/.*'): 'the rows are labelled',
  ('translate_views', r'text/.*'): 'the rows have translations',
  **{
    (f'{name}-cvt', r'trunk/words/(character|filters).*'): 'noise is of tokens, and says nothing of letters'
    for name in ('contrastive', 'distill', 'mixture', 'mlm', 'rtd', 'sentence_pair', 'span_boundary')
  },
  ('cloze-cvt', r'trunk/words/(character|filters).*'): 'a blank is read as in pre-training, without letters',
  ('adapters-xlnet', r'trunk/start/vector'): 'fine-tuning has no query stream',
  ('adapters-awd_lstm', r'trunk/output_bias/bias'): 'an adapter predicts no tokens',
  ('contrastive', r'trunk/output_bias/bias'): 'rows are compared, and no tokens are predicted',
  ('adapters-llama', r'trunk/output/table'): 'an adapter predicts no tokens',
  ('ranking', r'first/bias'): 'two windows have it alike while hard tanh is linear, as it is of small vectors',
  ('contrastive', r'trunk/output/table'): 'rows are compared, and no tokens are predicted',
}
ROUNDED = 0.05  # a gradient below is compared with the rounding of numbers of this size, of which it is a sum
RATES = {
  'similarity': 0.005,  # two texts, and the sum of two states
  'distil-lstm': 0.01,
  'distil-cnn': 0.01,
  'multitask-glm': 0.01,
  'multiview-cvt': 0.5,
  'choose-elmo': 0.5,
}  # of the step, where .05 is too far or not enough
# of gradients summed in two ways, where not 1e-5, since terms cancel
SUMMED = {
  'similarity-elmo': 3e-5,  # the character of padding is read 6,000 times
  'similarity-cvt': 3e-5,  # as the bias of a filter is: a gradient of .0002
  'bottleneck-albert': 1e-4,  # rows of both classes: a gradient of .0007, the sum of four of .1
  # the weight of a layer's result that a norm rescales: .005 where others have .15, and the difference is 2e-7
  **dict.fromkeys(('classify-gpt_bert', 'quantise-gpt_bert'), 1e-4),
}
STATES = {'awd_lstm': 2, 'static': 1}  # embeddings counted, where not 3; AWD-LSTM's first layer has another width
WRITERS = ('cloze', 'prompt', 'sequence', 'translate_bart')  # adapters that predict tokens

MODELS = sorted(signatures.names('models'), key=lambda name: name not in ('bert', 'gpt'))  # the best known first
TASKS = [f'{folder}/{name}' for folder in ('objectives', 'adapters') for name in signatures.names(folder)]
KEY = 5
SECOND_VOCAB = tiny.FakeVocab(size=67)  # knows every id of a batch


# Pairs --------------------------------------------------------------------------------------------------------------


class Pair(NamedTuple):
  """A task on a trunk, with a batch."""

  folder: str
  name: str
  model: str
  task: Task
  batch: Batch

  def without_gradient(self, path: str) -> bool:
    """Whether a parameter rightly has no gradient."""
    if self.model == 'gpt_bert' and path.endswith('/key/bias'):  # of positions too
      return False
    folder = 'writers' if self.name in WRITERS else self.folder
    places = ('', self.name, self.model, f'{folder}-{self.model}', f'{self.name}-{self.model}')
    return any(re.fullmatch(pattern, path) for place, pattern in NO_GRADIENT if place in places)


def make_trunk(model: str, *, execution: Execution = tiny.PLAIN, **fields: Any) -> nn.Module:
  """The model's row 'tiny', smaller still, without dropout; `fields` change sizes that it has."""
  config = importlib.import_module(f'plm_jax.models.{model}').CONFIGS['tiny']
  own = {field.name for field in dataclasses.fields(config)}
  overrides = {name: value for name, value in (tiny.SIZES | fields).items() if name in own}
  settings = {'name': model, 'variant': 'tiny', 'overrides': overrides, **SETTINGS.get(model, {})}
  return build.make('models', settings, vocab_size=tiny.VOCAB.size, execution=execution)


def make_batch(lengths: Any = None) -> Batch:
  """Rows with everything that a task may read."""
  rows = tiny.make_batch() if lengths is None else tiny.make_batch(lengths)
  tags = np.arange(64, dtype=np.int32).reshape(4, 16) % 5 % 4 - 1  # -1 to 2
  segments, heads = np.asarray(rows['segment_ids']), np.full((4, 16), -1)
  for row, place in np.argwhere(tags >= 0):  # the first labelled word of its text
    heads[row, place] = np.flatnonzero((tags[row] >= 0) & (segments[row] == segments[row, place]))[0]
  context = np.where(np.asarray(rows['segment_ids']) > 0, 2, 0)
  context[:, 0] = 3
  answers = {'context': context, 'start': [1, 0, 2, 1], 'end': [2, 0, 2, 1]}
  streams = tiny.make_streams(rows)
  of_text = {name: (rows | streams)[name] for name in ('tokens', 'segment_ids', 'type_ids', 'characters')}
  both = {f'swapped_{name}': jnp.roll(values, 1, axis=0) for name, values in of_text.items()}
  more = {name: jnp.asarray(value, jnp.int32) for name, value in {'labels': tags, 'heads': heads, **answers}.items()}
  part = {'part': jnp.zeros(4, jnp.int32)}
  counted = tiny.make_counted(rows)
  every = {'pair': jnp.arange(4), 'counted': jnp.ones((4, 2)), 'masked_at': jnp.ones(4, jnp.int32)}
  every |= {'hidden': rows['tokens'][:, 1:3]}
  return rows | every | both | tiny.make_pairs() | more | make_answers() | streams | counted | part


def make_answers() -> Batch:
  """Texts to write, of 5, 1, 3 and 4 tokens, and three options of each row, the last of which is empty in one."""
  draw, sizes = np.random.default_rng(7), np.array([[5, 2, 3], [1, 4, 5], [3, 3, 0], [4, 1, 2]])
  ids = draw.integers(len(tiny.VOCAB.special_ids), tiny.VOCAB.size, (4, 3, 5)).astype(np.int32)
  real = (np.arange(5) < sizes[..., None]).astype(np.int32)
  ids = np.where(real > 0, ids, 0)
  made = {'target_tokens': ids[:, 0], 'target_segment_ids': real[:, 0]}
  made |= {'option_lead': np.minimum(real.sum(axis=2) // 3, 1), 'option_characters': 4 * real.sum(axis=2)}
  return {
    name: jnp.asarray(value) for name, value in (made | {'option_tokens': ids, 'option_segment_ids': real}).items()
  }


def batch_of(folder: str, name: str, lengths: Any = None) -> Batch:
  """The batch of a file; keys that its `READS` wants with an axis k of their own hold k = 3 sequences per row."""
  batch = make_batch(lengths)
  entries = map(axes_of, signatures.literal(f'{folder}.{name}', 'READS'))
  wanted = [key for key, axes in entries if 'k' in axes and axes != BATCH[key].axes]
  wanted += ['type_ids', 'characters'] if wanted else []
  options = {key: jnp.stack([jnp.roll(batch[key], shift, axis=0) for shift in range(3)], axis=1) for key in wanted}
  return {**batch, **options}  # [b, l] -> [b, k, l]


@functools.cache
def pair_of(task: str, model: str) -> Pair | None:
  """A task on a trunk; None where it refuses the trunk."""
  folder, name = task.split('/')
  try:
    made = build.make(
      folder,
      {'name': name, **SETTINGS.get(name, {})},
      offered={'second_vocab': SECOND_VOCAB},
      trunk=make_trunk(model),
      vocab=tiny.VOCAB,
    )
  except ValueError as error:
    if 'model.name' not in str(error):
      raise
    return None
  return Pair(folder, name, model, made, batch_of(folder, name))


def sound(pairs: Iterable[tuple[str, str]]) -> Iterator[Pair]:
  """The pairs that can be made, without those of broken files, whose own tests fail."""
  for task, model in pairs:
    try:
      pair = pair_of(task, model)
    except Exception:  # noqa: BLE001 a file may break in any way
      continue
    if pair is not None:
      yield pair


def first_pair(on: str) -> Pair:
  """The first pair of a file, 'objectives/mlm' or 'models/t5'; raises what the file raises where there is none."""
  models = [on.removeprefix('models/')] if on.startswith('models/') else MODELS
  tasks = TASKS if on.startswith('models/') else [on]
  found = next(sound(itertools.product(tasks, models)), None)
  if found is None:
    for task, model in itertools.product(tasks, models):
      pair_of(task, model)
    raise AssertionError(f'{on} has no partner: every task refuses the model, or the task every model')
  return found


@functools.cache
def of_tasks() -> set[str]:
  """The models that stand in the first pair of a sound task."""
  return {pair.model for task in TASKS for pair in itertools.islice(sound((task, model) for model in MODELS), 1)}


def find(on: str) -> Pair:
  """The pair that a test is about."""
  task, _, model = on.partition('-')
  if not model:
    if on.startswith('models/') and on.removeprefix('models/') in of_tasks():
      pytest.skip('stands in the pair of a task')
    return first_pair(on)
  pair = pair_of(task, model)
  if pair is None:
    pytest.skip('the task refuses the model')
  return pair


FILES = [*TASKS, *(f'models/{model}' for model in MODELS)]
EVERY = [f'{task}-{model}' for task in TASKS for model in MODELS]
every_pair = pytest.mark.parametrize(
  'on',
  [
    *(pytest.param(on, marks=pytest.mark.turns) for on in FILES),
    *(pytest.param(on, marks=pytest.mark.slow) for on in EVERY),
  ],
)


class Run:
  """A pair in training: SGD with momentum, whose first momentum is the gradient."""

  def __init__(self, pair: Pair):
    self.pair, self.batch = pair, pair.batch
    self.rate = RATES.get(f'{pair.name}-{pair.model}', RATES.get(pair.name, 0.05))
    self.tx = tiny.make_optimiser(pair.task, pair.batch, name='momentum', rate=self.rate)
    state = tiny.make_state(pair.task, pair.batch, self.tx)
    self.state = dataclasses.replace(state, params=advanced(pair.task, state.params, state.step))
    self.train = jax.jit(functools.partial(train_step, task=pair.task, tx=self.tx), static_argnames='accumulate')
    self.evaluate = jax.jit(functools.partial(eval_step, task=pair.task))

  def step(self, *, accumulate: int = 1):
    return self.train(self.state, self.batch, jax.random.key(KEY), accumulate=accumulate)

  def metrics(self, state=None, batch=None):
    state, batch = self.state if state is None else state, self.batch if batch is None else batch
    return self.evaluate(state.params, batch, self.state.carry, jax.random.key(KEY))[0]


@functools.lru_cache(maxsize=8)  # the tests of a pair stand together
def _run(task: str, model: str) -> Run:
  pair = pair_of(task, model)
  assert pair is not None
  return Run(pair)


def run_of(on: str) -> Run:
  """One for each pair, so that its functions are compiled once."""
  pair = find(on)
  return _run(f'{pair.folder}/{pair.name}', pair.model)


# Files --------------------------------------------------------------------------------------------------------------


def test_every_file_is_here():
  assert {'bert', 'gpt'} <= set(MODELS)
  assert {'objectives/mlm', 'objectives/causal_lm', 'adapters/classify'} <= set(TASKS)


@pytest.mark.parametrize('model', MODELS)
def test_every_model_serves_some_objective(model):
  assert first_pair(f'models/{model}').folder == 'objectives'  # objectives are tried first


@pytest.mark.parametrize('task', TASKS)
def test_every_task_has_some_model(task):
  assert first_pair(task).model in MODELS


@pytest.mark.parametrize('module', [f'models.{name}' for name in MODELS] + [task.replace('/', '.') for task in TASKS])
def test_every_file_says_where_it_comes_from(module):
  module = importlib.import_module(f'plm_jax.{module}')
  assert isinstance(module.PAPER, Paper)
  assert 2000 < module.PAPER.year < 2030
  assert module.__doc__.strip().split('\n')[0].endswith('.')


# Models -------------------------------------------------------------------------------------------------------------


def reads(trunk: nn.Module) -> Batch:
  """What the trunk reads of a batch; an encoder-decoder the same rows on both sides."""
  batch = tiny.make_batch()
  if 'encoder_tokens' in trunk.INPUTS:
    parts = 'tokens', 'segment_ids'
    return {f'{side}_{part}': batch[part] for side in ('encoder', 'decoder') for part in parts}
  batch |= tiny.make_streams(batch)
  return {name: batch[name] for name in ('tokens', 'characters', 'segment_ids', 'type_ids') if name in trunk.INPUTS}


def offers(trunk: nn.Module, protocol: type) -> bool:
  """Whether the trunk has what an optional protocol asks for."""
  try:
    require(trunk, user='test', offers=(protocol,))
  except ValueError:
    return False
  return True


@pytest.mark.parametrize('model', MODELS)
def test_every_trunk_has_states_by_name(model):
  trunk = make_trunk(model)
  assert trunk.ATTENTION in get_args(AttentionKind)
  batch = reads(trunk)
  assert set(trunk.INPUTS) >= set(batch)
  whole = jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all'))
  out = jax.eval_shape(lambda variables: trunk.apply(variables, **batch), whole)
  assert out['hidden'].shape == (4, 16, trunk.hidden_dim) == (4, 16, 32)
  assert out['layers'].shape == (STATES.get(model, 3), 4, 16, 32)
  segments = jnp.ones((4, 16), int)
  pooled = jax.eval_shape(
    lambda variables: trunk.apply(variables, jnp.zeros((4, 16, 32)), segments, method='pool'), whole
  )
  assert pooled.shape == (4, 32)
  carry = trunk.init_carry(4)
  assert jax.tree.structure(carry) == jax.tree.structure(out['carry'])
  assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(carry))
  if offers(trunk, Attends):
    features = jnp.zeros((4, 3, trunk.token_dim))
    logits = jax.eval_shape(lambda variables: trunk.apply(variables, features, method='attend'), whole)
    assert (logits.shape, logits.dtype) == ((4, 3, 61), jnp.float32)


WITHOUT_ATTENTION = ('awd_lstm', 'cnn', 'cove', 'cvt', 'elmo', 'lstm', 'static')


@pytest.mark.parametrize('model', [model for model in MODELS if model not in WITHOUT_ATTENTION])
def test_every_trunk_computes_attention_as_execution_says(model):
  trunk = make_trunk(model).clone(execution=Execution(attention='flash'))
  with pytest.raises(ValueError, match=r"execution\.attention='flash'"):
    jax.eval_shape(lambda key: trunk.init(key, **reads(trunk)), jax.random.key(0))


@pytest.mark.parametrize('model', MODELS)
def test_every_trunk_knows_its_learned_positions(model):
  """Each table of absolute positions is named with the rows in use, and a longer row is refused with both numbers."""
  trunk = make_trunk(model)
  variables = jax.eval_shape(lambda key: trunk.init(key, **reads(trunk)), jax.random.key(0))
  paths = jax.tree_util.tree_leaves_with_path(nn.unbox(variables['params']))
  shapes = {path_name(path): leaf.shape for path, leaf in paths}
  tables = {path.removesuffix('/table'): shape[0] for path, shape in shapes.items() if 'position_embed/table' in path}
  assert {name: rows.stop for name, rows in trunk.position_rows.items()} == tables
  most = min(map(len, trunk.position_rows.values()), default=None)
  length = (most or 100) + 1
  batch = {name: jnp.zeros((1, length, *value.shape[2:]), value.dtype) for name, value in reads(trunk).items()}
  if most is None:
    jax.eval_shape(lambda key: trunk.init(key, **batch), jax.random.key(0))
  else:
    with pytest.raises(ValueError, match=rf'\b{most}\b.*\b{most + 1}\b'):
      jax.eval_shape(lambda key: trunk.init(key, **batch), jax.random.key(0))


@pytest.mark.parametrize('model', MODELS)
def test_every_trunk_shares_a_table_handed_in(model):
  own = make_trunk(model)
  if not offers(own, SharesTokens):
    pytest.skip('shares no table')
  table = own.bind({}).token_embed.clone(parent=None, name=None)

  class Two(nn.Module):
    def setup(self):
      self.table = table.copy()
      self.first = own.clone(embed=self.table)
      self.second = own.clone(embed=self.table)

    def __call__(self, **batch):
      return self.first(**batch)['hidden'] + self.second(**batch)['hidden']

  batch = reads(own)
  params = jax.eval_shape(lambda key: Two().init(key, **batch)['params'], jax.random.key(0))
  paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
  assert [path for path in paths if 'token_embed' in path or path.startswith('table')] == ['table/table']


# How a trunk is computed --------------------------------------------------------------------------------------------

EXECUTIONS = {
  'loop and full': Execution(layers='loop', remat='full'),
  'loop': Execution(layers='loop'),
  'dots': Execution(remat='dots'),
  'full': Execution(remat='full'),
  'loop and dots': Execution(layers='loop', remat='dots'),
}


OF_A_SUM = dict(rel=1e-5, abs=1e-4)  # of 1,000 terms and more of both signs, each of them right to 1e-6


@functools.cache
def gradient_of(model: str, execution: Execution) -> tuple[Any, Any]:
  """(sum of weighted states, its gradient) in training, with dropout where the model has any."""
  trunk = make_trunk(model, execution=execution, dropout=0.1, attention_dropout=0.1)
  batch = reads(trunk)
  abstract = jax.eval_shape(lambda: trunk.init(jax.random.key(0), **batch))
  real = next(value for name, value in batch.items() if name.endswith('segment_ids')) > 0
  weights = jax.random.normal(jax.random.key(1), (*real.shape, trunk.hidden_dim)) * real[..., None]

  def value(params):
    # bits of this generator are quicker to compile
    rngs = {'dropout': jax.random.key(2, impl='rbg')}
    hidden = trunk.apply({'params': params}, **batch, train=True, rngs=rngs)['hidden']
    return (hidden.astype(jnp.float32) * weights).sum()

  return jax.jit(jax.value_and_grad(value))(tiny.draw(nn.unbox(abstract['params'])))


@pytest.mark.turns
@pytest.mark.parametrize(
  ('model', 'execution'),
  [
    pytest.param(model, name, marks=[] if name == 'loop and full' else pytest.mark.slow)
    for model in MODELS
    for name in EXECUTIONS
  ],
)
def test_every_trunk_computes_the_same_however_its_layers_run(model, execution):
  value, gradient = gradient_of(model, tiny.PLAIN)
  other, other_gradient = gradient_of(model, EXECUTIONS[execution])
  assert float(other) == pytest.approx(float(value), **OF_A_SUM)
  error, where = tiny.gradient_error(other_gradient, gradient)
  assert error < 1e-5, where


@pytest.mark.turns
@pytest.mark.skipif(jax.device_count() != 4, reason='needs four (simulated) devices')
@pytest.mark.parametrize(
  'model', [pytest.param(name, marks=() if name in ('llama', 't5') else pytest.mark.slow) for name in MODELS]
)
def test_every_trunk_computes_the_same_cut_along_its_positions(model):
  value, gradient = gradient_of(model, tiny.PLAIN)
  layout = sharding.make_layout(sharding.make_mesh({'data': 2, 'model': 2}), 'fsdp_tensor_sequence')
  with sharding.use(layout):
    other, other_gradient = gradient_of.__wrapped__(model, tiny.PLAIN)
  assert float(other) == pytest.approx(float(value), **OF_A_SUM)
  error, where = tiny.gradient_error(other_gradient, gradient)
  assert error < 1e-5, where


@pytest.mark.parametrize('model', MODELS)
@pytest.mark.parametrize('dtype', ['bfloat16', 'float16'])
def test_every_trunk_has_states_of_the_dtype_asked_for(model, dtype):
  """Parameters and logits stay float32."""
  trunk = make_trunk(model, execution=Execution(dtype=dtype))
  batch = reads(trunk)
  variables = jax.eval_shape(lambda: trunk.init(jax.random.key(0), **batch))
  assert {leaf.dtype for leaf in jax.tree.leaves(variables)} == {jnp.dtype('float32')}
  out = jax.eval_shape(lambda variables: trunk.apply(variables, **batch), variables)
  assert {name: out[name].dtype for name in ('hidden', 'layers')} == dict.fromkeys(('hidden', 'layers'), dtype)
  if offers(trunk, Attends):
    features = jax.ShapeDtypeStruct((4, 3, trunk.token_dim), dtype)
    logits = jax.eval_shape(lambda variables, x: trunk.apply(variables, x, method='attend'), variables, features)
    assert logits.dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize('model', MODELS)
def test_every_trunk_learns_in_bfloat16_what_it_learns_in_float32(model):
  _, gradient = gradient_of(model, tiny.PLAIN)
  _, rounded = gradient_of(model, Execution(dtype='bfloat16'))
  ours, theirs = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]) for tree in (rounded, gradient))
  assert ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs) > 0.99


# Tasks --------------------------------------------------------------------------------------------------------------


@pytest.mark.turns
@pytest.mark.parametrize(
  ('on', 'rules'),
  [
    *itertools.product(FILES, sharding.RULES),
    *(pytest.param(on, 'fsdp_tensor', marks=pytest.mark.slow) for on in EVERY),
  ],
)
def test_places_are_found_under_every_table(on, rules):
  pair = find(on)
  layout = sharding.make_layout(sharding.make_mesh({'data': -1}), rules)
  if jax.device_count() == 4:
    layout = sharding.make_layout(sharding.make_mesh({'data': 2, 'model': 2}), rules)
  tx = tiny.make_optimiser(pair.task, pair.batch)
  maker = state_maker(pair.task, tx, tiny.spec(pair.batch), layout=layout)
  pieces = [
    (leaf.shape, place.shard_shape(leaf.shape))
    for leaf, place in zip(jax.tree.leaves(maker.abstract.params), jax.tree.leaves(maker.places.params), strict=True)
  ]
  if jax.device_count() == 4:
    uncut = ('data', 'tensor') if pair.model == 'static' else ('data',)  # 'tensor' cuts its vocabulary, which is odd
    assert any(whole != piece for whole, piece in pieces) is (rules not in uncut)


@every_pair
def test_every_parameter_has_axis_names(on):
  pair = find(on)
  boxed = jax.eval_shape(lambda key: init_params(pair.task, tiny.spec(pair.batch), key), jax.random.key(0))
  assert 'trunk' in boxed
  leaves = jax.tree_util.tree_leaves_with_path(boxed, is_leaf=lambda leaf: isinstance(leaf, nn.LogicallyPartitioned))
  for path, leaf in leaves:
    name = path_name(path)
    assert isinstance(leaf, nn.LogicallyPartitioned), name
    assert len(leaf.names) == leaf.value.ndim, name
    assert set(leaf.names) - {None} <= set(sharding.AXES), name
    assert leaf.value.dtype == jnp.float32, name
    assert ('layers' in leaf.names) == is_stacked(name, leaf.value), name


def squared(leaves):
  """The squared norm of all leaves together."""
  return sum(float(jnp.square(leaf).sum()) for leaf in leaves)


@every_pair
def test_one_step_lowers_the_loss(on):
  """By 1e-4, or by half of what a small gradient promises: the rate times its squared norm."""
  run = run_of(on)
  if run.pair.name == 'distil':  # is evaluated by the loss of its inner task, and trains another
    trained = run.pair.task._replace(evaluate=None)
    run = Run(run.pair._replace(task=trained))
  state = run.step()[0]
  promised = run.rate * squared(flat(state.opt_state['rule']).values())
  before, after = (tiny.means(run.metrics(each))['loss'] for each in (run.state, state))
  assert after < before - min(1e-4, promised / 2)


@every_pair
def test_same_key_same_result(on):
  run = run_of(on)
  assert tiny.same(run.step(), run.step())


def check_gradients(run, got, want, *, limit):
  """The first gradients of two states, which momentum keeps, differ by rounding alone."""
  names = flat(run.tx.split(want.params)[0])
  gradients = [dict(zip(names, jax.tree.leaves(state.opt_state['rule']), strict=True)) for state in (got, want)]
  whole = max(ROUNDED, np.sqrt(squared(gradients[1].values())))
  without = {path for path in gradients[1] if run.pair.without_gradient(path)}
  for gradient in gradients:  # what is left there is rounding, which two ways to sum do not share
    assert all(float(jnp.linalg.norm(gradient[path].reshape(-1))) < 1e-6 * whole for path in without)
  got_own, want_own = ({path: leaf for path, leaf in each.items() if path not in without} for each in gradients)
  error, where = tiny.gradient_error(got_own, want_own)
  assert error < limit, where


@every_pair
def test_accumulating_changes_nothing(on):
  run = run_of(on)
  if run.pair.task.couples_rows:
    with pytest.raises(ValueError, match='accumulate'):
      run.step(accumulate=4)
    return
  (one, one_metrics), (four, four_metrics) = run.step(), run.step(accumulate=4)
  check_gradients(run, four, one, limit=SUMMED.get(f'{run.pair.name}-{run.pair.model}', 1e-5))
  assert tiny.means(four_metrics) == pytest.approx(tiny.means(one_metrics), rel=2e-5, abs=1e-7)


# rows that share noise, a table of rows, and weights that drop out; the others are long tests
APART = ('objectives/permutation_lm', 'objectives/skipgram', 'adapters/lora')


@pytest.mark.turns
@pytest.mark.parametrize('on', [pytest.param(on, marks=() if on in APART else pytest.mark.slow) for on in FILES])
def test_devices_that_compute_apart_change_nothing(on):
  """Two devices add up gradients of their own rows once a step (`sharding.sum_over_devices`); dropout included."""
  pair = find(on)
  if pair.task.couples_rows:
    pytest.skip('accumulates nothing')
  dropping = build.make(
    pair.folder,
    {'name': pair.name, **SETTINGS.get(pair.name, {})},
    offered={'second_vocab': SECOND_VOCAB},
    trunk=make_trunk(pair.model, dropout=0.3, attention_dropout=0.3),
    vocab=tiny.VOCAB,
  )
  run = Run(pair._replace(task=dropping))
  alone, alone_metrics = run.step(accumulate=2)
  layout = sharding.make_layout(sharding.make_mesh({'data': 2}, jax.devices()[:2]), 'data')
  with sharding.use(layout):
    rows = jax.device_put(run.batch, sharding.batch_sharding(layout))
    step = jax.jit(functools.partial(train_step, task=dropping, tx=run.tx, accumulate=2))
    traced = step.trace(run.state, rows, jax.random.key(KEY))
    apart, apart_metrics = traced.lower().compile()(run.state, rows, jax.random.key(KEY))
  assert 'psum' in str(traced.jaxpr)
  assert tiny.means(apart_metrics) == pytest.approx(tiny.means(alone_metrics), rel=2e-5, abs=1e-7)
  check_gradients(run, apart, alone, limit=1e-5)
  assert tiny.same(apart.carry, alone.carry) or tiny.worst(apart.carry, alone.carry) < 1e-5


QUICK = ('objectives/mlm', 'objectives/causal_lm')  # each operation is compiled by itself, which takes long


@pytest.mark.parametrize('on', [on if on in QUICK else pytest.param(on, marks=pytest.mark.slow) for on in FILES])
def test_jitted_equals_eager(on):
  run = run_of(on)
  eager, _ = eval_step(run.state.params, run.batch, run.state.carry, jax.random.key(KEY), task=run.pair.task)
  assert tiny.means(eager) == pytest.approx(tiny.means(run.metrics()), rel=1e-5, abs=1e-6)


@every_pair
def test_content_of_padding_changes_nothing(on):
  run = run_of(on)
  draw = functools.partial(jax.random.randint, jax.random.key(1), minval=0, maxval=tiny.VOCAB.size)
  real = {name: jnp.arange(16) < run.batch[f'{name}_length'][:, None] for name in ('first', 'next', 'other')}
  real['tokens'] = run.batch['segment_ids'] > 0
  real['swapped_tokens'] = run.batch['swapped_segment_ids'] > 0
  dirty = {**run.batch, **{name: jnp.where(mask, run.batch[name], draw(mask.shape)) for name, mask in real.items()}}
  assert all(not tiny.same(dirty[name], run.batch[name]) for name in real)
  assert tiny.same(run.metrics(batch=dirty), run.metrics())


@every_pair
def test_rows_of_weight_zero_change_nothing(on):
  run = run_of(on)
  some = {**run.batch, 'row_weight': jnp.array([1.0, 0, 1, 0])}
  changed = {name: some[name].at[1, 2].set(30).at[3, 1].set(31) for name in ('tokens', 'first', 'next', 'other')}
  assert tiny.same(run.metrics(batch=some), run.metrics(batch=some | changed))
  assert tiny.means(run.metrics(batch=some))['loss'] != tiny.means(run.metrics())['loss']


@every_pair
def test_every_parameter_gets_a_gradient_and_changes(on):
  run = run_of(on)
  state, _ = run.step()
  (trained, frozen), (before, same) = run.tx.split(state.params), run.tx.split(run.state.params)
  if run.pair.task.advance is not None:  # what follows the trained parameters, such as scales, is that of the new ones
    same = run.tx.split(advanced(run.pair.task, state.params, state.step))[1]
  assert tiny.same(frozen, same)
  old = jax.tree.leaves(before)
  gradient = jax.tree.leaves(state.opt_state['rule'])
  whole = max(ROUNDED, np.sqrt(squared(gradient)))
  new = jax.tree_util.tree_leaves_with_path(trained)
  for (path, after), before, leaf in zip(new, old, gradient, strict=True):
    name = path_name(path)
    parts = list(zip(virtual_paths(name, leaf), leaf, strict=True)) if is_stacked(name, leaf) else [(name, leaf)]
    without = [run.pair.without_gradient(name) or run.pair.without_gradient(part) for part, _ in parts]
    for (part, layer), none in zip(parts, without, strict=True):
      share = float(jnp.linalg.norm(layer.reshape(-1))) / whole
      assert (share < 1e-6) == none, (part, share)
    assert all(without) or not tiny.same(after, before), name


@pytest.mark.turns
def test_no_exception_is_stale():
  @functools.cache
  def names(pair):
    task, batch = pairs[pair].task, pairs[pair].batch
    leaves = jax.tree_util.tree_leaves_with_path(abstract_params(task, tiny.spec(batch)))
    return [own for path, leaf in leaves for own in {path_name(path), *virtual_paths(path_name(path), leaf)}]

  pairs = dict(enumerate(sound(itertools.product(TASKS, MODELS))))
  for file, pattern in NO_GRADIENT:
    of_file = [
      n
      for n, one in pairs.items()
      if file in ('', one.name, one.model, f'{one.folder}-{one.model}', f'{one.name}-{one.model}')
    ]
    assert any(re.fullmatch(pattern, name) for pair in of_file for name in names(pair)), (file, pattern)


@every_pair
def test_metrics_and_predictions_have_their_form(on):
  run = run_of(on)
  metrics = run.metrics()
  assert 'loss' in metrics
  for name, (total, weight) in metrics.items():
    assert (total.shape, weight.shape) == ((), ()), name
    assert (total.dtype, weight.dtype) == (jnp.float32, jnp.float32), name
  means = tiny.means(metrics)
  derived = run.pair.task.summary(means)
  assert not set(derived) & set(means)
  assert all(np.isfinite(value) for value in derived.values())
  if run.pair.task.predict is not None:
    predict = functools.partial(predict_step, task=run.pair.task)
    predicted = jax.eval_shape(predict, run.state.params, run.batch, jax.random.key(0))
    assert {'row_id', 'row_weight'} < set(predicted)
    assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(predicted))


@every_pair
def test_prepare_is_pure_and_keeps_its_shapes(on):
  pair = find(on)
  root = jax.random.key(0)
  prepare = jax.jit(functools.partial(pair.task.prepare))  # one function has one cache, however often it is jitted
  first, again = (prepare(root, keys.with_step(pair.batch, 3)) for _ in range(2))
  assert tiny.same(first, again)
  prepare(root, keys.with_step(batch_of(pair.folder, pair.name, ((3,), (1,), (16,), (2, 2))), 4))
  assert prepare._cache_size() == 1
  assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(first))


@pytest.mark.turns
@pytest.mark.skipif(jax.device_count() != 4, reason='needs four (simulated) devices')
@pytest.mark.parametrize('on', [task for task in TASKS if task.startswith('objectives/')])
def test_a_row_is_drawn_alike_on_any_number_of_devices(on):
  pair = find(on)
  alone = jax.jit(pair.task.prepare)(jax.random.key(0), keys.with_step(pair.batch, 3))
  layout = sharding.make_layout(sharding.make_mesh({'data': 4}), 'data')
  with sharding.use(layout):
    spread = jax.device_put(pair.batch, sharding.batch_sharding(layout))
    together = jax.jit(pair.task.prepare)(jax.random.key(0), keys.with_step(spread, 3))
  assert tiny.same(together, alone)
