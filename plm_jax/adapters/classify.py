"""Classification or regression of one text or a pair from the trunk's own pooling (BERT §4.1, GPT §3.2).

BERT reads the [CLS] vector through its tanh pooler, GPT the state of the last real token. `lm_weight` adds the language
model's loss on the task text, L3 = L2 + lambda L1 (GPT eq. 5; both are negative log-likelihoods to minimise).
"""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import chunked_cross_entropy, cross_entropy
from plm_jax.layers.mlp import ACTIVATIONS, PredictionHead
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2018, title='BERT §4.1, GPT §3.2', architecture='any', objective_family='supervised')
QUICK = dict(kind='class')  # of a smoke test (`file.py:quick`)


class Model(nn.Module):
  """Trunk, its pooling, dropout and one dense layer, or two with an activation between them.

  Attributes:
    trunk: any trunk with `pool`.
    outputs: columns of the last layer.
    dropout: rate before it.
    hidden: width of a layer before it; 0 leaves it out.
    activation: behind that layer, a name of `ACTIVATIONS`.
    layer: which of the trunk's layers is pooled; -1 is the trunk's output, 0 the embeddings.
    frozen: the trunk runs without dropout and gets no gradient.
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens.
    init_std: of the head's kernels.
  """

  trunk: nn.Module
  outputs: int
  dropout: float
  hidden: int
  activation: str
  layer: int
  frozen: bool
  pool: str
  init_std: float

  def setup(self) -> None:
    kernel_init = normal(self.init_std)
    if self.hidden:
      self.two_layers = PredictionHead(
        self.hidden, self.outputs, self.activation, self.dropout, kernel_init, name='head'
      )
    else:
      self.head = Dense(self.outputs, axes=('embed', 'classes'), kernel_init=kernel_init)
      self.head_dropout = Dropout(self.dropout)

  def __call__(self, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """(outputs f32[b, c], the states they came from [b, l, d])."""
    out = self.trunk(**inputs, train=train and not self.frozen)
    hidden = out['hidden'] if self.layer == -1 else out['layers'][self.layer]
    segment_ids = inputs['decoder_segment_ids'] if 'decoder_segment_ids' in inputs else inputs['segment_ids']
    pooled = mean(hidden, segment_ids) if self.pool == 'mean' else self.trunk.pool(hidden, segment_ids)  # [b, d]
    if self.frozen:
      pooled = jax.lax.stop_gradient(pooled)
    if self.is_initializing():
      self.trunk.attend(jnp.zeros((1, self.trunk.token_embed.features)))  # an untied output matrix must exist
    pooled = pooled.astype(jnp.float32)
    if self.hidden:
      return self.two_layers(pooled, train=train), out['hidden']
    return self.head(self.head_dropout(pooled, train=train)), out['hidden']

  def attend(self, features: Array, train: bool = False) -> Array:
    """Vocabulary logits f32[..., v], for the auxiliary language model."""
    del train
    return self.trunk.attend(features)


def mean(hidden: Array, segment_ids: Array) -> Array:
  """Mean of the states of the real tokens: [b, l, d] -> f32[b, d]; zeros for a row without any."""
  real = (segment_ids > 0).astype(jnp.float32)[..., None]
  return (hidden * real).sum(axis=1) / jnp.maximum(real.sum(axis=1), 1.0)


def both_sides(tokens: Array, segment_ids: Array) -> dict[str, Array]:
  """What an encoder-decoder reads to label a text: the text, and for the decoder the text behind its own last token.

  The paper feeds both sides the same input (BART §3.1); released code shifts the decoder's by one, as in pre-training.

  Args:
    tokens: int[b, l], a text a row, or several side by side.
    segment_ids: int[b, l], numbers the texts of a row; 0 is padding, on either side.
  """
  inner = segment_ids[:, 1:] == segment_ids[:, :-1]  # [b, l - 1], a token and the next are of one text
  opens, ends = (
    jnp.pad(~inner, ((0, 0), (1, 0)), constant_values=True),
    jnp.pad(~inner, ((0, 0), (0, 1)), constant_values=True),
  )
  index, length = jnp.arange(tokens.shape[1]), tokens.shape[1]
  last = jax.lax.cummin(jnp.where(ends, index, length), axis=1, reverse=True)  # [b, l], the last token of each text
  shifted = jnp.where(opens, jnp.take_along_axis(tokens, last, axis=1), jnp.roll(tokens, 1, axis=1))
  return {
    'encoder_tokens': tokens,
    'encoder_segment_ids': segment_ids,
    'decoder_tokens': shifted,
    'decoder_segment_ids': segment_ids,
  }


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  classes: int = 2,
  kind: Literal['class', 'regression'] = 'class',
  dropout: float = 0.1,
  hidden: int = 0,
  activation: str = 'tanh',
  layer: int = -1,
  frozen: bool = False,
  lm_weight: float = 0.0,
  pool: Literal['trunk', 'mean'] = 'trunk',
  init_std: float = 0.02,
) -> Task:
  """Classification over `classes` labels, or regression of one number.

  Args:
    trunk: any trunk with `pool`.
    vocab: of the rows.
    classes: number of labels; ignored by regression.
    kind: 'class' is cross-entropy, 'regression' squared error.
    dropout: rate before each layer of the head.
    hidden: width of a layer of the head before the last one, as BART and ELECTRA have it; 0 leaves it out.
    activation: behind that layer, a name of `layers.mlp.ACTIVATIONS`.
    layer: which of the trunk's layers is pooled; -1 is its output.
    frozen: feature extraction: the trunk runs without dropout and under a stopped gradient. Freeze its parameters
      with optim.scale = (('trunk/.*', None), ('.*', 1.0)) as well, so that no optimiser state is kept for them.
    lm_weight: lambda of the auxiliary language model; needs a causal trunk that is not frozen (GPT: .5).
    pool: 'trunk' pools as the trunk's paper does; 'mean' takes the mean of the real tokens, which needs no pooler that
      pre-training has not seen.
    init_std: of the head's kernels.
  """
  if activation not in ACTIVATIONS:
    raise ValueError(f'adapter.activation={activation!r}; choices are {", ".join(ACTIVATIONS)}')
  if hidden < 0:
    raise ValueError(f'adapter.hidden={hidden}: a width, or 0 for no layer')
  if pool not in ('trunk', 'mean'):
    raise ValueError(f'adapter.pool={pool!r}; choices are trunk, mean')
  if kind not in ('class', 'regression'):
    raise ValueError(f'adapter.kind={kind!r}; choices are class, regression')
  if kind == 'class' and classes < 2:
    raise ValueError(f'adapter.classes={classes}: a classification has two classes or more')
  if lm_weight and frozen:
    raise ValueError(
      f'adapter.lm_weight={lm_weight} trains the trunk, which adapter.frozen keeps: leave one of them out'
    )
  if lm_weight:
    require(trunk, user="adapter 'classify' with lm_weight", attention=('causal',), inputs=('tokens', 'segment_ids'))
  del vocab
  regression = kind == 'regression'

  def prepare(root: Array, batch: Batch) -> Example:
    del root
    if 'encoder_tokens' in trunk.INPUTS:
      inputs = both_sides(batch['tokens'], batch['segment_ids'])
    else:
      inputs = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids') if name in batch}
    weights = batch['row_weight']
    targets = {
      'label': batch['label'],
      'weights': weights,
      'scale': jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape),
    }
    if lm_weight:
      # released GPT code: the mean over a text's own tokens, then over texts
      tokens, segments = batch['tokens'], batch['segment_ids']
      following = jnp.pad(tokens, ((0, 0), (0, 1)))[:, 1:]
      both = (segments > 0) & (jnp.pad(segments, ((0, 0), (0, 1)))[:, 1:] == segments)
      real = both.astype(jnp.float32)
      targets['next'] = following
      targets['next_weights'] = real / jnp.maximum(real.sum(axis=1, keepdims=True), 1.0)
    return Example(inputs, targets)

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    targets = example.targets
    weights, scale = targets['weights'], targets['scale']
    outputs, hidden = forward(**example.inputs)
    total = weights.sum()
    if regression:
      values = jnp.square(outputs[:, 0] - targets['label'])
      metrics = {'squared_error': ((values * weights).sum(), total)}
    else:
      values = cross_entropy(outputs, targets['label'])
      correct = (outputs.argmax(axis=-1) == targets['label']) * weights
      metrics = {'accuracy': (correct.sum(), total)}
    if lm_weight:
      nats, _ = chunked_cross_entropy(
        lambda part: forward(method='attend', features=part), hidden, targets['next'], rows=8
      )
      lm_values = (nats * targets['next_weights']).sum(axis=1)
      metrics |= {
        'task_loss': ((values * weights).sum(), total),
        'lm_loss': ((lm_values * weights).sum(), total),
      }
      values = values + lm_weight * lm_values
    metrics['loss'] = ((values * weights).sum(), total)
    return Loss((values * weights * scale).sum(), metrics)

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    outputs, _ = forward(**example.inputs)
    if regression:
      return {'value': outputs[:, 0]}
    return {'label': outputs.argmax(axis=-1), 'probability': jax.nn.softmax(outputs, axis=-1)}

  outputs = 1 if regression else classes
  model = Model(trunk, outputs, dropout, hidden, activation, layer, frozen, pool, init_std)
  return Task(model, prepare, loss, predict, classes=0 if regression else classes)
