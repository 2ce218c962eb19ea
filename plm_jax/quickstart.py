"""Pre-trains a tiny BERT on docstrings and fine-tunes it: a complete experiment in six minutes.

python -m plm_jax.quickstart [--workdir=runs/quickstart]

Builds the embedded corpus, trains a vocabulary and pre-trains. Then fine-tunes, with few labels, to tell which package
a docstring is from: once from the pre-trained parameters and once from scratch. Finished stages are not repeated.
"""

from plm_jax.cli import signals

if __name__ == '__main__':
  signals.begin()  # before the other imports, which take a while

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plm_jax import config
from plm_jax.cli import command, memory
from plm_jax.files import RunFolder

ROOT = Path(__file__).parents[1]
VOCAB_SIZE = 6000
SIZES, SEEDS, RATES = (8, 32), 3, (2e-3, 1e-3)
MINUTES, PRETRAINING = 6, 3  # of everything, and of the pre-training in it, on two CPU cores


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Runs every stage and prints a report."""
  parser = command.Parser('python -m plm_jax.quickstart', description=__doc__, allow_abbrev=False,
                          formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
  parser.add_argument('--workdir', default='runs/quickstart', type=Path, help='where everything goes (runs/quickstart)')
  parser.add_argument(
    '--minutes', default=MINUTES, type=command.COUNT, metavar='N',
    help=f'about how long it takes on two CPU cores; more than {MINUTES} pre-train longer ({MINUTES})',
  )  # fmt: skip
  arguments = parser.parse_args(argv)
  workdir: Path = arguments.workdir
  if arguments.minutes < MINUTES:
    parser.error(f'--minutes={arguments.minutes}: it takes {MINUTES} minutes or more')
  began = time.monotonic()

  memory.reuse()
  from plm_jax.cli import logs

  log = logs.start()
  log.info('1/4  the corpus: docstrings of the standard library and the installed packages')
  from plm_jax.data.pydocs import __main__ as pydocs

  signals.check()
  pydocs.main([])
  signals.check()
  log.info(f'2/4  a byte-level BPE vocabulary of {VOCAB_SIZE:,} tokens')
  from plm_jax import vocab

  vocab_dir = workdir / 'vocab'
  words = ['train', '--source=pydocs', '--name=byte_bpe', f'--size={VOCAB_SIZE}', f'--out={vocab_dir}']
  if code := vocab.main(words):
    return code
  signals.check()

  log.info('3/4  pre-training a tiny BERT to fill in masked words')
  from plm_jax.studies import transfer
  from plm_jax.training import loop

  pretrain = _settings('pretrain', vocab=vocab_dir)
  pretrain['steps'] = round(pretrain['steps'] * (arguments.minutes - MINUTES + PRETRAINING) / PRETRAINING)
  outcome = loop.train(pretrain, workdir / 'pretrain')
  if outcome.exit_code:
    return outcome.exit_code
  signals.check()

  log.info(f'4/4  fine-tuning with {" and ".join(map(str, SIZES))} labels per class, {SEEDS} seeds, two rates each')
  classify = _settings('classify', vocab=vocab_dir, source=workdir / 'pretrain')
  table = transfer.run_study(classify, workdir / 'classify', sizes=SIZES, seeds=SEEDS, rates=RATES)
  _report(workdir, outcome.result, table, seconds=time.monotonic() - began)
  return 0


def _settings(name: str, *, vocab: Path, source: Path | None = None) -> dict[str, Any]:
  """The config of one stage, with the folders of this run."""
  settings = config.load(str(ROOT / 'experiments' / 'quickstart' / f'{name}.py'))
  settings['vocab']['path'] = str(vocab)
  if source is not None:
    settings['init_from'][0]['source'] = str(source)
  return config.resolve(settings)


def _report(workdir: Path, result: dict[str, Any], table: dict[str, Any], *, seconds: float) -> None:
  last, millions = result['metrics'], result['tokens'] / 1e6
  runs, wins = len(table['rows']) * table['seeds'], sum(row['wins'] for row in table['rows'])
  loss, perplexity = last['validation/loss'], last['validation/perplexity']
  print(f"""
Pre-training read {millions:.1f} M tokens in {result['seconds']:.0f} s, to a validation loss of {loss:.3f} nats per
masked word, perplexity {perplexity:.0f}. Fine-tuning from it beats training from scratch in {wins} of {runs} runs.""")
  print(f"""Everything took {seconds / 60:.1f} minutes.

Curves:  {RunFolder(workdir / 'pretrain').curves}
         {workdir / 'classify' / 'curves.png'}

What to try next
  .venv/bin/python -m plm_jax.fill --workdir={workdir / 'pretrain'} --text="Returns the [MASK] of the array."
  .venv/bin/python -m plm_jax.train --config=experiments/quickstart/pretrain.py --workdir=runs/longer \\
      --config.steps=5000 --config.vocab.path={workdir / 'vocab'}
  .venv/bin/python -m plm_jax.train --list        every model, objective, adapter, data source and experiment
""")


if __name__ == '__main__':
  command.leave(command.run(main))
