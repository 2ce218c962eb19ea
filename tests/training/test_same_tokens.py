"""A language model goes on with another vocabulary: words that both have keep their rows, new ones have the mean."""

import numpy as np
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.text import byte_bpe, words
from plm_jax.training import init_sources, loop
from tests import runs

pytestmark = pytest.mark.usefixtures('log')
STOP = {'steps': 2, 'log_every': 1, 'eval_every': 2, 'save_every': 1}


@pytest.fixture(scope='module')
def vocabularies(data):
  """Two of words, the second from the end of the text and with words of its own; both under `data`."""
  texts = (data / 'corpus' / 'train.txt').read_text().split('\n\n')
  made = {
    'old': words.train(texts[:60], size=60, min_frequency=1),
    'new': words.train([*texts[40:], 'zog blick zog'], size=400, min_frequency=1),
  }
  for name, vocab in made.items():
    vocab.save(data / name)
  return made


def settings(data, name, **changes):
  return runs.settings('awd_lstm', data, vocab={'name': 'words', 'path': str(data / name)}, **STOP, **changes)


@pytest.fixture(scope='module')
def source(data, vocabularies, tmp_path_factory):
  workdir = tmp_path_factory.mktemp('source') / 'run'
  assert loop.train(settings(data, 'old'), workdir).exit_code == loop.DONE
  return workdir


@pytest.mark.turns
def test_words_keep_their_rows_and_new_ones_have_the_mean(data, vocabularies, source, tmp_path, monkeypatch):
  old, new = vocabularies['old'], vocabularies['new']
  entry = {'source': str(source), 'resize': 'same_tokens', 'step': 'newest'}
  still = {'rate': 0.0, 'decay': 0.0, 'warmup': 0}
  with runs.logging_on():
    loop.train(settings(data, 'new', init_from=[entry], optim=still), tmp_path, stop_at=1)
  (before, after) = (runs.params_of(runs.saved_state(folder), 'params/trunk') for folder in (source, tmp_path))
  shared = [token for number, token in enumerate(new.tokens) if token in old.tokens and number not in new.special_ids]
  lacking = [token for token in new.tokens if token not in old.tokens]
  assert len(shared) > 30 and {'zog', 'blick'} <= set(lacking)
  for name in ('params/trunk/token_embed/table', 'params/trunk/output_bias/bias'):
    theirs, ours = before[name], after[name]
    for token in shared:
      np.testing.assert_array_equal(ours[new.id(token)], theirs[old.id(token)])
    for token in lacking:
      np.testing.assert_allclose(ours[new.id(token)], theirs.mean(axis=0), rtol=1e-5, atol=1e-7)
  kernels = [name for name in before if 'lstm' in name]
  assert kernels and not [name for name in kernels if before[name].tobytes() != after[name].tobytes()]
  text = (tmp_path / 'log.txt').read_text()
  hits = new.size - len(lacking)
  assert f'{hits} of {new.size} tokens are among its {old.size}; {len(lacking)} are new and start from the mean' in text


def test_without_it_the_vocabulary_is_refused(data, source, tmp_path):
  with pytest.raises(ConfigError, match='does not continue'):
    loop.train(settings(data, 'new', init_from=[{'source': str(source), 'resize': 'mean_rows'}]), tmp_path)


def test_a_source_says_how_many_rows_are_tokens(vocabularies, source):
  assert init_sources._vocab_size(str(source)) == vocabularies['old'].size
  assert init_sources._vocab_size('vectors.txt') is None


@pytest.mark.turns
def test_pieces_take_the_rows_of_words(data, vocabularies, source, tmp_path):
  """A vocabulary of another kind: ' kitchen' of byte-level BPE is the word."""
  texts = (data / 'corpus' / 'train.txt').read_text().split('\n\n')
  byte_bpe.train(texts, size=400).save(data / 'pieces')
  entry = {'source': str(source), 'resize': 'same_tokens', 'step': 'newest'}
  changes = {'init_from': [entry], 'optim': {'rate': 0.0, 'decay': 0.0, 'warmup': 0}}
  one = runs.settings('awd_lstm', data, vocab={'path': str(data / 'pieces')}, **STOP, **changes)
  loop.train(one, tmp_path, stop_at=1)
  table = 'params/trunk/token_embed/table'
  before, after = (runs.saved_state(folder)[table] for folder in (source, tmp_path))
  old, pieces = vocabularies['old'], byte_bpe.train(texts, size=400)
  shared = [token for token in old.tokens if f'Ġ{token}' in pieces.tokens]
  assert shared
  for token in shared:
    np.testing.assert_array_equal(after[pieces.id(f'Ġ{token}')], before[old.id(token)])
