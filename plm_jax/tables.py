"""Fills a table of a paper, at a scale that a machine can bear, beside the published numbers.

python -m plm_jax.tables experiments/tables/roberta_1.py --scale=small --workdir=runs/tables
python -m plm_jax.tables experiments/tables/roberta_1.py --workdir=runs/tables --print    what there is, no run
python -m plm_jax.tables experiments/tables/roberta_1.py --workdir=runs/tables --commands one command a run
python -m plm_jax.tables experiments/tables/roberta_1.py --workdir=runs/tables --cost     hours and operations

A table file says which rows a paper compares, what is measured of each, the published numbers and the claimed
differences. Runs lie in `WORKDIR/runs/` and are shared by all tables; finished ones are not repeated, and one that was
stopped goes on, so the same command goes on after an end of any kind. `--out` takes `cells.json`, `table.md`,
`table.csv` and `table.png`.

--data names the folder of the task sets and --corpus the text that is pre-trained on; without them the paths are those
of the configs. --adopt takes folders of runs made elsewhere, where their config is the same.
"""

from plm_jax.cli import signals

if __name__ == '__main__':
  signals.begin()  # before the other imports, which take a while

import argparse
import shlex
import sys
from collections.abc import Sequence

from plm_jax import files
from plm_jax.cli import command


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line, then makes, renders or prints."""
  given = list(sys.argv[1:] if argv is None else argv)
  parser = command.Parser(
    prog='python -m plm_jax.tables',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.add_argument('table', metavar='FILE', help='a file of experiments/tables/')
  parser.add_argument('--scale', default='small', help='tiny, small or paper')
  parser.add_argument('--workdir', required=True, metavar='DIR', help='where the runs of all tables lie')
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
  from plm_jax.cli import logs
  from plm_jax.studies.tables import costs, file, filling, runs  # loads jax, and touches no device

  logs.start()
  table = file.read(arguments.table, arguments.scale)
  places = runs.Places(
    files.local_path(arguments.workdir, what='--workdir'), arguments.data, arguments.corpus, tuple(arguments.adopt)
  )
  plan = runs.plan(table, places)
  if arguments.commands:
    command.show('\n'.join(runs.spelt(one, places) for one in runs.needed(plan)))
    return 0
  if arguments.cost:
    costs.show(table, plan, places)
    return 0
  stem = files.path(arguments.table).stem
  out = files.path(arguments.out or files.path(arguments.workdir) / stem / arguments.scale)
  filling.fill(
    table,
    plan,
    places,
    out,
    scale=arguments.scale,
    command=shlex.join(['python', '-m', 'plm_jax.tables', *(word for word in given if word != '--print')]),
    run=not arguments.only_print,
    minutes=arguments.minutes,
  )
  command.show(files.read_text(out / 'table.md'))
  return 0


if __name__ == '__main__':
  sys.exit(command.run(main))
