"""Scores saved parameters: what `python -m plm_jax.evaluate` does once its config is read."""

import argparse
import functools
import json
import logging
import pathlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from plm_jax import checkpoint, optim, paths, sharding, weights
from plm_jax.checkpoint import CheckpointError, records
from plm_jax.checkpoint.records import step_named
from plm_jax.cli import progress
from plm_jax.errors import ConfigError, stage
from plm_jax.text import tokenizer
from plm_jax.training import evaluation, feed, parts
from plm_jax.training.step import abstract_params, eval_step, init_params, predict_step, state_maker
from plm_jax.types import Execution, Source, Task, Vocab

log = logging.getLogger('plm_jax')

POLL_SECONDS = 2.0


def command(settings: Mapping[str, Any], arguments: argparse.Namespace) -> int:
  """Scores the checkpoints or the model that the arguments name; appends to `evaluations.jsonl` of the run folder."""
  names = [arguments.evaluation] if arguments.evaluation else list(settings['eval'])
  if not names or (unknown := [name for name in names if name not in settings['eval']]):
    choices = ', '.join(settings['eval']) or 'none'
    what = f'no {unknown[0]!r}' if names else 'none'
    raise ConfigError(f'evaluation: {what} in config.eval; there are {choices}')
  if arguments.predictions and len(names) > 1:
    raise ConfigError(f'--predictions needs one --evaluation; there are {", ".join(names)}')

  workdir = pathlib.Path(arguments.workdir) if arguments.workdir else None
  if arguments.weights:
    task, vocab, params = _model_of(pathlib.Path(arguments.weights).expanduser(), settings)
  else:
    vocab = parts.make_vocab(settings, workdir)
    task = parts.make_parts(settings, vocab).task
  with stage('sharding'):
    layout = sharding.make_layout(sharding.make_mesh(settings['sharding']['mesh']), settings['sharding']['rules'])
  with sharding.use(layout):
    sources = parts.make_evaluations(settings, vocab, task=task, names=names)
    spec = next(iter(sources.values())).spec
    key = jax.random.key(settings['seed'])
    step_fn = jax.jit(functools.partial(eval_step, task=task))
    if arguments.weights:
      states = iter([({'weights': arguments.weights}, _placed(params, task, spec, layout=layout))])
    else:
      states = _checkpoints(settings, arguments, task, spec, layout=layout)
    for where, params in states:
      line: dict[str, Any] = dict(where)
      for name, source in sources.items():
        units = settings['eval'][name]['units']
        means = evaluation.evaluate(source, params, key, task=task, step=step_fn, layout=layout, units=units)
        line |= {f'{name}/{metric}': value for metric, value in means.items()}
      if workdir is not None:
        workdir.mkdir(parents=True, exist_ok=True)
        with open(workdir / 'evaluations.jsonl', 'a', encoding='utf-8') as file:
          file.write(json.dumps(line) + '\n')
      log.info(f'{"  ".join(f"{name} {value}" for name, value in where.items())}  {progress.line(line)}')
      if arguments.predictions:
        count = _write_predictions(sources[names[0]], params, key, task=task, layout=layout, path=arguments.predictions)
        log.info(f'{count} predictions in {arguments.predictions}')
  return 0


def _checkpoints(
  settings: Mapping[str, Any],
  arguments: argparse.Namespace,
  task: Task,
  spec: Mapping[str, Any],
  *,
  layout: sharding.Layout,
) -> Iterator[tuple[dict[str, Any], Any]]:
  """The checkpoints that the arguments name: what a line says of each, and its parameters."""
  workdir = pathlib.Path(arguments.workdir)
  with stage('optim'):
    tx = optim.make(params=abstract_params(task, spec), steps=settings['steps'] or 1, **settings['optim'])
  abstract = state_maker(task, tx, spec, layout=layout).abstract
  for step in _steps(workdir, arguments):
    try:
      _, state = checkpoint.restore(workdir / 'checkpoints', abstract, step=step)
    except checkpoint.CheckpointError:
      if arguments.follow and step not in records.numbered(workdir / 'checkpoints'):
        log.info(f'step {step} was deleted before it could be scored (keep)')
        continue
      raise
    yield {'step': step}, tx.eval_params(state.opt_state, state.params)


def _model_of(folder: pathlib.Path, settings: Mapping[str, Any]) -> tuple[Task, Vocab, Any]:
  """The task on the trunk of a folder, its vocabulary, and all parameters there by name.

  The folder is one in Hugging Face's form with its tokenizer, a run, or an import.
  """
  if not folder.is_dir():
    raise ConfigError(f'--weights={folder}: there is no such folder')
  opened = weights.open(folder)
  with stage('vocab'):
    vocab = tokenizer.load(opened.vocab)
  try:
    trunk = opened.trunk(Execution(**settings['execution']))
    params = opened.params.tree()
  except CheckpointError as error:
    raise ConfigError(f'evaluate: {error}') from error
  return parts.parts_of(trunk, settings, vocab).task, vocab, params


def _placed(params: Any, task: Task, spec: Mapping[str, Any], *, layout: sharding.Layout) -> Any:
  """Parameters of a folder as those of the task, each where it belongs; what the task has no place for is left out."""
  boxed = jax.eval_shape(lambda key: init_params(task, spec, key), jax.random.key(0))
  wanted, places = paths.flat(nn.unbox(boxed)), paths.flat(sharding.shardings(boxed, layout=layout))
  given = paths.flat(params)
  if missing := [path for path in wanted if path not in given]:
    raise ConfigError(f'--weights: has no {", ".join(missing[:4])}, which this task needs: train it first')
  return paths.nested(
    {path: jax.device_put(np.asarray(given[path], leaf.dtype), places[path]) for path, leaf in wanted.items()}
  )


def _steps(workdir: pathlib.Path, arguments: argparse.Namespace) -> Iterator[int]:
  """The steps to score: one, or with --follow each that appears until the run's last."""
  folder = workdir / 'checkpoints'
  if not arguments.follow:
    yield records.choose(folder, step_named(arguments.step))
    return
  seen: set[int] = set()
  waited_since = time.monotonic()
  while True:
    new = [step for step in sorted(records.records(folder)[0]) if step not in seen]
    if new:  # one at a time: while it is scored, others come and go
      seen.add(new[0])
      yield new[0]
      waited_since = time.monotonic()
    result = workdir / 'result.json'
    if not new and result.exists() and json.loads(result.read_text()).get('finished'):
      return
    if time.monotonic() - waited_since > arguments.timeout:
      raise ConfigError(
        f'{workdir}: no new checkpoint in {arguments.timeout:.0f} s (--timeout), and it is not finished'
      )
    if not new:
      time.sleep(POLL_SECONDS)


def _write_predictions(source: Source, params: Any, key: Any, *, task: Any, layout: sharding.Layout, path: str) -> int:
  """One JSON object a row, in the order of the split; padding rows are left out."""
  predict = jax.jit(functools.partial(predict_step, task=task))
  count = 0
  with open(path, 'w', encoding='utf-8') as file:
    for _, batch in feed.to_devices(source.once(), sharding.batch_sharding(layout)):
      rows = jax.device_get(predict(params, batch, key))
      for index in np.flatnonzero(rows.pop('row_weight') > 0):
        row = {name: value[index].tolist() for name, value in rows.items()}
        if 'label' in row and source.names:
          row['name'] = source.names[row['label']]
        file.write(json.dumps(row) + '\n')
        count += 1
  return count
