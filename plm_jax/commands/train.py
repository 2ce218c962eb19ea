"""Train a model: pre-training and fine-tuning.

plm-jax train --config=experiments/quickstart/pretrain.py --workdir=runs/mine
plm-jax train --config=experiments/bert/base.py --workdir=runs/bert --config.optim.rate=1e-4

The config decides whether a model is pre-trained or fine-tuned. The same command resumes an interrupted run from its
newest checkpoint. A finished run is left unchanged. Exit codes: 0 finished, 2 wrong usage or config, 3 stopped by a
signal after saving, 4 training diverged.

--extend=N adds N steps to a run, finished or not, and resumes from its newest checkpoint. A run that stopped early at
step 6 of 20 ends at step 20 + N. From there on, the schedule is that of a run of the new total length. Fractions of the
run, such as a warmup, count from the new length as well, so after a decay to 0 the learning rate rises again. Completed
steps are unchanged and the data order continues. `config.json` records the extension: later commands need no --extend,
and repeating the command after an interruption adds no more steps.

--profile=3 traces three steps after warming up; --profile=10:13 traces steps 10, 11 and 12. The trace is in
WORKDIR/profile: open it with `xprof --logdir=WORKDIR/profile` and read it with launch/README.md.

--predictions=FILE writes per-example predictions, overwriting those of the previous evaluation. The format is that of
`plm-jax evaluate --predictions=FILE`. If there are several evaluations, --evaluation=NAME selects one.

--compile_cache=DIR stores compiled programs in a folder or bucket (gs://...), which hosts may share. A restarted run,
or another run with the same shapes, reads every program that took over a second to compile. By default the folder is
~/.cache/plm_jax/programs, of at most 2 GiB, in which every command keeps its programs; `none` stores nothing.
"""

from collections.abc import Sequence

from plm_jax.cli import command, hosts, logs, malloc, signals
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.training import profiling
from plm_jax.training.before.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax train`; import jax only for a valid config."""
  parser = command.command('train', __doc__)
  add = parser.add_argument
  add('--stop_at', type=command.COUNT, help='save and stop after this step; the schedule still ends at `steps`')
  add('--extend', type=command.COUNT, metavar='N', help='add N steps to the run in the folder')
  add('--compile_cache', metavar='DIR', help='folder of compiled programs; local or gs://...')
  add('--profile', metavar='STEPS', help='number of steps to trace for xprof, or FIRST:END')
  add('--predictions', metavar='FILE', help='file of predictions, one JSON object per example')
  add('--evaluation', metavar='NAME', help='the evaluation that --predictions writes (default: the only one)')
  hosts.add_flags(parser)
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  if arguments.evaluation and not arguments.predictions:
    raise ConfigError('--evaluation selects the evaluation that --predictions=FILE writes: add --predictions=FILE.')
  flags = hosts.given(arguments)
  cache = arguments.compile_cache and _make_cache(arguments.compile_cache)
  profile = None if arguments.profile is None else profiling.steps(arguments.profile)
  signals.check()
  malloc.reuse()
  from plm_jax.training import loop  # loads jax
  from plm_jax.training.hosts import join as joining

  if cache is not None:
    import jax

    jax.config.update('jax_compilation_cache_dir', cache or None)
    jax.config.update('jax_compilation_cache_max_size', -1)
  logs.start()
  signals.check()
  joining.join(flags)
  options = {'stop_at': arguments.stop_at, 'extend': arguments.extend, 'profile': profile}
  if arguments.predictions:
    from plm_jax.runs import predicted

    options['predictions'] = predicted.kept(
      settings, arguments.predictions, evaluation=arguments.evaluation, workdir=arguments.workdir
    )
  outcome = loop.train(settings, arguments.workdir, **options)
  joining.part()
  return outcome.exit_code


def _make_cache(where: str) -> str:
  """Create a local folder of compiled programs; 'none' gives ''."""
  if where == 'none':
    return ''
  folder = files.path(where)  # raises for an unsupported URL
  if files.is_address(where):
    return where
  files.check_writable(folder, name='--compile_cache')
  return str(folder)
