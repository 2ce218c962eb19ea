"""A learned mix of all layers of a frozen trunk, for another adapter (ELMo; Peters et al. 2018, §3.2 and §3.3).

A token is ELMo_k = gamma sum_j softmax(w)_j h_k,j over the trunk's embeddings and layers. `vectors` prepends a trained
vector x_k, [x_k; ELMo_k], which `init_from` can read from a file of word vectors. The adapter `inner` reads these
instead of the trunk's states: `tag` with `crf` is the paper's network for names, `classify` takes the maximum of each
component over a text. With `lstm_layers` the task network has LSTM layers here, and `side` selects where the mix enters
(Table 3):

    input    LSTM([x; ELMo])             output    [LSTM(x); ELMo']
    both     [LSTM([x; ELMo]); ELMo']    none      LSTM(x), the network without the trunk

where ELMo' has separate weights. `layers=(-1,)` with `vectors` is [GloVe(x); CoVe(x)] (McCann et al. 2017, §4). A trunk
may read the fields of an example separately, as ELMo reads sentences. With fields='joined' the LSTM layers read them as
one sequence, so a hypothesis is read after its premise (conditional encoding, Rocktäschel et al. 2016, §2.2), and a
text after the question.

The parameters of the trunk have their usual paths, so `init_from` works, and do not train, whatever `optim` says. The
new parameters are `trunk/scalar_mix`, `trunk/output_mix`, `trunk/task_lstm` and `trunk/vectors`; they train unless
`optim.scale` freezes them.
"""

from collections.abc import Mapping
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.config import build
from plm_jax.core.errors import one_of
from plm_jax.core.keywords import Count, LayerNumber, NonNegativeInt, PartRate, Std, Weight
from plm_jax.core.types import HEADS, Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers import pooling
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Embed, normal
from plm_jax.layers.lstm import StackedLstm
from plm_jax.layers.means import row_terms
from plm_jax.layers.scalar_mix import ScalarMix, read_layers

PAPER = Supervised(year=2018, title='Peters et al., ELMo', adapters=('tag', 'classify'))
READS = ()  # inputs of `inner`
QUICK = dict(vectors=8, lstm_dim=16, layers=())  # settings of a smoke test (`file.py:quick`)
ADDED = 'trunk/(scalar_mix|output_mix|task_lstm|vectors)/.*'  # new parameters

Side = Literal['input', 'output', 'both', 'none']
Fields = Literal['apart', 'joined']
MIXES = {'scalar_mix': ('input', 'both'), 'output_mix': ('output', 'both')}  # name -> sides that have it


class MixedTrunk(nn.Module):
  """A trunk whose output is the mix of its layers and trained vectors; a `trunk.Trunk`.

  The inner trunk runs without dropout and gets no gradient.

  Attributes are keywords of `make`, and `trunk`, whose parameter scope this module shares.
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
      self.table = Embed(self.vocab_size, self.vectors, ('vocab', 'embed'), normal(self.init_std), name='vectors')

  def __call__(self, train: bool = False, **inputs: Array) -> dict[str, Any]:
    """Compute the mixed states 'hidden' f32[b, l, e].

    The width e is `hidden_dim`. 'layers' [1, b, l, e] is the same array; 'carry' is the trunk's.
    """
    # 1. states of the frozen trunk, n of [b, l, d]: embeddings first, the output last
    out = self.trunk(**{name: value for name, value in inputs.items() if name in self.trunk.INPUTS}, train=False)
    states = jax.lax.stop_gradient(read_layers(out, self.layers or (*range(len(out['layers']) - 1), -1)))
    # 2. [x; ELMo]
    parts = []
    if self.vectors:
      own = self.table(inputs['encoder_tokens'] if 'encoder_tokens' in inputs else inputs['tokens'])
      parts.append(self.vector_dropout(own, train=train))
    if self.side in MIXES['scalar_mix']:
      parts.append(self.mix_dropout(self.scalar_mix(states), train=train))  # n of [b, l, d] -> [b, l, d]
    hidden = jnp.concatenate(parts, axis=-1)
    # 3. LSTM layers
    if self.lstm_layers:
      segments = inputs['encoder_segment_ids'] if 'encoder_segment_ids' in inputs else inputs['segment_ids']
      if self.fields == 'joined':
        later = (segments > 1)[..., None]  # words after the first field
        hidden, segments = jnp.concatenate([hidden, later.astype(hidden.dtype)], axis=-1), jnp.minimum(segments, 1)
      hidden = self.task_lstm(hidden, segments, train=train)
    # 4. ELMo' after them
    if self.side in MIXES['output_mix']:
      mixed = self.output_mix_dropout(self.output_mix(states), train=train)
      hidden = jnp.concatenate([hidden.astype(mixed.dtype), mixed], axis=-1)
    return {'hidden': hidden, 'layers': hidden[None], 'carry': out['carry']}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Pool the maximum over real tokens: [b, l, d] -> [b, d]."""
    return pooling.largest(hidden, segment_ids)

  def squared_weights(self, train: bool = False) -> Array:
    """Sum the squares f32[] of both mixes' weights w, before the softmax."""
    own = self.variables['params']
    return sum((jnp.square(own[name]['weights']).sum() for name in MIXES if name in own), jnp.zeros(()))

  @property
  def hidden_dim(self) -> int:
    """Return the width of 'hidden'."""
    mix = self.trunk.hidden_dim
    width = self.vectors + mix * (self.side in MIXES['scalar_mix'])
    width = 2 * self.lstm_dim if self.lstm_layers else width
    return width + mix * (self.side in MIXES['output_mix'])

  @property
  def INPUTS(self) -> tuple[str, ...]:
    """Return the inputs of the trunk; `vectors` also need tokens."""
    own = {'tokens', 'encoder_tokens'}.isdisjoint(self.trunk.INPUTS) and self.vectors
    return ('tokens', *self.trunk.INPUTS) if own else self.trunk.INPUTS

  ATTENTION, NAME, config, vocab_size, execution, position_rows = (
    property(attrgetter(f'trunk.{name}'))
    for name in ('ATTENTION', 'NAME', 'config', 'vocab_size', 'execution', 'position_rows')
  )

  def init_carry(self, batch_size: int) -> PyTree:
    return self.trunk.init_carry(batch_size)

  def init_all(self) -> None:
    self.trunk.init_all()


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
  """Run the adapter `inner` on a mix of the trunk's layers.

  Args:
    inner: the adapter that reads the mix, such as dict(name='tag', tags=..., lstm_layers=2, crf=True). Do not set its
      `layers` and `frozen`: it sees one layer.
    vectors: width of trained vectors, one for each id of the vocabulary, before the mix; 0 for none.
    dropout: rate on the mix and on these vectors.
    norm: each layer is normalised before it is mixed.
    penalty: lambda of the penalty on the squared L2 norm of w: at 1 the mix stays near a plain average, at 0.001 the
      weights vary.
    init_std: standard deviation of the table of `vectors`.
    layers: layers that are mixed, -1 for the trunk's output and 0 for its embeddings; () for all.
    side: where the task network reads the mix, see the module docstring.
    lstm_layers: number of LSTM layers of the task network, below the head of `inner`; 0 for none.
    lstm_dim: state width of each of their directions.
    fields: how they read the fields of an example, which the layout `elmo` stores as segments: 'apart', each as a
      separate text, or 'joined', as one text with an extra input per word that is 1 after the first field.

  Raises:
    ValueError: a side, or joined fields, without the layers or vectors they need.
  """
  one_of('adapter.side', side, Side)
  one_of('adapter.fields', fields, Fields)
  if side != 'input' and not lstm_layers:
    raise ValueError(
      f"adapter.side={side!r} needs LSTM layers: set adapter.lstm_layers above 0, or adapter.side='input'"
    )
  if side in ('output', 'none') and not vectors:
    raise ValueError(f'adapter.side={side!r} needs input for the LSTM layers: set adapter.vectors to a width')
  if fields == 'joined' and not lstm_layers:
    raise ValueError("adapter.fields='joined' needs LSTM layers: set adapter.lstm_layers above 0")
  mixed = MixedTrunk(trunk, vectors, dropout, norm, init_std, tuple(layers), side, lstm_layers, lstm_dim, fields)
  task = build.make('adapters', inner, trunk=mixed, vocab=vocab)._replace(trains=(*HEADS, ADDED))
  if not penalty:
    return task
  prepare_own, loss_own = partial(prepare, task), partial(loss, task, penalty)
  return task._replace(prepare=prepare_own, loss=loss_own, evaluate=task.evaluate or task.loss)


def prepare(inner: Task, root: Array, batch: Batch) -> Example:
  """Prepare the inner example, and each example's share of the penalty."""
  example = inner.prepare(root, batch)
  terms = row_terms(batch['row_weight'])
  return example._replace(targets={**example.targets, 'penalty_share': terms['row_weight'] * terms['row_scale']})


def loss(inner: Task, weight: float, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the inner loss plus the penalty, in training."""
  result = inner.loss(forward, example, carry, rng)
  penalty = weight * forward(method=squared_weights)
  share = example.targets['penalty_share'].sum()  # of a micro-batch in its batch
  metrics = result.metrics | {'penalty': (penalty * share, share)}
  return result._replace(value=result.value + penalty * share, metrics=metrics)


def squared_weights(model: Any, train: bool = False) -> Array:
  """Sum the squared weights of the mixed trunk of a model."""
  return model.trunk.squared_weights(train=train)
