"""The likeliest next tokens at each step of a text, by a causal trunk (GPT §3.1: p(x_t | x_<t))."""

import codecs
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.errors import require
from plm_jax.types import Array, Attends, PyTree


def likeliest(
  trunk: nn.Module, params: PyTree, prompt: Sequence[int], made: Sequence[int], *, top: int
) -> tuple[Array, Array, Array]:
  """The distribution of each token of a text, by one pass over all of it.

  Args:
    trunk: a causal trunk that `types.Attends`.
    params: of the trunk.
    prompt: ids of the prompt, at least one.
    made: s ids that follow it.
    top: k, number of best tokens to return.

  Returns:
    The best ids int32[s, k], their probabilities f32[s, k], and the probability f32[s] of each token of `made`.

  Raises:
    ValueError: a trunk of another kind.
  """
  require(trunk, user='trace', attention=('causal',), offers=(Attends,))

  @jax.jit
  def run(params: PyTree, tokens: Array, made: Array) -> tuple[Array, Array, Array]:
    out: Any = trunk.apply({'params': params}, tokens[:, :-1], segment_ids=jnp.ones_like(tokens[:, :-1]))
    logits: Any = trunk.apply({'params': params}, out['hidden'][0, len(prompt) - 1 :], method='attend')  # [s, v]
    probabilities = jax.nn.softmax(logits, axis=-1)
    best, ids = jax.lax.top_k(probabilities, min(top, logits.shape[-1]))
    return ids, best, jnp.take_along_axis(probabilities, made[:, None], axis=1)[:, 0]

  return run(params, jnp.array([[*prompt, *made]], jnp.int32), jnp.array(made, jnp.int32))


def readable(begun: bytes, piece: bytes) -> tuple[str, bytes]:
  """A token as text, where its bytes may be a part of a character.

  Args:
    begun: bytes of earlier tokens that are the beginning of a character.
    piece: bytes of the token.

  Returns:
    The text, with the bytes of an incomplete character in hexadecimal, such as '好' or '<E5 A5>'; and those bytes.
  """
  decoder = codecs.getincrementaldecoder('utf-8')('replace')
  text, rest = decoder.decode(begun + piece), decoder.getstate()[0]
  shown = text if text == text.strip() and text.isprintable() else repr(text)
  return (shown if text else '') + (f'<{rest.hex(" ").upper()}>' if rest else ''), rest
