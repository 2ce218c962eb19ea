"""Sparse updates of tables: only the rows that a step reads are differentiated and updated.

The gradient of a whole table of word vectors, its update and their norms cost time proportional to the table, however
few words are in a batch. With `Task.rows` the step works on a small table of the rows in use:

  # table 5 rows, ids 3 1 3   rows  1 3 5      row 5 does not exist and pads to a fixed number

`take` cuts these rows from parameters and from the state of their update rule. `with_rows` gives the model their ids,
in which it finds the index of an id in the small table (`layers.linear.Embed`). `put` writes the rows back. No array
has a position for each row of the table, so a step takes the same time whatever the vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from plm_jax.core.param_paths import ROWS, flat, group_name, nested, path_name
from plm_jax.core.types import Array, PyTree

Tables = Mapping[str, Array]  # path -> int32[n], rows in use, ascending; padded with v, the number of rows of the table


def find(ids: Mapping[str, Array], params: PyTree) -> dict[str, Array]:
  """Find the rows of each table that a step reads, as `Tables`.

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
    # 3 1 3 -> 1 3 3, of which the last is no first occurrence
    ascending = jax.lax.sort(read.reshape(-1).astype(jnp.int32), is_stable=False)
    first = jnp.diff(ascending, prepend=-1) != 0
    fresh = jnp.full(min(read.size, size), size, jnp.int32)
    tables[path] = fresh.at[jnp.where(first, jnp.cumsum(first) - 1, size)].set(ascending, mode='drop')
  return tables


def take(tree: PyTree, tables: Tables) -> PyTree:
  """Select the rows of each table in parameters or an optimiser state."""

  def take_leaf(path: tuple[Any, ...], leaf: Array) -> Array:
    table = _of_table(path, tables)
    return leaf if table is None else jnp.take(leaf, table, axis=0, mode='fill', fill_value=0)

  return jax.tree_util.tree_map_with_path(take_leaf, tree)


def put(tree: PyTree, small: PyTree, tables: Tables) -> PyTree:
  """Invert `take`: write the rows of `small` into the tables of `tree`."""

  def put_leaf(path: tuple[Any, ...], leaf: Array, new: Array) -> Array:
    table = _of_table(path, tables)
    return new if table is None else leaf.at[table].set(new, mode='drop', indices_are_sorted=True)

  return jax.tree_util.tree_map_with_path(put_leaf, tree, small)


def others(tree: PyTree, tables: Tables) -> PyTree:
  """Replace leaves of `optim.norms`' parts with a table by None."""
  parts = {group_name(table) for table in tables}

  def keep_leaf(path: tuple[Any, ...], leaf: Array) -> Array | None:
    return None if group_name(path_name(path)) in parts else leaf

  return jax.tree_util.tree_map_with_path(keep_leaf, tree)


def with_rows(params: PyTree, tables: Tables) -> PyTree:
  """Add the ids of the rows to parameters from `take`."""
  if not tables:
    return params
  return nested(flat(params) | {f'{path}{ROWS}': rows for path, rows in tables.items()})


def _of_table(path: tuple[Any, ...], tables: Tables) -> Array | None:
  """Find a leaf's table: 'rule/1/sum_of_squares/head/table' belongs to 'head/table'."""
  name = f'/{path_name(path)}'
  return next((rows for table, rows in tables.items() if name.endswith(f'/{table}')), None)
