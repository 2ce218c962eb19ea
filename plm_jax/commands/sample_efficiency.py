"""Fine-tunes from pre-trained parameters and from scratch, with few labels and with more.

plm-jax sample_efficiency --config=experiments/quickstart/classify.py --workdir=runs/mine \\
    --sizes=8,32 --seeds=3 --rates=1e-3,3e-4

The config is one of fine-tuning with `init_from`, and with evaluations named `validation` and `test`. For each size
(labelled examples per class), seed and start (pre-trained or from scratch) there is one run per learning rate; the rate
is chosen on validation, and the table shows the test score of that run. Prints the table and writes `runs.jsonl`,
`table.json` and `curves.png`.

Finished runs are not repeated as long as all that they are made from is there and has the digests that `runs.jsonl`
keeps: the settings, the vocabulary, the rows, and the parameters in the folders of `init_from`. Where one changed, its
runs are made again, and the log says what changed; runs of an earlier version, which kept digests of the settings
alone, are made again once. Their lines stay in the file.
"""

import argparse
from collections.abc import Sequence

from plm_jax.cli import command, malloc, signals
from plm_jax.core.errors import ConfigError
from plm_jax.training.before.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('sample_efficiency', __doc__)
  parser.add_argument('--sizes', default='8,32', help='labelled examples per class, separated by commas')
  parser.add_argument('--seeds', type=command.COUNT, default=3, help='number of seeds; each draws its own examples')
  parser.add_argument('--rates', default='1e-3,3e-4', help='learning rates to choose from, separated by commas')
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  try:
    sizes = [command.COUNT(size) for size in arguments.sizes.split(',')]
    rates = [command.POSITIVE(rate) for rate in arguments.rates.split(',')]
  except argparse.ArgumentTypeError as error:
    raise ConfigError(f'--sizes and --rates are numbers separated by commas: {error}') from None
  malloc.reuse()
  from plm_jax.cli import logs
  from plm_jax.studies import transfer  # loads jax

  logs.start()
  signals.check()
  transfer.run_study(settings, arguments.workdir, sizes=sizes, seeds=arguments.seeds, rates=rates)
  return 0
