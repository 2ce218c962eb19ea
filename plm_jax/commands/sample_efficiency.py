"""Compare fine-tuning with training from scratch at few labels.

plm-jax sample_efficiency --config=experiments/quickstart/classify.py --workdir=runs/mine \\
    --sizes=8,32 --seeds=3 --rates=1e-3,3e-4

The config fine-tunes from `init_from` and has evaluations named `validation` and `test`. For each size (labelled
examples per class), seed and start (pre-trained or from scratch), one run is trained per learning rate. Validation
selects the rate, and the table shows the test score of that run. Prints the table and writes `runs.jsonl`,
`table.json` and `curves.png`.

A finished run is repeated only if the settings, vocabulary, data or the parameters in `init_from` have changed:
`runs.jsonl` stores their checksums, and the log names what changed. Runs of an earlier version, which stored only the
checksum of the settings, are repeated once. Old lines stay in the file.
"""

import argparse
from collections.abc import Sequence

from plm_jax.cli import command, logs, malloc, signals
from plm_jax.core.errors import ConfigError
from plm_jax.training.before.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax sample_efficiency`; import jax only for a valid config."""
  parser = command.command('sample_efficiency', __doc__)
  add = parser.add_argument
  add('--sizes', default='8,32', help='labelled examples per class, separated by commas (default 8,32)')
  add('--seeds', type=command.COUNT, default=3, help='number of seeds; each samples its own examples (default 3)')
  add('--rates', default='1e-3,3e-4', help='learning rates to choose from, separated by commas (default 1e-3,3e-4)')
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  try:
    sizes = [command.COUNT(size) for size in arguments.sizes.split(',')]
    rates = [command.POSITIVE(rate) for rate in arguments.rates.split(',')]
  except argparse.ArgumentTypeError as error:
    raise ConfigError(f'--sizes and --rates: expected numbers separated by commas: {error}') from None
  malloc.reuse()
  from plm_jax.studies import transfer  # loads jax

  logs.start()
  signals.check()
  transfer.run_study(settings, arguments.workdir, sizes=sizes, seeds=arguments.seeds, rates=rates)
  return 0
