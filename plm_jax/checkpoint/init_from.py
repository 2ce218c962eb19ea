"""Starting a model from parts of others: `init_from` in a config.

A part of a saved parameter tree ('trunk') becomes a part of this one, leaf by leaf. Nothing is cut, stretched, cast or
left out unless an entry asks for it; the report names what was restored, what is new and what was not used.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.checkpoint.params import Params, open_params
from plm_jax.checkpoint.saved_steps import Step
from plm_jax.core.errors import one_of, suggest
from plm_jax.core.param_paths import flat
from plm_jax.core.types import Array, PyTree, NonNegativeInt

Resize = Literal['interpolate', 'new_rows', 'mean_rows', 'same_tokens']
TOKEN_TABLE = 'token_embed/table'  # the end of its path
# name of a leaf and number of its axes -> the axis of a vocabulary, if it has one
_VOCABULARY = {('table', 2): 0, ('embedding', 2): 0, ('kernel', 2): 1, ('bias', 1): 0}
STACKED = 'layers'  # the path component below which axis 0 numbers the layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One line of `init_from`.

  Attributes:
    source: a folder that `open_params` takes; or a file of word vectors (`weights/word_vectors.py`) with from_='', for
      the table of vectors that `to` names.
    step: of a run: a number, 'newest' or 'best'; None is the best if steps have scores, else the newest.
    from_: part of the source, '' for all of it.
    to: part of this model that receives it, '' for all of it.
    layers: which stacked layers of the source to take, in this order; None takes all.
    resize: 'interpolate' stretches learned position tables to the length of this model's, 'new_rows' lets the other
      tables, and the kernels and biases of outputs, end in rows of a vocabulary that keep their fresh values,
      'mean_rows' in rows that start from the mean of the source's (ULMFiT's released code, for new words); a width is
      never changed. Rows that only pad the source's token table do not count. 'same_tokens'
      takes each row of a vocabulary from the row that the same token has in the vocabulary of the source, by its text,
      and starts the others from the mean; the two vocabularies may differ in everything. Several may be given, in a
      sequence.
    dtype: the dtype of this model's parameters, required if the source has another one.
    fresh_zeros: rows that are zero in the source, as those of words that a file of vectors lacks, keep the fresh values
      of this model.
    add: add to what earlier entries put there, for a source that keeps a parameter as a sum (DeBERTa-v3's token table).
    fitting: take the part where it has the same leaves of the same shapes as here, and the head of a task where it also
      tells the same classes apart in the same way (`training/parts.py`); elsewhere it stays new.
  """

  source: str
  step: Step = None
  from_: str = 'trunk'
  to: str = 'trunk'
  layers: Sequence[NonNegativeInt] | None = None
  resize: Resize | Sequence[Resize] | None = None
  dtype: str | None = None
  fresh_zeros: bool = False
  add: bool = False
  fitting: bool = False

  @classmethod
  def read(cls, fields: Mapping[str, Any]) -> 'Entry':
    """The entry with these fields; raises ValueError for one that does not exist."""
    names = [field.name for field in dataclasses.fields(cls)]
    for name in fields:
      if name not in names:
        raise ValueError(f'init_from has no {name!r}.{suggest(name, names)} There are: {", ".join(names)}')
    if 'source' not in fields:
      raise ValueError("init_from: an entry needs a 'source', a run folder or one with saved parameters")
    entry = cls(**fields)
    for resize in entry.resizes:
      one_of('init_from: resize', resize, Resize)
    if entry.add and entry.fresh_zeros:
      raise ValueError('init_from: add=True adds to what is there, zeros too: leave fresh_zeros out')
    return entry

  @property
  def resizes(self) -> tuple[Resize, ...]:
    """`resize` as a tuple."""
    if self.resize is None:
      return ()
    return (self.resize,) if isinstance(self.resize, str) else tuple(self.resize)


class SameTokens(NamedTuple):
  """Where the tokens of a vocabulary stand in that of a source.

  Attributes:
    rows: int64[v], the id in the source of each token; -1 for those that it lacks.
    size: number of ids of the source.
  """

  rows: np.ndarray
  size: int


class Report(NamedTuple):
  """Where every leaf comes from.

  Attributes:
    restored: leaf -> its source and how it was changed.
    new: leaves that keep their initial values.
    skipped: leaves of the sources, as 'source:path', without a place in this model.
  """

  restored: dict[str, str]
  new: tuple[str, ...]
  skipped: tuple[str, ...]

  def table(self) -> str:
    """One line per leaf, and a last line with the counts."""
    width = max((len(name) for name in (*self.restored, *self.new)), default=0)
    lines = [f'restored  {name:<{width}}  {origin}' for name, origin in self.restored.items()]
    lines += [f'new       {name}' for name in self.new]
    lines += [f'skipped   {name}' for name in self.skipped]
    counts = f'{len(self.restored)} restored, {len(self.new)} new, {len(self.skipped)} skipped'
    return '\n'.join([*lines, counts])


def initialise(
  params: PyTree,
  init_from: Sequence[Mapping[str, Any]],
  *,
  open_params: Callable[..., Params] = open_params,
  position_rows: Mapping[str, range] = MappingProxyType({}),
  sums: Mapping[str, tuple[str, str]] = MappingProxyType({}),
  same_tokens: Callable[[str], SameTokens] | None = None,
  vocab_size: Callable[[str], int | None] = lambda source: None,
  width_key: Callable[[str, str], str | None] = lambda source, path: None,
) -> tuple[PyTree, Report]:
  """Replaces initial parameters by saved ones.

  Args:
    params: nested dicts of placed arrays; each leaf keeps its shape, dtype and sharding.
    init_from: the fields of one `Entry` each; later entries overwrite earlier ones.
    open_params: (source, step=) -> its parameters.
    position_rows: `Trunk.position_rows`. Rows of a table before these are not positions (RoBERTa's first two) and stay
      as they are when the table is interpolated.
    sums: a leaf that a model may keep as the sum of two others -> those two. A source that has such a leaf, but not
      the second of the two, gives the second what is left when the first is taken off.
    same_tokens: a source -> where the tokens of this model's vocabulary stand in its own, for entries that ask for it.
    vocab_size: a source -> number of ids of its vocabulary, behind which rows of its token table are padding; None
      where that is not known. It is asked for entries with 'mean_rows'.
    width_key: (source, leaf of this model) -> the key of a config that sets the width of the leaf, where the source is
      a file of word vectors; None for other sources.

  Returns:
    (params, report).

  Raises:
    ValueError: a part that does not exist, a shape or dtype that differs although the entry does not convert it, or an
      entry without effect. The message names the leaf, both sides and the cure.
    CheckpointError: the source is missing or damaged.
  """
  fresh = flat(params)
  leaves, restored, skipped = dict(fresh), {}, []
  wholes: dict[str, tuple[np.ndarray, Entry]] = {}  # leaves that are sums here
  for fields in init_from:
    entry = Entry.read(fields)
    source = open_params(entry.source, step=entry.step).arrays(entry.from_ or None)
    tokens = same_tokens(entry.source) if same_tokens is not None and 'same_tokens' in entry.resizes else None
    tables = _tables(source, fresh, entry, tokens)
    size = vocab_size(entry.source) if 'mean_rows' in entry.resizes and tokens is None else None
    padded = _token_tables(source, fresh, entry) if size is not None else None
    if entry.layers is not None and not any(is_stacked(join(entry.from_, name)) for name in source):
      raise ValueError(f'init_from: {entry.source} has no stacked layers under {entry.from_!r} to take layers= from')
    if entry.fitting and not _fits(source, fresh, entry):
      skipped += [f'{entry.source}:{join(entry.from_, name)}' for name in source]
      continue
    taken = False
    for name, value in source.items():
      origin, path = join(entry.from_, name), join(entry.to, name)
      if path in sums and path not in leaves and sums[path][1] in leaves:
        wholes[path], taken = (value, entry), True
        continue
      if path not in leaves:
        skipped.append(f'{entry.source}:{origin}')
        continue
      if size is not None and padded is not None:
        value = _unpadded(path, value, fresh[path], size, padded)
      moved = value if tokens is None else _by_token(path, value, fresh[path], tokens, tables)
      key = width_key(entry.source, path)
      fitted, how = _fit(path, moved, fresh[path], entry, before=_before(path, position_rows), width_key=key)
      if moved is not value and tokens is not None:
        how += (
          f', {np.count_nonzero(tokens.rows >= 0)} of {len(tokens.rows)} rows by their token, the others their mean'
        )
      if entry.fresh_zeros:
        fitted, zeros = _with_fresh(fitted, fresh[path])
        how += f', {zeros} rows of zeros new'
      if not entry.add:
        leaves[path], restored[path] = fitted, f'{entry.source}:{origin}{how}'
      elif path in restored:
        leaves[path], restored[path] = leaves[path] + fitted, f'{restored[path]} + {entry.source}:{origin}{how}'
      else:
        raise ValueError(f'init_from: {entry.source}:{origin} is to be added to {path}, which no earlier entry gives')
      taken = True
    if not taken:
      tops = sorted({'/'.join(name.split('/')[:2]) for name in fresh})
      raise ValueError(
        f'init_from: {entry.from_!r} of {entry.source} has no leaf in common with {entry.to!r} of this model. '
        f'It has {", ".join(sorted(source)[:8])}; this model has {", ".join(tops)}. Change from_ or to'
      )
  for path, (value, entry) in wholes.items():
    first, second = sums[path]
    if second not in restored:
      fitted, how = _fit(second, value, fresh[second], entry, before=0)
      leaves[second] = _rest(fitted, leaves[first], fresh[second], rows=len(value))
      restored[second] = f'{entry.source}:{path}{how}, less {first}'
  _, structure = jax.tree.flatten(params)
  new = tuple(name for name in fresh if name not in restored)
  return jax.tree.unflatten(structure, leaves.values()), Report(restored, new, tuple(skipped))


def interpolate_positions(table: np.ndarray, length: int, *, before: int = 0) -> np.ndarray:
  """A position table resized by linear interpolation; its first and its last row stay as they are.

  Args:
    table: [before + positions, ...], any float dtype.
    length: rows of the result, those before the positions included.
    before: leading rows that are not positions and stay as they are.

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


def _fits(source: Mapping[str, np.ndarray], fresh: Mapping[str, Array], entry: Entry) -> bool:
  """Whether a part of a source has the leaves of this model's part, of the same shapes."""
  inside = entry.to and f'{entry.to}/'
  here = {path: leaf.shape for path, leaf in fresh.items() if f'{path}/'.startswith(inside)}
  return here == {join(entry.to, name): value.shape for name, value in source.items()}


def _fit(
  path: str, value: np.ndarray, fresh: Array, entry: Entry, *, before: int, width_key: str | None = None
) -> tuple[Array, str]:
  """The leaf of the source with the shape, dtype and sharding of the initial one, and how it was changed.

  Args:
    path: of the leaf.
    value: the leaf of the source.
    fresh: the initial one.
    entry: which asks for it.
    before: rows of a table before its positions.
    width_key: the key of a config that sets the width of the leaf, where the source is a file of word vectors.
  """
  how = ''
  if entry.layers is not None and is_stacked(path):
    value = _take_layers(path, value, entry)
    how += f', layers {", ".join(map(str, entry.layers))}'
  if value.dtype != fresh.dtype:
    if entry.dtype is None or np.dtype(entry.dtype) != fresh.dtype:
      raise ValueError(
        f'{path} is {value.dtype} in {entry.source} and {fresh.dtype} here: '
        f"dtype='{fresh.dtype}' in this entry of init_from converts it"
      )
    how += f', {value.dtype} to {fresh.dtype}'
    value = value.astype(fresh.dtype)
  if value.shape == fresh.shape:
    return _place(value, fresh), how
  if 'interpolate' in entry.resizes and _is_position(path) and value.shape[1:] == fresh.shape[1:]:
    how += f', {len(value) - before} positions interpolated to {fresh.shape[0] - before}'
    return _place(interpolate_positions(value, fresh.shape[0], before=before), fresh), how
  axis = _longer_vocabulary(path, value.shape, fresh.shape)
  if 'new_rows' in entry.resizes and axis is not None:
    how += f', rows {value.shape[axis]} to {fresh.shape[axis] - 1} new'
    return _put_first(value, fresh), how
  if 'mean_rows' in entry.resizes and axis is not None:
    how += f', rows {value.shape[axis]} to {fresh.shape[axis] - 1} their mean'
    mean = value.mean(axis, keepdims=True).repeat(fresh.shape[axis] - value.shape[axis], axis)
    return _place(np.concatenate([value, mean], axis), fresh), how
  cure = _cure(path, value.shape, fresh.shape)
  if width_key is None or value.ndim != fresh.ndim:
    raise ValueError(f'{path} is {list(value.shape)} in {entry.source} and {list(fresh.shape)} here: {cure}')
  if (width := value.shape[-1]) != fresh.shape[-1]:
    raise ValueError(
      f'{path} has rows of {fresh.shape[-1]} numbers here, and the vectors of {entry.source} have {width}: '
      f'--config.{width_key}={width} makes them as wide'
    )
  raise ValueError(
    f'{path} has {len(fresh)} rows here, and {len(value)} come of {entry.source}, one for each word of the vocabulary: '
    f'{cure}'
  )


def _tables(
  source: Mapping[str, np.ndarray], fresh: Mapping[str, Array], entry: Entry, tokens: SameTokens | None
) -> tuple[int, int]:
  """Rows of the tables of both vocabularies: those of the token tables, which may be padded, else how many ids."""
  if tokens is None:
    return 0, 0
  return _token_tables(source, fresh, entry) or (tokens.size, len(tokens.rows))


def _token_tables(source: Mapping[str, np.ndarray], fresh: Mapping[str, Array], entry: Entry) -> tuple[int, int] | None:
  """Rows of the token tables of both models, which may be padded; None where they have none in common."""
  for name, value in source.items():
    if (path := join(entry.to, name)).endswith(TOKEN_TABLE) and path in fresh:
      return len(value), fresh[path].shape[0]
  return None


def _axis_of_tokens(path: str, value: np.ndarray, fresh: Array, tables: tuple[int, int]) -> int | None:
  """The axis of a leaf that has as many rows as the token tables of both models; None where there is not one."""
  if is_stacked(path) or _is_position(path) or value.ndim != fresh.ndim:
    return None
  axes = [axis for axis, pair in enumerate(zip(value.shape, fresh.shape, strict=True)) if pair == tables]
  return axes[0] if len(axes) == 1 else None


def _unpadded(path: str, value: np.ndarray, fresh: Array, size: int, tables: tuple[int, int]) -> np.ndarray:
  """A leaf of the source without the rows behind the first `size`, which pad its token table; others as they are."""
  axis = _axis_of_tokens(path, value, fresh, tables)
  # of tables of one size, a leaf that is not theirs may have as many rows
  if axis is None or (tables[0] == tables[1] and not path.endswith(TOKEN_TABLE)):
    return value
  return value.take(np.arange(min(size, tables[0])), axis)


def _by_token(path: str, value: np.ndarray, fresh: Array, tokens: SameTokens, tables: tuple[int, int]) -> np.ndarray:
  """A leaf of the source with the rows of this model's vocabulary; itself where it has no rows of a vocabulary.

  Rows that pad a table for sharding are no tokens: they begin with the mean too.
  """
  if (axis := _axis_of_tokens(path, value, fresh, tables)) is None:
    return value
  mean = value.take(np.arange(tokens.size), axis).mean(axis, keepdims=True).astype(value.dtype)
  padding = np.full(fresh.shape[axis] - len(tokens.rows), -1)
  rows = np.concatenate([tokens.rows, padding])  # -1 is the last row of what follows, the mean
  return np.concatenate([value, mean], axis).take(rows, axis)


def _take_layers(path: str, value: np.ndarray, entry: Entry) -> np.ndarray:
  wanted = list(entry.layers or ())
  outside = [layer for layer in wanted if not 0 <= layer < len(value)]
  if outside:
    raise ValueError(f'{path}: layers={tuple(wanted)}, but {entry.source} has layers 0 to {len(value) - 1}')
  return value[wanted]


def _longer_vocabulary(path: str, old: Sequence[int], new: Sequence[int]) -> int | None:
  """The axis that numbers a vocabulary, or types, if `new` is longer there and nothing else differs.

  It is the first axis of a table and of the bias of an output, and the last one of an output's kernel.
  """
  axis = _VOCABULARY.get((path.rpartition('/')[2], len(old)))
  if axis is None or len(old) != len(new) or is_stacked(path) or _is_position(path) or _is_head(path) or 'norm' in path:
    return None
  alike = (*old[:axis], *old[axis + 1 :]) == (*new[:axis], *new[axis + 1 :])
  return axis if alike and new[axis] > old[axis] else None


def _cure(path: str, old: Sequence[int], new: Sequence[int]) -> str:
  """What to change if a leaf does not fit, for the message."""
  if _is_head(path):  # it has other classes, or is of another task
    return "from_='trunk', to='trunk' in this entry of init_from takes the trunk alone, and the head starts anew"
  if len(old) == len(new) and tuple(old[1:]) == tuple(new[1:]):
    if _is_position(path):
      return "resize='interpolate' in this entry of init_from stretches the positions"
    if is_stacked(path) and new[0] < old[0]:
      return f'layers=(...) in this entry of init_from names the {new[0]} layers to take'
  if _longer_vocabulary(path, old, new) is not None:
    return (
      "resize='new_rows' in this entry of init_from keeps the fresh rows at the end, 'mean_rows' starts them from the "
      "mean of the source's"
    )
  return (
    'the two models differ in size; --config.model.from=FOLDER takes the sizes of the source, or leave this part out '
    'with from_ and to'
  )


def _place(value: np.ndarray, like: Array) -> Array:
  return jax.make_array_from_callback(value.shape, like.sharding, lambda index: value[index])


def _put_first(value: np.ndarray, fresh: Array) -> Array:
  """`fresh` with its leading rows replaced by `value`."""
  put = jax.jit(
    lambda fresh, value: jax.lax.dynamic_update_slice(fresh, value, (0,) * fresh.ndim), out_shardings=fresh.sharding
  )
  return put(fresh, value)


def _with_fresh(fitted: Array, fresh: Array) -> tuple[Array, int]:
  """`fitted` with the rows of `fresh` in place of those that are zero, [n, ...] each, and how many these are."""

  def fill(fitted: Array, fresh: Array) -> tuple[Array, Array]:
    zero = (fitted == 0).reshape(len(fitted), -1).all(axis=1)
    return jnp.where(zero.reshape(-1, *(1,) * (fitted.ndim - 1)), fresh, fitted), zero.sum()

  filled, zeros = jax.jit(fill)(fitted, fresh)
  return jax.device_put(filled, fresh.sharding), int(zeros)


def _rest(whole: Array, first: Array, fresh: Array, *, rows: int) -> Array:
  """`whole` less `first`, [n, d] each, in so many rows; those of `fresh` behind them."""
  rest = jax.jit(
    lambda whole, first, fresh: jnp.where(jnp.arange(len(fresh))[:, None] < rows, whole - first, fresh),
    out_shardings=fresh.sharding,
  )
  return rest(whole, first, fresh)


def join(parent: str, name: str) -> str:
  """A path below another; either may be empty."""
  return f'{parent}/{name}'.strip('/')


def is_stacked(path: str) -> bool:
  """Whether axis 0 of what stands at a path numbers layers."""
  return STACKED in path.split('/')


def _is_position(path: str) -> bool:
  return 'position' in path and not is_stacked(path)


def _is_head(path: str) -> bool:
  """Whether a leaf is of the head of an adapter."""
  return path.partition('/')[0] == 'head'


def _before(path: str, position_rows: Mapping[str, range]) -> int:
  """Rows of the table at `path` that stand before its positions."""
  return next((rows.start for name, rows in position_rows.items() if path.startswith(f'trunk/{name}/')), 0)
