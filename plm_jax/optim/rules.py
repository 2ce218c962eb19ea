"""Update rules.

A rule converts gradients to a direction; `optim.make` multiplies it by minus the rate and by each parameter's
multiplier. Decoupled decay (adamw, bert_adam, lamb, adafactor) is added to the direction. In the other rules decay is
L2 regularisation, added to the gradient. Operations on a whole tensor treat each layer of a stacked parameter
separately.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from plm_jax.core import param_paths
from plm_jax.core.keywords import Count, Epsilon, Momentum, NonNegativeInt
from plm_jax.core.types import Array, PyTree
from plm_jax.optim import groups
from plm_jax.optim.averages import Average, iterate_mean
from plm_jax.optim.groups import Settings, Written


class Rule(NamedTuple):
  """An update rule: gradients -> direction, and the average of the rule, if any."""

  direction: optax.GradientTransformation
  average: Average | None = None


class Context(NamedTuple):
  """Arguments of every rule."""

  decay: optax.GradientTransformation  # adds each parameter's weight decay times the parameter
  resolve: Callable[[Written, str], Settings]  # (groups, config key) -> the value of every parameter
  rate: float  # the peak learning rate


def sgd(context: Context) -> Rule:
  """Use the gradient as direction."""
  return Rule(context.decay)


def momentum(context: Context, *, momentum: Momentum = 0.9, nesterov: bool = False) -> Rule:
  """Accumulate trace = momentum trace + gradient, without dampening (TensorFlow, torch)."""
  return Rule(optax.chain(context.decay, optax.trace(momentum, nesterov)))


def adagrad(
  context: Context,
  *,
  accumulator: Annotated[float, '0 <= x'] = 0.1,
  eps: Epsilon = 1e-7,
  gathers: Literal['gradient', 'update'] | None = None,
) -> Rule:
  """Compute g / sqrt(sum of g^2 + eps).

  The sum starts at `accumulator` (ELMo 1.0). gathers='update' sums (rate g)^2 instead of g^2, as in glove.c, which
  multiplies by the rate first. With an accumulator of 1 and a small rate, gradients then shorten the steps less.
  """
  rule = optax.scale_by_rss(accumulator, eps)
  if gathers == 'update' and context.rate:
    rule = optax.chain(optax.scale(context.rate), rule, optax.scale(1 / context.rate))
  return Rule(optax.chain(context.decay, rule))


def adam(context: Context, *, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Epsilon = 1e-8) -> Rule:
  """Apply Adam with L2 regularisation in the gradient."""
  return Rule(optax.chain(context.decay, optax.scale_by_adam(b1, b2, eps)))


def adamw(context: Context, *, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Epsilon = 1e-8) -> Rule:
  """Apply Adam with decoupled weight decay."""
  return Rule(optax.chain(optax.scale_by_adam(b1, b2, eps), context.decay))


def bert_adam(context: Context, *, b1: Momentum = 0.9, b2: Momentum = 0.999, eps: Epsilon = 1e-6) -> Rule:
  """Apply Adam without bias correction, with decoupled decay (google-research/bert, optimization.py)."""
  return Rule(optax.chain(scale_by_uncorrected_adam(b1, b2, eps), context.decay))


def lamb(
  context: Context,
  *,
  b1: Momentum = 0.9,
  b2: Momentum = 0.999,
  eps: Epsilon = 1e-6,
  bias_correction: bool = True,
  adapt: Written = (('.*', 1.0),),
) -> Rule:
  """Rescale Adam's direction to the norm of each tensor.

  The direction includes decay (You et al. 2020, algorithm 2).

  Args:
    b1: decay of the first moment.
    b2: decay of the second moment.
    eps: added to the root of the second moment.
    bias_correction: as in the paper; google-research/albert has none.
    adapt: 0 for parameters whose direction is not rescaled, 1 for the others; google-research/albert exempts parameters
      without decay.

  Raises:
    ValueError: another value.
  """
  for pattern, value in adapt:
    if value not in (0, 1):
      raise ValueError(f'optim.adapt: {pattern!r} has {value!r}: give 0 for the length of Adam, or 1 for LAMB')
  moments = optax.scale_by_adam if bias_correction else scale_by_uncorrected_adam
  trust = only(per_layer(optax.scale_by_trust_ratio()), context.resolve(adapt, 'adapt'))
  return Rule(optax.chain(moments(b1, b2, eps), context.decay, trust))


def adafactor(
  context: Context,
  *,
  b1: Momentum | None = None,
  b2_power: Annotated[float, '0 < x <= 1'] = 0.8,
  eps: Epsilon = 1e-30,
  block_clip: Annotated[float, '0 < x'] = 1.0,
  factored: bool = True,
  factor_min: Count = 128,
  parameter_scale: bool = True,
) -> Rule:
  """Apply Adafactor (Shazeer and Stern 2018).

  The rate multiplies last, so the first moment averages directions without the rate. In the T5 code it averages rate
  times direction, which is the same for a constant rate.

  Args:
    b1: decay of the first moment; None for none (T5), PaLM 0.9.
    b2_power: second-moment decay 1 - t^-b2_power.
    eps: added to squared gradients.
    block_clip: largest root mean square of one tensor's direction; a large number, such as 1e9, is no limit.
    factored: store row and column means of the second moment instead of all of it; PaLM stores all.
    factor_min: tensors are factored if their two largest axes have at least this size. An attention kernel [d, h, k]
      with smaller h and k stores its whole second moment; the T5 code factors it as [d, h k].
    parameter_scale: multiply by the root mean square of the parameter, at least 1e-3.
  """
  parts = [
    optax.scale_by_factored_rms(factored, b2_power, min_dim_size_to_factor=factor_min, epsilon=eps),
    optax.clip_by_block_rms(block_clip),
    optax.scale_by_param_block_rms() if parameter_scale else optax.identity(),
    optax.identity() if b1 is None else optax.ema(b1, debias=False),
  ]
  return Rule(optax.chain(per_layer(optax.chain(*parts)), context.decay))


NONMONOTONE = 5  # evaluations of asgd


def asgd(context: Context, *, start: NonNegativeInt | None = None, nonmonotone: Count | None = None) -> Rule:
  """SGD that is evaluated at the mean of its iterates (AWD-LSTM).

  Args:
    start: first update of the mean; None waits until the metric of config.best stops improving (NT-ASGD).
    nonmonotone: NT-ASGD starts when a metric is worse than the best one up to this many evaluations ago; None is 5.

  Raises:
    ValueError: both are given.
  """
  if start is not None and nonmonotone is not None:
    raise ValueError(
      f'optim.start={start} and optim.nonmonotone={nonmonotone} both set the start of the mean: remove one of them'
    )
  return Rule(context.decay, iterate_mean(start=start, nonmonotone=nonmonotone or NONMONOTONE))


# rules that can update some rows of a table: a row without a gradient, and its state, do not change
BY_ROW: tuple[Callable[..., Rule], ...] = (sgd, adagrad)
RULES: tuple[Callable[..., Rule], ...] = (sgd, momentum, adagrad, adam, adamw, bert_adam, lamb, adafactor, asgd)


# Parts ---------------------------------------------------------------------------------------------------------------


def add_decay(decays: Settings) -> optax.GradientTransformation:
  """Add each parameter times its decay at the current step."""
  if all(value == 0.0 or value is None for values in decays.values() for value in values):
    return optax.identity()

  def init(params: PyTree) -> Array:
    return jnp.zeros((), jnp.int32)

  def update(updates: PyTree, step: Array, params: PyTree) -> tuple[PyTree, Array]:
    by = groups.factors(decays, params, step)
    return jax.tree.map(lambda update, decay, param: update + decay * param, updates, by, params), step + 1

  return optax.GradientTransformation(init, update)


def scale_by_uncorrected_adam(b1: float, b2: float, eps: float) -> optax.GradientTransformation:
  """Compute m / (sqrt(v) + eps) without bias correction."""

  def init(params: PyTree) -> dict[str, PyTree]:
    return {'mu': jax.tree.map(jnp.zeros_like, params), 'nu': jax.tree.map(jnp.zeros_like, params)}

  def update(updates: PyTree, state: dict[str, PyTree], params: PyTree = None) -> tuple[PyTree, dict[str, PyTree]]:
    mu = optax.tree.update_moment(updates, state['mu'], b1, 1)
    nu = optax.tree.update_moment(updates, state['nu'], b2, 2)
    return jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + eps), mu, nu), {'mu': mu, 'nu': nu}

  return optax.GradientTransformation(init, update)


def per_layer(inner: optax.GradientTransformation) -> optax.GradientTransformation:
  """Run `inner` with separate states on each parameter or layer."""

  def each(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: tuple[Any, ...], leaf: Array, *rest: Any) -> Any:
      stacked = param_paths.is_stacked(param_paths.path_name(path), leaf)
      return (jax.vmap(function) if stacked else function)(leaf, *rest)

    return call

  def init_one(path: tuple[Any, ...], leaf: Any) -> PyTree:
    param = nn.unbox(leaf)
    state = each(inner.init)(path, param)
    if not _is_box(leaf):
      return state
    # states of the parameter's shape get its axis names, and so its sharding
    return jax.tree.map(lambda part: leaf.replace_boxed(part) if part.shape == param.shape else part, state)

  def init(params: PyTree) -> PyTree:
    return jax.tree_util.tree_map_with_path(init_one, params, is_leaf=_is_box)

  def update(updates: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
    pairs = jax.tree_util.tree_map_with_path(each(inner.update), updates, state, params)
    changed = jax.tree.map(lambda _, pair: pair[0], updates, pairs)
    return changed, jax.tree.map(lambda _, pair: pair[1], updates, pairs)

  return optax.GradientTransformation(init, update)


def only(inner: optax.GradientTransformation, settings: Settings) -> optax.GradientTransformation:
  """Run `inner` on the parameters whose value is not 0."""

  def update(updates: PyTree, state: PyTree, params: PyTree) -> tuple[PyTree, PyTree]:
    changed, state = inner.update(updates, state, params)
    by = groups.factors(settings, updates, jnp.zeros((), jnp.int32))
    return jax.tree.map(lambda keep, new, old: jnp.where(keep != 0, new, old), by, changed, updates), state

  return optax.GradientTransformation(inner.init, update)


def _is_box(leaf: Any) -> bool:
  return isinstance(leaf, nn.meta.AxisMetadata)
