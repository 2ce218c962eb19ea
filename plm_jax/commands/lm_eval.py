"""Evaluate a language model with EleutherAI's lm-evaluation-harness.

plm-jax lm_eval --weights=FOLDER --tasks=lambada_openai,hellaswag --num_fewshot=0 --out=scores.json
plm-jax lm_eval --workdir=runs/gpt --tasks=mine --include_path=TASKS --limit=100

The model is a decoder, or an encoder-decoder whose encoder reads the context. FOLDER is in Hugging Face's format, with
its tokenizer, or a converted checkpoint. --part selects one generating task of a multi-task run. The harness is an
optional dependency: bash launch/setup.sh lm_eval.

The harness downloads the data of its own tasks. --include_path=TASKS adds a folder with yaml files of your own tasks,
whose data may be files:

    task: mine
    dataset_path: json
    dataset_kwargs: {data_files: {test: /data/questions.jsonl}}
    test_split: test
    output_type: multiple_choice
    doc_to_text: "{{question}}"
    doc_to_choice: "{{options}}"
    doc_to_target: "{{label}}"

A yaml file may name Python functions of files in the same folder, which the harness executes. The numbers equal those
of the harness's own PyTorch models. The adapter `prompt` computes the same ones: its 'answer_accuracy' and
'answer_perplexity' are acc and perplexity of LAMBADA; 'accuracy_sum' and 'accuracy_characters' are acc and acc_norm of
multiple choice. 'accuracy_mean' (GPT-3) averages over tokens; the harness has no such metric.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from plm_jax.cli import command, logs, signals
from plm_jax.core.errors import ConfigError, is_installed
from plm_jax.io import files, other_forms, run_paths

PACKAGE = 'lm_eval'


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax lm_eval`; import jax and the harness only for valid flags."""
  parser = _parser()
  arguments = parser.parse_args(argv)
  folder, names = checked(parser, arguments, example='lambada_openai,hellaswag')
  if arguments.include_path is not None and not files.is_folder(arguments.include_path):
    raise ConfigError(f'--include_path={arguments.include_path}: there is no such folder')
  if not is_installed(PACKAGE):
    raise ConfigError('lm_eval: the lm-evaluation-harness is not installed; run: bash launch/setup.sh lm_eval')
  from plm_jax.generate import conventions
  from plm_jax.inference import harness, opened

  logs.start()
  opened_model = opened.open(folder, step=arguments.step, part=arguments.part)
  conventions.warn(opened_model.generation, {})
  model = harness.Model(opened_model, batch_size=arguments.batch_size, max_length=arguments.max_length)
  keywords = {name: vars(arguments)[name] for name in ('include_path', 'num_fewshot', 'limit', 'seed')}
  scores = harness.run(model, names, **keywords)
  command.show(harness.table(scores))
  if arguments.out:
    files.write_json(arguments.out, json.loads(json.dumps(scores, default=str)))
  return 0


def checked(parser: command.Parser, arguments: argparse.Namespace, *, example: str) -> tuple[Path, list[str]]:
  """Return the folder of the model and the tasks, or raise ConfigError."""
  if (arguments.workdir is None) == (arguments.weights is None):
    raise ConfigError(f'{parser.prog}: give either --workdir=DIR or --weights=FOLDER')
  flag = 'weights' if arguments.workdir is None else 'workdir'
  folder = files.path(arguments.workdir or arguments.weights)
  if not files.is_folder(folder):
    raise ConfigError(f'--{flag}={other_forms.explain(folder)}')
  if not (names := [name for name in arguments.tasks.split(',') if name]):
    raise ConfigError(f'--tasks={arguments.tasks}: names no task; write for example --tasks={example}')
  if arguments.out:
    run_paths.check_place(arguments.out, name='--out')
  return folder, names


def add_model(parser: command.Parser, *, tasks: str, out: str) -> None:
  """Add the flags of a model and its tasks."""
  add = parser.add_argument
  add('--workdir', metavar='DIR', help='run folder')
  add('--weights', metavar='FOLDER', help="model folder in Hugging Face's format, or a converted checkpoint")
  add('--tasks', required=True, metavar='NAME,NAME', help=tasks)
  add('--out', metavar='FILE', help=out)
  command.add_step(parser)
  command.add_part(parser)


def _parser() -> command.Parser:
  parser = command.Parser('plm-jax lm_eval', __doc__)
  out = 'JSON file for scores, settings and every example with its answers'
  add_model(parser, tasks='tasks, tags or groups of the harness', out=out)
  add = parser.add_argument
  add('--include_path', metavar='FOLDER', help='folder with yaml files of more tasks')
  add('--num_fewshot', type=command.WHOLE, help='solved examples in the prompt (default: that of the task)')
  add('--limit', type=command.COUNT, help='examples of each task (default: all)')
  add('--batch_size', type=command.COUNT, default=8, help='sequences per batch (default %(default)s)')
  add('--max_length', type=command.COUNT, help='maximum tokens of a sequence (default: that of the model)')
  add('--seed', type=command.SEED, default=1234, help='random seed of the few-shot examples (default %(default)s)')
  return parser
