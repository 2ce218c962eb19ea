"""Initialisation of a model from parts of others: `init_from` in a config.

A part of a saved parameter tree ('trunk') becomes a part of this model, leaf by leaf. Nothing is cut, resized, cast or
left out unless an entry requests it. The report lists restored, new and unused leaves.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from plm_jax.checkpoint import fit
from plm_jax.checkpoint.fit import TOKEN_TABLE, SameTokens, is_stacked, join
from plm_jax.checkpoint.params import Params, open_params
from plm_jax.checkpoint.saved_steps import Step
from plm_jax.core.errors import one_of, suggest
from plm_jax.core.keywords import NonNegativeInt
from plm_jax.core.param_paths import flat
from plm_jax.core.types import Array, PyTree

Resize = Literal['interpolate', 'new_rows', 'mean_rows', 'same_tokens']


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
  """One line of `init_from`.

  Attributes:
    source: a folder that `open_params` takes; or a file of word vectors (`weights/word_vectors.py`) with from_='', for
      the table of vectors named by `to`.
    step: of a run: a number, 'newest' or 'best'; None is the best if steps have scores, else the newest.
    from_: part of the source, '' for all of it.
    to: part of this model that receives it, '' for all of it.
    layers: stacked layers of the source to take, in this order; None takes all.
    resize: 'interpolate' resizes learned position tables to the length of this model's. 'new_rows' lets the other
      tables, and the kernels and biases of outputs, end in vocabulary rows that keep their initial values. 'mean_rows'
      starts these rows from the mean of the source's (ULMFiT's released code, for new words). A width is never changed.
      Rows that only pad the source's token table do not count. 'same_tokens' takes each vocabulary row from the row of
      the same token, by its text, in the vocabulary of the source, and starts the others from the mean; the two
      vocabularies may differ in everything. A sequence combines several.
    dtype: the dtype of this model's parameters, required if the source has another one.
    fresh_zeros: rows that are zero in the source, such as those of words that a file of vectors lacks, keep their
      initial values.
    add: add to the values of earlier entries, for a source that stores a parameter as a sum (DeBERTa-v3's token table).
    fitting: take the part if it has the same leaves of the same shapes as here, and the head of a task if it also
      separates the same classes in the same way (`training/parts.py`); otherwise it stays new.
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
    """Build an entry; raise ValueError for unknown, missing or contradictory fields."""
    names = [field.name for field in dataclasses.fields(cls)]
    for name in fields:
      if name not in names:
        raise ValueError(f'init_from has no {name!r}.{suggest(name, names)} Keys: {", ".join(names)}')
    if 'source' not in fields:
      raise ValueError("init_from: an entry needs a 'source': a run folder, or one with saved parameters")
    entry = cls(**fields)
    for resize in entry.resizes:
      one_of('init_from: resize', resize, Resize)
    if entry.add and entry.fresh_zeros:
      raise ValueError('init_from: add=True also adds zeros: remove fresh_zeros')
    return entry

  @property
  def resizes(self) -> tuple[Resize, ...]:
    """Return `resize` as a tuple."""
    if self.resize is None:
      return ()
    return (self.resize,) if isinstance(self.resize, str) else tuple(self.resize)


class Report(NamedTuple):
  """Origin of every leaf.

  Attributes:
    restored: leaf -> its source and how it was changed.
    new: leaves that keep their initial values.
    skipped: leaves of the sources, as 'source:path', without a leaf in this model.
  """

  restored: dict[str, str]
  new: tuple[str, ...]
  skipped: tuple[str, ...]

  def table(self) -> str:
    """Format one line per leaf, and a last line with the counts."""
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
  """Replace initial parameters by saved ones.

  Args:
    params: nested dicts of placed arrays; each leaf keeps its shape, dtype and sharding.
    init_from: the fields of one `Entry` each; later entries overwrite earlier ones.
    open_params: (source, step=) -> its parameters.
    position_rows: `Trunk.position_rows`. Rows of a table before these are not positions (RoBERTa's first two) and are
      not interpolated.
    sums: a leaf that a model may store as the sum of two others -> those two. If a source has such a leaf, but not the
      second of the two, the second becomes the leaf minus the first.
    same_tokens: a source -> the positions of the tokens of this model's vocabulary in its own, for entries with
      'same_tokens'.
    vocab_size: a source -> number of ids of its vocabulary, after which rows of its token table are padding; None if
      unknown. Called for entries with 'mean_rows', and for tables with more rows than here.
    width_key: (source, leaf of this model) -> the key of a config that sets the width of the leaf, if the source is a
      file of word vectors; None for other sources.

  Returns:
    (params, report).

  Raises:
    ValueError: a part that does not exist, a shape or dtype that differs although the entry does not convert it, or an
      entry without effect. The message names the leaf, both sides and the fix.
    CheckpointError: the source is missing or damaged.
  """
  leaves = _Leaves(fresh=flat(params))
  for fields in init_from:
    entry = Entry.read(fields)
    saved = open_params(entry.source, step=entry.step)
    source = saved.arrays(entry.from_ or None)
    vocabulary = _vocabulary_of(source, leaves.fresh, entry, same_tokens=same_tokens, vocab_size=vocab_size)
    if entry.layers is not None and not any(is_stacked(join(entry.from_, name)) for name in source):
      raise ValueError(
        f'init_from: {entry.source} has no stacked layers under {entry.from_!r}: remove layers= from this entry'
      )
    if entry.fitting and not _fits(source, leaves.fresh, entry):
      leaves.skipped += [f'{entry.source}:{join(entry.from_, name)}' for name in source]
      continue
    convert = functools.partial(
      _convert,
      entry=entry,
      vocabulary=vocabulary,
      position_rows=position_rows,
      width_key=width_key,
      rows=next((leaf.shape[0] for path, leaf in saved.items() if path.endswith(TOKEN_TABLE)), None),
      vocab_size=functools.cache(functools.partial(vocab_size, entry.source)),
    )
    if not _take(leaves, source, entry, sums, convert):
      raise ValueError(_nothing_in_common(source, leaves.fresh, entry))
  _take_rests(leaves, sums)
  _, structure = jax.tree.flatten(params)
  new = tuple(name for name in leaves.fresh if name not in leaves.restored)
  report = Report(restored=leaves.restored, new=new, skipped=tuple(leaves.skipped))
  return jax.tree.unflatten(structure, leaves.current.values()), report


# Steps of `initialise` -----------------------------------------------------------------------------------------------


class _Vocabulary(NamedTuple):
  """Conversion of the vocabulary rows of an entry."""

  tokens: SameTokens | None  # for 'same_tokens', else None
  # rows of both token tables, which may be padded, or else the numbers of ids; used with `tokens`
  tables: tuple[int, int]
  size: int | None  # number of ids of the source for 'mean_rows', else None
  padded: tuple[int, int] | None  # of `fit.token_table_rows`, if `size` is known


@dataclasses.dataclass
class _Leaves:
  """Leaves of this model while entries are applied."""

  fresh: Mapping[str, Array]  # path -> the initial leaf
  current: dict[str, Array] = dataclasses.field(init=False)  # path -> the leaf
  restored: dict[str, str] = dataclasses.field(default_factory=dict)
  skipped: list[str] = dataclasses.field(default_factory=list)
  # path -> a leaf of a source and its entry; this model stores the leaf as a sum
  wholes: dict[str, tuple[np.ndarray, Entry]] = dataclasses.field(default_factory=dict)

  def __post_init__(self) -> None:
    self.current = dict(self.fresh)


def _vocabulary_of(
  source: Mapping[str, np.ndarray],
  fresh: Mapping[str, Array],
  entry: Entry,
  *,
  same_tokens: Callable[[str], SameTokens] | None,
  vocab_size: Callable[[str], int | None],
) -> _Vocabulary:
  tokens = same_tokens(entry.source) if same_tokens is not None and 'same_tokens' in entry.resizes else None
  rows = fit.token_table_rows(source, fresh, entry)
  tables = (0, 0) if tokens is None else rows or (tokens.size, len(tokens.rows))
  size = vocab_size(entry.source) if 'mean_rows' in entry.resizes and tokens is None else None
  return _Vocabulary(tokens=tokens, tables=tables, size=size, padded=None if size is None else rows)


def _take(
  leaves: _Leaves,
  source: Mapping[str, np.ndarray],
  entry: Entry,
  sums: Mapping[str, tuple[str, str]],
  convert: Callable[[str, np.ndarray, Array], tuple[Array, str]],
) -> bool:
  """Take the leaves of a source; return False if it has none."""
  taken = False
  for name, value in source.items():
    origin, path = f'{entry.source}:{join(entry.from_, name)}', join(entry.to, name)
    if path in sums and path not in leaves.current and sums[path][1] in leaves.current:
      leaves.wholes[path], taken = (value, entry), True
      continue
    if path not in leaves.current:
      leaves.skipped.append(origin)
      continue
    fitted, how = convert(path, value, leaves.fresh[path])
    if not entry.add:
      leaves.current[path], leaves.restored[path] = fitted, f'{origin}{how}'
    elif path in leaves.restored:
      leaves.current[path] = leaves.current[path] + fitted
      leaves.restored[path] = f'{leaves.restored[path]} + {origin}{how}'
    else:
      raise ValueError(f'init_from: add=True adds {origin} to {path}, but no earlier entry restores {path}')
    taken = True
  return taken


def _convert(
  path: str,
  value: np.ndarray,
  fresh: Array,
  *,
  entry: Entry,
  vocabulary: _Vocabulary,
  position_rows: Mapping[str, range],
  width_key: Callable[[str, str], str | None],
  rows: int | None,
  vocab_size: Callable[[], int | None],
) -> tuple[Array, str]:
  """Convert a leaf as its entry requests; also describe the changes."""
  tokens = vocabulary.tokens
  if vocabulary.size is not None and vocabulary.padded is not None:
    value = fit.without_padding(path, value, fresh, vocabulary.size, vocabulary.padded)
  value, cut = fit.without_spare(path, value, fresh.shape, rows, vocab_size) if tokens is None else (value, '')
  by_rows = value if tokens is None else fit.by_token(path, value, fresh, tokens, vocabulary.tables)
  key = width_key(entry.source, path)
  before = next((rows.start for name, rows in position_rows.items() if path.startswith(f'trunk/{name}/')), 0)
  fitted, how = fit.fit(path, by_rows, fresh, entry, before=before, width_key=key)
  how = cut + how
  if by_rows is not value and tokens is not None:
    how += f', {np.count_nonzero(tokens.rows >= 0)} of {len(tokens.rows)} rows by their token, the others their mean'
  if entry.fresh_zeros:
    fitted, zeros = fit.with_fresh(fitted, fresh)
    how += f', {zeros} rows of zeros new'
  return fitted, how


def _take_rests(leaves: _Leaves, sums: Mapping[str, tuple[str, str]]) -> None:
  """Set the second part of sums that a source stores whole."""
  for path, (value, entry) in leaves.wholes.items():
    first, second = sums[path]
    if second not in leaves.restored:
      fitted, how = fit.fit(second, value, leaves.fresh[second], entry, before=0)
      leaves.current[second] = fit.subtract(fitted, leaves.current[first], leaves.fresh[second], rows=len(value))
      leaves.restored[second] = f'{entry.source}:{path}{how}, less {first}'


def _nothing_in_common(source: Mapping[str, np.ndarray], fresh: Mapping[str, Array], entry: Entry) -> str:
  tops = sorted({'/'.join(name.split('/')[:2]) for name in fresh})
  return (
    f'init_from: {entry.from_!r} of {entry.source} has no leaf in common with {entry.to!r} of this model. '
    f'It has {", ".join(sorted(source)[:8])}; this model has {", ".join(tops)}. Change from_ or to'
  )


def _fits(source: Mapping[str, np.ndarray], fresh: Mapping[str, Array], entry: Entry) -> bool:
  inside = entry.to and f'{entry.to}/'
  here = {path: leaf.shape for path, leaf in fresh.items() if f'{path}/'.startswith(inside)}
  return here == {join(entry.to, name): value.shape for name, value in source.items()}
