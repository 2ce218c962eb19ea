"""Mistakes in configs of the package itself: what is refused before jax is loaded, and what the message says."""

import pathlib

import pytest

from plm_jax import config
from plm_jax.config import overrides
from plm_jax.core.errors import ConfigError

EXPERIMENTS = pathlib.Path(__file__).resolve().parents[2] / 'experiments'


def resolved(name, *changes):
  values, _ = overrides.apply(config.load(f'{EXPERIMENTS}/{name}'), changes)
  return config.resolve(values)


@pytest.mark.parametrize(
  ('name', 'change', 'words'),
  [
    ('bart/base.py', ('objective.finish', "[{'name': 'rotatte'}]"), ['objective.finish.0.name', "mean 'rotate'"]),
    ('bart/base.py', ('objective.mask_random', '1.5'), ['objective.mask_random', '0 <= x <= 1', '1.5']),
    (
      't5/ul2.py',
      ('objective.denoisers.0.where.rat', '0.1'),
      ['objective.denoisers.0.where.rat', 'mean objective.denoisers.0.where.rate'],
    ),
    ('electra/base.py', ('objective.generator.variant', 'tinny'), ['objective.generator.variant', "mean 'tiny'"]),
    ('bert/ltr.py', ('objective.name', 'sentence_pair'), ['data', 'first', "'stream'", ': pairs.']),
    ('bert/ner.py', ('data.kind', 'word'), ['data.kind', "mean 'words'"]),
    ('bert/ner.py', ('data.kind', 'class'), ["adapter 'tag'", 'labels', "labelled with kind='words'"]),
    ('bert/base.py', ('optim.floor', '0.1'), ['optim.floor', "schedule='cosine'"]),
    ('gpt/gpt2.py', ('optim.momentum', '0.9'), ['optim.momentum', "name='momentum'"]),
  ],
)
def test_a_mistake_is_named_with_its_cure(name, change, words):
  with pytest.raises(ConfigError) as caught:
    resolved(name, change)
  for word in words:
    assert word in str(caught.value)


def test_keys_inside_lists_of_blocks_can_be_changed():
  changes = [('objective.finish', "[{'name': 'rotate'}]"), ('objective.finish.0.rate', '0.5')]
  assert resolved('bart/base.py', *changes)['objective']['finish'] == [{'name': 'rotate', 'rate': 0.5}]
  values = resolved('t5/ul2.py', ('objective.denoisers.1.where.rate', '0.2'))
  assert [way['where']['rate'] for way in values['objective']['denoisers'][:3]] == [0.15, 0.2, 0.5]


def test_another_rule_or_schedule_drops_the_keywords_of_the_one_before():
  changes = [('optim.schedule', 'cosine'), ('optim.name', 'adafactor'), ('optim.factored', 'false')]
  values, remarks = overrides.apply(config.load(f'{EXPERIMENTS}/t5/pretrain.py'), changes[:1])
  assert 'hold' not in values['optim'] and any('hold' in remark for remark in remarks)
  optim = resolved('bert/base.py', *changes)['optim']
  assert 'b2' not in optim and (optim['factored'], optim['floor']) == (False, 0.0)


def test_none_takes_a_keyword_of_a_rule_out():
  optim = resolved('bert/base.py', ('optim.eps', 'None'), ('optim.momentum', 'none'))['optim']
  assert 'momentum' not in optim and optim['eps'] == 1e-6  # the default of bert_adam
  assert resolved('bert/base.py', ('optim.name', 'adafactor'), ('optim.b1', 'None'))['optim']['b1'] is None
