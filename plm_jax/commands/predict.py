"""Predicts the rows of a file with a fine-tuned run: classes, numbers, tags, options, answers, texts.

plm-jax predict --workdir=runs/mine --file=letters.csv --out=predicted.csv
plm-jax predict --workdir=runs/mine --file=sentences.txt --out=predicted.jsonl --step=newest
plm-jax predict --workdir=runs/glue --part=cola --file=sentences.txt --out=predicted.jsonl

No row needs a label, and none is read. The file may be .txt (each line a row), .jsonl, .csv, .tsv, .parquet, .conll or
.json of SQuAD, with .gz behind it or without; the result is .jsonl or .csv. Each row keeps its fields and gets
`prediction`, with its probability where there is one. Nothing is scored, and nothing is written to the run folder. A
row that cannot be read is named with file and line before the network runs. Of a run that learned several tasks, --part
names the one whose rows these are.
"""

from collections.abc import Sequence

from plm_jax.cli import command, signals


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('predict', __doc__)
  parser.add_argument('--file', required=True, metavar='IN', help='the rows')
  parser.add_argument('--out', required=True, help='the rows with their predictions, a .jsonl or .csv file')
  command.add_part(parser)
  parser.add_argument('--force', action='store_true', help='replace OUT where it is there')
  command.add_step(parser)
  arguments, settings = command.parse(parser, argv)
  if settings is None:
    return 0
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.inference import predicting  # loads jax
  from plm_jax.io.run_paths import RunFolder

  logs.start()
  signals.check()
  predicting.predict(
    settings,
    RunFolder.at(arguments.workdir),
    file=arguments.file,
    out=arguments.out,
    step=step_named(arguments.step),
    part=arguments.part,
    force=arguments.force,
  )
  return 0
