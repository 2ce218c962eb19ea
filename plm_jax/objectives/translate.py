"""Translation as pre-training of an encoder: CoVe (McCann et al. 2017, §3), with attention as in Luong et al. 2015.

A decoder of LSTM layers reads the states H of the encoder and writes the text in another language:

    s_t = LSTM([z_(t-1); h~_(t-1)], s_(t-1))       z the vector of the word before; s_t of the last layer
    a_t = softmax(H (W1 s_t + b1))                 over the words of the source
    h~_t = tanh(W2 [H^T a_t; s_t] + b2)            the context-adjusted state, which the next step reads (input feeding)
    p(w_t) = softmax(W h~_t + b)

Without feeding, as views of another objective need it (`objectives/translate_views.py`), s_t = LSTM(z_(t-1), s_(t-1)).
Each layer of the decoder starts from the final states of both directions of the same encoder layer, concatenated;
h~_0 = 0. Rows are those of `data/text_to_text` with `second='targets'`: the source uses the run's vocabulary, and the
target its `second_vocab`. The loss, and the text that an evaluation writes, are those of the adapter `sequence`.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import answers, sequence, texts
from plm_jax.adapters.answers import Start
from plm_jax.core.errors import require
from plm_jax.core.trunk import AttentionKind, Ends, HeadStyle
from plm_jax.core.types import Array, Count, Execution, Paper, PartRate, Std, Task, Vocab
from plm_jax.generate.constraints import Generated
from plm_jax.generate.decode import generate
from plm_jax.layers import cache as caches
from plm_jax.layers.cudnn_lstm import Gates
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, Initializer, uniform
from plm_jax.layers.lstm import State, cell
from plm_jax.layers.means import perplexity_of

PAPER = Paper(
  year=2017,
  title='McCann et al., CoVe',
  architecture='lstm',
  objective_family='supervised',
  supervision='supervised',
  adapters=('scalar_mix',),
)
# inputs of an encoder-decoder
TWO_STACKS = ('encoder_tokens', 'encoder_segment_ids', 'decoder_tokens', 'decoder_segment_ids')
READS = ('tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')


class Source(NamedTuple):
  """Precomputed values of a source text, read at each step.

  Attributes:
    hidden: H [b, m, d].
    keys: H W1 [b, m, d], so that H (W1 s) takes one product per step.
    shift: H b1 [b, m].
    real: bool[b, m], False on padding.
  """

  hidden: Array
  keys: Array
  shift: Array
  real: Array


class Attention(NamedTuple):
  """Parameters of the attention.

  Attributes:
    score: W1 [d, d].
    score_bias: b1 [d].
    adjust: W2 [2 d, d].
    adjust_bias: b2 [d].
  """

  score: Array
  score_bias: Array
  adjust: Array
  adjust_bias: Array

  def source(self, hidden: Array, segment_ids: Array) -> Source:
    """Compute a `Source` from states [b, m, d] and int[b, m]."""
    return Source(hidden, hidden @ self.score, hidden @ self.score_bias, segment_ids > 0)

  def adjust_states(
    self, states: Array, source: Source, drop: Callable[[Array], Array] = lambda weights: weights
  ) -> Array:
    """Compute h~ of states s_t [b, (k,) d], the same shape.

    `drop` is applied to the weights of attention.
    """
    weights = drop(attention(states, source)).astype(states.dtype)
    context = jnp.einsum('b...m,bmd->b...d', weights, source.hidden)
    return jnp.tanh(jnp.concatenate([context, states], axis=-1) @ self.adjust + self.adjust_bias)


def attention_params(module: nn.Module, d: int, biases: bool, init: Initializer, dtype: str) -> Attention:
  """Create 'score', 'adjust' and, with `biases`, their biases in a module's `setup`."""

  def leaf(name: str, *shape: int) -> Array:
    axes = ('embed', 'embed_out')[-len(shape) :]
    return module.param(name, nn.with_logical_partitioning(init, axes), shape, jnp.float32).astype(dtype)

  score, adjust = leaf('score', d, d), leaf('adjust', 2 * d, d)
  score_bias, adjust_bias = (leaf(name, d) if biases else jnp.zeros(d, dtype) for name in ('score_bias', 'adjust_bias'))
  return Attention(score, score_bias, adjust, adjust_bias)


class Memory(NamedTuple):
  """State that one step of the decoder passes to the next; with an axis k, of k texts per row.

  Attributes:
    h: [b, (k,) n, d], states of the layers.
    c: f32[b, (k,) n, d], their cells.
    adjusted: h~ [b, (k,) d].
  """

  h: Array
  c: Array
  adjusted: Array


class Weights(NamedTuple):
  """Parameters that each step reads.

  Attributes:
    feed: [d, 4, d], of h~ in the gates of the first layer; None without input feeding.
    kernels: [d, 4, d] and bias [4, d] of each layer above the first.
    recurrent: [d, 4, d] of each layer.
    attention: W1, W2 and their biases.
  """

  feed: Array | None
  kernels: tuple[tuple[Array, Array], ...]
  recurrent: tuple[Array, ...]
  attention: Attention


def attention(state: Array, source: Source) -> Array:
  """Compute attention weights a_t: s_t [b, (k,) d] -> f32[b, (k,) m].

  They are 0 on padding.
  """
  scores = jnp.einsum('bmd,b...d->b...m', source.keys, state)
  shift, real = (jnp.expand_dims(each, tuple(range(1, state.ndim - 1))) for each in (source.shift, source.real))
  return jax.nn.softmax(jnp.where(real, (scores + shift).astype(jnp.float32), -1e9), axis=-1)


def advance(w: Weights, memory: Memory, source: Source, given: Array, masks: Array | None = None) -> Memory:
  """Run one step of the decoder.

  Args:
    w: of the decoder.
    memory: after the previous step.
    source: the text.
    given: W z + b [b, (k,) 4, d], the word's part of the first layer's gates.
    masks: [n - 1, b, d], dropout between layers; None for none.
  """
  fed = given if w.feed is None else given + jnp.einsum('...d,dgf->...gf', memory.adjusted, w.feed)
  h, c = recur(w, (memory.h, memory.c), fed, masks)
  return Memory(h=h, c=c, adjusted=w.attention.adjust_states(h[..., -1, :], source))


def recur(w: Weights, before: State, gates: Array, masks: Array | None) -> State:
  """Run all layers on one word.

  Args:
    w: of the decoder.
    before: h and c [b, (k,) n, d] of the previous step.
    gates: of the first layer.
    masks: as in `advance`.

  Returns:
    h and c of this step.
  """
  h: list[Array] = []
  c: list[Array] = []
  for layer, recurrent in enumerate(w.recurrent):
    if layer:
      kernel, bias = w.kernels[layer - 1]
      below = h[-1] if masks is None else h[-1] * masks[layer - 1]
      gates = jnp.einsum('...d,dgf->...gf', below, kernel) + bias
    gates = gates + jnp.einsum('...d,dgf->...gf', before[0][..., layer, :], recurrent)
    out = cell(gates, before[1][..., layer, :])
    h.append(out[0])
    c.append(out[1])
  return jnp.stack(h, axis=-2), jnp.stack(c, axis=-2)


class Decoder(nn.Module):
  """The decoder network; see the head of this file.

  Attributes:
    vocab_size: v, of the target.
    word_dim: e, width of the vectors z.
    hidden_dim: d.
    num_layers: n.
    biases: use b1 and b2.
    feeding: a step reads h~ of the previous step.
    dropout: rate between layers.
    init_range: parameters start from U(-init_range, init_range), the bias of the output from 0.
    dtype: of states and products.
  """

  vocab_size: int
  word_dim: int
  hidden_dim: int
  num_layers: int
  biases: bool
  feeding: bool
  dropout: float
  init_range: float
  dtype: str

  def setup(self) -> None:
    e, d, init = self.word_dim, self.hidden_dim, uniform(self.init_range)
    self.embed = Embed(self.vocab_size, e, ('vocab', 'embed'), init, dtype=self.dtype)
    widths = (e + d * self.feeding, *(self.num_layers - 1) * (d,))
    self.lstm = [Gates(width, d, init, dtype=self.dtype) for width in widths]
    self.attention = attention_params(self, d, self.biases, init, self.dtype)
    self.between = Dropout(self.dropout)
    self.output = Dense(self.vocab_size, axes=('embed', 'vocab'), kernel_init=init, dtype=self.dtype)

  def __call__(self, tokens: Array, source: Source, ends: State, *, train: bool) -> Array:
    """Compute h~ of every step [b, t, d].

    Args:
      tokens: int[b, t], read by the decoder.
      source: of the encoder.
      ends: h and c [b, n, d] of the encoder.
      train: enables dropout.
    """
    if not self.feeding:
      return self.attention.adjust_states(self.states(tokens, ends, train=train), source)
    w = self.weights()

    def step(memory: Memory, read: tuple[Array, Array]) -> tuple[Memory, Array]:
      memory = advance(w, memory, source, *read)
      return memory, memory.adjusted

    first = Memory(*ends, jnp.zeros((len(tokens), self.hidden_dim), self.dtype))
    return jnp.moveaxis(jax.lax.scan(step, first, self._reads(tokens, train=train))[1], 0, 1)

  def states(self, tokens: Array, ends: State, *, train: bool) -> Array:
    """Compute s_t of every step [b, t, d], for a decoder without feeding."""
    w = self.weights()

    def step(before: State, read: tuple[Array, Array]) -> tuple[State, Array]:
      after = recur(w, before, *read)
      return after, after[0][..., -1, :]

    return jnp.moveaxis(jax.lax.scan(step, ends, self._reads(tokens, train=train))[1], 0, 1)

  def _reads(self, tokens: Array, *, train: bool) -> tuple[Array, Array]:
    """Compute the inputs of each step.

    The gates from words [t, b, 4, d], and dropout masks between layers [t, n - 1, b, d].
    """
    given = jnp.moveaxis(self.given(tokens), 1, 0)
    masks = jnp.ones((len(given), self.num_layers - 1, len(tokens), self.hidden_dim), self.dtype)
    return given, self.between(masks, train=train)

  def source(self, hidden: Array, segment_ids: Array) -> Source:
    """Compute a `Source` from states [b, m, d] and int[b, m]."""
    return self.attention.source(hidden, segment_ids)

  def weights(self) -> Weights:
    """Collect the parameters that each step reads."""
    above = tuple((layer.kernel[:, 0], (layer.bias + layer.recurrent_bias)[0]) for layer in self.lstm[1:])
    feed = self.lstm[0].kernel[self.word_dim :, 0] if self.feeding else None
    recurrent = tuple(layer.recurrent[0] for layer in self.lstm)
    return Weights(feed=feed, kernels=above, recurrent=recurrent, attention=self.attention)

  def given(self, tokens: Array) -> Array:
    """Compute W z + b of the first layer for tokens: int[...] -> [..., 4, d]."""
    first = self.lstm[0]
    kernel = first.kernel[: self.word_dim, 0]
    return jnp.einsum('...e,egf->...gf', self.embed(tokens), kernel) + (first.bias + first.recurrent_bias)[0]

  def attend(self, features: Array) -> Array:
    """Compute vocabulary logits f32[..., v] of h~ [..., d]."""
    return self.output(features).astype(jnp.float32)


class Model(nn.Module):
  """Encoder and decoder, with the interface of an encoder-decoder for `generate` and `sequence`.

  The memory of a step is stored in the slot of the token that it read. The next token of a text reads it from the last
  slot of its text, so a search may follow several texts of a row.

  Attributes:
    trunk: the encoder.
    decoder: reads its states.
    vocab_size: of the target.
    execution: dtype and sharding of the computation.
  """

  trunk: nn.Module
  decoder: Decoder
  vocab_size: int
  execution: Execution

  INPUTS = TWO_STACKS
  ATTENTION: ClassVar[AttentionKind] = 'encoder-decoder'

  def __call__(
    self,
    encoder_tokens: Array,
    encoder_segment_ids: Array,
    decoder_tokens: Array,
    decoder_segment_ids: Array,
    train: bool = False,
  ) -> Array:
    """Compute h~ of each token that the decoder reads, [b, t, d]."""
    del decoder_segment_ids  # padding comes after the tokens
    hidden, ends = self.encode(encoder_tokens, segment_ids=encoder_segment_ids, train=train)
    features = self.decoder(decoder_tokens, self.decoder.source(hidden, encoder_segment_ids), ends, train=train)
    if self.is_initializing():
      self.attend(features)
    return features

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v]."""
    del train
    return self.decoder.attend(features)

  def write(self, tokens: Array, segment_ids: Array, settings: Mapping[str, Any], train: bool = False) -> Generated:
    """Generate target texts for texts int[b, m], without gradient.

    `settings` are keywords of `generate`.
    """
    del train
    model, variables = self.unbind()
    params = jax.lax.stop_gradient(variables['params'])
    return generate(model, params, tokens, segment_ids=segment_ids, **settings)

  def states(self, tokens: Array, ends: State, train: bool = False) -> Array:
    """Compute `Decoder.states`: s_t of tokens int[b, t] without feeding."""
    return self.decoder.states(tokens, ends, train=train)

  def encode(
    self, tokens: Array, *, segment_ids: Array, positions: Array | None = None, train: bool = False
  ) -> tuple[Array, State]:
    """Compute the states [b, m, d] of texts, and the final state of each layer."""
    del positions
    out = self.trunk(tokens, segment_ids=segment_ids, train=train)
    return out['hidden'], out['ends']

  def init_cache(
    self,
    batch_size: int,
    length: int,
    *,
    encoder_hidden: tuple[Array, State],
    encoder_segment_ids: Array,
  ) -> dict[str, Array]:
    """Create a cache for `length` tokens.

    'states' are h of the layers and h~, 'cells' are c; 'source_*' and 'first_*' are read from texts.
    """
    hidden, (h, c) = encoder_hidden
    n, d = h.shape[1:]
    states = jnp.zeros((n + 1, batch_size, length, d), self.execution.dtype)
    source = self.decoder.source(hidden, encoder_segment_ids)
    text = {f'source_{name}': value for name, value in source._asdict().items()}
    first = jnp.concatenate([h, jnp.zeros_like(h[:, :1])], axis=1)
    cache = caches.without_keys(batch_size, length) | {'states': states, 'cells': jnp.zeros((n, *states.shape[1:]))}
    return cache | text | {'first_states': first, 'first_cells': c}

  def decode_step(
    self, tokens: Array, cache: dict[str, Array], *, segment_ids: Array, positions: Array
  ) -> tuple[Array, dict[str, Array]]:
    """Read one token of each of s texts per row, int[b, s].

    Return logits f32[b, s, v] and the new cache.
    """
    index, slots = cache['index'], jnp.arange(cache['segment_ids'].shape[1])
    before = cache['seen'] if 'seen' in cache else jnp.broadcast_to(slots < index, (*tokens.shape, len(slots)))
    last = jnp.where(before, slots, -1).max(axis=-1)  # [b, s], slot of the previous token; -1 for the first

    def take(name: str) -> Array:
      previous = jnp.take_along_axis(cache[name], jnp.maximum(last, 0)[None, ..., None], axis=2)  # [n, b, s, d]
      first = jnp.moveaxis(cache[f'first_{name}'], 1, 0)[:, :, None]  # [b, n, d] -> [n, b, 1, d]
      return jnp.moveaxis(jnp.where(last[..., None] < 0, first, previous), 0, 2)  # [b, s, n, d]

    stored, cells = take('states'), take('cells')
    source = Source(**{name: cache[f'source_{name}'] for name in Source._fields})
    memory = Memory(h=stored[..., :-1, :], c=cells, adjusted=stored[..., -1, :])
    memory = advance(self.decoder.weights(), memory, source, self.decoder.given(tokens))
    states = jnp.concatenate([memory.h, memory.adjusted[..., None, :]], axis=-2)
    new = {'states': jnp.moveaxis(states, 2, 0), 'cells': jnp.moveaxis(memory.c, 2, 0)}
    taken, _ = caches.advance(cache, segment_ids=segment_ids, positions=positions)
    written = {name: caches.put(cache[name], value, index, axis=2) for name, value in new.items()}
    return self.attend(memory.adjusted), taken | written

  @property
  def position_rows(self) -> dict[str, range]:
    """Return no bounds: a row may have any length."""
    return {}

  @property
  def token_dim(self) -> int:
    """Return d, the width of the input of `attend`."""
    return self.trunk.hidden_dim

  @property
  def head_style(self) -> HeadStyle:
    """Return the style of the encoder."""
    return self.trunk.head_style


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab,
  word_dim: Count = 300,
  biases: bool = True,
  feeding: bool = True,
  dropout: PartRate = 0.2,
  init_range: Std = 0.1,
  start: Start = 'bos',
  label_smoothing: PartRate = 0.0,
  decoding: Annotated[Mapping[str, Any], 'adapters.sequence:Decoding'] = {},
  logit_rows: Count = 8,
) -> Task:
  """Build translation by an encoder and an LSTM decoder of the same depth and width.

  Args:
    trunk: a recurrent encoder, see `trunk.Ends`.
    vocab: of the source.
    second_vocab: of the target, with an end token, which ends each target.
    word_dim: e, width of the vectors of target words.
    biases: use b1 and b2 of the attention; the paper has them, its released code has not.
    feeding: the decoder reads the context-adjusted state of the previous step.
    dropout: rate between layers of the decoder.
    init_range: see `Decoder`.
    start: the first token that the decoder reads.
    label_smoothing: share of the target spread evenly over the vocabulary.
    decoding: how an evaluation generates text.
    logit_rows: rows of each device whose logits are in memory at a time.

  Raises:
    ValueError: a trunk without final states, no end token, or invalid settings of `decoding`.
  """
  del vocab
  user = "objective 'translate'"
  require(trunk, user=user, attention=('bidirectional',), inputs=('tokens', 'segment_ids'), offers=(Ends,))
  if second_vocab.eos_id is None:
    raise ValueError(f'{user} needs a second vocabulary with an end token; second_vocab.roles can name one')
  size, execution = second_vocab.size, trunk.execution
  decoder = Decoder(
    size, word_dim, trunk.hidden_dim, trunk.num_layers, biases, feeding, dropout, init_range, execution.dtype
  )
  model = Model(trunk, decoder, size, execution)
  reader = answers.make_reader(model, second_vocab, user=user, start=start, mask=None, rows=logit_rows)
  settings, seed = sequence.decoding_settings(decoding, second_vocab, reader)
  s = sequence.SequenceSettings(reader, label_smoothing, settings, seed)
  return Task(
    model,
    partial(sequence.prepare, s),
    partial(sequence.loss, s),
    partial(sequence.predict, s),
    summary=perplexity_of,
    trains=texts.all_but_fixed(trunk),
    scores=('match',),
    words=('text', 'label', 'value'),
    in_words=partial(sequence.in_words, second_vocab),
  )
