"""Plot the learning curves of several runs in one picture.

plm-jax compare runs/a runs/b runs/c --by=optim.rate --out=compare.png
plm-jax compare runs/sweep --metric=loss --out=compare.png

RUN is a run folder, or the folder of a sweep, which adds all of its trials. A table shows where each curve ends.

--by=KEY groups the runs: those with the same value of the key become one curve, the mean with a band of one standard
deviation. Without --by, runs whose configs differ only in the seed become one curve.

Damaged lines of metrics and runs with an unreadable config are reported and left out.
"""

from collections.abc import Sequence

from plm_jax.cli import command, logs, signals
from plm_jax.core.errors import ConfigError


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax compare`."""
  parser = command.Parser('plm-jax compare', __doc__)
  parser.add_argument('runs', nargs='*', metavar='RUN', help='folders of runs or sweeps')
  parser.add_argument('--by', default='', metavar='KEY,KEY', help='config keys that group runs into curves')
  parser.add_argument('--metric', help="metric to plot (default: that of `best` of the first run, else 'loss')")
  parser.add_argument('--out', metavar='FILE', help='picture to write (.png)')
  arguments = parser.parse_args(argv)
  if not arguments.runs or not arguments.out:
    raise ConfigError(f'{parser.prog}: needs run folders and --out=FILE, such as runs/a runs/b --out=compare.png')
  if not arguments.out.endswith('.png'):
    raise ConfigError(f'--out={arguments.out}: the name must end in .png')
  from plm_jax.studies import compare

  logs.start()
  by = [key for key in arguments.by.split(',') if key]
  compare.compare(arguments.runs, arguments.out, by=by, metric=arguments.metric)
  return 0
