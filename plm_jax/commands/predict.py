"""Predict the examples of a file with a fine-tuned model.

plm-jax predict --workdir=runs/mine --file=letters.csv --out=predicted.csv
plm-jax predict --workdir=runs/mine --file=sentences.txt --out=predicted.jsonl --step=newest
plm-jax predict --workdir=runs/glue --part=cola --file=sentences.txt --out=predicted.jsonl

Predicts classes, numbers, tags, options, answers or texts, depending on the task of the run. Labels are neither needed
nor read.

--file is a .txt file (one example per line), .jsonl, .csv, .tsv, .parquet, .conll, or SQuAD's .json, optionally with
.gz. An unreadable example is reported with file and line before the network runs.

--out is a .jsonl or .csv file. Each example keeps its fields and gets `prediction`, with its probability if the task
has one. Nothing is scored, and nothing is written to the run folder.

--part selects the task of a multi-task run.
"""

from collections.abc import Sequence

from plm_jax.cli import command, logs, signals


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax predict`; import jax only for a valid config."""
  parser = command.command('predict', __doc__)
  parser.add_argument('--file', required=True, metavar='IN', help='file of examples')
  parser.add_argument('--out', required=True, help='file of examples with predictions (.jsonl or .csv)')
  command.add_part(parser)
  parser.add_argument('--force', action='store_true', help='replace an existing OUT')
  command.add_step(parser)
  arguments, settings = command.parse(parser, argv)
  if settings is None:
    return 0
  from plm_jax.inference import predicting  # loads jax
  from plm_jax.io.run_paths import RunFolder

  logs.start()
  signals.check()
  folder, options = RunFolder.at(arguments.workdir), {name: vars(arguments)[name] for name in ('part', 'force')}
  predicting.predict(settings, folder, file=arguments.file, out=arguments.out, step=arguments.step, **options)
  return 0
