"""Text from any trunk with a decode cache: greedy, sampling and beam search, in one compiled loop.

    out = generate(trunk, params, tokens, segment_ids=segment_ids, max_new=32, eos_id=50256)

Prompts of different lengths stand in one batch, padded on either side (`segment_ids` 0). Three kinds of trunk: a causal
one goes on after its prompt; an encoder-decoder encodes the prompt and begins at `start_id`; a prefix trunk reads the
prompt both ways and begins at `start_id`, behind it or, where blanks have positions (GLM), at its mask, `blank`.

A step costs one pass over one token a row, so time is linear in the tokens made, beside the attention to what stands.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.types import Array, PyTree

NEVER = -1e9  # of log-probabilities: finite, so that sums of it can be compared


class Generated(NamedTuple):
  """What was made.

  Attributes:
    tokens: int32[b, max_new], `pad_id` after the end token.
    lengths: int32[b], tokens made, the end token counted.
    scores: f32[b], sum of log-probabilities; of a beam search, divided by length ** length_penalty.
  """

  tokens: Array
  lengths: Array
  scores: Array


class Rules(NamedTuple):
  """What may come next, whatever the method.

  Attributes:
    max_new: most tokens to make.
    eos_id: token that ends a text; None: nothing does.
    pad_id: stands behind the end.
    min_new: tokens to make before the end token may come.
    no_repeat: n, such that no n tokens in a row come twice in prompt and text; 0 allows everything.
    first_id: token that the text must begin with.
    last_id: token that a text of `max_new` tokens must end with.
  """

  max_new: int
  eos_id: int | None = None
  pad_id: int = 0
  min_new: int = 0
  no_repeat: int = 0
  first_id: int | None = None
  last_id: int | None = None


class Sampling(NamedTuple):
  """How to draw: logits / temperature, of which the `top_k` best, of which the best that sum to `top_p`."""

  temperature: float = 1.0
  top_k: int | None = None
  top_p: float | None = None


class Beam(NamedTuple):
  """How to search: `beams` texts at a time, compared by log-probability / length ** length_penalty.

  `early_stop` True ends when there are as many finished texts as beams; False when the best open one, at its present
  length, would not be better than the worst finished one; 'never' judges it at its greatest length.
  """

  beams: int
  length_penalty: float = 1.0
  early_stop: bool | Literal['never'] = False


def generate(
  trunk: nn.Module,
  params: PyTree,
  tokens: Array,
  *,
  segment_ids: Array,
  max_new: int,
  method: Literal['greedy', 'sample', 'beam'] = 'greedy',
  eos_id: int | None = None,
  pad_id: int = 0,
  min_new: int = 0,
  no_repeat: int = 0,
  first_id: int | None = None,
  last_id: int | None = None,
  temperature: float = 1.0,
  top_k: int | None = None,
  top_p: float | None = None,
  beams: int = 4,
  length_penalty: float = 1.0,
  early_stop: bool | Literal['never'] = False,
  start_id: int | None = None,
  blank: Array | None = None,
  rng: Array | None = None,
) -> Generated:
  """Makes up to `max_new` tokens for each prompt.

  Args:
    trunk: with `init_cache` and `decode_step`.
    params: of the trunk.
    tokens: int[b, p], the prompts.
    segment_ids: int[b, p], 1 where there is a token, 0 on padding, which may stand on either side.
    max_new: most tokens to make.
    method: 'greedy' takes the best token, 'sample' draws, 'beam' searches.
    eos_id: token that ends a text.
    pad_id: stands behind the end.
    min_new: tokens to make before the end token may come.
    no_repeat: n, such that no n tokens in a row come twice; 0 allows everything.
    first_id: token that the text must begin with.
    last_id: token that a text of `max_new` tokens must end with.
    temperature: of sampling.
    top_k: of sampling.
    top_p: of sampling.
    beams: of beam search.
    length_penalty: of beam search.
    early_stop: of beam search, see `Beam`.
    start_id: token that an encoder-decoder or a prefix trunk begins with.
    blank: int[b], for a trunk with positions in blanks: the place of the mask to fill in, counted in real tokens.
    rng: key of sampling.

  Raises:
    ValueError: a setting that cannot be met.
  """
  rules = Rules(max_new, eos_id, pad_id, min_new, no_repeat, first_id, last_id)
  _check(trunk, rules, method=method, start_id=start_id, blank=blank, rng=rng, tokens=tokens)
  how: Sampling | Beam | None = None
  if method == 'sample':
    how = Sampling(temperature, top_k, top_p)
    if temperature <= 0 or (top_k is not None and top_k < 1) or (top_p is not None and not 0 < top_p <= 1):
      raise ValueError(f'temperature={temperature} and top_k={top_k} must be positive, top_p={top_p} in (0, 1]')
  elif method == 'beam':
    how = Beam(beams, length_penalty, early_stop)
    if beams < 1 or early_stop not in (True, False, 'never'):
      raise ValueError(f'beams={beams} must be positive, early_stop={early_stop!r} one of True, False, "never"')
  key = jax.random.key(0) if rng is None else rng
  tokens, segment_ids = jnp.asarray(tokens, jnp.int32), jnp.asarray(segment_ids, jnp.int32)
  return _run(trunk, rules, how, start_id, params, tokens, segment_ids, blank, key)


def fills_blanks(trunk: nn.Module) -> bool:
  """Whether a trunk writes into blanks of its prompt, as GLM does."""
  return trunk.ATTENTION == 'prefix' and 'block_positions' in trunk.INPUTS


def _check(
  trunk: nn.Module, rules: Rules, *, method: str, start_id: int | None, blank: Any, rng: Any, tokens: Any
) -> None:
  kind = trunk.ATTENTION
  if kind not in ('causal', 'encoder-decoder', 'prefix'):
    raise ValueError(f'{type(trunk).__name__} is {kind}: only causal, encoder-decoder and prefix trunks generate')
  if method not in ('greedy', 'sample', 'beam'):
    raise ValueError(f'method={method!r}; choices are greedy, sample, beam')
  if rules.max_new < 1 or not 0 <= rules.min_new <= rules.max_new:
    raise ValueError(f'max_new={rules.max_new} must be positive, and min_new={rules.min_new} at most that')
  if rules.min_new and rules.eos_id is None:
    raise ValueError('min_new holds back the end token: give eos_id')
  if method == 'sample' and rng is None:
    raise ValueError('method="sample" needs rng, a key')
  if (start_id is None) != (kind == 'causal'):
    raise ValueError(f'start_id={start_id}: {kind} trunks {"take none" if kind == "causal" else "need one"}')
  if (blank is not None) != fills_blanks(trunk):
    raise ValueError('blank, the place of the mask, is for trunks with positions in blanks, and needed there')
  if fills_blanks(trunk) and max(tokens.shape[1], rules.max_new) > trunk.config.max_length:
    raise ValueError(
      f'{type(trunk).__name__} has learned positions for texts and blanks of {trunk.config.max_length} tokens: the '
      f'longest prompt has {tokens.shape[1]}, and max_new is {rules.max_new}'
    )
  if tokens.ndim != 2 or not tokens.shape[1]:
    raise ValueError(f'prompts have shape {tuple(tokens.shape)}, not [b, p] with p > 0')


class _Reader(NamedTuple):
  """A trunk in the middle of its texts.

  Attributes:
    cache: of the trunk.
    read: (tokens int[r], number of tokens made before, cache) -> (logits f32[r, v], cache).
    token: int32[b], what is read first: the end of the prompt, or the token that begins a text.
    before: int32[b, p], all that stands before the text and counts for `no_repeat`, `token` included; -1 is padding.
  """

  cache: PyTree
  read: Callable[[Array, Array, PyTree], tuple[Array, PyTree]]
  token: Array
  before: Array


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _run(
  trunk: nn.Module,
  rules: Rules,
  how: Sampling | Beam | None,
  start_id: int | None,
  params: PyTree,
  tokens: Array,
  segment_ids: Array,
  blank: Array | None,
  key: Array,
) -> Generated:
  copies = how.beams if isinstance(how, Beam) else 1
  tokens, segment_ids = _to_the_right(tokens, segment_ids)
  start = {'causal': _start_causal, 'encoder-decoder': _start_seq2seq, 'prefix': _start_prefix}[trunk.ATTENTION]
  reader = start(trunk, params, tokens, segment_ids, rules.max_new, start_id, blank, copies)
  if isinstance(how, Beam):
    return _search(reader, rules, how)
  return _sample(reader, rules, how, key)


def _to_the_right(tokens: Array, segment_ids: Array) -> tuple[Array, Array]:
  """Rows with their padding on the left, so that every prompt ends in the last column."""
  length = tokens.shape[1]
  index = jnp.arange(length)
  last = jnp.max(jnp.where(segment_ids > 0, index, 0), axis=1)
  source = index[None, :] - (length - 1 - last)[:, None]
  there = source >= 0
  source = jnp.maximum(source, 0)
  moved = jnp.take_along_axis(tokens, source, axis=1)
  return moved, jnp.where(there, jnp.take_along_axis(segment_ids, source, axis=1) > 0, False).astype(jnp.int32)


def _known(tokens: Array, segment_ids: Array) -> Array:
  """Tokens with -1 for padding."""
  return jnp.where(segment_ids > 0, tokens, -1)


def _repeat(tree: PyTree, copies: int) -> PyTree:
  """Every row of a cache `copies` times in a row."""
  return jax.tree.map(lambda x: jnp.repeat(x, copies, axis=_rows(x)) if x.ndim else x, tree)


def _rows(x: Array) -> int:
  """Which axis of a cache's array counts rows: the second of what is kept a layer, [n, b, m, h, k]."""
  return 1 if x.ndim == 5 else 0


def _stepper(trunk: nn.Module, params: PyTree) -> Callable[..., tuple[Array, PyTree]]:
  """`trunk.decode_step` for single tokens with these parameters.

  A step on a CPU takes as long as reading the weights, and XLA copies each layer's out of the stack before it
  multiplies. So the stack is cut once, before the loop; in it the parts are joined for the trunk, and the compiler
  drops the join together with the cuts behind it. Other devices, short of memory, keep one copy.
  """
  if jax.default_backend() != 'cpu':
    return functools.partial(trunk.apply, {'params': params}, method='decode_step')

  def cut(path: tuple[Any, ...], leaf: Array) -> Array | list[Array]:
    return list(leaf) if any(part.key == 'layers' for part in path) else leaf

  parts = jax.tree_util.tree_map_with_path(cut, params)
  unrolled = trunk.clone(execution=dataclasses.replace(trunk.execution, layers='loop'))

  def step(*args: Any, **kwargs: Any) -> tuple[Array, PyTree]:
    def is_cut(node: Any) -> bool:
      return isinstance(node, list)

    joined = jax.tree.map(lambda part: jnp.stack(part) if is_cut(part) else part, parts, is_leaf=is_cut)
    return unrolled.apply({'params': joined}, *args, method='decode_step', **kwargs)

  return step


def _start_causal(
  trunk: nn.Module,
  params: PyTree,
  tokens: Array,
  segment_ids: Array,
  max_new: int,
  start_id: int | None,
  blank: Array | None,
  copies: int,
) -> _Reader:
  del start_id, blank
  rows, length = tokens.shape
  apply = functools.partial(trunk.apply, {'params': params})
  cache = apply(rows, length + max_new - 1, method='init_cache')  # nothing reads the last token
  positions = jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)
  if length > 1:  # nobody reads these logits, so they are not computed
    _, cache = apply(
      tokens[:, :-1], cache, segment_ids=segment_ids[:, :-1], positions=positions[:, :-1], method='decode_step'
    )
  cache = _repeat(cache, copies)
  last = jnp.repeat(positions[:, -1], copies)
  ones = jnp.ones((rows * copies, 1), jnp.int32)
  step = _stepper(trunk, params)

  def read(tokens: Array, made: Array, cache: PyTree) -> tuple[Array, PyTree]:
    logits, cache = step(tokens[:, None], cache, segment_ids=ones, positions=(last + made)[:, None])
    return logits[:, 0], cache

  return _Reader(cache, read, tokens[:, -1], _known(tokens, segment_ids))


def _start_seq2seq(
  trunk: nn.Module,
  params: PyTree,
  tokens: Array,
  segment_ids: Array,
  max_new: int,
  start_id: int | None,
  blank: Array | None,
  copies: int,
) -> _Reader:
  del blank
  rows = tokens.shape[0]
  apply = functools.partial(trunk.apply, {'params': params})
  positions = jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)
  hidden = apply(tokens, segment_ids=segment_ids, positions=positions, method='encode')
  cache = apply(rows, max_new, encoder_hidden=hidden, encoder_segment_ids=segment_ids, method='init_cache')
  ones = jnp.ones((rows * copies, 1), jnp.int32)
  step = _stepper(trunk, params)

  def read(tokens: Array, made: Array, cache: PyTree) -> tuple[Array, PyTree]:
    logits, cache = step(tokens[:, None], cache, segment_ids=ones, positions=jnp.broadcast_to(made, ones.shape))
    return logits[:, 0], cache

  assert start_id is not None  # checked
  first = jnp.full(rows, start_id, jnp.int32)
  return _Reader(_repeat(cache, copies), read, first, first[:, None])


def _start_prefix(
  trunk: nn.Module,
  params: PyTree,
  tokens: Array,
  segment_ids: Array,
  max_new: int,
  start_id: int | None,
  blank: Array | None,
  copies: int,
) -> _Reader:
  rows, length = tokens.shape
  apply = functools.partial(trunk.apply, {'params': params})
  cache = apply(rows, length + max_new, method='init_cache')
  positions = jnp.maximum(jnp.cumsum(segment_ids, axis=1) - 1, 0)
  together: dict[str, Any] = (
    {} if blank is None else {'whole': True}
  )  # without blanks, tokens of one call are always together
  _, cache = apply(tokens, cache, segment_ids=segment_ids, positions=positions, method='decode_step', **together)
  step = _stepper(trunk, params)
  ones = jnp.ones((rows * copies, 1), jnp.int32)
  place = jnp.repeat(positions[:, -1] + 1 if blank is None else jnp.asarray(blank, jnp.int32), copies)[:, None]

  def read(tokens: Array, made: Array, cache: PyTree) -> tuple[Array, PyTree]:
    if blank is None:
      logits, cache = step(tokens[:, None], cache, segment_ids=ones, positions=place + made)
    else:
      inside = jnp.broadcast_to(made + 1, ones.shape)
      logits, cache = step(tokens[:, None], cache, segment_ids=ones, positions=place, block_positions=inside)
    return logits[:, 0], cache

  assert start_id is not None  # checked
  first = jnp.full(rows, start_id, jnp.int32)
  return _Reader(_repeat(cache, copies), read, first, jnp.append(_known(tokens, segment_ids), first[:, None], axis=1))


def _allow(scores: Array, made: Array, texts: Array, before: Array, rules: Rules) -> Array:
  """Log-probabilities (or logits) f32[r, v] with what the rules forbid at -inf.

  Args:
    scores: of the next token.
    made: int32[], tokens made so far.
    texts: int32[r, max_new], filled up to `made`.
    before: int32[r, p], -1 on padding.
    rules: what may come.
  """
  if rules.no_repeat:
    scores = jnp.where(_repeats(made, texts, before, size=rules.no_repeat, vocab=scores.shape[1]), -jnp.inf, scores)
  vocab = jnp.arange(scores.shape[1])
  if rules.eos_id is not None and rules.min_new:
    scores = jnp.where((vocab == rules.eos_id) & (made < rules.min_new), -jnp.inf, scores)
  for forced, when in ((rules.first_id, made == 0), (rules.last_id, made == rules.max_new - 1)):
    if forced is not None:
      only = jnp.where(vocab == forced, 0.0, -jnp.inf)
      scores = jnp.where(when, only, scores)
  return scores


def _repeats(made: Array, texts: Array, before: Array, *, size: int, vocab: int) -> Array:
  """bool[r, v]: tokens that would make `size` tokens in a row come a second time."""
  whole = jnp.concatenate([before, texts], axis=1)  # [r, p + max_new]
  rows, length = whole.shape
  known = before.shape[1] + made
  count = length - size + 1  # windows
  if count < 1:
    return jnp.zeros((rows, vocab), bool)
  same = jnp.broadcast_to(jnp.arange(count) + size <= known, (rows, count))
  for offset in range(size - 1):
    last = jax.lax.dynamic_slice_in_dim(whole, known - (size - 1) + offset, 1, axis=1)
    same &= (whole[:, offset : offset + count] == last) & (last >= 0)
  same &= known >= size - 1
  follows = whole[:, size - 1 :]
  return jnp.zeros((rows, vocab), bool).at[jnp.arange(rows)[:, None], follows].max(same)


def _filter(logits: Array, how: Sampling) -> Array:
  """Logits f32[r, v], at -inf outside the best ones."""
  logits = logits / how.temperature
  if how.top_k is not None:
    worst = jax.lax.top_k(logits, min(how.top_k, logits.shape[1]))[0][:, -1:]
    logits = jnp.where(logits < worst, -jnp.inf, logits)
  if how.top_p is not None and how.top_p < 1:
    ordered = -jnp.sort(-logits, axis=1)
    shares = jax.nn.softmax(ordered, axis=1)
    inside = jnp.cumsum(shares, axis=1) - shares < how.top_p  # the one that goes over is in
    worst = jnp.min(jnp.where(inside, ordered, jnp.inf), axis=1, keepdims=True)
    logits = jnp.where(logits < worst, -jnp.inf, logits)
  return logits


def _sample(reader: _Reader, rules: Rules, how: Sampling | None, key: Array) -> Generated:
  rows = reader.token.shape[0]

  class State(NamedTuple):
    made: Array
    token: Array
    cache: PyTree
    texts: Array
    lengths: Array
    scores: Array
    open: Array

  def step(state: State) -> State:
    logits, cache = reader.read(state.token, state.made, state.cache)
    allowed = _allow(logits, state.made, state.texts, reader.before, rules)
    if how is None:
      token = allowed.argmax(axis=1)
    else:
      token = jax.random.categorical(jax.random.fold_in(key, state.made), _filter(allowed, how), axis=1)
    gain = jnp.take_along_axis(jax.nn.log_softmax(logits, axis=1), token[:, None], axis=1)[:, 0]
    token = jnp.where(state.open, token, rules.pad_id).astype(jnp.int32)
    ends = jnp.zeros_like(state.open) if rules.eos_id is None else token == rules.eos_id
    return State(
      state.made + 1,
      token,
      cache,
      jax.lax.dynamic_update_slice_in_dim(state.texts, token[:, None], state.made, axis=1),
      state.lengths + state.open,
      state.scores + jnp.where(state.open, gain, 0.0),
      state.open & ~ends,
    )

  start = State(
    jnp.zeros((), jnp.int32),
    reader.token,
    reader.cache,
    jnp.full((rows, rules.max_new), rules.pad_id, jnp.int32),
    jnp.zeros(rows, jnp.int32),
    jnp.zeros(rows),
    jnp.ones(rows, bool),
  )
  end = jax.lax.while_loop(lambda state: (state.made < rules.max_new) & state.open.any(), step, start)
  return Generated(end.texts, end.lengths, end.scores)


def _search(reader: _Reader, rules: Rules, how: Beam) -> Generated:
  """Beam search that keeps `beams` open and `beams` finished texts a row."""
  rows, beams, size = reader.token.shape[0], how.beams, rules.max_new
  before = jnp.repeat(reader.before, beams, axis=0)

  class State(NamedTuple):
    made: Array
    token: Array  # [b, k]
    cache: PyTree
    texts: Array  # [b, k, max_new], open
    sums: Array  # [b, k], log-probabilities of open texts
    done_texts: Array
    done_scores: Array  # [b, k]
    done: Array  # bool[b, k], slots of finished texts in use
    hopeful: Array  # bool[b], an open text may still win
    going: Array  # bool[]

  def take(x: Array, index: Array) -> Array:
    return jnp.take_along_axis(x, index.reshape(*index.shape, *(1,) * (x.ndim - 2)), axis=1)

  def step(state: State) -> State:
    logits, cache = reader.read(state.token.reshape(-1), state.made, state.cache)
    gains = jax.nn.log_softmax(logits, axis=1)
    gains = _allow(gains, state.made, state.texts.reshape(rows * beams, size), before, rules)
    vocab = gains.shape[1]
    sums = state.sums[:, :, None] + gains.reshape(rows, beams, vocab)
    # twice as many as beams: even if that many end here, enough stay open
    best, index = jax.lax.top_k(sums.reshape(rows, -1), min(2 * beams, beams * vocab))
    origin, token = index // vocab, (index % vocab).astype(jnp.int32)
    texts = take(state.texts, origin)
    texts = jax.lax.dynamic_update_slice_in_dim(texts, token[:, :, None], state.made, axis=2)
    ends = jnp.broadcast_to(state.made + 1 >= size, token.shape)
    if rules.eos_id is not None:
      ends = ends | (token == rules.eos_id)

    open_sums, chosen = jax.lax.top_k(best + ends * NEVER, beams)
    came_from = take(origin, chosen)
    flat = (jnp.arange(rows)[:, None] * beams + came_from).reshape(-1)
    cache = jax.tree.map(lambda x: jnp.take(x, flat, axis=_rows(x)) if x.ndim else x, cache)

    length = (state.made + 1).astype(jnp.float32)
    # only candidates among the first `beams` may finish
    finishing = ends & (jnp.arange(best.shape[1]) < beams)
    full = state.done.all(axis=1, keepdims=True) & (how.early_stop is True)
    scores = best / length**how.length_penalty + (full | ~state.hopeful[:, None] | ~finishing) * NEVER
    done_scores, winners = jax.lax.top_k(jnp.concatenate([state.done_scores, scores], axis=1), beams)
    done_texts = take(jnp.concatenate([state.done_texts, texts], axis=1), winners)
    done = take(jnp.concatenate([state.done, finishing], axis=1), winners)

    judged = jnp.float32(size) if how.early_stop == 'never' and how.length_penalty > 0 else length
    hope = open_sums[:, 0] / judged**how.length_penalty
    worst = jnp.where(done, done_scores.min(axis=1, keepdims=True), NEVER)
    hopeful = state.hopeful & (hope[:, None] > worst).any(axis=1)
    going = hopeful.any() & ~(done.all() & (how.early_stop is True)) & ~ends.all()
    return State(
      made=state.made + 1,
      token=take(token, chosen),
      cache=cache,
      texts=take(texts, chosen),
      sums=open_sums,
      done_texts=done_texts,
      done_scores=done_scores,
      done=done,
      hopeful=hopeful,
      going=going,
    )

  empty = jnp.full((rows, beams, size), rules.pad_id, jnp.int32)
  start = State(
    jnp.zeros((), jnp.int32),
    jnp.repeat(reader.token[:, None], beams, axis=1),
    reader.cache,
    empty,
    jnp.tile(jnp.where(jnp.arange(beams) == 0, 0.0, NEVER), (rows, 1)),  # all beams are alike at first
    empty,
    jnp.full((rows, beams), NEVER),
    jnp.zeros((rows, beams), bool),
    jnp.ones(rows, bool),
    jnp.ones((), bool),
  )
  end = jax.lax.while_loop(lambda state: (state.made < size) & state.going, step, start)
  # a row without a finished text gives its best open one
  some = end.done.any(axis=1)
  tokens = jnp.where(some[:, None], end.done_texts[:, 0], end.texts[:, 0])
  scores = jnp.where(some, end.done_scores[:, 0], end.sums[:, 0])
  is_end = jnp.zeros_like(tokens, bool) if rules.eos_id is None else tokens == rules.eos_id
  after = jnp.cumsum(is_end, axis=1) - is_end > 0
  tokens = jnp.where(after | (jnp.arange(size) >= end.made), rules.pad_id, tokens)
  lengths = (~after & (jnp.arange(size) < end.made)).sum(axis=1)
  return Generated(tokens, lengths.astype(jnp.int32), scores)
