"""Sweeps over keys of a config: grid, random, TPE or successive halving, with any number of workers.

plm-jax sweep --config=experiments/bert/glue.py:sst2 --workdir=runs/sweep --trials=20 \\
    --space="{'optim.rate': {'low': 1e-5, 'high': 1e-3, 'scale': 'log'}, 'data.batch_size': [16, 32], 'seed': [0, 1]}"
plm-jax sweep --config=experiments/bert/glue.py:mrpc --space=experiments/bert/glue.py --workdir=runs/grid

A space is dotted key -> values, or a range {'low': ..., 'high': ..., 'scale': 'linear' or 'log'}, of whole numbers
where both ends are; a grid needs a 'count' of values with it. With 'when': {'optim.name': ['adamw']} a key is there
only where an earlier one has such a value. A Python file that has the literal as SPACE will do as well; it is read and
not executed.

Each trial is an ordinary run in DIR/trials/, judged by the best value of the metric of `best`. --method=halving stops
trials early: those that are not among the best of FACTOR at --first_rung steps, at FACTOR times as many, and so on.
Trials that differ in nothing but `seed` are one row of the table, ranked by their median. No point is trained twice:
one that a trial has already is drawn anew, and more --trials than a space of values has points are refused.

Any number of workers join by the same command, on one machine or on several that share DIR by a file system with locks
(NFS does). A worker that is stopped or killed loses nothing: start it again, and what was under way goes on from its
checkpoint. A worker uses every accelerator that it sees; several on a TPU VM take a chip each, the first one by
TPU_VISIBLE_CHIPS=0 TPU_CHIPS_PER_PROCESS_BOUNDS=1,1,1 TPU_PROCESS_BOUNDS=1,1,1 before the command. A trial that
diverges or fails is a row with its reason; one that the system killed, as where memory is full, goes on from its
checkpoint once. Where the disk is full a trial is not over, and the worker stops.

Writes table.txt, table.json, importance.png, parallel.png and journal.jsonl (Optuna's) to DIR. Optuna is an extra:
bash launch/setup.sh sweep. Exit codes: 0 all trials are over, 1 nothing can be written or the first trial failed,
2 wrong usage, 3 stopped by a signal.
"""

import argparse
import functools
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from plm_jax import config
from plm_jax.cli import command, malloc, signals
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths
from plm_jax.studies.sweep import space as sweep_space
from plm_jax.studies.sweep.space import Method
from plm_jax.training.before.model_from import expand

if TYPE_CHECKING:
  from plm_jax.studies.sweep.worker import Sweep

METHODS: tuple[Method, ...] = get_args(Method)
FACTOR = 3  # of halving, where none is given


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; the space and every value in it are checked before the first trial."""
  words = list(sys.argv[1:] if argv is None else argv)
  parser = _parser()
  arguments, settings = command.parse(parser, words, expand=expand)
  if settings is None:
    return 0
  _check(arguments, settings)
  for package in ('optuna', 'scikit-learn'):
    try:
      metadata.distribution(package)
    except metadata.PackageNotFoundError:
      raise ConfigError(f'sweep needs {package}, which is not installed: bash launch/setup.sh sweep') from None
  from plm_jax.cli import logs
  from plm_jax.studies.sweep import worker

  if arguments.trial is None or not arguments.dry_run:
    logs.start()
  made = _sweep(arguments, settings)
  if arguments.trial is not None:
    malloc.reuse()
    from plm_jax.studies.sweep import trial  # loads jax

    if arguments.dry_run:  # asked by `sweep.check_metric`
      trial.check_metric(made, arguments.trial)
      return 0
    return trial.run(made, arguments.trial)
  points = worker.preview(made) if arguments.dry_run or made.method != 'grid' else []
  if made.method != 'grid' and not _begun(made.folder):  # those of a grid are sound already
    sweep_space.check_points(points, made.changed)
  if arguments.dry_run:
    later = '' if len(points) == made.trials else f', then {made.trials - len(points)} that depend on the results'
    lines = [f'{number:4}  {sweep_space.as_flags(point)}' for number, point in enumerate(points)]
    command.show('\n'.join([f'{len(points)} trials{later}:', *lines]))
    return 0
  worker.check_metric(made, words)
  trials = worker.work(made, words)
  from plm_jax.studies.sweep import report

  with files.locked(made.lock('sweep'), doing='writing the table'):
    report.report(made, trials, command=_before(arguments))
  return 0


def _parser() -> command.Parser:
  parser = command.command('sweep', __doc__)
  add = parser.add_argument
  add('--space', metavar='SPACE', help='a literal, or a Python file with one as SPACE')
  add('--trials', type=command.COUNT, metavar='N', help='number of trials (grid: all points)')
  add('--method', choices=METHODS, help='how points are chosen (default: grid where every key has values, else tpe)')
  add('--seed', type=command.SEED, help='random, tpe and halving: of the choice of points (default 0)')
  add('--first_rung', type=command.COUNT, metavar='STEPS', help='halving: steps before the first stop (eval_every)')
  add('--factor', type=command.number("Annotated[int, '2 <= x']"), help=f'halving: one in FACTOR goes on ({FACTOR})')
  add('--dry_run', action='store_true', help='print the trials, and exit')
  add('--trial', type=command.WHOLE, help=argparse.SUPPRESS)  # of the process that a worker starts
  return parser


def _check(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> None:
  """Raises ConfigError for what is missing beside the config."""
  if arguments.config is None:
    raise ConfigError('sweep: needs --config=FILE; the config of a run is RUN/config.json, and --workdir a new folder')
  if arguments.space is None:
    raise ConfigError("sweep: needs --space=SPACE, such as \"{'optim.rate': [1e-4, 3e-4], 'seed': [0, 1]}\"")
  if settings['best'] is None:
    raise ConfigError(
      "sweep: trials are compared by the metric of config.best: --config.best=\"('validation/loss', 'min')\""
    )
  for flag, value in (('first_rung', arguments.first_rung), ('factor', arguments.factor)):
    if value is not None and arguments.method != 'halving':
      raise ConfigError(f'sweep: --{flag} is for --method=halving')


def _sweep(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> 'Sweep':
  """What the flags ask for, once every value of the space is one that the config takes."""
  from plm_jax.studies.sweep.worker import Sweep

  space = sweep_space.read(arguments.space)
  for key in space:
    if key.name.partition('.')[0] == 'best':
      raise ConfigError(
        f'the space, {key.name}: all trials are judged by the metric of the base config, so that their numbers can be '
        'compared: leave it out of the space, and set --config.best'
      )
  method: Method = arguments.method or ('grid' if all(key.values or key.points for key in space) else 'tpe')

  @functools.cache
  def changed_by(changes: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    return command.changed(arguments, [*arguments.changes, *changes], expand=expand)[0]

  points = sweep_space.grid(space) if method == 'grid' else []
  if arguments.seed is not None and method == 'grid':
    raise ConfigError('sweep: --seed draws points, and --method=grid draws none; the seed of runs is --config.seed')
  if arguments.trials is None and method != 'grid':
    raise ConfigError(f'sweep: --method={method} needs --trials=N')
  if arguments.trials is not None and method == 'grid' and arguments.trials > len(points):
    raise ConfigError(f'sweep: --trials={arguments.trials}: the grid has {len(points)} points')
  if method != 'grid' and (drawn := sweep_space.all_points(space)) is not None and arguments.trials > len(drawn):
    raise ConfigError(
      f'sweep: --trials={arguments.trials}: the space has {len(drawn)} points, and --method={method} trains none of '
      f'them twice: --trials={len(drawn)} at most, or --method=grid for all of them'
    )
  first_rung = arguments.first_rung or settings['eval_every']
  folder = files.local_path(arguments.workdir, what='--workdir')
  moves = any(key.name in ('steps', 'epochs', 'eval_every') or key.name.endswith('.every') for key in space)
  if method == 'halving' and not moves and not _begun(folder):
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


def _begun(folder: Path) -> bool:
  """Whether a sweep is there, which goes on whatever would be said of a new one."""
  return files.exists(folder / 'sweep.json')


def _check_rungs(first_rung: int, settings: Mapping[str, Any]) -> None:
  """Raises ConfigError where no trial could be stopped: no evaluation is between the first rung and the last step."""
  every, steps = config.steps_between(settings, settings['best'][0].partition('/')[0]), settings['steps']
  if steps is not None and (first := -(-first_rung // every) * every) >= steps:
    raise ConfigError(
      f'sweep: --method=halving would stop no trial: the first evaluation from --first_rung={first_rung} on is at step '
      f'{first}, and a trial ends at {steps}: choose --first_rung and the steps between evaluations below it'
    )


def _before(arguments: argparse.Namespace) -> list[str]:
  """The words of a `train` command that makes a run of the base config."""
  own = [f'--config.{key}={value}' for key, value in arguments.changes]
  return [f'--config={arguments.config}', f'--workdir={arguments.workdir}/best', *own]
