"""Autoregressive blank infilling (Du et al. 2021, §2.1 and §2.2): read a text with blanks, write the blanks.

All blanks of a row have one level, sampled by the row's key: many short ones ('token'; GLM base and large), whole
sentences ('sentence') or one long one ('document'). Part A is the text with a mask token for each blank. Part B holds
the blanks, and only part B has a loss. With `short` some rows are first cut into pieces. The released code differs: its
pieces begin at ends of sentences, each with a [CLS].
"""

from collections.abc import Mapping
from functools import partial
from typing import Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters import texts
from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count, Rate, Weight
from plm_jax.core.sharding import each_row
from plm_jax.core.trunk import Attends, longest_row
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers import positions
from plm_jax.layers.means import batch_scale, metric, perplexity_of, scaled_sum
from plm_jax.noise import blanks
from plm_jax.noise.keys import row_keys
from plm_jax.noise.row import Row, Spans
from plm_jax.objectives import corrupt
from plm_jax.objectives.causal_lm import Model, score

PAPER = Paper(year=2021, title='Du et al., GLM', architecture='decoder', objective_family='autoregressive')
READS = ('tokens', 'segment_ids')

LEVELS = ('token', 'sentence', 'document')
INPUTS = ('tokens', 'segment_ids', 'positions', 'block_positions', 'prefix')
SHORTEST = 32  # tokens of the shortest piece of a row that is cut


class Ids(NamedTuple):
  """Token ids by their use."""

  masks: tuple[int, int, int]  # the token that replaces a blank, for each of `LEVELS`
  start: int  # begins a blank in B
  end: int  # the last target of a blank
  block: int  # replaces some tokens of B
  pad: int


class BlankInfillingSettings(NamedTuple):
  """Settings of blanks; those without a comment are explained in `make`."""

  ids: Ids
  special: np.ndarray  # bool[v], tokens that are in no blank
  ends_sentence: np.ndarray  # bool[v]
  levels: tuple[int, ...]  # indices of the levels in use
  bounds: np.ndarray  # f32[levels in use - 1], of `corrupt.share_bounds`
  every: Literal['step', 'epoch']  # how often new noise is sampled
  copies: int
  rate: float
  mean: float
  longest: int
  ratio: float
  suffix: float
  block: float
  short: float
  slots: int | None
  logit_rows: int
  max_length: int | None  # tokens of the longest text that the trunk has positions for; None for any


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  levels: Mapping[str, Weight] = {'token': 1.0},
  rate: blanks.Share = 0.15,
  mean: blanks.Mean = 3.0,
  longest: Count = 39,
  ratio: blanks.Share = 0.5,
  suffix: Rate = 0.5,
  block: Rate = 0.0,
  short: Rate = 0.0,
  slots: Count | None = None,
  mask: str | None = None,
  sentence_mask: str | None = None,
  document_mask: str | None = None,
  start: str | None = None,
  end: str | None = None,
  block_token: str | None = None,
  marks: tuple[str, ...] = ('.', '?', '!', ';', ':', '\n', 'Ċ', '。', '？', '！', '；', '：'),
  masking: corrupt.Masking = 'dynamic',
  copies: Count = 10,
  logit_rows: Count = 8,
) -> Task:
  """Build blank infilling for a prefix trunk.

  A document without special tokens whose whole text is one blank has one block position more than it has tokens.

  Args:
    vocab: with a mask token and tokens that begin and end a blank.
    levels: relative frequency of rows with 'token', 'sentence' or 'document' blanks.
    rate: share of tokens in blanks, token and sentence level.
    mean: of the Poisson distribution of lengths, token level.
    longest: tokens of the longest blank, token level.
    ratio: the shortest share of a document, document level.
    suffix: how often the blank ends with the text, document level.
    block: share of input tokens of B replaced by the block token, token level (GLM-10B: .1).
    short: share of rows that are cut into pieces (GLM-10B: .02).
    slots: the most blanks of a row; int(rate * length) by default, which token level never exceeds. A row of l tokens
      becomes l + 2 * slots long. Excess blanks stay text and are counted. Values above l count as l.
    mask: token that replaces a blank; the vocabulary's own by default.
    sentence_mask: the same at sentence level, `mask` by default.
    document_mask: the same at document level, `mask` by default.
    start: token that begins a blank in B; the vocabulary's bos by default.
    end: the last target of a blank; the vocabulary's eos by default.
    block_token: the block token; `mask` by default.
    marks: a token that contains one of these ends a sentence, if the rows have no `sentence_ids` (`data.sentences`);
      'Ċ' is the line end of byte-level vocabularies.
    masking: 'dynamic' samples new blanks at every step, 'static' repeats `copies` corruptions of each row.
    copies: corruptions of a row when static.
    logit_rows: rows of each device whose logits are in memory at a time.
  """
  require(trunk, user="objective 'blank_infilling'", attention=('prefix',), inputs=INPUTS, offers=(Attends,))
  errors.one_of('objective.masking', masking, corrupt.Masking)
  corrupt.check_shares('levels', levels, LEVELS)
  for name, share in (('block', block), ('short', short), ('suffix', suffix)):
    if not 0.0 <= share <= 1.0:
      raise ValueError(f'objective.{name}={share} must be in [0, 1]')
  ids = find_ids(vocab, (mask, sentence_mask, document_mask), start=start, end=end, block_token=block_token)
  used = tuple(index for index, level in enumerate(LEVELS) if levels.get(level, 0) > 0)
  bounds = corrupt.share_bounds([levels[LEVELS[index]] for index in used])
  ends = sentence_ends(vocab, marks) if levels.get('sentence') else np.zeros(vocab.size, bool)
  s = BlankInfillingSettings(
    ids=ids, special=corrupt.special_table(vocab), ends_sentence=ends, levels=used, bounds=bounds,
    every=corrupt.EVERY[masking], copies=copies, rate=rate, mean=mean, longest=longest, ratio=ratio, suffix=suffix,
    block=block, short=short, slots=slots, logit_rows=logit_rows, max_length=longest_row(trunk),
  )  # fmt: skip
  check = partial(corrupt.check_sentences, ends if levels.get('sentence') else None, s.special)
  functions = partial(prepare, s), partial(loss, s), partial(predict, s)
  return Task(Model(trunk), *functions, summary=perplexity_of, check=check)


def find_ids(
  vocab: Vocab,
  masks: tuple[str | None, str | None, str | None],
  *,
  start: str | None,
  end: str | None,
  block_token: str | None,
) -> Ids:
  """Find the tokens that `make` names, by default those of the vocabulary.

  `masks` are by level. Raises ValueError: neither names a token.
  """

  def find(name: str, token: str | None, fallback: int | None) -> int:
    token_id = fallback if token is None else vocab.id(token)
    if token_id is None:
      raise ValueError(f'objective blank_infilling needs a {name} token: name one of the vocabulary, objective.{name}=')
    return token_id

  token = find('mask', masks[0], vocab.mask_id)
  texts.check_mask(vocab, token, user='objective blank_infilling', key='objective.mask')
  sentence, document = find('sentence_mask', masks[1], token), find('document_mask', masks[2], token)
  first, last = find('start', start, vocab.bos_id), find('end', end, vocab.eos_id)
  return Ids((token, sentence, document), first, last, find('block_token', block_token, token), vocab.pad_id)


def prepare(s: BlankInfillingSettings, root: Array, batch: Batch) -> Example:
  """Build rows of parts A and B, with the blanks as targets.

  Raises ValueError: the texts are longer than the trunk has positions for.
  """
  if s.max_length is not None:
    positions.check_length(batch['tokens'].shape[1], max_length=s.max_length, model='the trunk')
  keys = row_keys(root, batch, every=s.every, copies=s.copies)
  rows = each_row(partial(draw, s), keys, batch['tokens'], batch['segment_ids'], batch.get('sentence_ids'))
  fields, row_weight = rows._asdict(), batch['row_weight']
  weights = rows.weights * row_weight[:, None]
  targets = {'ids': rows.targets, 'weights': weights, 'scale': batch_scale(weights)}
  targets |= {'blanks': rows.blanks * row_weight, 'excess': rows.excess * row_weight}
  return Example({name: fields[name] for name in INPUTS}, targets)


def draw(
  s: BlankInfillingSettings, key: Array, ids: Array, segments: Array, sentences: Array | None = None
) -> blanks.Arranged:
  """Sample blanks of one row, int[l] twice, and move them to B."""
  cut_key, piece_key, level_key, where_key, arrange_key = jax.random.split(key, 5)
  if s.short:
    cut = jax.random.uniform(cut_key) < s.short
    segments = jnp.where(cut, pieces(piece_key, segments), segments)
  row = corrupt.make_row(ids, segments, special=s.special, ends_sentence=s.ends_sentence, sentences=sentences)
  sampled = corrupt.pick_share(jax.random.uniform(level_key), s.bounds)  # index into `levels`
  blank_ids = jnp.stack([choose(s, level, where_key, row) for level in s.levels])[sampled]
  level = jnp.asarray(s.levels)[sampled]
  return blanks.arrange(
    arrange_key,
    row,
    Spans(blank_ids, jnp.zeros_like(blank_ids)),
    slots=max(1, int(s.rate * ids.shape[0])) if s.slots is None else min(s.slots, ids.shape[0]),
    mask_id=jnp.asarray(s.ids.masks)[level],
    start_id=s.ids.start,
    end_id=s.ids.end,
    pad_id=s.ids.pad,
    block_id=s.ids.block,
    block_rate=jnp.where(level == LEVELS.index('token'), s.block, 0.0),
  )


def choose(s: BlankInfillingSettings, level: int, key: Array, row: Row) -> Array:
  """Choose blanks of one level: indices from 1, int32[l], 0 outside."""
  if LEVELS[level] == 'token':
    return blanks.token_blanks(key, row, rate=s.rate, mean=s.mean, longest=s.longest).number
  if LEVELS[level] == 'sentence':
    return blanks.sentence_blanks(key, row, rate=s.rate).number
  return blanks.document_blanks(key, row, ratio=s.ratio, suffix=s.suffix).number


def pieces(key: Array, segment_ids: Array) -> Array:
  """Cut long segments, int[l], into pieces of equal length.

  The length is sampled from U{32, ..., l - 2}; the last piece of a segment may be shorter.
  """
  # segments 1 1 1 1 1 2 2 0, pieces of 3   inside 0 1 2 3 4 0 1 0   starts 1 0 0 1 0 1 0 0   -> 1 1 1 2 2 3 3 0
  length = segment_ids.shape[0]
  low = min(SHORTEST, max(length // 2, 1))
  target = jax.random.randint(key, (), low, max(length - 1, low + 1))
  previous = jnp.pad(segment_ids, (1, 0))[:-1]
  index = jnp.arange(length)
  inside = index - jax.lax.cummax(jnp.where(segment_ids != previous, index, 0))
  starts = (segment_ids > 0) & (inside % target == 0)
  return jnp.where(segment_ids > 0, jnp.cumsum(starts), 0).astype(segment_ids.dtype)


def sentence_ends(vocab: Vocab, marks: tuple[str, ...]) -> np.ndarray:
  """Mark the tokens that contain one of the marks, bool[v]."""
  specials = set(vocab.special_ids)
  return np.array([i not in specials and any(mark in vocab.token(i) for mark in marks) for i in range(vocab.size)])


def loss(s: BlankInfillingSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the tokens of part B."""
  targets, weights = example.targets, example.targets['weights']
  nats, correct = score(forward, forward(**example.inputs), targets['ids'], rows=s.logit_rows)
  metrics = {
    'loss': metric(nats, weights),
    'accuracy': metric(correct, weights),
    'blanks_without_slot': (targets['excess'].sum(), targets['blanks'].sum()),
  }
  return Loss(scaled_sum(nats, weights, targets['scale']), metrics)


def predict(s: BlankInfillingSettings, forward: Forward, example: Example) -> dict[str, Array]:
  """Compute nats of each target."""
  targets = example.targets
  nats, _ = score(forward, forward(**example.inputs), targets['ids'], rows=s.logit_rows)
  return {'nats': nats * targets['weights'], 'weights': targets['weights']}
