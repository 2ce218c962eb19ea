"""What adapters share that label texts: what a trunk reads of a row, heads on what stands for it, and their losses."""

from collections.abc import Mapping, Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core import errors
from plm_jax.core.trunk import Attends
from plm_jax.core.types import EVERYTHING, HEADS, Array, Batch, Forward
from plm_jax.layers import pooling
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import chunked_cross_entropy, next_tokens
from plm_jax.layers.means import metric
from plm_jax.layers.mlp import ACTIVATIONS, Norms, PredictionHead

Pool = Literal['trunk', 'mean', 'concat']
OF_TEXT = ('tokens', 'characters', 'segment_ids', 'type_ids')  # keys of a batch
LM_ROWS = 8  # texts whose vocabulary logits are in memory at a time


# Reading -------------------------------------------------------------------------------------------------------------


def read_text(batch: Batch, inputs: Sequence[str]) -> dict[str, Array]:
  """What a trunk reads of the text of a batch; `inputs` are those of `inputs_of`."""
  if 'encoder_tokens' in inputs:
    return both_sides(batch['tokens'], batch['segment_ids'])
  return {name: batch[name] for name in OF_TEXT if name in inputs and name in batch}


def both_sides(tokens: Array, segment_ids: Array) -> dict[str, Array]:
  """What an encoder-decoder reads to label a text: the text, and for the decoder the text behind its own last token.

  The paper feeds both sides the same input (BART §3.1); released code shifts the decoder's by one, as in pre-training.

  Args:
    tokens: int[b, l], one text per row, or several side by side.
    segment_ids: int[b, l], numbers the texts of a row; 0 is padding, on either side.
  """
  # tokens a b c d e, segments 1 1 1 2 2   ->   c a b e d
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


def inputs_of(trunk: nn.Module) -> tuple[str, ...]:
  """The names of what a trunk reads.

  Raises:
    ValueError: it reads no texts.
  """
  if 'encoder_tokens' not in trunk.INPUTS:
    words = 'characters' if 'characters' in trunk.INPUTS else 'tokens'
    errors.require(trunk, user='adapter', inputs=(words, 'segment_ids'))
  return tuple(trunk.INPUTS)


def labelled(batch: Batch, *, regression: bool = False) -> dict[str, Array]:
  """'label' and 'weights' [b] of the rows; one without a class, which is -1, weighs nothing."""
  if regression:
    return {'label': batch['label'], 'weights': batch['row_weight']}
  return {'label': jnp.maximum(batch['label'], 0), 'weights': batch['row_weight'] * (batch['label'] >= 0)}


def segments_of(inputs: Mapping[str, Array]) -> Array:
  """The segments int[b, l] of the states that a trunk returns for these inputs: of its decoder where it has one."""
  return inputs['decoder_segment_ids'] if 'decoder_segment_ids' in inputs else inputs['segment_ids']


# Heads ---------------------------------------------------------------------------------------------------------------


def pooled(trunk: nn.Module, hidden: Array, segment_ids: Array, *, pool: Pool, frozen: bool) -> Array:
  """What stands for each row of states: [b, l, d] -> [b, d], or [b, 3 d] with 'concat'.

  Args:
    trunk: any trunk with `pool`.
    hidden: states of one of its layers.
    segment_ids: int[b, l], of these states.
    pool: 'trunk' pools as the trunk's paper does, 'mean' takes the mean of the real tokens, 'concat' the last of them,
      the largest values and the mean side by side (ULMFiT).
    frozen: nothing before it gets a gradient.
  """
  pools = {'trunk': trunk.pool, 'mean': pooling.mean, 'concat': pooling.last_largest_and_mean}
  vectors = pools[pool](hidden, segment_ids)
  return jax.lax.stop_gradient(vectors) if frozen else vectors


def make_head(
  outputs: int,
  *,
  hidden: int,
  activation: str,
  dropout: float,
  init_std: float,
  bias: bool = True,
  norms: Norms = False,
  input_dropout: float | None = None,
) -> nn.Module:
  """A dense layer, or with a `hidden` width two of them with an activation between and dropout before each."""
  kernel_init = normal(init_std)
  if hidden:
    return PredictionHead(hidden, outputs, activation, dropout, kernel_init, norms, input_dropout)
  return Dense(outputs, axes=('embed', 'classes'), kernel_init=kernel_init, use_bias=bias)


def check_head(name: str, trunk: nn.Module, *, activation: str, pool: str, frozen: bool, lm_weight: float) -> None:
  """Raises ValueError where settings of the adapter `name` contradict each other or need another trunk."""
  errors.one_of('adapter.pool', pool, Pool)
  if activation not in ACTIVATIONS:
    raise ValueError(f'adapter.activation={activation!r}; choices are {", ".join(ACTIVATIONS)}')
  if lm_weight and frozen:
    raise ValueError(
      f'adapter.lm_weight={lm_weight} trains the trunk, which adapter.frozen keeps: leave one of them out'
    )
  if lm_weight:
    user, inputs = f'adapter {name!r} with lm_weight', ('tokens', 'segment_ids')
    errors.require(trunk, user=user, attention=('causal',), inputs=inputs, offers=(Attends,))


def trained(frozen: bool, trunk: nn.Module) -> tuple[str, ...]:
  """`Task.trains` of an adapter: all parameters but those that a trunk holds fixed, or those beside a frozen trunk."""
  if frozen:
    return HEADS
  return all_but_fixed(trunk)


def all_but_fixed(trunk: nn.Module) -> tuple[str, ...]:
  """Patterns of all parameters but those that a trunk holds fixed, as CoVe its vectors of words."""
  fixed = getattr(trunk, 'FIXED', ())
  return (rf'(?!trunk/({"|".join(fixed)})$).*',) if fixed else EVERYTHING


# The auxiliary language model ----------------------------------------------------------------------------------------


def lm_targets(tokens: Array, segment_ids: Array) -> dict[str, Array]:
  """What the auxiliary language model predicts, of k texts per row int[b, k, l]: 'next' and 'next_weights' likewise.

  A text weighs as much as any other of its row, and a token as much as any other of its text (released GPT code); a
  text without a token weighs nothing.
  """
  shape = tokens.shape
  following, real = (x.reshape(shape) for x in next_tokens(*(y.reshape(-1, shape[2]) for y in (tokens, segment_ids))))
  weights = real / jnp.maximum(real.sum(axis=2, keepdims=True), 1.0)
  present = (segment_ids > 0).any(axis=2).sum(axis=1)  # [b]
  return {'next': following, 'next_weights': weights / jnp.maximum(present, 1)[:, None, None]}


def lm_nats(forward: Forward, hidden: Array, targets: Mapping[str, Array]) -> Array:
  """Nats per token of the texts of each row, f32[b], by `attend` of the model.

  Args:
    forward: the model.
    hidden: [b k, l, d].
    targets: with those of `lm_targets`.
  """
  attend = lambda part: forward(method='attend', features=part)  # noqa: E731
  following = targets['next']
  nats, _ = chunked_cross_entropy(attend, hidden, following.reshape(-1, following.shape[2]), rows=LM_ROWS)
  return (nats.reshape(following.shape) * targets['next_weights']).sum(axis=(1, 2))


def with_language_model(
  lm_weight: float,
  forward: Forward,
  hidden: Array,
  targets: Mapping[str, Array],
  values: Array,
  metrics: dict[str, tuple[Array, Array]],
) -> tuple[Array, dict[str, tuple[Array, Array]]]:
  """L3 = L2 + lambda L1 (GPT eq. 5): what each row costs, f32[b], and metrics; the same for `lm_weight` 0.

  Args:
    lm_weight: lambda, of the auxiliary language model.
    forward: the model, with `attend`.
    hidden: [b k, l, d], the states of its texts.
    targets: with 'weights' f32[b], and those of `lm_targets`.
    values: f32[b], what each row costs without it.
    metrics: without it.
  """
  if not lm_weight:
    return values, metrics
  weights, lm_values = targets['weights'], lm_nats(forward, hidden, targets)
  metrics = metrics | {'task_loss': metric(values, weights), 'lm_loss': metric(lm_values, weights)}
  return values + lm_weight * lm_values, metrics


# Classes -------------------------------------------------------------------------------------------------------------


def check_names(setting: str, names: Sequence[str]) -> None:
  """Raises ValueError where a setting names fewer than two labels, or one twice."""
  if len(names) < 2 or len(set(names)) < len(names):
    raise ValueError(f'adapter.{setting}={names!r}: two names or more, each once')


def scaled_class_weights(weights: Sequence[float], *, classes: int) -> tuple[float, ...]:
  """Weights of classes times a factor, so that the smallest that is not 0 is 1.

  A weighted mean stays the same, and the total weight of a batch with any weight is at least 1, as `batch_scale` wants.

  Args:
    weights: one for each class, or () for none.
    classes: how many there are; 0 where real values are predicted.

  Raises:
    ValueError: another number of weights, a negative one, or all are 0.
  """
  if not weights:
    return ()
  if len(weights) != classes or min(weights) < 0 or not any(weights):
    given = f'adapter.class_weights={tuple(weights)}'
    if not classes:
      raise ValueError(f'{given}: a regression has no classes; leave them out')
    raise ValueError(f'{given}: give {classes} numbers from 0 on, one for each class and not all 0')
  least = min(weight for weight in weights if weight > 0)
  return tuple(weight / least for weight in weights)


def label_weights(labels: Array, class_weights: Sequence[float]) -> Array:
  """The weight of the class of each label, f32 of the shape of int labels; any for labels below 0."""
  return jnp.asarray(class_weights, jnp.float32)[jnp.maximum(labels, 0)]
