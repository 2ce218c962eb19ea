"""What every file of `models/` offers: one test that names all that a new file lacks."""

import dataclasses
import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import signatures
from plm_jax.core.errors import require
from plm_jax.core.trunk import (
  Attends,
  Decodes,
  Directions,
  Ends,
  HeadStyle,
  Refines,
  Remembers,
  Shares,
  SharesTokens,
  Streams,
  Trunk,
)
from plm_jax.core.types import Execution, Paper, Published
from plm_jax.models import bert, deberta, gpt, llama, lstm, t5, xlnet
from plm_jax.text import chars

pytestmark = pytest.mark.turns

VOCAB_SIZE = 61
ROWS, LENGTH = 2, 6
KEYWORDS = {'vocab_size', 'variant', 'overrides', 'execution'}
MEMBERS = [*Trunk.__annotations__, *(name for name in vars(Trunk) if not name.startswith('_'))]


def lacks(name: str, file: types.ModuleType) -> list[str]:
  """Everything that a file of `models/` has to have and `file` has not."""
  tables = list(_lacks_of_tables(file))
  make = getattr(file, 'make', None)
  if not inspect.isfunction(make):
    return [*tables, 'make: a function']
  keywords = inspect.signature(make).parameters
  missing = [f'make: keyword {keyword}' for keyword in sorted(KEYWORDS - set(keywords))]
  if 'execution' in keywords and keywords['execution'].default is inspect.Parameter.empty:
    missing.append('make: a default for execution, such as Execution()')
  if missing or 'tiny' not in getattr(file, 'CONFIGS', {}):
    return [*tables, *missing]
  trunk = make(vocab_size=VOCAB_SIZE, variant='tiny')
  missing = [f'trunk: {member}' for member in MEMBERS if not hasattr(trunk, member)]
  return [*tables, *(missing or _lacks_of_trunk(name, trunk))]


def inputs_of(trunk: Any, shape: tuple[int, int]) -> dict[str, jax.Array]:
  """Ones for what every trunk reads of a row: tokens, or the characters of words, and segments."""
  sides = ('encoder_', 'decoder_') if 'encoder_tokens' in trunk.INPUTS else ('',)
  ones = jnp.ones(shape, jnp.int32)
  if 'tokens' not in trunk.INPUTS and 'characters' in trunk.INPUTS:
    return {'characters': jnp.ones((*shape, chars.SLOTS), jnp.int32), 'segment_ids': ones}
  return {f'{side}{one}': ones for side in sides for one in ('tokens', 'segment_ids')}


def _lacks_of_tables(file: types.ModuleType) -> Iterator[str]:
  config = getattr(file, 'Config', None)
  if not (dataclasses.is_dataclass(config) and config.__dataclass_params__.frozen):
    yield 'Config: a frozen dataclass'
  configs, published = getattr(file, 'CONFIGS', {}), getattr(file, 'PUBLISHED', {})
  if not configs:
    yield 'CONFIGS: the published rows'
  if 'tiny' not in configs:
    yield "CONFIGS: a row 'tiny' for tests and first runs"
  if not hasattr(file, 'PUBLISHED'):
    yield 'PUBLISHED: a Published for each row but tiny'
  for row in sorted((set(configs) ^ set(published)) - {'tiny'}):
    yield f'PUBLISHED and CONFIGS: {row} in both'
  if not all(isinstance(one, Published) for one in published.values()):
    yield 'PUBLISHED: values of type Published'
  paper = getattr(file, 'PAPER', None)
  if not isinstance(paper, Paper):
    yield 'PAPER: a Paper'
  elif unknown := set(paper.adapters) - set(signatures.names('adapters')):
    yield f'PAPER.adapters: only files of adapters/, not {", ".join(sorted(unknown))}'


def _lacks_of_trunk(name: str, trunk: Any) -> Iterator[str]:
  if name != trunk.NAME:
    yield f'NAME: {name!r}, the name of the file, and not {trunk.NAME!r}'
  taken = set(inspect.signature(type(trunk).__call__).parameters) - {'self', 'train'}
  for one in sorted(taken ^ set(trunk.INPUTS)):
    yield f'INPUTS and __call__: {one} in both'
  if 'tokens' in trunk.INPUTS and 'type_ids' not in trunk.INPUTS:
    yield 'INPUTS: type_ids, to be ignored where there are no sentence types'
  sides = ('encoder_', 'decoder_') if 'encoder_tokens' in trunk.INPUTS else ('',)
  ids = jax.ShapeDtypeStruct((ROWS, LENGTH), jnp.int32)
  inputs = jax.eval_shape(lambda: inputs_of(trunk, (ROWS, LENGTH)))
  key = jax.random.key(0)
  first = jax.eval_shape(lambda **inputs: trunk.init(key, **inputs), **inputs)
  whole = jax.eval_shape(lambda: trunk.init(key, method='init_all'))
  out = jax.eval_shape(lambda variables, **inputs: trunk.apply(variables, **inputs), whole, **inputs)
  states = {'': ('hidden', 'layers'), 'encoder_': ('encoder_hidden', 'encoder_layers')}
  for side in ('', 'encoder_') if len(sides) == 2 else ('',):
    for one, rank in zip(states[side], (3, 4), strict=True):
      if one not in out:
        yield f'__call__: {one!r} in what it returns'
      elif out[one].shape[-3:] != (ROWS, LENGTH, trunk.hidden_dim) or out[one].ndim != rank:
        yield f'__call__: {one!r} of shape {"[n+1, b, l, d]" if rank == 4 else "[b, l, d]"}, not {out[one].shape}'
  if 'carry' not in out:
    yield "__call__: 'carry' in what it returns"
  elif jax.tree.structure(out['carry']) != jax.tree.structure(trunk.init_carry(ROWS)):
    yield "__call__: a 'carry' like that of init_carry"
  pooled = jax.eval_shape(lambda v, h, s: trunk.apply(v, h, s, method='pool'), whole, out['hidden'], ids)
  if pooled.shape != (ROWS, trunk.hidden_dim):
    yield f'pool: [b, d], not {pooled.shape}'
  yield from _lacks_of_logits(trunk, first, whole)


def _lacks_of_logits(trunk: Any, first: Any, whole: Any) -> Iterator[str]:
  missing = [member for member in ('token_dim', 'head_style', 'attend') if not hasattr(trunk, member)]
  if missing:
    if len(missing) < 3:
      yield f'Attends: all of its members, {", ".join(missing)} too'
    return
  if not isinstance(trunk.head_style, HeadStyle):
    yield 'head_style: a HeadStyle'
  features = jax.ShapeDtypeStruct((ROWS, trunk.token_dim), jnp.float32)
  logits = jax.eval_shape(lambda v, x: trunk.apply(v, x, method='attend'), whole, features)
  if logits.shape != (ROWS, VOCAB_SIZE) or logits.dtype != jnp.float32:
    yield f'attend: f32[..., v], not {logits.dtype}{logits.shape}'
  both = jax.eval_shape(
    lambda: trunk.init(jax.random.key(0), jnp.zeros((1, trunk.token_dim)), method='attend')['params']
  )
  if absent := set(both) - set(first['params']):
    yield f'__call__: makes {", ".join(sorted(absent))}, the output matrix, when it initialises'


@pytest.mark.parametrize('name', signatures.names('models'))
def test_a_file_of_models_lacks_nothing(name):
  missing = lacks(name, importlib.import_module(f'plm_jax.models.{name}'))
  assert not missing, f'plm_jax/models/{name}.py lacks\n  ' + '\n  '.join(missing)


def test_what_is_missing_is_named_at_once():
  file = types.ModuleType('new')
  assert [one.partition(':')[0] for one in lacks('new', file)] == [
    'Config',
    'CONFIGS',
    'CONFIGS',
    'PUBLISHED',
    'PAPER',
    'make',
  ]

  class Bare(bert.Bert):
    NAME = 'old'
    INPUTS = ('tokens', 'segment_ids', 'positions', 'allowed', 'colour')

  def make(*, vocab_size, variant, overrides=None, execution):
    return Bare(bert.CONFIGS[variant], vocab_size)

  file.Config, file.PUBLISHED, file.make = bert.Config, bert.PUBLISHED, make
  file.CONFIGS = {name: config for name, config in bert.CONFIGS.items() if name != 'bert-base'}
  file.PAPER = dataclasses.replace(bert.PAPER, adapters=('classify', 'fly'))
  found = lacks('new', file)
  for part in ('bert-base', 'fly', 'default for execution'):
    assert any(part in one for one in found), part
  make.__kwdefaults__['execution'] = Execution()
  found = lacks('new', file)
  for part in ("NAME: 'new'", 'colour', 'type_ids'):
    assert any(part in one for one in found), part
  assert len(found) == 6  # type_ids twice: it is an input by rule, and an argument of Bert's call


@pytest.mark.parametrize('name', signatures.names('models'))
def test_init_all_makes_what_a_call_pooling_and_logits_use(name):
  """Values included: the order of the calls changes no initial parameter."""
  file = importlib.import_module(f'plm_jax.models.{name}')
  sizes = {
    'hidden_dim': 8,
    'num_layers': 2,
    'num_heads': 2,
    'head_dim': 4,
    'mlp_dim': 16,
    'embed_dim': 4,
    'word_dim': 4,
    'filters': (2, 2),
  }
  known = {field.name for field in dataclasses.fields(file.Config)}
  sizes = {size: value for size, value in sizes.items() if size in known}
  trunk = file.make(vocab_size=VOCAB_SIZE, variant='tiny', overrides=sizes)
  key = jax.random.key(3)
  whole = trunk.init(key, method='init_all')['params']
  first = trunk.init(key, **inputs_of(trunk, (1, 4)))['params']
  assert set(whole) - set(first) <= {'pooler'}
  for part in first:
    for ours, theirs in zip(jax.tree.leaves(whole[part]), jax.tree.leaves(first[part]), strict=True):
      # XLA without optimisation, as in tests, rounds the truncated normal of GPT-BERT by the shape of its program;
      # with optimisation all bits are equal
      np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-7 if name == 'gpt_bert' else 0, err_msg=part)


@pytest.mark.parametrize('file', [gpt, llama, t5])
@pytest.mark.parametrize('tied', [True, False])
def test_an_untied_output_exists_after_a_call(file, tied):
  structure = {'structure': 'decoder'} if file is t5 else {}
  trunk = file.make(vocab_size=VOCAB_SIZE, variant='tiny', overrides={'tied': tied, **structure})
  ids = jnp.ones((1, 4), jnp.int32)
  tree = jax.eval_shape(lambda: trunk.init(jax.random.key(0), ids, segment_ids=ids))['params']
  assert ('output' in tree) == (not tied)


OFFERS = {
  SharesTokens: set(signatures.names('models')) - {'elmo'},
  Attends: set(signatures.names('models')) - {'elmo'},
  Shares: {'bert'},
  Decodes: {'awd_lstm', 'bart', 'glm', 'gpt', 'gpt_bert', 'llama', 'palm', 't5'},
  Refines: {'deberta'},
  Directions: {'cvt', 'elmo', 'lstm'},
  Remembers: {'xlnet'},
  Streams: {'elmo'},
  Ends: {'cove'},
}


@pytest.mark.parametrize('name', signatures.names('models'))
def test_require_knows_who_offers_what(name):
  trunk = importlib.import_module(f'plm_jax.models.{name}').make(vocab_size=VOCAB_SIZE, variant='tiny')
  for protocol, owners in OFFERS.items():
    if name in owners:
      require(trunk, user="objective 'test'", offers=(protocol,))
    else:
      with pytest.raises(ValueError, match=protocol.__name__):
        require(trunk, user="objective 'test'", offers=(protocol,))


def test_deberta_says_where_absolute_positions_enter():
  at = {way: deberta.make(vocab_size=61, variant='tiny', overrides={'absolute': way}) for way in ('decoder', 'input')}
  assert {way: trunk.decoder_positions for way, trunk in at.items()} == {'decoder': 512, 'input': 0}


def test_tables_of_a_bert_are_compared_by_size():
  sizes = [
    bert.make(vocab_size=61, variant=row).embedding_sizes
    for row in ('electra-small', 'electra-small-generator', 'roberta-base')
  ]
  assert sizes[0] == sizes[1] != sizes[2]
  assert sizes[0] == {'embed_dim': 128, 'max_length': 512, 'position_offset': 0, 'num_types': 2}


def test_directions_of_an_lstm_are_the_states_that_its_layers_add():
  trunk = lstm.make(vocab_size=61, variant='tiny', overrides={'hidden_dim': 8, 'mlp_dim': 6})
  tokens = jnp.asarray(np.random.default_rng(0).integers(0, 61, (2, 5)), jnp.int32)
  segments = jnp.asarray([[1, 1, 2, 2, 2], [1, 1, 1, 0, 0]], jnp.int32)
  params = trunk.init(jax.random.key(0), tokens, segment_ids=segments)['params']
  layers = trunk.apply({'params': params}, tokens, segment_ids=segments)['layers']
  forward, backward = trunk.apply({'params': params}, layers, segments, method='directions')
  assert forward.shape == backward.shape == (2, 2, 5, 6)
  down = params['layers']['down']
  kernel, bias = (getattr(down[part], 'value', down[part]) for part in ('kernel', 'bias'))
  for layer in range(2):
    added = jnp.einsum('blcf,cfd->bld', jnp.stack([forward[layer], backward[layer]], 2), kernel[layer]) + bias[layer]
    np.testing.assert_allclose(layers[layer] + added, layers[layer + 1], atol=1e-5)
  # the first token of a document knows nothing before it: its forward state is that of the token alone
  alone = trunk.apply({'params': params}, tokens[:1, 2:3], segment_ids=segments[:1, 2:3])['layers']
  one, _ = trunk.apply({'params': params}, alone, segments[:1, 2:3], method='directions')
  np.testing.assert_allclose(one[0, 0, 0], forward[0, 0, 2], atol=1e-5)


def test_xlnet_reuses_half_a_row():
  assert xlnet.make(vocab_size=61, variant='tiny').reuse(12) == 6


@pytest.mark.parametrize('name', ['albert', 'bart', 'bert', 'glm', 'gpt'])
def test_tables_of_positions_can_start_from_sinusoids(name):
  make = importlib.import_module(f'plm_jax.models.{name}').make
  std = 'position_std' if name == 'gpt' else 'init_std'
  params = {}
  for start in ('normal', 'sinusoids'):
    trunk = make(vocab_size=9, variant='tiny', overrides={'max_length': 40, std: 0.06, 'position_init': start})
    tree = trunk.init(jax.random.key(0), method='init_all')['params']
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    params[start] = {jax.tree_util.keystr(path, simple=True, separator='/'): np.asarray(leaf) for path, leaf in leaves}
  tables = [path for path in params['normal'] if any(path.startswith(of) for of in trunk.position_rows)]
  assert len(tables) == len(trunk.position_rows)
  for path, value in params['sinusoids'].items():
    assert (value == params['normal'][path]).all() == (path not in tables), path
  for table in (params['sinusoids'][path] for path in tables):
    assert abs(np.sqrt((table**2).mean()) - 0.06) < 1e-6
    products = table @ table.T  # of two positions: by their distance alone
    assert all(np.ptp(np.diagonal(products, n)) < 1e-6 for n in range(40)) and products[0, 1] > products[0, 9]
  with pytest.raises(ValueError, match='sinusoids'):
    make(vocab_size=9, variant='tiny', overrides={'position_init': 'sines'})
