"""Corruptions by name: what is bound, what is offered, what each mistake says."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import blocks
from plm_jax.core.errors import ConfigError
from plm_jax.noise import edit
from plm_jax.noise.where import spans, tokens
from plm_jax.objectives import corrupt
from tests import tiny

COUNTED = tiny.FakeVocab(counts=np.arange(61))


def test_where_functions_of_both_files_are_found_with_their_bounds():
  choose = corrupt.pick_where({'name': 'fixed_count', 'rate': 0.5})
  assert (choose.func, choose.keywords) == (tokens.fixed_count, {'rate': 0.5})
  assert corrupt.capacity(choose, 10) == 5
  choose = corrupt.pick_where({'name': 'prefix'}, vocab=tiny.VOCAB)
  assert (choose.func, choose.keywords) == (spans.prefix, {})
  assert corrupt.capacity(choose, 10) == 10
  assert corrupt.capacity(corrupt.pick_where({'name': 'iid', 'rate': 0}), 10) == 1


def test_a_wrong_name_lists_the_functions_of_all_files():
  with pytest.raises(ConfigError) as caught:
    corrupt.pick_where({'name': 'poison_spans'})
  for word in ('where.name', "Did you mean 'poisson_spans'", 'prefix', '(15 in total)'):
    assert word in str(caught.value)
  with pytest.raises(ConfigError, match=r'unknown key where\.men: did you mean where\.mean'):
    corrupt.pick_where({'name': 'poisson_spans', 'men': 2})


def test_a_config_is_checked_against_the_file_that_has_the_function():
  block = {'name': 'mlm', 'where': {'name': 'poisson_spans', 'mean': 2}, 'edit': {'name': 'to_mask'}}
  values = blocks.complete('objectives', block, 'objective')
  assert values['where'] == {'name': 'poisson_spans', 'rate': 0.3, 'mean': 2.0, 'units': 'words'}
  assert values['edit'] == {'name': 'to_mask'}
  for name, words in (('poison_spans', ['where', "mean 'poisson_spans'"]), ('ngrm', ['where', "mean 'ngram'"])):
    with pytest.raises(ConfigError) as caught:
      blocks.complete('objectives', block | {'where': {'name': name}}, 'objective')
    assert all(word in str(caught.value) for word in words)


def test_counts_are_offered_and_asked_for():
  choose = corrupt.pick_where({'name': 'frequency'}, vocab=COUNTED)
  assert choose.keywords['counts'] is COUNTED.counts
  with pytest.raises(ValueError, match=r"where 'frequency'.*vocabulary"):
    corrupt.pick_where({'name': 'frequency'}, vocab=tiny.FakeVocab(counts=None))
  with pytest.raises(ConfigError, match=r'missing key where\.counts'):
    corrupt.pick_where({'name': 'frequency'})


def test_an_edit_gets_what_it_names():
  write = corrupt.pick_edit({'name': 'bert_80_10_10', 'per': 'span'}, vocab=tiny.VOCAB)
  assert write.func is edit.bert_80_10_10
  assert write.keywords == {'per': 'span', 'mask_id': 4, 'vocab_size': 61, 'special_ids': tiny.VOCAB.special_ids}
  write = corrupt.pick_edit({'name': 'to_sentinels'}, vocab=tiny.VOCAB, first_sentinel=60)
  assert write.keywords == {'first_sentinel': 60}
  with pytest.raises(ConfigError, match=r'missing key edit\.first_sentinel'):
    corrupt.pick_edit({'name': 'to_sentinels'}, vocab=tiny.VOCAB)
  with pytest.raises(ConfigError, match="'to_mask'"):
    corrupt.pick_edit({'name': 'to_mak'}, vocab=tiny.VOCAB)


def test_a_mask_token_is_asked_for_only_where_it_is_written():
  vocab = tiny.FakeVocab(mask_id=None)
  with pytest.raises(ValueError, match=r"edit 'to_mask'.*mask token"):
    corrupt.pick_edit({'name': 'to_mask'}, vocab=vocab)
  assert isinstance(corrupt.pick_edit({'name': 'drop'}, vocab=vocab), functools.partial)


def test_choices_by_share():
  bounds = corrupt.share_bounds([2, 1, 1])
  assert np.array_equal(bounds, np.array([0.5, 0.75], np.float32))
  assert np.array_equal(corrupt.pick_share(jnp.array([0.0, 0.4, 0.5, 0.6, 0.75]), bounds), [0, 0, 1, 1, 2])
  assert int(corrupt.pick_share(jnp.float32(0.6), bounds)) == 1


def test_the_unknown_token_is_a_token_of_the_text():
  vocab = tiny.FakeVocab()
  assert np.flatnonzero(corrupt.special_table(vocab)).tolist() == list(range(7))
  assert np.flatnonzero(corrupt.mark_table(vocab)).tolist() == [0, 2, 3, 4, 5, 6]
  # where it is the end of a text as well, as in GPT-2's vocabulary, it is not one
  assert np.flatnonzero(corrupt.mark_table(tiny.FakeVocab(unk_id=6))).tolist() == list(range(7))
  assert np.flatnonzero(corrupt.mark_table(tiny.FakeVocab(unk_id=None))).tolist() == list(range(7))


def test_what_chooses_no_token_is_refused_where_tokens_are_predicted():
  with pytest.raises(ValueError, match=r"where 'random_gaps'.*exact_spans, .*, whole_word"):
    corrupt.pick_where({'name': 'random_gaps'}, vocab=tiny.VOCAB)
  assert corrupt.pick_where({'name': 'random_gaps'}, inserts=True).func is spans.random_gaps
