"""BERT: bidirectional Transformer encoder, post-norm (Devlin et al. 2018, §3; arXiv 1810.04805).

RoBERTa (Liu et al. 2019; `position_offset`, `norm_epsilon`), DistilBERT (Sanh et al. 2019), both networks of ELECTRA
(Clark et al. 2020) and ERNIE 1 and 2 (Sun et al. 2019; `num_tasks`) have the same trunk. Positions are learned and
absolute, added once at the input; a sequence longer than the table is an error. Contrary to some texts, BERT has no
trainable relative positions. MPNet has both (Song et al. 2020; `relative_buckets`). Differences
between paper, released code and Hugging Face are fields: the released TensorFlow code computes GELU by its tanh form,
Hugging Face by erf.
"""

import dataclasses
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.keywords import Count, Depth, Epsilon, NonNegativeInt, PartRate, Std
from plm_jax.core.sharding import constrain
from plm_jax.core.types import Array, Execution, Paper, Published
from plm_jax.layers import positions as position
from plm_jax.layers.attention import attend_in
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, from_heads, to_heads, truncated_normal
from plm_jax.layers.masks import Mask
from plm_jax.layers.mlp import Activation, Mlp
from plm_jax.layers.norm import LayerNorm
from plm_jax.layers.stack import stack
from plm_jax.models.base import OneStack, check_choices, check_multiple, maker


@dataclasses.dataclass(frozen=True)
class Config:
  """Sizes of a BERT."""

  hidden_dim: Count = 768  # d, width between blocks
  num_layers: Depth = 12  # n
  num_heads: Count = 12  # h; the head size is hidden_dim / num_heads
  mlp_dim: Count = 3072  # f, feed-forward width
  # e, width of the tables and their norm, projected to d after the norm (ELECTRA); None for d
  embed_dim: Count | None = None
  max_length: Count = 512  # maximum sequence length, in tokens
  num_types: NonNegativeInt = 2  # number of rows of the sentence-type table; 0 for none (RoBERTa)
  num_tasks: NonNegativeInt = 0  # number of rows of ERNIE's task table, of which every token has the first; 0 for none
  # buckets of distances with a bias per head, shared by all layers as in T5 (MPNet: 32); 0 for none
  relative_buckets: NonNegativeInt = 0
  position_offset: NonNegativeInt = 0  # first used row of the position table (RoBERTa: 2, after the padding id)
  activation: Activation = 'gelu_tanh'  # 'gelu_tanh' (released BERT), 'gelu_erf' (RoBERTa, Hugging Face) or 'relu'
  norm_epsilon: Epsilon = 1e-12  # epsilon of every LayerNorm
  dropout: PartRate = 0.1  # rate after embeddings and after each sublayer
  attention_dropout: PartRate = 0.1  # rate on attention weights
  init_std: Std = 0.02  # standard deviation of the truncated normal that initialises all kernels and tables
  # initial values of the position table: 'normal' like other tables, or 'sinusoids'
  position_init: position.Start = 'normal'
  vocab_multiple: Count = 1  # pads the token table to a multiple of this many rows
  tied: bool = True  # the output matrix is the token table; otherwise a separate matrix
  # name of pretrained checkpoints that share RoBERTa's or BERT's (ERNIE) architecture; '' for others
  model_type: Literal['', 'xlm-roberta', 'camembert', 'ernie'] = ''
  # 'tanh' of a dense layer on the first token (BERT), or the 'first' token's state (ELECTRA, DistilBERT)
  pooler: Literal['tanh', 'first'] = 'tanh'

  def __post_init__(self):
    check_choices(self)
    check_multiple(self, 'hidden_dim', 'num_heads')


class Block(nn.Module):
  """Self-attention and feed-forward, each as norm(x + dropout(sublayer(x))) (post-norm).

  With `query` [b, t, d], states of some positions, only these are computed; keys and values are those of x.
  """

  config: Config
  execution: Execution

  @nn.compact
  def __call__(
    self, x: Array, context: tuple[Mask, Array | None], train: bool, query: Array | None = None
  ) -> tuple[Array, Array]:
    c, dtype = self.config, self.execution.dtype
    mask, bias = context
    init = truncated_normal(c.init_std)
    project = partial(to_heads, c.num_heads, c.hidden_dim // c.num_heads, init, dtype=dtype)
    out = from_heads(c.hidden_dim, init, dtype=dtype, name='out')

    own = x if query is None else query
    queries, key, value = project(name='query')(own), project(name='key')(x), project(name='value')(x)  # [b, l, h, k]
    x, implementation = own, self.execution.attention
    rate = c.attention_dropout
    y = attend_in(
      self, queries, key, value, mask=mask, bias=bias, dropout=rate, train=train, implementation=implementation
    )
    y = out(y)  # [b, l, h, k] -> [b, l, d]
    y = Dropout(c.dropout)(y, train=train)
    x = LayerNorm(c.norm_epsilon, dtype, name='attention_norm')(x + y)

    y = Mlp(c.mlp_dim, c.activation, up_init=init, down_init=init, dtype=dtype, name='mlp')(x)
    y = Dropout(c.dropout)(y, train=train)
    x = LayerNorm(c.norm_epsilon, dtype, name='mlp_norm')(x + y)
    return constrain(x, 'batch', 'length', 'embed'), x


class Bert(OneStack):
  """The encoder without a pre-training head."""

  config: Config
  # another Bert, whose position and type tables and embedding norm replace those of this one
  embeddings: nn.Module | None = None

  NAME = 'bert'
  INPUTS = ('tokens', 'segment_ids', 'type_ids', 'positions', 'allowed')
  ATTENTION = 'bidirectional'

  def setup(self) -> None:
    c, dtype = self.config, self.execution.dtype
    init = truncated_normal(c.init_std)
    width = self.token_dim
    shared = self.embeddings
    self.token_embed = self.embed or self.make_table(init)
    if shared is None:
      rows = c.max_length + c.position_offset
      start = position.start_of(c.position_init, init, std=c.init_std)
      self.position_embed = Embed(rows, width, ('positions', 'embed'), start, dtype=dtype)
      self.embed_norm = LayerNorm(c.norm_epsilon, dtype)
      if c.num_types:
        self.type_embed = Embed(c.num_types, width, ('types', 'embed'), init, dtype=dtype)
    else:
      self.position_embed, self.embed_norm = shared.position_embed, shared.embed_norm
      if c.num_types:
        self.type_embed = shared.type_embed
    if c.num_tasks:
      self.task_embed = Embed(c.num_tasks, width, ('types', 'embed'), init, dtype=dtype)
    if c.relative_buckets:
      self.relative_bias = Embed(c.relative_buckets, c.num_heads, (None, 'heads'), init)
    self.embed_dropout = Dropout(c.dropout)
    if width != c.hidden_dim:
      self.embed_project = Dense(c.hidden_dim, axes=('embed', 'embed_out'), kernel_init=init, dtype=dtype)
    self.layers = stack(Block, num_layers=c.num_layers, execution=self.execution)(c, self.execution)
    if not c.tied:
      self.output = self.make_table(init)
    if c.pooler == 'tanh':
      self.pooler = Dense(c.hidden_dim, axes=('embed', 'embed_out'), kernel_init=init, dtype=dtype)

  def __call__(
    self,
    tokens: Array,
    *,
    segment_ids: Array,
    type_ids: Array | None = None,
    positions: Array | None = None,
    allowed: Array | None = None,
    train: bool = False,
  ) -> dict[str, Any]:
    """Encode a batch as `OneStack`.

    `allowed` bool[b, l, m] is True if the query may attend to this key of its segment (UniLM); all by default.
    """
    x = self._embedded(tokens, segment_ids, type_ids, positions, train)
    context = Mask(segment_ids, segment_ids, allowed=allowed), self._bias(tokens.shape[1])
    hidden, layers = self.layers(x, context, train)
    return self.results(hidden, jnp.concatenate([x[None], layers]))

  def states_at(self, places: Array, tokens: Array, *, segment_ids: Array, type_ids: Array | None = None) -> Array:
    """Compute 'hidden' at positions int[b, t] only, [b, t, d]."""
    x, bias = self._embedded(tokens, segment_ids, type_ids, None, False), self._bias(tokens.shape[1])
    # parameters [n, ...] of the layers before the last, and of the last
    first, last = (
      jax.tree.map(lambda leaf, part=part: leaf[part], nn.unbox(self.layers.variables['params']))
      for part in (slice(-1), -1)
    )
    blocks: dict[str, Any] = {'config': self.config, 'execution': self.execution, 'parent': None}
    if (depth := self.config.num_layers - 1) > 0:
      layers = stack(Block, num_layers=depth, execution=self.execution)(**blocks)
      x, _ = layers.apply({'params': first}, x, (Mask(segment_ids, segment_ids), bias), False)
    query = jnp.take_along_axis(x, places[..., None], axis=1)
    mask = Mask(jnp.take_along_axis(segment_ids, places, axis=1), segment_ids)
    bias = None if bias is None else jnp.swapaxes(bias[0][:, places], 0, 1)  # [1, h, l, l] -> [b, h, t, l]
    hidden, _ = Block(**blocks).apply({'params': last}, x, (mask, bias), False, query)
    return hidden

  def _embedded(
    self, tokens: Array, segment_ids: Array, type_ids: Array | None, positions: Array | None, train: bool
  ) -> Array:
    """Compute the input of the first layer, [b, l, d]."""
    c = self.config
    positions = self.positions_of(segment_ids, positions)
    x = self.token_embed(tokens) + self.position_embed(positions + c.position_offset)  # [b, l] -> [b, l, d]
    if c.num_types:
      x = x + self.type_embed(jnp.zeros_like(tokens) if type_ids is None else type_ids)
    if c.num_tasks:
      x = x + self.task_embed(jnp.zeros_like(tokens))
    x = self.embed_norm(x)
    x = self.embed_dropout(x, train=train)
    if self.token_dim != self.hidden_dim:
      x = self.embed_project(x)  # [b, l, e] -> [b, l, d]
    return constrain(x, 'batch', 'length', 'embed')

  def _bias(self, length: int) -> Array | None:
    """Compute relative biases [1, h, l, l], None without them."""
    if not self.config.relative_buckets:
      return None
    index = jnp.arange(length)
    distance = index - index[:, None]  # of the key from the query, [l, l]
    buckets = position.relative_buckets(distance, bidirectional=True, num_buckets=self.config.relative_buckets)
    return self.relative_bias(buckets).transpose(2, 0, 1)[None]  # [l, l, h] -> [1, h, l, l]

  @property
  def embedding_sizes(self) -> dict[str, int]:
    """Return the sizes that another Bert needs to share the tables."""
    c = self.config
    return {
      'embed_dim': self.token_dim,
      'max_length': c.max_length,
      'position_offset': c.position_offset,
      'num_types': c.num_types,
    }

  @property
  def position_rows(self) -> dict[str, range]:
    """Return the used rows of position tables, by path, from position 0."""
    c = self.config
    return {'position_embed': range(c.position_offset, c.position_offset + c.max_length)}

  def pool(self, hidden: Array, segment_ids: Array) -> Array:
    """Pool the first token, [CLS]: [b, l, d] -> [b, d].

    BERT applies a dense layer and tanh (§4.1, the vector C); DistilBERT and ELECTRA use the state itself.
    """
    return jnp.tanh(self.pooler(hidden[:, 0])) if self.config.pooler == 'tanh' else hidden[:, 0]


_ROBERTA = Config(num_types=0, position_offset=2, activation='gelu_erf', norm_epsilon=1e-5)
_LARGE: dict[str, Any] = dict(hidden_dim=1024, num_layers=24, num_heads=16, mlp_dim=4096)
_ELECTRA = Config(activation='gelu_erf', pooler='first')
_SMALL: dict[str, Any] = dict(hidden_dim=256, num_heads=4, mlp_dim=1024)

CONFIGS: Mapping[str, Config] = {
  'bert-base': Config(),
  'bert-large': Config(**_LARGE),
  'spanbert-base': Config(),
  'spanbert-large': Config(**_LARGE),
  'roberta-base': _ROBERTA,
  'roberta-large': dataclasses.replace(_ROBERTA, **_LARGE),
  'electra-small': dataclasses.replace(_ELECTRA, **_SMALL, embed_dim=128),
  'electra-base': _ELECTRA,
  'electra-large': dataclasses.replace(_ELECTRA, **_LARGE),
  # depth and table width of their discriminators; a quarter, a third and a quarter of the width
  'electra-small-generator': dataclasses.replace(_ELECTRA, hidden_dim=64, num_heads=1, mlp_dim=256, embed_dim=128),
  'electra-base-generator': dataclasses.replace(_ELECTRA, **_SMALL, embed_dim=768),
  'electra-large-generator': dataclasses.replace(_ELECTRA, **_SMALL, num_layers=24, embed_dim=1024),
  'distilbert-base': Config(num_layers=6, num_types=0, activation='gelu_erf', pooler='first'),
  'mpnet-base': dataclasses.replace(_ROBERTA, relative_buckets=32),
  'ernie-1.0-base': Config(max_length=513, activation='relu', norm_epsilon=1e-5, model_type='ernie'),
  'ernie-2.0-base-en': Config(num_types=4, num_tasks=3, activation='gelu_erf', norm_epsilon=1e-5, model_type='ernie'),
  'tiny': Config(hidden_dim=128, num_layers=2, num_heads=2, mlp_dim=512),
}
make = maker(Bert, CONFIGS)

_MLM = 'as a masked language model'
_PAIR = 'with heads for masked tokens and next sentences'
_CASED = 'cased, 28,996 ids'
_RTD = 'with the head that detects replaced tokens'
_DUMMY = 'with the unused sentence-type row of Hugging Face'

_ROBERTA_PAPER = 2019, 'Liu et al., RoBERTa'
_ELECTRA_PAPER = 2020, 'Clark et al., ELECTRA'
_DISTILBERT = 2019, 'Sanh et al., DistilBERT'


def _bert(parameters: int, paper: str, pair: int, cased: int, cased_pair: int) -> Published:
  also = ((_PAIR, pair), (_CASED, cased), (f'{_CASED}, {_PAIR}', cased_pair))
  return Published(30_522, parameters, paper, note='uncased', also=also)


def _spanbert(parameters: int, paper: str, head: int) -> Published:
  note, also = 'cased BERT with another pre-training', (('its span-boundary head, of 15 positions', head),)
  return Published(28_996, parameters, paper, note=note, also=also, source=(2019, 'Joshi et al., SpanBERT'))


def _uncased(parameters: int, paper: str, head: str, with_head: int, source: tuple[int, str]) -> Published:
  return Published(30_522, parameters, paper, also=((head, with_head),), source=source)


PUBLISHED: Mapping[str, Published] = {
  'bert-base': _bert(109_482_240, '110M', 110_106_428, 108_310_272, 108_932_934),
  'bert-large': _bert(335_141_888, '340M', 336_226_108, 333_579_264, 334_661_958),
  'spanbert-base': _spanbert(108_310_272, '110M', 1_959_676),
  'spanbert-large': _spanbert(333_579_264, '340M', 3_388_668),
  'roberta-base': Published(
    50_265, 124_644_864, '125M', also=((_DUMMY, 124_645_632), (f'{_MLM}, {_DUMMY}', 124_697_433)), source=_ROBERTA_PAPER
  ),
  'roberta-large': Published(
    50_265, 355_358_720, '355M', also=((_DUMMY, 355_359_744), (f'{_MLM}, {_DUMMY}', 355_412_057)), source=_ROBERTA_PAPER
  ),
  'electra-small': _uncased(13_483_008, '14M', _RTD, 13_549_057, _ELECTRA_PAPER),
  'electra-base': _uncased(108_891_648, '110M', _RTD, 109_483_009, _ELECTRA_PAPER),
  'electra-large': _uncased(334_092_288, '335M', _RTD, 335_142_913, _ELECTRA_PAPER),
  'electra-small-generator': _uncased(4_580_928, 'width 1/4', _MLM, 4_620_026, _ELECTRA_PAPER),
  'electra-base-generator': _uncased(33_511_168, 'width 1/3', _MLM, 33_740_602, _ELECTRA_PAPER),
  'electra-large-generator': _uncased(50_999_552, 'width 1/4', _MLM, 51_295_290, _ELECTRA_PAPER),
  'distilbert-base': _uncased(66_362_880, '66M', _MLM, 66_985_530, _DISTILBERT),
  'mpnet-base': Published(
    30_527, 109_486_464, '110M', also=((_MLM, 109_518_527),), source=(2020, 'Song et al., MPNet')
  ),
  'ernie-1.0-base': Published(18_000, 99_866_112, 'none', source=(2019, 'Sun et al., ERNIE')),
  'ernie-2.0-base-en': _uncased(109_486_080, '110M', _PAIR, 110_110_268, (2019, 'Sun et al., ERNIE 2.0')),
}

PAPER = Paper(
  year=2018,
  title='Devlin et al., BERT',
  architecture='encoder',
  objective_family='denoising',
  adapters=('classify', 'tag'),
)
