"""The model in a folder that is evaluated without a run."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plm_jax import weights
from plm_jax.checkpoint import CheckpointError
from plm_jax.config import build, signatures
from plm_jax.core import errors, param_paths, sharding
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Execution, PyTree, Task, Vocab
from plm_jax.data.rows import framing
from plm_jax.io import other_forms
from plm_jax.io.files import Where
from plm_jax.text import tokenizer
from plm_jax.training import parts
from plm_jax.training.parts import Parts, Settings
from plm_jax.training.step import init_params
from plm_jax.weights import task_heads

Spec = Mapping[str, jax.ShapeDtypeStruct]


def without_folded(settings: Settings) -> Settings:
  """Remove a wrapper whose updates are merged into the folder (LoRA)."""
  name = (settings['adapter'] or {}).get('name')
  return build.unwrapped(settings) if signatures.has(f'adapters.{name}', 'fold') else settings


def model_of(source: Where, settings: Settings) -> tuple[Parts, PyTree]:
  """Load a folder and build the task on its trunk."""
  if problem := other_forms.explain(source):
    raise ConfigError(f'--weights: {problem}')
  opened = weights.open(source)
  with errors.stage('vocab'):
    vocab = tokenizer.load(opened.vocab)
  try:
    trunk = opened.trunk(Execution(**settings['execution']))
    leaves = opened.to_run if opened.in_8_bits else opened.params
    params = leaves.with_sums(weights.SUMS).tree()
  except CheckpointError as error:
    raise ConfigError(f'evaluate: {error}') from error
  own = _with_start(_with_head(settings, opened.adapter, source), opened.token_ids, vocab)
  template = framing.written(tokenizer.marked(opened.vocab))
  return parts.parts_of(trunk, own, vocab, heads=tuple(params), template=template), params


def _with_start(settings: Settings, ids: Mapping[str, Any], vocab: Vocab) -> Settings:
  """Return settings with the folder's start token of the decoder."""
  role = 'objective' if settings['objective'] else 'adapter'
  block, token = settings[role], ids.get('decoder_start_token_id')
  roles = {vocab.eos_id: 'eos', vocab.bos_id: 'bos', vocab.pad_id: 'pad'}
  if token is None or token not in roles or block.get('start', '') is not None:
    return settings
  return {**settings, role: {**block, 'start': roles[token]}}


def _with_head(settings: Settings, head: Mapping[str, Any], source: Where) -> Settings:
  """Return settings with the classes and layers of a folder's head.

  `head` is the folder's adapter block, empty without one. Raises ConfigError if the head is another adapter's.
  """
  adapter = settings['adapter'] or {}
  if not {adapter.get('name'), head.get('name')} <= set(task_heads.ADAPTERS):
    return settings
  if adapter['name'] != head['name']:
    raise ConfigError(
      f'--weights={source}: its head is that of adapter {head["name"]!r}, and adapter.name={adapter["name"]!r}: '
      'name a config with that adapter'
    )
  return {**settings, 'adapter': {**adapter, **head}}


def placed(params: PyTree, task: Task, spec: Spec, *, layout: sharding.Layout) -> PyTree:
  """Return the parameters that the task needs, each on its devices."""
  boxed = jax.eval_shape(lambda key: init_params(task, spec, key), jax.random.key(0))
  wanted, places = param_paths.flat(nn.unbox(boxed)), param_paths.flat(sharding.shardings(boxed, layout=layout))
  given = param_paths.flat(params)
  if missing := [path for path in wanted if path not in given]:
    raise ConfigError(f'--weights: has no {", ".join(missing[:4])}, which this task needs: train it first')
  placed = {path: jax.device_put(_to_compute(given[path], leaf.dtype), places[path]) for path, leaf in wanted.items()}
  everywhere = jax.sharding.NamedSharding(layout.mesh, jax.sharding.PartitionSpec())
  scales = {scale: given[scale] for path in wanted if (scale := f'{path}{param_paths.SCALE}') in given}
  return param_paths.nested({**placed, **{path: jax.device_put(scale, everywhere) for path, scale in scales.items()}})


def _to_compute(array: np.ndarray, dtype: Any) -> np.ndarray:
  """Cast a parameter to the dtype of the task, except int8."""
  return array if array.dtype == np.int8 else np.asarray(array, dtype)
