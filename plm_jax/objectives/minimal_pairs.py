"""Minimal pairs without training: is the grammatical sentence more likely? (Warstadt et al. 2020, BLiMP).

A causal trunk computes log p of the whole sentence, after the token that begins texts, as lm-evaluation-harness does.
A masked language model computes the pseudo-log-likelihood sum_t log p(x_t | all others) (Salazar et al. 2020, eq. 1).
With masking='word_l2r' the later tokens of the same word are masked too (Kauf and Ivanova 2023, PLL-word-l2r).
An encoder-decoder computes it by its own blanks (BabyLM 2025, `enc_dec_mask`): the encoder reads the sentence with one
token masked. T5's decoder then reads the sentinel, BART's reads the sentence up to the token, as both were trained.
GLM writes the token into the blank, XLNet predicts it last of all orders, and ELMo computes sum_t log p(x_t | x_<t) +
log p(x_t | x_>t) (Peters et al. 2018, eq. 1). ELECTRA computes sum_t log p(x_t is original) of the whole sentence.

Data are those of `data/minimal_pairs.py`. The loss is the mean of -log p of the good sentences.
"""

import contextlib
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
from plm_jax.generate.reader import fills_blanks
from plm_jax.layers.linear import OutputBias
from plm_jax.layers.losses import cross_entropy, in_chunks
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.objectives import bidirectional_lm, corrupt, emd_mlm, gpt_bert, mlm, permutation_lm, rtd_model

PAPER = Paper(year=2020, title='Warstadt et al., BLiMP', architecture='any', objective_family='autoregressive')
READS = ('tokens', 'segment_ids', 'pair', 'counted', 'masked_at', 'hidden')
LOGIT_ROWS = 8  # rows whose logits are in memory at once, where every token has some

Kind = Literal['causal', 'masked', 'streams', 'sentinel', 'text', 'blank', 'permuted', 'detected']
# head by attention; a decoder has none
HEADS_OF = {'bidirectional': ('mlm',), 'permutation': ('lm', 'mlm')}  # of which a model has one


class Settings(NamedTuple):
  """Kind of likelihood, reader of a decoder, the mask, most tokens of a sequence, and inputs of the trunk."""

  kind: Kind
  reader: Any  # of `answers`, for trunks that write the token
  mask_id: int | None
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
    trunk: a decoder, a masked or permutation language model, an encoder-decoder, a GLM, an ELMo or an ELECTRA.
    heads: names of the parameters next to the trunk; None for any.
    template: special tokens around a text; None takes those of the vocabulary.
    masking: 'token' masks one token of a sentence; 'word_l2r' also the later tokens of its word.
    begin: a decoder reads the token that begins texts (else the one that ends them), as lm-evaluation-harness does;
      otherwise the first token of a sentence is not scored.
    start: first token of a decoder with an encoder, None is 'pad'; of a blank, None is 'bos'.

  Raises:
    ValueError: a trunk of another kind, without its head, or no mask.
  """
  user = "objective 'minimal_pairs'"
  one_of('objective.masking', masking, Literal['token', 'word_l2r'])
  streams = trunk.ATTENTION == 'bidirectional' and not lacking(trunk, Streams)
  blanks = ('prefix',) if fills_blanks(trunk) else ()
  attention = ('causal', 'bidirectional', 'encoder-decoder', 'permutation', *blanks)
  require(trunk, user=user, attention=attention, offers=() if streams else (Attends,))
  own = heads or ()
  detects = 'generator' in own or ('rtd' in own and 'mlm' not in own)  # 'mlm' is then a head of the generator
  possible = ('rtd',) if detects else ('softmax',) if streams else HEADS_OF.get(trunk.ATTENTION, (None,))
  needed = next((head for head in possible if head in own), possible[0])
  if heads is not None and needed not in (None, *heads) and not trunk.PREDICTS_NEXT:
    raise ValueError(
      f'{user}: the model has no language-model head ({needed}), only {", ".join(heads)}: name a folder or a run '
      'that was trained to predict tokens'
    )
  kind, model, sentences = _bind(trunk, vocab, own, template, begin=begin, needed=needed, user=user)
  if masking != 'token' and (kind == 'blank' or sentences.mask_id is None):
    why = 'which fills one blank' if kind == 'blank' else 'whose sentences are read without masks'
    name = type(trunk).__name__
    raise ValueError(f"{user}: objective.masking={masking!r} is not for this {name}, {why}: use masking='token'")
  if not begin and kind != 'causal':
    raise ValueError(f'{user}: objective.begin=False is for decoders, not for this {type(trunk).__name__}: remove it')
  sentences = sentences._replace(rest_of_word=masking == 'word_l2r')
  writes = kind in ('sentinel', 'text', 'blank')
  reader = answers.make_reader(trunk, vocab, user=user, start=start, mask=None, rows=1) if writes else None
  s = Settings(kind, reader, sentences.mask_id, longest_row(trunk), trunk.INPUTS)
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
  trunk: nn.Module, vocab: Vocab, heads: tuple[str, ...], template: Template | None, *, begin: bool,
  needed: str | None, user: str,
) -> tuple[Kind, nn.Module, Sentences]:  # fmt: skip
  """Return the kind of likelihood, the model, and its sequences."""
  if trunk.ATTENTION == 'causal':
    prefix = vocab.eos_id if vocab.bos_id is None else vocab.bos_id
    if begin and prefix is None:
      raise ValueError(f'{user}: the vocabulary has no token that begins or ends texts: set objective.begin=False')
    return 'causal', answers.Model(trunk), Sentences(before=(prefix,) if begin and prefix is not None else ())
  if needed == 'softmax':
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
  if needed == 'rtd':
    one = dict[str, Any](sharing='all', uniform=True, detects=True, gated=False, rewarded=False)
    return 'detected', rtd_model.make_model(trunk, vocab, None, **one), Sentences(*around)
  if trunk.ATTENTION == 'encoder-decoder':
    with contextlib.suppress(ValueError):
      return 'sentinel', answers.Model(trunk), Sentences(*around, vocab.id(SENTINEL))
  sentences = Sentences(*around, corrupt.find_mask(vocab, user=user))
  if trunk.ATTENTION in ('encoder-decoder', 'prefix'):
    return 'text' if trunk.ATTENTION == 'encoder-decoder' else 'blank', answers.Model(trunk), sentences
  if needed == 'lm':
    return 'permuted', permutation_lm.Model(trunk, OutputBias(trunk.vocab_size)), sentences
  if trunk.PREDICTS_NEXT:
    return 'masked', gpt_bert.Model(trunk), sentences
  decodes = 'position_embed' in heads  # DeBERTa's mask decoder
  model = (emd_mlm if decodes else mlm).make(trunk=trunk, vocab=vocab).model
  return 'masked', model if decodes or lacking(trunk, ComputesAt) else Model(trunk, model.mlm), sentences


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
  if s.kind in ('masked', 'detected'):
    return Example(cut | {'predict': place[:, None]}, targets)
  if s.kind == 'permuted':  # nothing sees the hidden tokens
    seen = jnp.broadcast_to(tokens[:, None] != s.mask_id, (*tokens.shape, tokens.shape[1]))
    return Example(cut | {'permutation_mask': seen, 'target_positions': place[:, None]}, targets)
  if s.kind == 'streams':
    # <S> a b </S>   ->   </S> b a <S>, padding stays at the end
    size, index = (segments > 0).sum(axis=1, keepdims=True), jnp.arange(tokens.shape[1])
    back = jnp.where(index < size, size - 1 - index, index)
    spelt = jnp.take_along_axis(cut['characters'], back[..., None], axis=1)
    following = [jnp.roll(ids, -1, axis=1) for ids in (tokens, jnp.take_along_axis(tokens, back, axis=1))]
    inner = (index < size - 2).astype(jnp.float32)  # the words, not the marks around them
    targets |= {'ids': jnp.concatenate(following, axis=1), 'segments': jnp.concatenate([inner, inner], axis=1)}
    return Example({'forward': cut['characters'], 'backward': spelt}, targets)
  if s.kind == 'blank':
    one, place = jnp.ones_like(tokens[:, :1]), jnp.full_like(place, tokens.shape[1])
    return Example(answers.read(s.reader, tokens, segments, one, one), targets | {'place': place})
  # sentinel: <start> <extra_id_0>, whose state predicts the token; text: <start> <s> a b, the sentence up to the token
  first = jnp.full_like(tokens[:, :1], s.reader.start_id)
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

  if s.kind == 'detected':
    nats = (jax.nn.softplus(out) * (targets['segments'] > 0)).sum(axis=1)[:, None]
  elif s.kind in ('causal', 'streams'):
    if s.kind == 'causal':
      features, ids = out[:, :-1], targets['ids'][:, 1:]
      real = (targets['segments'][:, 1:] > 0).astype(jnp.float32)
    else:
      features, ids, real = out[0], targets['ids'], targets['segments']
    nats = (in_chunks(nats_of, (features, ids), rows=LOGIT_ROWS) * real).sum(axis=1)[:, None]
  else:
    out = out[0] if s.kind == 'permuted' else out
    if s.kind not in ('masked', 'permuted'):
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
