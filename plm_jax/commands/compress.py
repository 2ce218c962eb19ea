"""Compress a trained network and compare size, speed and score.

plm-jax compress --workdir=runs/mine --methods=int8,prune:0.5,heads:0.25,layers:0.5 --out=runs/small
plm-jax compress --workdir=runs/mine --methods=layers:0.5+int8 --beside=runs/student --out=runs/small
plm-jax compress --workdir=runs/glue --part=cola --methods=int8 --out=runs/small

--methods: the number after the colon is the share to remove. Methods joined by + are applied in that order. Nothing is
trained, and the run is only read. A run trained with adapter 'quantise' is a --workdir as well: --methods=int8 then
uses the scales it was trained with, and evaluates exactly the trained network.

--beside adds other runs to the table, in float32. Use it for networks that were trained to be small: with the adapters
'prune', 'quantise' and 'distil', or an ALBERT, whose layers share one set of parameters.

--out gets a folder for each result. Use it as `--weights` of `evaluate` (with --config=runs/mine/config.json),
`generate` and `fill`, as the source of `convert export`, or in `init_from`. All numbers are measured on what is read
back from these folders: 8-bit weights are int8 on disk, on the device and in the compiled function. Pruned weights are
stored as zeros, so they save nothing by themselves; the table reports this.
"""

from collections.abc import Sequence

from plm_jax.cli import command, logs, signals
from plm_jax.compression import methods
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.training.before.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax compress`; import jax only for valid methods."""
  parser = command.command('compress', f'{__doc__}\nmethods:\n{_listed()}')
  parser.add_argument('--methods', default='', metavar='LIST', help='methods, such as int8,prune:0.5,layers:0.5+int8')
  parser.add_argument('--out', metavar='DIR', help='folder of the results, outside the run folder')
  parser.add_argument('--evaluation', help='evaluation to score with (default: that of config.best, else the first)')
  parser.add_argument('--beside', default='', metavar='RUNS', help='other runs of the same task, separated by commas')
  parser.add_argument('--rounds', type=command.COUNT, default=7, help='timing repetitions per network (default 7)')
  command.add_step(parser)
  command.add_part(parser)
  arguments, settings = command.parse(parser, argv, expand=expand)
  if settings is None:
    return 0
  beside = [name for name in arguments.beside.split(',') if name]
  if not (arguments.methods or beside):
    raise ConfigError(f'{parser.prog}: needs --methods=LIST, such as --methods=int8,prune:0.5,layers:0.5')
  if arguments.out is None:
    raise ConfigError(f'{parser.prog}: needs --out=DIR, a folder for the results')
  recipes = methods.read(arguments.methods) if arguments.methods else {}
  for other in beside:
    if not files.is_file(RunFolder.at(other).config):
      raise ConfigError(f'--beside={other}: there is no config.json in it; name the folder of a run')
  from plm_jax.studies import compression  # loads jax

  logs.start()
  signals.check()
  options = {'name': arguments.evaluation, 'part': arguments.part, 'beside': beside, 'rounds': arguments.rounds}
  compression.run_study(settings, arguments.workdir, recipes, out=arguments.out, step=arguments.step, **options)
  return 0


def _listed() -> str:
  lines = {**{f'{name}:SHARE': text for name, text in methods.SHARES.items()}, **methods.WHOLE}
  return '\n'.join(f'  {name:22}{text}' for name, text in lines.items())
