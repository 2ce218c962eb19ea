"""Corruptions of a config for objectives: which tokens, what becomes of them, how many slots that takes."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from plm_jax.noise import edit
from plm_jax.plugins import build
from plm_jax.types import Vocab


def pick_where(settings: Mapping[str, Any], *, vocab: Vocab | None = None) -> Callable[..., Any]:
  """A function of `noise/where/` with its settings bound: (key, row) -> spans.

  Args:
    settings: `name` and keywords of that function.
    vocab: offers its token counts to the functions that go by them.

  Raises:
    ConfigError: an unknown name or keyword.
    ValueError: the function goes by token counts and the vocabulary has none.
  """
  offers = {} if vocab is None else {'counts': vocab.counts}
  choose = build.pick('noise.where', settings, **offers)
  assert isinstance(choose, partial)  # what build.pick makes
  if 'counts' in choose.keywords and choose.keywords['counts'] is None:
    raise ValueError(f'where {settings["name"]!r} needs a vocabulary that knows how often each token is; train one')
  return choose


def pick_edit(settings: Mapping[str, Any], *, vocab: Vocab, in_place: bool = False, **more: Any) -> Callable[..., Any]:
  """A function of `noise.edit` with its settings bound: (key, row, spans) -> slots.

  Args:
    settings: `name` and keywords of that function.
    vocab: offers `mask_id`, `vocab_size` and `special_ids`.
    in_place: refuse an edit that drops or inserts tokens.
    **more: what else the caller can offer, such as `first_sentinel`; a function gets what it names.

  Raises:
    ConfigError: an unknown name or keyword.
    ValueError: the function writes the mask token and the vocabulary has none, or moves tokens that must stay.
  """
  write = build.pick(
    'noise.edit', settings, mask_id=vocab.mask_id, vocab_size=vocab.size, special_ids=vocab.special_ids, **more
  )
  assert isinstance(write, partial)  # what build.pick makes
  if in_place and write.func not in edit.IN_PLACE:
    choices = ', '.join(sorted(function.__name__ for function in edit.IN_PLACE))
    raise ValueError(
      f'edit {settings["name"]!r} moves tokens, which are predicted where they stand; choices are {choices}'
    )
  if 'mask_id' in write.keywords and vocab.mask_id is None:
    raise ValueError(f'edit {settings["name"]!r} needs a vocabulary with a mask token; vocab.extra adds one')
  return write


def capacity(choose: Callable[..., Any], length: int) -> int:
  """Slots that hold what a bound `where` function chooses in a row of `length`; its user counts a rarer excess."""
  assert isinstance(choose, partial)  # what build.pick makes
  return max(1, build.beside(choose.func, 'CAPACITY')[choose.func](length, **choose.keywords))
