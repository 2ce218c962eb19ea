"""Scores a model on the tasks of EleutherAI's lm-evaluation-harness.

plm-jax lm_eval --weights=FOLDER --tasks=lambada_openai,hellaswag --num_fewshot=0 --out=scores.json
plm-jax lm_eval --workdir=runs/gpt --tasks=mine --include_path=TASKS --limit=100

The folder is that of a run, a model in Hugging Face's form with its tokenizer, or an import: a decoder, or an
encoder-decoder whose encoder reads the context. Of a run that learned several tasks, --part names one that writes. The
harness is an extra: bash launch/setup.sh lm_eval. Its own tasks download their data; TASKS is a folder with yaml files
of yours, whose data may be files:

    task: mine
    dataset_path: json
    dataset_kwargs: {data_files: {test: /data/questions.jsonl}}
    test_split: test
    output_type: multiple_choice
    doc_to_text: "{{question}}"
    doc_to_choice: "{{options}}"
    doc_to_target: "{{label}}"

A yaml file may name Python functions of files beside it, which the harness runs. Numbers are those of the harness's
own models for PyTorch. The adapter `prompt` gives the same: 'answer_accuracy' and 'answer_perplexity' are acc and
perplexity of LAMBADA; 'accuracy_sum' and 'accuracy_characters' are acc and acc_norm of texts to choose from. GPT-3's
'accuracy_mean' is a mean over tokens, which the harness does not have.
"""

import argparse
import json
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from plm_jax.cli import command, signals
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths

PACKAGE = 'lm_eval'


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax and the harness are loaded only after the flags are found to be sound."""
  parser = _parser()
  arguments = parser.parse_args(argv)
  if (arguments.workdir is None) == (arguments.weights is None):
    raise ConfigError(f'{parser.prog}: give --workdir=DIR or --weights=FOLDER, and not both')
  flag = 'weights' if arguments.workdir is None else 'workdir'
  folder = files.path(arguments.workdir or arguments.weights)
  if not files.is_folder(folder):
    raise ConfigError(f'--{flag}={folder}: there is no such folder')
  if arguments.include_path is not None and not files.is_folder(arguments.include_path):
    raise ConfigError(f'--include_path={arguments.include_path}: there is no such folder')
  if not (names := [name for name in arguments.tasks.split(',') if name]):
    raise ConfigError(f'--tasks={arguments.tasks}: names no task; as in --tasks=lambada_openai,hellaswag')
  if arguments.out:
    run_paths.check_place(arguments.out, name='--out')
  try:
    metadata.distribution(PACKAGE)
  except metadata.PackageNotFoundError:
    raise ConfigError(
      'lm_eval needs the lm-evaluation-harness, which is not installed: bash launch/setup.sh lm_eval'
    ) from None
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.generate import conventions
  from plm_jax.inference import harness, opened

  logs.start()
  asked = vars(arguments)
  there = opened.open(folder, step=step_named(arguments.step), part=arguments.part)
  conventions.warn(there.generation, {})
  model = harness.Model(there, batch_size=arguments.batch_size, max_length=arguments.max_length)
  keywords = {name: asked[name] for name in ('include_path', 'num_fewshot', 'limit', 'seed')}
  found = harness.run(model, names, **keywords)
  command.show(harness.table(found))
  if arguments.out:
    files.write_json(arguments.out, _plain(found))
  return 0


def _parser() -> command.Parser:
  parser = command.Parser(
    prog='plm-jax lm_eval',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  add = parser.add_argument
  add('--workdir', metavar='DIR', help='a run folder')
  add('--weights', metavar='FOLDER', help="a folder in Hugging Face's form, or an import")
  add('--tasks', required=True, metavar='NAME,NAME', help='tasks, tags or groups of the harness')
  add('--include_path', metavar='FOLDER', help='a folder with yaml files of more tasks')
  add('--num_fewshot', type=command.WHOLE, help='examples before each row (default: what the task says)')
  add('--limit', type=command.COUNT, help='rows of each task (default: all)')
  add('--batch_size', type=command.COUNT, default=8, help='rows computed together (default %(default)s)')
  add('--max_length', type=command.COUNT, help='most tokens of a row (default: what the model has)')
  add('--seed', type=command.SEED, default=1234, help='of the draws of examples (default %(default)s)')
  add('--out', metavar='FILE', help='writes scores, settings and each row with its answers to this file of JSON')
  command.add_step(parser)
  command.add_part(parser)
  return parser


def _plain(found: Any) -> Any:
  """Results as JSON has them."""
  return json.loads(json.dumps(found, default=str))
