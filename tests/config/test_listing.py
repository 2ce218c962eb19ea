"""What `--list` offers."""

import re

import pytest

from plm_jax.config import listing, signatures

FOLDERS = ('models', 'objectives', 'adapters', 'data', 'text')


def groups():
  """Heading -> the names below it."""
  found = {}
  for block in listing.text().split('\n\n'):
    title, *lines = block.split('\n')
    found[title] = [match[1] for line in lines if (match := re.match(r'  (\S+)', line))]
  return found


def test_only_what_a_config_can_name_is_listed():
  found = groups()
  assert list(found) == [
    'Models',
    'Objectives',
    'Adapters',
    'Data sources',
    'Vocabularies',
    'Scores (eval.NAME.scores)',
    'Noise: edit',
    'Noise: rearrange',
    'Noise: where',
    'Configs (--config=...)',
  ]
  assert found['Models'] == signatures.names('models')
  assert {'stream', 'labelled', 'mixture'} <= set(found['Data sources'])
  assert not {'pydocs', 'pydocs_tasks', 'store', 'common'} & {name for names in found.values() for name in names}
  assert {'fixed_count', 'whole_word', 'exact_spans'} <= set(found['Noise: where'])
  for kind in ('edit', 'rearrange', 'where'):
    assert found[f'Noise: {kind}'] == list(signatures.places(f'noise.{kind}'))


@pytest.mark.parametrize('folder', FOLDERS)
def test_every_name_has_a_line(folder):
  for name in signatures.names(folder):
    assert signatures.first_line(f'{folder}.{name}'), name


def test_papers_name_adapters_that_exist():
  for folder in ('models', 'objectives', 'adapters'):
    for name in signatures.names(folder):
      assert set(signatures.paper(f'{folder}.{name}').get('adapters', ())) <= set(signatures.names('adapters')), name
