"""Names of parameters: the path of a leaf, the paths of its layers, and trees as dicts by path."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from plm_jax.core.types import PyTree

BOX = GetAttrKey('value')  # key of a box with the axis names of a parameter
SCALE = '_scale'  # suffix of the leaf with the scales of a leaf in 8 bits
ROWS = '_rows'  # suffix of the leaf with the ids of the rows, for a table with only some of them


def path_name(path: Sequence[Any]) -> str:
  """Format a key path as 'trunk/embed/tokens'.

  Another example is 'opt_state/rule/0/mu/head/kernel'. The path of a boxed leaf is that of the leaf without its box.
  """
  return jax.tree_util.keystr(tuple(key for key in path if key != BOX), simple=True, separator='/')


def is_stacked(path: str, leaf: Any) -> bool:
  """Check whether axis 0 runs over layers; not below `layers/3`."""
  # trunk/layers/query/kernel is stacked, trunk/layers/3/query/kernel is not
  parts = path.split('/')
  if 'layers' not in parts[:-1] or len(leaf.shape) == 0:
    return False
  return not parts[parts.index('layers') + 1].isdigit()


def virtual_paths(path: str, leaf: Any) -> list[str]:
  """List the paths for patterns, one per layer of a stacked parameter."""
  if not is_stacked(path, leaf):
    return [path]
  # trunk/layers/query/kernel of 12 layers -> trunk/layers/0/query/kernel ... trunk/layers/11/query/kernel
  parts = path.split('/')
  after = parts.index('layers') + 1
  return ['/'.join([*parts[:after], str(layer), *parts[after:]]) for layer in range(leaf.shape[0])]


def both(pattern: str, other: str) -> str:
  """Combine two patterns into one that matches if both match."""
  # a lookahead for the whole first pattern, then the second: 'a.*' and '.*b' -> '(?=a.*$)(?:.*b)'
  return other if pattern == '.*' else f'(?={pattern}$)(?:{other})'


def group_name(path: str) -> str:
  """Return 'trunk/embed', 'trunk/layers', or the name of the head."""
  # trunk/layers/query/kernel -> trunk/layers, head/kernel -> head
  parts = path.split('/')
  return '/'.join(parts[:2] if parts[0] == 'trunk' else parts[:1])


def flat(tree: PyTree) -> dict[str, Any]:
  """Flatten a tree into a dict from path (`path_name`) to leaf."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {path_name(path): leaf for path, leaf in leaves}


def nested(leaves: Mapping[str, Any]) -> PyTree:
  """Build nested dicts from paths, the inverse of `flat`."""
  if '' in leaves:
    return leaves['']
  # {'a/b': 1, 'a/c': 2} -> {'a': {'b': 1, 'c': 2}}
  tree: dict[str, Any] = {}
  for path, leaf in leaves.items():
    *parents, name = path.split('/')
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = leaf
  return tree
