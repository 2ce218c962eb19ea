"""A table of vectors: its first values, and that a word has one vector wherever it stands."""

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.models import static


def test_vectors_begin_as_those_of_word2vec():
  trunk = static.make(vocab_size=5000, variant='word2vec')
  table = trunk.init(jax.random.key(0), method='init_all')['params']['token_embed']['table'].value
  assert table.shape == (5000, 100)
  assert np.abs(table).max() <= 0.005
  assert abs(np.std(table) * 100 - 12**-0.5) < 0.002 and abs(np.mean(table)) < 2e-5


def test_a_word_has_one_vector():
  trunk = static.make(vocab_size=9, variant='tiny')
  variables = trunk.init(jax.random.key(0), method='init_all')
  out = trunk.apply(variables, jnp.array([[3, 4, 3]]), segment_ids=jnp.array([[1, 1, 2]]))
  assert np.array_equal(out['hidden'][0, 0], out['hidden'][0, 2]) and np.array_equal(out['layers'][0], out['hidden'])
  pooled = trunk.apply(variables, out['hidden'], jnp.array([[1, 1, 0]]), method='pool')
  assert np.allclose(pooled[0], (out['hidden'][0, 0] + out['hidden'][0, 1]) / 2)
