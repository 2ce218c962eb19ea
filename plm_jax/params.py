"""Counts parameters and operations of every published size, or of a config, from shapes alone.

python -m plm_jax.params                                           every published size, beside the paper's figure
python -m plm_jax.params --config=experiments/bert/base.py         the model of a config, with its head
python -m plm_jax.params --json                                    the same for a program

Operations are those of one forward row. Sharing layers divides the parameters, not the operations.
"""

import json
import sys
from collections.abc import Sequence

from plm_jax.cli import command
from plm_jax.training.model_from import expand


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the counts; nothing is allocated."""
  parser = command.command('params', __doc__)
  parser.add_argument('--all', action='store_true', help='every published size; the default without --config')
  parser.add_argument('--json', action='store_true', help='print JSON')
  words = list(sys.argv[1:] if argv is None else argv)
  of_config = any(word.startswith('--config') or word == '--list' for word in words)
  arguments, settings = (
    command.parse(parser, words, workdir=False, expand=expand) if of_config else (parser.parse_args(words), None)
  )
  if of_config and settings is None:
    return 0
  from plm_jax.training import sizes  # loads jax

  rows = sizes.published() if settings is None else [sizes.of_config(settings)]
  if arguments.json:
    print(json.dumps(rows, indent=2))
  else:
    sizes.show(rows)
  return 0


if __name__ == '__main__':
  sys.exit(command.run(main))
