"""Conversion of one saved leaf to the shape, dtype and sharding of a leaf of this model."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.types import Array

if TYPE_CHECKING:
  from plm_jax.checkpoint.init_from import Entry

STACKED = 'layers'  # the path component below which axis 0 is the layer
TOKEN_TABLE = 'token_embed/table'  # the end of its path
# name of a leaf and number of its axes -> the axis of a vocabulary, if it has one
_VOCABULARY = {('table', 2): 0, ('embedding', 2): 0, ('kernel', 2): 1, ('bias', 1): 0}


class SameTokens(NamedTuple):
  """Positions of the tokens of a vocabulary in that of a source."""

  rows: np.ndarray  # int64[v], the id in the source of each token; -1 for tokens that it lacks
  size: int  # number of ids of the source


def join(parent: str, name: str) -> str:
  """Join two paths; either may be empty."""
  return f'{parent}/{name}'.strip('/')


def is_stacked(path: str) -> bool:
  """Return True if axis 0 at a path is the layer."""
  return STACKED in path.split('/')


def interpolate_positions(table: np.ndarray, length: int, *, before: int = 0) -> np.ndarray:
  """Resize a position table by linear interpolation.

  Its end rows stay the same.

  Args:
    table: [before + positions, ...], any float dtype.
    length: rows of the result, including those before the positions.
    before: leading rows that are not positions and do not change.

  Returns:
    [length, ...] of the same dtype, computed in float32.
  """
  if length <= before or len(table) <= before:
    raise ValueError(f'a position table of {len(table)} rows cannot become one of {length}')
  if before:
    return np.concatenate([table[:before], interpolate_positions(table[before:], length - before)])
  at = np.linspace(0, len(table) - 1, length)
  low = np.floor(at).astype(int)
  high = np.minimum(low + 1, len(table) - 1)
  share = (at - low).astype(np.float32).reshape(-1, *(1,) * (table.ndim - 1))
  rows = np.asarray(table, np.float32)
  return (rows[low] * (1 - share) + rows[high] * share).astype(table.dtype)


def fit(
  path: str, value: np.ndarray, fresh: Array, entry: 'Entry', *, before: int, width_key: str | None = None
) -> tuple[Array, str]:
  """Fit a leaf of the source to the initial one.

  The result has the shape, dtype and sharding of the initial one. Also return a description of the changes.

  Args:
    before: rows of a table before its positions.
    width_key: the key of a config that sets the width of the leaf, if the source is a file of word vectors.
  """
  how = ''
  if entry.layers is not None and is_stacked(path):
    value = _take_layers(path, value, entry)
    how += f', layers {", ".join(map(str, entry.layers))}'
  if value.dtype != fresh.dtype:
    if entry.dtype is None or np.dtype(entry.dtype) != fresh.dtype:
      raise ValueError(
        f'{path} is {value.dtype} in {entry.source}, but {fresh.dtype} here: '
        f"set dtype='{fresh.dtype}' in this entry of init_from to convert it"
      )
    how += f', {value.dtype} to {fresh.dtype}'
    value = value.astype(fresh.dtype)
  if value.shape == fresh.shape:
    return _place(value, fresh), how
  if 'interpolate' in entry.resizes and _is_position(path) and value.shape[1:] == fresh.shape[1:]:
    how += f', {len(value) - before} positions interpolated to {fresh.shape[0] - before}'
    return _place(interpolate_positions(value, fresh.shape[0], before=before), fresh), how
  axis = longer_vocabulary(path, value.shape, fresh.shape)
  if 'new_rows' in entry.resizes and axis is not None:
    how += f', rows {value.shape[axis]} to {fresh.shape[axis] - 1} new'
    return _put_first(value, fresh), how
  if 'mean_rows' in entry.resizes and axis is not None:
    how += f', rows {value.shape[axis]} to {fresh.shape[axis] - 1} their mean'
    mean = value.mean(axis, keepdims=True).repeat(fresh.shape[axis] - value.shape[axis], axis)
    return _place(np.concatenate([value, mean], axis), fresh), how
  fix = _fix_for(path, value.shape, fresh.shape)
  if width_key is None or value.ndim != fresh.ndim:
    raise ValueError(f'{path} is {list(value.shape)} in {entry.source}, but {list(fresh.shape)} here: {fix}')
  if (width := value.shape[-1]) != fresh.shape[-1]:
    raise ValueError(
      f'{path} has width {fresh.shape[-1]} here, but the vectors of {entry.source} have width {width}: '
      f'set --config.{width_key}={width}'
    )
  raise ValueError(
    f'{path} has {len(fresh)} rows here, but {len(value)} in {entry.source}, one for each word of the vocabulary: {fix}'
  )


def token_table_rows(
  source: Mapping[str, np.ndarray], fresh: Mapping[str, Array], entry: 'Entry'
) -> tuple[int, int] | None:
  """Count the rows of both token tables, maybe padded; None without one."""
  for name, value in source.items():
    if (path := join(entry.to, name)).endswith(TOKEN_TABLE) and path in fresh:
      return len(value), fresh[path].shape[0]
  return None


def _axis_of_tokens(
  path: str, value: np.ndarray, fresh: Array, tables: tuple[int, int], ids: tuple[int, int] | None = None
) -> int | None:
  """Find the only axis with the rows of both tables, or `ids`."""
  if is_stacked(path) or _is_position(path) or value.ndim != fresh.ndim:
    return None
  sizes = [set(pair) for pair in zip(tables, ids or tables, strict=True)]
  shapes = zip(value.shape, fresh.shape, strict=True)
  axes = [axis for axis, (old, new) in enumerate(shapes) if old in sizes[0] and new in sizes[1]]
  return axes[0] if len(axes) == 1 else None


def without_padding(path: str, value: np.ndarray, fresh: Array, size: int, tables: tuple[int, int]) -> np.ndarray:
  """Remove the rows of a leaf that pad its token table."""
  axis = _axis_of_tokens(path, value, fresh, tables)
  # if both tables have one size, an unrelated leaf may have as many rows
  if axis is None or (tables[0] == tables[1] and not path.endswith(TOKEN_TABLE)):
    return value
  return value.take(np.arange(min(size, tables[0])), axis)


def by_token(path: str, value: np.ndarray, fresh: Array, tokens: SameTokens, tables: tuple[int, int]) -> np.ndarray:
  """Rearrange a leaf of the source to this model's vocabulary.

  A leaf without vocabulary rows is returned unchanged. Rows that pad a table for sharding also start from the mean.
  """
  if (axis := _axis_of_tokens(path, value, fresh, tables, (tokens.size, len(tokens.rows)))) is None:
    return value
  mean = value.take(np.arange(tokens.size), axis).mean(axis, keepdims=True).astype(value.dtype)
  padding = np.full(fresh.shape[axis] - len(tokens.rows), -1)
  rows = np.concatenate([tokens.rows, padding])  # -1 is the last row below, the mean
  return np.concatenate([value, mean], axis).take(rows, axis)


def _take_layers(path: str, value: np.ndarray, entry: 'Entry') -> np.ndarray:
  wanted = list(entry.layers or ())
  outside = [layer for layer in wanted if not 0 <= layer < len(value)]
  if outside:
    raise ValueError(
      f'init_from: layers={tuple(wanted)}, but {path} in {entry.source} has layers 0 to {len(value) - 1}'
    )
  return value[wanted]


def without_spare(
  path: str, value: np.ndarray, shape: Sequence[int], rows: int | None, size: Callable[[], int | None]
) -> tuple[np.ndarray, str]:
  """Remove the rows beyond this model's, if no token has them.

  Also return a description. Other leaves do not change.

  Args:
    shape: of the initial one.
    rows: of the source's token table.
    size: returns the number of ids of the source's vocabulary, if known.
  """
  axis = longer_vocabulary(path, shape, value.shape)
  if axis is None or rows is None or value.shape[axis] != rows or shape[axis] < (size() or rows):
    return value, ''
  return value.take(np.arange(shape[axis]), axis), f', without rows {shape[axis]} to {rows - 1}, which no token has'


def longer_vocabulary(path: str, old: Sequence[int], new: Sequence[int]) -> int | None:
  """Find the vocabulary (or type) axis, if `new` is longer only there."""
  axis = _VOCABULARY.get((path.rpartition('/')[2], len(old)))
  if axis is None or len(old) != len(new) or is_stacked(path) or _is_position(path) or _is_head(path) or 'norm' in path:
    return None
  same_rest = (*old[:axis], *old[axis + 1 :]) == (*new[:axis], *new[axis + 1 :])
  return axis if same_rest and new[axis] > old[axis] else None


def _fix_for(path: str, old: Sequence[int], new: Sequence[int]) -> str:
  if _is_head(path):  # of other classes, or of another task
    return "set from_='trunk', to='trunk' in this entry of init_from to take only the trunk; the head is then new"
  if len(old) == len(new) and tuple(old[1:]) == tuple(new[1:]):
    if _is_position(path):
      return "set resize='interpolate' in this entry of init_from to interpolate the positions"
    if is_stacked(path) and new[0] < old[0]:
      return f'set layers=(...) in this entry of init_from to name the {new[0]} layers to take'
  if longer_vocabulary(path, old, new) is not None:
    return (
      "set resize='new_rows' in this entry of init_from to keep the initial rows at the end, or 'mean_rows' to start "
      'them from the mean'
    )
  return (
    'the two models differ in size: set --config.model.from=FOLDER to take the sizes of the source, or leave this part '
    'out with from_ and to'
  )


def _place(value: np.ndarray, like: Array) -> Array:
  return jax.make_array_from_callback(value.shape, like.sharding, lambda index: value[index])


def _put_first(value: np.ndarray, fresh: Array) -> Array:
  """Replace the leading rows of `fresh` by `value`."""
  put = jax.jit(
    lambda fresh, value: jax.lax.dynamic_update_slice(fresh, value, (0,) * fresh.ndim), out_shardings=fresh.sharding
  )
  return put(fresh, value)


def with_fresh(fitted: Array, fresh: Array) -> tuple[Array, int]:
  """Replace the zero rows of `fitted` by those of `fresh`.

  [n, ...] each, and count them.
  """

  def fill(fitted: Array, fresh: Array) -> tuple[Array, Array]:
    zero = (fitted == 0).reshape(len(fitted), -1).all(axis=1)
    return jnp.where(zero.reshape(-1, *(1,) * (fitted.ndim - 1)), fresh, fitted), zero.sum()

  filled, zeros = jax.jit(fill)(fitted, fresh)
  return jax.device_put(filled, fresh.sharding), int(zeros)


def subtract(whole: Array, first: Array, fresh: Array, *, rows: int) -> Array:
  """Subtract `first` from `whole`, [n, d] each, in `rows` rows.

  The others are those of `fresh`.
  """
  rest = jax.jit(
    lambda whole, first, fresh: jnp.where(jnp.arange(len(fresh))[:, None] < rows, whole - first, fresh),
    out_shardings=fresh.sharding,
  )
  return rest(whole, first, fresh)


def _is_position(path: str) -> bool:
  return 'position' in path and not is_stacked(path)


def _is_head(path: str) -> bool:
  return path.partition('/')[0] == 'head'
