"""A frozen trunk as a source of features: another adapter reads a learned mix of all its layers (ELMo; Peters et al.
2018, §3.2 and §3.3).

A token is ELMo_k = gamma sum_j softmax(w)_j h_k,j over the trunk's embeddings and layers; `vectors` puts a vector x_k
of the task's own in front of it, [x_k; ELMo_k]. The adapter `inner` sees these in place of the trunk's states: `tag`
with `lstm_layers` and `crf` is the paper's network for names, `classify` takes the largest value of each component over
a row. The trunk keeps its place in the parameters, so `init_from` reads it as ever, and its values, whatever `optim`
says; what is new, and trains, is `trunk/scalar_mix/weights`, `trunk/scalar_mix/gamma` and `trunk/vectors/table`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers import pooling
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, normal
from plm_jax.layers.means import row_terms
from plm_jax.layers.scalar_mix import ScalarMix, read_layers
from plm_jax.plugins import build
from plm_jax.types import (
  HEADS,
  Array,
  AttentionKind,
  Batch,
  Example,
  Execution,
  Forward,
  Loss,
  Paper,
  PyTree,
  Rate,
  Std,
  Task,
  Vocab,
  Weight,
  Whole,
)

PAPER = Paper(
  year=2018,
  title='Peters et al., ELMo',
  architecture='any',
  objective_family='supervised',
  adapters=('tag', 'classify'),
)
READS = ()  # what `inner` reads
QUICK = dict(vectors=8)  # of a smoke test (`file.py:quick`)


class MixedTrunk(nn.Module):
  """A trunk whose output is the mix of its layers, beside vectors of the task's own; a `types.Trunk`.

  The trunk inside runs without dropout and gets no gradient.

  Attributes:
    trunk: any trunk; its parameters are those of this module.
    vectors: width of a table of vectors for the vocabulary, which the task trains; 0 for none.
    dropout: rate on the mix and on these vectors.
    norm: see `ScalarMix`.
    init_std: of the table.
  """

  trunk: nn.Module
  vectors: int
  dropout: float
  norm: bool
  init_std: float

  def setup(self) -> None:
    nn.share_scope(self, self.trunk)
    self.scalar_mix = ScalarMix(self.norm)
    self.mix_dropout, self.vector_dropout = Dropout(self.dropout), Dropout(self.dropout)
    if self.vectors:
      self.table = Embed(
        self.vocab_size, self.vectors, ('vocab', 'embed'), normal(self.init_std), name='vectors'
      )  # fmt: skip

  def __call__(self, train: bool = False, **inputs: Array) -> dict[str, Any]:
    """'hidden' f32[b, l, vectors + d]; 'layers' [1, b, l, vectors + d] holds it again; 'carry'."""
    out = self.trunk(**inputs, train=False)
    # embeddings first, the output last
    states = jax.lax.stop_gradient(read_layers(out, (*range(len(out['layers']) - 1), -1)))
    hidden = self.mix_dropout(self.scalar_mix(states), train=train)  # n of [b, l, d] -> [b, l, d]
    if self.vectors:
      own = self.table(inputs['encoder_tokens'] if 'encoder_tokens' in inputs else inputs['tokens'])
      hidden = jnp.concatenate([self.vector_dropout(own, train=train), hidden], axis=-1)
    return {'hidden': hidden, 'layers': hidden[None], 'carry': out['carry']}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """The largest value of each component over the real tokens of a row: [b, l, d] -> [b, d]."""
    return pooling.largest(hidden, segment_ids)

  def squared_weights(self, train: bool = False) -> Array:
    """Sum of the squares of w, before the softmax: f32[]."""
    del train
    return jnp.square(self.scalar_mix.variables['params']['weights']).sum()

  @property
  def hidden_dim(self) -> int:
    """Width of 'hidden'."""
    return self.vectors + self.trunk.hidden_dim

  @property
  def INPUTS(self) -> tuple[str, ...]:
    """Those of the trunk, and so with the other attributes."""
    return self.trunk.INPUTS

  @property
  def ATTENTION(self) -> AttentionKind:
    return self.trunk.ATTENTION

  @property
  def NAME(self) -> str:
    return self.trunk.NAME

  @property
  def config(self) -> Any:
    return self.trunk.config

  @property
  def vocab_size(self) -> int:
    return self.trunk.vocab_size

  @property
  def execution(self) -> Execution:
    return self.trunk.execution

  @property
  def position_rows(self) -> dict[str, range]:
    return self.trunk.position_rows

  def init_carry(self, batch_size: int) -> PyTree:
    return self.trunk.init_carry(batch_size)

  def init_all(self) -> None:
    self.trunk.init_all()


class Setup(NamedTuple):
  """The task of the inner adapter, and the penalty on the weights of the mix."""

  inner: Task
  penalty: float


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  inner: Annotated[Mapping[str, Any], 'adapters'],
  vectors: Whole = 0,
  dropout: Rate = 0.5,
  norm: bool = False,
  penalty: Weight = 0.0,
  init_std: Std = 0.02,
) -> Task:
  """The task of `inner` on a mix of all layers of the trunk.

  Args:
    trunk: any trunk.
    vocab: of the rows.
    inner: the adapter that reads the mix, such as dict(name='tag', tags=..., lstm_layers=2, crf=True). Leave its
      `layers` and `frozen` alone: it sees one layer.
    vectors: width of vectors of the task's own, one for each id of the vocabulary, which stand before the mix.
    dropout: rate on the mix and on these vectors.
    norm: each layer is normalised before it is mixed.
    penalty: lambda of the penalty on the squared L2 norm of w: at 1 the mix stays near a plain average, at 0.001 the
      weights vary.
    init_std: of the table of `vectors`.
  """
  task = build.make('adapters', inner, trunk=MixedTrunk(trunk, vectors, dropout, norm, init_std), vocab=vocab)
  task = task._replace(trains=(*HEADS, 'trunk/(scalar_mix|vectors)/.*'))
  s = Setup(task, penalty)
  if not penalty:
    return task
  return task._replace(prepare=partial(prepare, s), loss=partial(loss, s), evaluate=task.evaluate or task.loss)


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The example of the inner adapter, and the share of each row in the penalty."""
  example = s.inner.prepare(root, batch)
  terms = row_terms(batch['row_weight'])
  return example._replace(targets={**example.targets, 'penalty_share': terms['row_weight'] * terms['row_scale']})


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """The loss of the inner adapter and the penalty, in training."""
  found = s.inner.loss(forward, example, carry, rng)
  penalty = s.penalty * forward(method=squared_weights)
  share = example.targets['penalty_share'].sum()  # of a micro-batch in its batch
  return found._replace(
    value=found.value + penalty * share, metrics=found.metrics | {'penalty': (penalty * share, share)}
  )


def squared_weights(model: Any, train: bool = False) -> Array:
  """That of the mixed trunk of a model."""
  return model.trunk.squared_weights(train=train)
