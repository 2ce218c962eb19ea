"""Check before training that all hosts agree.

plm-jax doctor --config=experiments/bert/base.py --workdir=runs/bert/base
plm-jax doctor --config=experiments/bert/base.py --workdir=runs/bert/base --json

Run it on every host with the flags of `train`. All hosts must have the same code, config, package versions, compiler
variables, devices and clock. They must share one writable run folder, and find the same vocabulary and text. The mesh
must fit the devices, and the state the memory and disk. Finally all devices add up one number. Nothing is trained or
tokenized, and nothing is left in the run folder. A single host checks what it can check alone.

Process 0 prints a table: the check, the result, and the answers of the hosts. Exit codes: 0 the run can start, 2 it
cannot.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plm_jax.cli import command, hosts, logs, signals
from plm_jax.core.errors import ConfigError
from plm_jax.training.before.model_from import expand

if TYPE_CHECKING:
  from plm_jax.training.hosts.doctor import Report


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax doctor`."""
  parser = command.command('doctor', __doc__)
  parser.add_argument('--json', action='store_true', help='print JSON')
  hosts.add_flags(parser)
  wrong: ConfigError | None = None
  try:
    arguments, settings = command.parse(parser, argv, expand=expand)
    if settings is None:
      return 0
  except ConfigError as error:  # other hosts may be fine and would wait for this one
    wrong, settings = error, None
    arguments, _ = parser.parse_known_args(argv)
    if not arguments.workdir:
      raise
  flags = hosts.given(arguments)
  signals.check()
  import jax

  from plm_jax.training.hosts import doctor  # loads jax
  from plm_jax.training.hosts import join as joining

  logs.start()
  joining.join(flags)
  if wrong is not None and joining.alone():
    raise wrong
  report = doctor.examine(settings, arguments.workdir or '', devices=jax.devices, wrong=str(wrong or ''))
  if joining.first():
    if arguments.json:
      command.show(json.dumps(doctor.plain(report), indent=2))
    else:
      _show(report, doctor.rows(report))
  joining.part()
  return 0 if report.sound else command.WRONG_USAGE


def _show(report: 'Report', rows: Sequence[tuple[str, str, str]]) -> None:
  from rich.table import Table
  from rich.text import Text

  from plm_jax.cli import tables

  table = Table('check', 'result', 'answers of the hosts', show_lines=any(result != 'ok' for _, result, _ in rows))
  for name, result, answer in rows:
    table.add_row(name, Text(result, style='green' if result == 'ok' else 'red'), Text(answer))
  tables.show(table)
  several = f'{len(report.hosts)} processes' if len(report.hosts) > 1 else 'one process'
  bad = [name for name, result, _ in rows if result != 'ok']
  print(f'{several}: {"the run can start" if report.sound else "the run cannot start: " + ", ".join(bad)}')
