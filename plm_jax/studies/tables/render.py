"""A table as Markdown, as CSV and as a picture, made from its file and its `cells.json` alone."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.studies.tables import cells, intervals, picture
from plm_jax.studies.tables.file import BEST, COUNTED, Claim, Column, Origin, Table, origin
from plm_jax.studies.tables.intervals import Measured

LEFT = 0.5  # nats below the entropy of word frequencies, from which on a network counts as one that learned more
MARKS = {
  'A': 'official repository',
  'B': 'text of the paper',
  'C': "another's notes",
  'D': 'remembered, unverified',
  'none': 'none',
}


def measured(table: Table, kept: Mapping[str, Any], row: str, column: str) -> Measured | None:
  """The runs of a cell, scaled as the paper prints them; None where none has a result."""
  if parts := table.columns[column].over:
    return _mean([measured(table, kept, row, part) for part in parts])
  by_seed = kept['cells'].get(row, {}).get(column)
  if not by_seed:
    return None
  of = table.columns[column]
  found = [[kept['runs'].get(digest) for digest in runs] for runs in by_seed]
  values = np.array([[_value(run, of) for run in runs] for runs in found]) * of.times + of.plus
  dev = None
  if table.summary == BEST and of.chosen_by is not None:
    metric, better = of.chosen_by
    dev = np.array([[_metric(run, metric) for run in runs] for runs in found]) * (1 if better == 'max' else -1)
    values = np.where(np.isnan(dev), np.nan, values)  # a run that nothing can choose does not count
  if np.isnan(values).all():
    return None
  points = max(1, len(of.grid))
  if values.shape[1] % points:
    raise ConfigError(
      f'column {column!r}: its grid has {points} points, and row {row!r} of cells.json {values.shape[1]} runs for each '
      'pre-training: the file is of another form of this table; move it away'
    )
  rows = [[_rows(run, of) for run in runs] for runs in found]
  there = [one for runs in rows for one in runs if one is not None]
  lacking = np.array([[one is None for one in runs] for runs in rows]) & ~np.isnan(values)
  if lacking.any() or len({len(one) for one in there}) != 1:
    return Measured(values, dev=dev, points=points)
  nothing = np.zeros(len(there[0]))  # of a run without a result, which nobody reads
  scored = np.array([[nothing if one is None else one for one in runs] for runs in rows]) * of.times + of.plus
  return Measured(values, scored, dev, points)


def _mean(parts: Sequence[Measured | None]) -> Measured | None:
  """The mean over columns, run by run of each seed; None where one of them has no result."""
  there = [part.values for part in parts if part is not None]
  if len(there) < len(parts):
    return None
  values = np.mean(there, axis=0)
  return None if np.isnan(values).all() else Measured(values)


def _rows(run: Mapping[str, Any] | None, column: Column) -> np.ndarray | None:
  found = run or {}
  packed = found.get('rows', {}).get(column.metric) or found.get('groups', {}).get(column.metric)
  return None if packed is None else cells.unpacked(packed)


def _value(run: Mapping[str, Any] | None, column: Column) -> float:
  if column.of not in COUNTED:
    return _metric(run, column.metric)
  found = (run or {}).get(column.of)
  return math.nan if found is None else float(found)


def _metric(run: Mapping[str, Any] | None, name: str) -> float:
  found = (run or {}).get('metrics', {}).get(name)
  return math.nan if found is None else float(found)


def constant(value: float, like: Measured) -> Measured:
  """The runs of a cell, had each of them this value, and each row of the test set."""
  rows = None if like.rows is None else np.full_like(like.rows, value)
  return like._replace(values=np.full_like(like.values, value), rows=rows)


def shown(value: float) -> str:
  """A number with the digits that a reader can use: 12,345; 84.31; 0.184."""
  return f'{value:,.0f}' if abs(value) >= 1_000 else f'{value:.2f}' if abs(value) >= 1 else f'{value:.3f}'


def said(cell: Measured | None, table: Table) -> str:
  """A cell in words: '78.3 ± 0.4 (3)', the number of runs in brackets; '78.3 (best of 3 on dev)'."""
  if cell is None:
    return ''
  values = cell.values[~np.isnan(cell.values)]
  if cell.dev is not None and len(values) > 1:
    return f'{shown(intervals.summarise(cell, table.summary))} (best of {len(values)} on dev)'
  spread = f' ± {shown(float(values.std(ddof=1)))}' if len(values) > 1 and values.std() > 0 else ''
  return f'{shown(intervals.summarise(cell, table.summary))}{spread} ({len(values)})'


def write(table: Table, kept: Mapping[str, Any], folder: files.Path) -> None:
  """Writes `table.md`, `table.csv` and `table.png` into a folder."""
  files.write_text(folder / 'table.md', markdown(table, kept))
  files.write_text(folder / 'table.csv', comma_separated(table, kept))
  draw(table, kept, folder / 'table.png')


# Text ----------------------------------------------------------------------------------------------------------------


def markdown(table: Table, kept: Mapping[str, Any]) -> str:
  """The table with what its paper claims, what it stands on, and why cells are empty."""
  lines = [f'# {table.title}', '', f'{table.paper}. Published numbers: {MARKS[table.mark]}.']
  lines += [table.note] if table.note else []
  lines += ['', f'Made by `{kept["command"]}`.', '']
  lines += _grid(table, kept)
  if notes := footnotes(table):
    lines += ['', *(f'- [{letter}] {_origin_said(one)}.' for one, letter in notes.items())]
  lines += _claims(table, kept)
  lines += ['', '## What stands behind it', '', *(f'- {fact}' for fact in _facts(table, kept))]
  return '\n'.join([*lines, ''])


def _grid(table: Table, kept: Mapping[str, Any]) -> list[str]:
  heads, columns = ['row'], []
  for name, column in table.columns.items():
    published = any(name in row.published for row in table.rows.values())
    columns.append((name, published, not column.empty))
    heads += [f'{name}, published'] * published + [f'{name}, measured'] * (not column.empty)
  lines = [_line(heads), _line(['---'] * len(heads))]
  letters = footnotes(table)
  for row_name, row in table.rows.items():
    line = [row_name]
    for name, published, filled in columns:
      letter = letters.get(origin(table, row_name, name), '') if name in row.published else ''
      line += [_published(row.published.get(name)) + (f' [{letter}]' if letter else '')] * published
      line += [said(measured(table, kept, row_name, name), table)] * filled
    lines.append(_line(line))
  for trivial in dict.fromkeys(name for column in table.columns.values() for name in column.trivial):
    line = [trivial]
    for name, published, filled in columns:
      line += [''] * published + [_published(table.columns[name].trivial.get(trivial))] * filled
    lines.append(_line(line))
  return lines


def _published(value: float | None) -> str:
  return '' if value is None else f'{value:,g}' if abs(value) < 10_000 else f'{value:,.0f}'


def footnotes(table: Table) -> dict[Origin, str]:
  """The letter of each origin of published numbers that is not that of the table, in their order."""
  found = [
    origin(table, name, column)
    for name, row in table.rows.items()
    for column in table.columns
    if column in row.published
  ]
  others = dict.fromkeys(one for one in found if one != Origin(table.mark))
  return {one: _letter(place) for place, one in enumerate(others)}


def _letter(place: int) -> str:
  """a to z, then aa, ab, ..."""
  return (_letter(place // 26 - 1) if place >= 26 else '') + chr(ord('a') + place % 26)


def _origin_said(one: Origin) -> str:
  return f'{one.quoted}: {MARKS[one.mark]}' if one.quoted else MARKS[one.mark]


def _line(items: list[str]) -> str:
  escaped = (item.replace('|', r'\|') for item in items)
  return f'| {" | ".join(escaped)} |'


def _claims(table: Table, kept: Mapping[str, Any]) -> list[str]:
  level = f'{intervals.LEVEL:.0%}'
  head = ['column', 'better', 'than', 'published', 'measured', f'{level} interval', 'sign', 'beyond noise']
  asked: dict[str, list[Claim]] = {}
  for claim in table.claims:
    asked.setdefault(_who_asks(table, claim), []).append(claim)
  lines = []
  for name, claims in sorted(asked.items(), reverse=True):  # what the paper says comes first
    lines += ['', f'## {name}', '', _line(head), _line(['---'] * len(head))]
    lines += [_line(_claim(table, kept, claim)) for claim in claims]
  return lines


def _who_asks(table: Table, claim: Claim) -> str:
  """The heading of a claim: what a paper says of numbers of its own, and what is asked here beside it."""
  if table.mark == 'none':
    return 'What is asked'
  return 'Asked here as well' if _difference(table, claim) is None else 'What the paper claims'


def _difference(table: Table, claim: Claim) -> float | None:
  """The difference that the paper has; None where it lacks one of the two numbers."""
  first, second = (
    table.rows[row].published.get(claim.column) if row in table.rows else None for row in (claim.better, claim.than)
  )
  return None if first is None or second is None else first - second


def _compared(table: Table, kept: Mapping[str, Any], claim: Claim) -> list[Measured | None]:
  """The two cells of a claim; a trivial score as one with the runs and rows of the other."""
  both = [measured(table, kept, row, claim.column) for row in (claim.better, claim.than)]
  trivial = table.columns[claim.column].trivial
  if claim.than in trivial and both[0] is not None:
    both[1] = constant(trivial[claim.than], both[0])
  return both


def _claim(table: Table, kept: Mapping[str, Any], claim: Claim) -> list[str]:
  column, published = table.columns[claim.column], _difference(table, claim)
  both = _compared(table, kept, claim)
  line = [claim.column, claim.better, claim.than, '' if published is None else f'{published:+.4g}']
  if both[0] is None or both[1] is None:
    return [*line, '', '', 'not measured', '']
  found = intervals.difference(both[0], both[1], table.summary)
  agrees = found.difference > 0 if column.better == 'max' else found.difference < 0
  single = not intervals.is_known(both[0], both[1])
  return [
    *line,
    f'{found.difference:+.4g}',
    'none: one run' if single else f'{found.low:+.4g} to {found.high:+.4g}',
    'agrees' if agrees else 'none' if found.difference == 0 else 'opposite',
    'not known' if single else 'yes' if found.is_sure else 'no',
  ]


def _facts(table: Table, kept: Mapping[str, Any]) -> list[str]:
  """What a reader has to know before believing the numbers."""
  runs, scale = kept['runs'].values(), kept['scale']
  meaning, choice = _summary_said(table)
  facts = [f'Scale: {scale}. {meaning}', f'The last step of each run counts; {choice}.']
  if table.pretraining_seeds == 1:
    facts.append('One pre-training a row: its noise is not in the intervals.')
  facts.append('Intervals: bootstrap over seeds and over the rows of the test set.')
  if grouped := _over_groups(table, kept):
    facts.append(f'Over seeds and groups of rows, which a jackknife leaves out in turn: {", ".join(grouped)}.')
  if alone := _over_seeds_alone(table, kept):
    way = '' if table.summary == BEST else ", by Student's t"
    facts.append(f'Over seeds alone{way}: {", ".join(alone)}, of which no scores of single rows are kept.')
  if table.summary == BEST:
    facts.append('Intervals: each draw chooses again among the runs that it has; development rows are not drawn.')
  facts += _plateau_facts(table, kept)
  facts += [f'{name}: {column.note}.' for name, column in table.columns.items() if column.note]
  facts += [f'{name} stays empty: {column.empty}.' for name, column in table.columns.items() if column.empty]
  facts += [f'{name} stays empty: {row.empty}.' for name, row in table.rows.items() if row.empty]
  facts += [f'{names} stay empty: {why}.' for why, names in _without(table).items()]
  facts += [
    f'{name} is the mean of {", ".join(column.over)}, seed by seed.'
    for name, column in table.columns.items()
    if column.over and not column.empty
  ]
  for digest, reason in kept['failed'].items():
    facts.append(f'Run {digest} has no result: {reason}.')
  hours = sum(run.get('seconds', 0) for run in runs) / 3600
  if runs:
    versions = sorted({f'jax {run["versions"]["jax"]}' for run in runs if 'versions' in run})
    machines, commits = (_made_by(kept, key) for key in ('machine', 'code'))
    facts.append(f'{len(kept["runs"])} runs, {hours:.2f} hours: {machines}; {", ".join(versions)}.')
    facts.append(f'Code: {commits}. Digests of runs and data: cells.json.')
  return facts


def _without(table: Table) -> dict[str, str]:
  """By reason the cells that are not measured though row and column are: 'LM (XSum, CNN/DM), masked LM (XSum)'."""
  found: dict[str, dict[str, list[str]]] = {}
  for name, row in table.rows.items():
    for column, why in row.without.items():
      if not row.empty and not table.columns[column].empty:
        found.setdefault(why, {}).setdefault(name, []).append(column)
  return {
    why: ', '.join(f'{row} ({", ".join(columns)})' for row, columns in rows.items()) for why, rows in found.items()
  }


def _made_by(kept: Mapping[str, Any], key: str) -> str:
  """The commits or the machines of the runs, with the number of runs of each where there are several."""
  found = cells.made_by(kept, key) or {kept[key] or cells.NOT_KNOWN: 0}
  named = {name or 'no repository': count for name, count in found.items()}
  if len(named) == 1:
    return next(iter(named))
  return ' and '.join(f'{name} ({count} run{"s" * (count != 1)})' for name, count in named.items())


def _summary_said(table: Table) -> tuple[str, str]:
  """What a cell is, and what was chosen by a score."""
  if table.summary != BEST:
    cell = f'A cell is the {table.summary} of its runs ± their standard deviation (number of runs).'
    return cell, 'no step, rate or seed was chosen by a score'
  chosen = [
    f'of {name} by {"most" if column.chosen_by[1] == "max" else "least"} {column.chosen_by[0]}'
    + (f' among {len(column.grid)} settings and their seeds' if column.grid else '')
    for name, column in table.columns.items()
    if column.chosen_by is not None and not column.empty
  ]
  cell = f'A cell is the run that is best on dev, on rows that are neither learned nor reported: {"; ".join(chosen)}.'
  return f'{cell} Where nothing is chosen it is the mean.', 'no test set was used to choose'


def _over_groups(table: Table, kept: Mapping[str, Any]) -> list[str]:
  """The columns of claims whose metric is no mean over rows, so that groups of rows are drawn."""
  asked = {claim.column for claim in table.claims}
  grouped = {metric for run in kept['runs'].values() for metric in run.get('groups', {})}
  return [name for name, column in table.columns.items() if name in asked and column.metric in grouped]


def _over_seeds_alone(table: Table, kept: Mapping[str, Any]) -> list[str]:
  """The columns of claims in which rows of the test set are not drawn."""
  found = set()
  for claim in table.claims:
    better, than = _compared(table, kept, claim)
    if better is not None and than is not None and not intervals.are_paired(better, than):
      found.add(claim.column)
  return [name for name in table.columns if name in found]


def _plateau_facts(table: Table, kept: Mapping[str, Any]) -> list[str]:
  found = kept['plateau']
  if not table.reference or not found:
    return []
  far = found['frequencies'] - found['loss']
  verdict = (
    'it learned more than frequencies' if far >= LEFT else 'IT DID NOT LEAVE THE PLATEAU, and the table says little'
  )
  near = [f'{row} ({below:.2f})' for row, below in _below(table, kept).items() if below < LEFT]
  return [
    f'The pre-training of {table.reference!r} ends at {found["loss"]:.2f} nats a token, {far:.2f} below the entropy of '
    f'word frequencies ({found["frequencies"]:.2f}): {verdict}.',
    *([f'Less than {LEFT:.2f} below it, of their pre-trainings the nearest: {", ".join(near)}.'] if near else []),
  ]


def _below(table: Table, kept: Mapping[str, Any]) -> dict[str, float]:
  """By row, how far its pre-trainings end below the entropy of word frequencies, in nats a token: the least of them."""
  found: dict[str, float] = {}
  trained = [row for row in kept['cells'] if row in table.rows and table.rows[row].start != 'scratch']
  for row in trained:
    for digest in (one for by_seed in kept['cells'][row].values() for runs in by_seed for one in runs):
      run = kept['runs'].get(digest)
      while run is not None and table.plateau not in run.get('metrics', {}):
        run = kept['runs'].get(run.get('source'))
      if run is not None:
        below = kept['plateau']['frequencies'] - math.log(run['metrics'][table.plateau])
        found[row] = min(found.get(row, math.inf), below)
  return found


def comma_separated(table: Table, kept: Mapping[str, Any]) -> str:
  """One line a cell: published, measured, deviation, number of runs, and the value of each run; and the origin of the
  published number, where not all of them have the same."""
  others = footnotes(table)
  out = io.StringIO()
  writer = csv.writer(out, lineterminator='\n')
  heads = ['row', 'column', 'published', 'measured', 'deviation', 'runs', 'values', 'empty']
  writer.writerow(heads + ['origin'] * bool(others))
  for row_name, row in table.rows.items():
    for name, column in table.columns.items():
      cell = measured(table, kept, row_name, name)
      values = np.array([]) if cell is None else cell.values[~np.isnan(cell.values)]
      number = '' if cell is None else f'{intervals.summarise(cell, table.summary):.6g}'
      spread = f'{values.std(ddof=1):.6g}' if len(values) > 1 else ''
      each = ' '.join(f'{value:.6g}' for value in values)
      why = row.empty or column.empty or row.without.get(name) or ('' if len(values) else 'not run')
      line = [row_name, name, row.published.get(name, ''), number, spread, len(values), each, why]
      its_origin = _origin_said(origin(table, row_name, name)) if name in row.published else ''
      writer.writerow(line + [its_origin] * bool(others))
  return out.getvalue()


# The picture ---------------------------------------------------------------------------------------------------------


def draw(table: Table, kept: Mapping[str, Any], file: files.Path) -> None:
  """Draws what `picture.draw` says, with a remark where a network that others begin from did not learn enough."""
  places = ((row, name) for name in table.columns for row in table.rows)
  cells = {place: cell for place in places if (cell := measured(table, kept, *place)) is not None}
  warning = any('PLATEAU' in fact for fact in _plateau_facts(table, kept))
  remark = 'The pre-training did not leave the plateau of word frequencies' if warning else ''
  picture.draw(table, cells, file, remark=remark)
