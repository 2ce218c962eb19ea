"""Reproduce a table of a paper at a chosen scale.

plm-jax tables experiments/tables/roberta_1.py --scale=small --workdir=runs/tables
plm-jax tables experiments/tables/roberta_1.py --workdir=runs/tables --print    existing results, no run
plm-jax tables experiments/tables/roberta_1.py --workdir=runs/tables --commands one command per run
plm-jax tables experiments/tables/roberta_1.py --cost                           hours and operations
plm-jax tables experiments/tables/published_gpt2.py --scale=published --weights=DIR --workdir=runs/tables

A table file lists the compared rows, the metric of each column, the published numbers and the claimed differences.
Measured numbers are printed next to the published ones.

--scale=published evaluates or fine-tunes published weights: DIR has their folders under the names that the file lists.
What is missing stays empty, and --print shows the command that fetches it. A number that differs from the published one
is marked. Published numbers of other examples or weights are in parentheses and not compared.

--workdir stores the runs in DIR/runs, shared by all tables, and compiled programs in DIR/compiled. Finished runs are
not repeated and interrupted ones resume, so repeat the same command after any interruption.

--out gets `cells.json`, `table.md`, `table.csv` and `table.png`.

--rungs DIR DIR compares scales 1m, 5m and 30m of a table, whose `cells.json` are in these folders. `rungs.md` and
`rungs.png`, each difference over the number of parameters, go to the last of them, or to --out.

--data names the folder of the task data sets and --corpus the pre-training text; by default the paths of the configs.

--seeds=5 makes five runs of each cell: pre-trainings if the table has several or fine-tunes nothing, else fine-tunings.
Those of fewer seeds are among them. --first_seed=100 replicates the table with other seeds.

--adopt=DIR reuses finished runs made elsewhere. Their config, the checksums of their vocabulary and data, and the run
they started from must be the same; paths may differ. The log names the checksum that differs.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from plm_jax.cli import command, logs, signals
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax tables`: make the runs or only print."""
  given = list(sys.argv[1:] if argv is None else argv)
  arguments = _parser().parse_args(given)
  from plm_jax.studies.tables import file

  if arguments.rungs:
    return _compare_rungs(arguments)
  scales = file.SCALES if arguments.cost and arguments.scale is None else (arguments.scale or 'small',)
  arguments.scale = scales[-1]
  _check_weights(arguments)
  seeds = dict(seeds=arguments.seeds, first_seed=arguments.first_seed)
  table = file.read(arguments.table, arguments.scale, **seeds)
  if arguments.workdir is None and not arguments.cost:
    return _show_cells(table, arguments)
  from plm_jax.studies.tables import run_folders, runs

  logs.start()
  workdir = None if arguments.workdir is None else files.local_path(arguments.workdir, what='--workdir')
  makes = not (arguments.only_print or arguments.commands or arguments.cost)
  run_folders.check_adopt(arguments.adopt)
  places = runs.Places(workdir, arguments.data, arguments.corpus, tuple(arguments.adopt), makes, arguments.weights)
  if arguments.weights:
    from plm_jax.studies.tables import published  # loads numpy

    table = published.found(table, places, head=arguments.table)
  plan = runs.plan(table, places)
  from plm_jax.studies.tables import costs, filling, making, needs  # loads jax, and touches no device

  if arguments.commands:
    metrics = filling.metrics_of(table, plan)
    predicted = [(run, metrics[run.digest] if run.is_tuning else ()) for run in runs.needed(plan)]
    command.show('\n'.join(making.spelt(run, places, metrics=names) for run, names in predicted))
    return 0
  if arguments.cost:
    for scale in scales:
      scaled = file.read(arguments.table, scale, **seeds)
      costs.show(scaled, runs.plan(scaled, places), places, scale=scale)
    return 0
  out = files.path(arguments.out or files.path(arguments.workdir) / file.stem(arguments.table) / arguments.scale)
  run_paths.check_new_folder(out, name='--out' if arguments.out else '--workdir')
  if not arguments.only_print:
    needs.check(table, plan, filling.metrics_of(table, plan), places, head=arguments.table)
  words = shlex.join(['plm-jax', 'tables', *_of_table(given)])
  options = {'scale': arguments.scale, 'run': not arguments.only_print, 'minutes': arguments.minutes}
  cells = filling.fill(table, plan, places, out, command=words, **options)
  command.show(files.read_text(out / 'table.md'))
  return 1 if cells['failed'] and not cells['runs'] else 0  # one failed run is a result, no finished run a mistake


def _parser() -> command.Parser:
  parser = command.Parser('plm-jax tables', __doc__)
  add = parser.add_argument
  add('table', metavar='FILE[:ARGUMENTS]', help='file of experiments/tables/, with arguments if it takes any')
  add('--scale', help='tiny, small (default), paper, or 1m, 5m, 30m of some files; published needs --weights')
  add('--weights', metavar='DIR', help='folder of the folders of published weights')
  add('--workdir', metavar='DIR', help='folder of the runs of all tables; optional with --cost')
  add('--out', metavar='DIR', help='folder of the table (default: WORKDIR/NAME/SCALE)')
  add('--data', metavar='DIR', help='folder of the task data sets')
  add('--corpus', metavar='DIR', help='pre-training text')
  add('--seeds', type=command.COUNT, help='seeds of a cell: of pre-training if the table has several, else of tuning')
  add('--first_seed', type=command.SEED, default=0, help='added to every seed, for an independent replication')
  add('--rungs', metavar='DIR', nargs='+', default=(), help='compare scales of the table, each rendered in a folder')
  add('--adopt', metavar='DIR', nargs='+', default=(), help='folders of runs made elsewhere')
  add('--minutes', type=command.POSITIVE, default=float('inf'), help='start no run after this many minutes')
  which = parser.add_mutually_exclusive_group()
  which.add_argument('--print', action='store_true', dest='only_print', help='render existing results, start no run')
  which.add_argument('--commands', action='store_true', help='print the command of each run, start none')
  which.add_argument('--cost', action='store_true', help='print hours and operations, start no run')
  return parser


def _check_weights(arguments: argparse.Namespace) -> None:
  if arguments.weights is None and arguments.scale == 'published':
    raise ConfigError('--scale=published needs --weights=DIR: add the folder that holds the folders of the weights.')
  if arguments.weights is not None and arguments.scale != 'published':
    raise ConfigError(f'--weights is for --scale=published, not {arguments.scale}: write that, or remove --weights.')
  if arguments.weights is not None and (arguments.cost or arguments.corpus):
    raise ConfigError(f'--scale=published pre-trains nothing: remove {"--cost" if arguments.cost else "--corpus"}.')


def _of_table(given: Sequence[str]) -> list[str]:
  """Remove --print, --out and --minutes from the words of a command."""
  pairs = zip(['', *given], given, strict=False)
  removed = ('--out', '--minutes')
  words = [word for before, word in pairs if before not in removed and word.partition('=')[0] not in removed]
  return [word for word in words if word != '--print']


def _compare_rungs(arguments: argparse.Namespace) -> int:
  """Render the differences of the scales whose `cells.json` are in `--rungs`."""
  from plm_jax.studies.tables import cells, file, rungs  # loads jax

  found = {}
  for kept in (files.path(folder) / 'cells.json' for folder in arguments.rungs):
    if not files.is_file(kept):
      raise ConfigError(f'--rungs: there is no {kept}: name folders that `plm-jax tables` has written.')
    results = cells.read(kept)
    errors.check_choice(f'--rungs: {kept}', 'scale', results['scale'], file.RUNGS)
    found[results['scale']] = results
  files.make_folder(out := files.path(arguments.out or arguments.rungs[-1]))
  rungs.write({scale: (file.read(arguments.table, scale), found[scale]) for scale in file.RUNGS if scale in found}, out)
  command.show(files.read_text(out / 'rungs.md'))
  return 0


def _show_cells(table: Any, arguments: argparse.Namespace) -> int:
  """Render the `cells.json` in `--out`, without the runs."""
  if not arguments.only_print:
    raise ConfigError('plm-jax tables: needs --workdir=DIR, the folder of the runs (except with --cost).')
  out = files.path(arguments.out or '')
  if not arguments.out or not files.is_file(out / 'cells.json'):
    missing = f': there is no cells.json in {out}' if arguments.out else ''
    raise ConfigError(
      'plm-jax tables: --print needs --workdir=DIR, the folder of the runs, or --out=DIR, a folder with a '
      f'cells.json{missing}.'
    )
  from plm_jax.studies.tables import cells, published, render, runs  # loads jax

  if arguments.weights:
    places = runs.Places(None, arguments.data, weights=arguments.weights)
    table = published.found(table, places, head=arguments.table)
  results = cells.read(out / 'cells.json')
  if results['scale'] != arguments.scale:
    raise ConfigError(f'{out / "cells.json"} has scale {results["scale"]}: add --scale={results["scale"]}.')
  render.write(table, results, out)
  command.show(files.read_text(out / 'table.md'))
  return 0
