"""Run a complete experiment with a tiny BERT in minutes.

plm-jax quickstart
plm-jax quickstart --workdir=runs/quickstart --minutes=20
plm-jax quickstart --released

Builds the built-in corpus, trains a vocabulary, and pre-trains twice: as a masked language model, then to match a span
with the text it comes from. Then fine-tunes with few labels to classify which package a docstring is from, from the
pre-trained parameters and from scratch. Finished stages are not repeated.

--minutes=N pre-trains longer on two CPU cores. --released fine-tunes all-MiniLM-L6-v2 on the same labels and trains
nothing else: `bash launch/quickstart.sh --released` fetches its weights.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plm_jax import config
from plm_jax.cli import command, logs, malloc, signals
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder

ROOT = Path(__file__).parents[2]
VOCAB_SIZE = 6000
SIZES, SEEDS, RATES = (8, 32), 3, (2e-3, 1e-3)
MINUTES, PRETRAINING = 6, 3  # of everything and of pre-training, on two CPU cores
PRETRAIN, CONTRAST, CLASSIFY = 'pretrain', 'contrast', 'classify'  # configs, and the folders of their runs
RELEASED, RELEASED_RATE, RELEASED_STEPS = 'released', 2e-4, 30  # 60 steps: 1 point more on test
TINY = {'pretrained': 0.54, 'scratch': 0.31}  # test accuracy of the tiny BERT, as classify.py has it


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run every stage and print a report."""
  arguments = _parse(argv)
  workdir: Path = arguments.workdir
  began = time.monotonic()

  malloc.reuse()
  log = logs.start()
  if arguments.released:
    return _fine_tune_released(workdir, began)
  log.info('1/5  the corpus: docstrings of the standard library and the installed packages')
  from plm_jax.commands import pydocs as pydocs

  signals.check()
  pydocs.main([], sets=('corpus', 'package'))
  signals.check()
  log.info(f'2/5  a byte-level BPE vocabulary of {VOCAB_SIZE:,} tokens')
  from plm_jax.commands import vocab

  words = ['train', '--source=pydocs', '--name=byte_bpe', f'--size={VOCAB_SIZE}', f'--out={workdir / "vocab"}']
  if code := vocab.main(words):
    return code
  signals.check()

  log.info('3/5  pre-training a tiny BERT as a masked language model')
  from plm_jax.studies import transfer
  from plm_jax.training import loop

  longer = (arguments.minutes - MINUTES + PRETRAINING) / PRETRAINING
  masked = loop.train(_settings(PRETRAIN, workdir, longer=longer), workdir / PRETRAIN)
  if masked.exit_code:
    return masked.exit_code
  signals.check()

  log.info('4/5  pre-training it to match a span with its text')
  contrast = loop.train(_settings(CONTRAST, workdir, source=PRETRAIN, longer=longer), workdir / CONTRAST)
  if contrast.exit_code:
    return contrast.exit_code
  signals.check()

  log.info(f'5/5  fine-tuning with {" and ".join(map(str, SIZES))} labels per class, {SEEDS} seeds, two rates each')
  classify = _settings(CLASSIFY, workdir, source=CONTRAST)
  table = transfer.run_study(classify, workdir / CLASSIFY, sizes=SIZES, seeds=SEEDS, rates=RATES)
  _report(workdir, masked.result, contrast.result, table, seconds=time.monotonic() - began)
  return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = command.Parser('plm-jax quickstart', __doc__)
  add = parser.add_argument
  add('--workdir', default='runs/quickstart', type=Path, help='folder of all results (default: runs/quickstart)')
  add(
    '--minutes', default=MINUTES, type=command.COUNT, metavar='N',
    help=f'approximate minutes on two CPU cores; more than {MINUTES} pre-train longer (default {MINUTES})',
  )  # fmt: skip
  add('--released', action='store_true', help='fine-tune a published BERT instead (about a minute)')
  arguments = parser.parse_args(argv)
  if arguments.minutes < MINUTES:
    parser.error(f'--minutes={arguments.minutes}: expected {MINUTES} or more')
  return arguments


def _fine_tune_released(workdir: Path, began: float) -> int:
  """Fine-tune MiniLM and print it next to the tiny BERT."""
  from plm_jax.commands import pydocs, train

  source, target = ROOT / 'runs' / 'released' / 'minilm', workdir / RELEASED
  if not files.is_folder(source):
    raise ConfigError(f'--released: {source} is missing; `bash launch/released.sh minilm` makes it')
  pydocs.main([], sets=('package',))
  signals.check()
  words = [f'--config={ROOT / "experiments" / "quickstart" / CLASSIFY}.py', f'--workdir={target}']
  steps = dict.fromkeys(('steps', 'eval_every', 'save_every'), RELEASED_STEPS)
  evaluation = {'best': None, 'eval': {'test': {'data': {'split': 'test', 'batch_size': 64}}}}
  changes = {'model.from': source, 'optim.rate': RELEASED_RATE, **steps, **evaluation}
  if code := train.main([*words, *(f'--config.{key}={value}' for key, value in changes.items())]):
    return code
  found = files.read_json(RunFolder(target).result)['metrics']['test/accuracy']
  tiny, measured, origin = TINY, workdir / CLASSIFY / 'table.json', ', recorded in experiments/quickstart/classify.py'
  if files.is_file(measured):
    origin = ''
    first = files.read_json(measured)['rows'][0]
    tiny = {start: sum(first[start]) / len(first[start]) for start in TINY}
  print(f"""
Which of 8 packages a docstring is from, learned from {SIZES[0]} labels per class, on test:
  {tiny['scratch']:6.0%}  the tiny BERT from scratch{origin}
  {tiny['pretrained']:6.0%}  the tiny BERT, pre-trained for minutes on docstrings (`plm-jax quickstart`){origin}
  {found:6.0%}  all-MiniLM-L6-v2, pre-trained on a billion pairs of sentences
It took {(time.monotonic() - began) / 60:.1f} minutes.""")
  return 0


def _settings(name: str, workdir: Path, *, source: str | None = None, longer: float = 1) -> dict[str, Any]:
  """Load the config of a stage that starts from the stage `source`."""
  settings = config.load(str(ROOT / 'experiments' / 'quickstart' / f'{name}.py'))
  settings['vocab']['path'] = str(workdir / 'vocab')
  settings['steps'] = round(settings['steps'] * longer)
  if source is not None:
    settings['init_from'][0]['source'] = str(workdir / source)
  return config.resolve(settings)


def _report(
  workdir: Path, masked: dict[str, Any], contrast: dict[str, Any], table: dict[str, Any], *, seconds: float
) -> None:
  runs, wins = len(table['rows']) * table['seeds'], sum(row['wins'] for row in table['rows'])
  loss, perplexity = (masked['metrics'][f'validation/{name}'] for name in ('loss', 'perplexity'))
  accuracy = contrast['metrics']['validation/accuracy']
  print(f"""
Masked language modelling {_cost(masked)}: validation loss {loss:.3f} nats per masked
word, perplexity {perplexity:.0f}. Matching spans then {_cost(contrast)}, and picks the right text
of 32 in {accuracy:.0%} of cases. Fine-tuning from it beats training from scratch in {wins} of {runs} runs.""")
  print(f"""Everything took {seconds / 60:.1f} minutes.

Curves:  {RunFolder(workdir / PRETRAIN).curves}
         {workdir / CLASSIFY / 'curves.png'}

What to try next
  .venv/bin/plm-jax fill --workdir={workdir / PRETRAIN} --text="Returns the [MASK] of the array."
  .venv/bin/plm-jax train --config=experiments/quickstart/pretrain.py --workdir=runs/longer \\
      --config.steps=5000 --config.vocab.path={workdir / 'vocab'}
  .venv/bin/plm-jax train --list        every model, objective, adapter, data source and experiment
""")


def _cost(result: dict[str, Any]) -> str:
  """Describe the tokens and the time of a run."""
  return f'read {result["tokens"] / 1e6:.1f} M tokens in {result["seconds"]:.0f} s'
