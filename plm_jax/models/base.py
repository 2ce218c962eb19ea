"""What trunks have in common apart from their architecture; a file of `models/` states what differs.

`Base` satisfies `types.Trunk` and `types.Attends` for a trunk with a tied output, without learned positions and without
recurrent state. A trunk adds NAME, INPUTS, ATTENTION, `setup` (which makes `token_embed`), `__call__` and `pool`, and
states again what is different for it.
"""

import dataclasses
from typing import Any, ClassVar, Literal, get_origin

import flax.linen as nn
import jax.numpy as jnp

from plm_jax.core.errors import one_of
from plm_jax.core.trunk import AttentionKind, HeadStyle
from plm_jax.core.types import Array, Execution, PyTree
from plm_jax.layers.linear import Embed, Initializer

# INPUTS of a trunk with an encoder and a decoder
TWO_STACKS = (
  'encoder_tokens',
  'encoder_segment_ids',
  'decoder_tokens',
  'decoder_segment_ids',
  'encoder_positions',
  'decoder_positions',
)


class Base(nn.Module):
  """A trunk without its architecture.

  Attributes:
    config: sizes, the `Config` of the file.
    vocab_size: ids of the vocabulary.
    execution: how to compute it.
    embed: the token table of another trunk, which this one then reads in place of its own.
  """

  config: Any
  vocab_size: int
  execution: Execution = Execution()
  embed: nn.Module | None = None

  NAME: ClassVar[str]
  INPUTS: ClassVar[tuple[str, ...]]
  ATTENTION: ClassVar[AttentionKind]

  @property
  def hidden_dim(self) -> int:
    """d, the width of 'hidden'."""
    return self.config.hidden_dim

  @property
  def position_rows(self) -> dict[str, range]:
    """No position has a learned vector, so a row may have any length."""
    return {}

  def init_carry(self, batch_size: int) -> PyTree:
    """Nothing is carried from one row to the next."""
    del batch_size
    return ()

  @property
  def token_dim(self) -> int:
    """e, the width of the features that `attend` takes."""
    return self.hidden_dim

  @property
  def head_style(self) -> HeadStyle:
    """What a head in front of `attend` is built like."""
    return HeadStyle(self.config.activation, self.config.norm_epsilon, self.config.init_std)

  def attend(self, features: Array) -> Array:
    """Vocabulary logits f32[..., v] of features [..., e], by the tied token table or a matrix of the trunk's own."""
    return self.output_table.attend(features)

  @property
  def gives_logits(self) -> bool:
    """Whether there is a matrix to make logits with; weights of a trunk without a head may come without it."""
    return getattr(self.config, 'tied', True) or getattr(self.config, 'has_output', True)

  @property
  def output_table(self) -> Embed:
    """The token table, or the output matrix of an untied trunk.

    Raises:
      ValueError: there is none.
    """
    if not self.gives_logits:
      raise ValueError(
        f'this {type(self).__name__} gives no logits: its weights come without an output matrix (lm_head), and its own '
        'is not the token table (model.overrides: tied=False, has_output=False). Take the folder of the language '
        'model, or train a new matrix with has_output=True'
      )
    return self.token_embed if getattr(self.config, 'tied', True) else self.output

  def init_output(self) -> None:
    """Makes a matrix of the trunk's own, so that it exists even where nobody asks for logits; `__call__` calls it."""
    if self.is_initializing() and self.gives_logits:
      self.attend(jnp.zeros((1, 1, self.token_dim)))

  def init_all(self) -> None:
    """Uses every parameter once: `trunk.init(key, method='init_all')` makes the parameters of the whole trunk."""
    ones = jnp.ones((1, 1), jnp.int32)
    sides = ('encoder_', 'decoder_') if 'encoder_tokens' in self.INPUTS else ('',)
    out = self(**{f'{side}{name}': ones for side in sides for name in ('tokens', 'segment_ids')})
    self.pool(out['hidden'], ones)
    self.init_output()

  def with_dropout(self, rate: float) -> 'Base':
    """The same trunk, with the same names of parameters, under another rate of dropout."""
    return self.clone(config=dataclasses.replace(self.config, dropout=rate))

  def make_table(self, table_init: Initializer) -> Embed:
    """A table of vectors [v, e], for tokens or for an output matrix; called from `setup`."""
    return Embed(
      self.vocab_size,
      self.token_dim,
      ('vocab', 'embed'),
      table_init,
      multiple=self.config.vocab_multiple,
      dtype=self.execution.dtype,
    )


def check_choices(config: Any) -> None:
  """Raises ValueError where a field of a `Config` is typed as a `Literal` and has none of its values."""
  values = dataclasses.asdict(config)
  for field in dataclasses.fields(config):
    if get_origin(field.type) is Literal:
      one_of(f'model.overrides.{field.name}', values[field.name], field.type)


def check_multiple(config: Any, whole: str, part: str) -> None:
  """Raises ValueError where one field of a `Config` is not a multiple of another, such as width and number of heads."""
  values = dataclasses.asdict(config)
  size, parts = values[whole], values[part]
  if parts < 1 or size % parts:
    raise ValueError(f'model.overrides: {whole} {size} is not a multiple of {part} {parts}')


def check_encoded(
  batch_size: int, encoder_hidden: Array | None, encoder_segment_ids: Array | None
) -> tuple[Array, Array]:
  """What `init_cache` of a trunk with an encoder is given, or a ValueError where it is missing or of another batch."""
  if encoder_hidden is None or encoder_segment_ids is None:
    raise ValueError('a decoder with an encoder reads its states: give init_cache encoder_hidden, encoder_segment_ids')
  if encoder_hidden.shape[0] != batch_size:
    raise ValueError(f'init_cache has encoder_hidden of {encoder_hidden.shape[0]} rows for {batch_size}')
  return encoder_hidden, encoder_segment_ids
