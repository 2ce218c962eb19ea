"""Blanks filled by an encoder-decoder.

T5 generates the spans after their sentinels (Raffel et al. 2020, §3.1.4). BART generates the whole text, as in its
training (Lewis et al. 2020, §2.2, text infilling).
"""

import difflib
import functools
import itertools
import math
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Array, PyTree, Vocab
from plm_jax.generate import constraints, conventions, decode
from plm_jax.inference import batches
from plm_jax.inference.opened import Opened
from plm_jax.layers.losses import chunked_cross_entropy
from plm_jax.text.spec import BLANKS, SENTINEL
from plm_jax.training.parts import check_length

SPAN = 16  # maximum tokens per blank
LOGIT_ROWS = 8  # rows whose logits are in memory at once

Blanks = list[list[tuple[str, float]]]


class _BlankText(NamedTuple):
  """A text with blanks."""

  text: str  # with its blanks as the model reads them
  prompt: list[int]  # its ids
  blanks: list[int]  # ids of its sentinels in the order of the text, or the id of the mask once per blank
  limit: int  # maximum tokens to generate


def fill(opened: Opened, texts: Sequence[str], *, rows: int = batches.ROWS) -> list[tuple[str, Blanks]]:
  """Generate the text of each blank, a sentinel or one of `BLANKS`.

  Returns per text itself with the blanks as the model reads them, and per blank the generated text and its probability.

  Raises:
    ConfigError: a text has no blank or is too long, or the vocabulary has no token for it.
  """
  vocab: Any = opened.vocab
  (trunk, params), special = opened.network, opened.special
  sentinels = _has_sentinels(opened)
  blank_texts = [_read(opened, text, sentinels=sentinels) for text in texts]

  def compute(members: np.ndarray, width: int) -> tuple[Array, Array, Array]:
    tokens, segments = map(
      jnp.asarray, batches.padded([blank_texts[row].prompt for row in members], width, filler=vocab.pad_id)
    )
    limits = [blank_texts[row].limit for row in members]
    most = batches.widths(max(limits), limit=opened.limit)[-1]
    outputs = decode.generate(
      trunk,
      params,
      tokens,
      segment_ids=segments,
      max_new=most,
      method='beam',
      start_id=special.start,
      limits=jnp.array(limits),
      eos_id=special.ends or None,
      pad_id=vocab.pad_id,
      vocab_size=vocab.size,
      first_id=special.first,
    )
    return outputs.tokens, outputs.lengths, chances(trunk, params, tokens, segments, outputs, start_id=special.start)

  generated = batches.run(
    compute, [len(each.prompt) for each in blank_texts], limit=opened.limit, rows=rows, doing='fill'
  )
  ends = {token for token in vocab.special_ids if conventions.is_sentinel(vocab.token(token))} | set(special.ends)
  filled = []
  for each, (tokens, length, probabilities) in zip(blank_texts, generated, strict=True):
    ids = tokens[:length].tolist()
    spans = after_sentinels(ids, each.blanks, ends) if sentinels else spans_of_masks(each.prompt, ids, each.blanks[0])
    blanks: Blanks = []
    for first, last in spans:
      positions = [position for position in range(first, last) if ids[position] not in vocab.special_ids]
      chance = math.prod(float(probabilities[position]) for position in positions) if positions else 0.0
      blanks.append([(vocab.decode([ids[position] for position in positions]).strip() or '(nothing)', chance)])
    filled.append((each.text, blanks))
  return filled


def _read(opened: Opened, text: str, *, sentinels: bool) -> _BlankText:
  """Encode a text and limit the number of tokens to generate."""
  text, blanks = number_blanks(text, opened.vocab) if sentinels else mark_blanks(text, opened.vocab)
  with errors.stage('fill'):
    prompt = conventions.prompt(text, opened.encoder)
  check_length(opened.trunk, len(prompt), where='the text')
  count = sum(token in blanks for token in prompt)
  longest = SPAN * count + (2 if sentinels else len(prompt))
  return _BlankText(text=text, prompt=prompt, blanks=blanks, limit=min(longest, opened.limit or longest))


@functools.partial(jax.jit, static_argnums=0, static_argnames='start_id')
def chances(
  trunk: nn.Module, params: PyTree, tokens: Array, segment_ids: Array, outputs: constraints.Generated, *, start_id: int
) -> Array:
  """Compute the probability of each generated token.

  Prompts int32[b, l], and 1 at each of their tokens -> f32[b, t], 1 after the last token of a row.
  """
  real = jnp.arange(outputs.tokens.shape[1]) < outputs.lengths[:, None]
  before = jnp.pad(outputs.tokens[:, :-1], ((0, 0), (1, 0)), constant_values=start_id)
  encoder = {'encoder_tokens': tokens, 'encoder_segment_ids': segment_ids}
  decoder = {'decoder_tokens': before, 'decoder_segment_ids': real.astype(jnp.int32)}
  apply: Any = functools.partial(trunk.apply, {'params': params})
  features = apply(**encoder, **decoder)['hidden']
  nats, _ = chunked_cross_entropy(functools.partial(apply, method='attend'), features, outputs.tokens, rows=LOGIT_ROWS)
  return jnp.where(real, jnp.exp(-nats), 1.0)


def _has_sentinels(opened: Opened) -> bool:
  """Return True if blanks are sentinels, False if they are masks."""
  if opened.task:
    return opened.task.get('target', 'sentinels') == 'sentinels'
  return any(conventions.is_sentinel(opened.vocab.token(token)) for token in opened.vocab.special_ids)


def number_blanks(text: str, vocab: Vocab) -> tuple[str, list[int]]:
  """Put sentinels into the blanks; return the text and their ids."""
  free = (f'<extra_id_{index}>' for index in itertools.count())
  if re.search(SENTINEL, text) is None:
    text = re.sub('|'.join(map(re.escape, BLANKS)), lambda match: next(free), text)
  elif other := next((blank for blank in BLANKS if blank in text), None):
    raise ConfigError(
      f'fill: the text mixes two kinds of blanks, {other} and {re.findall(SENTINEL, text)[0]}; use one of them'
    )
  names = re.findall(SENTINEL, text)
  _require(names, '<extra_id_0>')
  with errors.stage('fill'):
    return text, [vocab.id(name) for name in names]


def mark_blanks(text: str, vocab: Vocab) -> tuple[str, list[int]]:
  """Put masks into the blanks; return the text and an id each."""
  if vocab.mask_id is None:
    raise ConfigError(
      'fill: the vocabulary has no mask token; name the folder of a model that was trained to fill blanks'
    )
  mask = vocab.token(vocab.mask_id)
  text = re.sub('|'.join([*map(re.escape, BLANKS), SENTINEL]), lambda match: mask, text)
  _require(text.count(mask), mask)
  return text, [vocab.mask_id] * text.count(mask)


def _require(blanks: Any, name: str) -> None:
  if not blanks:
    raise ConfigError(f'fill: the text has no blank; write {name} for a missing word')


def after_sentinels(ids: Sequence[int], sentinels: Sequence[int], ends: Collection[int]) -> list[tuple[int, int]]:
  """Find the span [first, last) of `ids` that follows each sentinel.

  A span ends before the next token of `ends`. It is empty if the sentinel is missing.

  # ids        S0 a b S1 c S2 end     spans of S0, S1     (1, 3) and (4, 5)
  """
  spans = []
  for sentinel in sentinels:
    first = ids.index(sentinel) + 1 if sentinel in ids else len(ids)
    last = next((position for position in range(first, len(ids)) if ids[position] in ends), len(ids))
    spans.append((first, last))
  return spans


def spans_of_masks(prompt: Sequence[int], ids: Sequence[int], mask: int) -> list[tuple[int, int]]:
  """Find the generated span [first, last) for each mask.

  # prompt     a b M c d          ids     a b x y c d          span of M     (2, 4)
  """
  matches = difflib.SequenceMatcher(None, list(prompt), list(ids), autojunk=False).get_matching_blocks()
  spans = []
  for position in (position for position, token in enumerate(prompt) if token == mask):
    first = max(
      (match.b + match.size for match in matches if match.size and match.a + match.size <= position), default=0
    )
    last = min((match.b for match in matches if match.a > position), default=len(ids))
    spans.append((first, max(first, last)))
  return spans
