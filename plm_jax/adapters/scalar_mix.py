"""A frozen trunk as a source of features: another adapter reads a learned mix of all its layers (ELMo; Peters et al.
2018, §3.2 and §3.3).

A token is ELMo_k = gamma sum_j softmax(w)_j h_k,j over the trunk's embeddings and layers; `vectors` puts a vector x_k
of the task's own in front of it, [x_k; ELMo_k], which `init_from` may read from a file of word vectors. The adapter
`inner` sees these in place of the trunk's states: `tag` with `crf` is the paper's network for names, `classify` takes
the largest value of each component over a row. With `lstm_layers` the network of the task has layers of LSTM here, and
`side` says where its words meet the mix (Table 3):

    input    LSTM([x; ELMo])             output    [LSTM(x); ELMo']
    both     [LSTM([x; ELMo]); ELMo']    none      LSTM(x), the network without the trunk

where ELMo' has weights of its own. `layers=(-1,)` with `vectors` is [GloVe(x); CoVe(x)] (McCann et al. 2017, §4). A
trunk may read the fields of a row apart, as ELMo reads sentences; with fields='joined' the layers of LSTM read them one
behind the other, so that a hypothesis is read knowing its premise (conditional encoding, Rocktäschel et al. 2016,
§2.2), and a text knowing the question.

The trunk keeps its place in the parameters, so `init_from` reads it as ever, and its values, whatever `optim` says;
what is new, and trains where `optim.scale` does not freeze it, stands in `trunk/scalar_mix`, `trunk/output_mix`,
`trunk/task_lstm` and `trunk/vectors`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.config import build
from plm_jax.core.errors import one_of
from plm_jax.core.trunk import AttentionKind
from plm_jax.core.types import (
  HEADS,
  Array,
  Batch,
  Count,
  Example,
  Execution,
  Forward,
  LayerNumber,
  Loss,
  Paper,
  PartRate,
  PyTree,
  Std,
  Task,
  Vocab,
  Weight,
  NonNegativeInt,
)
from plm_jax.layers import pooling
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, normal
from plm_jax.layers.lstm import StackedLstm
from plm_jax.layers.means import row_terms
from plm_jax.layers.scalar_mix import ScalarMix, read_layers

PAPER = Paper(
  year=2018,
  title='Peters et al., ELMo',
  architecture='any',
  objective_family='supervised',
  supervision='supervised',
  adapters=('tag', 'classify'),
)
READS = ()  # what `inner` reads
QUICK = dict(vectors=8, lstm_dim=16, layers=())  # of a smoke test (`file.py:quick`)
ADDED = 'trunk/(scalar_mix|output_mix|task_lstm|vectors)/.*'  # parameters beside those of the trunk

Side = Literal['input', 'output', 'both', 'none']
Fields = Literal['apart', 'joined']
MIXES = {'scalar_mix': ('input', 'both'), 'output_mix': ('output', 'both')}  # name -> sides that have it


class MixedTrunk(nn.Module):
  """A trunk whose output is the mix of its layers, beside vectors of the task's own; a `types.Trunk`.

  The trunk inside runs without dropout and gets no gradient.

  Attributes:
    trunk: any trunk; its parameters are those of this module.
    vectors: width of a table of vectors for the vocabulary, which the task trains; 0 for none.
    dropout: rate on the mix and on these vectors.
    norm: see `ScalarMix`.
    init_std: of the table.
    layers: which are mixed; () for all.
    side: of the layers of LSTM, see the head of this file.
    lstm_layers: of the network of the task.
    lstm_dim: width of the state of each of their directions.
    fields: how the layers of LSTM read the fields of a row, see `make`.
  """

  trunk: nn.Module
  vectors: int
  dropout: float
  norm: bool
  init_std: float
  layers: tuple[int, ...] = ()
  side: Side = 'input'
  lstm_layers: int = 0
  lstm_dim: int = 0
  fields: Fields = 'apart'

  def setup(self) -> None:
    nn.share_scope(self, self.trunk)
    self.mix_dropout, self.vector_dropout = Dropout(self.dropout), Dropout(self.dropout)
    if self.side in MIXES['scalar_mix']:
      self.scalar_mix = ScalarMix(self.norm)
    if self.side in MIXES['output_mix']:
      self.output_mix, self.output_mix_dropout = ScalarMix(self.norm), Dropout(self.dropout)
    if self.lstm_layers:
      self.task_lstm = StackedLstm(self.lstm_dim, self.lstm_layers, self.dropout, self.trunk.execution.dtype)
    if self.vectors:
      self.table = Embed(
        self.vocab_size, self.vectors, ('vocab', 'embed'), normal(self.init_std), name='vectors'
      )  # fmt: skip

  def __call__(self, train: bool = False, **inputs: Array) -> dict[str, Any]:
    """'hidden' f32[b, l, e], e as `hidden_dim`; 'layers' [1, b, l, e] holds it again; 'carry'."""
    out = self.trunk(**{name: value for name, value in inputs.items() if name in self.trunk.INPUTS}, train=False)
    # embeddings first, the output last
    states = jax.lax.stop_gradient(read_layers(out, self.layers or (*range(len(out['layers']) - 1), -1)))
    parts = []
    if self.vectors:
      own = self.table(inputs['encoder_tokens'] if 'encoder_tokens' in inputs else inputs['tokens'])
      parts.append(self.vector_dropout(own, train=train))
    if self.side in MIXES['scalar_mix']:
      parts.append(self.mix_dropout(self.scalar_mix(states), train=train))  # n of [b, l, d] -> [b, l, d]
    hidden = jnp.concatenate(parts, axis=-1)
    if self.lstm_layers:
      segments = inputs['encoder_segment_ids'] if 'encoder_segment_ids' in inputs else inputs['segment_ids']
      if self.fields == 'joined':
        later = (segments > 1)[..., None]  # words behind the first field
        hidden, segments = jnp.concatenate([hidden, later.astype(hidden.dtype)], axis=-1), jnp.minimum(segments, 1)
      hidden = self.task_lstm(hidden, segments, train=train)
    if self.side in MIXES['output_mix']:
      mixed = self.output_mix_dropout(self.output_mix(states), train=train)
      hidden = jnp.concatenate([hidden.astype(mixed.dtype), mixed], axis=-1)
    return {'hidden': hidden, 'layers': hidden[None], 'carry': out['carry']}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """The largest value of each component over the real tokens of a row: [b, l, d] -> [b, d]."""
    return pooling.largest(hidden, segment_ids)

  def squared_weights(self, train: bool = False) -> Array:
    """Sum of the squares of w of both sides, before the softmax: f32[]."""
    del train
    own = self.variables['params']
    return sum((jnp.square(own[name]['weights']).sum() for name in MIXES if name in own), jnp.zeros(()))

  @property
  def hidden_dim(self) -> int:
    """Width of 'hidden'."""
    mix = self.trunk.hidden_dim
    width = self.vectors + mix * (self.side in MIXES['scalar_mix'])
    width = 2 * self.lstm_dim if self.lstm_layers else width
    return width + mix * (self.side in MIXES['output_mix'])

  @property
  def INPUTS(self) -> tuple[str, ...]:
    """Those of the trunk, and so with the other attributes; `vectors` are for tokens, whatever the trunk reads."""
    own = {'tokens', 'encoder_tokens'}.isdisjoint(self.trunk.INPUTS) and self.vectors
    return ('tokens', *self.trunk.INPUTS) if own else self.trunk.INPUTS

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
  vectors: NonNegativeInt = 0,
  dropout: PartRate = 0.5,
  norm: bool = False,
  penalty: Weight = 0.0,
  init_std: Std = 0.02,
  layers: tuple[LayerNumber, ...] = (),
  side: Side = 'input',
  lstm_layers: NonNegativeInt = 0,
  lstm_dim: Count = 256,
  fields: Fields = 'apart',
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
    layers: which are mixed, -1 for the trunk's output and 0 for its embeddings; () for all.
    side: where the network of the task reads the mix, see the head of this file.
    lstm_layers: layers of LSTM of the network of the task, below the head of `inner`; 0 for none.
    lstm_dim: width of the state of each of their directions.
    fields: how they read the fields of a row that the layout of the data numbers apart (`elmo`): 'apart', each as a
      text of its own, or 'joined', as one text, with a number beside each word that is 1 behind the first field.

  Raises:
    ValueError: a side, or joined fields, without what they need.
  """
  one_of('adapter.side', side, Side)
  one_of('adapter.fields', fields, Fields)
  if side != 'input' and not lstm_layers:
    raise ValueError(f"adapter.side={side!r} is a side of layers of LSTM: set adapter.lstm_layers, or side='input'")
  if side in ('output', 'none') and not vectors:
    raise ValueError(f'adapter.side={side!r}: the layers of LSTM then read `vectors` alone; set adapter.vectors')
  if fields == 'joined' and not lstm_layers:
    raise ValueError("adapter.fields='joined' is how layers of LSTM read a row: set adapter.lstm_layers")
  mixed = MixedTrunk(trunk, vectors, dropout, norm, init_std, tuple(layers), side, lstm_layers, lstm_dim, fields)
  task = build.make('adapters', inner, trunk=mixed, vocab=vocab)
  task = task._replace(trains=(*HEADS, ADDED))
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
