"""What adapters share: what a trunk reads of labelled rows, and what each class weighs in a loss."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from plm_jax.types import Array, Batch


def read_text(batch: Batch, *, two_stacks: bool) -> dict[str, Array]:
  """The inputs of a trunk, or of one with an encoder and a decoder, for the text of a batch."""
  if two_stacks:
    return both_sides(batch['tokens'], batch['segment_ids'])
  return {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids') if name in batch}


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


def class_count(classes: int | None, *, kind: str) -> int:
  """How many classes an adapter tells apart; 0 where it predicts real values.

  Raises:
    ValueError: fewer than two, or none said.
  """
  if kind == 'regression':
    return 0
  if classes is None:
    raise ValueError('adapter.classes=None is found by `train` where a run begins; here it has to be said')
  if classes < 2:
    raise ValueError(f'adapter.classes={classes}: a classification has two classes or more')
  return classes


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
