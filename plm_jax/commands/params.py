"""Count parameters and operations of a model.

plm-jax params                                       every published size, next to the paper's figure
plm-jax params --config=experiments/bert/base.py     the model of a config, with its head
plm-jax params --workdir=RUN                         the model of a run
plm-jax params --json                                the same as JSON
plm-jax params --taxonomy --md                       every model, objective and adapter by type, as Markdown

Everything is computed from shapes. Operations are those of one forward pass of one sequence. Sharing layers divides the
parameters, not the operations.

--taxonomy classifies by Qiu et al. 2020: representation, architecture, task and extension. Below the table it lists the
parts of that survey that are out of scope here; --json prints the table alone.
"""

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from plm_jax.cli import command
from plm_jax.config import taxonomy
from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.training.before.model_from import expand


def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax params`; allocate nothing."""
  parser = command.command('params', __doc__)
  parser.add_argument('--all', action='store_true', help='count every published size (default without --config)')
  parser.add_argument('--json', action='store_true', help='print JSON')
  parser.add_argument('--taxonomy', action='store_true', help='print the taxonomy of models, objectives and adapters')
  parser.add_argument('--md', action='store_true', help='print the taxonomy as a Markdown table')
  words = list(sys.argv[1:] if argv is None else argv)
  of_config = any(word.startswith(('--config', '--workdir', '--print_config', '--list')) for word in words)
  arguments, settings = (
    command.parse(parser, words, workdir=False, expand=expand) if of_config else (parser.parse_args(words), None)
  )
  if of_config and settings is None:
    return 0
  if arguments.taxonomy and of_config:
    raise ConfigError('--taxonomy lists everything: remove --config and --workdir')
  if arguments.all and of_config:
    raise ConfigError('--all counts every published size: remove it, or remove --config and --workdir')
  if arguments.md and (arguments.json or not arguments.taxonomy):
    raise ConfigError('--md prints the taxonomy as Markdown: use --taxonomy --md, without --json')
  if arguments.taxonomy:
    return _print_taxonomy(as_json=arguments.json, as_markdown=arguments.md)
  from plm_jax.training.cost import sizes  # loads jax

  folder = RunFolder.at(arguments.workdir) if arguments.workdir else None
  rows = sizes.published() if settings is None else [sizes.of_config(settings, folder=folder)]
  if arguments.json:
    print(json.dumps(rows, indent=2))
  else:
    sizes.show(rows)
  return 0


def _print_taxonomy(*, as_json: bool, as_markdown: bool) -> int:
  rows = taxonomy.rows()
  if as_json or as_markdown:
    print(json.dumps(rows, indent=2) if as_json else '\n'.join([taxonomy.markdown(rows), '', *taxonomy.not_here()]))
    return 0
  lines = [taxonomy.cells(row) for row in rows]
  table = Table(title='After Qiu et al. 2020: representation, architecture, task, extension')
  for column, *values in zip(taxonomy.COLUMNS, *lines, strict=True):
    width = None if column == 'paper' else max(map(len, (column, *values)))  # only titles may be folded
    table.add_column(column, overflow='fold', min_width=width)
  for line in lines:
    table.add_row(*line)
  Console(width=max(Console().width, 200)).print(table)
  print('\n'.join(taxonomy.not_here()))
  return 0
