"""Special tokens around the fields of a labelled example; shared by the files of `layouts/`."""

from typing import TYPE_CHECKING, NamedTuple

from plm_jax.core.types import Template, Vocab
from plm_jax.data.rows.packing import Frame

if TYPE_CHECKING:
  import tokenizers


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


def end_of_text(vocab: Vocab) -> int | None:
  """Return the id of the end token, or of the separator."""
  return vocab.sep_id if vocab.eos_id is None else vocab.eos_id


def needed(token_id: int | None, token: str) -> int:
  """Return the id of a special token, or raise ValueError."""
  if token_id is None:
    raise ValueError(f'the vocabulary has no {token} token, which this layout needs: set data.layout to another.')
  return token_id


def template(single: Layout, pair: Layout) -> Template:
  """Convert the layouts of one and two fields for a tokenizer."""
  return Template(parts(single, 'A'), parts(pair, 'AB'))


def parts(layout: Layout, fields: str) -> tuple[tuple[int | str, int], ...]:
  """Return the special tokens and fields of a sequence, with their types."""
  found: list[tuple[int | str, int]] = []
  for index, (field, (before, after)) in enumerate(zip(fields, layout.frames, strict=True)):
    own: list[int | str] = [*before, field, *after]
    found += [(part, index if layout.typed else 0) for part in own]
  if layout.last_type is not None:
    found[-1] = (found[-1][0], layout.last_type)
  return tuple(found)


def written(marked: 'tokenizers.Tokenizer') -> Template:
  """Return the tokens around one text and around two."""

  def parts_of(second: str | None) -> tuple[tuple[int | str, int], ...]:
    made = marked.encode('a', second)
    found: list[tuple[int | str, int]] = []
    for token, kind, text in zip(made.ids, made.type_ids, made.sequence_ids, strict=True):
      part = (token, kind) if text is None else ('AB'[text], kind)
      if part[0] != (found[-1][0] if found else None) or text is None:
        found.append(part)
    return tuple(found)

  return Template(parts_of(None), parts_of('a'))
