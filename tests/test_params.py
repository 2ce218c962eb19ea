"""Exact sizes of every published row, counted by shape."""

import importlib
import json

import pytest

from plm_jax import params, signatures


@pytest.fixture(scope='module')
def counted():
  return {row['variant']: row for row in params.published()}


@pytest.mark.parametrize('family', signatures.names('models'))
def test_every_published_size_is_exact(family, counted):
  module = importlib.import_module(f'plm_jax.models.{family}')
  for variant, known in module.PUBLISHED.items():
    assert counted[variant]['parameters'] == known.parameters, variant


def test_every_variant_but_the_tiny_one_is_published():
  for family in signatures.names('models'):
    module = importlib.import_module(f'plm_jax.models.{family}')
    assert set(module.PUBLISHED) == set(module.CONFIGS) - {'tiny'}


def test_bert_base_operations_match_the_closed_form(counted):
  length, d, v, layers = 512, 768, 30_522, 12
  layer = 24 * length * d * d + 4 * length * length * d
  assert counted['bert-base']['gflop_per_row'] == round((layers * layer + 2 * d * d + 2 * length * d * v) / 1e9, 3)


def test_json_is_what_the_table_shows(capsys):
  assert params.main(['--all', '--json']) == 0
  rows = json.loads(capsys.readouterr().out)
  assert {row['variant'] for row in rows} >= {'bert-base', 'gpt2-xl'}
