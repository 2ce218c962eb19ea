"""Translation as pre-training of an encoder: CoVe (McCann et al. 2017, §3).

The decoder of `translate_decoder.py` reads the states of the encoder and writes the text in another language. Rows are
those of `data/text_to_text` with `second='targets'`: the source uses the run's vocabulary, and the target its
`second_vocab`. The loss, and the text that an evaluation writes, are those of the adapter `sequence`.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import answers, sequence, texts
from plm_jax.adapters.answers import Start
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, PartRate, Std
from plm_jax.core.trunk import AttentionKind, Ends, HeadStyle
from plm_jax.core.types import Array, Execution, Supervised, Task, Vocab
from plm_jax.generate.constraints import Generated
from plm_jax.generate.decode import generate
from plm_jax.layers import cache as caches
from plm_jax.layers.lstm import State
from plm_jax.layers.means import perplexity_of
from plm_jax.objectives.translate_decoder import Decoder, Memory, Source, advance

PAPER = Supervised(year=2017, title='McCann et al., CoVe', architecture='lstm', adapters=('scalar_mix',))
# inputs of an encoder-decoder
TWO_STACKS = ('encoder_tokens', 'encoder_segment_ids', 'decoder_tokens', 'decoder_segment_ids')
READS = ('tokens', 'segment_ids', 'target_tokens', 'target_segment_ids')


class Model(nn.Module):
  """Encoder and decoder, with the interface of an encoder-decoder for `generate` and `sequence`.

  The memory of a step is stored in the slot of the token that it read. The next token of a text reads it from the last
  slot of its text, so a search may follow several texts of a row.
  """

  trunk: nn.Module  # the encoder
  decoder: Decoder
  vocab_size: int  # of the target
  execution: Execution  # dtype and sharding of the computation

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
    # padding comes after the tokens, so the decoder needs no segments
    hidden, ends = self.encode(encoder_tokens, segment_ids=encoder_segment_ids, train=train)
    features = self.decoder(decoder_tokens, self.decoder.source(hidden, encoder_segment_ids), ends, train=train)
    if self.is_initializing():
      self.attend(features)
    return features

  def attend(self, features: Array, train: bool = False) -> Array:
    """Compute vocabulary logits f32[..., v]."""
    return self.decoder.attend(features)

  def write(self, tokens: Array, segment_ids: Array, settings: Mapping[str, Any], train: bool = False) -> Generated:
    """Generate texts for int[b, m], without gradient; `settings` are keywords of `generate`."""
    model, variables = self.unbind()
    params = jax.lax.stop_gradient(variables['params'])
    return generate(model, params, tokens, segment_ids=segment_ids, **settings)

  def states(self, tokens: Array, ends: State, train: bool = False) -> Array:
    """Compute `Decoder.states`: s_t of tokens int[b, t] without feeding."""
    return self.decoder.states(tokens, ends, train=train)

  def encode(
    self, tokens: Array, *, segment_ids: Array, positions: Array | None = None, train: bool = False
  ) -> tuple[Array, State]:
    """Compute the states [b, m, d] and final states of texts."""
    out = self.trunk(tokens, segment_ids=segment_ids, train=train)
    return out['hidden'], out['ends']

  def init_cache(
    self, batch_size: int, length: int, *, encoder_hidden: tuple[Array, State], encoder_segment_ids: Array
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
    """Read a token per text, int[b, s]: logits f32[b, s, v], cache."""
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
  """Build translation by an encoder and an equally large LSTM decoder.

  The decoder has as many layers as the encoder, and their width.

  Args:
    trunk: a recurrent encoder, see `trunk.Ends`.
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
  s = sequence.SequenceSettings(reader=reader, label_smoothing=label_smoothing, decoding=settings, seed=seed)
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
