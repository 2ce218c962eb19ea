"""A table of word vectors: a token's vector does not depend on its neighbours (word2vec, GloVe).

Survey of Qiu et al. 2020, §2.1.1: non-contextual embeddings. The trunk is the table that is used after training; a
second table, of predicted words, belongs to the objective. Vectors are initialised to U(-0.5, 0.5) / d, as in
word2vec.c and GloVe's glove.c, so that initial logits are small.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.core.keywords import Count
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Paper, Published
from plm_jax.layers.linear import Initializer
from plm_jax.layers.pooling import mean
from plm_jax.models.base import Base, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a table of vectors."""

  hidden_dim: Count = 100  # d, width of a vector
  vocab_multiple: Count = 1  # pads the table to a multiple of this many rows


class Static(Base):
  """The table."""

  config: Config

  NAME = 'static'
  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'positions')
  ATTENTION = 'none'

  def setup(self) -> None:
    self.token_embed = self.embed or self.make_table(small_uniform(self.config.hidden_dim))

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array | None = None,
    type_ids: Array | None = None,
    positions: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Look up vectors of tokens int[b, l]; the other arguments are ignored.

    Returns:
      'hidden' [b, l, d]; 'layers' [1, b, l, d], the same; 'carry' ().
    """
    x = constrain(self.token_embed(tokens), 'batch', 'length', 'embed')  # [b, l] -> [b, l, d]
    return {'hidden': x, 'layers': x[None], 'carry': ()}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Average real tokens: [b, l, d] -> [b, d]; zeros without tokens."""
    return mean(hidden, segment_ids)


def small_uniform(width: int) -> Initializer:
  """Build an initializer U(-0.5, 0.5) / width."""

  def init(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> Array:
    return jax.random.uniform(key, shape, dtype, -0.5, 0.5) / width

  return init


CONFIGS: Mapping[str, Config] = {
  'word2vec': Config(),
  'word2vec-300': Config(hidden_dim=300),
  'glove-50': Config(hidden_dim=50),
  'tiny': Config(hidden_dim=64),
}
make = maker(Static, CONFIGS)

PUBLISHED: Mapping[str, Published] = {
  'word2vec': Published(
    71_291, 7_129_100, 'none', note='the default width of word2vec.c; the vocabulary of text8, the text of its demo'
  ),
  'word2vec-300': Published(
    3_000_000,
    900_000_000,
    '3 million vectors of 300',
    note='the vectors of Google News; training has a second, output table of the same size',
  ),
  'glove-50': Published(
    400_000,
    20_000_000,
    '400 thousand vectors of 50',
    note='the vectors of Wikipedia 2014 and Gigaword 5, each the sum of the two in training',
    source=(2014, 'Pennington et al., GloVe'),
  ),
}

PAPER = Paper(
  year=2013,
  title='Mikolov et al., Efficient Estimation of Word Representations in Vector Space',
  architecture='static',
  objective_family='contrastive',
  adapters=('classify', 'tag'),
  transfer='features',
)
