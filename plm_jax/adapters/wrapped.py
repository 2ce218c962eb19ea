"""Functions shared by wrappers, which add parameters to the model of an inner task and train few of the others.

A wrapper is an adapter whose `make` takes `inner`, the block of another adapter or of an objective, and whose file
defines `ADDS`, the name of its parameters next to 'trunk'. It wraps the model of the inner task and never the trunk:
parameter paths are unchanged, and the inner model is initialised as without the wrapper.

The file defines how the trunk is run with the added parameters, so that a run can be opened (weights/folders.py):

    fold(kernel, added, settings)   merges the added parameters into a parameter. Generation, export and `init_from`
                                    work as without the wrapper.
    grafts(added)                   path in the trunk -> an array that a layer reads there. Generation works; other uses
                                    raise an error, because the trunk alone computes something else.
    ALONE = True                    the other parameters are the whole network; the added ones are omitted (a teacher).
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from plm_jax.adapters import texts
from plm_jax.config import build, signatures
from plm_jax.core.errors import suggest
from plm_jax.core.param_paths import both, flat, nested, virtual_paths
from plm_jax.core.types import EVERYTHING, Array, PyTree, Task, Vocab
from plm_jax.layers.linear import Dense

INNER = 'adapters | objectives'  # kinds of `inner`
HEADS_AND_NORMS = ('(?!trunk/).*', '.*norm/(scale|bias)')


class Axes(NamedTuple):
  """Numbers of trailing input and output axes of a kernel; axes before them are layers."""

  inputs: int
  outputs: int


class Added(NamedTuple):
  """Parameters that a wrapper adds to a model, and functions that use them."""

  name: str  # name of the added parameters, next to 'trunk'
  # (boxed parameters of the inner model by path, key) -> boxed added parameters by path
  make: Callable[[Mapping[str, Any], Array], dict[str, Any]]
  # (parameters of the inner model by path, added parameters by path, dropout key or None) -> parameters that the inner
  # model runs on, by path
  read: Callable[[Mapping[str, Any], Mapping[str, Any], Array | None], dict[str, Any]]
  trained: tuple[str, ...]  # patterns of the parameters of the inner model that train
  # (parameters of the inner model by path, added parameters by path, number of updates) -> both after that update, see
  # `Task.advance`. If given, the added parameters get no gradient.
  advance: Callable[[dict[str, Any], dict[str, Any], Array], tuple[dict[str, Any], dict[str, Any]]] | None = None


class Model:
  """Model of a wrapped task, with the two linen methods that a task uses."""

  def __init__(self, inner: Any, added: Added):
    self.inner, self.added = inner, added

  def init(self, key: Array, train: bool = False, **inputs: Any) -> dict[str, PyTree]:
    """Initialise the inner model, as without the wrapper, and the added parameters.

    Raises:
      ValueError: a pattern matches no parameter, or the inner task uses none of the targets.
    """
    params = self.inner.init(key, train=train, **inputs)['params']
    check_patterns(self.added.trained, params)
    new = self.added.make(flat_boxes(params), key)
    if not new:
      raise ValueError(
        f'adapter {self.added.name!r} would add nothing: the inner task uses none of the layers in adapter.targets. '
        'Name layers that it uses, such as those of attention'
      )
    return {'params': {**params, self.added.name: nested(new)}}

  def apply(self, variables: Mapping[str, PyTree], **arguments: Any) -> Any:
    """Run the inner model with the added parameters; ValueError for others."""
    params, name = variables['params'], self.added.name
    if name not in params:
      raise ValueError(f'no parameters {name!r} among {", ".join(params)}: load those of a run with adapter {name!r}')
    leaves = flat({other: tree for other, tree in params.items() if other != name})
    rng = (arguments.get('rngs') or {}).get('dropout') if arguments.get('train') else None
    return self.inner.apply({'params': nested(self.added.read(leaves, flat(params[name]), rng))}, **arguments)


def make_task(
  inner: Mapping[str, Any], added: Added, *, trunk: nn.Module, vocab: Vocab, second_vocab: Vocab | None = None
) -> Task:
  """Build the inner task and wrap it."""
  return _wrap(make_inner(inner, trunk=trunk, vocab=vocab, second_vocab=second_vocab), added)


def _wrap(task: Task, added: Added) -> Task:
  sized = task.for_documents
  (own,) = task.trains  # all, except those fixed by the trunk
  trained = tuple(both(own, pattern) for pattern in added.trained)
  return task._replace(
    model=Model(task.model, added),  # type: ignore[arg-type]  # it has the two methods of a module that a task uses
    trains=trained if added.advance else (f'{added.name}/.*', *trained),
    advance=partial(_advance, added) if added.advance else None,
    for_documents=None if sized is None else lambda documents: _wrap(sized(documents), added),
  )


def _advance(added: Added, params: Mapping[str, PyTree], step: Array) -> PyTree:
  assert added.advance is not None
  leaves = flat({name: tree for name, tree in params.items() if name != added.name})
  after, own = added.advance(leaves, flat(params[added.name]), step)
  return {**nested(after), added.name: nested(own)}


def dense_layers(trunk: nn.Module) -> dict[str, Axes]:
  """Find the dense layers of a trunk by path, such as 'trunk/layers/query'."""
  kernels = matrices(trunk, lambda module: isinstance(module, Dense))
  return {path.removesuffix('/kernel'): axes for path, axes in kernels.items()}


def matrices(trunk: nn.Module, is_one: Callable[[Any], bool]) -> dict[str, Axes]:
  """Find kernels and tables of modules by path, without computing anything.

  The layers of a stack share a path.
  """
  found: dict[str, Axes] = {}

  def note(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    module: Any = context.module
    if is_one(module):
      outputs = len(module.features) if isinstance(module.features, tuple) else 1
      is_dense = isinstance(module, Dense)
      path = '/'.join(('trunk', *module.path, 'kernel' if is_dense else 'table'))
      found[path] = Axes(inputs=module.num_inputs if is_dense else 0, outputs=outputs)
    return call(*args, **kwargs)

  with nn.intercept_methods(note):
    params = jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all')['params'])
  present = flat({'trunk': nn.unbox(params)})
  return {path: axes for path, axes in sorted(found.items()) if path in present}


def make_inner(inner: Mapping[str, Any], *, trunk: nn.Module, vocab: Vocab, second_vocab: Vocab | None = None) -> Task:
  """Build the inner task.

  Raises:
    ValueError: it is a wrapper, or gives its trunk no gradient.
  """
  name = inner.get('name', '')
  folder = signatures.folder_of(INNER, name)
  if folder == 'adapters' and signatures.literal(f'adapters.{name}', 'ADDS'):
    raise ValueError(f'adapter.inner.name={name!r} is itself a wrapper: name the task that it would wrap')
  task: Task = build.make(folder, inner, trunk=trunk, vocab=vocab, offered={'second_vocab': second_vocab})
  if task.trains not in (EVERYTHING, texts.all_but_fixed(trunk)):
    fix = 'remove adapter.inner.frozen' if inner.get('frozen') else 'choose another adapter.inner.name'
    raise ValueError(
      f'adapter.inner.name={name!r} stops the gradient of its trunk, which the wrapper needs: {fix}. The wrapper '
      'freezes the trunk'
    )
  return task._replace(trains=texts.all_but_fixed(trunk))


def check_patterns(patterns: Sequence[str], params: PyTree) -> None:
  """Raise ValueError for an `adapter.trained` pattern that matches no parameter."""
  paths = [layer_path for path, leaf in flat(nn.unbox(params)).items() for layer_path in virtual_paths(path, leaf)]
  for pattern in patterns:
    if pattern not in HEADS_AND_NORMS and not any(re.fullmatch(pattern, path) for path in paths):
      raise ValueError(
        f'adapter.trained: {pattern!r} matches no parameter.{suggest(pattern, paths)} A pattern must match the whole '
        'path with the layer index, such as trunk/layers/3/mlp/up/kernel'
      )


def named(targets: Sequence[str], trunk: nn.Module, *, what: str) -> dict[str, Axes]:
  """Select the dense layers of a trunk that `targets` names, by path.

  A target is the last part of a path, such as 'query', or a regular expression that matches a whole path. Raises
  ValueError, with the config key `what`, if one names no layer, or there are no targets.
  """
  dense = dense_layers(trunk)
  if not targets:
    raise ValueError(f"{what}=() is empty: name one or more dense layers, such as ('query', 'value')")
  chosen: dict[str, Axes] = {}
  for target in targets:
    matching = [path for path in dense if path.rpartition('/')[2] == target or re.fullmatch(target, path)]
    if not matching:
      names = sorted({path.rpartition('/')[2] for path in dense})
      raise ValueError(
        f'{what}: {target!r} names no dense layer of {type(trunk).__name__}.{suggest(target, names)} Layers: '
        f'{", ".join(names) or "none"}; name one, or a pattern of whole paths ({next(iter(dense), "trunk/.*")}), or '
        'choose another model.name'
      )
    chosen |= {path: dense[path] for path in matching}
  return chosen


def own_key(key: Array, path: str) -> Array:
  """Derive a random key that belongs to a path only."""
  return jax.random.fold_in(key, zlib.crc32(path.encode()))


def flat_boxes(params: PyTree) -> dict[str, Any]:
  """Flatten parameters like `flat`, each in its box."""
  is_box = lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)  # noqa: E731
  boxes = jax.tree.leaves(params, is_leaf=is_box)
  return dict(zip(flat(nn.unbox(params)), boxes, strict=True))


def grafted(
  grafts: Callable[[Mapping[str, Any]], dict[str, Any]],
  leaves: Mapping[str, Any],
  added: Mapping[str, Any],
  rng: Array | None,
) -> dict[str, Any]:
  """Implement `Added.read` with `grafts`, which puts arrays where layers read them."""
  return {**leaves, **grafts(added)}


def boxed(value: Array, names: Sequence[str | None]) -> nn.LogicallyPartitioned:
  """Box a new parameter with its axis names."""
  return nn.LogicallyPartitioned(value, tuple(names))


def axis_names(leaf: Any) -> tuple[str | None, ...]:
  """Return the axis names of a boxed parameter; None each if unboxed."""
  return tuple(leaf.names) if isinstance(leaf, nn.LogicallyPartitioned) else (None,) * leaf.ndim
