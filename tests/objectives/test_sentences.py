"""Sentences that the source reports (`data.sentences`) are those that objectives move and hide."""

import jax
import numpy as np
import pytest

from plm_jax.models import bart, glm
from plm_jax.objectives import blank_infilling, denoise_seq2seq
from tests import tiny
from tests.objectives import test_blank_infilling as blank
from tests.objectives import test_denoise_seq2seq as bart_rows

PERMUTATION = bart_rows.VARIANTS['permutation']
CLS, SEP = 2, 3
LINES = [[30, 31, 32], [40, 41], [50, 51, 52, 53], [60]]  # without a token that ends sentences


def rows(count, *, given=True):
  """[CLS] the lines [SEP], and the index of their line."""
  tokens = np.array([CLS, *(i for line in LINES for i in line), SEP], np.int32)
  lines = np.repeat(np.arange(len(LINES)), [len(line) for line in LINES])
  batch = {
    'tokens': np.tile(tokens, (count, 1)),
    'segment_ids': np.ones((count, len(tokens)), np.int32),
    'row_id': np.arange(count, dtype=np.int32),
    'epoch': np.zeros(count, np.int32),
    'row_weight': np.ones(count, np.float32),
    'step': np.zeros(count, np.int32),
  }
  if given:
    batch['sentence_ids'] = np.tile(np.array([0, *lines, lines[-1]], np.int32), (count, 1))
  return batch


def bart_task(**settings):
  trunk = bart.make(vocab_size=bart_rows.V.size, variant='tiny', overrides={**tiny.SIZES, 'max_length': 64})
  return denoise_seq2seq.make(trunk=trunk, vocab=bart_rows.V, **settings)


def glm_task(**settings):
  trunk = glm.make(vocab_size=blank.VOCAB.size, variant='tiny', overrides=tiny.SIZES)
  return blank_infilling.make(trunk=trunk, vocab=blank.VOCAB, levels={'sentence': 1.0}, **settings)


@pytest.mark.parametrize('where', ['rearrange', 'finish'])
def test_lines_are_permuted_whole(where):
  settings = {**PERMUTATION, 'rearrange': (), where: ({'name': 'permute_sentences'},)}
  example = jax.jit(bart_task(**settings).prepare)(jax.random.key(0), rows(60))
  orders = set()
  for row in np.asarray(example.inputs['encoder_tokens']):
    text = ' '.join(map(str, row[(row != CLS) & (row != SEP) & (row != 0)]))
    found = sorted(range(len(LINES)), key=lambda n: text.index(' '.join(map(str, LINES[n]))))
    assert text == ' '.join(str(token) for n in found for token in LINES[n])
    orders.add(tuple(found))
  assert len(orders) > 12


def test_lines_are_hidden_whole():
  example = jax.jit(glm_task().prepare)(jax.random.key(0), rows(40))
  hidden = set()
  for ids, weights in zip(*(np.asarray(example.targets[name]) for name in ('ids', 'weights')), strict=True):
    hidden.add(tuple(ids[weights > 0][:-1].tolist()))
  assert hidden == {tuple(line) for line in LINES}


@pytest.mark.parametrize('make', [lambda: bart_task(**PERMUTATION), glm_task])
def test_a_part_that_reports_none_keeps_the_sentences_of_its_tokens(make):
  """A mixture fills the key with -1 where a source has none."""
  plain = rows(8, given=False)
  plain['tokens'][:, 4] = 20 if make is not glm_task else 10  # ends a sentence
  filled = {**plain, 'sentence_ids': np.full_like(plain['tokens'], -1)}
  prepare = jax.jit(make().prepare)
  jax.tree.map(np.testing.assert_array_equal, *(prepare(jax.random.key(0), batch) for batch in (plain, filled)))


@pytest.mark.parametrize('make', [lambda: bart_task(**PERMUTATION), glm_task])
def test_a_first_batch_of_single_sentences_is_reported(make, caplog):
  make().check(rows(2))
  assert not caplog.text
  make().check(rows(2, given=False))
  assert 'no document of the first batch (2) has two sentences' in caplog.text
