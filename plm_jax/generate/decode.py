"""Text from any trunk with a decode cache: greedy, sampling and beam search, in one compiled loop.

    out = generate(trunk, params, tokens, segment_ids=segment_ids, max_new=32, method='beam', beams=4, eos_id=50256)

Prompts of different lengths are in one batch, padded on either side (`segment_ids` 0). Three kinds of trunk generate:
a causal one continues its prompt; an encoder-decoder encodes the prompt and begins with `start_id`; a prefix trunk
reads the prompt both ways and begins with `start_id` after it or, where blanks have positions (GLM), at the mask
`blank`.

A step reads one token per text. So the time is linear in the number of new tokens, but for attention to the cache.
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
  """Makes up to `max_new` tokens for each prompt.

  Args:
    trunk: one that `types.Decodes`; causal, encoder-decoder or prefix.
    params: of the trunk.
    tokens: int[b, p], the prompts.
    segment_ids: int[b, p], 1 where there is a token, 0 on padding, which may be on either side; has to be given.
    max_new: most tokens to make; has to be given.
    method: 'greedy' takes the best token, 'sample' draws one, 'beam' searches.
    start_id: token that the text of an encoder-decoder or a prefix trunk begins with; it is not part of the result.
    blank: int[b], for a trunk with positions in blanks: the place of the mask to fill, counted in real tokens.
    limits: int[b], most tokens to make for each prompt, 1 to `max_new`; None is `max_new` for all.
    rng: key, for the method 'sample'.
    **settings: fields of `rules.Constraints` (eos_id, pad_id, min_new, no_repeat, first_id, last_id), of
      `rules.Sampling` (temperature, top_k, top_p) and of `rules.Beam` (beams, length_penalty, early_stop).

  Raises:
    TypeError: a setting with another name, or none for one that has to be given.
    ValueError: a trunk that does not generate, or a setting that cannot be met.
  """
  constraints, choice = rules.group(method, 1 if max_new is None else max_new, settings)
  if segment_ids is None or max_new is None:
    raise TypeError('generate needs the keywords segment_ids and max_new')
  _check_trunk(trunk, start_id=start_id, blank=blank, longest=max(tokens.shape[-1], max_new))
  if method == 'sample' and rng is None:
    raise ValueError('method="sample" needs rng, a key')
  if tokens.ndim != 2 or not tokens.shape[1]:
    raise ValueError(f'prompts have shape {tuple(tokens.shape)}, not [b, p] with p > 0')
  key = jax.random.key(0) if rng is None else rng
  tokens, segment_ids = jnp.asarray(tokens, jnp.int32), jnp.asarray(segment_ids, jnp.int32)
  limits = jnp.full(len(tokens), max_new, jnp.int32) if limits is None else jnp.asarray(limits, jnp.int32)
  return _run(trunk, constraints, choice, start_id, params, tokens, segment_ids, blank, limits, key)


def _check_trunk(trunk: nn.Module, *, start_id: int | None, blank: Array | None, longest: int) -> None:
  """Raises ValueError where a trunk cannot generate, or not with these arguments."""
  require(trunk, user='generate', attention=('causal', 'encoder-decoder', 'prefix'), offers=(Decodes,))
  kind = trunk.ATTENTION
  if (start_id is None) != (kind == 'causal'):
    raise ValueError(f'start_id={start_id}: {kind} trunks {"take none" if kind == "causal" else "need one"}')
  fills = reader.fills_blanks(trunk)
  if (blank is not None) != fills:
    raise ValueError('blank, the place of the mask, belongs to trunks with positions in blanks, which need it')
  if fills and longest > (rows := min(map(len, trunk.position_rows.values()))):
    raise ValueError(
      f'{type(trunk).__name__} has learned positions for texts and blanks of {rows} tokens; the longer one of the '
      f'longest prompt and max_new has {longest}'
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
