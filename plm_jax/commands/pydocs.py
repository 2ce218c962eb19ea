"""Builds and shows the embedded corpus, English docstrings of the installed packages, and its tasks.

    plm-jax pydocs                         builds it once and shows what is in it
    plm-jax pydocs --sample=3 --task=describe

`prepare` writes TensorFlow Datasets under `<cache>/tfds/pydocs/<set>-<key>/1.0.0`, one for the corpus and one for each
task. The key is of the packages' names and versions: an upgrade builds a new corpus, and installing anything else
changes nothing. Splits are drawn by a hash of the beginning of a text, so the same summary never stands in two splits,
and a task's test rows come from documents outside the corpus's training split.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.cli import signals
from plm_jax.data.corpora import pydocs


@signals.caught()
def main(arguments: Sequence[str] | None = None) -> int:
  """The command; see the module."""
  parser = argparse.ArgumentParser(prog='plm-jax pydocs', description='Builds and shows the embedded data.')
  parser.add_argument('--cache', default=pydocs.CACHE, help='folder of everything cached (default: %(default)s)')
  parser.add_argument('--sample', type=int, default=0, metavar='N', help='print N rows instead of the tables')
  parser.add_argument('--task', choices=pydocs.SETS, default='corpus', help='the set that --sample shows')
  parser.add_argument('--split', choices=pydocs.SPLITS, default='train', help='the split that --sample shows')
  options = parser.parse_args(arguments)
  if options.sample < 0 or not options.cache:
    parser.error('--sample is a number of rows from 0 on, --cache a folder')
  try:
    pydocs.key(pydocs.PACKAGES)
  except ModuleNotFoundError as error:
    print(error, file=sys.stderr)
    return 2
  with signals.raising():
    _show(options)
  return 0


def _show(options: argparse.Namespace) -> None:
  import rich

  known = pydocs.account(cache=options.cache)
  if not options.sample:
    _show_tables(known)
    return
  from plm_jax.data.corpora import sources

  path = 'pydocs' if options.task == 'corpus' else f'pydocs/{options.task}'
  records = sources.open_source(path, split=options.split, cache=options.cache)
  step = max(1, len(records) // options.sample)
  for n in range(0, min(len(records), options.sample * step), step):
    rich.get_console().rule(f'{path} {options.split}[{n}]')
    for field, value in records[n].items():
      rich.get_console().print(f'{field}: {value}', markup=False, highlight=False)


def _show_tables(known: Mapping[str, Any]) -> None:
  import rich
  import rich.table

  table = rich.table.Table('package', 'version', title='pydocs: prose of the installed docstrings', show_footer=True)
  for column in ('documents', 'characters'):
    table.add_column(column, justify='right')
  for row in known['packages']:
    table.add_row(row['name'], row['version'], f'{row["documents"]:,}', f'{row["chars"]:,}')
  table.columns[0].footer = 'all'
  table.columns[2].footer = f'{sum(row["documents"] for row in known["packages"]):,}'
  table.columns[3].footer = f'{sum(row["chars"] for row in known["packages"]):,}'
  rich.print(table)
  table = rich.table.Table('path', title='rows')
  for split in pydocs.SPLITS:
    table.add_column(split, justify='right')
  for name, rows in known['rows'].items():
    path = 'pydocs' if name == 'corpus' else f'pydocs/{name}'
    table.add_row(path, *(f'{rows.get(split, 0):,}' for split in pydocs.SPLITS))
  rich.print(table)
  dropped = ', '.join(f'{count:,} {reason.replace("_", " ")}' for reason, count in known['filter'].items() if count)
  rich.print(f'Filter: {dropped}. Built in {known["seconds"]} s.')
