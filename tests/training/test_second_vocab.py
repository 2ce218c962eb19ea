"""A second vocabulary is kept in the run folder, checked when the run goes on, and part of what the run reads."""

import shutil

import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Source
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import metrics, run_folder
from plm_jax.text import byte_bpe
from plm_jax.training import parts
from tests.data import small

pytestmark = pytest.mark.turns


@pytest.fixture
def places(tmp_path):
  for name, text in (('one', 'the lazy dog sleeps'), ('other', 'vier faule Hunde schlafen')):
    byte_bpe.train([text] * 20, size=300).save(tmp_path / name)
  return tmp_path


def block(places, name):
  return {'second_vocab': {'name': 'byte_bpe', 'path': str(places / name)}}


def test_it_is_made_kept_and_compared(places):
  folder = RunFolder.at(places / 'run')
  made = parts.make_second_vocab(block(places, 'one'), folder)
  assert parts.make_second_vocab({'second_vocab': None}, folder) is None
  assert parts.make_second_vocab({}, folder) is None  # a config of an earlier version
  made.save(str(folder.second_vocab))
  assert parts.make_second_vocab(block(places, 'one'), folder).digest == made.digest
  with pytest.raises(ConfigError, match=r'second_vocab: .*run was begun with vocabulary'):
    parts.make_second_vocab(block(places, 'other'), folder)
  shutil.rmtree(places / 'one')
  assert parts.make_second_vocab(block(places, 'one'), folder).digest == made.digest, 'the kept one serves'


def test_another_one_is_other_data(places):
  folder = RunFolder.at(places / 'run')
  folder.root.mkdir()
  source = Source({}, 0, lambda step: iter(()), lambda: iter(()), 'digest')
  one, other = (parts.make_second_vocab(block(places, name)) for name in ('one', 'other'))
  vocab = small.NumberVocab()
  facts = run_folder.check_data(folder, source, vocab, first_batches='', second_vocab=one, begun=False)
  assert facts['second_vocab_digest'] == one.digest
  assert 'second_vocab_digest' not in run_folder.check_data(folder, source, vocab, first_batches='', begun=False)
  metrics.write_json(folder.data, facts)
  assert run_folder.check_data(folder, source, vocab, first_batches='', second_vocab=one, begun=True) == facts
  with pytest.raises(ConfigError, match=r'second_vocab_digest of .* was'):
    run_folder.check_data(folder, source, vocab, first_batches='', second_vocab=other, begun=True)


def test_names_of_classes_are_kept(tmp_path):
  folder, vocab = RunFolder.at(tmp_path), small.NumberVocab()
  plain = Source({}, 0, lambda step: iter(()), lambda: iter(()), 'digest')
  named = plain._replace(names=('no', 'yes'))
  old = run_folder.check_data(folder, plain, vocab, first_batches='', begun=False)  # as an earlier version wrote it
  metrics.write_json(folder.data, old)
  assert run_folder.check_data(folder, named, vocab, first_batches='', begun=True) == {
    **old,
    'class_names': ['no', 'yes'],
  }
  several = plain._replace(parts={'a': named, 'b': plain})
  assert run_folder.check_data(folder, several, vocab, first_batches='', begun=False)['class_names'] == {
    'a': ['no', 'yes']
  }
