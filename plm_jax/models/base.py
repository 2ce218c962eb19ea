"""Base class of trunks (the backbone: the network without a task head), and checks of their configs.

`Base` implements `trunk.Trunk` and `trunk.Attends` for a trunk with a tied output, without learned positions and
without recurrent state. A trunk adds NAME, INPUTS, ATTENTION, `setup` (which creates `token_embed`), `__call__` and
`pool`, and overrides what differs.
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
    vocab_size: number of ids in the vocabulary.
    execution: how to compute the trunk.
    embed: the token table of another trunk, which replaces that of this one.
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
    """Return d, the width of 'hidden'."""
    return self.config.hidden_dim

  @property
  def position_rows(self) -> dict[str, range]:
    """Return no rows: without learned positions any length is valid."""
    return {}

  def init_carry(self, batch_size: int) -> PyTree:
    """Return the empty carry of a trunk without state."""
    del batch_size
    return ()

  @property
  def token_dim(self) -> int:
    """Return e, the width of the features of `attend`."""
    return self.hidden_dim

  @property
  def head_style(self) -> HeadStyle:
    """Return the style of a head before `attend`."""
    return HeadStyle(self.config.activation, self.config.norm_epsilon, self.config.init_std)

  def attend(self, features: Array) -> Array:
    """Compute vocabulary logits f32[..., v] of features [..., e].

    The matrix is the tied token table or a separate output matrix.
    """
    return self.output_table.attend(features)

  @property
  def gives_logits(self) -> bool:
    """Return True if the trunk has an output matrix.

    Weights of a trunk without a head may lack it.
    """
    return getattr(self.config, 'tied', True) or getattr(self.config, 'has_output', True)

  @property
  def output_table(self) -> Embed:
    """Return the token table, or the output matrix of an untied trunk.

    Raises:
      ValueError: there is no output matrix.
    """
    if not self.gives_logits:
      raise ValueError(
        f'this {type(self).__name__} has no output matrix (lm_head; model.overrides: tied=False, has_output=False): '
        'open the folder of the language model, or set model.overrides.has_output=True to train one'
      )
    return self.token_embed if getattr(self.config, 'tied', True) else self.output

  def init_output(self) -> None:
    """Initialise the output matrix in `__call__`, even without logits."""
    if self.is_initializing() and self.gives_logits:
      self.attend(jnp.zeros((1, 1, self.token_dim)))

  def init_all(self) -> None:
    """Use every parameter once, for `trunk.init(key, method='init_all')`."""
    ones = jnp.ones((1, 1), jnp.int32)
    sides = ('encoder_', 'decoder_') if 'encoder_tokens' in self.INPUTS else ('',)
    out = self(**{f'{side}{name}': ones for side in sides for name in ('tokens', 'segment_ids')})
    self.pool(out['hidden'], ones)
    self.init_output()

  def with_dropout(self, rate: float) -> 'Base':
    """Return this trunk with another dropout rate and the same parameters."""
    return self.clone(config=dataclasses.replace(self.config, dropout=rate))

  def make_table(self, table_init: Initializer) -> Embed:
    """Build a table [v, e] for tokens or outputs, in `setup`."""
    return Embed(
      self.vocab_size,
      self.token_dim,
      ('vocab', 'embed'),
      table_init,
      multiple=self.config.vocab_multiple,
      dtype=self.execution.dtype,
    )


def check_choices(config: Any) -> None:
  """Raise ValueError for a `Literal` field of a `Config` with another value."""
  values = dataclasses.asdict(config)
  for field in dataclasses.fields(config):
    if get_origin(field.type) is Literal:
      one_of(f'model.overrides.{field.name}', values[field.name], field.type)


def check_multiple(config: Any, whole: str, part: str) -> None:
  """Raise ValueError if one field is not a multiple of another.

  An example is the width and the number of heads.
  """
  values = dataclasses.asdict(config)
  size, parts = values[whole], values[part]
  if parts < 1 or size % parts:
    raise ValueError(f'model.overrides: {whole}={size} is not a multiple of {part}={parts}: change one of them')


def check_encoded(
  batch_size: int, encoder_hidden: Array | None, encoder_segment_ids: Array | None
) -> tuple[Array, Array]:
  """Return the encoder's states for `init_cache`.

  Raises:
    ValueError: they are missing, or have another batch size.
  """
  if encoder_hidden is None or encoder_segment_ids is None:
    raise ValueError('this trunk has an encoder: pass encoder_hidden and encoder_segment_ids to init_cache')
  if encoder_hidden.shape[0] != batch_size:
    raise ValueError(
      f'init_cache: encoder_hidden has batch size {encoder_hidden.shape[0]} and not batch_size={batch_size}'
    )
  return encoder_hidden, encoder_segment_ids
