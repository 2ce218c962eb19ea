"""Bottlenecks and prefixes: where they enter, what trains, counts, and generation from a run."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import optim, weights
from plm_jax.adapters import bottleneck, lora, prefix, prune
from plm_jax.commands import convert
from plm_jax.commands import generate as generate
from plm_jax.config import build
from plm_jax.core import param_paths
from plm_jax.generate import decode
from plm_jax.layers.attention import plain, with_prefix
from plm_jax.layers.masks import Mask
from plm_jax.training import loop, step
from plm_jax.weights.folders import WeightsError
from tests import runs, tiny
from tests.adapters.running import metrics, start, train
from tests.test_contract import make_trunk

pytestmark = pytest.mark.turns

CLASSIFY = {'name': 'classify', 'classes': 3, 'dropout': 0.0}
BATCH = {**tiny.make_batch(((16,), (7,), (11,), (4,))), 'label': jnp.array([2, 0, 1, 2])}
MAKERS = {'bottleneck': bottleneck.make, 'prefix': prefix.make, 'lora': lora.make}
SMALL = {'bottleneck': {'width': 4}, 'prefix': {'length': 3, 'mlp_dim': 8}, 'lora': {}}
MODELS = ('bert', 'albert', 't5', 'gpt', 'deberta', 'xlnet', 'bart', 'llama', 'glm', 'palm')
FAST = ('bert', 'albert')
models = pytest.mark.parametrize('model', [m if m in FAST else pytest.param(m, marks=pytest.mark.slow) for m in MODELS])
KEY = jax.random.key(3)


def make(name, model='bert', *, inner=CLASSIFY, trunk=None, **settings):
  trunk = make_trunk(model) if trunk is None else trunk
  return MAKERS[name](trunk=trunk, vocab=tiny.VOCAB, inner=inner, **{**SMALL[name], **settings})


def inner_task(model='bert', inner=CLASSIFY):
  return build.make('adapters', inner, trunk=make_trunk(model), vocab=tiny.VOCAB)


# The start -----------------------------------------------------------------------------------------------------------


@models
@pytest.mark.parametrize('name', ['bottleneck', 'prefix'])
def test_the_trunk_begins_as_without_the_wrapper(name, model):
  task, plain_task = make(name, model), inner_task(model)
  params, own = start(task, BATCH), start(plain_task, BATCH)
  assert tiny.same({part: params[part] for part in own}, own)
  if name == 'bottleneck':  # a prefix takes a share of the attention from the start
    assert tiny.worst(metrics(task, BATCH, params), metrics(plain_task, BATCH, own)) < 1e-6
  # every trunk reads what is added
  drawn, added = tiny.draw(own), jax.tree.map(lambda leaf: 10 * leaf, tiny.draw(params[name]))
  assert tiny.worst(metrics(task, BATCH, {**drawn, name: added}), metrics(plain_task, BATCH, drawn)) > 1e-3


def test_a_bottleneck_stands_behind_its_layer():
  task = make('bottleneck', targets=('down',))
  params = tiny.init_params(task, BATCH)
  own = params['bottleneck']['trunk']['layers']['mlp']['down']
  assert {name: leaf.shape for name, leaf in own.items()} == {
    'down': (2, 32, 4), 'down_bias': (2, 4), 'up': (2, 4, 32), 'up_bias': (2, 32)
  }  # fmt: skip
  # with up and its bias at zero nothing is added; with a bias alone, all outputs move by it: the next norm's input
  trunk = make_trunk('bert')
  inputs = {name: BATCH[name] for name in ('tokens', 'segment_ids', 'type_ids')}

  def states(added):
    grafted = param_paths.nested({**param_paths.flat(params['trunk']), **{
      path.removeprefix('trunk/'): leaf for path, leaf in bottleneck.grafts(param_paths.flat(added)).items()
    }})  # fmt: skip
    return trunk.apply({'params': grafted}, **inputs)['hidden']

  before = trunk.apply({'params': params['trunk']}, **inputs)['hidden']
  silent = jax.tree.map(jnp.zeros_like, params['bottleneck'])
  assert tiny.worst(states(silent), before) < 1e-6
  by = jnp.arange(32.0) / 32
  bias = {
    'trunk': {'layers': {'mlp': {'down': {**silent['trunk']['layers']['mlp']['down'], 'up_bias': jnp.stack([by, by])}}}}
  }
  kernel_bias = param_paths.flat(params['trunk'])
  kernel_bias['layers/mlp/down/bias'] = kernel_bias['layers/mlp/down/bias'] + by
  expected = trunk.apply({'params': param_paths.nested(kernel_bias)}, **inputs)['hidden']
  assert tiny.worst(states(bias), expected) < 1e-5


@pytest.mark.parametrize('groups', [2, 4])
@pytest.mark.parametrize('cached', [False, True])
def test_a_prefix_is_seen_by_every_query_without_bias(groups, cached):
  draw = np.random.default_rng(0)
  query, key, value = (draw.standard_normal((2, 5, heads, 8), np.float32) for heads in (4, groups, groups))
  own = {name: draw.standard_normal((3, groups, 8), np.float32) for name in ('key', 'value')}
  bias = draw.standard_normal((1, 4, 5, 5), np.float32)
  segments = jnp.array([[1, 1, 2, 2, 0], [1, 1, 1, 1, 1]])

  class Block(step.nn.Module):
    @step.nn.compact
    def __call__(self):
      from plm_jax.layers.attention import attend_in
      from plm_jax.layers.cache import in_order

      pair = jnp.asarray(key), jnp.asarray(value)
      return attend_in(
        self, query, *(in_order(*pair) if cached else pair), mask=Mask(segments, segments, causal=True),
        dropout=0.0, train=False, implementation='cached' if cached else 'xla', bias=jnp.asarray(bias),
      )  # fmt: skip

  found = np.asarray(Block().apply({'params': {'prefix': own}}))
  for row in range(2):
    for place in range(5):
      for head in range(4):
        group = head * groups // 4
        seen = [m for m in range(place + 1) if segments[row, m] == segments[row, place] > 0]
        keys = np.concatenate([own['key'][:, group], key[row, seen, group]])
        values = np.concatenate([own['value'][:, group], value[row, seen, group]])
        scores = keys @ query[row, place, head] / np.sqrt(8) + np.append(np.zeros(3), bias[0, head, place, seen])
        shares = np.exp(scores - scores.max())
        np.testing.assert_allclose(found[row, place, head], shares / shares.sum() @ values, atol=1e-5)


def test_nothing_changes_without_a_prefix():
  class Block(step.nn.Module):
    def __call__(self, *arrays):
      mask = Mask(jnp.ones((1, 2)), jnp.ones((1, 2)))
      found = with_prefix(self, *arrays, mask=mask, cached=False)
      assert found[0] is arrays[1]
      assert (found[2], found[3]) == (mask, None)
      return plain(arrays[0], *found[:2], mask=found[2])

  assert Block().apply({}, *jnp.ones((3, 1, 2, 1, 4))).shape == (1, 2, 1, 4)


# Training ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', ['bottleneck', 'prefix'])
def test_the_frozen_part_keeps_every_bit_and_the_rest_trains(name):
  first, last = train(make(name), BATCH, rate=1e-2)
  old, new = (param_paths.flat(state.params) for state in (first, last))
  changed = {path for path in old if not tiny.same(old[path], new[path])}
  added = {path for path in old if path.startswith((f'{name}/', 'head/'))}
  norms = {path for path in old if path.startswith('trunk/') and path.split('/')[-2].endswith('norm')}
  assert len(norms) == 6  # of embeddings, attention and feed-forward: scale and bias
  assert changed == added | (norms if name == 'bottleneck' else set())
  held = {path.partition('/mu/')[2] for path in param_paths.flat(last.opt_state) if '/mu/' in path}
  assert held == changed


def counts(name, model='bert', variant='bert-base', vocab_size=30522, **settings):
  trunk = build.make('models', {'name': model, 'variant': variant}, vocab_size=vocab_size, execution=tiny.PLAIN)
  task = MAKERS[name](trunk=trunk, vocab=tiny.VOCAB, inner={'name': 'classify'}, **settings)
  shapes = step.abstract_params(task, tiny.spec(BATCH))
  tx = optim.make(params=shapes, steps=1, rate=1.0, trains=task.trains)
  return {part: sum(leaf.size for leaf in jax.tree.leaves(tree)) for part, tree in tx.split(shapes)[0].items()}


def test_counts_are_those_of_the_closed_forms():
  d, n = 768, 12
  found = counts('bottleneck', width=64)
  assert found['bottleneck'] == 2 * n * (2 * 64 * d + 64 + d)
  assert found['trunk'] == (2 * n + 1) * 2 * d
  assert counts('bottleneck', width=64, targets=('down',))['bottleneck'] == n * (2 * 64 * d + 64 + d)
  # as peft.PrefixTuningConfig(num_virtual_tokens=10) has, without and with prefix_projection
  assert counts('prefix', length=10, mlp_dim=0) == {'trunk': 0, 'head': 1538, 'prefix': 10 * n * 2 * d}
  assert counts('prefix', length=10, mlp_dim=512)['prefix'] == 10 * d + (d + 1) * 512 + (512 + 1) * n * 2 * d
  # encoder, decoder and cross-attention have one each
  t5 = counts('prefix', 't5', 't5-base', 32128, length=10, mlp_dim=0)
  assert t5['prefix'] == 3 * 10 * n * 2 * d


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r"adapter 'prefix'.*Cnn"):
    make('prefix', 'cnn')
  with pytest.raises(ValueError, match=r'adapter\.targets.*trunk/layers/query.*\b2\b'):
    make('bottleneck', targets=('query',))
  with pytest.raises(ValueError, match=r"adapter\.inner\.name='prefix'"):
    make('bottleneck', inner={'name': 'prefix', 'inner': CLASSIFY})


@pytest.mark.parametrize('maker', [lora.make, bottleneck.make, prune.make])
def test_targets_that_the_inner_task_does_not_use_are_refused(maker):
  inner = {**CLASSIFY, 'pool': 'mean'}  # which leaves the pooler out
  task = maker(trunk=make_trunk('bert'), vocab=tiny.VOCAB, inner=inner, targets=('pooler',))
  with pytest.raises(ValueError, match=r'adapter .*adapter\.targets'):
    step.abstract_params(task, tiny.spec(BATCH))


# Runs ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  return runs.write_data(tmp_path_factory.mktemp('data'))


@pytest.fixture(scope='module', params=['prefix', 'bottleneck'])
def run(request, data):
  """A short run of a GPT with a large rate, so that what is added matters."""
  settings = runs.settings(
    'causal_lm',
    data,
    steps=4,
    objective=None,
    adapter={'name': request.param, **SMALL[request.param], 'inner': {'name': 'causal_lm'}},
    model={'variant': 'gpt2', 'overrides': {**runs.SIZES, 'init_std': 0.2}},
    optim={'rate': 0.1},
  )
  assert loop.train(settings, data / request.param).exit_code == 0
  return data / request.param


def test_generation_reads_what_is_added(run, capsys):
  """Greedy text by the cache is that of whole passes through the same trunk, and not that of the trunk alone."""
  trunk, params = weights.load(run)
  tokens = jnp.arange(40, 52).reshape(2, 6)
  made = decode.generate(trunk, params, tokens, segment_ids=jnp.ones_like(tokens), max_new=8).tokens

  @jax.jit
  def following(params, row):
    hidden = trunk.apply({'params': params}, row, segment_ids=(row > 0).astype(jnp.int32))['hidden']
    return trunk.apply({'params': params}, hidden, method='attend').argmax(-1)

  def by_passes(params):
    row = jnp.pad(tokens, ((0, 0), (0, 8)))
    for place in range(6, 14):
      row = row.at[:, place].set(following(params, row)[:, place - 1])
    return row[:, 6:].tolist()

  assert made.tolist() == by_passes(params)
  alone = param_paths.nested(
    {path: leaf for path, leaf in param_paths.flat(params).items() if f'/{run.name}/' not in path}
  )
  assert made.tolist() != by_passes(alone)
  assert generate.main([f'--workdir={run}', '--prompt=Anna is in the', '--max_new=4']) == 0
  assert 'Anna is in the' in capsys.readouterr().out


def test_a_prefix_is_generated_from_without_what_made_it(run):
  _, params = weights.load(run)
  found = {path for path in param_paths.flat(params) if 'prefix' in path}
  assert found == ({'layers/prefix/key', 'layers/prefix/value'} if run.name == 'prefix' else set())


def test_other_doors_are_refused_by_name(run, data):
  with pytest.raises(WeightsError, match=f"adapter '{run.name}'"):
    _ = weights.open(run).params
  with pytest.raises(WeightsError, match=r'plm_jax\.load'):
    convert.main(['export', str(run), str(data / f'{run.name}_out')])


def test_the_log_says_what_trains(run):
  result = json.loads((run / 'result.json').read_text())
  prefix_count = 3 * 32 + 33 * 8 + 9 * 2 * 2 * 32
  bottlenecks = 4 * (2 * 4 * 32 + 4 + 32) + 5 * 2 * 32  # and the norms
  assert result['trained'] == {'prefix': prefix_count, 'bottleneck': bottlenecks}[run.name]


@pytest.mark.slow
def test_transformers_gives_the_same_with_the_prefix_as_its_past(data):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  trunk = make_trunk('gpt', norm_placement='pre')
  params = tiny.draw(step.nn.unbox(jax.eval_shape(lambda: trunk.init(KEY, method='init_all')['params'])))
  weights.save(data / 'past', trunk, params)
  model = transformers.AutoModelForCausalLM.from_pretrained(data / 'past').eval()
  own = {
    name: np.random.default_rng(n).standard_normal((2, 3, 2, 16), np.float32) for n, name in enumerate(('key', 'value'))
  }
  grafted = param_paths.nested(
    {**param_paths.flat(params), **{f'layers/prefix/{name}': jnp.asarray(x) for name, x in own.items()}}
  )
  ids = np.arange(8, 24).reshape(2, 8)
  hidden = trunk.apply({'params': grafted}, jnp.asarray(ids), segment_ids=jnp.ones((2, 8), jnp.int32))['hidden']
  ours = trunk.apply({'params': grafted}, hidden, method='attend')
  past = transformers.DynamicCache()
  for layer in range(2):
    pair = (torch.tensor(own[name][layer]).transpose(0, 1)[None].repeat(2, 1, 1, 1) for name in ('key', 'value'))
    past.update(*pair, layer)
  with torch.no_grad():
    theirs = model(
      torch.tensor(ids), past_key_values=past, position_ids=torch.arange(8)[None], attention_mask=torch.ones(2, 11)
    ).logits
  assert tiny.worst(ours, theirs.numpy()) < 1e-4
