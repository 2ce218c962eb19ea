"""Trains a model: pre-training and fine-tuning are the same command with another config.

plm-jax train --config=experiments/quickstart/pretrain.py --workdir=runs/mine [--config.optim.rate=1e-3 ...]

The same command again continues the run in the folder up to `steps`; a finished run is left as it is. Exit codes:
0 done, 2 wrong usage or config, 3 stopped by a signal after saving, 4 stopped because training diverged.

--extend=N gives a run N more steps than it has, whether it is finished or on its way, and goes on from its newest
checkpoint; one that stopped early at step 6 of 20 goes on to step 20 + N. The schedule is stretched from there on: the
learning rate becomes that of a run of so many steps in all (what is a fraction of the run, such as a warmup, too), so
that after a decay to 0 it rises again; steps that are made keep theirs. The order of data goes on. `config.json`
records it, later commands need no --extend, and the same command again, if the run was stopped in between, goes on
without adding more.

--profile=3 traces three steps, once the process is warm; --profile=10:13 the steps 10, 11 and 12 of the run. The trace
is in the folder `profile` of the run: xprof --logdir=WORKDIR/profile shows it, launch/README.md says how to read it.

--predictions=FILE writes what each evaluation predicts of each row, in the place of what the one before predicted, as
plm-jax evaluate --predictions=FILE does it of a finished run; --evaluation=NAME says of which where there are several.

--compile_cache=DIR keeps compiled programs in a folder, which hosts may share (or at an address, gs://...):
a run that is started again, or another of the same shapes, reads what took over a second to compile.
"""

from collections.abc import Sequence

from plm_jax.cli import command, hosts, malloc, signals
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.training import profiling
from plm_jax.training.before.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('train', __doc__)
  parser.add_argument(
    '--stop_at', type=command.COUNT, help='save and end after this step; the schedule ends at `steps`'
  )
  parser.add_argument('--extend', type=command.COUNT, metavar='N', help='N more steps than the run in the folder has')
  parser.add_argument('--compile_cache', metavar='DIR', help='keep compiled programs here; local, or gs://...')
  parser.add_argument('--profile', metavar='STEPS', help='trace so many steps, or FIRST:END, for xprof')
  parser.add_argument(
    '--predictions', metavar='FILE', help='one JSON object per row of an evaluation goes to this file'
  )
  parser.add_argument('--evaluation', metavar='NAME', help='whose predictions these are; the only one without it')
  hosts.add_flags(parser)
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  if arguments.evaluation and not arguments.predictions:
    raise ConfigError('--evaluation says whose rows --predictions=FILE is of: give both.')
  flags = hosts.given(arguments)
  cache = None if arguments.compile_cache is None else _cache(arguments.compile_cache)
  profile = None if arguments.profile is None else profiling.steps(arguments.profile)
  signals.check()
  malloc.reuse()
  from plm_jax.cli import logs
  from plm_jax.training import loop  # loads jax
  from plm_jax.training.hosts import join as joining

  if cache is not None:
    import jax

    jax.config.update('jax_compilation_cache_dir', cache)
  logs.start()
  signals.check()
  joining.join(flags)
  asked = {'stop_at': arguments.stop_at, 'extend': arguments.extend, 'profile': profile}
  if arguments.predictions:
    from plm_jax.runs import predicted

    where = {'evaluation': arguments.evaluation, 'workdir': arguments.workdir}
    asked['predictions'] = predicted.kept(settings, arguments.predictions, **where)
  outcome = loop.train(settings, arguments.workdir, **asked)
  joining.part()
  return outcome.exit_code


def _cache(where: str) -> str:
  """The folder of compiled programs, made where it lies on this machine; jax only warns of one that it cannot use."""
  if files.is_address(where):
    files.path(where)  # refuses what has no client
    return where
  folder = files.path(where)
  try:
    files.make_folder(folder)
    probe = files.unused(folder / '.writable')
    files.write_text(probe, '')
    files.remove(probe)
  except OSError as error:
    raise ConfigError(f'--compile_cache={where} cannot be written to ({error.strerror}): name another folder') from None
  return str(folder)
