"""What objectives and adapters say that they read of a batch and of a trunk, and what they do read."""

import ast
import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from plm_jax.config import build, signatures
from plm_jax.core import batch, trunk, types
from plm_jax.noise import keys
from tests import tiny

FILES = [(folder, name) for folder in ('objectives', 'adapters') for name in signatures.names(folder)]
ALWAYS = {'row_id', 'epoch', 'row_weight', 'step'}
OPTIONAL = {'sentence_ids', 'row_high'}  # of a source with `data.sentences`, of one of 2^31 rows and more
WRAPPERS = ('bottleneck', 'lora', 'prefix', 'prune', 'quantise', 'scalar_mix')
# keywords without a default, and blocks small enough for a test
SETTINGS: dict[str, dict[str, Any]] = {
  'mixture': {'parts': {'one': {'name': 'mlm'}, 'two': {'name': 'span_boundary'}}, 'rates': {'one': 1.0, 'two': 1.0}},
  'multitask': {'parts': {'one': {'name': 'classify'}, 'two': {'name': 'tag', 'tags': ('O', 'B-name')}}},
  'multiview': {'tags': {'one': ('O', 'B-name')}},
  'parse': {'relations': ('root', 'subject')},
  'tag': {'tags': ('O', 'B-name')},
  **{name: {'inner': {'name': 'classify'}} for name in WRAPPERS},
  'distil': {'teacher': {'name': 'bert', 'variant': 'tiny', 'overrides': tiny.SIZES}, 'inner': {'name': 'classify'}},
  'rtd': {'sharing': 'all'},
  'translate_bart': {'source': {'name': 'bert', 'variant': 'tiny'}, 'stage': 'second'},
  'denoise_seq2seq': {'edit': {'name': 'collapse_to_mask'}, 'target': 'text'},  # the fake vocabulary has no sentinels
  'distill': {
    'teacher': {'name': 'bert', 'variant': 'tiny', 'overrides': tiny.SIZES},
    'where': {'name': 'fixed_count'},
    'cosine_weight': 0.0,
  },
}
# what the parts above read
NESTED = {
  'mixture': ('tokens', 'segment_ids'),
  'multitask': ('tokens', 'segment_ids', 'label', 'labels'),
  **dict.fromkeys(('distil', *WRAPPERS), ('tokens', 'segment_ids', 'label')),
}


class Recording(Mapping[str, jax.Array]):
  """A batch that knows which of its keys were read."""

  def __init__(self, values: Mapping[str, jax.Array]):
    self.values_of, self.read = values, set[str]()

  def __getitem__(self, key: str) -> jax.Array:
    self.read.add(key)
    return self.values_of[key]

  def __iter__(self) -> Iterator[str]:
    return iter(self.values_of)

  def __contains__(self, key: object) -> bool:
    return key in self.values_of

  def __len__(self) -> int:
    return len(self.values_of)


@functools.cache
def make_task(folder: str, name: str) -> types.Task:
  """The task on the first trunk that serves it."""
  for model in ('bert', 'gpt', *signatures.names('models')):
    trunk = build.make('models', {'name': model, 'variant': 'tiny'}, vocab_size=tiny.VOCAB.size)
    try:
      block = {'name': name, **SETTINGS.get(name, {})}
      return build.make(folder, block, offered={'second_vocab': tiny.VOCAB}, trunk=trunk, vocab=tiny.VOCAB)
    except ValueError as error:
      if 'model.name' not in str(error):
        raise
  raise AssertionError(f'no model serves {name}')


@pytest.mark.parametrize(('folder', 'name'), FILES)
def test_reads_are_all_keys_that_prepare_cannot_do_without(folder, name):
  """A batch of exactly these keys is enough, and each of them is read."""
  reads = dict(map(batch.axes_of, importlib.import_module(f'plm_jax.{folder}.{name}').READS))
  assert set(reads) <= set(batch.BATCH) - ALWAYS
  wanted = {*reads, *NESTED.get(name, ())}
  sizes = {'b': 4, 'k': 3, 'l': 16, 't': 8, 'c': batch.SLOTS}
  example = {
    key: jnp.zeros([sizes[axis] for axis in reads.get(key, batch.BATCH[key].axes)], batch.BATCH[key].dtype)
    for key in (*wanted, *(ALWAYS - {'step'}))
  }
  recording = Recording(keys.with_step(example, 0))
  jax.eval_shape(lambda: make_task(folder, name).prepare(jax.random.key(0), recording))
  assert recording.read - ALWAYS - OPTIONAL == wanted


@pytest.mark.parametrize(('folder', 'name'), FILES)
def test_reads_are_a_literal(folder, name):
  """Configs are compared with data before jax is loaded, so READS is read from source."""
  source = (signatures.ROOT / folder / f'{name}.py').read_text(encoding='utf-8')
  values = [
    node.value
    for node in ast.parse(source).body
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == 'READS'
  ]
  assert [ast.literal_eval(value) for value in values] == [importlib.import_module(f'plm_jax.{folder}.{name}').READS]


PROTOCOLS = (
  trunk.Trunk,
  trunk.Attends,
  trunk.SharesTokens,
  trunk.Shares,
  trunk.Directions,
  trunk.Refines,
  trunk.Remembers,
  trunk.Streams,
  trunk.Ends,
  trunk.ComputesAt,
)
PROMISED = {name for one in PROTOCOLS for name in (*one.__annotations__, *vars(one))} - {'config'}
OF_A_MODULE = {'clone', 'init', 'unbind'}  # of every module of flax
HANDED_ON = {'texts': {'trunk.config'}}  # fields that only some trunks have
SOURCES = sorted(path for folder in ('objectives', 'adapters') for path in (signatures.ROOT / folder).glob('*.py'))


@pytest.mark.parametrize('path', SOURCES, ids=lambda path: f'{path.parent.name}-{path.stem}')
def test_of_a_trunk_only_what_is_promised_is_read(path):
  trunks = ('trunk', 'self.trunk', 's.trunk', 'second', 'generator', 'self.generator', 'self.teacher.trunk')
  read = {
    ast.unparse(node): node.attr
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8')))
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) in trunks
  }
  assert {text for text, name in read.items() if name not in PROMISED | OF_A_MODULE} == HANDED_ON.get(path.stem, set())
