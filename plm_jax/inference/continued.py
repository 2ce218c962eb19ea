"""Texts that a model writes: what follows a prompt, what answers it, what fills its blank."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Vocab
from plm_jax.generate import constraints, conventions, decode, reader
from plm_jax.generate.settings import OF_METHOD
from plm_jax.inference import batches
from plm_jax.inference.opened import Opened
from plm_jax.text.spec import BLANKS


class Written(NamedTuple):
  """A text that was made for a prompt.

  Attributes:
    prompt: ids of the prompt as the model reads it.
    ids: that were made.
    score: sum of their log-probabilities; of a beam search, divided by length ** length_penalty.
    before: the text up to what was made; that of the prompt, or of what precedes its blank.
    new: the text that was made.
    after: what follows a blank.
  """

  prompt: list[int]
  ids: list[int]
  score: float
  before: str
  new: str
  after: str


def write(
  opened: Opened, prompts: Sequence[str], settings: Mapping[str, Any], *, rows: int = batches.ROWS, dash: str = ''
) -> list[list[Written]]:
  """Continues prompts, or fills their blanks.

  Args:
    opened: a model that writes; `translating.writer` of a run.
    prompts: texts.
    settings: all of `generate.settings.DEFAULTS`, checked.
    rows: that are computed at a time.
    dash: what stands before the name of a setting in messages.

  Returns:
    for each prompt `num_samples` texts.

  Raises:
    ConfigError: settings that the model cannot meet, or a prompt without the blank that it needs.
  """
  if settings['start'] is not None and opened.kind == 'causal':
    raise ConfigError(
      f'{dash}start={settings["start"]}: a decoder without an encoder goes on from its prompt: write the token there'
    )
  special = opened.special_with(**{name: settings[name] for name in ('start', 'first', 'last')})
  with errors.stage('generate'):
    ids = [_encode(text, opened, special) for text in prompts]
  blanks = _blanks(ids, prompts, opened, special, dash=dash)
  num_samples = settings['num_samples'] or 1
  every = [number for number in range(len(ids)) for _ in range(num_samples)]
  forced = [special.first is not None and _forces_first(opened, ids[number], settings) for number in every]
  made: dict[int, tuple[list[int], float]] = {}
  for force in dict.fromkeys(forced):
    these = [place for place, one in enumerate(forced) if one == force]
    asked = special if force else special._replace(first=None)
    some = None if blanks is None else [blanks[every[place]] for place in these]
    texts = _run(
      opened, [ids[every[place]] for place in these], some, settings, asked, places=these, rows=rows, dash=dash
    )
    made |= dict(zip(these, texts, strict=True))
  found: list[list[Written]] = [[] for _ in prompts]
  for place, number in enumerate(every):
    row, (new, score) = ids[number], made[place]
    around = _around(opened, prompts[number], row, new, None if blanks is None else blanks[number])
    found[number].append(Written(row, new, score, *around))
  return found


def _forces_first(opened: Opened, prompt: Sequence[int], settings: Mapping[str, Any]) -> bool:
  """Whether the text of a prompt begins with the token that the folder forces, or the settings."""
  # transformers forces the second token of a decoder's row, which is that of the text for a prompt of one token
  return opened.kind != 'causal' or len(prompt) == 1 or settings['first'] is not None


def _run(
  opened: Opened,
  prompts: Sequence[Sequence[int]],
  blanks: Sequence[int] | None,
  settings: Mapping[str, Any],
  special: conventions.Tokens,
  *,
  places: Sequence[int],
  rows: int,
  dash: str,
) -> list[tuple[list[int], float]]:
  """The ids made for each prompt, and their score.

  Args:
    opened: the model.
    prompts: their ids.
    blanks: of each prompt, the place of the mask to fill; None for models without blanks.
    settings: as `write` takes them.
    special: tokens by role; every text begins with `first`, if there is one.
    places: of the prompts among all, so that each batch draws otherwise.
    rows: that are computed at a time.
    dash: what stands before the name of a setting in messages.

  Raises:
    ConfigError: settings that the model cannot meet.
  """
  (trunk, params), max_new, pad_id = opened.network, settings['max_new'], opened.vocab.pad_id
  given = {name: settings[name] for name in OF_METHOD.get(settings['method'], ()) if name != 'num_samples'}
  given = {name: value for name, value in given.items() if value is not None}
  key, sizes = jax.random.key(settings['seed']), list(map(len, prompts))

  def compute(members: np.ndarray, width: int) -> constraints.Generated:
    tokens, segments = batches.padded([prompts[row] for row in members], width, filler=opened.prompts[0].pad_id)
    first = places[members[0]]
    try:
      return decode.generate(
        trunk,
        params,
        jnp.asarray(tokens),
        segment_ids=jnp.asarray(segments),
        max_new=max_new,
        method=settings['method'],
        start_id=None if trunk.ATTENTION == 'causal' else special.start,
        blank=None if blanks is None else jnp.array([blanks[row] for row in members], jnp.int32),
        rng=jax.random.fold_in(key, first) if first else key,
        eos_id=special.ends or None,
        pad_id=pad_id,
        min_new=settings['min_new'],
        no_repeat=settings['no_repeat'],
        first_id=special.first,
        last_id=special.last or None,
        **given,
      )
    except ValueError as error:
      said = f'the longest prompt has {max(sizes)} tokens, and {dash}max_new is {max_new}'
      raise ConfigError(f'generate: {error} ({said})') from error

  found = batches.run(
    compute,
    sizes,
    limit=_widest(trunk, sizes, max_new=max_new),
    rows=rows,
    by_length=settings['method'] != 'sample',  # what is drawn depends on the place in a batch
    doing='generate',
  )
  return [(one.tokens[: one.lengths].tolist(), float(one.scores)) for one in found]


def _widest(trunk: Any, sizes: Sequence[int], *, max_new: int) -> int | None:
  """Most tokens of a batch of prompts that the trunk has positions for; None for no bound.

  A prompt that is longer is read as it is, so that generation refuses it.
  """
  tables = list(trunk.position_rows.values())
  if (encoder := getattr(trunk, 'source', None)) is not None:  # of `translate_bart`
    tables += encoder.position_rows.values()
  if not tables:
    return None
  taken = max_new - 1 if trunk.ATTENTION == 'causal' else 0  # a decoder goes on in the row of its prompt
  return max(min(map(len, tables)) - taken, *sizes)


def _encode(text: str, opened: Opened, special: conventions.Tokens) -> list[int]:
  """Ids of a prompt; however a user writes the blank of a prompt, it becomes the mask of the vocabulary."""
  if opened.kind != 'causal' and special.mask is not None and opened.prompts[0] is opened.vocab:
    for blank in BLANKS:
      text = text.replace(blank, opened.vocab.token(special.mask))
  return conventions.prompt(text, opened.encoder)


def _blanks(
  rows: Sequence[Sequence[int]], prompts: Sequence[str], opened: Opened, special: conventions.Tokens, *, dash: str
) -> list[int] | None:
  """The place of the mask in each prompt; None for a model that fills no blanks.

  Raises:
    ConfigError: a prompt with no mask or with several, or a vocabulary without a mask token.
  """
  if not reader.fills_blanks(opened.trunk):
    return None
  if special.mask is None:
    raise ConfigError('generate: this vocabulary has no mask token, so no prompt can have a blank')
  for ids, text in zip(rows, prompts, strict=True):
    if (count := list(ids).count(special.mask)) != 1:
      raise ConfigError(f'{dash}prompt={text!r}: has {count} blanks; write one {opened.vocab.token(special.mask)}')
  return [list(ids).index(special.mask) for ids in rows]


def _around(
  opened: Opened, text: str, prompt: Sequence[int], new: Sequence[int], blank: int | None
) -> tuple[str, str, str]:
  """What stands before a new text, the text, and what stands behind it."""
  vocab: Any = opened.vocab
  if blank is None:
    return text, _continuation(prompt, new, vocab, kind=opened.kind), ''
  return vocab.decode(prompt[:blank]), conventions.decode(new, vocab), vocab.decode(prompt[blank + 1 :])


def _continuation(prompt: Sequence[int], ids: Sequence[int], vocab: Vocab, *, kind: str) -> str:
  """The new text, with the space or the rest of a word that it begins with."""
  known: Any = vocab
  alone = conventions.decode(ids, known)
  if kind != 'causal':
    return alone
  whole, start = conventions.decode([*prompt, *ids], known), conventions.decode(prompt, known)
  return whole.removeprefix(start) if whole.startswith(start) else alone
