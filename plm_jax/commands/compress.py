"""Smaller networks made of a trained one, in a table: size, memory, speed and score beside it.

plm-jax compress --workdir=runs/mine --methods=int8,prune:0.5,heads:0.25,layers:0.5 --out=runs/small
plm-jax compress --workdir=runs/mine --methods=layers:0.5+int8 --beside=runs/student --out=runs/small
plm-jax compress --workdir=runs/glue --part=cola --methods=int8 --out=runs/small

A method takes the share that goes; several joined by + are done in order. Nothing is trained here and the run is only
read: networks that were trained for it (adapters 'prune', 'quantise' and 'distil', or an ALBERT, whose layers share one
set of parameters) are runs of their own, and --beside puts them into the table, in float32. A run that was trained with
'quantise' is a --workdir itself: --methods=int8 then has the scales of its training, and scores what that did.

Each result is a folder in --out which takes the place of --weights: evaluate with --config=runs/mine/config.json
--weights=runs/small/int8, generate, fill, convert export, init_from. All numbers are measured on what is read back from
these folders: weights in 8 bits are int8 on disk, on the device and in the compiled function. Zeros of pruning are kept
as zeros: they save nothing by themselves, and the table says so.
"""

from collections.abc import Sequence

from plm_jax.cli import command, signals
from plm_jax.compression import methods
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.training.before.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the methods are found to be sound."""
  parser = command.command('compress', f'{__doc__}\nmethods:\n{_listed()}')
  parser.add_argument('--methods', default='', metavar='LIST', help='int8,prune:0.5,layers:0.5+int8')
  parser.add_argument('--out', metavar='DIR', help='folder of the results, outside of the run')
  parser.add_argument('--evaluation', help='the evaluation that scores (default: that of config.best, else the first)')
  parser.add_argument('--beside', default='', metavar='RUNS', help='other runs of the same task, separated by commas')
  parser.add_argument('--rounds', type=command.COUNT, default=7, help='how often each network is timed (default 7)')
  command.add_step(parser)
  command.add_part(parser)
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  beside = [name for name in arguments.beside.split(',') if name]
  if not (arguments.methods or beside):
    raise ConfigError(f'{parser.prog}: needs --methods=LIST, such as int8,prune:0.5,layers:0.5')
  if arguments.out is None:
    raise ConfigError(f'{parser.prog}: needs --out=DIR, the folder of the results')
  ways = methods.read(arguments.methods) if arguments.methods else {}
  for other in beside:
    if not files.is_file(RunFolder.at(other).config):
      raise ConfigError(f'--beside: {other} is no run, it has no config.json')
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.studies import compression  # loads jax

  logs.start()
  signals.check()
  step = step_named(arguments.step)
  what = {'name': arguments.evaluation, 'part': arguments.part, 'beside': beside, 'rounds': arguments.rounds}
  compression.run_study(settings, arguments.workdir, ways, out=arguments.out, step=step, **what)
  return 0


def _listed() -> str:
  """The methods, a line each."""
  lines = {**{f'{name}:SHARE': text for name, text in methods.SHARES.items()}, **methods.WHOLE}
  return '\n'.join(f'  {name:22}{text}' for name, text in lines.items())
