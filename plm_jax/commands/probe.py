"""Trains the same probe on each layer of a trunk, and on a mix of all: which knows a task best?

plm-jax probe --config=experiments/probe/words.py:ewt --workdir=runs/probe/pos --config.model.from=MODEL
plm-jax probe --config=experiments/probe/words.py:wnut17 --workdir=runs/probe/names \\
    --config.model.from=MODEL --beside=runs/probe/pos

The config is one of adapter `tag` or `classify`; here it reads one layer at a time from a frozen trunk (0 are the
embeddings), whatever it says itself. Each probe is a run in a folder of its own below --workdir, `layer_0_seed_0` and
so on: what is finished is not made again, and what was stopped goes on. Prints a table and writes `table.json` and
`layers.png`, with the curves of the folders in --beside. Layers of one width can be compared and mixed: of an AWD-LSTM
they are the embeddings and the last layer, as those between are wider.

Source: Peters et al. 2018, §5.3, and Tenney et al. 2019, which layer of a language model knows what.
"""

from collections.abc import Sequence

from plm_jax.cli import command, malloc, signals
from plm_jax.core.errors import ConfigError
from plm_jax.training.before.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('probe', __doc__)
  parser.add_argument('--layers', default='all', help="numbers and 'mix' separated by commas, or 'all' (default)")
  parser.add_argument('--seeds', type=command.COUNT, default=1, help='probes of each layer')
  parser.add_argument('--beside', default='', metavar='DIRS', help='folders of other probes, separated by commas')
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  layers = None if arguments.layers == 'all' else [_layer(word) for word in arguments.layers.split(',')]
  malloc.reuse()
  from plm_jax.cli import logs
  from plm_jax.studies import probe  # loads jax

  logs.start()
  signals.check()
  beside = [name for name in arguments.beside.split(',') if name]
  probe.run_study(settings, arguments.workdir, layers=layers, seeds=arguments.seeds, beside=beside)
  return 0


def _layer(word: str) -> int | str:
  """A word of --layers."""
  if word == 'mix':
    return word
  try:
    return int(word)
  except ValueError:
    raise ConfigError(f"--layers={word}: give numbers and 'mix' separated by commas, or all.") from None
