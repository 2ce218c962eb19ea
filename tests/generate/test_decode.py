"""Generation: token for token Hugging Face's, the uncached loop's, and the distributions of draws in closed form."""

import functools
import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.generate import constraints as rules
from plm_jax.generate import decode, generate, reader, sample
from plm_jax.layers import cache as caches
from plm_jax.models import awd_lstm, glm, gpt, t5
from tests import tiny
from tests.generate import peers

pytestmark = pytest.mark.turns

STORED = [(name, setting) for name, settings in peers.STORED.items() for setting in settings]
LIVE = [
  (name, setting)
  for name in peers.CASES
  for setting in peers.SETTINGS
  if name not in peers.RELATIVES or setting in ('greedy', 'beam five')
]
LIVE += [(name, setting) for name in ('t5', 'bart', 'mbart') for setting in peers.FORCED]


# Beside Hugging Face ------------------------------------------------------------------------------------------------


def check(name: str, setting: str, texts: list, scores: list) -> None:
  for left in (False, True):
    ours, our_scores = peers.run_ours(name, setting, left=left)
    assert ours == texts, f'left={left}'
    if scores:
      np.testing.assert_allclose(our_scores, scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(('name', 'setting'), STORED)
def test_stored_texts_of_hugging_face(name, setting):
  reference = peers.stored()[f'{name}: {setting}']
  check(name, setting, reference['texts'], reference['scores'])


@pytest.mark.slow
@pytest.mark.parametrize(('name', 'setting'), STORED)
def test_stored_texts_are_those_of_hugging_face_as_installed(name, setting):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  texts, scores = peers.run_theirs(name, setting)
  reference = peers.stored()[f'{name}: {setting}']
  assert texts == reference['texts']
  np.testing.assert_allclose(scores, reference['scores'], atol=1e-5)


@pytest.mark.parametrize(
  ('name', 'setting'),
  [
    case if case in (('t5', 'end'), ('mistral', 'greedy')) else pytest.param(*case, marks=pytest.mark.slow)
    for case in LIVE
  ],
)
def test_equals_hugging_face(name, setting):
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  check(name, setting, *peers.run_theirs(name, setting))


def test_references_tell_settings_apart():
  """Texts differ among themselves, some end early, and the beam's are not the greedy ones."""
  stored = peers.stored()
  assert len(set(map(str, stored.values()))) == len(stored)
  greedy, beam = (stored[f'gpt2: {setting}']['texts'] for setting in ('greedy', 'beam five'))
  assert greedy != beam
  assert {len(text) for text in greedy} == {peers.NEW}
  assert any(len(text) < peers.NEW for text in beam)


# Beside the loop without a cache ------------------------------------------------------------------------------------

ROWS, WIDTH = len(peers.LENGTHS), max(peers.LENGTHS)


def make_glm():
  return glm.make(vocab_size=peers.VOCAB, variant='tiny', overrides=peers.SIZES | {'max_length': 16, 'dropout': 0.0})


def make_t5(structure: str):
  sizes = peers.SIZES | {'head_dim': 8, 'num_buckets': 8, 'max_distance': 11, 'structure': structure}
  return t5.make(vocab_size=peers.VOCAB, variant='t5-small', overrides=sizes)


def make_awd_lstm():
  sizes = {'hidden_dim': 16, 'num_layers': 3, 'mlp_dim': 24}
  return awd_lstm.make(vocab_size=peers.VOCAB, variant='tiny', overrides=sizes)


def run_uncached(trunk, params, inputs, *, first: np.ndarray, new: int) -> np.ndarray:
  """The best token, `new` times, each from a whole pass; `inputs(texts int[b, n])` gives what the trunk reads.

  Args:
    trunk: any.
    params: its own.
    inputs: of the texts so far, unread ones 0.
    first: int[b], where in a row the logits of the first token stand.
    new: tokens to make.
  """

  @jax.jit
  def logits_of(inputs):
    hidden = trunk.apply({'params': params}, **inputs)['hidden']
    return trunk.apply({'params': params}, hidden, method='attend')

  texts = np.zeros((ROWS, new), np.int32)
  for number in range(new):
    logits = np.asarray(logits_of(inputs(texts)))
    texts[:, number] = logits[np.arange(ROWS), first + number].argmax(axis=1)
  return texts


def behind(texts: np.ndarray, *, start: int | None = None) -> tuple[np.ndarray, np.ndarray]:
  """Prompts, a start token where there is one, and the texts, with no gap: (tokens, segments), [b, p + 1 + n]."""
  tokens, _ = peers.prompts()
  out = np.zeros((ROWS, WIDTH + 1 + texts.shape[1]), np.int32)
  for row, size in enumerate(peers.LENGTHS):
    whole = [*tokens[row, :size], *([] if start is None else [start]), *texts[row]]
    out[row, : len(whole)] = whole
  return out, np.ones_like(out)  # what stands behind is not seen


SIZES = np.array(peers.LENGTHS)


@pytest.mark.parametrize('left', [False, True])
@pytest.mark.parametrize('make', [functools.partial(make_t5, 'decoder'), make_awd_lstm], ids=['t5', 'awd_lstm'])
def test_a_causal_trunk_goes_on_as_without_a_cache(make, left):
  trunk = make()
  params = peers.draw_params(trunk)
  tokens, segments = peers.prompts(left=left)
  made = generate(trunk, params, tokens, segment_ids=segments, max_new=7).tokens

  def inputs(texts):
    return dict(zip(('tokens', 'segment_ids'), behind(texts), strict=True))

  expected = run_uncached(trunk, params, inputs, first=SIZES - 1, new=7)
  assert np.array_equal(made, expected)
  assert len({tuple(text) for text in expected.tolist()}) == ROWS


@pytest.mark.parametrize('make', [functools.partial(make_t5, 'decoder'), make_awd_lstm], ids=['t5', 'awd_lstm'])
def test_a_search_that_keeps_every_text_finds_the_likeliest(make):
  """Every text of three tokens is read as a whole; with 5 x 5 beams no text of two tokens is lost."""
  trunk, words, new = make().clone(vocab_size=5), 5, 3
  params = peers.draw_params(trunk)
  prompts = [prompt for size in (1, 2) for prompt in itertools.product(range(words), repeat=size)]
  tokens, segments = (np.zeros((len(prompts), 2), np.int32) for _ in range(2))
  for row, prompt in enumerate(prompts):
    tokens[row, : len(prompt)], segments[row, : len(prompt)] = prompt, 1
  texts = np.array(list(itertools.product(range(words), repeat=new)), np.int32)

  @jax.jit
  def nats_of(rows):
    hidden = trunk.apply({'params': params}, rows, segment_ids=jnp.ones_like(rows))['hidden']
    return jax.nn.log_softmax(trunk.apply({'params': params}, hidden, method='attend'))

  run = functools.partial(generate, trunk, params, tokens, segment_ids=segments, max_new=new)
  made = run(method='beam', beams=words**2, length_penalty=0.0)
  likeliest = []
  for prompt in prompts:
    rows = np.concatenate([np.tile(np.array(prompt, np.int32), (len(texts), 1)), texts], axis=1)
    nats = np.asarray(nats_of(rows))[:, len(prompt) - 1 : -1]  # of each next token
    sums = np.take_along_axis(nats, texts[..., None], axis=2)[..., 0].sum(axis=1)
    likeliest.append((texts[sums.argmax()].tolist(), sums.max()))
  assert made.tokens.tolist() == [text for text, _ in likeliest]
  np.testing.assert_allclose(made.scores, [score for _, score in likeliest], rtol=1e-5)
  assert not np.array_equal(run().tokens, made.tokens)  # the best text does not begin with the best token everywhere


def test_an_encoder_decoder_goes_on_as_without_a_cache():
  trunk, params = peers.CASES['bart'].trunk, peers.params_of('bart')
  tokens, segments = peers.prompts()
  made = generate(trunk, params, tokens, segment_ids=segments, max_new=7, start_id=peers.START).tokens

  def inputs(texts):
    read = np.concatenate([np.full((ROWS, 1), peers.START), texts[:, :-1]], axis=1)
    decoder = {'decoder_tokens': read, 'decoder_segment_ids': np.ones_like(read)}
    return {'encoder_tokens': tokens, 'encoder_segment_ids': segments, **decoder}

  assert np.array_equal(made, run_uncached(trunk, params, inputs, first=np.zeros(ROWS, int), new=7))


def test_a_prefix_trunk_goes_on_as_without_a_cache():
  trunk = make_t5('prefix')
  params = peers.draw_params(trunk)
  tokens, segments = peers.prompts()
  made = generate(trunk, params, tokens, segment_ids=segments, max_new=7, start_id=peers.START).tokens

  def inputs(texts):
    return {**dict(zip(('tokens', 'segment_ids'), behind(texts, start=peers.START), strict=True)), 'prefix': SIZES}

  assert np.array_equal(made, run_uncached(trunk, params, inputs, first=SIZES, new=7))


@pytest.mark.parametrize('left', [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_glm_fills_its_blank_as_without_a_cache(left):
  trunk = make_glm()
  params = peers.draw_params(trunk)
  blank = np.array([2, 0, 3], np.int32)
  tokens, segments = peers.prompts(left=left)
  made = generate(trunk, params, tokens, segment_ids=segments, max_new=7, start_id=peers.START, blank=blank).tokens

  def inputs(texts):
    whole, segments = behind(texts, start=peers.START)
    place = np.arange(whole.shape[1])
    in_prompt = place < SIZES[:, None]
    return {
      'tokens': whole,
      'segment_ids': segments,
      'positions': np.where(in_prompt, place, blank[:, None]),
      'block_positions': np.where(in_prompt, 0, np.minimum(place - SIZES[:, None] + 1, 16)),
      'prefix': SIZES,
    }

  expected = run_uncached(trunk, params, inputs, first=SIZES, new=7)
  assert np.array_equal(made, expected)
  assert len({tuple(text) for text in expected.tolist()}) == ROWS


# Rules, loops, compilations -----------------------------------------------------------------------------------------


def run_gpt2(**settings):
  tokens, segments = peers.prompts()
  given = {'segment_ids': segments, 'max_new': 7} | settings
  return generate(peers.CASES['gpt2'].trunk, peers.params_of('gpt2'), tokens, **given)


def test_the_first_and_the_last_token_are_forced():
  made = run_gpt2(first_id=7, last_id=9, method='sample', rng=jax.random.key(0))
  tokens = np.asarray(made.tokens)
  assert tokens[:, 0].tolist() == [7] * ROWS and tokens[:, -1].tolist() == [9] * ROWS
  assert len({tuple(row) for row in tokens[:, 1:-1].tolist()}) == ROWS


@pytest.mark.parametrize(
  'settings',
  [
    {'method': 'greedy', 'eos_id': (5, 16), 'last_id': 9},
    {'method': 'beam', 'beams': 3, 'eos_id': (5, 16), 'last_id': 9},
    {'method': 'beam', 'beams': 2, 'eos_id': 16, 'early_stop': 'never', 'length_penalty': 2.0},
    {'method': 'beam', 'beams': 2, 'eos_id': 5, 'early_stop': True},
  ],
)
def test_each_text_ends_at_a_limit_of_its_own(settings):
  limits = [2, 7, 4, 1][:ROWS] + [3] * max(ROWS - 4, 0)
  together = run_gpt2(limits=np.array(limits), pad_id=63, **settings)
  for row, limit in enumerate(limits):
    alone = run_gpt2(max_new=limit, pad_id=63, **settings)
    assert together.lengths[row] == alone.lengths[row] <= limit
    assert together.tokens[row].tolist() == [*alone.tokens[row].tolist(), *[63] * (7 - limit)]
    assert together.scores[row] == pytest.approx(float(alone.scores[row]), rel=1e-5)


def test_padding_is_no_token_that_was_there():
  """Padding has token 0: a text may have it next to itself although two of them stand before the prompt."""
  before = jnp.array([[-1, -1, -1, 5, 0]])
  texts = jnp.zeros((1, 3), jnp.int32)
  banned = rules._repeats(jnp.int32(1), texts, before, size=2, vocab_size=8)  # the text is 0 so far
  assert np.flatnonzero(banned[0]).tolist() == [0]
  banned = rules._repeats(jnp.int32(0), texts, before, size=2, vocab_size=8)
  assert not banned.any()


class Counting(gpt.Gpt):
  """Notes the shape of what each step reads."""

  def decode_step(self, tokens, cache, *, segment_ids, positions):
    shape = tokens.shape
    jax.debug.callback(lambda: STEPS.append(shape))
    return super().decode_step(tokens, cache, segment_ids=segment_ids, positions=positions)


STEPS: list[tuple[int, ...]] = []


@pytest.mark.parametrize('method', ['greedy', 'beam'])
def test_the_loop_ends_with_the_last_text(method):
  plain = peers.CASES['gpt2'].trunk
  trunk = Counting(plain.config, plain.vocab_size)
  tokens, segments = peers.prompts()
  run = functools.partial(generate, trunk, peers.params_of('gpt2'), tokens[:1], segment_ids=segments[:1])
  settings = {'method': method, 'beams': 2, 'early_stop': True, 'length_penalty': -1.0}
  text = run(max_new=12).tokens[0].tolist()
  end = text.index(16)
  assert 1 < end < 9
  jax.effects_barrier()
  STEPS.clear()
  out = run(max_new=12, eos_id=16, **settings)
  jax.effects_barrier()
  texts = 1 if method == 'greedy' else 2
  assert STEPS[0] == (1, 5) and set(STEPS[1:]) == {(1, texts)}
  if method == 'greedy':
    assert out.tokens[0].tolist() == text[: end + 1] + [0] * (11 - end)
    assert len(STEPS) - 1 == end + 1 == int(out.lengths[0])
  else:
    assert len(STEPS) - 1 < 12 and out.tokens[0].tolist().count(16) == 1


def test_one_compilation_serves_all_prompts_of_a_shape():
  trunk, params = peers.CASES['gpt2'].trunk, peers.params_of('gpt2')
  for seed in range(3):
    tokens, segments = peers.prompts(seed=seed, left=bool(seed % 2))
    made = generate(trunk, params, tokens, segment_ids=segments, max_new=6)
    if not seed:
      compiled, first = decode._run._cache_size(), made.tokens
  assert decode._run._cache_size() == compiled
  assert not np.array_equal(first, made.tokens)


@pytest.mark.parametrize(('rows', 'method'), [(1, 'greedy'), (2, 'greedy'), (1, 'beam')])
def test_a_step_neither_copies_nor_turns_the_cache(rows, method):
  trunk = gpt.make(vocab_size=peers.VOCAB, variant='tiny', overrides=peers.SIZES | {'max_length': 64})
  params = jax.eval_shape(lambda: peers.draw_params(trunk))
  tokens = jax.ShapeDtypeStruct((rows, 5), jnp.int32)
  constraints, choice = rules.group(method, 21, {'beams': 3})
  key = jax.eval_shape(lambda: jax.random.key(0))
  limits = jax.ShapeDtypeStruct((rows,), jnp.int32)
  given = trunk, constraints, choice, None, params, tokens, tokens, None, limits, key
  text = decode._run.lower(*given).compile().as_text()
  heads, slots, size = rows * 2, 4 + 21 * (3 if method == 'beam' else 1), 8
  assert f'f32[{heads},{size},{slots}]' in text and f'f32[{heads},{slots},{size}]' in text  # keys, values
  copies = re.findall(r'= f32\[([\d,]+)\]\S* (?:copy|transpose)\(', text)
  assert all(math.prod(map(int, copy.split(','))) < heads * slots * size for copy in copies), copies


def test_a_cache_grows_where_the_texts_do():
  """Stages give the texts of one loop: more slots are added, and what is kept stays."""
  assert reader.stages(31, texts=1, max_new=64) == [64]
  assert reader.stages(31, texts=1, max_new=993) == [225, 481, 993]
  assert reader.stages(1000, texts=1, max_new=24) == [24]


def test_texts_are_the_same_in_several_stages(monkeypatch):
  expected = run_gpt2()
  monkeypatch.setattr(reader, 'FEWEST_SLOTS', 1)
  decode._run.clear_cache()
  found = run_gpt2()
  decode._run.clear_cache()
  assert len(reader.stages(5, texts=1, max_new=7)) > 1
  assert np.array_equal(found.tokens, expected.tokens)
  np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


def test_a_search_begins_with_few_slots():
  assert reader.capacities(31, rows=1, texts=4, max_new=96) == [287, 415]  # 256 or more
  assert reader.capacities(31, rows=8, texts=4, max_new=96) == [127, 159, 191, 239, 287, 415]
  assert reader.capacities(0, rows=2, texts=2, max_new=600) == [232, 432, 632, 932, 1200]


def test_slots_that_no_text_sees_are_given_back():
  """By hand: row 0 keeps slots 0, 2 and 3, row 1 slots 1 and 4; each array takes them along in their order."""
  seen = np.zeros((2, 2, 6), bool)
  seen[0, 0, [0, 2]] = seen[0, 1, [0, 3]] = seen[1, 0, [1]] = seen[1, 1, [1, 4]] = True
  cache = caches.empty((3, 2, 6, 2, 4)) | {'index': jnp.int32(5), 'seen': jnp.array(seen)}
  draw = np.random.default_rng(0)
  for name in ('positions', 'keys', 'values'):
    cache[name] = jnp.array(draw.integers(1, 99, cache[name].shape), cache[name].dtype)
  cache['segment_ids'] = jnp.ones((2, 6), int)
  kept = reader.give_back(cache | {'keys': list(cache['keys']), 'encoder_keys': jnp.zeros((2, 6))})
  assert int(kept['index']) == 3
  assert kept['encoder_keys'].shape == (2, 6)
  stacked = reader.give_back(cache)['keys']
  for row, slots in enumerate([[0, 2, 3], [1, 4]]):
    own = slice(0, len(slots))
    assert np.array_equal(kept['positions'][row, own], cache['positions'][row, slots])
    assert np.array_equal(kept['seen'][row, :, own], seen[row][:, slots])
    assert not kept['seen'][row, :, len(slots) :].any()
    for layer, head in itertools.product(range(3), range(2)):
      where = 2 * row + head
      assert np.array_equal(kept['keys'][layer][where][:, own], cache['keys'][layer, where][:, slots])
      assert np.array_equal(stacked[layer, where][:, own], cache['keys'][layer, where][:, slots])
      assert np.array_equal(kept['values'][layer, where, own], cache['values'][layer, where, slots])


@pytest.mark.parametrize('name', ['gpt2', 't5', 'bart', 'llama', 'glm', 'awd_lstm'])
def test_a_search_finds_the_same_in_few_slots(name, monkeypatch):
  """With room for one step only, slots are given back all the time; every kind of cache is moved."""
  own = {'glm': make_glm, 'awd_lstm': make_awd_lstm}
  trunk = own[name]() if name in own else peers.CASES[name].trunk
  params = jax.device_put(peers.draw_params(trunk))
  tokens, segments = peers.prompts()
  settings = {'segment_ids': segments, 'max_new': peers.NEW, 'method': 'beam', 'beams': 4}
  settings |= {} if trunk.ATTENTION == 'causal' else {'start_id': peers.START}
  settings |= {'blank': np.zeros(ROWS, int)} if name == 'glm' else {}
  expected = generate(trunk, params, tokens, **settings)
  moved = []
  monkeypatch.setattr(reader, 'FEWEST_SLOTS', 1)
  monkeypatch.setattr(reader, 'FEWEST_STEPS', 1)
  give_back = reader.give_back

  def watched(cache):
    kept = give_back(cache)
    jax.debug.callback(lambda before, after: moved.append(int(before - after)), cache['index'], kept['index'])
    return kept

  monkeypatch.setattr(reader, 'give_back', watched)
  decode._run.clear_cache()
  found = generate(trunk, params, tokens, **settings)
  jax.effects_barrier()
  decode._run.clear_cache()
  assert len(moved) > 2 and sum(moved) > 8, moved
  assert np.array_equal(found.tokens, expected.tokens)
  np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5)


def test_padding_forbids_no_token():
  """The place of padding, -1, must not stand for the last id of the vocabulary."""
  before, texts = jnp.array([[-1, -1, 5, 8], [3, 5, 9, 2]]), jnp.full((2, 3), 6)
  banned = np.asarray(rules._repeats(jnp.int32(1), texts, before, size=1, vocab_size=10))
  assert [np.flatnonzero(row).tolist() for row in banned] == [[5, 6, 8], [2, 3, 5, 6, 9]]


def test_inside_another_compiled_function():
  trunk = peers.CASES['gpt2'].trunk
  tokens, segments = peers.prompts()

  @jax.jit
  def run(params, tokens, segments):
    return generate(trunk, params, tokens, segment_ids=segments, max_new=6)

  expected = generate(trunk, peers.params_of('gpt2'), tokens, segment_ids=segments, max_new=6)
  for a, b in zip(run(peers.params_of('gpt2'), tokens, segments), expected, strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize(
  ('settings', 'words'),
  [
    ({'method': 'best'}, 'greedy, sample, beam'),
    ({'method': 'sample'}, 'rng'),
    ({'method': 'sample', 'rng': 0, 'top_p': 1.5}, r'top_p=1.5.*\(0, 1\]'),
    ({'method': 'sample', 'rng': 0, 'temperature': 0.0}, 'temperature=0.0'),
    ({'method': 'sample', 'rng': 0, 'top_k': 0}, 'top_k=0'),
    ({'method': 'beam', 'beams': 0}, 'beams=0'),
    ({'method': 'beam', 'early_stop': 'soon'}, "early_stop='soon'"),
    ({'max_new': 0}, 'max_new=0'),
    ({'max_new': 3, 'min_new': 4, 'eos_id': 1}, 'min_new=4'),
    ({'min_new': 2}, 'eos_id'),
    ({'start_id': 3}, 'start_id=3'),
    ({'blank': np.zeros(ROWS)}, 'blank'),
    ({'method': 'greedy', 'early_stop': True, 'start_id': 3}, 'start_id=3'),
    ({'max_new': 30}, r'\b32 tokens.* 35'),
  ],
)
def test_what_cannot_be_met(settings, words):
  with pytest.raises(ValueError, match=words):
    run_gpt2(**settings)


def test_a_setting_with_a_wrong_name_is_refused():
  with pytest.raises(TypeError, match=r"'beems'.*'beams'.*length_penalty"):
    run_gpt2(method='beam', beems=3)


def test_a_trunk_that_does_not_generate_says_what_is_missing():
  trunk = tiny.make_trunk('bert')
  with pytest.raises(ValueError, match=r'causal.* Bert .*bidirectional.*Decodes.* decode_step, init_cache'):
    generate(trunk, {}, np.ones((1, 3), int), segment_ids=np.ones((1, 3), int), max_new=2)


def test_a_glm_bounds_texts_and_blanks_by_its_tables():
  tokens, segments = peers.prompts()
  trunk, blank = make_glm(), np.zeros(ROWS, int)
  with pytest.raises(ValueError, match=r'16 tokens.* 17'):
    generate(trunk, {}, tokens, segment_ids=segments, max_new=17, start_id=peers.START, blank=blank)


# Draws --------------------------------------------------------------------------------------------------------------

LOGITS = np.random.default_rng(8).normal(0, 2.0, (5, 40)).astype(np.float32)
SAMPLING = [
  rules.Sampling(),
  rules.Sampling(temperature=0.4),
  rules.Sampling(top_k=7),
  rules.Sampling(top_k=100),
  rules.Sampling(top_p=0.8),
  rules.Sampling(top_p=0.01),
  rules.Sampling(temperature=1.7, top_k=12, top_p=0.7),
]


def shares_of(logits: np.ndarray, sampling: rules.Sampling) -> np.ndarray:
  """Probabilities of one row in closed form."""
  order = np.argsort(-logits)
  exponents = np.exp(logits.astype(np.float64) / sampling.temperature)
  if sampling.top_k is not None:
    exponents[order[sampling.top_k :]] = 0
  shares = exponents / exponents.sum()
  if sampling.top_p is not None:
    before = np.cumsum(shares[order]) - shares[order]
    shares[order[before >= sampling.top_p]] = 0
  return shares / shares.sum()


@pytest.mark.parametrize('sampling', SAMPLING, ids=str)
def test_what_may_be_drawn_in_closed_form(sampling):
  found = jax.nn.softmax(sample.keep_best(jnp.asarray(LOGITS), sampling), axis=1)
  np.testing.assert_allclose(found, [shares_of(row, sampling) for row in LOGITS], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize('sampling', SAMPLING, ids=str)
def test_what_may_be_drawn_by_hugging_face(sampling):
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  theirs = [transformers.TemperatureLogitsWarper(float(sampling.temperature))]
  theirs += [] if sampling.top_k is None else [transformers.TopKLogitsWarper(sampling.top_k)]
  theirs += [] if sampling.top_p is None else [transformers.TopPLogitsWarper(sampling.top_p)]
  scores = torch.tensor(LOGITS)
  for warper in theirs:
    scores = warper(None, scores)
  found = np.asarray(sample.keep_best(jnp.asarray(LOGITS), sampling))
  assert np.array_equal(np.isinf(found), np.isinf(scores.numpy()))
  np.testing.assert_allclose(found, scores.numpy(), rtol=1e-6)


@pytest.mark.parametrize('sampling', [pytest.param(SAMPLING[0], marks=pytest.mark.slow), SAMPLING[-1]], ids=str)
def test_draws_have_their_distribution(sampling):
  """Pearson's statistic of 4,000 first tokens after one prompt; two steps of one row are drawn apart."""
  trunk, params = peers.CASES['gpt2'].trunk, peers.params_of('gpt2')
  count, prompt = 4000, np.array([[7, 11, 23]], np.int32)
  logits = trunk.apply({'params': params}, prompt, segment_ids=np.ones_like(prompt))['hidden'][:, -1]
  logits = np.asarray(trunk.apply({'params': params}, logits, method='attend'))[0]
  tokens = np.repeat(prompt, count, axis=0)
  made = generate(
    trunk,
    params,
    tokens,
    segment_ids=np.ones_like(tokens),
    max_new=2,
    method='sample',
    rng=jax.random.key(3),
    **sampling._asdict(),
  )
  shares = shares_of(logits, sampling)
  counts = np.bincount(np.asarray(made.tokens)[:, 0], minlength=peers.VOCAB)
  assert not counts[shares == 0].any()
  often = shares * count >= 5
  seen = np.append(counts[often], counts[~often].sum())
  expected = np.append(shares[often], shares[~often].sum()) * count
  seen, expected = seen[expected > 0], expected[expected > 0]
  freedom = len(seen) - 1
  statistic = ((seen - expected) ** 2 / expected).sum()
  assert freedom >= 3
  assert statistic < freedom + 4 * np.sqrt(2 * freedom)
  assert not np.array_equal(made.tokens[:, 0], made.tokens[:, 1])
