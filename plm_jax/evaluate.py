"""Evaluates the checkpoints of a run, while it trains or afterwards, or the model in a folder.

python -m plm_jax.evaluate --workdir=runs/mine                          the best checkpoint, else the newest
python -m plm_jax.evaluate --workdir=runs/mine --step=newest --predictions=out.jsonl
python -m plm_jax.evaluate --workdir=runs/mine --follow                 every checkpoint as it appears
python -m plm_jax.evaluate --config=experiments/gpt/zero_shot.py --weights=FOLDER

The evaluations are those of the config: `--config.eval.NAME.data.split=test` changes one, `--evaluation=NAME` picks
one. Vocabulary, architecture and sizes of a model named by --weights are those of its folder. Scores are appended to
`evaluations.jsonl` in the run folder; with --weights, only where there is a --workdir.
"""

from plm_jax.cli import signals

if __name__ == '__main__':
  signals.begin()  # before the other imports, which take a while

import sys
from collections.abc import Sequence

from plm_jax.cli import command
from plm_jax.errors import ConfigError
from plm_jax.training.model_from import expand


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('evaluate', __doc__)
  command.add_step(parser)
  parser.add_argument('--evaluation', help='only this evaluation of config.eval')
  parser.add_argument('--predictions', metavar='FILE', help='write one JSON object per row to this file')
  parser.add_argument('--follow', action='store_true', help='every checkpoint as it appears, up to the last of the run')
  parser.add_argument(
    '--timeout', type=command.POSITIVE, default=3600.0, help='--follow: seconds to wait for a checkpoint'
  )
  parser.add_argument('--weights', metavar='FOLDER', help="the model in this folder: Hugging Face's form, or an import")
  arguments, settings = command.parse(parser, argv, workdir=False, expand=expand)
  if settings is None:
    return 0
  if arguments.workdir is None and arguments.weights is None:
    raise ConfigError(f'{parser.prog}: needs --workdir=DIR, the folder of a run, or --weights=FOLDER.')
  if arguments.weights is not None and (arguments.follow or arguments.step != 'auto'):
    raise ConfigError('--weights names one model: --step and --follow choose among the checkpoints of a run.')
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.files import RunFolder
  from plm_jax.training import evaluate_saved  # loads jax

  logs.start()
  signals.check()
  folder = RunFolder.at(arguments.workdir) if arguments.workdir else None
  what = {'name': arguments.evaluation, 'predictions': arguments.predictions}
  if folder is None or arguments.weights:
    evaluate_saved.evaluate_folder(settings, arguments.weights, folder=folder, **what)
  else:
    step = step_named(arguments.step)
    evaluate_saved.evaluate_run(settings, folder, step=step, follow=arguments.follow, timeout=arguments.timeout, **what)
  return 0


if __name__ == '__main__':
  sys.exit(command.run(main))
