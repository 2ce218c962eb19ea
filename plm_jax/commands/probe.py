"""Train the same probe on each layer of a trunk.

plm-jax probe --config=experiments/probe/words.py:ewt --workdir=runs/probe/pos --config.model.from=MODEL
plm-jax probe --config=experiments/probe/words.py:wnut17 --workdir=runs/probe/names \\
    --config.model.from=MODEL --beside=runs/probe/pos

Shows which layer of a trunk (the backbone: the network without a task head) solves a task best. The config uses adapter
`tag` or `classify`. The trunk is frozen, and each probe reads one layer (0 is the embeddings) or a learned mix of all.

Each probe is a run in its own folder below --workdir, such as `layer_0_seed_0`. Finished runs are not repeated and
interrupted ones resume. Prints a table and writes `table.json` and `layers.png`.

--layers=0,6,mix selects layers. Only layers of one width can be compared and mixed: of an AWD-LSTM the embeddings and
the last layer, since those between are wider.

--beside=DIRS adds the curves of earlier probes to the picture.

Source: Peters et al. 2018, §5.3, and Tenney et al. 2019, on what the layers of a language model encode.
"""

from collections.abc import Sequence

from plm_jax.cli import command, logs, malloc, signals
from plm_jax.core.errors import ConfigError
from plm_jax.training.before.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax probe`; import jax only for a valid config."""
  parser = command.command('probe', __doc__)
  add = parser.add_argument
  add('--layers', default='all', help="layer indices and 'mix', separated by commas, or 'all' (default)")
  add('--seeds', type=command.COUNT, default=1, help='number of seeds per layer (default 1)')
  add('--beside', default='', metavar='DIRS', help='folders of earlier probes, separated by commas')
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  layers = None if arguments.layers == 'all' else [_layer(word) for word in arguments.layers.split(',')]
  malloc.reuse()
  from plm_jax.studies import probe  # loads jax

  logs.start()
  signals.check()
  beside = [name for name in arguments.beside.split(',') if name]
  probe.run_study(settings, arguments.workdir, layers=layers, seeds=arguments.seeds, beside=beside)
  return 0


def _layer(word: str) -> int | str:
  if word == 'mix':
    return word
  try:
    return int(word)
  except ValueError:
    raise ConfigError(f"--layers={word}: expected layer indices and 'mix' separated by commas, or all.") from None
