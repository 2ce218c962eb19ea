"""A softmax over the true word and words that are drawn (Jean et al. 2015; tf.nn.sampled_softmax_loss).

Words are drawn by p(k) = log((k + 2) / (k + 1)) / log(v + 1), about their frequency where the most frequent words have
the lowest ids. As in TensorFlow's default they are all different: drawn one after another until there are n. Q(k), the
expected count of a word among them, is 1 - (1 - p(k))^t; TensorFlow takes for t the number of draws that were needed,
here it is the one number with which the counts sum to n.

    loss = -log softmax([w_y h + b_y - log Q(y), w_k h + b_k - log Q(k) for k drawn])[0]

A drawn word that is the true one counts for nothing.
"""

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array

NOTHING = -1e9  # logit of a drawn word that is the true one


def log_uniform(size: int) -> np.ndarray:
  """f64[v]: p of each of so many words."""
  ids = np.arange(size)
  return np.log((ids + 2) / (ids + 1)) / np.log(size + 1)


def expected_counts(shares: np.ndarray, count: int) -> np.ndarray:
  """f64[v]: Q of each word where `count` different ones are drawn by p f64[v], by halving the interval of log t."""
  if count >= len(shares):
    return np.ones(len(shares))
  low, high = 0.0, 200.0
  for _ in range(200):
    middle = (low + high) / 2
    drawn = -np.expm1(np.exp(middle) * np.log1p(-shares)).sum()
    low, high = (middle, high) if drawn < count else (low, middle)
  return -np.expm1(np.exp(low) * np.log1p(-shares))


def draw(key: Array, log_shares: Array, count: int) -> Array:
  """int32[count]: different words by log p f32[v], as if drawn one after another (Gumbel's top k)."""
  scores = log_shares + jax.random.gumbel(key, log_shares.shape)
  return jax.lax.top_k(scores, count)[1].astype(jnp.int32)


def nats(true: Array, drawn: Array, same: Array) -> Array:
  """Cross-entropy of the true word among the drawn ones, f32[...].

  Args:
    true: f32[...], logits of true words less log Q.
    drawn: f32[..., n], of drawn words.
    same: bool[..., n], a drawn word is the true one.
  """
  others = jax.nn.logsumexp(jnp.where(same, NOTHING, drawn), axis=-1)
  return jnp.logaddexp(true, others) - true
