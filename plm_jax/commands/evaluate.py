"""Evaluate checkpoints of a run, or pretrained weights.

plm-jax evaluate --workdir=runs/mine                          the best checkpoint, else the newest
plm-jax evaluate --workdir=runs/mine --step=newest --predictions=out.jsonl
plm-jax evaluate --workdir=runs/mine --predictions=CoLA.tsv --format=glue \\
    --config.eval.validation.data.split=test --config.eval.validation.data.keep_unlabelled=True
plm-jax evaluate --score out.jsonl other.jsonl                predictions of two runs, averaged
plm-jax evaluate --workdir=runs/mine --by_class               precision, recall, F1 and confusion of classes
plm-jax evaluate --workdir=runs/mine --step=all               a table of every stored checkpoint
plm-jax evaluate --workdir=runs/mine --follow                 every checkpoint as it appears
plm-jax evaluate --workdir=runs/glue --part=cola --by_class   one task of a multi-task run
plm-jax evaluate --config=experiments/gpt/zero_shot.py --weights=FOLDER
plm-jax evaluate --config=experiments/sts/similarity.py --weights=FOLDER    sentence vectors, Spearman's correlation

The evaluations are those of the config (`eval`). --config.eval.NAME.data.split=test changes one, and --evaluation=NAME
runs only that one. `config.eval.NAME.scores` adds scores (files of `plm_jax/scores/`) to the metrics of the task.
Scores are appended to `evaluations.jsonl` in the run folder; with --weights, only if --workdir is given too.

--weights=FOLDER evaluates a pretrained or converted checkpoint. Vocabulary, architecture and sizes come from its
folder. The same holds for --config.model.from without --workdir.

--predictions=FILE writes one JSON object per example of an evaluation: the prediction, as numbers and human-readable,
and the label. --format writes the file that a benchmark expects instead.

--score reads such files again, without model or data, and averages them if there are several. With --predictions it
also writes the average. For examples without labels use `plm-jax predict`.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.cli import command, logs, signals
from plm_jax.core.errors import ConfigError
from plm_jax.training.before.model_from import asked, expand

WAITS = 3600.0  # seconds, of --follow


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax evaluate`; import jax only for a valid config."""
  parser = command.command('evaluate', __doc__)
  add = parser.add_argument
  command.add_step(parser, every=True)
  add('--evaluation', help='run only this evaluation of config.eval')
  add('--part', metavar='NAME', help='run only this task of a multi-task run (adapter multitask)')
  add('--predictions', metavar='FILE', help='file of predictions, one JSON object per example')
  add(
    '--format', metavar='NAME', help="format of --predictions: 'glue', 'superglue' or 'squad' (default: JSON objects)"
  )
  add('--score', metavar='FILE', nargs='+', help='score files of predictions; several are averaged')
  add('--scores', metavar='NAME', nargs='+', help='scores of --score (default: all that apply)')
  add(
    '--by_class',
    action='store_true',
    help='print scores by class and a confusion matrix; also saved as by_class.json in the run',
  )
  add('--follow', action='store_true', help='evaluate every checkpoint as it appears, until the run ends')
  add('--timeout', type=command.POSITIVE, help=f'seconds that --follow waits for a checkpoint (default {WAITS:.0f})')
  add('--weights', metavar='FOLDER', help="model folder in Hugging Face's format, or a converted checkpoint")
  arguments, settings = command.parse(
    parser, argv, workdir=False, expand=expand, without=lambda arguments: bool(arguments.score)
  )
  if arguments.format and not arguments.predictions:
    raise ConfigError('--format is the format of --predictions: add --predictions=FILE.')
  if arguments.scores and not arguments.score:
    raise ConfigError('--scores needs --score FILE; for an evaluation set --config.eval.validation.scores=f1.')
  if arguments.score and not arguments.list:
    return _score(arguments)
  if settings is None:
    return 0
  if arguments.workdir is None and arguments.weights is None:
    arguments.weights = asked(sys.argv[1:] if argv is None else argv)
  _check(arguments)
  _check_data(arguments, settings)
  from plm_jax.io.run_paths import RunFolder
  from plm_jax.training import evaluate_saved  # loads jax

  logs.start()
  signals.check()
  folder = RunFolder.at(arguments.workdir) if arguments.workdir else None
  output = arguments.predictions and evaluate_saved.Output(arguments.predictions, arguments.format)
  every = arguments.step == 'all'
  step = None if every else arguments.step
  if pairs := _pairs(arguments, settings):
    from plm_jax.inference import sentence_pairs
    from plm_jax.training import parts

    source = arguments.weights or arguments.workdir
    kept: dict[str, Any] = {'part': arguments.part, 'predictions': output, 'results': folder}
    kept['devices'] = parts.make_layout(settings).mesh.local_devices
    sentence_pairs.evaluate(pairs, source, step=step, every=every, **kept)
    others = {name: block for name, block in settings['eval'].items() if not _compares(block)}
    settings = {**settings, 'eval': others}
    if arguments.evaluation or not settings['eval']:
      return 0
  options = {'name': arguments.evaluation, 'predictions': output, 'by_class': arguments.by_class}
  if folder is None or arguments.weights:
    evaluate_saved.evaluate_folder(settings, arguments.weights, folder=folder, **options)
  else:
    options |= {'step': step, 'every': every, 'part': arguments.part}
    options |= {'follow': arguments.follow, 'timeout': arguments.timeout or WAITS}
    evaluate_saved.evaluate_run(settings, folder, **options)
  return 0


def _compares(block: Mapping[str, Any]) -> bool:
  return block['data'].get('kind') == 'regression'


def _pairs(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
  """Return the data of evaluations that compare sentence vectors.

  A default path that does not exist is left out, if `optional` has its split.
  """
  names = [arguments.evaluation] if arguments.evaluation else list(settings['eval'])
  blocks = {name: settings['eval'][name] for name in names if name in settings['eval']}
  pairs = {name: block['data'] for name, block in blocks.items() if _compares(block)}
  if not pairs or (settings['objective'] or {}).get('name') != 'contrastive':
    return {}
  if arguments.follow or arguments.by_class:
    raise ConfigError(f'eval.{next(iter(pairs))} compares sentence vectors: remove --follow and --by_class.')
  if arguments.predictions and len(blocks) > 1:
    raise ConfigError(f'--predictions needs one --evaluation; there are {", ".join(blocks)}')
  from plm_jax.training.before import from_data

  named = {arguments.evaluation, *(key.split('.')[1] for key, _ in arguments.changes if key.startswith('eval.'))}
  lacking = from_data.left_out({**settings, 'eval': {name: blocks[name] for name in pairs if name not in named}})
  for name in lacking:
    print(f'eval.{name} is left out: there is no {pairs[name]["path"]} (--config.eval.{name}.data.path=FOLDER)')
  if len(lacking) == len(pairs):
    raise ConfigError(f'eval: none of {", ".join(pairs)} exists; name one: --config.eval.{name}.data.path=FOLDER')
  return {name: block for name, block in pairs.items() if name not in lacking}


def _check(arguments: argparse.Namespace) -> None:
  if arguments.workdir is None and arguments.weights is None:
    raise ConfigError('plm-jax evaluate: needs --workdir=DIR, the folder of a run, or --weights=FOLDER.')
  if arguments.weights is not None and (arguments.follow or arguments.step is not None):
    raise ConfigError('--weights names one model: remove --step and --follow, which select checkpoints of a run.')
  if arguments.weights is not None and arguments.part:
    raise ConfigError('--weights names one model: remove --part, which selects a task of the run in --workdir.')
  if arguments.follow and arguments.step is not None:
    raise ConfigError(f'--follow evaluates every checkpoint: remove --step={arguments.step}.')
  if arguments.timeout is not None and not arguments.follow:
    raise ConfigError('--timeout needs --follow: add it, or remove --timeout.')
  if arguments.step == 'all' and (arguments.follow or arguments.predictions or arguments.by_class):
    raise ConfigError('--step=all evaluates all checkpoints: remove --follow, --predictions and --by_class.')
  if arguments.follow and arguments.by_class:
    raise ConfigError('--by_class needs one checkpoint: remove --follow or --by_class.')


def _check_data(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> None:
  """Reject a change of `data` that every evaluation overrides."""
  names = [arguments.evaluation] if arguments.evaluation in settings['eval'] else list(settings['eval'])
  for key, value in arguments.changes:
    block, _, name = key.partition('.')
    if block == 'data' and names and name in settings['data']:
      now = settings['data'][name]
      if all(settings['eval'][evaluation]['data'].get(name) != now for evaluation in names):
        flag = f'--config.eval.{names[0]}.{key}={value}'
        raise ConfigError(f'--config.{key}={value} changes no evaluation, as each has its own {name}. Use {flag}')


def _score(arguments: argparse.Namespace) -> int:
  """Score files of predictions and print a line for each metric."""
  others = ('workdir', 'config', 'weights', 'evaluation', 'part', 'follow', 'timeout')
  wrong = [flag for flag in others if vars(arguments)[flag]] + ['step'] * (arguments.step is not None)
  if wrong:
    raise ConfigError(f'--score reads only files of predictions: remove --{wrong[0]}.')
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
