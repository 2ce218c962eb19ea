"""The comparison of encoders in experiments/encoders/compare.py is one of equals."""

import pathlib

import jax
import jax.numpy as jnp

from plm_jax import config
from plm_jax.config import build
from plm_jax.core.types import Execution

CONFIG = pathlib.Path(__file__).resolve().parent.parent / 'experiments' / 'encoders' / 'compare.py'
ENCODERS = ('transformer', 'cnn', 'lstm')
VOCAB_SIZE = 6000


def test_the_three_have_as_many_parameters():
  ids = jnp.ones((1, 4), jnp.int32)
  tables, layers = {}, {}
  for name in ENCODERS:
    model = config.resolve(config.load(f'{CONFIG}:{name}'))['model']
    trunk = build.make('models', model, vocab_size=VOCAB_SIZE, execution=Execution())
    tree = jax.eval_shape(lambda key, trunk=trunk: trunk.init(key, ids, segment_ids=ids)['params'], jax.random.key(0))
    sizes = {part: sum(leaf.size for leaf in jax.tree.leaves(leaves)) for part, leaves in tree.items()}
    tables[name] = sizes.pop('token_embed')
    layers[name] = sum(sizes.values())
  assert set(tables.values()) == {VOCAB_SIZE * 128}
  assert max(layers.values()) <= 1.01 * min(layers.values()), layers  # without the table, which all have


def test_only_the_model_and_the_text_differ():
  blocks = [config.resolve(config.load(f'{CONFIG}:{name}{small}')) for name in ENCODERS for small in ('', ',small')]
  assert [block['data'].pop('split') for block in blocks] == ['train', 'train[:1%]'] * 3
  assert len({block.pop('model')['name'] for block in blocks}) == 3
  assert all(block == blocks[0] for block in blocks)
