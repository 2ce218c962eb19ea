"""Most likely next tokens at each step of a text, p(x_t | x_<t) (GPT §3.1), of a decoder with or without encoder."""

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.errors import require
from plm_jax.core.trunk import Attends
from plm_jax.core.types import Array, PyTree


def likeliest(
  trunk: nn.Module, params: PyTree, prompt: Sequence[int], new_ids: Sequence[int], *, top: int, start: int | None = None
) -> tuple[Array, Array, Array]:
  """Compute the distribution of each token of a text, in one pass.

  The s ids `new_ids` follow a prompt of at least one id, or are generated for it by a decoder, which reads `start`
  first.

  Returns:
    The k = `top` best ids int32[s, k], their probabilities f32[s, k], and the probability f32[s] of each of `new_ids`.

  Raises:
    ValueError: a trunk that is neither causal nor an encoder-decoder, or has no logits.
  """
  require(trunk, user='trace', attention=('causal', 'encoder-decoder'), offers=(Attends,))

  @jax.jit
  def run(params: PyTree, prompt: Array, read: Array, new_ids: Array) -> tuple[Array, Array, Array]:
    inputs: dict[str, Any]
    if trunk.ATTENTION == 'causal':
      inputs = _inputs('', jnp.append(prompt, read[:, 1:], axis=1))  # the prompt's last token is the first of `read`
    else:
      inputs = _inputs('encoder_', prompt) | _inputs('decoder_', read)
    out: Any = trunk.apply({'params': params}, **inputs)
    hidden = out['hidden'] if isinstance(out, Mapping) else out  # the objective 'translate' returns only states
    logits: Any = trunk.apply({'params': params}, hidden[0, -len(new_ids) :], method='attend')  # [s, v]
    probabilities = jax.nn.softmax(logits, axis=-1)
    best, ids = jax.lax.top_k(probabilities, min(top, logits.shape[-1]))
    return ids, best, jnp.take_along_axis(probabilities, new_ids[:, None], axis=1)[:, 0]

  first = prompt[-1] if start is None else start
  return run(
    params, *(jnp.array([ids], jnp.int32) for ids in (prompt, [first, *new_ids[:-1]])), jnp.array(new_ids, jnp.int32)
  )


def _inputs(side: str, tokens: Array) -> dict[str, Any]:
  return {f'{side}tokens': tokens, f'{side}segment_ids': jnp.ones_like(tokens)}


def readable(begun: bytes, piece: bytes) -> tuple[str, bytes]:
  """Convert a token to text, even if it is an incomplete character.

  `begun` are bytes of earlier tokens that begin a character. Returns the text, with the bytes of an incomplete
  character in hexadecimal, such as '好' or '<E5 A5>'; and those bytes.
  """
  decoder = codecs.getincrementaldecoder('utf-8')('replace')
  text, rest = decoder.decode(begun + piece), decoder.getstate()[0]
  shown = text if text == text.strip() and text.isprintable() else repr(text)
  return (shown if text else '') + (f'<{rest.hex(" ").upper()}>' if rest else ''), rest
