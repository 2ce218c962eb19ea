"""Write an HTML report about runs, sweeps and tables.

plm-jax report runs/a runs/b --out=report.html
plm-jax report runs --out=report.html --by=optim.rate --curves='gradient_norm/*'
plm-jax report runs/sweep runs/tables --out=report.html --samples=0

WORKDIR is the folder of a run, a sweep or tables, or any folder that contains such folders up to four levels below. The
page shows curves, sortable tables, noise, samples and differences between configs. It is one file and needs no network.
Damaged files are reported on the page and left out.

--by=KEY groups the runs: those with the same value become one curve. Without --by, runs whose configs differ only in
the seed become one curve.

--samples=N shows samples of the first run of N curves: a text with its noise, filled blanks, or continued prompts. This
loads a checkpoint, about ten seconds a run. The samples are stored in the run folder (samples.json) and recomputed only
for a new checkpoint. --samples=0 shows none.
"""

import shlex
import sys
from collections.abc import Sequence

from plm_jax.cli import command, logs, signals
from plm_jax.core.errors import ConfigError


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax report`."""
  given = list(sys.argv[1:] if argv is None else argv)
  parser = command.Parser('plm-jax report', __doc__)
  add = parser.add_argument
  add('workdirs', nargs='*', metavar='WORKDIR', help='folders of runs, sweeps or tables')
  add('--out', metavar='FILE', help='page to write (.html)')
  add('--by', default='', metavar='KEY,KEY', help='config keys that group runs into curves')
  add('--metric', help="metric of the tables (default: that of `best` of the first run, else 'loss')")
  add('--curves', default='', metavar='NAME,NAME', help="more metrics to plot, such as 'gradient_norm/*'; '*' for all")
  add('--samples', type=command.WHOLE, default=4, metavar='N', help='number of curves with samples (default 4)')
  add('--title', help='title of the page')
  arguments = parser.parse_args(given)
  if not arguments.workdirs or not arguments.out:
    raise ConfigError(f'{parser.prog}: needs folders and --out=FILE, such as runs/a runs/b --out=report.html')
  if not arguments.out.endswith(('.html', '.htm')):
    raise ConfigError(f'--out={arguments.out}: the name must end in .html')
  from plm_jax.studies.report import page

  logs.start()
  by, more = ([name for name in names.split(',') if name] for names in (arguments.by, arguments.curves))
  options = {'metric': arguments.metric, 'ask': arguments.samples, 'title': arguments.title}
  words = shlex.join(['plm-jax', 'report', *given])
  page.report(arguments.workdirs, arguments.out, by=by, more=more, command=words, **options)
  return 0
