"""Evaluation of saved parameters, from checkpoints or a folder: the engine of `plm-jax evaluate`."""

import functools
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from plm_jax import checkpoint, weights
from plm_jax.checkpoint import CheckpointError, Step, saved_steps
from plm_jax.cli import progress, signals
from plm_jax.config import one_part
from plm_jax.core import errors, sharding
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import PyTree, Source, Task
from plm_jax.io import checksums, files
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import by_class as by_classes
from plm_jax.runs import metrics, predicted, run_folder, scoring
from plm_jax.training import evaluation, feed, init_sources, outcome, parts, trained_part
from plm_jax.training.before import from_data, preflight
from plm_jax.training.evaluate_folder import Spec, model_of, placed, without_folded
from plm_jax.training.parts import Parts, Settings
from plm_jax.training.step import abstract_params, state_maker

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0


class Saved(NamedTuple):
  """Parameters to evaluate, and the fields that identify them in a line of results."""

  where: dict[str, Any]
  params: PyTree


class Evaluator(NamedTuple):
  """Everything that evaluations of one task share."""

  made: Parts  # the task, and those of evaluations that have their own
  sources: dict[str, Source]  # evaluation -> its rows
  units: dict[str, int | None]  # evaluation -> units in its text, see `schema.Evaluation`
  key: jax.Array  # root key of the run
  scores: dict[str, tuple[str, ...]]  # evaluation -> names of its scores
  steps: dict[str, evaluation.Steps]  # evaluation -> its compiled functions
  layout: sharding.Layout
  best: str | None  # metric of `best`, shown with the usual ones
  spec: Spec  # shapes of a batch of the task

  def evaluate(self, name: str, params: PyTree, *, keep: bool) -> evaluation.Evaluated:
    """Run one evaluation; `keep` also returns predictions that no score needs."""
    return evaluation.evaluate(
      self.sources[name],
      params,
      self.key,
      task=self.made.of(name).task,
      steps=self.steps[name],
      layout=self.layout,
      units=self.units[name],
      scores=self.scores[name],
      keep=keep,
      check=signals.check,
    )


class Output(NamedTuple):
  """A file for predictions and its format: a file of `plm_jax/scores/` with `submission`, or None for JSON lines."""

  file: Where
  format: str | None = None


def evaluate_run(
  settings: Settings,
  folder: RunFolder,
  *,
  step: Step = None,
  follow: bool = False,
  timeout: float = 3600.0,
  name: str | None = None,
  part: str | None = None,
  predictions: Output | None = None,
  by_class: bool = False,
  every: bool = False,
) -> None:
  """Evaluate checkpoints of a run; append results to `evaluations.jsonl`.

  Raises ConfigError: no such evaluation or task, or no checkpoint within `timeout`; CheckpointError: no such
  checkpoint, or a damaged one.

  Args:
    settings: of the run; evaluations may differ from those it was trained with.
    step: which checkpoint; None takes the best where there is one, else the newest.
    follow: evaluate every checkpoint as it appears, up to the last one of the run, instead of `step`.
    timeout: seconds that `follow` waits for the next checkpoint.
    name: one of the evaluations; None takes all.
    part: one task of a run that learned several, which is evaluated as by a run of it alone; its lines name it.
    predictions: where the predictions of the one evaluation go.
    by_class: also print what became of each class, and write it to `by_class.json` of the folder.
    every: evaluate each existing checkpoint, instead of `step`, and print a table of them.
  """
  settings = one_part.settings_of(from_data.filled(settings, run_folder.begun(folder)), part, where=f'--part={part}')
  names = _names(settings, name, predictions)
  present = () if follow else present_steps(folder, step, every=every)
  made = parts.make_parts(settings, parts.make_vocab(settings, folder), folder)
  made = preflight.with_evaluations(settings, made)
  signals.check()
  predicted.check_task(made.of(names[0]).task, predictions, user=made.of(names[0]).user)
  _check_one(settings, predictions, by_class=by_class)
  layout = parts.make_layout(settings)
  with sharding.use(layout):
    evaluator = _evaluator(settings, made, names, layout=layout, predictions=predictions, by_class=by_class)
    check_names(folder, evaluator.sources, part)
    steps = _appearing(folder, timeout=timeout) if follow else iter(present)
    states = _states(settings, folder, steps, made.task, evaluator.spec, layout=layout, may_vanish=follow, part=part)
    lines = _evaluate(evaluator, states, folder=folder, predictions=predictions, by_class=by_class)
  if every and jax.process_index() == 0:
    by_classes.show_steps(lines)


def predict_run(
  settings: Settings, folder: RunFolder, *, name: str, step: Step = None, part: str | None = None
) -> tuple[Task, evaluation.Evaluated]:
  """Return predictions of a run without scoring or writing.

  Returns the task, whose `in_words` says the predictions in words, and the predictions with their records. Raises
  ConfigError: rows that cannot be read, before anything is computed; or a task that makes no predictions. Raises
  CheckpointError: no such checkpoint, or a damaged one.

  Args:
    settings: of the run, or of one task of several (`one_part.settings_of`), with an evaluation whose rows need no
      label.
    step: which checkpoint; None takes the best where there is one, else the newest.
    part: the task that the settings are of.
  """
  nowhere = Output(folder.root)
  made = parts.make_parts(settings, parts.make_vocab(settings, folder), folder)
  signals.check()
  if made.task.predict is None:
    raise ConfigError(f'this run is of {made.user}, which predicts nothing of a row')
  number, layout = saved_steps.choose(folder.checkpoints, step), parts.make_layout(settings)
  block = settings['eval'][name]
  rows = feed.whole(block['data']['batch_size'], mesh=layout.mesh)  # predictions are the same in batches of any size
  settings = {**settings, 'eval': {name: {**block, 'data': {**block['data'], 'batch_size': rows}}}}
  with sharding.use(layout):
    evaluator = _evaluator(settings, made, [name], layout=layout, predictions=nowhere)
    steps, spec = iter([number]), evaluator.spec
    states = _states(settings, folder, steps, made.task, spec, layout=layout, may_vanish=False, part=part)
    return made.task, evaluator.evaluate(name, next(states).params, keep=True)


def evaluate_folder(
  settings: Settings,
  source: Where,
  *,
  folder: RunFolder | None = None,
  name: str | None = None,
  predictions: Output | None = None,
  by_class: bool = False,
) -> None:
  """Evaluate the model in a folder.

  The folder is a Hugging Face folder with its tokenizer, a run, or an import. Raises ConfigError: no such evaluation or
  folder, or one without parameters that the task needs.

  Args:
    settings: what is measured on what; vocabulary, architecture and sizes are those of `source`.
    source: the folder of the model.
    folder: where `evaluations.jsonl` goes; None writes none.
    predictions: where the predictions of the one evaluation go.
  """
  settings = from_data.filled(settings, model=source)
  names = _names(settings, name, predictions, made=None if folder is None else folder.root)
  settings = without_folded(settings)
  made, params = model_of(source, settings)
  made = preflight.with_evaluations(settings, made)
  signals.check()
  predicted.check_task(made.of(names[0]).task, predictions, user=made.of(names[0]).user)
  layout = parts.make_layout(settings)
  with sharding.use(layout):
    evaluator = _evaluator(settings, made, names, layout=layout, predictions=predictions, by_class=by_class)
    opened = weights.open(source)
    with errors.stage('evaluate'):
      init_sources.check_classes(str(source), opened.labels if opened.adapter else (), evaluator.sources)
    saved = Saved({'weights': str(source)}, placed(params, made.task, evaluator.spec, layout=layout))
    _evaluate(evaluator, iter([saved]), folder=folder, predictions=predictions, by_class=by_class)


def _names(settings: Settings, name: str | None, predictions: Output | None, *, made: Where | None = None) -> list[str]:
  names = list(settings['eval']) if name is None else [name]
  if not names or (unknown := [name for name in names if name not in settings['eval']]):
    choices = ', '.join(settings['eval']) or 'none'
    what = f'no {unknown[0]!r}' if names else 'none'
    raise ConfigError(f'evaluation: {what} in eval; there are {choices}')
  if predictions and len(names) > 1:
    raise ConfigError(f'--predictions needs one --evaluation; there are {", ".join(names)}')
  if predictions:
    predicted.check_output(predictions.file, predictions.format, made=made)
  return names


def check_names(folder: RunFolder, sources: Mapping[str, Source], part: str | None = None) -> None:
  """Raise ConfigError if an evaluation orders classes differently than the training data."""
  trained = run_folder.class_names(folder, part)
  with errors.stage('evaluate'):
    parts.check_names({str(folder.data): trained} | {f'eval.{name}.data': source for name, source in sources.items()})


def _check_one(settings: Settings, predictions: Output | None, *, by_class: bool) -> None:
  asked = '--by_class' if by_class else f'--format={predictions.format}' if predictions and predictions.format else ''
  if by_class and not settings['adapter'] and not one_part.has_heads(settings):
    raise ConfigError('--by_class is of runs that classify or tag, and this one was pre-trained: leave it out')
  if asked and one_part.has_heads(settings):
    raise ConfigError(f'{asked} is of one task, and this run {one_part.left_open(settings)}, --part=NAME')


def _evaluator(
  settings: Settings,
  made: Parts,
  names: list[str],
  *,
  layout: sharding.Layout,
  predictions: Output | None,
  by_class: bool = False,
) -> Evaluator:
  # cheap checks come before any text is read
  feed.check_evaluations({name: settings['eval'][name] for name in names}, mesh=layout.mesh)
  found = preflight.look({f'eval.{name}.data': settings['eval'][name]['data'] for name in names}, made)
  scored = {place: one for place, one in found.items() if predictions is None or not one.unlabelled}
  preflight.check_scored_rows(settings, made, scored)
  sources = parts.make_evaluations(settings, made.vocab, reader=made, names=names)
  if by_class and (without := [name for name, source in sources.items() if source.unlabelled]):
    raise ConfigError(
      f'--by_class compares classes with labels, and rows of eval.{without[0]}.data have none (keep_unlabelled): leave '
      'it out'
    )
  # labels, documents and scores have to fit the task
  made = parts.fit(made, [source for name, source in sources.items() if name not in made.others])
  parts.check_rows(made, {f'eval.{name}.data': source for name, source in sources.items()})
  wanted = evaluation.asked(settings, made)
  # some scores need no labels; the others leave such evaluations out
  anyway = {
    name for name in names if predictions is None and scoring.takes_unlabelled(wanted[name], made.of(name).task)
  }
  labelled = {name: source for name, source in sources.items() if not source.unlabelled or name in anyway}
  scores: dict[str, tuple[str, ...]] = dict.fromkeys(names, ())
  scores |= evaluation.scores_of(settings, made, labelled)
  # the form of predictions is checked before they are made
  keys = evaluation.predicted_keys(made.of(names[0]).task, sources[names[0]].spec) if predictions or by_class else []
  if by_class:
    by_classes.check(keys, user=made.user)
  if predictions is not None:
    predicted.check_format(predictions.format, keys)
  elif len(labelled) < len(sources):
    bare = next(name for name in sources if name not in labelled)
    raise ConfigError(
      f'eval.{bare}.data: some rows have no label (keep_unlabelled), so that nothing can be scored: ask for '
      'predictions with --predictions=FILE, or leave keep_unlabelled out'
    )
  own = [source for name, source in sources.items() if name not in made.others]
  return Evaluator(
    made,
    sources,
    {name: settings['eval'][name]['units'] for name in names},
    jax.random.key(settings['seed']),
    scores,
    evaluation.steps_of(settings, made, names),
    layout,
    settings['best'] and settings['best'][0],
    own[0].spec if own else preflight.batch_spec(made, settings['data']),
  )


def _evaluate(
  evaluator: Evaluator, states: Iterator[Saved], *, folder: RunFolder | None, predictions: Output | None, by_class: bool
) -> list[dict[str, Any]]:
  """Evaluate each state, write the results, and return a line for each."""
  main, keep, lines = jax.process_index() == 0, predictions is not None or by_class, []
  for where, params in states:
    signals.check()
    found = {name: evaluator.evaluate(name, params, keep=keep) for name in evaluator.sources}
    line = where | {f'{name}/{metric}': value for name, one in found.items() for metric, value in one.metrics.items()}
    if folder is not None and main and len(line) > len(where):
      store(folder, line, devices=evaluator.layout.mesh.local_devices)
    log.info(
      f'{"  ".join(f"{name} {value}" for name, value in where.items())}  {progress.line(line, best=evaluator.best)}'
    )
    lines.append(line)
    if predictions is not None and main:
      ((name, one),) = found.items()
      form, in_words = predictions.format, evaluator.made.of(name).task.in_words
      predicted.write(predictions.file, one.predictions, one.records, form=form, in_words=in_words)
      log.info(f'{len(one.predictions)} predictions in {predictions.file}')
    if by_class and main:
      _by_class(found, where, folder)
  return lines


def store(folder: RunFolder, line: Mapping[str, Any], *, devices: Sequence[jax.Device]) -> None:
  """Append a line to a folder's `evaluations.jsonl`; create the folder."""
  files.make_folder(folder.root)
  is_run = files.exists(folder.config)  # a run says in its result what made it
  if not is_run:
    files.write_json(folder.evaluated_by, outcome.made(devices))
    checksums.seal(folder.root, [folder.evaluated_by.name])
  files.append_line(folder.evaluations, json.dumps(line))
  if not is_run:
    checksums.seal(folder.root, [folder.evaluated_by.name, folder.evaluations.name])


def _by_class(found: Mapping[str, evaluation.Evaluated], where: Mapping[str, Any], folder: RunFolder | None) -> None:
  measured = {name: by_classes.measure(one.predictions, one.records) for name, one in found.items()}
  for name, one in measured.items():
    by_classes.show(one, title=f'{name}, {", ".join(f"{key} {value}" for key, value in where.items())}')
  if folder is not None:
    files.make_folder(folder.root)
    metrics.write_json(folder.by_class, {name: {**where, **one.plain()} for name, one in measured.items()})
    log.info(f'also in {folder.by_class}')


# Checkpoints of a run ------------------------------------------------------------------------------------------------


def _states(
  settings: Settings,
  folder: RunFolder,
  steps: Iterator[int],
  task: Task,
  spec: Spec,
  *,
  layout: sharding.Layout,
  may_vanish: bool,
  part: str | None = None,
) -> Iterator[Saved]:
  """Yield the parameters of each step; `may_vanish` skips deleted ones."""
  if part is None:
    read = _reader(settings, folder, task, spec, layout=layout)
  else:
    read = functools.partial(_read_part, folder, part, task, spec, layout=layout)
  for step in steps:
    try:
      params = read(step)
    except CheckpointError:
      if may_vanish and step not in saved_steps.numbered(folder.checkpoints):
        log.info(f'step {step} was deleted before it could be scored (keep)')
        continue
      raise
    yield Saved({'step': step} if part is None else {'step': step, 'part': part}, params)


def _reader(
  settings: Settings, folder: RunFolder, task: Task, spec: Spec, *, layout: sharding.Layout
) -> Callable[[int], PyTree]:
  """Return a function from step to evaluation parameters."""
  tx = parts.make_optimiser(settings, abstract_params(task, spec), task)  # rates are not read
  abstract, cut = state_maker(task, tx, spec, layout=layout).abstract, settings['save'] == 'trained'
  abstract = trained_part.cut(abstract, tx) if cut else abstract

  def read(step: int) -> PyTree:
    try:
      _, state = checkpoint.restore(folder.checkpoints, abstract, step=step)
    except ValueError as error:
      first = str(error).partition(';')[0]
      fix = f'Leave --config out, or take its parameters: --weights={folder.root} instead of --workdir'
      raise ConfigError(f'--workdir={folder.root}: saved by another config: {first}. {fix}') from error
    if cut:
      whole = weights.open(folder.root, step=step).as_saved.tree()
      state = trained_part.joined(state, placed(whole, task, spec, layout=layout))
    return tx.eval_params(state.opt_state, state.params)

  return read


def _read_part(folder: RunFolder, part: str, task: Task, spec: Spec, step: int, *, layout: sharding.Layout) -> PyTree:
  """Read the parameters of one task of a multi-task run."""
  return placed(weights.open(folder.root, step=step, part=part).as_saved.tree(), task, spec, layout=layout)


def present_steps(folder: RunFolder, step: Step, *, every: bool) -> list[int]:
  """Return the requested step, or every sound step."""
  return sorted(saved_steps.records(folder.checkpoints)[0]) if every else [saved_steps.choose(folder.checkpoints, step)]


def _appearing(folder: RunFolder, *, timeout: float) -> Iterator[int]:
  """Yield steps as they appear; raise ConfigError after `timeout` seconds."""
  seen: set[int] = set()
  waited_since = time.monotonic()
  while True:
    signals.check()
    over = run_folder.read_result(folder).get('finished')  # before the listing, which then has its last step
    new = [step for step in sorted(saved_steps.records(folder.checkpoints)[0]) if step not in seen]
    if new:  # one at a time: while it is evaluated, others come and go
      seen.add(new[0])
      yield new[0]
      waited_since = time.monotonic()
    if not new and over:
      return
    if time.monotonic() - waited_since > timeout:
      raise ConfigError(f'{folder.root}: no new checkpoint in {timeout:.0f} s (--timeout), and it is not finished')
    if not new:
      time.sleep(POLL_SECONDS)
