"""What a causal trunk thought at each step of a text: its likeliest next tokens (GPT §3.1: p(x_t | x_<t))."""

import codecs
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.types import Array, PyTree


def likeliest(
  trunk: nn.Module, params: PyTree, prompt: Sequence[int], made: Sequence[int], *, top: int
) -> tuple[Array, Array, Array]:
  """The distribution that each token of a text was taken from, by one pass over all of it.

  Args:
    trunk: a causal trunk.
    params: of the trunk.
    prompt: ids of the prompt, one at least.
    made: s ids that follow it.
    top: k, how many to name.

  Returns:
    The best ids int32[s, k] with their probabilities f32[s, k], and the probability f32[s] of each token of `made`.
  """

  @jax.jit
  def run(params: PyTree, tokens: Array, made: Array) -> tuple[Array, Array, Array]:
    out: Any = trunk.apply({'params': params}, tokens[:, :-1], segment_ids=jnp.ones_like(tokens[:, :-1]))
    logits: Any = trunk.apply({'params': params}, out['hidden'][0, len(prompt) - 1 :], method='attend')  # [s, v]
    probabilities = jax.nn.softmax(logits, axis=-1)
    best, ids = jax.lax.top_k(probabilities, min(top, logits.shape[-1]))
    return ids, best, jnp.take_along_axis(probabilities, made[:, None], axis=1)[:, 0]

  return run(params, jnp.array([[*prompt, *made]], jnp.int32), jnp.array(made, jnp.int32))


def readable(begun: bytes, piece: bytes) -> tuple[str, bytes]:
  """What a token shows where the bytes `begun` wait for the rest of their character.

  Returns:
    Text, with bytes that are not a whole character yet in hexadecimal, as in '好' or '<E5 A5>'; and those bytes.
  """
  decoder = codecs.getincrementaldecoder('utf-8')('replace')
  text, rest = decoder.decode(begun + piece), decoder.getstate()[0]
  shown = text if text == text.strip() and text.isprintable() else repr(text)
  return (shown if text else '') + (f'<{rest.hex(" ").upper()}>' if rest else ''), rest
