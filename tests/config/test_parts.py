"""Configs whose task and data have parts, each of which reads the rows of its name; a second vocabulary."""

import pytest

from plm_jax import config
from plm_jax.core.errors import ConfigError
from tests import fakes

SIZES = {'length': 8, 'batch_size': 4}
STREAM, LABELLED = {'name': 'stream', 'path': 'x'}, {'name': 'labelled', 'path': 'x'}
MIXTURE = """
  GIVES = ('part',)
  UNION = {'per': 'step'}

  def make(*, vocab, parts: Mapping[str, Annotated[Mapping[str, Any], 'data']], per: str = 'row', split: str = 'train',
           length: int, batch_size: int, seed: int, host: int = 0, hosts: int = 1): ...
"""
MULTITASK = """
  READS = ('part',)

  def make(*, trunk, vocab, second_vocab=None, parts: Mapping[str, Annotated[Mapping[str, Any], 'adapters']]): ...
"""
MASK = """
  READS = ('tokens', 'segment_ids')

  def make(*, trunk, vocab): ...
"""
TRANSLATE = """
  READS = ('tokens', 'label')

  def make(*, trunk, vocab, second_vocab): ...
"""
FILES = {
  'data/mixture': MIXTURE,
  'adapters/multitask': MULTITASK,
  'adapters/mask': MASK,
  'adapters/translate': TRANSLATE,
}


@pytest.fixture(autouse=True)
def package(monkeypatch, tmp_path):
  root = fakes.use(monkeypatch, tmp_path)
  for name, text in FILES.items():
    (root / f'{name}.py').write_text('\n'.join(line.removeprefix('  ') for line in text.split('\n')))


def settings(data, adapter, **more):
  return {
    'steps': 5,
    'vocab': {'name': 'pieces', 'path': 'here'},
    'model': {'name': 'small', 'variant': 'tiny'},
    'data': {**SIZES, **data},
    'optim': {'rate': 0.1},
    'adapter': adapter,
    **more,
  }


def mixture(per='step', **parts):
  return {'name': 'mixture', 'per': per, 'parts': parts}


def multitask(**parts):
  return {'name': 'multitask', 'parts': {name: {'name': task} for name, task in parts.items()}}


def test_each_part_reads_the_rows_of_its_name():
  config.resolve(settings(mixture(a=LABELLED, b=STREAM), multitask(a='classify', b='mask')))
  with pytest.raises(ConfigError, match=r"data\.parts\.a: adapter 'classify' reads tokens, label; .*not give label"):
    config.resolve(settings(mixture(a=STREAM, b=LABELLED), multitask(a='classify', b='mask')))


def test_of_a_batch_with_rows_of_every_part_only_common_keys_are_read():
  with pytest.raises(ConfigError, match="adapter 'classify' reads"):
    config.resolve(settings(mixture('row', a=LABELLED, b=STREAM), multitask(a='classify', b='mask')))


def test_wrapped_parts_are_found():
  wrapped = {'name': 'wrap', 'inner': multitask(a='classify', b='mask')}
  config.resolve(settings(mixture(a=LABELLED, b=STREAM), wrapped))
  with pytest.raises(ConfigError, match=r'data\.parts\.a'):
    config.resolve(settings(mixture(a=STREAM, b=STREAM), wrapped))


SECOND = {'name': 'pieces', 'path': 'there'}


def test_a_second_vocabulary_is_a_block_like_the_first():
  made = config.resolve(settings(LABELLED, {'name': 'translate'}, second_vocab=SECOND))
  assert made['second_vocab'] == {**SECOND, 'extra': []}
  assert config.resolve(settings(LABELLED, {'name': 'classify'}))['second_vocab'] is None
  config.resolve(settings(mixture(a=LABELLED, b=LABELLED), multitask(a='translate', b='classify'), second_vocab=SECOND))


@pytest.mark.parametrize(
  ('adapter', 'more', 'message'),
  [
    ({'name': 'translate'}, {}, r"second_vocab: 'translate' needs one"),
    ({'name': 'classify'}, {'second_vocab': SECOND}, r"adapter 'classify' reads no second vocabulary.*translate"),
    ({'name': 'translate'}, {'second_vocab': {**SECOND, 'path': ''}}, r'second_vocab\.path: is empty'),
    ({'name': 'translate'}, {'second_vocab': {'name': 'letters'}}, r"second_vocab\.name: unknown vocab 'letters'"),
    ({'name': 'translate', 'second_vocab': 'x'}, {'second_vocab': SECOND}, r'unknown key adapter\.second_vocab'),
  ],
)
def test_who_takes_a_second_vocabulary(adapter, more, message):
  with pytest.raises(ConfigError, match=message):
    config.resolve(settings(LABELLED, adapter, **more))
