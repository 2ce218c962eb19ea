"""Scores of the arcs of a dependency tree: the head of each word, and the relation to it.

Each word has one arc (u, t, r), from its head u to the word t, with the relation r. The root is an arc whose head is
the word itself. Over all heads and relations of a word,

    p(u, r | t) ~ exp(s(z_u, z_t, r)),   s(z, z', r) = relu(W_head z + b_head) (W_r + W) relu(W_dep z' + b_dep)

with one matrix per relation and one shared matrix (Clark et al. 2018, §3; Dozat and Manning 2017, §2).
"""

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.linear import Dense, Initializer

NEVER = -1e9  # the score of an arc that is not allowed


class ArcScores(nn.Module):
  """Scores of all arcs of a row."""

  relations: int  # r, number of relations
  width: int  # p, of the projected heads and words
  kernel_init: Initializer  # initializer of all matrices

  @nn.compact
  def __call__(self, of_heads: Array, of_words: Array) -> Array:
    """Compute the scores of all arcs.

    Args:
      of_heads: [b, l, d], words as heads.
      of_words: [b, l, e], words as dependents.

    Returns:
      f32[b, l, l, r], by word, head, relation.
    """
    r, p = self.relations, self.width

    # relu(W x + b) of a head or a word
    def projected(name: str, states: Array) -> Array:  # [b, l, d] -> [b, l, p]
      return nn.relu(Dense(p, ('embed', 'mlp'), self.kernel_init, name=name)(states.astype(jnp.float32)))

    def matrix(name: str, shape: tuple[int, ...]) -> Array:
      axes = (*('classes',) * (len(shape) - 2), 'mlp', None)
      return self.param(name, nn.with_logical_partitioning(self.kernel_init, axes), shape, jnp.float32)

    # 1. matrices W_r + W
    pairs = matrix('relation', (r, p, p)) + matrix('shared', (p, p))  # [r, head, word]
    # 2. product with the words, then with the heads
    words = jnp.einsum('rpq,btq->btrp', pairs, projected('word', of_words))
    return jnp.einsum('bup,btrp->btur', projected('head', of_heads), words)


def over_arcs(scores: Array, may_be_head: Array, segment_ids: Array) -> Array:
  """List the scores of the arcs of each word side by side.

  Arcs that are not allowed get `NEVER`.

  Args:
    scores: f32[b, l, l, r], of `ArcScores`.
    may_be_head: bool[b, l], True where a word begins.
    segment_ids: int[b, l], the text of each token.

  Returns:
    f32[b, l, l * r], with the head at index u and the relation k at u * r + k. A softmax over them is p(u, r | t).
  """
  # relations x y, words 0 1   ->   0x 0y 1x 1y
  same = (segment_ids[:, :, None] == segment_ids[:, None, :]) & may_be_head[:, None, :]  # [b, word, head]
  allowed = jnp.where(same[..., None], scores, NEVER)
  return allowed.reshape(*allowed.shape[:2], -1)
