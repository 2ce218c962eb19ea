"""A softmax over the true word and sampled words (Jean et al. 2015; tf.nn.sampled_softmax_loss).

Words are sampled by p(k) = log((k + 2) / (k + 1)) / log(v + 1). This is about their frequency if the most frequent
words have the lowest ids. As in TensorFlow's default they are distinct: sampled one after another until there are n.
The expected count of a word among them is Q(k) = 1 - (1 - p(k))^t. TensorFlow sets t to the number of samples that were
needed; here t is the number with which the counts sum to n.

    loss = -log softmax([w_y h + b_y - log Q(y), w_k h + b_k - log Q(k) for each sampled k])[0]

A sampled word that is the true one is ignored.
"""

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array

NOTHING = -1e9  # logit of a sampled word that is the true one


def log_uniform(size: int) -> np.ndarray:
  """Compute p of each of `size` words: f64[v]."""
  ids = np.arange(size)
  return np.log((ids + 2) / (ids + 1)) / np.log(size + 1)


def expected_counts(shares: np.ndarray, count: int) -> np.ndarray:
  """Compute Q of each word if `count` distinct ones are sampled.

  Args:
    shares: f64[v], p of each word.
    count: n.

  Returns:
    f64[v].
  """
  if count >= len(shares):
    return np.ones(len(shares))
  # bisect log t until the counts sum to n
  low, high = 0.0, 200.0
  for _ in range(200):
    middle = (low + high) / 2
    expected = -np.expm1(np.exp(middle) * np.log1p(-shares)).sum()
    low, high = (middle, high) if expected < count else (low, middle)
  return -np.expm1(np.exp(low) * np.log1p(-shares))


def draw(key: Array, log_shares: Array, count: int) -> Array:
  """Sample `count` distinct words by log p f32[v]: int32[count].

  The result is as if they were sampled one after another (Gumbel's top k).
  """
  # log p + Gumbel noise: the n largest are n samples without replacement
  scores = log_shares + jax.random.gumbel(key, log_shares.shape)
  return jax.lax.top_k(scores, count)[1].astype(jnp.int32)


def nats(true: Array, drawn: Array, same: Array) -> Array:
  """Compute the cross-entropy of the true word among the sampled ones.

  Args:
    true: f32[...], logits of true words less log Q.
    drawn: f32[..., n], logits of sampled words less log Q.
    same: bool[..., n], True where a sampled word is the true one.

  Returns:
    f32[...].
  """
  # -log (e^true / (e^true + sum e^others))
  others = jax.nn.logsumexp(jnp.where(same, NOTHING, drawn), axis=-1)
  return jnp.logaddexp(true, others) - true
