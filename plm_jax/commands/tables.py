"""Fills a table of a paper, at a scale that a machine can bear, beside the published numbers.

plm-jax tables experiments/tables/roberta_1.py --scale=small --workdir=runs/tables
plm-jax tables experiments/tables/roberta_1.py --workdir=runs/tables --print    what there is, no run
plm-jax tables experiments/tables/roberta_1.py --workdir=runs/tables --commands one command a run
plm-jax tables experiments/tables/roberta_1.py --cost                           hours and operations

A table file says which rows a paper compares, what is measured of each, the published numbers and the claimed
differences. Runs lie in `WORKDIR/runs/` and are shared by all tables; finished ones are not repeated, and one that was
stopped goes on, so the same command goes on after an end of any kind. `--out` takes `cells.json`, `table.md`,
`table.csv` and `table.png`. `WORKDIR/compiled` keeps compiled programs, which runs that differ in a seed share.

--data names the folder of the task sets and --corpus the text that is pre-trained on; without them the paths are those
of the configs. --adopt takes finished runs made elsewhere, with their config, the digests of their vocabulary and
rows, and the run that they began with the same, wherever these lie; the log says which digest differs.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from plm_jax.cli import command, signals
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line, then makes, renders or prints."""
  given = list(sys.argv[1:] if argv is None else argv)
  parser = command.Parser(
    prog='plm-jax tables',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument('table', metavar='FILE[:WORDS]', help='a file of experiments/tables/, with the words it takes')
  parser.add_argument('--scale', help='tiny, small (default) or paper; --cost without it shows all')
  parser.add_argument('--workdir', metavar='DIR', help='where the runs of all tables lie; --cost may do without')
  parser.add_argument('--out', metavar='DIR', help='where the table is written; WORKDIR/NAME/SCALE without it')
  parser.add_argument('--data', metavar='DIR', help='folder of the task sets')
  parser.add_argument('--corpus', metavar='DIR', help='text that is pre-trained on')
  parser.add_argument('--adopt', metavar='DIR', nargs='+', default=(), help='folders of runs made elsewhere')
  parser.add_argument('--minutes', type=command.POSITIVE, default=float('inf'), help='no run begins after so many')
  which = parser.add_mutually_exclusive_group()
  which.add_argument('--print', action='store_true', dest='only_print', help='render what there is, make no run')
  which.add_argument('--commands', action='store_true', help='print the command of each run, make none')
  which.add_argument('--cost', action='store_true', help='print hours and operations, make no run')
  arguments = parser.parse_args(given)
  from plm_jax.studies.tables import file

  scales = file.SCALES if arguments.cost and arguments.scale is None else (arguments.scale or 'small',)
  arguments.scale = scales[-1]
  table = file.read(arguments.table, arguments.scale)
  if arguments.workdir is None and not arguments.cost:
    return _show_cells(table, arguments)
  from plm_jax.cli import logs
  from plm_jax.studies.tables import run_folders, runs

  logs.start()
  workdir = None if arguments.workdir is None else files.local_path(arguments.workdir, what='--workdir')
  makes = not (arguments.only_print or arguments.commands or arguments.cost)
  run_folders.check_adopt(arguments.adopt)
  places = runs.Places(workdir, arguments.data, arguments.corpus, tuple(arguments.adopt), makes)
  plan = runs.plan(table, places)
  from plm_jax.studies.tables import costs, filling, making, needs  # loads jax, and touches no device

  if arguments.commands:
    asked = filling.metrics_of(table, plan)
    predicted = [(one, asked[one.digest] if one.is_tuning else ()) for one in runs.needed(plan)]
    command.show('\n'.join(making.spelt(one, places, asked=metrics) for one, metrics in predicted))
    return 0
  if arguments.cost:
    for scale in scales:
      one = file.read(arguments.table, scale)
      costs.show(one, runs.plan(one, places), places, scale=scale)
    return 0
  out = files.path(arguments.out or files.path(arguments.workdir) / file.stem(arguments.table) / arguments.scale)
  run_paths.check_new_folder(out, name='--out' if arguments.out else '--workdir')
  if not arguments.only_print:
    needs.check(table, plan, filling.metrics_of(table, plan), places, head=arguments.table)
  kept = filling.fill(
    table,
    plan,
    places,
    out,
    scale=arguments.scale,
    command=shlex.join(['plm-jax', 'tables', *_of_table(given)]),
    run=not arguments.only_print,
    minutes=arguments.minutes,
  )
  command.show(files.read_text(out / 'table.md'))
  return 1 if kept['failed'] and not kept['runs'] else 0  # a run that fails is a result; all that fail are a mistake


def _of_table(given: Sequence[str]) -> list[str]:
  """The words of a command without those that say where a table is written and how much of it is made now."""
  pairs = zip(['', *given], given, strict=False)
  passing = ('--out', '--minutes')
  kept = [word for before, word in pairs if before not in passing and word.partition('=')[0] not in passing]
  return [word for word in kept if word != '--print']


def _show_cells(table: Any, arguments: argparse.Namespace) -> int:
  """Renders the `cells.json` that `--out` names, which needs none of the runs that it came of.

  Raises:
    ConfigError: what was asked for needs runs, and so `--workdir`, or there is no such file.
  """
  if not arguments.only_print:
    raise ConfigError('plm-jax tables: needs --workdir=DIR, where the runs of all tables lie; --cost does not.')
  out = files.path(arguments.out or '')
  if not arguments.out or not files.is_file(out / 'cells.json'):
    none = f', and {out} has no cells.json' if arguments.out else ''
    raise ConfigError(
      'plm-jax tables: --print renders what earlier runs left in a cells.json: name the folder of the runs '
      f'by --workdir=DIR, or that of the cells.json by --out=DIR{none}.'
    )
  from plm_jax.studies.tables import cells, render  # loads jax

  kept = cells.read(out / 'cells.json')
  if kept['scale'] != arguments.scale:
    raise ConfigError(f'{out / "cells.json"} is of another scale: add --scale={kept["scale"]}.')
  render.write(table, kept, out)
  command.show(files.read_text(out / 'table.md'))
  return 0
