"""What objectives and adapters read of a batch against what sources give, before anything is loaded."""

import pytest

from plm_jax import config
from plm_jax.config import batch_keys, signatures
from plm_jax.core.batch import BATCH
from plm_jax.core.errors import ConfigError
from tests import fakes

LABELLED = {'name': 'labelled', 'path': 'x', 'length': 8, 'batch_size': 4}
STREAM = {**LABELLED, 'name': 'stream'}
MASKED = {'name': 'masked'}
CLASSIFY = {'name': 'classify'}
ALWAYS = {'row_id', 'epoch', 'row_weight'}  # of every batch, so nobody declares them


@pytest.fixture
def package(monkeypatch, tmp_path):
  return fakes.use(monkeypatch, tmp_path)


def mixture(*parts):
  own = ('length', 'batch_size')
  inner = {part['name']: {key: value for key, value in part.items() if key not in own} for part in parts}
  return {'name': 'mixture', 'parts': inner, 'length': 8, 'batch_size': 4}


def settings(data, evaluation=None, **task):
  return {
    'steps': 5,
    'vocab': {'name': 'pieces', 'path': 'here'},
    'model': {'name': 'small', 'variant': 'tiny'},
    'data': data,
    'optim': {'rate': 0.1},
    'eval': {} if evaluation is None else {'held_out': {'data': evaluation}},
    **task,
  }


@pytest.mark.parametrize(
  ('data', 'evaluation', 'task'),
  [
    (STREAM, {'split': 'validation'}, {'objective': MASKED}),
    (LABELLED, STREAM, {'objective': MASKED}),
    (mixture(STREAM, LABELLED), None, {'objective': MASKED}),
    (mixture(LABELLED), None, {'adapter': {'name': 'wrap', 'inner': CLASSIFY}}),
  ],
)
def test_a_source_may_give_more_than_is_read(package, data, evaluation, task):
  config.resolve(settings(data, evaluation, **task))


@pytest.mark.parametrize(
  ('data', 'evaluation', 'task', 'words'),
  [
    (STREAM, None, CLASSIFY, ["data: adapter 'classify' reads tokens, label", 'not give label', 'labelled']),
    (LABELLED, STREAM, CLASSIFY, ['eval.held_out.data', "'stream'"]),
    (STREAM, None, {'name': 'wrap', 'inner': CLASSIFY}, ["adapter 'classify' reads"]),
    (mixture(STREAM, LABELLED), None, CLASSIFY, ["data 'mixture'", 'only part, tokens, segment_ids']),
  ],
)
def test_what_a_source_does_not_give_is_named_with_the_cure(package, data, evaluation, task, words):
  with pytest.raises(ConfigError) as caught:
    config.resolve(settings(data, evaluation, adapter=task))
  for word in words:
    assert word in str(caught.value)


def test_the_names_are_those_that_the_task_reads(package):
  plain = config.resolve(settings(STREAM, objective=MASKED))
  assert config.reads(plain) == ('tokens', 'segment_ids')
  nested = config.resolve(settings(LABELLED, adapter={'name': 'wrap', 'inner': CLASSIFY}))
  assert config.reads(nested) == ('tokens', 'label')


def test_a_file_that_declares_nothing_is_not_checked(package):
  (package / 'data' / 'quiet.py').write_text(
    'def make(*, vocab, path: str, length: int, batch_size: int, seed: int, host: int = 0, hosts: int = 1): ...\n'
  )
  config.resolve(settings({**LABELLED, 'name': 'quiet'}, adapter=CLASSIFY))


@pytest.mark.parametrize(
  ('folder', 'name', 'table'),
  [
    (folder, name, table)
    for folder, table in (('objectives', 'READS'), ('adapters', 'READS'), ('data', 'GIVES'))
    for name in signatures.names(folder)
  ],
)
def test_every_file_declares_keys_of_a_batch(folder, name, table):
  keys = signatures.literal(f'{folder}.{name}', table)
  assert keys is not None, f'{folder}/{name}.py declares no {table}'
  assert set(map(batch_keys.name_of, keys)) <= set(BATCH) - ALWAYS
  assert len(set(keys)) == len(keys)


def test_a_stride_is_for_an_objective_that_scores_shared_tokens_once():
  """Without it, mlm would learn and score the tokens that two sequences share twice."""
  for target in ('bert/base.py:mlm', 'gpt/gpt2.py'):
    settings = config.load(f'experiments/{target}')
    settings['data'] = {**settings['data'], 'layout': 'stream', 'stride': 4}
    if target.startswith('gpt'):
      config.resolve(settings)
      continue
    with pytest.raises(ConfigError, match=r"data.stride=4: objective 'mlm' would score tokens of two sequences twice"):
      config.resolve(settings)
