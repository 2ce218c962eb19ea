"""Text from any trunk with a decode cache: greedy, sampling and beam search, in one compiled loop.

    out = generate(trunk, params, tokens, segment_ids=segment_ids, max_new=32, method='beam', beams=4, eos_id=50256)

Prompts of different lengths are in one batch, padded on either side (`segment_ids` 0). Three kinds of trunk generate: a
causal one continues its prompt; an encoder-decoder encodes the prompt and begins with `start_id`; a prefix trunk reads
the prompt in both directions and begins with `start_id` after it or, if blanks have positions (GLM), at the mask
`blank`.

A step reads one token per text. The time is linear in the number of new tokens, except for attention to the cache.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.errors import require
from plm_jax.core.trunk import Decodes
from plm_jax.core.types import Array, PyTree
from plm_jax.generate import constraints as rules
from plm_jax.generate import reader
from plm_jax.generate.beam import beam_search
from plm_jax.generate.constraints import Beam, Constraints, Generated, Method, Sampling
from plm_jax.generate.sample import sample_tokens


def generate(
  trunk: nn.Module,
  params: PyTree,
  tokens: Array,
  *,
  segment_ids: Array | None = None,
  max_new: int | None = None,
  method: Method = 'greedy',
  start_id: int | None = None,
  blank: Array | None = None,
  limits: Array | None = None,
  rng: Array | None = None,
  **settings: Any,
) -> Generated:
  """Generate up to `max_new` tokens for each prompt.

  Args:
    trunk: one that `Decodes`; causal, encoder-decoder or prefix.
    tokens: int[b, p], the prompts.
    segment_ids: int[b, p], 1 for a token, 0 for padding, on either side; required.
    max_new: most tokens to generate; required.
    method: 'greedy' takes the best token, 'sample' samples one, 'beam' searches.
    start_id: first token that the decoder of an encoder-decoder or a prefix trunk reads; not part of the result.
    blank: int[b], for a trunk with positions in blanks: the position of the mask to fill, counted in real tokens.
    limits: int[b], most tokens to generate for each prompt, 1 to `max_new`; None is `max_new` for all.
    rng: key, for the method 'sample'.
    **settings: fields of `constraints.Constraints` (eos_id, pad_id, min_new, no_repeat, first_id, last_id, vocab_size),
      of `constraints.Sampling` (temperature, top_k, top_p) and of `constraints.Beam` (beams, length_penalty,
      early_stop).

  Raises:
    TypeError: an unknown setting, or a missing required one.
    ValueError: a trunk that does not generate, or an invalid setting.
  """
  constraints, choice = rules.group(method, 1 if max_new is None else max_new, settings)
  if segment_ids is None or max_new is None:
    raise TypeError('generate needs the keywords segment_ids and max_new')
  _check_trunk(trunk, start_id=start_id, blank=blank, longest=max(tokens.shape[-1], max_new))
  if method == 'sample' and rng is None:
    raise ValueError("method='sample' needs rng, a key: pass rng=jax.random.key(0)")
  if tokens.ndim != 2 or not tokens.shape[1]:
    raise ValueError(f'tokens of shape {tuple(tokens.shape)} must be [b, p] with p > 0')
  key = jax.random.key(0) if rng is None else rng
  tokens, segment_ids = jnp.asarray(tokens, jnp.int32), jnp.asarray(segment_ids, jnp.int32)
  limits = jnp.full(len(tokens), max_new, jnp.int32) if limits is None else jnp.asarray(limits, jnp.int32)
  return _run(trunk, constraints, choice, start_id, params, tokens, segment_ids, blank, limits, key)


def _check_trunk(trunk: nn.Module, *, start_id: int | None, blank: Array | None, longest: int) -> None:
  """Raise ValueError if a trunk cannot generate with these arguments."""
  require(trunk, user='generate', attention=('causal', 'encoder-decoder', 'prefix'), offers=(Decodes,))
  kind = trunk.ATTENTION
  if (start_id is None) != (kind == 'causal'):
    raise ValueError(f'start_id={start_id}: a {kind} trunk {"takes no" if kind == "causal" else "needs a"} start_id')
  fills = reader.fills_blanks(trunk)
  if (blank is not None) != fills:
    raise ValueError(
      'blank, the position of the mask, is required by trunks with positions in blanks, and only by them'
    )
  if fills and longest > (rows := min(map(len, trunk.position_rows.values()))):
    raise ValueError(
      f'{type(trunk).__name__} has positions for texts and blanks of {rows} tokens, and the longest prompt or max_new '
      f'has {longest}: shorten it'
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _run(
  trunk: nn.Module,
  constraints: Constraints,
  choice: Sampling | Beam | None,
  start_id: int | None,
  params: PyTree,
  tokens: Array,
  segment_ids: Array,
  blank: Array | None,
  limits: Array,
  key: Array,
) -> Generated:
  texts = choice.beams if isinstance(choice, Beam) else 1
  tokens, segment_ids = reader.align_right(tokens, segment_ids)
  prompts = reader.Prompts(tokens, segment_ids, blank, start_id, constraints.max_new, texts)
  started = reader.start(trunk, params, prompts)
  if isinstance(choice, Beam):
    return beam_search(started, constraints, choice, limits)
  return sample_tokens(started, constraints, choice, limits, key)
