"""Denoising with an encoder and a decoder: golden examples, texts rebuilt from inputs and targets, walls, lengths."""

import argparse
import dataclasses
import difflib
import functools
import inspect
import itertools
import math
import statistics
import textwrap
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from plm_jax.core.errors import ConfigError
from plm_jax.models import bart, t5
from plm_jax.noise import edit, rearrange
from plm_jax.noise.keys import with_step
from plm_jax.noise.row import Spans
from plm_jax.noise.where import spans
from plm_jax.objectives import denoise_groups, denoise_seq2seq, denoise_sizes, denoising
from plm_jax.objectives.denoising import Denoiser, VocabTables, denoise
from plm_jax.training import step
from tests import tiny
from tests.noise import spans_reference

pytestmark = pytest.mark.turns

MAKERS = {'t5': t5, 'bart': bart}


@dataclasses.dataclass(frozen=True)
class Tokens(tiny.FakeVocab):
  """The fake vocabulary with names: modes 7 to 9, words, a full stop, 24 sentinels that count down from the last id."""

  size: int = 120
  special_ids: tuple[int, ...] = (*range(10), *range(96, 120))

  def token(self, token_id: int) -> str:
    names = {7: '[R]', 8: '[S]', 9: '[X]', 20: '.', 21: '##.'}
    if token_id >= 96:
      return f'<extra_id_{119 - token_id}>'
    return names.get(token_id, f'w{token_id}')


V = Tokens()
PAD, UNK, CLS, SEP, MASK, EOS, STOP = 0, 1, 2, 3, 4, 6, 20
FIRST = 119  # <extra_id_0>
BART = {'edit': {'name': 'collapse_to_mask'}, 'target': 'text', 'start': 'eos', 'append_eos': False}
IID = {'name': 'iid_spans', 'rate': 0.3}
VARIANTS = {
  'T5': {'where': {'name': 'exact_spans', 'rate': 0.3}},
  'replace spans': {'where': IID},
  'drop': {'where': IID, 'edit': {'name': 'drop'}, 'target': 'chosen'},
  'BERT-style': {
    'where': {'name': 'iid', 'rate': 0.3},
    'edit': {'name': 'bert_80_10_10', 'mask': 0.9, 'random': 0.1, 'random_ids': 'ordinary'},
    'target': 'text',
  },
  'MASS-style': {'where': {'name': 'iid', 'rate': 0.3}, 'edit': {'name': 'to_mask'}, 'target': 'text'},
  'masked tokens': {'where': {'name': 'one_span'}, 'edit': {'name': 'to_mask'}, 'target': 'masked'},
  'masked seq2seq': {'where': {'name': 'one_span'}, 'edit': {'name': 'to_mask'}, 'target': 'chosen'},
  'prefix LM': {'where': {'name': 'prefix'}, 'edit': {'name': 'drop'}, 'target': 'chosen'},
  'deshuffle': {
    'rearrange': ({'name': 'deshuffle'},),
    'where': {'name': 'iid', 'rate': 0.0},
    'edit': {'name': 'drop'},
    'target': 'text',
  },
  'token masking': {'where': {'name': 'exact_units', 'rate': 0.3}, **BART},
  'token deletion': {'where': {'name': 'exact_units', 'rate': 0.3}, **BART, 'edit': {'name': 'drop'}},
  'infilling': {'where': {'name': 'poisson_spans'}, **BART},
  'insertion': {
    'where': {'name': 'random_gaps', 'rate': 0.2},
    **BART,
    'edit': {'name': 'insert', 'random_ids': 'ordinary'},
  },
  'permutation': {
    'rearrange': ({'name': 'permute_sentences'},),
    'where': {'name': 'iid', 'rate': 0.0},
    **BART,
    'edit': {'name': 'drop'},
  },
  'rotation': {
    'where': {'name': 'iid', 'rate': 0.0},
    **BART,
    'edit': {'name': 'drop'},
    'finish': ({'name': 'rotate'},),
  },
  'final mix': {
    'rearrange': ({'name': 'permute_sentences'},),
    'where': {'name': 'poisson_spans', 'units': 'tokens'},
    **BART,
    'finish': ({'name': 'rotate', 'rate': 0.5},),
    'mask_random': 0.1,
  },
}
UL2 = tuple(
  {'where': {'name': name, 'rate': rate, **mean}, 'mode': mode}
  for mode, name, rate, mean in (
    ('[R]', 'exact_spans', 0.15, {'mean': 3.0}),
    ('[R]', 'exact_spans', 0.15, {'mean': 8.0}),
    ('[X]', 'exact_spans', 0.5, {'mean': 3.0}),
    ('[X]', 'exact_spans', 0.5, {'mean': 8.0}),
    ('[X]', 'exact_spans', 0.15, {'mean': 64.0}),
    ('[X]', 'exact_spans', 0.5, {'mean': 64.0}),
    ('[S]', 'prefix', 0.25, {}),
  )
)


def make_task(model: str = 't5', *, vocab: Tokens = V, max_length: int = 64, **settings):
  module = MAKERS[model]
  own = {field.name for field in dataclasses.fields(module.CONFIGS['tiny'])}
  overrides = {k: v for k, v in (tiny.SIZES | {'max_length': max_length}).items() if k in own}
  trunk = module.make(vocab_size=vocab.size, variant='tiny', overrides=overrides)
  return denoise_seq2seq.make(trunk=trunk, vocab=vocab, **settings)


def make_rows(documents, *, length: int):
  """A batch of rows, each a list of documents, each a list of ids."""
  tokens = np.zeros((len(documents), length), np.int32)
  segments = np.zeros_like(tokens)
  for row, texts in enumerate(documents):
    start = 0
    for number, text in enumerate(texts, start=1):
      tokens[row, start : start + len(text)] = text
      segments[row, start : start + len(text)] = number
      start += len(text)
  rows = len(documents)
  batch = {
    'tokens': tokens,
    'segment_ids': segments,
    'row_id': np.arange(rows, dtype=np.int32),
    'epoch': np.zeros(rows, np.int32),
    'row_weight': np.ones(rows, np.float32),
  }
  return {name: jnp.asarray(value) for name, value in batch.items()}


def text_of(size: int, seed: int) -> list[int]:
  """Different words, one of five a full stop."""
  draw = np.random.default_rng(seed)
  words = draw.choice(np.arange(22, 96), size, replace=False)
  return np.where(np.arange(size) % 5 == 4, STOP, words).tolist()


HARD = {
  'one long': [text_of(32, 0)],
  'several': [text_of(11, 1), text_of(2, 2), text_of(15, 3)],
  'empty': [],
  'one token': [[30]],
  'two single tokens': [[30], [31]],
  'all special': [[CLS, SEP, SEP]],
  'no full stop': [list(range(30, 50))],
  'framed': [[CLS, *text_of(12, 4), SEP], [CLS, *text_of(9, 5), SEP]],
}


@functools.cache
def prepared(name: str, seed: int = 0):
  task = make_task(
    'bart' if 'append_eos' in VARIANTS[name] else 't5', **VARIANTS[name], inputs_length=60, targets_length=60
  )
  batch = make_rows(list(HARD.values()), length=32)
  return batch, jax.jit(task.prepare)(jax.random.key(seed), with_step(batch, 0))


def documents(ids, segments) -> list[list[int]]:
  """The documents of a row that has padding nowhere but at its end."""
  ids, segments = np.asarray(ids), np.asarray(segments)
  count = int((segments > 0).sum())
  assert (segments[:count] > 0).all()
  assert (np.diff(segments[:count]) >= 0).all()
  return [ids[segments == number].tolist() for number in range(1, segments.max(initial=0) + 1)]


# Golden examples ----------------------------------------------------------------------------------------------------


WORDS = VocabTables(
  special=np.isin(np.arange(V.size), V.special_ids),
  starts_word=np.ones(V.size, bool),
  ends_sentence=np.arange(V.size) == STOP,
  mask_id=MASK,
  pad_id=PAD,
  end=(),
  sentinels=None,
  ordinary=np.arange(22, 96),
  mask_random=0.0,
)
A, B, C, D, E, F = range(30, 36)


def fixed(number, insert=None):
  """A where function that chooses these spans."""
  number = jnp.asarray(number, jnp.int32)
  insert = jnp.zeros_like(number) if insert is None else jnp.asarray(insert, jnp.int32)
  return partial(lambda key, row: Spans(number, insert))


def run(ids, *, choose, write, target='text', tables=WORDS, **orders):
  way = Denoiser(orders.get('rearrange', ()), choose, write, orders.get('finish', ()), target, (), 1.0, 'x')
  ids = jnp.asarray(ids, jnp.int32)
  segments = jnp.ones_like(ids)
  sides = denoise(
    jax.random.key(0), ids, segments, denoiser=way, tables=tables, inputs_size=len(ids) + 4, targets_size=len(ids) + 4
  )
  assert [float(side.excess) for side in sides[:2]] == [0, 0]
  return [documents(side.ids, side.segment_ids)[0] for side in sides[:2]]


TEXT = [A, B, C, STOP, D, E, STOP]  # ABC.DE.
COLLAPSE = partial(edit.collapse_to_mask, mask_id=MASK, max_insert=1)
NOTHING = fixed([0] * 7)


@pytest.mark.parametrize(
  ('name', 'settings', 'expected'),
  [
    ('A_C._E.', {'choose': fixed([0, 1, 0, 0, 2, 0, 0]), 'write': COLLAPSE}, [A, MASK, C, STOP, MASK, E, STOP]),
    ('AC.E.', {'choose': fixed([0, 1, 0, 0, 2, 0, 0]), 'write': partial(edit.drop)}, [A, C, STOP, E, STOP]),
    (
      'A_.D_E.',
      {'choose': fixed([0, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 0]), 'write': COLLAPSE},
      [A, MASK, STOP, D, MASK, E, STOP],
    ),
    (
      'DE.ABC.',
      {
        'choose': NOTHING,
        'write': COLLAPSE,
        'rearrange': (partial(lambda key, row: jnp.array([4, 5, 6, 0, 1, 2, 3])),),
      },
      [D, E, STOP, A, B, C, STOP],
    ),
    (
      'C.DE.AB',
      {'choose': NOTHING, 'write': COLLAPSE, 'finish': (partial(lambda key, row: (jnp.arange(11) + 2) % 7),)},
      [C, STOP, D, E, STOP, A, B],
    ),
  ],
)
def test_the_examples_of_bart(name, settings, expected):
  inputs, targets = run(TEXT, **settings)
  assert inputs == expected, name
  assert targets == TEXT


def test_the_sentences_of_the_example_can_only_change_places():
  permute = jax.jit(
    jax.vmap(lambda key: rearrange.permute_sentences(key, denoising.make_row(jnp.array(TEXT), jnp.ones(7, int), WORDS)))
  )
  orders = {tuple(order) for order in permute(jax.random.split(jax.random.key(0), 40)).tolist()}
  assert orders == {(0, 1, 2, 3, 4, 5, 6), (4, 5, 6, 0, 1, 2, 3)}


THANK, YOU, FOR, INVITING, ME, TO, YOUR, PARTY, LAST, WEEK = range(40, 50)
SENTENCE = [THANK, YOU, FOR, INVITING, ME, TO, YOUR, PARTY, LAST, WEEK, STOP]
CHOSEN = [0, 0, 1, 1, 0, 0, 0, 0, 2, 0, 0]  # "for inviting" and "last"
X, Y, Z = FIRST, FIRST - 1, FIRST - 2
SPELT = WORDS._replace(sentinels=denoising.Sentinels(FIRST, -1, 24), end=(EOS,))
SENTINELS = partial(edit.to_sentinels, first_sentinel=0, sentinel_step=0)


def test_the_example_of_t5():
  inputs, targets = run(SENTENCE, choose=fixed(CHOSEN), write=SENTINELS, target='sentinels', tables=SPELT)
  assert inputs == [THANK, YOU, X, ME, TO, YOUR, PARTY, Y, WEEK, STOP, EOS]
  assert targets == [X, FOR, INVITING, Y, LAST, Z, EOS]
  # the last span ends the text: no sentinel behind it
  ending = [*CHOSEN[:8], 2, 2, 2]
  inputs, targets = run(SENTENCE, choose=fixed(ending), write=SENTINELS, target='sentinels', tables=SPELT)
  assert inputs == [THANK, YOU, X, ME, TO, YOUR, PARTY, Y, EOS]
  assert targets == [X, FOR, INVITING, Y, LAST, WEEK, STOP, EOS]


def test_the_variants_of_the_example_of_t5():
  settings = {'choose': fixed(CHOSEN), 'tables': SPELT._replace(sentinels=None)}
  masked = [MASK if number else token for token, number in zip(SENTENCE, CHOSEN, strict=True)]
  to_mask = partial(edit.to_mask, mask_id=MASK)
  assert run(SENTENCE, write=to_mask, target='text', **settings) == [[*masked, EOS], [*SENTENCE, EOS]]
  kept = [token for token, number in zip(SENTENCE, CHOSEN, strict=True) if not number]
  dropped = [FOR, INVITING, LAST, EOS]
  assert run(SENTENCE, write=partial(edit.drop), target='chosen', **settings) == [[*kept, EOS], dropped]
  assert run(SENTENCE, write=to_mask, target='chosen', **settings) == [[*masked, EOS], dropped]


def test_spans_beyond_the_last_sentinel_stay():
  tables = SPELT._replace(sentinels=denoising.Sentinels(FIRST, -1, 1))
  inputs, targets = run(SENTENCE, choose=fixed(CHOSEN), write=SENTINELS, target='sentinels', tables=tables)
  assert inputs == [THANK, YOU, X, ME, TO, YOUR, PARTY, LAST, WEEK, STOP, EOS]
  assert targets == [X, FOR, INVITING, EOS]


# Every variant ------------------------------------------------------------------------------------------------------


def rebuild(inputs: list[int], targets: list[int]) -> list[int]:
  """The text of which spans stand behind their sentinels in `targets`."""
  filled, current = {}, None
  for token in targets:
    if token >= 96:
      current = token
      filled[token] = []
    else:
      filled[current].append(token)
  out = []
  for token in inputs:
    out += filled.get(token, [token]) if token >= 96 else [token]
  return out


@pytest.mark.parametrize('name', VARIANTS)
def test_inputs_and_targets_give_the_text_back(name):
  settings = VARIANTS[name]
  target, write = settings.get('target', 'sentinels'), settings.get('edit', {'name': 'to_sentinels'})['name']
  end = [] if 'append_eos' in settings else [EOS]
  changed = False
  for seed in range(3):
    _, example = prepared(name, seed)
    for row, texts in enumerate(HARD.values()):
      inputs = documents(example.inputs['encoder_tokens'][row], example.inputs['encoder_segment_ids'][row])
      targets = documents(example.targets['ids'][row], example.inputs['decoder_segment_ids'][row])
      assert len(inputs) == len(targets) or not end
      for text, source, wanted in zip(texts, inputs, targets, strict=False):
        if end:
          assert source.pop() == wanted.pop() == EOS
        changed |= source != text
        special = [token for token in text if token < 10]
        if target in ('text', 'masked'):
          assert wanted == text
        elif target == 'sentinels':
          assert rebuild(source, wanted) == text
        elif write == 'to_mask':
          spare = iter(wanted)
          assert [next(spare) if token == MASK else token for token in source] == text
          assert next(spare, None) is None
        else:
          assert sorted(source + wanted) == sorted(text)
          if name == 'prefix LM' and not special:
            assert source + wanted == text
        assert [token for token in source if token in (CLS, SEP)] == special
        if name in ('deshuffle', 'permutation', 'rotation'):
          assert sorted(source) == sorted(text)
        if name in ('token deletion', 'drop'):
          kept = iter(text)
          assert all(token in kept for token in source)  # in order
        if name == 'insertion':
          assert len(source) - len(text) == math.ceil(round(0.2 * (len(text) - len(special)), 9))
  assert changed


@pytest.mark.parametrize('name', VARIANTS)
def test_the_decoder_reads_what_it_wrote(name):
  start = {'eos': EOS, 'pad': PAD}[VARIANTS[name].get('start', 'pad')]
  _, example = prepared(name)
  tokens, segments = (np.asarray(example.inputs[f'decoder_{x}']) for x in ('tokens', 'segment_ids'))
  ids, weights = np.asarray(example.targets['ids']), np.asarray(example.targets['weights'])
  first = (segments > 0) & (segments != np.pad(segments, ((0, 0), (1, 0)))[:, :-1])
  assert (tokens[first] == start).all()
  inner = (segments > 0) & ~first
  assert (tokens[inner] == np.pad(ids, ((0, 0), (1, 0)))[:, :-1][inner]).all()
  if VARIANTS[name].get('target') == 'masked':
    assert 0 < weights.sum() < (segments > 0).sum()
    assert not weights[ids == EOS].any()
  else:
    assert (weights == (segments > 0)).all()
  assert not np.asarray(example.targets['inputs_excess']).any()
  assert not np.asarray(example.targets['targets_excess']).any()
  scale = np.asarray(example.targets['scale'])
  assert scale == pytest.approx(np.full(len(scale), 1 / weights.sum()))


def test_masked_tokens_are_those_that_count():
  _, example = prepared('masked tokens')
  inputs, ids = np.asarray(example.inputs['encoder_tokens']), np.asarray(example.targets['ids'])
  assert ((inputs == MASK) == (np.asarray(example.targets['weights']) > 0)).all()
  assert (inputs == ids)[inputs != MASK].all()


def test_a_row_of_one_document_fills_the_lengths_of_t5():
  task = make_task(where={'name': 'exact_spans', 'rate': 0.15, 'mean': 3.0})
  raw, targets_length = spans_reference.raw_length(40, rate=0.15, mean=3)
  batch = make_rows([[text_of(raw, seed)] for seed in range(4)], length=raw)
  example = jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0))
  assert example.inputs['encoder_tokens'].shape == (4, 40)
  assert example.targets['ids'].shape == (4, targets_length)
  assert (example.inputs['encoder_segment_ids'] == 1).all()
  assert (example.inputs['decoder_segment_ids'] == 1).all()
  assert (example.targets['ids'][:, -1] == EOS).all()
  for row in range(4):
    source, wanted = (x[row].tolist()[:-1] for x in (example.inputs['encoder_tokens'], example.targets['ids']))
    assert rebuild(source, wanted) == batch['tokens'][row].tolist()


def test_every_document_counts_its_sentinels_from_the_first():
  _, example = prepared('T5')
  row = list(HARD).index('several')
  for text in documents(example.inputs['encoder_tokens'][row], example.inputs['encoder_segment_ids'][row]):
    found = [token for token in text if token >= 96]
    assert found == list(range(FIRST, FIRST - len(found), -1))


def test_a_stream_is_one_text():
  batch = make_rows([[text_of(11, 1), text_of(2, 2), text_of(15, 3)]], length=28)
  task = make_task(packing='stream', where={'name': 'exact_spans', 'rate': 0.3})
  example = jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0))
  assert (example.inputs['encoder_segment_ids'] == 1).all()
  source, wanted = (x[0].tolist()[:-1] for x in (example.inputs['encoder_tokens'], example.targets['ids']))
  assert rebuild(source, wanted) == batch['tokens'][0].tolist()


@pytest.mark.parametrize('needs', [(0, 2, 3, 4, 5), (0, 5, 5, 7, 8), (0, 1, 4, 4, 4)])
def test_slots_are_those_of_the_row_that_needs_most(needs):
  for count in range(1, 6):
    every = itertools.product(range(5), repeat=count)
    most = max(sum(needs[size] for size in sizes) for sizes in every if sum(sizes) == 4)
    assert denoise_sizes.most_together(np.array(needs), count) == most


PACKED = {
  'T5': {},
  'a third': {'where': {'name': 'exact_spans', 'rate': 1 / 3}},
  'sentinels, one span': {'where': {'name': 'one_span', 'rate': 0.3}},
  'dropped': {'where': {'name': 'prefix', 'rate': 0.25}, 'edit': {'name': 'drop'}, 'target': 'chosen'},
  'iid': {'where': IID},
  'UL2': {'denoisers': UL2},
}


@pytest.mark.parametrize('name', PACKED)
def test_rows_of_several_documents_keep_every_token_and_end(name):
  """Under the default packing, with the slots that the source asks for; fewer slots lose ends."""
  draw, length, most = np.random.default_rng(1), 40, 6
  rows = []
  for _ in range(60):
    sizes = np.diff([0, *np.sort(draw.integers(0, length + 1, draw.integers(0, most))), length])
    texts = [text_of(int(size), seed=int(draw.integers(1000))) for size in sizes if size]
    framed = draw.random() < 0.5
    rows.append([[CLS, *text[1:-1], SEP] if framed and len(text) > 2 else text for text in texts])
  batch = with_step(make_rows(rows, length=length), 0)
  plain = make_task(**PACKED[name])
  assert plain.for_documents is not None
  examples = [jax.jit(task.prepare)(jax.random.key(0), batch) for task in (plain, plain.for_documents(most))]
  lost = [sum(float(one.targets[f'{side}_excess'].sum()) for side in ('inputs', 'targets')) for one in examples]
  assert lost[0] > 0 == lost[1]
  example = examples[1]
  count = [len(texts) for texts in rows]
  assert (np.asarray(example.inputs['encoder_tokens']) == EOS).sum(axis=1).tolist() == count
  assert (np.asarray(example.targets['ids'] == EOS) & (np.asarray(example.targets['weights']) > 0)).sum(
    axis=1
  ).tolist() == count


def lost_of(rows, *, length: int, documents: int = 1, **settings):
  """What found no slot in the inputs and in the targets, and the example."""
  batch = with_step(make_rows(rows, length=length), 0)
  sized = make_task(max_length=400, **settings).for_documents
  assert sized is not None
  example = jax.jit(sized(documents).prepare)(jax.random.key(0), batch)
  return [float(example.targets[f'{side}_excess'].sum()) for side in ('inputs', 'targets')], example


@pytest.mark.parametrize('number', [1, 2, 5])
@pytest.mark.parametrize('write', ['to_sentinels', 'drop', 'collapse_to_mask'])
def test_rows_keep_their_end_where_sentinels_are_too_few(number, write):
  few = Tokens(special_ids=(*range(10), *range(120 - number, 120)))
  rows = [[text_of(40, seed)] for seed in range(60)]
  settings = {'where': {'name': 'exact_spans', 'rate': 0.5, 'mean': 2.0}, 'edit': {'name': write}}
  lost, example = lost_of(rows, length=40, vocab=few, **settings)
  assert float(example.targets['lost'].sum()) == 60 * (10 - number)
  assert lost == [0, 0]
  for ids in (example.inputs['encoder_tokens'], example.targets['ids']):
    assert ((np.asarray(ids) == EOS).sum(axis=1) == 1).all()


EVERYWHERE = {
  'exact_spans': {'rate': 0.3},
  'prefix': {'rate': 0.6},
  'one_span': {'rate': 0.3},
  'exact_units': {'rate': 0.3, 'units': 'tokens'},
  'poisson_spans': {'rate': 0.3, 'units': 'tokens'},
}


@pytest.mark.parametrize('name', EVERYWHERE)
def test_special_tokens_within_a_document_are_corrupted_with_it(name):
  """[CLS] A [SEP] B [UNK] [SEP]: one text of 40 tokens between the first and the last one."""
  texts = [text_of(38, seed) for seed in range(60)]
  rows = [[[CLS, *text[:19], SEP, *text[19:], UNK, SEP]] for text in texts]
  settings = EVERYWHERE[name]
  lost, example = lost_of(rows, length=42, where={'name': name, **settings})
  assert lost == [0, 0]
  hidden = {'exact_spans': 12, 'prefix': 24, 'one_span': 12, 'exact_units': 12}.get(name)
  seps = 0
  for row, (text,) in enumerate(rows):
    (source,) = documents(example.inputs['encoder_tokens'][row], example.inputs['encoder_segment_ids'][row])
    (wanted,) = documents(example.targets['ids'][row], example.inputs['decoder_segment_ids'][row])
    assert source.pop() == wanted.pop() == EOS
    assert (source[0], source[-1]) == (CLS, SEP)
    assert rebuild(source, wanted) == text
    sentinels = sum(token >= 96 for token in source)
    if hidden is not None:
      assert len(text) - len(source) == hidden - sentinels
    if name in ('prefix', 'one_span'):
      assert sentinels == 1
    seps += SEP in wanted
  assert seps


@pytest.mark.parametrize('mean', [0.1, 0.5, 1.0, 3.0])
@pytest.mark.parametrize('write', ['collapse_to_mask', 'insert'])
def test_inputs_have_room_for_the_insertions_of_infilling(mean, write):
  settings = {**BART, 'where': {'name': 'poisson_spans', 'mean': mean, 'units': 'tokens'}, 'edit': {'name': write}}
  long = [[text_of(60, seed)] for seed in range(200)]
  assert lost_of(long, length=60, **settings)[0] == [0, 0]
  short = [[text_of(4, 15 * row + seed) for seed in range(15)] for row in range(200)]
  assert lost_of(short, length=60, documents=15, **settings)[0] == [0, 0]


def test_infilling_of_the_paper_has_inputs_as_long_as_its_rows():
  common = {'rearrange': (), 'where': {'name': 'poisson_spans'}, 'finish': (), **BART}
  way = denoise_seq2seq.bind(common, {}, vocab=V, index=0)
  for length, count in ((128, None), (128, 8), (512, None), (512, 64)):
    assert denoise_sizes.sizes(way, length, tables=WORDS, documents=count) == (length, length)


def test_the_margin_of_infilling_ends_with_the_positions_of_the_trunk():
  paper, many = ({**BART, 'where': {'name': 'poisson_spans', 'mean': mean}} for mean in (3.0, 0.5))
  assert make_task('bart', max_length=64, **paper).row_length(32) > 32
  assert make_task('bart', max_length=32, **paper).row_length(32) == 32
  batch = make_rows([[text_of(32, 0)]], length=32)
  with pytest.raises(ValueError, match=r'\b32 tokens.* targets of 32.* 3'):
    jax.eval_shape(make_task('bart', max_length=32, **many).prepare, jax.random.key(0), with_step(batch, 0))


def test_one_text_needs_no_slots_for_documents():
  assert make_task(packing='stream').for_documents is None
  one = make_task().for_documents
  assert one is not None
  assert one(1).row_length(512) - make_task().row_length(512) in (0, 1)


def test_what_finds_no_slot_is_counted():
  task = make_task(where={'name': 'exact_spans', 'rate': 0.3}, inputs_length=10, targets_length=5)
  batch = make_rows([[text_of(20, 0)], [text_of(4, 0)]], length=20)
  example = jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0))
  tokens, count = spans.exact_counts(20, rate=0.3, mean=3.0)
  assert example.targets['inputs_excess'].tolist() == [20 - tokens + count + 1 - 10, 0]
  assert example.targets['targets_excess'].tolist() == [tokens + count + 1 - 5, 0]


def test_some_masks_become_random_tokens():
  ids = jnp.asarray(np.tile(text_of(40, 0), 40), jnp.int32)
  way = Denoiser((), partial(spans.iid_spans, rate=0.5), COLLAPSE, (), 'text', (), 1.0, 'x')
  tables = WORDS._replace(mask_random=0.25)
  inputs, _, _ = denoise(
    jax.random.key(0), ids, jnp.ones_like(ids), denoiser=way, tables=tables, inputs_size=1600, targets_size=1600
  )
  plain, _, _ = denoise(
    jax.random.key(0), ids, jnp.ones_like(ids), denoiser=way, tables=WORDS, inputs_size=1600, targets_size=1600
  )
  masks = plain.ids == MASK
  replaced = (inputs.ids != MASK) & masks
  assert replaced.sum() / masks.sum() == pytest.approx(0.25, abs=0.09)
  assert (inputs.ids == plain.ids)[~masks].all()
  assert not np.isin(np.asarray(inputs.ids)[np.asarray(replaced)], V.special_ids).any()


# Mixtures -----------------------------------------------------------------------------------------------------------


def test_ul2_mixes_seven_denoisers_by_row():
  task = make_task(denoisers=UL2)
  batch = make_rows([[text_of(32, seed)] for seed in range(280)], length=32)
  example = jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0))
  assert example.inputs['encoder_tokens'].shape == (280, 31)  # rate .15, mean 8: 32 - 5 + 1, a mode, an end
  assert example.targets['ids'].shape == (280, 22)  # rate .5, mean 3: 16 + 5, an end
  which = np.asarray(example.targets['which'])
  seen = np.bincount(which, minlength=7)
  assert ((seen - 40) ** 2 / 40).sum() < 22.5  # 6 degrees of freedom, 99.9 %
  for row in range(280):
    settings = UL2[which[row]]
    (source,) = documents(example.inputs['encoder_tokens'][row], example.inputs['encoder_segment_ids'][row])
    (wanted,) = documents(example.targets['ids'][row], example.inputs['decoder_segment_ids'][row])
    assert V.token(source[0]) == settings['mode']
    assert source.pop() == wanted.pop() == EOS
    assert rebuild(source[1:], wanted) == batch['tokens'][row].tolist()
    hidden = sum(token < 96 for token in wanted)
    rate = settings['where'].get('rate')
    assert hidden == round(rate * 32)


@pytest.mark.slow
def test_ul2_mixes_evenly_over_20_000_rows():
  batch = make_rows([[text_of(16, 0)]], length=32)
  batch = {name: jnp.repeat(value, 20_000, axis=0) for name, value in batch.items()} | {'row_id': jnp.arange(20_000)}
  example = jax.jit(make_task(denoisers=UL2).prepare)(jax.random.key(0), with_step(batch, 0))
  seen = np.bincount(np.asarray(example.targets['which']), minlength=7)
  assert stats.chisquare(seen).pvalue > 1e-3


def test_a_row_is_corrupted_alike_in_any_batch():
  task = make_task(denoisers=UL2)
  run = jax.jit(task.prepare)
  batch = make_rows(list(HARD.values()), length=32)
  together = run(jax.random.key(0), with_step(batch, 3))
  for row in range(3):
    order = jnp.array([row] * len(HARD))
    alone = run(jax.random.key(0), with_step({k: v[order] for k, v in batch.items()}, 3))
    assert tiny.same(alone.inputs['encoder_tokens'][0], together.inputs['encoder_tokens'][row])
    assert tiny.same(alone.targets['ids'][0], together.targets['ids'][row])
  later = run(jax.random.key(0), with_step(batch, 4))
  assert not tiny.same(later.inputs['encoder_tokens'], together.inputs['encoder_tokens'])
  assert run._cache_size() == 1


def test_denoisers_computed_together_are_those_computed_one_by_one():
  other = {'where': IID, 'edit': {'name': 'drop'}, 'target': 'chosen', 'mode': '[S]'}
  common = {'rearrange': (), 'where': IID, 'edit': {'name': 'to_sentinels'}, 'finish': (), 'target': 'sentinels'}
  ways = [denoise_seq2seq.bind(common, way, vocab=V, index=n) for n, way in enumerate((*UL2, other, {}))]
  assert denoise_groups.group(ways) == [[0, 1, 2, 3, 4, 5, 6], [7], [8]]  # the last has no mode
  sizes = {'tables': SPELT, 'inputs_size': 40, 'targets_size': 40}
  rows = make_rows(list(HARD.values()), length=32)
  keys = jax.random.split(jax.random.key(0), len(HARD))

  @jax.jit
  def together(which):
    run = lambda *row: denoise(*row, denoiser=denoise_groups.select(ways[:7], which), **sizes)  # noqa: E731
    return jax.vmap(run)(keys, rows['tokens'], rows['segment_ids'])

  for number in (0, 3, 6):  # exact spans of two rates, and a prefix
    alone = jax.jit(jax.vmap(partial(denoise, denoiser=ways[number], **sizes)))
    assert tiny.same(together(number), alone(keys, rows['tokens'], rows['segment_ids'])), number


def test_shares_of_denoisers_can_be_set():
  two = ({**UL2[0], 'share': 0.0}, {**UL2[6], 'share': 2.0})
  task = make_task(denoisers=two)
  batch = make_rows([[text_of(32, seed)] for seed in range(20)], length=32)
  example = jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0))
  assert (example.targets['which'] == 1).all()


def test_modes_are_left_out_where_the_vocabulary_has_none():
  way = denoise_seq2seq.bind(
    {'rearrange': (), 'where': IID, 'edit': {'name': 'drop'}, 'finish': (), 'target': 'text'},
    {'mode': '[Q]'},
    vocab=V,
    index=0,
  )
  assert way.mode == ()
  assert way.label == 'Q'


# One row of both ---------------------------------------------------------------------------------------------------


def make_joined(structure: str, **settings):
  overrides = {k: v for k, v in tiny.SIZES.items() if k in {f.name for f in dataclasses.fields(t5.Config)}}
  trunk = t5.make(vocab_size=V.size, variant='tiny', overrides=overrides | {'structure': structure})
  return denoise_seq2seq.make(trunk=trunk, vocab=V, **settings)


def test_the_example_of_t5_in_one_row():
  two = {
    'encoder_tokens': [[THANK, YOU, X, ME, EOS, A, EOS, PAD]],
    'encoder_segment_ids': [[1, 1, 1, 1, 1, 2, 2, 0]],
    'decoder_tokens': [[PAD, X, FOR, PAD, X, PAD]],
    'decoder_segment_ids': [[1, 1, 1, 2, 2, 0]],
  }
  two = {name: jnp.asarray(value) for name, value in two.items()}
  one = {name: value[0].tolist() for name, value in denoising.join(two, documents=9, prefix=True).items()}
  assert one['prefix'] == 8
  assert one['tokens'] == [THANK, YOU, X, ME, EOS, A, EOS, PAD, PAD, X, FOR, PAD, X, PAD]
  assert one['segment_ids'] == [1, 1, 1, 1, 1, 2, 2, 0, 1, 1, 1, 2, 2, 0]
  assert one['positions'] == [0, 1, 2, 3, 4, 0, 1, 0, 5, 6, 7, 2, 3, 0]
  assert 'prefix' not in denoising.join(two, documents=9, prefix=False)


@pytest.mark.parametrize('structure', ['decoder', 'prefix'])
def test_a_target_is_told_from_its_inputs_and_from_targets_before_it(structure):
  """By what a change of each token changes, in a row of two documents; and inputs see each other as they should."""
  task = make_joined(structure, where={'name': 'exact_spans', 'rate': 0.3})
  rows = make_rows([[text_of(11, 1), text_of(9, 2)]], length=24)
  params = tiny.init_params(task, rows)['trunk']
  example = jax.jit(task.prepare)(jax.random.key(0), with_step(rows, 0))
  inputs = example.inputs
  length, behind = inputs['tokens'].shape[1], inputs['tokens'].shape[1] - example.targets['ids'].shape[1]
  same = {name: jnp.repeat(value, length + 1, axis=0) for name, value in inputs.items()}
  # row i has another token at place i, the last row none
  other = jnp.where(jnp.eye(length + 1, length, dtype=bool), 1, same['tokens'])
  hidden = jax.jit(lambda p, x: task.model.trunk.apply({'params': p}, **x)['hidden'])(params, same | {'tokens': other})
  changed = np.abs(np.asarray(hidden[:length] - hidden[length])).max(axis=-1) > 0  # [key, query]
  segments = np.asarray(inputs['segment_ids'][0])
  for query in np.flatnonzero(segments):
    for key in np.flatnonzero(segments):
      before = key <= query or (structure == 'prefix' and key < behind)
      assert changed[key, query] == (before and segments[key] == segments[query]), (query, key)


def test_a_decoder_reads_the_rows_of_an_encoder_decoder():
  settings = {'denoisers': UL2}
  batch = make_rows(list(HARD.values()), length=32)
  two, one = (
    jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0))
    for task in (make_task(**settings), make_joined('prefix', **settings))
  )
  assert tiny.same(one.targets, two.targets)
  assert tiny.same(
    one.inputs['tokens'], jnp.concatenate([two.inputs['encoder_tokens'], two.inputs['decoder_tokens']], axis=1)
  )


def test_loss_of_a_decoder_equals_a_naive_one():
  task = make_joined('decoder', where={'name': 'exact_spans', 'rate': 0.3})
  batch = make_rows(list(HARD.values()), length=32)
  params = tiny.init_params(task, batch)
  example = jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0))

  @jax.jit
  def both(params):
    forward = step.bind(task, params, train=False, rng=jax.random.key(0))
    out = task.model.trunk.apply({'params': params['trunk']}, **example.inputs)
    logits = task.model.trunk.apply({'params': params['trunk']}, out['hidden'], method='attend')
    return task.loss(forward, example, (), jax.random.key(0)), logits

  loss, logits = both(params)
  ids, weights = (np.asarray(example.targets[name]) for name in ('ids', 'weights'))
  nats = -np.take_along_axis(np.asarray(jax.nn.log_softmax(logits[:, -ids.shape[1] :])), ids[..., None], axis=-1)
  assert float(loss.value) == pytest.approx((nats[..., 0] * weights).sum() / weights.sum(), rel=1e-5)


def test_a_decoder_that_cannot_hold_both_is_refused():
  task = denoise_seq2seq.make(trunk=tiny.make_trunk('gpt', vocab_size=V.size), vocab=V)
  batch = make_rows([[text_of(48, 0)]], length=48)
  with pytest.raises(ValueError, match=r'\b44 .*\b10 .*\b32.* data\.length='):
    jax.eval_shape(task.prepare, jax.random.key(0), with_step(batch, 0))


# Loss and refusals --------------------------------------------------------------------------------------------------


def test_loss_equals_a_naive_one():
  task = make_task(denoisers=UL2, logit_rows=2)
  batch = make_rows(list(HARD.values()), length=32)
  params = tiny.init_params(task, batch)
  example = jax.jit(task.prepare)(jax.random.key(0), with_step(batch, 0))

  @jax.jit
  def both(params):
    forward = step.bind(task, params, train=False, rng=jax.random.key(0))
    out = task.model.trunk.apply({'params': params['trunk']}, **example.inputs)
    logits = task.model.trunk.apply({'params': params['trunk']}, out['hidden'], method='attend')
    return task.loss(forward, example, (), jax.random.key(0)), logits

  loss, logits = both(params)
  nats = -np.take_along_axis(
    np.asarray(jax.nn.log_softmax(logits)), np.asarray(example.targets['ids'])[..., None], axis=-1
  )[..., 0]
  weights = np.asarray(example.targets['weights'])
  assert float(loss.value) == pytest.approx((nats * weights).sum() / weights.sum(), rel=1e-5)
  means = tiny.means(loss.metrics)
  assert means['loss'] == pytest.approx(float(loss.value), rel=1e-5)
  parts = [loss.metrics[f'loss/{label}'] for label in 'RXS']
  assert float(sum(weight for _, weight in parts)) == weights.sum()
  assert float(sum(total for total, _ in parts)) == pytest.approx((nats * weights).sum(), rel=1e-5)
  assert task.summary(means)['perplexity'] == pytest.approx(math.exp(means['loss']))


def test_a_trunk_that_is_too_short_is_refused_with_the_length_that_fits():
  task = make_task('bart', max_length=32)
  batch = make_rows([[text_of(48, 0)]], length=48)
  fits = spans_reference.raw_length(32, rate=0.15, mean=3)[0]
  with pytest.raises(ValueError, match=rf'\b48 .*\b44 .*\b10.*\b32.* data\.length={fits}'):
    jax.eval_shape(task.prepare, jax.random.key(0), with_step(batch, 0))
  batch = make_rows([[text_of(fits, 0)]], length=fits)
  jax.eval_shape(task.prepare, jax.random.key(0), with_step(batch, 0))


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r"'denoise_seq2seq'.*encoder-decoder or causal or prefix"):
    denoise_seq2seq.make(trunk=tiny.make_trunk('bert'), vocab=V)
  for settings, message in (
    ({'target': 'all'}, r"objective\.target='all'.*text, masked, chosen, sentinels"),
    ({'start': 'cls'}, r"objective\.start='cls'.*pad, bos, eos"),
    ({'packing': 'rows'}, r"objective\.packing='rows'.*segments, stream"),
    ({'mask_random': 2.0}, r'objective\.mask_random=2\.0.*\[0, 1\]'),
    ({'denoisers': ({'wher': {}},)}, r"objective\.denoisers\[0\] .*'wher'.*'where'"),
    ({'denoisers': ({'share': 0.0},)}, 'denoisers.*share'),
    ({**VARIANTS['permutation'], 'sentence_ends': ('!',)}, r"objective\.sentence_ends=\('!',\)"),
    ({'vocab': Tokens(special_ids=tuple(range(10)))}, 'sentinel'),
    ({'vocab': Tokens(eos_id=None)}, 'append_eos.*end token'),
    ({**VARIANTS['infilling'], 'vocab': Tokens(mask_id=None)}, 'mask token'),
  ):
    with pytest.raises(ValueError, match=message):
      make_task(**settings)
  with pytest.raises(ConfigError, match='exact_spans'):
    make_task(where={'name': 'exact_span'})
  with pytest.raises(ConfigError, match='rotate'):
    make_task(rearrange=({'name': 'rotat'},))


GAPS = {'where': {'name': 'random_gaps'}}


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'edit': {'name': 'insert'}}, "'exact_spans'.*random_gaps, poisson_spans"),
    ({**GAPS, 'edit': {'name': 'drop'}}, "'drop'.*insert, collapse_to_mask"),
    ({**GAPS, 'edit': {'name': 'insert'}}, "target='sentinels'.*target='text'"),
    ({'denoisers': ({}, {**GAPS, 'edit': {'name': 'insert'}, 'target': 'masked'})}, "target='masked'"),
  ],
)
def test_noise_that_changes_nothing_or_leaves_nothing_to_predict_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    make_task(**settings)


def test_insertions_go_with_the_whole_text():
  for write in ('insert', 'collapse_to_mask'):
    make_task(**GAPS, edit={'name': write}, target='text')


def test_tokens_that_end_a_sentence_are_found_by_name():
  assert np.flatnonzero(denoising.find_sentence_ends(V, ('.',))).tolist() == [20, 21]


def test_sentinels_are_found_by_name():
  assert denoising.find_sentinels(V) == (FIRST, -1, 24)
  with pytest.raises(ValueError, match='gap'):
    denoising.find_sentinels(Tokens(special_ids=(*range(10), 118, 117)))


# Learning -----------------------------------------------------------------------------------------------------------


def letters(*modules) -> np.ndarray:
  """The documentation of some modules, a token a letter: ids from 22 on, the full stop, a blank for all else."""
  text = ' '.join(' '.join(inspect.getdoc(item) or '' for item in vars(module).values()) for module in modules)
  known = {letter: 23 + number for number, letter in enumerate('abcdefghijklmnopqrstuvwxyz')} | {'.': STOP}
  return np.array([known.get(letter, 22) for letter in ' '.join(text.lower().split())], np.int32)


@functools.cache
def corpus(held_out: bool) -> np.ndarray:
  rows = letters(textwrap) if held_out else letters(argparse, difflib, statistics)
  count = min(len(rows) // 48, 64 if held_out else 10_000)
  return rows[: count * 48].reshape(count, 48)


def held_out_losses(steps: int, **settings) -> tuple[float, float]:
  """Loss on held-out text before and after some steps on other text."""
  task = make_task('bart' if 'append_eos' in settings else 't5', **settings, inputs_length=60, targets_length=60)
  held_out, text = (make_rows([[row.tolist()] for row in corpus(part)], length=48) for part in (True, False))
  first = {name: value[:16] for name, value in text.items()}
  tx = tiny.make_optimiser(task, first, rate=3e-3)
  state = tiny.make_state(task, first, tx)
  train = jax.jit(partial(step.train_step, task=task, tx=tx))
  evaluate = jax.jit(partial(step.eval_step, task=task))

  def loss(state) -> float:
    return tiny.means(evaluate(state.params, held_out, state.carry, jax.random.key(1))[0])['loss']

  before = loss(state)
  draw = np.random.default_rng(0)
  for _ in range(steps):
    rows = draw.integers(0, len(text['row_id']), 16)
    state, _ = train(state, {name: value[rows] for name, value in text.items()}, jax.random.key(0))
  return before, loss(state)


@pytest.mark.parametrize('name', ['T5', 'infilling'])
def test_sixty_steps_lower_the_loss_of_unseen_text(name):
  before, after = held_out_losses(60, **VARIANTS[name])
  assert after < before - 0.5


@pytest.mark.slow
@pytest.mark.parametrize('name', [*VARIANTS, 'UL2'])
def test_every_variant_learns(name):
  before, after = held_out_losses(300, **VARIANTS.get(name, {'denoisers': UL2}))
  assert after < before - 0.5
