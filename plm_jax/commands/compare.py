"""Draws the curves of many runs in one picture, with a table of where they ended.

plm-jax compare runs/a runs/b runs/c --by=optim.rate --out=compare.png
plm-jax compare runs/sweep --metric=loss --out=compare.png

RUN is a run folder, or that of a sweep, which stands for all of its trials. Runs with the same value of --by are one
curve, the mean of their values, in a band of one standard deviation; without --by, runs whose configs differ in nothing
but the seed are. A damaged line of metrics, or a run whose config cannot be read, is named and left out.
"""

import argparse
from collections.abc import Sequence

from plm_jax.cli import command, signals
from plm_jax.core.errors import ConfigError


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line."""
  parser = command.Parser('plm-jax compare', description=__doc__, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
  parser.add_argument('runs', nargs='*', metavar='RUN', help='run folders, or folders of sweeps')
  parser.add_argument('--by', default='', metavar='KEY,KEY', help='dotted keys of the config that name a curve')
  parser.add_argument('--metric', help="a metric (default: that of `best` of the first run, else 'loss')")
  parser.add_argument('--out', metavar='FILE', help='the picture, a .png')
  arguments = parser.parse_args(argv)
  if not arguments.runs or not arguments.out:
    raise ConfigError(f'{parser.prog}: needs folders of runs and --out=FILE, as in runs/a runs/b --out=compare.png')
  if not arguments.out.endswith('.png'):
    raise ConfigError(f'--out={arguments.out}: the picture is a .png')
  from plm_jax.cli import logs
  from plm_jax.studies import compare

  logs.start()
  by = [key for key in arguments.by.split(',') if key]
  compare.compare(arguments.runs, arguments.out, by=by, metric=arguments.metric)
  return 0
