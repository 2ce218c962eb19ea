"""Minimal pairs without training: is the grammatical sentence more likely? (Warstadt et al. 2020, BLiMP).

A causal trunk computes log p of the whole sentence, after the token that begins texts, as lm-evaluation-harness does.
A masked language model computes the pseudo-log-likelihood sum_t log p(x_t | all others) (Salazar et al. 2020, eq. 1).
With masking='word_l2r' the later tokens of the same word are masked too (Kauf and Ivanova 2023, PLL-word-l2r).
An encoder-decoder computes it by its own blanks (BabyLM 2025, `enc_dec_mask`): the encoder reads the sentence with one
token masked. T5's decoder then reads the sentinel, BART's reads the sentence up to the token, as both were trained.
ELMo computes sum_t log p(x_t | x_<t) + log p(x_t | x_>t) (Peters et al. 2018, eq. 1).

Data are those of `data/minimal_pairs.py`. The loss is the mean of -log p of the good sentences.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters import answers
from plm_jax.adapters.answers import Start
from plm_jax.adapters.cloze import SENTINEL
from plm_jax.core.errors import lacking, one_of, require
from plm_jax.core.trunk import Attends, ComputesAt, Streams, longest_row
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Sentences, Task, Template, Vocab
from plm_jax.layers.losses import cross_entropy, in_chunks
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.objectives import bidirectional_lm, corrupt, emd_mlm, mlm

PAPER = Paper(year=2020, title='Warstadt et al., BLiMP', architecture='any', objective_family='autoregressive')
READS = ('tokens', 'segment_ids', 'pair', 'counted', 'masked_at', 'hidden')
LOGIT_ROWS = 8  # rows whose logits are in memory at once, where every token has some

Kind = Literal['causal', 'masked', 'streams', 'sentinel', 'text']


class Settings(NamedTuple):
  """Kind of likelihood, first token of a decoder, most tokens of a sequence, and inputs of the trunk."""

  kind: Kind
  start_id: int
  longest: int | None
  inputs: tuple[str, ...]


class Model(mlm.Model):
  """The model of `mlm` on a trunk that computes its last layer at predicted positions only."""

  def __call__(self, predict: Array, train: bool = False, **inputs: Array) -> Array:
    """Compute vocabulary logits f32[b, t, v] at positions `predict` int[b, t]."""
    if train or self.is_initializing():
      return super().__call__(predict, train=train, **inputs)
    return self.mlm(self.trunk.states_at(predict, **inputs), self.trunk.attend)


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  heads: tuple[str, ...] | None = None,
  template: Template | None = None,
  masking: Literal['token', 'word_l2r'] = 'token',
  begin: bool = True,
  start: Start | None = None,
) -> Task:
  """Compare the likelihoods of the sentences of pairs.

  Args:
    trunk: a decoder, a masked language model, an encoder-decoder or an ELMo.
    heads: names of the parameters next to the trunk; None for any.
    template: special tokens around a text; None takes those of the vocabulary.
    masking: 'token' masks one token of a sentence; 'word_l2r' also the later tokens of its word.
    begin: a decoder reads the token that begins texts (else the one that ends them), as lm-evaluation-harness does;
      otherwise the first token of a sentence is not scored.
    start: first token of a decoder with an encoder; None is 'pad'.

  Raises:
    ValueError: a trunk of another kind, without its head, or no mask.
  """
  user = "objective 'minimal_pairs'"
  one_of('objective.masking', masking, Literal['token', 'word_l2r'])
  streams = trunk.ATTENTION == 'bidirectional' and not lacking(trunk, Streams)
  attention = ('causal', 'bidirectional', 'encoder-decoder')
  require(trunk, user=user, attention=attention, offers=() if streams else (Attends,))
  needed = 'softmax' if streams else 'mlm' if trunk.ATTENTION == 'bidirectional' else None
  if heads is not None and needed not in (None, *heads):
    raise ValueError(
      f'{user}: the model has no language-model head ({needed}), only {", ".join(heads)}: name a folder or a run '
      'that was trained to predict tokens'
    )
  kind, model, sentences = _bind(trunk, vocab, heads or (), template, begin=begin, streams=streams, user=user)
  sentences = sentences._replace(rest_of_word=masking == 'word_l2r' and sentences.mask_id is not None)
  roles = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  if (start_id := roles[start or 'pad']) is None:
    raise ValueError(f'{user}: objective.start={start!r} is not in this vocabulary: leave it out')
  s = Settings(kind, start_id, longest_row(trunk), trunk.INPUTS)
  return Task(
    model,
    partial(prepare, s),
    partial(loss, s),
    partial(predict, s),
    scores=('minimal_pairs',),
    couples_rows=True,
    sentences=sentences._replace(longest=s.longest),
    row_length=lambda length: min(length, s.longest or length),  # the source refuses longer sentences
    in_words=in_words,
    words=('preferred',),
  )


def _bind(
  trunk: nn.Module, vocab: Vocab, heads: tuple[str, ...], template: Template | None, *, begin: bool, streams: bool,
  user: str,
) -> tuple[Kind, nn.Module, Sentences]:  # fmt: skip
  """Return the kind of likelihood, the model, and its sequences."""
  if trunk.ATTENTION == 'causal':
    prefix = vocab.eos_id if vocab.bos_id is None else vocab.bos_id
    if begin and prefix is None:
      raise ValueError(f'{user}: the vocabulary has no token that begins or ends texts: set objective.begin=False')
    return 'causal', answers.Model(trunk), Sentences(before=(prefix,) if begin and prefix is not None else ())
  if streams:
    if vocab.bos_id is None or vocab.eos_id is None:
      raise ValueError(f'{user}: the vocabulary has no tokens that begin and end texts: set bos and eos in vocab.roles')
    model = bidirectional_lm.make(trunk=trunk, vocab=vocab).model
    return 'streams', model, Sentences((vocab.bos_id,), (vocab.eos_id,))
  # special tokens around a text
  if template is not None:
    at = next(index for index, (part, _) in enumerate(template.single) if part == 'A')
    ids = [part for part, _ in template.single if isinstance(part, int)]
    around = tuple(ids[:at]), tuple(ids[at:])
  elif vocab.cls_id is not None and vocab.sep_id is not None:
    around = (vocab.cls_id,), (vocab.sep_id,)
  else:
    around = (), () if vocab.eos_id is None else (vocab.eos_id,)
  if trunk.ATTENTION == 'bidirectional':
    mask_id = corrupt.find_mask(vocab, user=user)
    decodes = 'position_embed' in heads  # DeBERTa's mask decoder
    model = (emd_mlm if decodes else mlm).make(trunk=trunk, vocab=vocab).model
    if not decodes and not lacking(trunk, ComputesAt):
      model = Model(trunk, model.mlm)
    return 'masked', model, Sentences(*around, mask_id)
  try:
    return 'sentinel', answers.Model(trunk), Sentences(*around, vocab.id(SENTINEL))
  except ValueError:
    return 'text', answers.Model(trunk), Sentences(*around, corrupt.find_mask(vocab, user=user))


def prepare(s: Settings, root: Array, batch: Batch) -> Example:
  """Prepare the sequences of pairs."""
  read = ('tokens', 'segment_ids', *(('characters',) if 'characters' in s.inputs else ()))
  cut = {name: batch[name][:, : s.longest] for name in read}
  tokens, segments, place = cut['tokens'], cut['segment_ids'], batch['masked_at']
  weights = batch['row_weight']
  targets = {name: batch[name] for name in ('pair', 'counted', 'hidden')}
  targets |= {'weights': weights, 'scale': batch_scale(weights), 'place': place, 'ids': tokens, 'segments': segments}
  if s.kind == 'causal':
    return Example({'tokens': tokens, 'segment_ids': segments}, targets)
  if s.kind == 'masked':
    return Example(cut | {'predict': place[:, None]}, targets)
  if s.kind == 'streams':
    # <S> a b </S>   ->   </S> b a <S>, padding stays at the end
    size, index = (segments > 0).sum(axis=1, keepdims=True), jnp.arange(tokens.shape[1])
    back = jnp.where(index < size, size - 1 - index, index)
    spelt = jnp.take_along_axis(cut['characters'], back[..., None], axis=1)
    following = [jnp.roll(ids, -1, axis=1) for ids in (tokens, jnp.take_along_axis(tokens, back, axis=1))]
    inner = (index < size - 2).astype(jnp.float32)  # the words, not the marks around them
    targets |= {'ids': jnp.concatenate(following, axis=1), 'segments': jnp.concatenate([inner, inner], axis=1)}
    return Example({'forward': cut['characters'], 'backward': spelt}, targets)
  # sentinel: <start> <extra_id_0>, whose state predicts the token; text: <start> <s> a b, the sentence up to the token
  first = jnp.full_like(tokens[:, :1], s.start_id)
  before = jnp.broadcast_to(jnp.take_along_axis(tokens, place[:, None], axis=1), first.shape)
  if s.kind == 'text':
    before = tokens[:, :-1]
  else:
    targets['place'] = jnp.ones_like(place)
  decoder = jnp.concatenate([first, before], axis=1)
  seen = segments if s.kind == 'text' else jnp.ones_like(decoder)
  encoder = {'encoder_tokens': tokens, 'encoder_segment_ids': segments}
  return Example(encoder | {'decoder_tokens': decoder, 'decoder_segment_ids': seen}, targets)


def log_probability(s: Settings, forward: Forward, example: Example) -> Array:
  """Compute log-likelihoods of good and bad sentences, f32[b, 2]."""
  targets = example.targets
  out: Any = forward(**example.inputs)

  def nats_of(part: tuple[Array, Array]) -> Array:
    return cross_entropy(forward(method='attend', features=part[0]), part[1])

  if s.kind in ('causal', 'streams'):
    if s.kind == 'causal':
      features, ids = out[:, :-1], targets['ids'][:, 1:]
      real = (targets['segments'][:, 1:] > 0).astype(jnp.float32)
    else:
      features, ids, real = out[0], targets['ids'], targets['segments']
    nats = (in_chunks(nats_of, (features, ids), rows=LOGIT_ROWS) * real).sum(axis=1)[:, None]
  else:
    if s.kind != 'masked':
      states = jnp.take_along_axis(out, targets['place'][:, None, None], axis=1)
      out = forward(method='attend', features=states)
    nats = jax.vmap(cross_entropy, in_axes=(None, 1), out_axes=1)(out[:, 0], targets['hidden'])
  return -jax.ops.segment_sum(nats * targets['counted'], targets['pair'], num_segments=len(targets['pair']))


def loss(s: Settings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the mean of -log p of the good sentences."""
  nats, weights = -log_probability(s, forward, example)[:, 0], example.targets['weights']
  return Loss(scaled_sum(nats, weights, example.targets['scale']), {'loss': metric(nats, weights)}, carry)


def predict(s: Settings, forward: Forward, example: Example) -> dict[str, Array]:
  """Compute the log-likelihoods of both sentences of each pair."""
  return {'log_probability': log_probability(s, forward, example)}


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """Return which sentence is more likely: 'good', 'bad' or 'tie'."""
  good, bad = map(float, prediction['log_probability'])
  return {'preferred': 'good' if good > bad else 'bad' if bad > good else 'tie'}
