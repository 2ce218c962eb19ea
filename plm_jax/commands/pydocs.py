"""Build and show the built-in corpus of Python docstrings.

plm-jax pydocs                         build it once and show its size
plm-jax pydocs --sample=3 --task=describe

The corpus is English prose from the docstrings of the installed packages, with tasks made from it. It is stored as
TensorFlow Datasets under `<cache>/tfds/pydocs/<set>-<key>/1.0.0`, one for the corpus and one for each task. The key
depends on the names and versions of the packages: an upgrade builds a new corpus, installing other packages does not.

Splits are chosen by a hash of the beginning of a text, so no summary is in two splits. The test examples of a task come
from documents outside the corpus's training split.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.cli import signals
from plm_jax.data.corpora import pydocs


@signals.caught()
def main(arguments: Sequence[str] | None = None, *, sets: Sequence[str] = ()) -> int:
  """Run `plm-jax pydocs`; `sets` are those to build, () for all."""
  parser = argparse.ArgumentParser(
    prog='plm-jax pydocs', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument('--cache', default=pydocs.CACHE, help='cache folder (default: %(default)s)')
  parser.add_argument('--sample', type=int, default=0, metavar='N', help='print N examples instead of the tables')
  parser.add_argument('--task', choices=pydocs.SETS, default='corpus', help='data set for --sample (default: corpus)')
  parser.add_argument('--split', choices=pydocs.SPLITS, default='train', help='split for --sample (default: train)')
  options = parser.parse_args(arguments)
  if options.sample < 0 or not options.cache:
    parser.error('--sample must be 0 or more, and --cache a folder')
  try:
    pydocs.key(pydocs.PACKAGES)
  except ModuleNotFoundError as error:
    print(error, file=sys.stderr)
    return 2
  with signals.raising():
    _show(options, (options.task,) if options.sample else sets)
  return 0


def _show(options: argparse.Namespace, sets: Sequence[str]) -> None:
  import rich

  facts = pydocs.account(cache=options.cache, sets=sets)
  if not options.sample:
    _show_tables(facts)
    return
  from plm_jax.data.corpora import sources

  path = 'pydocs' if options.task == 'corpus' else f'pydocs/{options.task}'
  records = sources.open_source(path, split=options.split, cache=options.cache)
  step = max(1, len(records) // options.sample)
  for n in range(0, min(len(records), options.sample * step), step):
    rich.get_console().rule(f'{path} {options.split}[{n}]')
    for field, value in records[n].items():
      rich.get_console().print(f'{field}: {value}', markup=False, highlight=False)


def _show_tables(facts: Mapping[str, Any]) -> None:
  import rich
  import rich.table

  table = rich.table.Table('package', 'version', title='pydocs: prose of the installed docstrings', show_footer=True)
  for column in ('documents', 'characters'):
    table.add_column(column, justify='right')
  for row in facts['packages']:
    table.add_row(row['name'], row['version'], f'{row["documents"]:,}', f'{row["chars"]:,}')
  table.columns[0].footer = 'all'
  table.columns[2].footer = f'{sum(row["documents"] for row in facts["packages"]):,}'
  table.columns[3].footer = f'{sum(row["chars"] for row in facts["packages"]):,}'
  rich.print(table)
  table = rich.table.Table('path', title='rows')
  for split in pydocs.SPLITS:
    table.add_column(split, justify='right')
  for name, rows in facts['rows'].items():
    path = 'pydocs' if name == 'corpus' else f'pydocs/{name}'
    table.add_row(path, *(f'{rows.get(split, 0):,}' for split in pydocs.SPLITS))
  rich.print(table)
  dropped = ', '.join(f'{count:,} {reason.replace("_", " ")}' for reason, count in facts['filter'].items() if count)
  rich.print(f'Filter: {dropped}. Built in {facts["seconds"]} s.')
