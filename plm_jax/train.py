"""Trains a model: pre-training and fine-tuning are the same command with another config.

python -m plm_jax.train --config=experiments/quickstart/pretrain.py --workdir=runs/mine [--config.optim.rate=1e-3 ...]

The same command again continues the run in the folder up to `steps`; a finished run is left as it is. Exit codes:
0 done, 2 wrong usage or config, 3 stopped by a signal after saving, 4 stopped because training diverged.

--extend=N gives a run N more steps than it has, whether it is finished or on its way, and goes on from its newest
checkpoint. The schedule is stretched from there on: the learning rate becomes that of a run of so many steps in all
(what is a fraction of the run, such as a warmup, too), so that after a decay to 0 it rises again; steps that are made
keep theirs. The order of data goes on. `config.json` records it, later commands need no --extend, and the same command
again, if the run was stopped in between, goes on without adding more.

--compile_cache=DIR keeps compiled programs in a folder, which hosts may share (or at an address, gs://...):
a run that is started again, or another of the same shapes, reads what took over a second to compile.
"""

from plm_jax.cli import signals

if __name__ == '__main__':
  signals.begin()  # before the other imports, which take a while

import argparse
from collections.abc import Sequence

from plm_jax.cli import command, memory
from plm_jax.errors import ConfigError
from plm_jax.training.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('train', __doc__)
  parser.add_argument(
    '--stop_at', type=command.COUNT, help='save and end after this step; the schedule ends at `steps`'
  )
  parser.add_argument('--extend', type=command.COUNT, metavar='N', help='N more steps than the run in the folder has')
  parser.add_argument('--compile_cache', metavar='DIR', help='keep compiled programs here; local, or gs://...')
  parser.add_argument('--coordinator', help='HOST:PORT of process 0, for a run of several processes')
  parser.add_argument('--processes', type=command.COUNT, help='number of processes')
  parser.add_argument('--process', type=command.WHOLE, help='index of this process, from 0')
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  _check_processes(arguments)
  signals.check()
  memory.reuse()
  from plm_jax.cli import logs
  from plm_jax.training import loop  # loads jax

  if arguments.compile_cache is not None:
    import jax

    jax.config.update('jax_compilation_cache_dir', arguments.compile_cache)
  logs.start()
  signals.check()
  loop.start_processes(arguments.coordinator, arguments.processes, arguments.process)
  return loop.train(settings, arguments.workdir, stop_at=arguments.stop_at, extend=arguments.extend).exit_code


def _check_processes(arguments: argparse.Namespace) -> None:
  """Raises ConfigError where the flags of a run of several processes do not go together."""
  coordinator, processes, process = arguments.coordinator, arguments.processes, arguments.process
  given = [value is not None for value in (coordinator, processes, process)]
  if not any(given):
    return
  if not all(given):
    raise ConfigError('--coordinator, --processes and --process are given together or not at all')
  if process >= processes:
    raise ConfigError(f'--process={process}: the {processes} processes are numbered 0 to {processes - 1}')
  host, colon, port = coordinator.rpartition(':')
  if not host or not colon or not port.isdigit() or not 0 < int(port) < 65_536:
    raise ConfigError(f'--coordinator={coordinator}: give HOST:PORT of process 0, such as localhost:1234')


if __name__ == '__main__':
  command.leave(command.run(main))
