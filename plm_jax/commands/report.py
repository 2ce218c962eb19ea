"""Writes one page about runs: curves, tables that sort, noise, samples, differences between configs.

plm-jax report runs/a runs/b --out=report.html
plm-jax report runs --out=report.html --by=optim.rate --curves='gradient_norm/*'
plm-jax report runs/sweep runs/tables --out=report.html --samples=0

WORKDIR is a run folder, that of a sweep or of tables, or any folder that holds such folders up to four levels below.
The page is one file and needs no network: send it as it is. Runs whose configs differ in nothing but the seed are one
curve, or those with the same values of --by. What is damaged is named on the page and left out.

The first run of each curve is asked what its noise does to a text, and to fill blanks or to go on with a prompt. That
loads jax and a checkpoint, some ten seconds a run, so --samples says of how many; the answers are kept in the folder of
the run (samples.json), shown again without asking, and asked anew once it has another checkpoint. --samples=0 asks
none.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence

from plm_jax.cli import command, signals
from plm_jax.core.errors import ConfigError


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line."""
  given = list(sys.argv[1:] if argv is None else argv)
  parser = command.Parser('plm-jax report', description=__doc__, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
  parser.add_argument('workdirs', nargs='*', metavar='WORKDIR', help='folders of runs, sweeps, tables')
  parser.add_argument('--out', metavar='FILE', help='the page, a .html')
  parser.add_argument('--by', default='', metavar='KEY,KEY', help='dotted keys of the config that name a curve')
  parser.add_argument('--metric', help="of the tables (default: that of `best` of the first run, else 'loss')")
  parser.add_argument(
    '--curves', default='', metavar='NAME,NAME', help="more metrics to draw, such as 'gradient_norm/*'; '*' is all"
  )
  parser.add_argument(
    '--samples', type=command.WHOLE, default=4, metavar='N', help='curves whose first run is asked (default 4)'
  )
  parser.add_argument('--title', help='of the page')
  arguments = parser.parse_args(given)
  if not arguments.workdirs or not arguments.out:
    raise ConfigError(f'{parser.prog}: needs folders of runs and --out=FILE, as in runs/a runs/b --out=report.html')
  if not arguments.out.endswith(('.html', '.htm')):
    raise ConfigError(f'--out={arguments.out}: the page is a .html')
  from plm_jax.cli import logs
  from plm_jax.studies.report import page

  logs.start()
  page.report(
    arguments.workdirs,
    arguments.out,
    by=[key for key in arguments.by.split(',') if key],
    metric=arguments.metric,
    more=[one for one in arguments.curves.split(',') if one],
    ask=arguments.samples,
    title=arguments.title,
    command=shlex.join(['plm-jax', 'report', *given]),
  )
  return 0
