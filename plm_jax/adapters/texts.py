"""Functions shared by adapters that label texts: inputs of a trunk, heads on pooled states, and losses."""

from collections.abc import Mapping, Sequence
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core import errors
from plm_jax.core.trunk import Attends
from plm_jax.core.types import EVERYTHING, HEADS, Array, Batch, Forward, Vocab
from plm_jax.layers import pooling
from plm_jax.layers.linear import Dense, normal
from plm_jax.layers.losses import chunked_cross_entropy, next_tokens
from plm_jax.layers.lstm import StackedLstm
from plm_jax.layers.means import metric
from plm_jax.layers.mlp import ACTIVATIONS, Norms, PredictionHead

Pool = Literal['trunk', 'mean', 'concat']
PoolWindows = Literal['mean', 'max']
OF_TEXT = ('tokens', 'characters', 'segment_ids', 'type_ids')  # keys of a batch
LM_ROWS = 8  # texts whose vocabulary logits are in memory at a time


class Inputs(tuple[str, ...]):
  """Names of the inputs of a trunk."""

  start: int | None = None  # the id before a text that a decoder reads; None is the text's own last token


# Reading -------------------------------------------------------------------------------------------------------------


def check_mask(vocab: Vocab, mask_id: int, *, user: str, key: str) -> None:
  """Raise ValueError if the mask token has another role."""
  roles = {'padding': vocab.pad_id, 'cls': vocab.cls_id, 'sep': vocab.sep_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  if same := [role for role, token_id in roles.items() if token_id == mask_id]:
    raise ValueError(
      f'{user} needs a separate mask token, and {vocab.token(mask_id)!r} is the {same[0]} token: name another in {key}'
    )


def read_text(batch: Batch, inputs: Inputs) -> dict[str, Array]:
  """Select the `inputs` of a trunk from a batch."""
  if 'encoder_tokens' in inputs:
    return both_sides(batch['tokens'], batch['segment_ids'], start=inputs.start)
  return {name: batch[name] for name in OF_TEXT if name in inputs and name in batch}


def both_sides(tokens: Array, segment_ids: Array, *, start: int | None = None) -> dict[str, Array]:
  """Build the inputs of an encoder-decoder that labels texts.

  The encoder reads the text. The decoder reads it shifted by one, after its own last token. The paper feeds both sides
  the same input (BART §3.1); the released code shifts the decoder's, as in pre-training. `start` replaces the last
  token. Sequences int[b, l] have one or several texts, padded on either side.
  """
  # tokens a b c d e, segments 1 1 1 2 2   ->   c a b e d
  inner = segment_ids[:, 1:] == segment_ids[:, :-1]  # [b, l - 1], a token and the next are in one text
  opens, ends = (jnp.pad(~inner, ((0, 0), side), constant_values=True) for side in ((1, 0), (0, 1)))
  index, length = jnp.arange(tokens.shape[1]), tokens.shape[1]
  last = jax.lax.cummin(jnp.where(ends, index, length), axis=1, reverse=True)  # [b, l], the last token of each text
  before = jnp.take_along_axis(tokens, last, axis=1) if start is None else start
  shifted = jnp.where(opens, before, jnp.roll(tokens, 1, axis=1))
  encoder = {'encoder_tokens': tokens, 'encoder_segment_ids': segment_ids}
  return encoder | {'decoder_tokens': shifted, 'decoder_segment_ids': segment_ids}


def inputs_of(trunk: nn.Module) -> Inputs:
  """Return the names of a trunk's inputs.

  Raises:
    ValueError: the trunk reads no texts.
  """
  if 'encoder_tokens' not in trunk.INPUTS:
    words = 'characters' if 'characters' in trunk.INPUTS else 'tokens'
    errors.require(trunk, user='adapter', inputs=(words, 'segment_ids'))
  inputs = Inputs(trunk.INPUTS)
  inputs.start = getattr(trunk.config, 'label_start', None)
  return inputs


def labelled(batch: Batch, *, kind: str = 'class', classes: int = 0) -> dict[str, Array]:
  """Return 'label' and 'weights' [b]; class -1 has weight 0.

  With kind='several' also 'classes' [b, classes], 0 for those that the data do not have.
  """
  if kind == 'several':
    flags = jnp.pad(batch['classes'], ((0, 0), (0, classes - batch['classes'].shape[1])))
    return {'classes': jnp.maximum(flags, 0), 'weights': batch['row_weight'] * (flags[:, 0] >= 0)}
  if kind == 'regression':
    return {'label': batch['label'], 'weights': batch['row_weight']}
  return {'label': jnp.maximum(batch['label'], 0), 'weights': batch['row_weight'] * (batch['label'] >= 0)}


def segments_of(inputs: Mapping[str, Array]) -> Array:
  """Return the segments int[b, l] of the trunk's output states."""
  return inputs['decoder_segment_ids'] if 'decoder_segment_ids' in inputs else inputs['segment_ids']


def pooled_segments(trunk: nn.Module, inputs: Mapping[str, Array]) -> Array:
  """Return the segments that represent a text, up to its `label_end`."""
  segments, end = segments_of(inputs), getattr(trunk.config, 'label_end', None)
  if end is None:
    return segments
  # tokens a end b end c, segments 1 1 1 1 1   ->   1 1 1 1 0; a text without one stays whole
  is_end = (inputs['encoder_tokens'] == end) & (segments > 0)
  ahead = jnp.flip(jnp.cumsum(jnp.flip(is_end, axis=1), axis=1), axis=1) > 0
  return jnp.where(ahead | ~is_end.any(axis=1, keepdims=True), segments, 0)


# Heads ---------------------------------------------------------------------------------------------------------------


def pooled(trunk: nn.Module, hidden: Array, segment_ids: Array, *, pool: Pool, frozen: bool) -> Array:
  """Pool states [b, l, d] to [b, d]; 'concat' gives 3 d."""
  pools = {'trunk': trunk.pool, 'mean': pooling.mean, 'concat': pooling.last_largest_and_mean}
  vectors = pools[pool](hidden, segment_ids)
  return jax.lax.stop_gradient(vectors) if frozen else vectors


def pooled_outputs(outputs: Array, segment_ids: Array, pool: PoolWindows) -> Array:
  """Join the outputs of windows: [..., w, c] -> [..., c].

  A window without segments, int[..., w, l], does not count.
  """
  present = (segment_ids > 0).any(axis=-1).at[..., 0].set(True)[..., None]  # [..., w, 1]
  if pool == 'max':
    return jnp.where(present, outputs, -jnp.inf).max(axis=-2)
  return jnp.where(present, outputs, 0).sum(axis=-2) / present.sum(axis=-2)


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
  """Build a head of one dense layer, or of two if `hidden`."""
  kernel_init = normal(init_std)
  if hidden:
    return PredictionHead(hidden, outputs, activation, dropout, kernel_init, norms, input_dropout)
  return Dense(outputs, axes=('embed', 'classes'), kernel_init=kernel_init, use_bias=bias)


def make_lstm(trunk: nn.Module, layers: int, *, dropout: float) -> nn.Module:
  """Build BiLSTM layers as wide as the trunk, as its pooler needs."""
  return StackedLstm(trunk.hidden_dim // 2, layers, dropout, trunk.execution.dtype)


def check_head(name: str, trunk: nn.Module, *, activation: str, pool: str, frozen: bool, lm_weight: float) -> None:
  """Raise ValueError if settings contradict each other or need another trunk."""
  errors.one_of('adapter.pool', pool, Pool)
  if activation not in ACTIVATIONS:
    raise ValueError(f'adapter.activation={activation!r} is unknown: set it to one of {", ".join(ACTIVATIONS)}')
  if lm_weight and frozen:
    raise ValueError(
      f'adapter.lm_weight={lm_weight} trains the trunk and adapter.frozen=True does not: remove one of them'
    )
  if lm_weight:
    user, inputs = f'adapter {name!r} with lm_weight', ('tokens', 'segment_ids')
    errors.require(trunk, user=user, attention=('causal',), inputs=inputs, offers=(Attends,))


def trained(frozen: bool, trunk: nn.Module) -> tuple[str, ...]:
  """Return `Task.trains`: all trainable parameters, or those outside a frozen trunk."""
  return HEADS if frozen else all_but_fixed(trunk)


def all_but_fixed(trunk: nn.Module) -> tuple[str, ...]:
  """Return patterns of all parameters except those that the trunk fixes."""
  fixed = getattr(trunk, 'FIXED', ())
  return (rf'(?!trunk/({"|".join(fixed)})$).*',) if fixed else EVERYTHING


# The auxiliary language model ----------------------------------------------------------------------------------------


def lm_targets(tokens: Array, segment_ids: Array) -> dict[str, Array]:
  """Compute the targets 'next' and 'next_weights' of the auxiliary language model.

  All arrays are [b, k, l], for k texts per example. The texts of an example have equal weight, and so have the tokens
  of a text (released GPT code). A text without tokens has weight 0.
  """
  shape = tokens.shape
  following, real = (x.reshape(shape) for x in next_tokens(*(y.reshape(-1, shape[2]) for y in (tokens, segment_ids))))
  weights = real / jnp.maximum(real.sum(axis=2, keepdims=True), 1.0)
  present = (segment_ids > 0).any(axis=2).sum(axis=1)  # [b]
  return {'next': following, 'next_weights': weights / jnp.maximum(present, 1)[:, None, None]}


def lm_nats(forward: Forward, hidden: Array, targets: Mapping[str, Array]) -> Array:
  """Compute the language model's nats f32[b] of states [b k, l, d]."""
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
  """Add the auxiliary language model's loss.

  L3 = L2 + lambda L1 (GPT eq. 5). With `lm_weight` 0 the values and metrics are returned unchanged. `hidden` are the
  states [b k, l, d] of the texts, `values` f32[b] the losses of examples; `targets` has 'weights' f32[b] and those of
  `lm_targets`.
  """
  if not lm_weight:
    return values, metrics
  weights, lm_values = targets['weights'], lm_nats(forward, hidden, targets)
  metrics = metrics | {'task_loss': metric(values, weights), 'lm_loss': metric(lm_values, weights)}
  return values + lm_weight * lm_values, metrics


# Classes -------------------------------------------------------------------------------------------------------------


def check_names(setting: str, names: Sequence[str]) -> None:
  """Raise ValueError for fewer than two names, or a name twice."""
  if len(names) < 2 or len(set(names)) < len(names):
    raise ValueError(f'adapter.{setting}={names!r}: two names or more are needed, all different')


def scaled_class_weights(weights: Sequence[float], *, classes: int) -> tuple[float, ...]:
  """Scale class weights so that the smallest nonzero weight is 1.

  A weighted mean is unchanged, and the total weight of a batch is 0 or at least 1, as `batch_scale` requires.

  Raises:
    ValueError: a wrong number of weights, a negative weight, or only zeros.
  """
  if not weights:
    return ()
  if len(weights) != classes or min(weights) < 0 or not any(weights):
    setting = f'adapter.class_weights={tuple(weights)}'
    if not classes:
      raise ValueError(f'{setting} needs classes and this is a regression: remove adapter.class_weights')
    raise ValueError(f'{setting}: give {classes} numbers, one for each class, 0 or above and not all 0')
  least = min(weight for weight in weights if weight > 0)
  return tuple(weight / least for weight in weights)


def label_weights(labels: Array, class_weights: Sequence[float]) -> Array:
  """Look up the weight f32[...] of each label int[...]; undefined below 0."""
  return jnp.asarray(class_weights, jnp.float32)[jnp.maximum(labels, 0)]
