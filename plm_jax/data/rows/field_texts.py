"""Texts of the fields of rows, for the tokenizer."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from plm_jax.data.corpora import cells
from plm_jax.data.corpora.records import Records, as_written, is_words


def text_of(value: Any) -> str | None:
  """Return a string, number or joined strings as text; None for others."""
  value = as_written(value)
  if isinstance(value, str):
    return value
  if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
    return ' '.join(value)
  return None


def named(name: str, fields: Sequence[str]) -> str | None:
  """Return the field with a name, else one that differs by case."""
  return name if name in fields else next((field for field in fields if field.lower() == name.lower()), None)


def known(candidates: Iterable[Sequence[str]], fields: Sequence[str]) -> tuple[str, ...]:
  """Return the fields of the first names that all exist, else ()."""
  found = (tuple(filter(None, (named(name, fields) for name in names))) for names in candidates)
  return next((some for some, names in zip(found, candidates, strict=True) if len(some) == len(names)), ())


def joined(value: Any) -> str | None:
  """Convert a field to text; join the list in a text."""
  spelt = cells.parse(value) if isinstance(value, str) else None
  return text_of(spelt if is_words(spelt) else value)


class FieldTexts:
  """The fields of rows int64[rows], one after another; a list of strings is one text joined by spaces.

  `prefixes` are texts before each field, () for none. `write` maps the value of a field to its text.
  """

  def __init__(
    self,
    records: Records,
    fields: tuple[str, ...],
    row_ids: np.ndarray,
    digest: str,
    *,
    prefixes: tuple[str, ...] = (),
    write: Callable[[Any], str | None] = text_of,
  ):
    self.records, self.fields, self.row_ids, self.digest = records, fields, row_ids, digest
    self.prefixes, self.write = prefixes or ('',) * len(fields), write

  def __len__(self) -> int:
    return len(self.row_ids) * len(self.fields)

  def __getitem__(self, index: int) -> str:
    row, field = divmod(index, len(self.fields))
    return f'{self.prefixes[field]}{self.write(self.records[int(self.row_ids[row])].get(self.fields[field]))}'


class ListedTexts(list[str]):
  """Texts in memory, with the digest of their content."""

  def __init__(self, texts: Iterable[str], digest: str):
    super().__init__(texts)
    self.digest = digest
