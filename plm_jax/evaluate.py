"""Scores the checkpoints of a run, while it trains or afterwards, or the model in a folder.

Or, with --weights, a model as it is, without training: its folder says vocabulary, architecture and sizes, the config
what is measured and on what.

python -m plm_jax.evaluate --workdir=runs/mine                          the best checkpoint, else the newest
python -m plm_jax.evaluate --workdir=runs/mine --step=newest --predictions=out.jsonl
python -m plm_jax.evaluate --workdir=runs/mine --follow                 every checkpoint as it appears
python -m plm_jax.evaluate --config=experiments/gpt/zero_shot.py --weights=FOLDER

Writes `evaluations.jsonl` in the run folder; with --weights, only where there is a --workdir. Evaluations are those of
the config; `--config.eval.NAME.data.split=test` changes one, `--evaluation=NAME` picks one.
"""

import sys
from collections.abc import Sequence

from plm_jax.cli import command
from plm_jax.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('evaluate', __doc__)
  parser.add_argument('--step', default='auto', help="a number, 'newest' or 'best'; by default the best there is")
  parser.add_argument('--evaluation', help='only this one of config.eval')
  parser.add_argument('--predictions', metavar='FILE', help='write one JSON object a row to this file')
  parser.add_argument('--follow', action='store_true', help='go on with checkpoints as they appear, to the last')
  parser.add_argument('--timeout', type=float, default=3600.0, help='--follow: seconds to wait for the next checkpoint')
  parser.add_argument(
    '--weights', metavar='FOLDER', help="score this model: a folder in Hugging Face's form, an import"
  )
  arguments, settings = command.parse(parser, argv, workdir=False)
  if settings is None:
    return 0
  if arguments.workdir is None and arguments.weights is None:
    raise ConfigError(f'{parser.prog}: needs --workdir=DIR, the folder of a run, or --weights=FOLDER.')
  if arguments.weights is not None and (arguments.follow or arguments.step != 'auto'):
    raise ConfigError('--weights names one model: --step and --follow choose among the checkpoints of a run.')
  from plm_jax.cli import logs
  from plm_jax.training import checkpoints_scored  # loads jax

  logs.start()
  return checkpoints_scored.command(settings, arguments)


if __name__ == '__main__':
  sys.exit(command.run(main))
