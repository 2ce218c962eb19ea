"""Autoregressive blank infilling (Du et al. 2021, §2.1 and §2.2): read a text with blanks, write the blanks.

Blanks are of one level in a row, drawn by the row's key: many short ones ('token'; GLM base and large), whole
sentences ('sentence') or one long one ('document'). The loss is on part B alone. With `short` some rows are cut first;
the released code starts its pieces at ends of sentences and with a [CLS] each.
"""

from collections.abc import Mapping
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.layers.losses import perplexity
from plm_jax.noise import blanks
from plm_jax.noise.keys import row_keys
from plm_jax.noise.row import Row, Spans, sentence_ids
from plm_jax.objectives.causal_lm import Model, score
from plm_jax.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab, require

PAPER = Paper(year=2021, title='Du et al., GLM', architecture='decoder', objective_family='autoregressive')

LEVELS = ('token', 'sentence', 'document')
INPUTS = ('tokens', 'segment_ids', 'positions', 'block_positions', 'prefix')
SHORTEST = 32  # piece of a row that is cut


def pieces(key: Array, segment_ids: Array) -> Array:
  """Segments int[l] with those longer than U{32, ..., l - 2} tokens cut into pieces of that many (the last shorter)."""
  length = segment_ids.shape[0]
  low = min(SHORTEST, max(length // 2, 1))
  target = jax.random.randint(key, (), low, max(length - 1, low + 1))
  previous = jnp.pad(segment_ids, (1, 0))[:-1]
  index = jnp.arange(length)
  inside = index - jax.lax.cummax(jnp.where(segment_ids != previous, index, 0))
  starts = (segment_ids > 0) & (inside % target == 0)
  return jnp.where(segment_ids > 0, jnp.cumsum(starts), 0).astype(segment_ids.dtype)


def sentence_ends(vocab: Vocab, marks: tuple[str, ...]) -> np.ndarray:
  """bool[v]: the token has one of the marks in it."""
  specials = set(vocab.special_ids)
  return np.array([i not in specials and any(mark in vocab.token(i) for mark in marks) for i in range(vocab.size)])


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  levels: Mapping[str, float] = {'token': 1.0},
  rate: float = 0.15,
  mean: float = 3.0,
  longest: int = 39,
  ratio: float = 0.5,
  suffix: float = 0.5,
  block: float = 0.0,
  short: float = 0.0,
  slots: int | None = None,
  mask: str | None = None,
  sentence_mask: str | None = None,
  document_mask: str | None = None,
  start: str | None = None,
  end: str | None = None,
  block_token: str | None = None,
  marks: tuple[str, ...] = ('.', '?', '!', ';', ':', '\n', 'Ċ', '。', '？', '！', '；', '：'),
  masking: Literal['dynamic', 'static'] = 'dynamic',
  copies: int = 10,
  logit_rows: int = 8,
) -> Task:
  """Blank infilling of a trunk that reads a prefix in both directions.

  A document without special tokens whose whole text is one blank has one block position more than it has tokens.

  Args:
    trunk: a GLM.
    vocab: with a mask token and tokens that begin and end a blank.
    levels: how often the blanks of a row are 'token', 'sentence' or 'document'; in any proportion.
    rate: share of tokens in blanks, token and sentence level.
    mean: of the Poisson distribution of lengths, token level.
    longest: blank, token level.
    ratio: the shortest share of a document, document level.
    suffix: how often the blank ends with the text, document level.
    block: share of input tokens of B that are replaced by the block token, token level (GLM-10B: .1).
    short: share of rows that are cut into pieces (GLM-10B: .02).
    slots: blanks that a row has room for; int(rate * length) by default, which token level never exceeds. A row of l
      tokens is l + 2 * slots long, and blanks beyond are left as text and counted.
    mask: token that stands for a blank; the vocabulary's own by default.
    sentence_mask: the same at sentence level, `mask` by default.
    document_mask: the same at document level, `mask` by default.
    start: token that begins a blank in B; the vocabulary's bos by default.
    end: the last target of a blank; the vocabulary's eos by default.
    block_token: the block token; `mask` by default.
    marks: a token with one of these in it ends a sentence; 'Ċ' is the line end of byte-level vocabularies.
    masking: 'dynamic' draws anew at every step, 'static' repeats `copies` corruptions of each row.
    copies: corruptions of a row when static.
    logit_rows: batch rows whose logits are in memory at a time.
  """
  require(trunk, user="objective 'blank_infilling'", attention=('prefix',), inputs=INPUTS)
  if masking not in ('dynamic', 'static'):
    raise ValueError(f'objective.masking={masking!r}; choices are dynamic, static')
  if unknown := set(levels) - set(LEVELS):
    raise ValueError(f'objective.levels: no level {sorted(unknown)[0]!r}; choices are {", ".join(LEVELS)}')
  if min(levels.values(), default=0) < 0 or sum(levels.values()) <= 0:
    raise ValueError(f'objective.levels={dict(levels)}: shares are not negative, and one is positive')
  for name, share in (('block', block), ('short', short), ('suffix', suffix)):
    if not 0.0 <= share <= 1.0:
      raise ValueError(f'objective.{name}={share} is not in [0, 1]')

  def find(name: str, token: str | None, fallback: int | None) -> int:
    found = fallback if token is None else vocab.id(token)
    if found is None:
      raise ValueError(f'objective blank_infilling needs a {name} token: name one of the vocabulary, objective.{name}=')
    return found

  mask_id = find('mask', mask, vocab.mask_id)
  masks = (mask_id, find('sentence_mask', sentence_mask, mask_id), find('document_mask', document_mask, mask_id))
  start_id, end_id = find('start', start, vocab.bos_id), find('end', end, vocab.eos_id)
  block_id = find('block_token', block_token, mask_id)
  every: Literal['step', 'epoch'] = 'step' if masking == 'dynamic' else 'epoch'
  is_special = np.zeros(vocab.size, bool)
  is_special[list(vocab.special_ids)] = True
  used = [level for level in range(len(LEVELS)) if levels.get(LEVELS[level], 0) > 0]
  shares = np.array([levels[LEVELS[level]] for level in used], np.float64)
  edges = np.cumsum(shares / shares.sum())[:-1]
  ends = sentence_ends(vocab, marks) if LEVELS.index('sentence') in used else np.zeros(vocab.size, bool)

  def choose(level: int, key: Array, row: Row) -> Array:
    if LEVELS[level] == 'token':
      return blanks.token_blanks(key, row, rate=rate, mean=mean, longest=longest).number
    if LEVELS[level] == 'sentence':
      return blanks.sentence_blanks(key, row, rate=rate).number
    return blanks.document_blanks(key, row, ratio=ratio, suffix=suffix).number

  def corrupt(key: Array, ids: Array, segments: Array) -> blanks.Arranged:
    cut_key, piece_key, level_key, where_key, arrange_key = jax.random.split(key, 5)
    if short:
      cut = jax.random.uniform(cut_key) < short
      segments = jnp.where(cut, pieces(piece_key, segments), segments)
    eligible = ~jnp.asarray(is_special)[ids] & (segments > 0)
    row = Row(ids, eligible, segments, sentence_ids=sentence_ids(ids, jnp.asarray(ends)))
    drawn = (jax.random.uniform(level_key) >= jnp.asarray(edges, jnp.float32)).sum()  # index into `used`
    number = jnp.stack([choose(level, where_key, row) for level in used])[drawn]
    level = jnp.asarray(used)[drawn]
    return blanks.arrange(
      arrange_key,
      row,
      Spans(number, jnp.zeros_like(number)),
      slots=max(1, int(rate * ids.shape[0])) if slots is None else slots,
      mask_id=jnp.asarray(masks)[level],
      start_id=start_id,
      end_id=end_id,
      pad_id=vocab.pad_id,
      block_id=block_id,
      block_rate=jnp.where(level == LEVELS.index('token'), block, 0.0),
    )

  def prepare(root: Array, batch: Batch) -> Example:
    length, most = batch['tokens'].shape[1], trunk.config.max_length
    if length > most:
      raise ValueError(f'{type(trunk).__name__} has positions for texts of {most} tokens, and data.length is {length}')
    rows = jax.vmap(corrupt)(row_keys(root, batch, every=every, copies=copies), batch['tokens'], batch['segment_ids'])
    weights = rows.weights * batch['row_weight'][:, None]
    scale = jnp.broadcast_to(1 / jnp.maximum(weights.sum(), 1.0), weights.shape[:1])
    fields = rows._asdict()
    return Example(
      {name: fields[name] for name in INPUTS},
      {
        'ids': rows.targets,
        'weights': weights,
        'scale': scale,
        'blanks': rows.blanks * batch['row_weight'],
        'excess': rows.excess * batch['row_weight'],
      },
    )

  def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
    del carry, rng
    targets = example.targets
    nats, correct = score(forward, forward(**example.inputs), targets['ids'], rows=logit_rows)
    weights = targets['weights']
    total = weights.sum()
    return Loss(
      value=(nats * weights * targets['scale'][:, None]).sum(),
      metrics={
        'loss': ((nats * weights).sum(), total),
        'accuracy': ((correct * weights).sum(), total),
        'blanks_without_slot': (targets['excess'].sum(), targets['blanks'].sum()),
      },
    )

  def predict(forward: Forward, example: Example) -> dict[str, Array]:
    targets = example.targets
    nats, _ = score(forward, forward(**example.inputs), targets['ids'], rows=logit_rows)
    return {'nats': nats * targets['weights'], 'weights': targets['weights']}

  def summary(means: dict[str, float]) -> dict[str, float]:
    return {'perplexity': perplexity(means['loss'])}

  return Task(Model(trunk), prepare, loss, predict, summary=summary)
