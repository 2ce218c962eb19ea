"""Training for weights in 8 bits: the network runs on what 8 bits can express (Jacob et al. 2017, §3).

    adapter = dict(name='quantise', inner=dict(name='classify', classes=2))

Dense layers and vocabulary tables of the trunk are rounded to 8 bits in every pass, a scale per output channel
(compression/quantise.py); gradients pass the rounding unchanged. The scales stand beside the trunk and follow the
weights after each update. A run is opened, exported and generated from with its weights rounded, so that
`plm-jax compress --methods=int8` writes the same network as int8, with these scales. Q8BERT (Zafrir et al. 2019) also
rounds activations, which stay in float32 here.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any

import flax.linen as nn
import jax
import numpy as np

from plm_jax.adapters import wrapped
from plm_jax.compression import quantise
from plm_jax.core.param_paths import flat
from plm_jax.core.types import Array, Paper, Task, Vocab
from plm_jax.layers.linear import Dense, Embed

PAPER = Paper(
  year=2017,
  title='Jacob et al.',
  architecture='any',
  objective_family='supervised',
  supervision='supervised',
  extension='compressed',
)
READS = ()  # beside what the inner task reads
ADDS = 'quantise'

TABLES = ('token_embed', 'output')  # those of the vocabulary; other tables are small, and some are read otherwise
Channels = Mapping[str, tuple[int, ...]]  # path of a leaf -> its axes within a channel, from the end


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  second_vocab: Vocab | None = None,
  inner: Annotated[Mapping[str, Any], 'adapters | objectives'],
) -> Task:
  """Trains the inner task with the trunk's dense layers and vocabulary tables in 8 bits.

  Args:
    trunk: any trunk.
    vocab: of the rows.
    second_vocab: of the run, for an inner task that takes one.
    inner: an adapter or an objective, and its keywords.

  Raises:
    ValueError: the inner task is a wrapper or freezes its trunk.
  """
  channels = channels_of(trunk)
  own = partial(scales, channels), partial(rounded, channels)
  added = wrapped.Added(ADDS, *own, (f'(?!{ADDS}/).*',), partial(advance, channels))
  return wrapped.make_task(inner, added, trunk=trunk, vocab=vocab, second_vocab=second_vocab)


def channels_of(trunk: nn.Module) -> dict[str, tuple[int, ...]]:
  """The kernels and tables of a trunk that are quantised, as 'trunk/layers/query/kernel'; nothing is computed."""
  found: dict[str, tuple[int, ...]] = {}

  def note(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
    module = context.module
    if isinstance(module, Dense):
      outputs = len(module.features) if isinstance(module.features, tuple) else 1
      axes = tuple(range(-module.num_inputs - outputs, -outputs))
      found['/'.join(('trunk', *module.path, 'kernel'))] = axes
    elif isinstance(module, Embed) and module.name in TABLES:
      found['/'.join(('trunk', *module.path, 'table'))] = (-1,)
    return call(*args, **kwargs)

  with nn.intercept_methods(note):
    params = jax.eval_shape(lambda: trunk.init(jax.random.key(0), method='init_all')['params'])
  present = flat({'trunk': nn.unbox(params)})
  return {path: found[path] for path in sorted(found) if path in present}


def scales(channels: Channels, leaves: Mapping[str, Any], key: Array) -> dict[str, Any]:
  """The scales of each leaf, below the path of what owns it."""
  del key
  added: dict[str, Any] = {}
  for path, axes in channels.items():
    if (leaf := leaves.get(path)) is None:  # a pooler, say, that the inner task has no use for
      continue
    scale, names = quantise.scales(nn.unbox(leaf), axes), wrapped.axis_names(leaf)
    within = {axis % len(names) for axis in axes}
    own = tuple(None if axis in within else name for axis, name in enumerate(names))
    added[_beside(path)] = wrapped.boxed(scale, own)
  return added


def rounded(
  channels: Channels, leaves: Mapping[str, Any], added: Mapping[str, Any], rng: Array | None = None
) -> dict[str, Any]:
  """The parameters of the inner model, those of `channels` as 8 bits express them."""
  del rng
  present = {path: added[_beside(path)] for path in channels if _beside(path) in added}
  return {**leaves, **{path: quantise.fake(leaves[path], scale) for path, scale in present.items()}}


def advance(
  channels: Channels, leaves: dict[str, Any], added: dict[str, Any], step: Array
) -> tuple[dict[str, Any], dict[str, Any]]:
  """The parameters and the scales that belong to them."""
  del step
  present = {path: axes for path, axes in channels.items() if _beside(path) in added}
  return leaves, {_beside(path): quantise.scales(leaves[path], axes) for path, axes in present.items()}


def fold(weights: np.ndarray, added: Mapping[str, np.ndarray], settings: Mapping[str, Any]) -> np.ndarray:
  """A kernel or table, or one layer of a stacked one, as 8 bits express it."""
  del settings
  return quantise.dequantise(quantise.quantise(weights, added['scale']), added['scale'])


def places_of_scales(weights: Iterable[str]) -> dict[str, str]:
  """Path of a kernel or table -> where a run with this wrapper saves its scale, if it has one."""
  return {path: f'{ADDS}/{_beside(path)}' for path in weights if path.endswith(('/kernel', '/table'))}


def _beside(path: str) -> str:
  """'trunk/layers/query/kernel' -> 'trunk/layers/query/scale', the path of its scales below the wrapper's name."""
  return f'{path.rpartition("/")[0]}/scale'
