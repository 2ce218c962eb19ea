"""Scores of the arcs of a dependency tree: which word each word hangs on, and by which relation.

Each word has one arc (u, t, r), from its head u to it, the word t, with the relation r. An arc whose head is the word
itself says that it is the root. Over all heads and relations of a word,

    p(u, r | t) ~ exp(s(z_u, z_t, r)),   s(z, z', r) = relu(W_head z + b_head) (W_r + W) relu(W_dep z' + b_dep)

with a matrix for each relation and one that all share (Clark et al. 2018, §3; Dozat and Manning 2017, §2).
"""

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.linear import Dense, Initializer

NEVER = -1e9  # the score of an arc from what is no word of the text


class ArcScores(nn.Module):
  """The scores of all arcs of a row.

  Attributes:
    relations: r, how many there are.
    width: p, of what is compared of a head and of a word.
    kernel_init: initializer of all matrices.
  """

  relations: int
  width: int
  kernel_init: Initializer

  @nn.compact
  def __call__(self, of_heads: Array, of_words: Array) -> Array:
    """Words as heads [b, l, d], and as what hangs on heads [b, l, e] -> f32[b, l, l, r], of word, head, relation."""
    r, p = self.relations, self.width

    def compared(name: str, states: Array) -> Array:  # [b, l, d] -> [b, l, p]
      return nn.relu(Dense(p, ('embed', 'mlp'), self.kernel_init, name=name)(states.astype(jnp.float32)))

    def matrix(name: str, shape: tuple[int, ...]) -> Array:
      axes = (*('classes',) * (len(shape) - 2), 'mlp', None)
      return self.param(name, nn.with_logical_partitioning(self.kernel_init, axes), shape, jnp.float32)

    pairs = matrix('relation', (r, p, p)) + matrix('shared', (p, p))  # [r, head, word]
    turned = jnp.einsum('rpq,btq->btrp', pairs, compared('word', of_words))
    return jnp.einsum('bup,btrp->btur', compared('head', of_heads), turned)


def over_arcs(scores: Array, may_be_head: Array, segment_ids: Array) -> Array:
  """The scores of the arcs of each word side by side, those that cannot be far below all others.

  Args:
    scores: f32[b, l, l, r], of `ArcScores`.
    may_be_head: bool[b, l], a word begins here.
    segment_ids: int[b, l], the text of each token.

  Returns:
    f32[b, l, l * r], of the head at place u with the relation k at u * r + k; softmax over them is p(u, r | t).
  """
  # relations x y, words 0 1   ->   0x 0y 1x 1y
  same = (segment_ids[:, :, None] == segment_ids[:, None, :]) & may_be_head[:, None, :]  # [b, word, head]
  legal = jnp.where(same[..., None], scores, NEVER)
  return legal.reshape(*legal.shape[:2], -1)
