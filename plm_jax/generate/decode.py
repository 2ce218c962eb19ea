"""Text from any trunk with a decode cache: greedy, sampling and beam search, in one compiled loop.

    out = generate(trunk, params, tokens, segment_ids=segment_ids, max_new=32, eos_id=50256)

Prompts of different lengths stand in one batch, padded on either side (`segment_ids` 0). Three kinds of trunk: a causal
one goes on after its prompt; an encoder-decoder encodes the prompt and begins at `start_id`; a prefix trunk reads the
prompt both ways and begins at `start_id`, behind it or, where blanks have positions (GLM), at its mask, `blank`.

A step costs one pass over one token a row, so time is linear in the tokens made, beside the attention to what stands.
"""

import functools
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.generate.beam import beam_search
from plm_jax.generate.reader import fills_blanks, start_causal, start_prefix, start_seq2seq, to_the_right
from plm_jax.generate.rules import Beam, Generated, Rules, Sampling
from plm_jax.generate.sample import sample_tokens
from plm_jax.types import Array, PyTree


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
  tokens, segment_ids = to_the_right(tokens, segment_ids)
  start = {'causal': start_causal, 'encoder-decoder': start_seq2seq, 'prefix': start_prefix}[trunk.ATTENTION]
  reader = start(trunk, params, tokens, segment_ids, rules.max_new, start_id, blank, copies)
  if isinstance(how, Beam):
    return beam_search(reader, rules, how)
  return sample_tokens(reader, rules, how, key)
