"""Where a vocabulary is missing, what is said follows the config: its text, its kind, the size that a head names."""

import collections
import shlex

import pytest

from plm_jax import config
from plm_jax.commands import vocab
from plm_jax.config import signatures
from plm_jax.core.errors import ConfigError
from plm_jax.text import recipe
from plm_jax.training import parts

C4, WIKI = 'hf://datasets/allenai/c4/en', 'hf://datasets/google/wiki40b/en'


def command_of(said: str) -> dict[str, str]:
  """Parse the flags of the command in the last line of a message."""
  made = said.splitlines()[-1].removeprefix('  plm-jax vocab train ')
  return {word.partition('=')[0].removeprefix('--'): word.partition('=')[2] for word in shlex.split(made)}


def missing(target: str, tmp_path, monkeypatch, **changes) -> str:
  """Return the message for a config whose vocabulary is missing."""
  monkeypatch.chdir(tmp_path)
  settings = config.resolve(config.load(target.replace('experiments', f'{signatures.ROOT.parent}/experiments', 1)))
  for key, value in changes.items():
    block, _, name = key.partition('__')
    settings[block] = {**settings[block], name: value}
  with pytest.raises(ConfigError, match='vocabulary') as caught:
    parts.make_vocab(settings)
  return str(caught.value)


@pytest.mark.parametrize(
  ('target', 'head', 'flags'),
  [
    ('llama/pretrain.py', 'llama/pretrain.py', dict(source=C4, name='byte_bpe', size='32000')),
    ('bert/glue.py', 'bert/base.py', dict(source=WIKI, name='wordpiece', size='30522')),
    ('quickstart/pretrain.py', 'quickstart/pretrain.py', dict(source='pydocs', name='byte_bpe', size='6000')),
    ('llama/pretrain.py:quick', 'quickstart/pretrain.py', dict(source='pydocs', name='byte_bpe', size='6000')),
    ('small/pretrain.py', 'small/pretrain.py', dict(source='runs/data/english', size='8000')),
    ('cw/ranking.py', 'cw/ranking.py', dict(name='words', size='100000')),
  ],
)
def test_the_command_of_a_head_is_said(target, head, flags, tmp_path, monkeypatch):
  said = missing(f'experiments/{target}', tmp_path, monkeypatch)
  assert f'experiments/{head}' in said
  assert flags.items() <= command_of(said).items()


def test_another_text_or_kind_than_that_of_the_head_is_taken(tmp_path, monkeypatch):
  own = missing('experiments/llama/pretrain.py', tmp_path, monkeypatch, data__path='mine', data__text='body')
  assert command_of(own) == dict(
    source='mine', text='body', name='byte_bpe', size='32000', specials='gpt2', out='runs/vocab/llama'
  )
  kind = missing('experiments/llama/pretrain.py', tmp_path, monkeypatch, vocab__name='wordpiece')
  assert command_of(kind) == dict(source=C4, name='wordpiece', size='32000', out='runs/vocab/llama')
  rows = missing('experiments/bert/glue.py', tmp_path, monkeypatch, data__path='mine')  # rows of a task are no text
  assert command_of(rows)['source'] == WIKI


def test_without_a_head_the_config_says_all_but_the_size(tmp_path, monkeypatch):
  said = missing('experiments/bert/base.py', tmp_path, monkeypatch, vocab__path='mine', data__path='a b.txt')
  assert command_of(said) == dict(source='a b.txt', name='wordpiece', size='6000', out='mine')
  assert 'experiments/' not in said
  rows = missing('experiments/bert/glue.py:sst2', tmp_path, monkeypatch, vocab__path='mine')
  assert command_of(rows) == dict(source='tfds:glue/sst2', text='sentence', name='wordpiece', size='6000', out='mine')
  published = missing('experiments/bert/base.py', tmp_path, monkeypatch, vocab__name='word_bpe')
  assert 'published' in published and 'vocab train' not in published


def test_the_text_of_a_mixture_is_that_of_its_first_part():
  parted = dict(path=None, parts=dict(one=dict(path='first', text='body'), two=dict(path='second')))
  assert command_of(recipe.fix('mine', kind='words', data=parted))['source'] == 'first'


def test_a_vocabulary_is_made_by_one_command():
  """Check that all heads have the same command for the same path."""
  made = collections.defaultdict(set)
  for file in signatures.experiment_files():
    for line in recipe.header_of(str(file)).replace('\\\n', ' ').splitlines():
      words = shlex.split(line) if 'plm-jax vocab train' in line else []
      made[words[-1] if words else ''].add(frozenset(words))
  del made['']
  assert len(made) > 10 and not {out: said for out, said in made.items() if len(said) > 1}


def test_what_is_suggested_is_a_command(tmp_path, monkeypatch, capsys):
  monkeypatch.chdir(tmp_path)
  (tmp_path / 'a b.txt').write_text('a cat sat on the mat.\n\na dog did not.\n' * 50)
  flags = command_of(recipe.fix('mine', kind='words', data=dict(path='a b.txt')))
  assert vocab.main(['train', *(f'--{name}={value}' for name, value in flags.items())]) == 0
