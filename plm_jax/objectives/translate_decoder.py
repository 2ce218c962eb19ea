"""LSTM decoder of translation (McCann et al. 2017, §3), with attention as in Luong et al. 2015.

It reads the states H of the encoder, and writes the text in another language:

    s_t = LSTM([z_(t-1); h~_(t-1)], s_(t-1))       z the vector of the word before; s_t of the last layer
    a_t = softmax(H (W1 s_t + b1))                 over the words of the source
    h~_t = tanh(W2 [H^T a_t; s_t] + b2)            the context-adjusted state, which the next step reads (input feeding)
    p(w_t) = softmax(W h~_t + b)

Without feeding, as views of another objective need it (`objectives/translate_views.py`), s_t = LSTM(z_(t-1), s_(t-1)).
Each layer of the decoder starts from the final states of both directions of the same encoder layer, concatenated;
h~_0 = 0.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.core.types import Array
from plm_jax.layers.cudnn_lstm import Gates
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import Dense, Embed, Initializer, uniform
from plm_jax.layers.lstm import State, cell


class Source(NamedTuple):
  """Precomputed values of a source text, read at each step."""

  hidden: Array  # H [b, m, d]
  keys: Array  # H W1 [b, m, d], so that H (W1 s) takes one product per step
  shift: Array  # H b1 [b, m]
  real: Array  # bool[b, m], False on padding


class Attention(NamedTuple):
  """Parameters of the attention."""

  score: Array  # W1 [d, d]
  score_bias: Array  # b1 [d]
  adjust: Array  # W2 [2 d, d]
  adjust_bias: Array  # b2 [d]

  def source(self, hidden: Array, segment_ids: Array) -> Source:
    """Compute a `Source` from states [b, m, d] and int[b, m]."""
    return Source(hidden, hidden @ self.score, hidden @ self.score_bias, segment_ids > 0)

  def adjust_states(
    self, states: Array, source: Source, drop: Callable[[Array], Array] = lambda weights: weights
  ) -> Array:
    """Compute h~ of s_t, [b, (k,) d] each; `drop` changes attention weights."""
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
  """State that one step of the decoder passes to the next; with an axis k, of k texts per row."""

  h: Array  # [b, (k,) n, d], states of the layers
  c: Array  # f32[b, (k,) n, d], their cells
  adjusted: Array  # h~ [b, (k,) d]


class Weights(NamedTuple):
  """Parameters that each step reads."""

  feed: Array | None  # [d, 4, d], of h~ in the gates of the first layer; None without input feeding
  kernels: tuple[tuple[Array, Array], ...]  # [d, 4, d] and bias [4, d] of each layer above the first
  recurrent: tuple[Array, ...]  # [d, 4, d] of each layer
  attention: Attention  # W1, W2 and their biases


def attention(state: Array, source: Source) -> Array:
  """Compute weights, 0 on padding: [b, (k,) d] -> f32[b, (k,) m]."""
  scores = jnp.einsum('bmd,b...d->b...m', source.keys, state)
  shift, real = (jnp.expand_dims(each, tuple(range(1, state.ndim - 1))) for each in (source.shift, source.real))
  return jax.nn.softmax(jnp.where(real, (scores + shift).astype(jnp.float32), -1e9), axis=-1)


def advance(w: Weights, memory: Memory, source: Source, given: Array, masks: Array | None = None) -> Memory:
  """Run one step of the decoder after the previous one's memory.

  `given` are W z + b [b, (k,) 4, d], the word's part of the first layer's gates; `masks` [n - 1, b, d] are dropout
  between layers, None for none.
  """
  fed = given if w.feed is None else given + jnp.einsum('...d,dgf->...gf', memory.adjusted, w.feed)
  h, c = recur(w, (memory.h, memory.c), fed, masks)
  return Memory(h=h, c=c, adjusted=w.attention.adjust_states(h[..., -1, :], source))


def recur(w: Weights, before: State, gates: Array, masks: Array | None) -> State:
  """Run all layers on one word: h and c of this step.

  `before` are those of the previous step, [b, (k,) n, d], and `gates` are of the first layer.
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
  """The decoder network; see the head of this file."""

  vocab_size: int  # v, of the target
  word_dim: int  # e, width of the vectors z
  hidden_dim: int  # d
  num_layers: int  # n
  biases: bool  # use b1 and b2
  feeding: bool  # a step reads h~ of the previous step
  dropout: float  # rate between layers
  init_range: float  # parameters start from U(-init_range, init_range), the bias of the output from 0
  dtype: str  # of states and products

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

    `tokens` int[b, t] are read by the decoder; `ends` are h and c [b, n, d] of the encoder.
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
    """Compute s_t of every step [b, t, d] without feeding."""
    w = self.weights()

    def step(before: State, read: tuple[Array, Array]) -> tuple[State, Array]:
      after = recur(w, before, *read)
      return after, after[0][..., -1, :]

    return jnp.moveaxis(jax.lax.scan(step, ends, self._reads(tokens, train=train))[1], 0, 1)

  def _reads(self, tokens: Array, *, train: bool) -> tuple[Array, Array]:
    """Compute the inputs of each step: gates from words and dropout masks."""
    given = jnp.moveaxis(self.given(tokens), 1, 0)  # [t, b, 4, d]
    masks = jnp.ones((len(given), self.num_layers - 1, len(tokens), self.hidden_dim), self.dtype)
    return given, self.between(masks, train=train)  # masks [t, n - 1, b, d]

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
    """Compute W z + b of tokens: int[...] -> [..., 4, d]."""
    first = self.lstm[0]
    kernel = first.kernel[: self.word_dim, 0]
    return jnp.einsum('...e,egf->...gf', self.embed(tokens), kernel) + (first.bias + first.recurrent_bias)[0]

  def attend(self, features: Array) -> Array:
    """Compute vocabulary logits f32[..., v] of h~ [..., d]."""
    return self.output(features).astype(jnp.float32)
