"""Special tokens around the fields of a labelled example; shared by the files of `layouts/`."""

from typing import NamedTuple

from plm_jax.core.types import Template
from plm_jax.data.rows.packing import Frame


class Layout(NamedTuple):
  """Special tokens and types of the fields of an example."""

  frames: tuple[Frame, ...]  # the special tokens before and after each field
  # True if sequences have `type_ids`: 0 for the first field and its special tokens, 1 for the second, and so on
  typed: bool = False
  last_type: int | None = None  # the type of the last token, if it has its own
  stands_last: bool = False  # True if the last token represents the sequence, not the first
  apart: bool = False  # True if each field is a separate text, with its own segment id


def around(
  fields: int, *, first: tuple[int, ...] = (), between: tuple[int, ...] = (), last: tuple[int, ...] = ()
) -> tuple[Frame, ...]:
  """Build frames with `first`, `between` and `last` around the `fields` fields."""
  after = [between] * (fields - 1) + [last]
  return tuple((() if index else first, ids) for index, ids in enumerate(after))


def needed(token_id: int | None, token: str) -> int:
  """Return the id of a special token, or raise ValueError."""
  if token_id is None:
    raise ValueError(f'the vocabulary has no {token} token, which this layout needs: set data.layout to another.')
  return token_id


def template(single: Layout, pair: Layout) -> Template:
  """Convert the layouts of one and two fields for a tokenizer."""
  return Template(_parts(single, 'A'), _parts(pair, 'AB'))


def _parts(layout: Layout, fields: str) -> tuple[tuple[int | str, int], ...]:
  parts: list[tuple[int | str, int]] = []
  for index, (field, (before, after)) in enumerate(zip(fields, layout.frames, strict=True)):
    own: list[int | str] = [*before, field, *after]
    parts += [(part, index if layout.typed else 0) for part in own]
  if layout.last_type is not None:
    parts[-1] = (parts[-1][0], layout.last_type)
  return tuple(parts)
