"""Tables of which a step reads few rows: these are taken out, differentiated, updated and put back.

A gradient of a whole table of word vectors, its update and their norms cost as much as the table is large, however few
words stand in a batch. With the rows that `Task.rows` names, the step works on a small table in place of the large one:

  # table 5 rows, ids 3 1 3   rows  1 3 5   place  . 0 . 1 .      row 5, which is not there, fills up to a fixed number

`take` cuts these rows from parameters and from the state of their update rule, `with_places` tells the model where each
row of the large table stands in the small one (`layers.linear.Embed`), and `put` writes them back.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.core.param_paths import PLACE, flat, group_name, nested, path_name
from plm_jax.core.types import Array, PyTree


class Rows(NamedTuple):
  """The rows of a table that a step reads.

  Attributes:
    rows: int32[n], ascending; v, the number of rows of the table, where fewer than n are read.
    place: int32[v], where each row that is read stands in `rows`.
  """

  rows: Array
  place: Array


def find(ids: Mapping[str, Array], params: PyTree) -> dict[str, Rows]:
  """Path of each table -> its rows that are read.

  Args:
    ids: path of a table -> int array of any shape, the rows that the model reads; some may be there several times.
    params: the parameters that train.

  Raises:
    ValueError: no parameter that trains has such a path.
  """
  leaves, found = flat(params), {}
  for path, read in ids.items():
    if path not in leaves:
      raise ValueError(
        f"the task reads rows of {path!r}, which does not train: set objective.update='tables', by which tables may be "
        f'frozen, or let it train by optim.scale; what trains: {", ".join(leaves)}'
      )
    size = leaves[path].shape[0]
    marked = jnp.zeros(size, jnp.int32).at[read.reshape(-1)].set(1)
    rows = jnp.flatnonzero(marked, size=min(read.size, size), fill_value=size)
    found[path] = Rows(rows.astype(jnp.int32), jnp.cumsum(marked) - 1)
  return found


def take(tree: PyTree, tables: Mapping[str, Rows]) -> PyTree:
  """Parameters, or a state of an optimiser, with those rows alone of each table and of what follows its shape."""

  def one(path: tuple[Any, ...], leaf: Array) -> Array:
    own = _of_table(path, tables)
    return leaf if own is None else jnp.take(leaf, own.rows, axis=0, mode='fill', fill_value=0)

  return jax.tree_util.tree_map_with_path(one, tree)


def put(tree: PyTree, small: PyTree, tables: Mapping[str, Rows]) -> PyTree:
  """The inverse of `take`: `small` with all rows of each table, the others being those of `tree`."""

  def one(path: tuple[Any, ...], leaf: Array, new: Array) -> Array:
    own = _of_table(path, tables)
    return new if own is None else leaf.at[own.rows].set(new, mode='drop', indices_are_sorted=True)

  return jax.tree_util.tree_map_with_path(one, tree, small)


def others(tree: PyTree, tables: Mapping[str, Rows]) -> PyTree:
  """The leaves of parts without a table, as `optim.norms` names parts; None in place of the others."""
  parts = {group_name(table) for table in tables}

  def one(path: tuple[Any, ...], leaf: Array) -> Array | None:
    return None if group_name(path_name(path)) in parts else leaf

  return jax.tree_util.tree_map_with_path(one, tree)


def with_places(params: PyTree, tables: Mapping[str, Rows]) -> PyTree:
  """All parameters, those of `tables` cut by `take`, with the places of the rows beside each."""
  if not tables:
    return params
  return nested(flat(params) | {f'{path}{PLACE}': rows.place for path, rows in tables.items()})


def _of_table(path: tuple[Any, ...], tables: Mapping[str, Rows]) -> Rows | None:
  """The rows of the table that a leaf is, or whose state it is: 'rule/1/sum_of_squares/head/table' of 'head/table'."""
  name = f'/{path_name(path)}'
  return next((rows for table, rows in tables.items() if name.endswith(f'/{table}')), None)
