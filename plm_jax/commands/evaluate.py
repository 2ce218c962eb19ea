"""Evaluates the checkpoints of a run, while it trains or afterwards, or the model in a folder.

plm-jax evaluate --workdir=runs/mine                          the best checkpoint, else the newest
plm-jax evaluate --workdir=runs/mine --step=newest --predictions=out.jsonl
plm-jax evaluate --workdir=runs/mine --predictions=CoLA.tsv --format=glue \
    --config.eval.validation.data.split=test --config.eval.validation.data.keep_unlabelled=True
plm-jax evaluate --score out.jsonl other.jsonl                  predictions of two runs, averaged
plm-jax evaluate --workdir=runs/mine --by_class               precision, recall, F1 and confusion of classes
plm-jax evaluate --workdir=runs/mine --step=all               a table of every checkpoint that was kept
plm-jax evaluate --workdir=runs/mine --follow                 every checkpoint as it appears
plm-jax evaluate --workdir=runs/glue --part=cola --by_class   one task of a run that learned several
plm-jax evaluate --config=experiments/gpt/zero_shot.py --weights=FOLDER

The evaluations are those of the config: `--config.eval.NAME.data.split=test` changes one, `--evaluation=NAME` picks
one. Vocabulary, architecture and sizes of a model named by --weights, or by --config.model.from without a --workdir,
are those of its folder. Scores are appended to `evaluations.jsonl` in the run folder; with --weights, only where there
is a --workdir. `config.eval.NAME.scores` names files of `plm_jax/scores/` beside what the task measures.

--predictions writes a row of JSON for each row of the one evaluation: what was predicted, in numbers and words, and
what the data says of it. With --format it is the file that a benchmark takes. --score reads such rows again, needs
neither model nor data, and writes the average of several files where --predictions is given. Rows without labels are
predicted by `plm-jax predict`.
"""

import argparse
import sys
from collections.abc import Sequence

from plm_jax.cli import command, signals
from plm_jax.core.errors import ConfigError
from plm_jax.training.before.model_from import asked, expand

WAITS = 3600.0  # seconds, of --follow


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('evaluate', __doc__)
  command.add_step(parser, every=True)
  parser.add_argument('--evaluation', help='only this evaluation of config.eval')
  parser.add_argument('--part', metavar='NAME', help='only this task of a run that learned several (adapter multitask)')
  parser.add_argument('--predictions', metavar='FILE', help='write one JSON object per row to this file')
  parser.add_argument(
    '--format', metavar='NAME', help="of that file, as 'glue', 'superglue', 'squad' take it; rows of JSON without it"
  )
  parser.add_argument('--score', metavar='FILE', nargs='+', help='score predictions in files, several averaged')
  parser.add_argument('--scores', metavar='NAME', nargs='+', help='by these; all that fit without it')
  parser.add_argument(
    '--by_class', action='store_true', help='a table by class and a confusion matrix, also in by_class.json of the run'
  )
  parser.add_argument('--follow', action='store_true', help='every checkpoint as it appears, up to the last of the run')
  parser.add_argument(
    '--timeout', type=command.POSITIVE, help=f'--follow: seconds to wait for a checkpoint (default {WAITS:.0f})'
  )
  parser.add_argument('--weights', metavar='FOLDER', help="the model in this folder: Hugging Face's form, or an import")
  arguments, settings = command.parse(
    parser, argv, workdir=False, expand=expand, without=lambda arguments: bool(arguments.score)
  )
  if arguments.format and not arguments.predictions:
    raise ConfigError('--format is of the file that --predictions=FILE names: give both.')
  if arguments.scores and not arguments.score:
    raise ConfigError('--scores is for --score FILE; an evaluation has its own: --config.eval.validation.scores=f1.')
  if arguments.score and not arguments.list:
    return _score(arguments)
  if settings is None:
    return 0
  if arguments.workdir is None and arguments.weights is None:
    arguments.weights = asked(sys.argv[1:] if argv is None else argv)
  if arguments.workdir is None and arguments.weights is None:
    raise ConfigError(f'{parser.prog}: needs --workdir=DIR, the folder of a run, or --weights=FOLDER.')
  if arguments.weights is not None and (arguments.follow or arguments.step != 'auto'):
    raise ConfigError('--weights names one model: --step and --follow choose among the checkpoints of a run.')
  if arguments.weights is not None and arguments.part:
    raise ConfigError('--weights names one model: --part chooses among the tasks of the run in --workdir.')
  if arguments.follow and arguments.step != 'auto':
    raise ConfigError(f'--follow evaluates every checkpoint as it appears: leave --step={arguments.step} out.')
  if arguments.timeout is not None and not arguments.follow:
    raise ConfigError('--timeout is of --follow: give both.')
  every = arguments.step == 'all'
  if every and (arguments.follow or arguments.predictions or arguments.by_class):
    raise ConfigError('--step=all gives a table of all checkpoints: --follow, --predictions and --by_class are of one.')
  if arguments.follow and arguments.by_class:
    raise ConfigError('--by_class is of one checkpoint, and --follow of each as it appears: leave one of them out.')
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.io.run_paths import RunFolder
  from plm_jax.training import evaluate_saved  # loads jax

  logs.start()
  signals.check()
  folder = RunFolder.at(arguments.workdir) if arguments.workdir else None
  output = arguments.predictions and evaluate_saved.Output(arguments.predictions, arguments.format)
  what = {'name': arguments.evaluation, 'predictions': output, 'by_class': arguments.by_class}
  if folder is None or arguments.weights:
    evaluate_saved.evaluate_folder(settings, arguments.weights, folder=folder, **what)
  else:
    what |= {'step': None if every else step_named(arguments.step), 'every': every, 'part': arguments.part}
    evaluate_saved.evaluate_run(settings, folder, follow=arguments.follow, timeout=arguments.timeout or WAITS, **what)
  return 0


def _score(arguments: argparse.Namespace) -> int:
  """Scores files of predictions and prints a line for each metric."""
  others = ('workdir', 'config', 'weights', 'evaluation', 'part', 'follow', 'timeout')
  wrong = [flag for flag in others if vars(arguments)[flag]] + ['step'] * (arguments.step != 'auto')
  if wrong:
    raise ConfigError(f'--score reads files of predictions alone: leave --{wrong[0]} out.')
  from plm_jax.runs import predicted

  if arguments.predictions:
    predicted.check_output(arguments.predictions, arguments.format)
  predictions, records = predicted.join(arguments.score)
  if arguments.predictions:
    predicted.check_format(arguments.format, set(predictions[0]))
    predicted.write(arguments.predictions, predictions, records, form=arguments.format)
  if arguments.by_class:
    from plm_jax.runs import by_class

    by_class.check(list(predictions[0]), user=f'--score {" ".join(arguments.score)}')
    by_class.show(by_class.measure(predictions, records), title=' '.join(arguments.score))
  for metric, value in predicted.score(predictions, records, arguments.scores or ()).items():
    print(f'{metric} {value:.6g}')
  return 0
