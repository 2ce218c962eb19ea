"""Search hyper-parameters with one or many workers.

plm-jax sweep --config=experiments/bert/glue.py:sst2 --workdir=runs/sweep --trials=20 \\
    --space="{'optim.rate': {'low': 1e-5, 'high': 1e-3, 'scale': 'log'}, 'data.batch_size': [16, 32], 'seed': [0, 1]}"
plm-jax sweep --config=experiments/bert/glue.py:mrpc --space=experiments/bert/glue.py --workdir=runs/grid

--space maps a config key to a list of values, or to a range {'low': ..., 'high': ..., 'scale': 'linear' or 'log'} (of
integers if both ends are integers; a grid also needs 'count'). With 'when': {'optim.name': ['adamw']} a key is used
only if an earlier key has one of these values. A Python file with the literal as SPACE works too; it is parsed, not
executed.

--method selects the search: grid, random, tpe or halving. halving stops trials early: only the best 1 in FACTOR
continues after --first_rung steps, then after FACTOR times as many, and so on. No point is trained twice: a repeated
sample is sampled again, and more --trials than the space has points are an error.

Each trial is an ordinary run in DIR/trials/, scored by the best value of the metric in `best`. Trials that differ only
in `seed` are one row of the table, ranked by their median. A trial that diverges or fails is listed with its reason. A
trial killed by the system (such as out of memory) resumes once from its checkpoint. On a full disk the worker stops and
its trial stays open.

Start more workers with the same command, on one machine or on several that share DIR on a file system with locks (NFS
has them). A worker that is stopped or killed loses nothing: start it again, and its trial resumes from a checkpoint. A
worker uses every accelerator it sees. To give each worker one chip of a TPU VM, put this before the first command:
TPU_VISIBLE_CHIPS=0 TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 TPU_PROCESS_BOUNDS=1,1,1

Writes table.txt, table.json, importance.png, parallel.png and journal.jsonl (Optuna's) to DIR. Optuna is an optional
dependency: bash launch/setup.sh sweep. Exit codes: 0 all trials are finished, 1 nothing can be written or the first
trial failed, 2 wrong usage, 3 stopped by a signal.
"""

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plm_jax import config
from plm_jax.cli import command, logs, malloc, signals
from plm_jax.core.errors import ConfigError, is_installed
from plm_jax.io import files, run_paths
from plm_jax.studies.sweep import space as sweep_space
from plm_jax.studies.sweep.space import Method
from plm_jax.training.before.model_from import expand

if TYPE_CHECKING:
  from plm_jax.studies.sweep.worker import Sweep

METHODS: tuple[Method, ...] = get_args(Method)
FACTOR = 3  # default of halving


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax sweep`; check the space before the first trial."""
  words = list(sys.argv[1:] if argv is None else argv)
  parser = _parser()
  arguments, settings = command.parse(parser, words, expand=expand)
  if settings is None:
    return 0
  _check(arguments, settings)
  for package in ('optuna', 'scikit-learn'):
    if not is_installed(package):
      raise ConfigError(f'sweep: {package} is not installed; run: bash launch/setup.sh sweep')
  from plm_jax.studies.sweep import worker

  if arguments.trial is None or not arguments.dry_run:
    logs.start()
  sweep = _make_sweep(arguments, settings)
  if arguments.trial is not None:
    malloc.reuse()
    from plm_jax.studies.sweep import trial  # loads jax

    if arguments.dry_run:  # called by `worker.check_metric`
      trial.check_metric(sweep, arguments.trial)
      return 0
    return trial.run(sweep, arguments.trial)
  points = worker.preview(sweep) if arguments.dry_run or sweep.method != 'grid' else []
  if sweep.method != 'grid' and not _has_begun(sweep.folder):  # the points of a grid are checked already
    sweep_space.check_points(points, sweep.changed)
  if arguments.dry_run:
    later = '' if len(points) == sweep.trials else f', then {sweep.trials - len(points)} that depend on the results'
    lines = [f'{index:4}  {sweep_space.as_flags(point)}' for index, point in enumerate(points)]
    command.show('\n'.join([f'{len(points)} trials{later}:', *lines]))
    return 0
  worker.check_metric(sweep, words)
  trials = worker.work(sweep, words)
  from plm_jax.studies.sweep import report

  with files.locked(sweep.lock('sweep'), doing='writing the table'):
    report.report(sweep, trials, command=_train_words(arguments))
  return 0


def _parser() -> command.Parser:
  parser = command.command('sweep', __doc__)
  add = parser.add_argument
  add('--space', metavar='SPACE', help='Python literal, or a Python file that assigns one to SPACE')
  add('--trials', type=command.COUNT, metavar='N', help='number of trials (default for grid: all points)')
  add('--method', choices=METHODS, help='search method (default: grid if every key has a list of values, else tpe)')
  add('--seed', type=command.SEED, help='random seed of random, tpe and halving (default 0)')
  help_ = 'halving: steps before the first stop (default: eval_every)'
  add('--first_rung', type=command.COUNT, metavar='STEPS', help=help_)
  help_ = f'halving: one trial in FACTOR continues (default {FACTOR})'
  add('--factor', type=command.number("Annotated[int, '2 <= x']"), help=help_)
  add('--dry_run', action='store_true', help='print the trials and exit')
  add('--trial', type=command.WHOLE, help=argparse.SUPPRESS)  # set by the worker for its child process
  return parser


def _check(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> None:
  """Raise ConfigError for a missing flag or metric."""
  if arguments.config is None:
    raise ConfigError('sweep: needs --config=FILE (of a run: RUN/config.json), and a new folder as --workdir')
  if arguments.space is None:
    raise ConfigError("sweep: needs --space=SPACE, such as \"{'optim.rate': [1e-4, 3e-4], 'seed': [0, 1]}\"")
  if settings['best'] is None:
    raise ConfigError(
      "sweep: trials are compared by the metric in config.best: set --config.best=\"('validation/loss', 'min')\""
    )
  for flag, value in (('first_rung', arguments.first_rung), ('factor', arguments.factor)):
    if value is not None and arguments.method != 'halving':
      raise ConfigError(f'sweep: --{flag} is only for --method=halving: remove it')


def _make_sweep(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> 'Sweep':
  from plm_jax.studies.sweep.worker import Sweep

  space = sweep_space.read(arguments.space)
  for key in space:
    if key.name.partition('.')[0] == 'best':
      raise ConfigError(
        f'--space: {key.name}: all trials are compared by one metric: remove this key and set --config.best'
      )
  method: Method = arguments.method or ('grid' if all(key.values or key.points for key in space) else 'tpe')

  @functools.cache
  def changed_by(changes: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    return command.changed(arguments, [*arguments.changes, *changes], expand=expand)[0]

  points = sweep_space.grid(space) if method == 'grid' else []
  _check_trials(arguments, space, method=method, points=len(points))
  first_rung = arguments.first_rung or settings['eval_every']
  folder = files.local_path(arguments.workdir, what='--workdir')
  steps_vary = any(key.name in ('steps', 'epochs', 'eval_every') or key.name.endswith('.every') for key in space)
  if method == 'halving' and not steps_vary and not _has_begun(folder):
    _check_rungs(first_rung, settings)
  if arguments.trial is None:
    sweep_space.check(space, lambda changes: changed_by(tuple(changes)), points=points[: arguments.trials])
    run_paths.check_no_run(folder, name='--workdir')
    if not arguments.dry_run:
      run_paths.check_new_folder(folder, name='--workdir')
  metric, better = settings['best']
  return Sweep(
    folder=folder,
    space=space,
    method=method,
    trials=arguments.trials or len(points),
    metric=metric,
    direction='maximize' if better == 'max' else 'minimize',
    seed=arguments.seed or 0,
    first_rung=first_rung,
    factor=arguments.factor or FACTOR,
    settings=config.resolve(settings),
    changed=lambda changes: changed_by(tuple(changes)),
  )


def _check_trials(arguments: argparse.Namespace, space: sweep_space.Space, *, method: Method, points: int) -> None:
  """Raise ConfigError for a wrong number of trials or a seed."""
  trials = arguments.trials
  if arguments.seed is not None and method == 'grid':
    raise ConfigError('sweep: --seed samples points and --method=grid does not: remove it, or set --config.seed')
  if trials is None and method != 'grid':
    raise ConfigError(f'sweep: --method={method} needs --trials=N')
  if trials is not None and method == 'grid' and trials > points:
    raise ConfigError(f'sweep: --trials={trials}: the grid has {points} points; use at most --trials={points}')
  if method != 'grid' and (all_points := sweep_space.all_points(space)) is not None and trials > len(all_points):
    raise ConfigError(
      f'sweep: --trials={trials}: the space has {len(all_points)} points, and --method={method} trains each once. '
      f'Use at most --trials={len(all_points)}, or --method=grid.'
    )


def _has_begun(folder: Path) -> bool:
  """Return whether the folder holds a sweep, which resumes without new checks."""
  return files.exists(folder / 'sweep.json')


def _check_rungs(first_rung: int, settings: Mapping[str, Any]) -> None:
  """Raise ConfigError if halving has no evaluation at which to stop."""
  every, steps = config.steps_between(settings, settings['best'][0].partition('/')[0]), settings['steps']
  if steps is not None and (first := -(-first_rung // every) * every) >= steps:
    raise ConfigError(
      f'sweep: --method=halving stops no trial: with --first_rung={first_rung} the first evaluation is at step {first} '
      f'of {steps}. Lower --first_rung or --config.eval_every.'
    )


def _train_words(arguments: argparse.Namespace) -> list[str]:
  """Build the flags of `train` for a run of the base config."""
  changes = [f'--config.{key}={value}' for key, value in arguments.changes]
  return [f'--config={arguments.config}', f'--workdir={arguments.workdir}/best', *changes]
