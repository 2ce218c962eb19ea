"""Sparse updates of tables: only the rows that a step reads are differentiated and updated.

The gradient of a whole table of word vectors, its update and their norms cost time proportional to the table, however
few words are in a batch. With `Task.rows` the step works on a small table of the rows in use:

  # table 5 rows, ids 3 1 3   rows  1 3 5   place  . 0 . 1 .      row 5 does not exist and pads to a fixed number

`take` cuts these rows from parameters and from the state of their update rule. `with_places` gives the model the index
of each row in the small table (`layers.linear.Embed`). `put` writes the rows back.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from plm_jax.core.param_paths import PLACE, flat, group_name, nested, path_name
from plm_jax.core.types import Array, PyTree


class Rows(NamedTuple):
  """Rows of a table that a step reads."""

  rows: Array  # int32[n], ascending; padded with v, the number of rows of the table
  place: Array  # int32[v], index in `rows` of each row that is read


def find(ids: Mapping[str, Array], params: PyTree) -> dict[str, Rows]:
  """Find the rows of each table that a step reads, by path.

  Args:
    ids: path of a table -> int array of any shape, the rows that the model reads; may have duplicates.
    params: the parameters that train.

  Raises:
    ValueError: a table does not train.
  """
  leaves, tables = flat(params), {}
  for path, read in ids.items():
    if path not in leaves:
      raise ValueError(
        f"the task reads rows of {path!r}, which does not train: set objective.update='tables', or train it by "
        f'optim.scale. These train: {", ".join(leaves)}'
      )
    size = leaves[path].shape[0]
    marked = jnp.zeros(size, jnp.int32).at[read.reshape(-1)].set(1)
    rows = jnp.flatnonzero(marked, size=min(read.size, size), fill_value=size)
    tables[path] = Rows(rows=rows.astype(jnp.int32), place=jnp.cumsum(marked) - 1)
  return tables


def take(tree: PyTree, tables: Mapping[str, Rows]) -> PyTree:
  """Select the rows of each table in parameters or an optimiser state."""

  def take_leaf(path: tuple[Any, ...], leaf: Array) -> Array:
    table = _of_table(path, tables)
    return leaf if table is None else jnp.take(leaf, table.rows, axis=0, mode='fill', fill_value=0)

  return jax.tree_util.tree_map_with_path(take_leaf, tree)


def put(tree: PyTree, small: PyTree, tables: Mapping[str, Rows]) -> PyTree:
  """Invert `take`: write the rows of `small` into the tables of `tree`."""

  def put_leaf(path: tuple[Any, ...], leaf: Array, new: Array) -> Array:
    table = _of_table(path, tables)
    return new if table is None else leaf.at[table.rows].set(new, mode='drop', indices_are_sorted=True)

  return jax.tree_util.tree_map_with_path(put_leaf, tree, small)


def others(tree: PyTree, tables: Mapping[str, Rows]) -> PyTree:
  """Replace leaves of `optim.norms`' parts with a table by None."""
  parts = {group_name(table) for table in tables}

  def keep_leaf(path: tuple[Any, ...], leaf: Array) -> Array | None:
    return None if group_name(path_name(path)) in parts else leaf

  return jax.tree_util.tree_map_with_path(keep_leaf, tree)


def with_places(params: PyTree, tables: Mapping[str, Rows]) -> PyTree:
  """Add the row indices of each table to parameters from `take`."""
  if not tables:
    return params
  return nested(flat(params) | {f'{path}{PLACE}': rows.place for path, rows in tables.items()})


def _of_table(path: tuple[Any, ...], tables: Mapping[str, Rows]) -> Rows | None:
  """Find a leaf's table: 'rule/1/sum_of_squares/head/table' belongs to 'head/table'."""
  name = f'/{path_name(path)}'
  return next((rows for table, rows in tables.items() if name.endswith(f'/{table}')), None)
