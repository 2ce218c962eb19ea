"""Says, before training, whether all hosts agree and a run can begin.

plm-jax doctor --config=experiments/bert/base.py --workdir=runs/bert/base [--json]

Run it on every host, as `train`. All have to have the same code, config, versions, variables for the compiler, devices
and clock, to see one run folder and to be able to write there, and to find the same vocabulary and the same text. The
run has to fit: its mesh the devices, its state the memory and the disk. At the end all devices add one. Nothing is
trained or tokenised, and nothing stays in the run folder. One host alone is asked what it can know.

Process 0 prints a table: the question, the result, and which host says what. Exit codes: 0 the run can begin, 2 it
cannot.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plm_jax.cli import command, hosts, signals
from plm_jax.core.errors import ConfigError
from plm_jax.training.before.model_from import expand

if TYPE_CHECKING:
  from plm_jax.training.hosts.doctor import Report


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Prints what all hosts say."""
  parser = command.command('doctor', __doc__)
  parser.add_argument('--json', action='store_true', help='print JSON')
  hosts.add_flags(parser)
  wrong: ConfigError | None = None
  try:
    arguments, settings = command.parse(parser, argv, expand=expand)
    if settings is None:
      return 0
  except ConfigError as error:  # of this host, and perhaps of no other: they wait for it
    wrong, settings = error, None
    arguments, _ = parser.parse_known_args(argv)
    if not arguments.workdir:
      raise
  flags = hosts.given(arguments)
  signals.check()
  import jax

  from plm_jax.cli import logs
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

  table = Table('check', 'result', 'what the hosts say', show_lines=any(result != 'ok' for _, result, _ in rows))
  for name, result, said in rows:
    table.add_row(name, Text(result, style='green' if result == 'ok' else 'red'), Text(said))
  tables.show(table)
  several = f'{len(report.hosts)} processes' if len(report.hosts) > 1 else 'one process'
  bad = [name for name, result, _ in rows if result != 'ok']
  print(f'{several}: {"the run can begin" if report.sound else "the run cannot begin: " + ", ".join(bad)}')
