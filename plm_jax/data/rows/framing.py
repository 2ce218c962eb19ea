"""Special tokens around the fields of a labelled row; what the files of `layouts/` share."""

from typing import NamedTuple

from plm_jax.core.types import Template
from plm_jax.data.rows.packing import Frame


class Layout(NamedTuple):
  """How the fields of a row stand in it.

  Attributes:
    frames: the special tokens before and after each field.
    typed: whether rows have `type_ids`: 0 for the first field and its special tokens, 1 for the second, and so on.
    last_type: the type of the last token of a row, where it has one of its own.
    stands_last: the last token of a row stands for the whole of it, and not the first.
    apart: each field is a text of its own, with its own number in `segment_ids`.
  """

  frames: tuple[Frame, ...]
  typed: bool = False
  last_type: int | None = None
  stands_last: bool = False
  apart: bool = False


def around(
  fields: int, *, first: tuple[int, ...] = (), between: tuple[int, ...] = (), last: tuple[int, ...] = ()
) -> tuple[Frame, ...]:
  """Frames of so many fields: `first` before the first one, `last` after the last one, `between` after the others."""
  after = [between] * (fields - 1) + [last]
  return tuple((() if index else first, ids) for index, ids in enumerate(after))


def needed(token_id: int | None, token: str) -> int:
  """The id of a special token.

  Raises:
    ValueError: the vocabulary does not have it.
  """
  if token_id is None:
    raise ValueError(f'the vocabulary has no {token} token, which this layout needs: choose another (layout=...).')
  return token_id


def template(single: Layout, pair: Layout) -> Template:
  """The layouts of one field and of two as a tokenizer is told them."""
  return Template(_parts(single, 'A'), _parts(pair, 'AB'))


def _parts(layout: Layout, fields: str) -> tuple[tuple[int | str, int], ...]:
  parts: list[tuple[int | str, int]] = []
  for number, (field, (before, after)) in enumerate(zip(fields, layout.frames, strict=True)):
    own: list[int | str] = [*before, field, *after]
    parts += [(part, number if layout.typed else 0) for part in own]
  if layout.last_type is not None:
    parts[-1] = (parts[-1][0], layout.last_type)
  return tuple(parts)
