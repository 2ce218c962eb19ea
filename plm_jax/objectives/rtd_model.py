"""Generator and discriminator of replaced token detection, and their shared parameters (ELECTRA §3, DeBERTa-v3 §3)."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.config import build
from plm_jax.core.errors import require
from plm_jax.core.trunk import Attends, Shares, SharesTokens
from plm_jax.core.types import Array, Vocab
from plm_jax.layers.linear import Dense, Embed, truncated_normal
from plm_jax.layers.mlp import ACTIVATIONS
from plm_jax.objectives import mlm

Sharing = Literal['embeddings', 'tokens', 'all', 'none', 'gradient_disentangled']


class Head(nn.Module):
  """Dense, activation, one logit per token: was it replaced (§2; no norm, as released)?"""

  activation: str
  init_std: float
  dtype: str

  @nn.compact
  def __call__(self, hidden: Array) -> Array:
    """Compute logits f32[...] of states [..., d]."""
    init = truncated_normal(self.init_std)
    dense = Dense(hidden.shape[-1], axes=('embed', 'embed_out'), kernel_init=init, dtype=self.dtype, name='dense')
    out = Dense(1, axes=('embed', 'classes'), kernel_init=init, name='out')
    return out(ACTIVATIONS[self.activation](dense(hidden)))[..., 0]


class Disentangled(Embed):
  """The sum of another table, without gradient, and an own table that starts from 0.

  Gradient-disentangled sharing (He et al. 2021, DeBERTaV3 §3.2): the discriminator starts from the generator's vectors,
  but its losses do not change them.
  """

  base: Any = None

  def setup(self) -> None:
    rows = -(-self.num_rows // self.multiple) * self.multiple
    zeros = nn.with_logical_partitioning(nn.initializers.zeros, self.axes)
    own = self.param('table', zeros, (rows, self.features), jnp.float32)
    self.table = jax.lax.stop_gradient(self.base.table) + own


class Model(nn.Module):
  """The discriminator `trunk`, the `generator` and their heads."""

  make_trunk: Callable[..., nn.Module]  # (embed=...) -> the discriminator
  # (embed=..., embeddings=...) -> the generator; None if there is none or it is the trunk
  make_generator: Callable[..., nn.Module] | None
  sharing: Sharing  # parameters that the two share
  mlm: Any  # the generator's head; None if tokens are sampled uniformly
  rtd: Any  # the discriminator's head, a `Head`; None if it restores tokens
  restore: Any  # the discriminator's head if it restores tokens, like `mlm`
  gated: bool  # the discriminator has a copy gate
  rewarded: bool  # the generator has a baseline of its reward
  init_std: float  # of the kernels of gate and baseline

  def setup(self) -> None:
    if self.make_generator is None:
      self.trunk = self.make_trunk()
    elif self.sharing == 'gradient_disentangled':
      self.generator = self.make_generator()
      base = self.generator.token_embed
      self.delta = Disentangled(
        base.num_rows, base.features, base.axes, base.table_init, base.multiple, base.dtype, base
      )
      self.trunk = self.make_trunk(embed=self.delta)
    else:
      self.trunk = self.make_trunk()
      shared: dict[str, dict[str, nn.Module]] = {
        'none': {},
        'tokens': {'embed': self.trunk.token_embed},
        'embeddings': {'embed': self.trunk.token_embed, 'embeddings': self.trunk},
      }
      self.generator = self.make_generator(**shared[self.sharing])
    one_logit = Dense(1, axes=('embed', 'classes'), kernel_init=truncated_normal(self.init_std))
    if self.gated:
      self.gate = one_logit.copy()
    if self.rewarded:
      self.baseline = one_logit.copy()

  def __call__(self, predict: Array, train: bool = False, **inputs: Any) -> Array:
    """Compute the generator's vocabulary logits f32[b, t, v] at `predict` int[b, t].

    Without a generator, the discriminator's logits f32[b, l].
    """
    if self.is_initializing():
      hidden = self.encode(**inputs)
      if self.restore is not None:
        self.attend(hidden)
      if self.gated:
        self.copies(hidden)
    if self.mlm is None:
      return self.detect(**inputs, train=train)
    logits, features = self.generate(predict, train=train, **inputs)
    if self.is_initializing():
      if self.rewarded:
        self.expect(features)
      if self.rtd is not None:
        self.detect(**inputs)
    return logits

  def generate(self, predict: Array, train: bool = False, **inputs: Array) -> tuple[Array, Array]:
    """Compute the generator's logits f32[b, t, v] and states [b, t, d]."""
    generator = self.trunk if self.make_generator is None else self.generator
    hidden = generator(**inputs, train=train)['hidden']
    features = mlm.states_at(hidden, predict)
    return self.mlm(features, generator.attend), features

  def expect(self, features: Array, train: bool = False) -> Array:
    """Compute logits f32[b, t] of the baseline, the discriminator's expected certainty."""
    return self.baseline(jax.lax.stop_gradient(features))[..., 0]

  def encode(self, train: bool = False, **inputs: Array) -> Array:
    """Compute states of the discriminator [b, l, d]."""
    return self.trunk(**inputs, train=train)['hidden']

  def detect(self, train: bool = False, **inputs: Array) -> Array:
    """Compute logits f32[b, l] of the discriminator, above 0 for "replaced"."""
    return self.rtd(self.encode(**inputs, train=train))

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v] of a discriminator that restores tokens."""
    return self.restore(features, self.trunk.attend)

  def copies(self, features: Array, train: bool = False) -> Array:
    """Compute logits f32[...] of the copy gate, above 0 for "copied"."""
    return self.gate(features)[..., 0]


def make_model(
  trunk: nn.Module,
  vocab: Vocab,
  generator: Mapping[str, Any] | None,
  *,
  sharing: Sharing,
  uniform: bool,
  detects: bool,
  gated: bool,
  rewarded: bool,
) -> Model:
  """Build the model for the settings of `rtd.make`.

  A discriminator that does not detect replaced tokens restores the original ones.
  """
  second = make_generator(trunk, vocab, generator, sharing=sharing, uniform=uniform)
  style = trunk.head_style
  return Model(
    make_trunk=trunk.clone,
    make_generator=None if second is None else second.clone,
    sharing=sharing,
    mlm=None if uniform else mlm.make_head(second or trunk),
    rtd=Head(style.activation, style.init_std, trunk.execution.dtype) if detects else None,
    restore=None if detects else mlm.make_head(trunk),
    gated=gated,
    rewarded=rewarded,
    init_std=style.init_std,
  )


def make_generator(
  trunk: nn.Module, vocab: Vocab, settings: Mapping[str, Any] | None, *, sharing: Sharing, uniform: bool
) -> nn.Module | None:
  """Build the generator's trunk, if separate, and check what it shares."""
  if uniform or sharing == 'all':
    if settings is not None:
      reason = "sampling='uniform' has no generator" if uniform else "with sharing='all' the trunk is the generator"
      raise ValueError(f'objective.generator={dict(settings)}, but {reason}: remove one of the two settings')
    return None
  if settings is None:
    raise ValueError(
      "objective.generator is missing: set dict(name='bert', variant='electra-small-generator'), or "
      "objective.sharing='all' or objective.sampling='uniform', which need none"
    )
  generator = build.make('models', settings, vocab_size=vocab.size, execution=trunk.execution)
  inputs = ('tokens', 'segment_ids')
  require(generator, user="objective 'rtd'", attention=('bidirectional',), inputs=inputs, offers=(Attends,))
  check_sharing(trunk, generator, sharing)
  return generator


def check_sharing(trunk: nn.Module, generator: nn.Module, sharing: Sharing) -> None:
  """Raise ValueError if the two trunks cannot share these parameters."""
  if sharing == 'none':
    return
  user = f'objective.sharing={sharing!r}'
  offers = (Shares,) if sharing == 'embeddings' else (SharesTokens,)
  for network in (trunk, generator):
    require(network, user=f"objective 'rtd' with sharing={sharing!r}", offers=offers)
  widths = trunk.token_dim, generator.token_dim
  if widths[0] != widths[1]:
    raise ValueError(
      f"{user}: the trunk's token table is {widths[0]} wide and the generator's {widths[1]}; "
      f"set objective.generator.overrides.embed_dim={widths[0]}, or objective.sharing='none'"
    )
  if sharing != 'embeddings':
    return
  if trunk.NAME != generator.NAME:
    raise ValueError(
      f"{user} needs two models of one name, not {trunk.NAME} and {generator.NAME}: set objective.sharing='tokens'"
    )
  ours, theirs = trunk.embedding_sizes, generator.embedding_sizes
  if ours != theirs:
    differing = [name for name in ours if ours[name] != theirs[name]]
    sizes = [f'{name} is {ours[name]} in the trunk and {theirs[name]} in the generator' for name in differing]
    raise ValueError(
      f'{user} needs tables of one size, but {"; ".join(sizes)}: set these in objective.generator.overrides'
    )
