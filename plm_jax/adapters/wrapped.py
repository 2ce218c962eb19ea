"""What wrappers share: a task whose model has parameters beside those of the task inside, and trains few of the others.

A wrapper is an adapter whose `make` takes `inner`, the block of another adapter or of an objective, and whose file
states `ADDS`, the name of its parameters beside 'trunk'. It wraps the model of the inner task and never the trunk:
paths of parameters stay, and the inner model is initialised as without the wrapper.

The file says how the trunk is run with what is added, so that a run is opened elsewhere (weights/folders.py):

    fold(kernel, added, settings)   a parameter with what is added to it. Such a run is generated from, exported and
                                    taken as `init_from` as if there were no wrapper.
    grafts(added)                   path in the trunk -> an array that a layer reads there. Such a run is generated
                                    from; elsewhere it is refused, since its trunk alone computes something else.
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax

from plm_jax.errors import suggest
from plm_jax.layers.linear import Dense
from plm_jax.paths import flat, nested, virtual_paths
from plm_jax.plugins import build, signatures
from plm_jax.types import Array, PyTree, Task, Vocab

INNER = 'adapters | objectives'  # what `inner` may name
# what trains beside the wrapper's own parameters where nothing else is said
HEADS = ('(?!trunk/).*',)
HEADS_AND_NORMS = ('(?!trunk/).*', '.*norm/(scale|bias)')


class Axes(NamedTuple):
  """How many trailing axes of a kernel are inputs and outputs; others before them number layers."""

  inputs: int
  outputs: int


class Model:
  """The model of a task inside a wrapper, with the two methods of a linen module that a task uses.

  Attributes:
    inner: the model that is wrapped.
    name: of the parameters that are added, beside 'trunk'.
    add: (parameters of `inner` in their boxes, key) -> what is added, boxed likewise.
    run: (inner, all parameters, arguments of `apply`) -> what the model returns.
  """

  def __init__(
    self,
    inner: Any,
    name: str,
    add: Callable[[PyTree, Array], PyTree],
    run: Callable[[Any, Mapping[str, PyTree], dict[str, Any]], Any],
  ):
    self.inner, self.name, self.add, self.run = inner, name, add, run

  def init(self, key: Array, train: bool = False, **inputs: Any) -> dict[str, PyTree]:
    """Parameters of the inner model, the same as without the wrapper, and those of the wrapper."""
    params = self.inner.init(key, train=train, **inputs)['params']
    return {'params': {**params, self.name: self.add(params, key)}}

  def apply(self, variables: Mapping[str, PyTree], **arguments: Any) -> Any:
    """Runs the inner model with what the wrapper adds.

    Raises:
      ValueError: the parameters are not those of this model.
    """
    params = variables['params']
    if self.name not in params:
      raise ValueError(f'there are no parameters {self.name!r}, only {", ".join(params)}: they belong to another task')
    return self.run(self.inner, params, arguments)


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
  if task.frozen:
    cure = 'leave adapter.inner.frozen out' if inner.get('frozen') else 'choose another adapter.inner.name'
    raise ValueError(
      f'adapter.inner.name={name!r} stops the gradient of its trunk, which the wrapper needs: {cure}; the wrapper '
      'keeps the trunk as it is'
    )
  return task


def wrap(task: Task, model: Callable[[Any], Model], trains: Callable[[str], bool]) -> Task:
  """The task with its model wrapped, in which only what `trains` says trains."""
  sized = task.for_documents
  return task._replace(
    model=model(task.model),  # type: ignore[arg-type]  # it has the two methods of a module that a task uses
    trains=lambda path: trains(path) and task.trains(path),
    for_documents=None if sized is None else lambda documents: wrap(sized(documents), model, trains),
  )


def advancing(task: Task, advance: Callable[[PyTree, Array], PyTree]) -> Task:
  """The task, which sets parameters after each update (`Task.advance`); also with room for more documents."""
  sized = task.for_documents
  return task._replace(
    advance=advance,
    for_documents=None if sized is None else lambda documents: advancing(sized(documents), advance),
  )


def trains(name: str, patterns: Sequence[str]) -> Callable[[str], bool]:
  """Whether a parameter trains: one below `name`, or one that a pattern matches as a whole."""
  compiled = [re.compile(pattern) for pattern in patterns]
  return lambda path: path.startswith(f'{name}/') or any(pattern.fullmatch(path) for pattern in compiled)


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


def run_grafted(
  name: str,
  grafts: Callable[[Mapping[str, Any]], dict[str, Any]],
  inner: Any,
  params: Mapping[str, PyTree],
  arguments: dict[str, Any],
) -> Any:
  """The inner model with what is added, where layers of its trunk read it."""
  leaves = flat({other: tree for other, tree in params.items() if other != name})
  return inner.apply({'params': nested({**leaves, **grafts(flat(params[name]))})}, **arguments)


def boxed(value: Array, names: Sequence[str | None]) -> nn.LogicallyPartitioned:
  """A new parameter with its axis names."""
  return nn.LogicallyPartitioned(value, tuple(names))


def axis_names(leaf: Any) -> tuple[str | None, ...]:
  """The axis names of a parameter in its box; None for each axis of one without."""
  return tuple(leaf.names) if isinstance(leaf, nn.LogicallyPartitioned) else (None,) * leaf.ndim
