"""Special tokens around the fields of a labelled row; what the files of `layouts/` share."""

from plm_jax.data.rows.packing import Frame


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
