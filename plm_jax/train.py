"""Trains a model: pre-training and fine-tuning are the same command with another config.

python -m plm_jax.train --config=experiments/quickstart/pretrain.py --workdir=runs/mine [--config.optim.rate=1e-3 ...]

The same command again continues the run in the folder up to `steps`; a finished run is left as it is. Exit codes:
0 done, 2 wrong usage or config, 3 stopped by a signal after saving, 4 stopped because training diverged.
"""

import sys
from collections.abc import Sequence

from plm_jax.cli import command, memory
from plm_jax.training.model_from import expand


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('train', __doc__)
  parser.add_argument('--stop_at', type=int, help='save and end after this step; the schedule still ends at `steps`')
  parser.add_argument('--coordinator', help='HOST:PORT of process 0, for a run of several processes')
  parser.add_argument('--processes', type=int, help='number of processes')
  parser.add_argument('--process', type=int, help='index of this process, from 0')
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  memory.reuse()
  from plm_jax.cli import logs
  from plm_jax.training import loop  # loads jax

  logs.start()
  loop.start_processes(arguments.coordinator, arguments.processes, arguments.process)
  return loop.train(settings, arguments.workdir, stop_at=arguments.stop_at).exit_code


if __name__ == '__main__':
  sys.exit(command.run(main))
