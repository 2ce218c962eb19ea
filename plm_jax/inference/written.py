"""Fills blanks with an encoder-decoder, which writes what is missing: T5's spans after their sentinels (Raffel et al.
2020, §3.1.4), or the whole text again, as BART was trained to (Lewis et al. 2020, §2.2, text infilling)."""

import difflib
import itertools
import math
import re
from collections.abc import Collection, Sequence
from typing import Any

import jax.numpy as jnp

from plm_jax import errors
from plm_jax.errors import ConfigError
from plm_jax.generate import conventions, decode, trace
from plm_jax.inference.opened import Opened
from plm_jax.text.spec import BLANKS, SENTINEL
from plm_jax.training.parts import check_length
from plm_jax.types import Vocab

SPAN = 16  # most tokens for a blank

Blanks = list[list[tuple[str, float]]]


def fill(opened: Opened, text: str) -> tuple[str, Blanks]:
  """Writes what stands in each blank of a text.

  Args:
    opened: an encoder-decoder.
    text: with sentinels, or any spelling of `text.spec.BLANKS`.

  Returns:
    The text with the blanks as the model reads them, and for each blank what is written there and its probability.

  Raises:
    ConfigError: the text has no blank, or the vocabulary has no token for it.
  """
  vocab: Any = opened.vocab
  trunk, params = opened.network
  sentinels = _has_sentinels(opened)
  text, blanks = number_blanks(text, vocab) if sentinels else mark_blanks(text, vocab)
  special = opened.special
  with errors.stage('fill'):
    prompt = conventions.prompt(text, opened.encoder)
  check_length(trunk, len(prompt), where='the text')
  count = sum(token in blanks for token in prompt)
  longest = SPAN * count + (2 if sentinels else len(prompt))
  made = decode.generate(
    trunk,
    params,
    jnp.array([prompt]),
    segment_ids=jnp.ones((1, len(prompt)), jnp.int32),
    max_new=min(longest, opened.limit or longest),
    method='beam',
    start_id=special.start,
    eos_id=special.ends or None,
    pad_id=vocab.pad_id,
    first_id=special.first,
  )
  ids = made.tokens[0, : int(made.lengths[0])].tolist()
  ends = {number for number in vocab.special_ids if conventions.is_sentinel(vocab.token(number))} | set(special.ends)
  places = after_sentinels(ids, blanks, ends) if sentinels else in_place_of_masks(prompt, ids, blanks[0])
  _, _, chances = trace.likeliest(trunk, params, prompt, ids, top=1, start=special.start)
  found: Blanks = []
  for first, last in places:
    own = [place for place in range(first, last) if ids[place] not in vocab.special_ids]
    chance = math.prod(float(chances[place]) for place in own) if own else 0.0
    found.append([(vocab.decode([ids[place] for place in own]).strip() or '(nothing)', chance)])
  return text, found


def _has_sentinels(opened: Opened) -> bool:
  """Whether blanks are sentinels, and not masks: as a run was trained, else where the vocabulary has them."""
  if opened.task:
    return opened.task.get('target', 'sentinels') == 'sentinels'
  return any(conventions.is_sentinel(opened.vocab.token(number)) for number in opened.vocab.special_ids)


def number_blanks(text: str, vocab: Vocab) -> tuple[str, list[int]]:
  """The text with a sentinel in each blank, and the ids of the sentinels in the order of the text."""
  free = (f'<extra_id_{number}>' for number in itertools.count())
  if not re.search(SENTINEL, text):
    text = re.sub('|'.join(map(re.escape, BLANKS)), lambda found: next(free), text)
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
