"""Names of parameters: the path of a leaf, the paths of its layers, trees as dicts by path."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.tree_util import GetAttrKey

from plm_jax.core.types import PyTree

BOX = GetAttrKey('value')  # of the boxes that carry the axis names of a parameter
SCALE = '_scale'  # behind the name of a leaf in 8 bits: the leaf with what its numbers are multiplied by
PLACE = '_place'  # behind the name of a table of which only some rows are there: where each row stands among them


def path_name(path: Sequence[Any]) -> str:
  """A key path as 'trunk/embed/tokens' or 'opt_state/rule/0/mu/head/kernel'.

  The path of a boxed leaf is that of the leaf without its box.
  """
  return jax.tree_util.keystr(tuple(key for key in path if key != BOX), simple=True, separator='/')


def is_stacked(path: str, leaf: Any) -> bool:
  """Whether axis 0 of a parameter runs over layers; it does not below `layers/3`, where each layer has its own."""
  parts = path.split('/')
  if 'layers' not in parts[:-1] or len(leaf.shape) == 0:
    return False
  return not parts[parts.index('layers') + 1].isdigit()


def virtual_paths(path: str, leaf: Any) -> list[str]:
  """The paths that patterns see: one for each layer of a stacked parameter, else the path itself."""
  if not is_stacked(path, leaf):
    return [path]
  parts = path.split('/')
  place = parts.index('layers') + 1
  return ['/'.join([*parts[:place], str(layer), *parts[place:]]) for layer in range(leaf.shape[0])]


def both(pattern: str, other: str) -> str:
  """A pattern of the paths that match two, each as a whole."""
  return other if pattern == '.*' else f'(?={pattern}$)(?:{other})'


def group_name(path: str) -> str:
  """The part of the model that a path belongs to: 'trunk/embed', 'trunk/layers', or the name of the head."""
  parts = path.split('/')
  return '/'.join(parts[:2] if parts[0] == 'trunk' else parts[:1])


def flat(tree: PyTree) -> dict[str, Any]:
  """A tree as a dict: path of each leaf, as `path_name` spells it -> leaf."""
  leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
  return {path_name(path): leaf for path, leaf in leaves}


def nested(leaves: Mapping[str, Any]) -> PyTree:
  """The inverse of `flat` for nested dicts."""
  if '' in leaves:
    return leaves['']
  tree: dict[str, Any] = {}
  for path, leaf in leaves.items():
    *parents, name = path.split('/')
    node = tree
    for parent in parents:
      node = node.setdefault(parent, {})
    node[name] = leaf
  return tree
