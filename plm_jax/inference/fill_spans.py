"""Fills blanks with an encoder-decoder, which writes what is missing: T5's spans after their sentinels (Raffel et al.
2020, §3.1.4), or the whole text again, as BART was trained to (Lewis et al. 2020, §2.2, text infilling)."""

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

SPAN = 16  # most tokens for a blank
LOGIT_ROWS = 8  # rows whose logits are in memory at a time

Blanks = list[list[tuple[str, float]]]


class _Asked(NamedTuple):
  """A text with blanks.

  Attributes:
    text: with its blanks as the model reads them.
    prompt: its ids.
    blanks: the ids of its sentinels in the order of the text, or the mask once a blank.
    limit: most tokens to write.
  """

  text: str
  prompt: list[int]
  blanks: list[int]
  limit: int


def fill(opened: Opened, texts: Sequence[str], *, rows: int = batches.ROWS) -> list[tuple[str, Blanks]]:
  """Writes what stands in each blank of some texts.

  Args:
    opened: an encoder-decoder.
    texts: with sentinels, or any spelling of `text.spec.BLANKS`.
    rows: texts that are computed at a time.

  Returns:
    Of each text, it with the blanks as the model reads them, and for each blank what is written there and its
    probability.

  Raises:
    ConfigError: a text has no blank or is too long, or the vocabulary has no token for it.
  """
  vocab: Any = opened.vocab
  (trunk, params), special = opened.network, opened.special
  sentinels = _has_sentinels(opened)
  asked = [_read(opened, text, sentinels=sentinels) for text in texts]

  def compute(members: np.ndarray, width: int) -> tuple[Array, Array, Array]:
    tokens, segments = map(
      jnp.asarray, batches.padded([asked[row].prompt for row in members], width, filler=vocab.pad_id)
    )
    limits = [asked[row].limit for row in members]
    most = batches.widths(max(limits), limit=opened.limit)[-1]
    made = decode.generate(
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
      first_id=special.first,
    )
    return made.tokens, made.lengths, chances(trunk, params, tokens, segments, made, start_id=special.start)

  found = batches.run(compute, [len(one.prompt) for one in asked], limit=opened.limit, rows=rows, doing='fill')
  ends = {number for number in vocab.special_ids if conventions.is_sentinel(vocab.token(number))} | set(special.ends)
  filled = []
  for one, (tokens, length, probabilities) in zip(asked, found, strict=True):
    ids = tokens[:length].tolist()
    places = after_sentinels(ids, one.blanks, ends) if sentinels else in_place_of_masks(one.prompt, ids, one.blanks[0])
    blanks: Blanks = []
    for first, last in places:
      own = [place for place in range(first, last) if ids[place] not in vocab.special_ids]
      chance = math.prod(float(probabilities[place]) for place in own) if own else 0.0
      blanks.append([(vocab.decode([ids[place] for place in own]).strip() or '(nothing)', chance)])
    filled.append((one.text, blanks))
  return filled


def _read(opened: Opened, text: str, *, sentinels: bool) -> _Asked:
  """A text as the model reads it, and how much is written for it."""
  text, blanks = number_blanks(text, opened.vocab) if sentinels else mark_blanks(text, opened.vocab)
  with errors.stage('fill'):
    prompt = conventions.prompt(text, opened.encoder)
  check_length(opened.trunk, len(prompt), where='the text')
  count = sum(token in blanks for token in prompt)
  longest = SPAN * count + (2 if sentinels else len(prompt))
  return _Asked(text, prompt, blanks, min(longest, opened.limit or longest))


@functools.partial(jax.jit, static_argnums=0, static_argnames='start_id')
def chances(
  trunk: nn.Module, params: PyTree, tokens: Array, segment_ids: Array, made: constraints.Generated, *, start_id: int
) -> Array:
  """The probability f32[b, t] of each token that was made, 1 behind the last one.

  Args:
    trunk: an encoder-decoder.
    params: of the trunk.
    tokens: int32[b, l], the prompts.
    segment_ids: int32[b, l], 1 where there is a token.
    made: for the prompts.
    start_id: what the decoder reads first.
  """
  real = jnp.arange(made.tokens.shape[1]) < made.lengths[:, None]
  before = jnp.pad(made.tokens[:, :-1], ((0, 0), (1, 0)), constant_values=start_id)
  encoder = {'encoder_tokens': tokens, 'encoder_segment_ids': segment_ids}
  decoder = {'decoder_tokens': before, 'decoder_segment_ids': real.astype(jnp.int32)}
  apply: Any = functools.partial(trunk.apply, {'params': params})
  features = apply(**encoder, **decoder)['hidden']
  nats, _ = chunked_cross_entropy(functools.partial(apply, method='attend'), features, made.tokens, rows=LOGIT_ROWS)
  return jnp.where(real, jnp.exp(-nats), 1.0)


def _has_sentinels(opened: Opened) -> bool:
  """Whether blanks are sentinels, and not masks: as a run was trained, else where the vocabulary has them."""
  if opened.task:
    return opened.task.get('target', 'sentinels') == 'sentinels'
  return any(conventions.is_sentinel(opened.vocab.token(number)) for number in opened.vocab.special_ids)


def number_blanks(text: str, vocab: Vocab) -> tuple[str, list[int]]:
  """The text with a sentinel in each blank, and the ids of the sentinels in the order of the text."""
  free = (f'<extra_id_{number}>' for number in itertools.count())
  if re.search(SENTINEL, text) is None:
    text = re.sub('|'.join(map(re.escape, BLANKS)), lambda found: next(free), text)
  elif other := next((blank for blank in BLANKS if blank in text), None):
    raise ConfigError(
      f'fill: the text has blanks of two kinds, {other} and {re.findall(SENTINEL, text)[0]}: write all of them as one'
    )
  names = re.findall(SENTINEL, text)
  _require(names, '<extra_id_0>')
  with errors.stage('fill'):
    return text, [vocab.id(name) for name in names]


def mark_blanks(text: str, vocab: Vocab) -> tuple[str, list[int]]:
  """The text with the mask of the vocabulary in each blank, and the id of the mask, once a blank."""
  if vocab.mask_id is None:
    raise ConfigError('fill: the vocabulary of this run has no mask token; it was not trained to fill blanks')
  mask = vocab.token(vocab.mask_id)
  text = re.sub('|'.join([*map(re.escape, BLANKS), SENTINEL]), lambda found: mask, text)
  _require(text.count(mask), mask)
  return text, [vocab.mask_id] * text.count(mask)


def _require(blanks: Any, name: str) -> None:
  if not blanks:
    raise ConfigError(f'fill: the text has no blank; write {name} where a word is missing')


def after_sentinels(ids: Sequence[int], sentinels: Sequence[int], ends: Collection[int]) -> list[tuple[int, int]]:
  """Of each blank, the places [first, last) in `ids` from its sentinel to the next of `ends`; empty without either.

  # ids        S0 a b S1 c S2 end     blanks of S0, S1     (1, 3) and (4, 5)
  """
  places = []
  for sentinel in sentinels:
    first = ids.index(sentinel) + 1 if sentinel in ids else len(ids)
    last = next((place for place in range(first, len(ids)) if ids[place] in ends), len(ids))
    places.append((first, last))
  return places


def in_place_of_masks(prompt: Sequence[int], ids: Sequence[int], mask: int) -> list[tuple[int, int]]:
  """Of each mask of the prompt, the places [first, last) in `ids`, the whole text, that stand in its place.

  # prompt     a b M c d          ids     a b x y c d          places of M     (2, 4)
  """
  matches = difflib.SequenceMatcher(None, list(prompt), list(ids), autojunk=False).get_matching_blocks()
  places = []
  for place in (place for place, token in enumerate(prompt) if token == mask):
    first = max((match.b + match.size for match in matches if match.size and match.a + match.size <= place), default=0)
    last = min((match.b for match in matches if match.a > place), default=len(ids))
    places.append((first, max(first, last)))
  return places
