"""Blank infilling: the mix of levels, tokens by name, short pieces, weights, the row's own key."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.models import glm
from plm_jax.noise import keys
from plm_jax.objectives import blank_infilling
from plm_jax.training import step
from tests import tiny

pytestmark = pytest.mark.turns

NAMES = ['<pad>', '<unk>', '[CLS]', '[SEP]', '[MASK]', '<sop>', '<eop>', '[sMASK]', '[gMASK]', '[dBLOCK]', '.', 'a!']
PAD, CLS, SEP, MASK, START, END, SENTENCE, DOCUMENT, BLOCK = 0, 2, 3, 4, 5, 6, 7, 8, 9


@dataclasses.dataclass(frozen=True)
class Vocab(tiny.FakeVocab):
  """Ids with names; 10 and 11 end a sentence."""

  special_ids: tuple[int, ...] = tuple(range(10))

  def token(self, token_id: int) -> str:
    return NAMES[token_id] if token_id < len(NAMES) else f'w{token_id}'

  def id(self, token: str) -> int:
    return NAMES.index(token)


VOCAB = Vocab()
TEN = {
  'levels': {'token': 0.5, 'sentence': 0.3, 'document': 0.2},
  'ratio': 0.25,
  'mask': '[MASK]',
  'sentence_mask': '[sMASK]',
  'document_mask': '[gMASK]',
  'block_token': '[dBLOCK]',
  'start': '<sop>',
  'end': '<eop>',
}
LENGTH = 32


def make_task(**settings):
  trunk = glm.make(vocab_size=VOCAB.size, variant='tiny', overrides=tiny.SIZES)
  return blank_infilling.make(trunk=trunk, vocab=VOCAB, **settings)


def make_batch(rows: int, *, seed: int = 0):
  """[CLS] text [SEP], with a sentence end at every fifth token."""
  tokens = np.random.default_rng(seed).integers(12, VOCAB.size, (rows, LENGTH)).astype(np.int32)
  tokens[:, 5::5] = 10
  tokens[:, 0], tokens[:, -1] = CLS, SEP
  fields = {'tokens': tokens, 'segment_ids': np.ones_like(tokens), 'epoch': np.zeros(rows, np.int32)}
  fields |= {'row_id': np.arange(rows, dtype=np.int32), 'row_weight': np.ones(rows, np.float32)}
  return {name: jnp.asarray(value) for name, value in fields.items()}


def prepare(task, batch, *, number=0, key=0):
  return jax.jit(task.prepare)(jax.random.key(key), keys.with_step(batch, number))


@functools.cache
def mixed(rows=600):
  example = prepare(make_task(**TEN), make_batch(rows))
  return {name: np.asarray(value) for name, value in (example.inputs | example.targets).items()}


def test_levels_come_at_their_rates_each_with_its_own_mask():
  found = mixed()
  counts = np.stack([(found['tokens'] == mask).sum(axis=1) for mask in (MASK, SENTENCE, DOCUMENT)], axis=1)
  assert ((counts > 0).sum(axis=1) == 1).all()
  shares = (counts > 0).mean(axis=0)
  for share, expected in zip(shares, (0.5, 0.3, 0.2), strict=True):
    assert share == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 600))
  assert (counts.sum(axis=1) == found['blanks']).all()
  assert (counts[:, 2] <= 1).all()


def test_sentences_end_where_their_tokens_say():
  found = mixed()
  rows = np.flatnonzero((found['tokens'] == SENTENCE).any(axis=1))
  for row in rows:
    targets, weights = found['ids'][row], found['weights'][row] > 0
    ends = np.flatnonzero(weights & (targets == END))
    # a sentence is 5 tokens and its last is an end, but for the rest of the row before [SEP]: one word
    for end in ends:
      assert targets[end - 1] == 10 or found['weights'][row, end - 2] == 0 or targets[end - 2] in (PAD, END), row
    assert weights.sum() >= int(0.15 * LENGTH)


def test_the_long_blank_has_a_quarter_or_more():
  found = mixed()
  tokens = found['weights'][(found['tokens'] == DOCUMENT).any(axis=1)].sum(axis=1) - 1
  assert tokens.min() >= int(0.25 * LENGTH)
  assert tokens.max() <= LENGTH - 2
  assert tokens.max() - tokens.min() > 15


def test_part_b_begins_with_start_and_ends_with_end_and_only_it_has_weight():
  found = mixed()
  index = np.arange(found['tokens'].shape[1])
  in_b = (index >= found['prefix'][:, None]) & (found['segment_ids'] > 0)
  np.testing.assert_array_equal(found['weights'] > 0, in_b)
  starts = (found['tokens'] == START) & in_b
  np.testing.assert_array_equal(starts.sum(axis=1), found['blanks'])
  np.testing.assert_array_equal(starts, (found['block_positions'] == 1) & in_b)
  np.testing.assert_array_equal((found['ids'] == END).sum(axis=1), found['blanks'])
  assert not (found['block_positions'] > 0)[~in_b].any()
  assert found['scale'][0] == pytest.approx(1 / found['weights'].sum(), rel=1e-6)


def test_block_mask_is_for_short_blanks_only():
  example = prepare(make_task(**TEN, block=0.5), make_batch(200))
  tokens = np.asarray(example.inputs['tokens'])
  blocked = (tokens == BLOCK).any(axis=1)
  short = (tokens == MASK).any(axis=1)
  assert blocked[short].mean() > 0.8
  assert not blocked[~short].any()
  assert not (np.asarray(example.targets['ids']) == BLOCK).any()


def test_some_rows_are_cut_into_pieces_that_do_not_see_each_other():
  segments = jnp.repeat(jnp.array([1, 2, 0]), jnp.array([100, 40, 20]), total_repeat_length=160)
  sizes = set()
  for seed in range(40):
    found = np.asarray(blank_infilling.pieces(jax.random.key(seed), segments))
    assert not found[140:].any()
    steps = np.diff(found[:140])
    assert set(steps) <= {0, 1}
    assert steps[99] == 1  # the wall between the documents stays
    size = int((found == 1).sum())
    sizes.add(size)
    assert 32 <= size <= 100
    assert [int((found == piece).sum()) for piece in np.unique(found[:100])][:-1] == [size] * ((100 - 1) // size)
  assert len(sizes) > 15
  none, every = (prepare(make_task(short=short), make_batch(50)) for short in (0.0, 1.0))
  assert int(none.inputs['segment_ids'].max()) == 1
  assert int(every.inputs['segment_ids'].max()) == 2
  half = prepare(make_task(short=0.5), make_batch(50)).inputs['segment_ids'].max(axis=1)
  assert 0 < int((half > 1).sum()) < 50


def test_a_row_has_the_same_blanks_in_any_batch_and_new_ones_at_each_step():
  task, batch = make_task(**TEN), make_batch(8)
  first = prepare(task, batch)
  part = {name: value[jnp.array([5, 2])] for name, value in batch.items()}
  alone = prepare(task, part)
  for name in blank_infilling.INPUTS:
    np.testing.assert_array_equal(np.asarray(first.inputs[name])[[5, 2]], np.asarray(alone.inputs[name]))
  later = prepare(task, batch, number=1)
  assert (np.asarray(first.inputs['tokens']) != np.asarray(later.inputs['tokens'])).any(axis=1).sum() >= 7
  static = make_task(**TEN, masking='static')
  assert tiny.same(prepare(static, batch), prepare(static, batch, number=1))


def test_too_few_slots_are_counted():
  task, batch = make_task(slots=1, rate=0.4), make_batch(40)
  example = prepare(task, batch)
  assert example.inputs['tokens'].shape == (40, LENGTH + 2)
  assert int((np.asarray(example.inputs['block_positions']) == 1).sum()) == 40
  params = tiny.init_params(task, batch)
  forward = step.bind(task, params, train=False, rng=jax.random.key(0))
  total, weight = task.loss(forward, example, (), jax.random.key(0)).metrics['blanks_without_slot']
  assert float(total) == float(example.targets['blanks'].sum()) - 40 > 20
  assert float(weight) == float(example.targets['blanks'].sum())


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'levels': {'word': 1.0}}, r"objective\.levels names 'word'; choices are token, sentence, document"),
    ({'levels': {'token': 0.0}}, r"objective\.levels={'token': 0\.0}"),
    ({'levels': {'token': -1.0, 'document': 2.0}}, r"objective\.levels={'token': -1\.0"),
    ({'short': 1.5}, r'objective.short=1.5.*\[0, 1\]'),
    ({'masking': 'once'}, "objective.masking='once'.*dynamic, static"),
  ],
)
def test_wrong_settings_are_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    make_task(**settings)


def test_a_vocabulary_without_the_tokens_and_another_trunk_are_refused():
  trunk = glm.make(vocab_size=61, variant='tiny', overrides=tiny.SIZES)
  with pytest.raises(ValueError, match=r'start token.*objective.start='):
    blank_infilling.make(trunk=trunk, vocab=dataclasses.replace(VOCAB, bos_id=None))
  with pytest.raises(ValueError, match='prefix'):
    blank_infilling.make(trunk=tiny.make_trunk('gpt'), vocab=VOCAB)
  with pytest.raises(ValueError, match=r'\b16 tokens.*\b32'):
    short = glm.make(vocab_size=61, variant='tiny', overrides=tiny.SIZES | {'max_length': 16})
    prepare(blank_infilling.make(trunk=short, vocab=VOCAB), make_batch(2))
