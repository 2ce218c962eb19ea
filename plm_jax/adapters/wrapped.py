"""What wrappers share: a task whose model has parameters beside those of the task inside, and trains few of the others.

A wrapper is an adapter whose `make` takes `inner`, the block of another adapter or of an objective, and whose file
states `ADDS`, the name of its parameters beside 'trunk'. It wraps the model of the inner task and never the trunk:
paths of parameters stay, and the inner model is initialised as without the wrapper.

The file says how the trunk is run with what is added, so that a run is opened elsewhere (weights/folders.py):

    fold(kernel, added, settings)   a parameter with what is added to it. Such a run is generated from, exported and
                                    taken as `init_from` as if there were no wrapper.
    grafts(added)                   path in the trunk -> an array that a layer reads there. Such a run is generated
                                    from; elsewhere it is refused, since its trunk alone computes something else.
    ALONE = True                    the other parameters are the whole network; what is added is left out (a teacher).
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

INNER = 'adapters | objectives'  # what `inner` may name
HEADS_AND_NORMS = ('(?!trunk/).*', '.*norm/(scale|bias)')


class Axes(NamedTuple):
  """How many trailing axes of a kernel are inputs and outputs; others before them number layers."""

  inputs: int
  outputs: int


class Added(NamedTuple):
  """What a wrapper adds to a model, and how the model is run with it.

  Attributes:
    name: of the parameters that are added, beside 'trunk'.
    make: (parameters of the inner model by path, each in its box, key) -> those that are added by path, likewise.
    read: (parameters of the inner model by path, those added by path, key of dropout or None) -> what the inner model
      is run on, by path.
    trained: patterns of the parameters of the inner model that train.
    advance: (parameters of the inner model by path, those added by path, updates done) -> both as they are from there
      on, see `Task.advance`. Where it is given, no gradient moves what is added.
  """

  name: str
  make: Callable[[Mapping[str, Any], Array], dict[str, Any]]
  read: Callable[[Mapping[str, Any], Mapping[str, Any], Array | None], dict[str, Any]]
  trained: tuple[str, ...]
  advance: Callable[[dict[str, Any], dict[str, Any], Array], tuple[dict[str, Any], dict[str, Any]]] | None = None


class Model:
  """The model of a task inside a wrapper, with the two methods of a linen module that a task uses."""

  def __init__(self, inner: Any, added: Added):
    self.inner, self.added = inner, added

  def init(self, key: Array, train: bool = False, **inputs: Any) -> dict[str, PyTree]:
    """Parameters of the inner model, the same as without the wrapper, and those of the wrapper.

    Raises:
      ValueError: a pattern matches no parameter, or no layer that the inner task uses is a target.
    """
    params = self.inner.init(key, train=train, **inputs)['params']
    check_patterns(self.added.trained, params)
    made = self.added.make(flat_boxes(params), key)
    if not made:
      raise ValueError(
        f'adapter {self.added.name!r} would add nothing: the inner task has no use for the layers that adapter.targets '
        'names. Name others that it reads, such as those of attention'
      )
    return {'params': {**params, self.added.name: nested(made)}}

  def apply(self, variables: Mapping[str, PyTree], **arguments: Any) -> Any:
    """Runs the inner model with what the wrapper adds.

    Raises:
      ValueError: the parameters are not those of this model.
    """
    params, name = variables['params'], self.added.name
    if name not in params:
      raise ValueError(f'there are no parameters {name!r}, only {", ".join(params)}: they belong to another task')
    leaves = flat({other: tree for other, tree in params.items() if other != name})
    rng = (arguments.get('rngs') or {}).get('dropout') if arguments.get('train') else None
    return self.inner.apply({'params': nested(self.added.read(leaves, flat(params[name]), rng))}, **arguments)


def make_task(
  inner: Mapping[str, Any], added: Added, *, trunk: nn.Module, vocab: Vocab, second_vocab: Vocab | None = None
) -> Task:
  """The task that a block `inner` names, with what a wrapper adds.

  Args:
    inner: an adapter or an objective, and its keywords.
    added: by the wrapper.
    trunk: of the run.
    vocab: of the rows.
    second_vocab: of the run, for an inner task that takes one.

  Raises:
    ValueError: the inner task is a wrapper itself, or gives its trunk no gradient.
  """
  return _wrap(make_inner(inner, trunk=trunk, vocab=vocab, second_vocab=second_vocab), added)


def _wrap(task: Task, added: Added) -> Task:
  sized = task.for_documents
  (own,) = task.trains  # of all, but for what the trunk holds fixed
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
  leaves, own = added.advance(leaves, flat(params[added.name]), step)
  return {**nested(leaves), added.name: nested(own)}


def dense_layers(trunk: nn.Module) -> dict[str, Axes]:
  """The dense layers of a trunk by path, as 'trunk/layers/query'; layers of a stack share one. Nothing is computed."""
  found: dict[str, Axes] = {}

  def note(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    module = context.module
    if isinstance(module, Dense):
      outputs = len(module.features) if isinstance(module.features, tuple) else 1
      found['/'.join(('trunk', *module.path))] = Axes(module.num_inputs, outputs)
    return call(*args, **kwargs)

  with nn.intercept_methods(note):
    params = jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all')['params'])
  present = flat(nn.unbox(params))
  return {path: axes for path, axes in sorted(found.items()) if f'{path}/kernel'.removeprefix('trunk/') in present}


def make_inner(inner: Mapping[str, Any], *, trunk: nn.Module, vocab: Vocab, second_vocab: Vocab | None = None) -> Task:
  """The task that a block `inner` names.

  Raises:
    ValueError: it is a wrapper itself, or a task that gives its trunk no gradient.
  """
  name = inner.get('name', '')
  folder = signatures.folder_of(INNER, name)
  if folder == 'adapters' and signatures.literal(f'adapters.{name}', 'ADDS'):
    raise ValueError(f'adapter.inner.name={name!r} wraps a task itself: name the task there')
  task: Task = build.make(folder, inner, trunk=trunk, vocab=vocab, offered={'second_vocab': second_vocab})
  if task.trains not in (EVERYTHING, texts.all_but_fixed(trunk)):
    cure = 'leave adapter.inner.frozen out' if inner.get('frozen') else 'choose another adapter.inner.name'
    raise ValueError(
      f'adapter.inner.name={name!r} stops the gradient of its trunk, which the wrapper needs: {cure}; the wrapper '
      'keeps the trunk as it is'
    )
  return task._replace(trains=texts.all_but_fixed(trunk))


def check_patterns(patterns: Sequence[str], params: PyTree) -> None:
  """Raises ValueError for a pattern of `adapter.trained` that matches no parameter of the inner model."""
  paths = [one for path, leaf in flat(nn.unbox(params)).items() for one in virtual_paths(path, leaf)]
  for pattern in patterns:
    if pattern not in HEADS_AND_NORMS and not any(re.fullmatch(pattern, path) for path in paths):
      raise ValueError(
        f'adapter.trained: {pattern!r} matches no parameter.{suggest(pattern, paths)} A pattern must match the whole '
        'path, with the number of the layer, as trunk/layers/3/mlp/up/kernel'
      )


def named(targets: Sequence[str], trunk: nn.Module, *, what: str) -> dict[str, Axes]:
  """Those dense layers of a trunk that are named, by path.

  Args:
    targets: each the last part of a path, as 'query', or a regular expression that matches a whole path.
    trunk: whose `dense_layers` there are.
    what: the keyword, for messages.

  Raises:
    ValueError: one of them names nothing, or there is none.
  """
  dense = dense_layers(trunk)
  if not targets:
    raise ValueError(f"{what}=(): name a dense layer or more, such as ('query', 'value')")
  chosen: dict[str, Axes] = {}
  for target in targets:
    found = [path for path in dense if path.rpartition('/')[2] == target or re.fullmatch(target, path)]
    if not found:
      names = sorted({path.rpartition('/')[2] for path in dense})
      raise ValueError(
        f'{what}: {target!r} names no dense layer of this {type(trunk).__name__}.{suggest(target, names)} There are '
        f'{", ".join(names)}; a pattern matches a whole path, as {", ".join(list(dense)[:3])}. Name others, or choose '
        'another model.name'
      )
    chosen |= {path: dense[path] for path in found}
  return chosen


def own_key(key: Array, path: str) -> Array:
  """A key for what is added at a path, which no other path shares."""
  return jax.random.fold_in(key, zlib.crc32(path.encode()))


def flat_boxes(params: PyTree) -> dict[str, Any]:
  """As `flat`, with each parameter in its box."""
  is_box = lambda leaf: isinstance(leaf, nn.LogicallyPartitioned)  # noqa: E731
  boxes = jax.tree.leaves(params, is_leaf=is_box)
  return dict(zip(flat(nn.unbox(params)), boxes, strict=True))


def grafted(
  grafts: Callable[[Mapping[str, Any]], dict[str, Any]],
  leaves: Mapping[str, Any],
  added: Mapping[str, Any],
  rng: Array | None,
) -> dict[str, Any]:
  """`Added.read` of a file with `grafts`: what is added stands where layers of the trunk read it."""
  del rng
  return {**leaves, **grafts(added)}


def boxed(value: Array, names: Sequence[str | None]) -> nn.LogicallyPartitioned:
  """A new parameter with its axis names."""
  return nn.LogicallyPartitioned(value, tuple(names))


def axis_names(leaf: Any) -> tuple[str | None, ...]:
  """The axis names of a parameter in its box; None for each axis of one without."""
  return tuple(leaf.names) if isinstance(leaf, nn.LogicallyPartitioned) else (None,) * leaf.ndim
