"""Render a table as Markdown, CSV and a picture, from its file and its `cells.json` alone."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plm_jax.io import files
from plm_jax.studies.tables import cells, intervals, picture, published
from plm_jax.studies.tables.file import BEST, BEST_POINT, CHANCE, CHOSEN, Claim, Origin, Table, origin
from plm_jax.studies.tables.intervals import Measured
from plm_jax.studies.tables.measured import constant, measured, num_at_chance
from plm_jax.studies.tables.published import DIFFERS

Key = tuple[str, str, str]  # column, better and than of a claim
LEFT = 0.5  # nats below the best guess without context at which a network has left the plateau
MARKS = {
  'A': 'official repository',
  'B': 'text of the paper',
  'C': "another's notes",
  'D': 'remembered, unverified',
  'none': 'none',
}


def shown(value: float) -> str:
  """Format a number with significant digits: 12,345; 84.31; 0.184."""
  return f'{value:,.0f}' if abs(value) >= 1_000 else f'{value:.2f}' if abs(value) >= 1 else f'{value:.3f}'


def cell_text(cell: Measured | None, table: Table) -> str:
  """Format a cell, such as '78.3 ± 0.4 (3)'."""
  if cell is None:
    return ''
  values = cell.finite
  if cell.dev is not None and len(values) > 1:
    return f'{shown(intervals.summarise(cell, table.summary))} (best of {len(values)} on dev)'
  spread = f' ± {shown(float(values.std(ddof=1)))}' if len(values) > 1 and values.std() > 0 else ''
  return f'{shown(intervals.summarise(cell, table.summary))}{spread} ({len(values)})'


def write(table: Table, results: Mapping[str, Any], folder: files.Path) -> None:
  """Write `table.md`, `table.csv` and `table.png` to a folder."""
  files.write_text(folder / 'table.md', markdown(table, results))
  files.write_text(folder / 'table.csv', comma_separated(table, results))
  draw(table, results, folder / 'table.png')


def markdown(table: Table, results: Mapping[str, Any]) -> str:
  """Format the table, its claims and the facts behind it."""
  lines = [f'# {table.title}', '', f'{table.paper}. Published numbers: {MARKS[table.mark]}.']
  lines += [table.note] if table.note else []
  lines += ['', f'Made by `{results["command"]}`.', '']
  lines += _grid(table, results)
  if notes := footnotes(table):
    lines += ['', *(f'- [{letter}] {_origin_text(source)}.' for source, letter in notes.items())]
  lines += _claims(table, results)
  lines += ['', '## What stands behind it', '', *(f'- {fact}' for fact in _facts(table, results))]
  return '\n'.join([*lines, ''])


def _grid(table: Table, results: Mapping[str, Any]) -> list[str]:
  heads, columns = ['row'], []
  for name, column in table.columns.items():
    published = any(name in row.published for row in table.rows.values())
    columns.append((name, published, not column.empty))
    heads += [f'{name}, published'] * published + [f'{name}, measured'] * (not column.empty)
  lines = []
  letters, verdicts = footnotes(table), _verdicts(table, results)
  for row_name, row in table.rows.items():
    line = [row_name]
    for name, published, filled in columns:
      letter = letters.get(origin(table, row_name, name), '') if name in row.published else ''
      number = _published(row.published.get(name))
      if name in row.unlike and number:
        number = f'({number})'
      line += [number + (f' [{letter}]' if letter else '')] * published
      mark = ' **differs**' if verdicts[row_name, name] == DIFFERS else ''
      cell = measured(table, results, row_name, name)
      if cell is not None and (count := num_at_chance(cell, table.columns[name])):
        mark = f', {count} of {len(cell.finite)} at chance{mark}'
      line += [cell_text(cell, table) + mark] * filled
    lines.append(line)
  for trivial in dict.fromkeys(name for column in table.columns.values() for name in column.trivial):
    line = [trivial]
    for name, published, filled in columns:
      line += [''] * published + [_published(table.columns[name].trivial.get(trivial))] * filled
    lines.append(line)
  return markdown_table(heads, lines)


def _verdicts(table: Table, results: Mapping[str, Any]) -> dict[tuple[str, str], str]:
  """Compare all cells with their published numbers."""
  keys = [(row, column) for row in table.rows for column in table.columns]
  return {key: published.verdict(table, *key, measured(table, results, *key)) for key in keys}


def _published(value: float | None) -> str:
  return '' if value is None else f'{value:,g}' if abs(value) < 10_000 else f'{value:,.0f}'


def footnotes(table: Table) -> dict[Origin, str]:
  """Letter the origins that differ from that of the table."""
  origins = [
    origin(table, name, column)
    for name, row in table.rows.items()
    for column in table.columns
    if column in row.published
  ]
  others = dict.fromkeys(source for source in origins if source != Origin(table.mark))
  return {source: _letter(index) for index, source in enumerate(others)}


def _letter(index: int) -> str:
  """Count with letters: a to z, then aa, ab, ..."""
  return (_letter(index // 26 - 1) if index >= 26 else '') + chr(ord('a') + index % 26)


def _origin_text(source: Origin) -> str:
  return f'{source.quoted}: {MARKS[source.mark]}' if source.quoted else MARKS[source.mark]


def markdown_table(head: list[str], rows: Sequence[list[str]]) -> list[str]:
  """Format the lines of a table."""
  return [markdown_row(items) for items in (head, ['---'] * len(head), *rows)]


def markdown_row(items: list[str]) -> str:
  escaped = (item.replace('|', r'\|') for item in items)
  return f'| {" | ".join(escaped)} |'


def _claims(table: Table, results: Mapping[str, Any]) -> list[str]:
  level = f'{intervals.LEVEL:.0%}'
  head = ['column', 'better', 'than', 'published', 'measured', f'{level} interval', 'sign', 'beyond noise', 'p (Holm)']
  found, adjusted = _intervals(table, results)
  by_heading: dict[str, list[list[str]]] = {}
  for index, claim in enumerate(table.claims):
    line = _claim(table, results, claim, found.get(index), adjusted.get(index, 1.0))
    by_heading.setdefault(_heading(table, claim), []).append(line)
  lines = []
  for heading, of_claims in sorted(by_heading.items(), reverse=True):  # claims of the paper first
    lines += ['', f'## {heading}', '', *markdown_table(head, of_claims)]
  return lines


def _intervals(table: Table, results: Mapping[str, Any]) -> tuple[dict[int, intervals.Interval], dict[int, float]]:
  """Return intervals and adjusted p-values of claims, by their index."""
  found = {index: pair for index, claim in enumerate(table.claims) if (pair := _interval(table, results, claim))}
  return found, dict(zip(found, intervals.holm([interval.p for interval in found.values()]), strict=True))


def differences(table: Table, results: Mapping[str, Any]) -> dict[Key, tuple[intervals.Interval, bool]]:
  """Return differences of means, and which are beyond the noise."""
  found, adjusted = _intervals(table, results)
  claims = {index: table.claims[index] for index, interval in found.items() if math.isfinite(interval.low)}
  return {
    (claim.column, claim.better, claim.than): (found[index], _is_sure(found[index], adjusted[index]))
    for index, claim in claims.items()
  }


def _is_sure(interval: intervals.Interval, adjusted: float) -> bool:
  return interval.is_sure and adjusted <= 1 - intervals.LEVEL


def _interval(table: Table, results: Mapping[str, Any], claim: Claim) -> intervals.Interval | None:
  """Compare the cells of a claim; None if they cannot be compared."""
  better, than = _compared(table, results, claim)
  if better is None or than is None or not intervals.is_known(better, than):
    return None
  if not any(counts := _at_chance(table, better, than, claim)):
    return intervals.difference(better, than, table.summary)
  runs = [len(better.finite), len(than.finite)]
  differs = claim.than in table.rows and counts[0] * runs[1] != counts[1] * runs[0]
  return intervals.of_counts(counts, runs) if differs else None


def _at_chance(table: Table, better: Measured, than: Measured, claim: Claim) -> list[int]:
  """Count the runs at chance of both cells of a claim."""
  column = table.columns[claim.column]
  return [num_at_chance(better, column), num_at_chance(than, column) if claim.than in table.rows else 0]


def _heading(table: Table, claim: Claim) -> str:
  if table.mark == 'none':
    return 'Comparisons'
  is_asked = claim.asked or published_difference(table, claim) is None
  return 'Other comparisons' if is_asked else 'What the paper claims'


def published_difference(table: Table, claim: Claim) -> float | None:
  """Compute the published difference; None if a number is missing."""
  first, second = (
    table.rows[row].published.get(claim.column) if row in table.rows else None for row in (claim.better, claim.than)
  )
  return None if first is None or second is None else first - second


def _compared(table: Table, results: Mapping[str, Any], claim: Claim) -> list[Measured | None]:
  """Return a claim's two cells; baselines take the other's shape."""
  both = [measured(table, results, row, claim.column) for row in (claim.better, claim.than)]
  trivial = table.columns[claim.column].trivial
  if claim.than in trivial and both[0] is not None:
    both[1] = constant(trivial[claim.than], both[0])
  return both


def _claim(
  table: Table, results: Mapping[str, Any], claim: Claim, interval: intervals.Interval | None, adjusted: float
) -> list[str]:
  """Format a claim; `adjusted` is its p-value among all claims."""
  column, published = table.columns[claim.column], published_difference(table, claim)
  better, than = _compared(table, results, claim)
  line = [claim.column, claim.better, claim.than, '' if published is None else f'{published:+.4g}']
  if better is None or than is None:
    return [*line, '', '', 'not measured', '', '']
  if any(counts := _at_chance(table, better, than, claim)):
    texts = [f'{count} of {len(cell.finite)}' for count, cell in zip(counts, (better, than), strict=True)]
    is_sure = interval is not None and adjusted <= 1 - intervals.LEVEL
    sign = 'not compared' if not is_sure else 'agrees' if counts[0] < counts[1] else 'opposite'
    ending = ['yes' if is_sure else '', '' if interval is None else _p_text(adjusted)]
    return [*line, '', f'none: {" and ".join(texts[: 1 + (claim.than in table.rows)])} at chance', sign, *ending]
  difference = intervals.summarise(better, table.summary) - intervals.summarise(than, table.summary)
  agrees = difference > 0 if column.better == 'max' else difference < 0
  line += [f'{difference:+.4g}']
  sign = 'agrees' if agrees else 'none' if difference == 0 else 'opposite'
  if interval is None:
    return [*line, 'none: one run', sign, 'not known', '']
  ends = f'{interval.low:+.4g} to {interval.high:+.4g}'
  return [*line, ends, sign, 'yes' if _is_sure(interval, adjusted) else 'no', _p_text(adjusted)]


def _p_text(p: float) -> str:
  return '< 0.001' if p < 0.001 else f'{p:.3f}'


def _facts(table: Table, results: Mapping[str, Any]) -> list[str]:
  """List the facts that a reader needs to judge the numbers."""
  runs, scale = results['runs'].values(), results['scale']
  meaning, choice = _summary_text(table)
  facts = [f'Scale: {scale}. {meaning}', f'The last step of each run counts; {choice}.']
  verdicts = published.facts(table, _verdicts(table, results))
  facts += verdicts
  pretrainings = (len(by_seed) for columns in results['cells'].values() for by_seed in columns.values())
  if max(pretrainings, default=1) == 1 and not verdicts:
    facts.append('One pre-training a row: its noise is not in the intervals.')
  method = '' if table.summary == BEST else ", and Welch's over seeds: each covers both"
  facts.append(f'Intervals: bootstrap over seeds and over the rows of the test set{method}.')
  if table.claims:
    facts.append(
      'Beyond noise: the interval excludes 0, and p, adjusted by Holm for all comparisons here, is at most .05.'
    )
  if any(set(CHANCE) & set(column.trivial) for column in table.columns.values()):
    chance = 'At chance: a run that is not two standard errors of the test rows better than the most frequent class'
    facts.append(f"{chance}. Cells with such runs are compared by their number (Boschloo's exact test), not by means.")
  if grouped := _over_groups(table, results):
    facts.append(f'Over seeds and groups of rows, which a jackknife leaves out in turn: {", ".join(grouped)}.')
  if alone := _over_seeds_alone(table, results):
    method = '' if table.summary == BEST else ", by Student's t"
    facts.append(f'Over seeds alone{method}: {", ".join(alone)}, of which no scores of single rows are kept.')
  if table.summary == BEST:
    facts.append('Intervals: each draw chooses again among the runs that it has; development rows are not drawn.')
  facts += _plateau_facts(table, results)
  facts += _notes(table)
  for digest, reason in results['failed'].items():
    facts.append(f'Run {digest} has no result: {reason}.')
  hours = sum(run.get('seconds', 0) for run in runs) / 3600
  if runs:
    versions = sorted({f'jax {run["versions"]["jax"]}' for run in runs if 'versions' in run})
    machines, commits = (_made_by(results, key) for key in ('machine', 'code'))
    facts.append(f'{len(results["runs"])} runs, {hours:.2f} hours: {machines}; {", ".join(versions)}.')
    facts.append(f'Code: {commits}. Digests of runs and data: cells.json.')
  return facts


def _notes(table: Table) -> list[str]:
  notes = [f'{name}: {column.note}.' for name, column in table.columns.items() if column.note]
  notes += [f'{name} stays empty: {column.empty}.' for name, column in table.columns.items() if column.empty]
  notes += [f'{name} stays empty: {row.empty}.' for name, row in table.rows.items() if row.empty]
  notes += [f'{names} stay empty: {reason}.' for reason, names in _without(table).items()]
  return notes + [
    f'{name} is the mean of {", ".join(column.over)}, seed by seed.'
    for name, column in table.columns.items()
    if column.over and not column.empty
  ]


def _without(table: Table) -> dict[str, str]:
  """Map reasons to empty cells, such as 'LM (XSum), masked LM (XSum)'."""
  by_reason: dict[str, dict[str, list[str]]] = {}
  for name, row in table.rows.items():
    for column, reason in row.without.items():
      if (row.folder or not row.empty) and not table.columns[column].empty:
        by_reason.setdefault(reason, {}).setdefault(name, []).append(column)
  return {
    reason: ', '.join(f'{row} ({", ".join(columns)})' for row, columns in rows.items())
    for reason, rows in by_reason.items()
  }


def _made_by(results: Mapping[str, Any], key: str) -> str:
  counts = cells.made_by(results, key) or {results[key] or cells.NOT_KNOWN: 0}
  named = {name or 'no repository': count for name, count in counts.items()}
  if len(named) == 1:
    return next(iter(named))
  return ' and '.join(f'{name} ({count} run{"s" * (count != 1)})' for name, count in named.items())


def _summary_text(table: Table) -> tuple[str, str]:
  """Describe the meaning of a cell, and what a score selected."""
  if table.summary not in CHOSEN:
    cell = f'A cell is the {table.summary} of its runs ± their standard deviation (number of runs).'
    return cell, 'no step, rate or seed was chosen by a score'
  chosen = [
    f'of {name} by {"most" if column.chosen_by[1] == "max" else "least"} {column.chosen_by[0]}'
    + (f' among {len(column.grid)} settings and their seeds' if column.grid else '')
    for name, column in table.columns.items()
    if column.chosen_by is not None and not column.empty
  ]
  rows = f'on rows that are neither learned nor reported: {"; ".join(chosen)}.'
  cell = f'A cell is the run that is best on dev, {rows}'
  if table.summary == BEST_POINT:
    cell = f'A cell is the mean of its runs ± their deviation at the setting that is best on dev in the mean, {rows}'
  return f'{cell} Where nothing is chosen it is the mean.', 'no test set was used to choose'


def _over_groups(table: Table, results: Mapping[str, Any]) -> list[str]:
  """List claimed columns whose metrics resample groups of examples."""
  claimed = {claim.column for claim in table.claims}
  grouped = {metric for run in results['runs'].values() for metric in run.get('groups', {})}
  return [name for name, column in table.columns.items() if name in claimed and column.metric in grouped]


def _over_seeds_alone(table: Table, results: Mapping[str, Any]) -> list[str]:
  """List the columns of claims in which test examples are not resampled."""
  unpaired = set()
  for claim in table.claims:
    better, than = _compared(table, results, claim)
    if better is not None and than is not None and not intervals.are_paired(better, than):
      unpaired.add(claim.column)
  return [name for name in table.columns if name in unpaired]


def _plateau_facts(table: Table, results: Mapping[str, Any]) -> list[str]:
  plateau = results['plateau']
  if not table.reference or not plateau:
    return []
  below = plateau['frequencies'] - plateau['loss']
  verdict = 'it learned from context' if below >= LEFT else 'IT DID NOT LEAVE THE PLATEAU, and the table says little'
  near = [f'{row} ({distance:.2f})' for row, distance in _below(table, results).items() if distance < LEFT]
  return [
    f'The pre-training of {table.reference!r} ends at {plateau["loss"]:.2f} nats a token, {below:.2f} below the best '
    f'guess without context ({plateau["frequencies"]:.2f}): {verdict}.',
    *([f'Less than {LEFT:.2f} below it, of their pre-trainings the nearest: {", ".join(near)}.'] if near else []),
  ]


def _below(table: Table, results: Mapping[str, Any]) -> dict[str, float]:
  """Map each row to its least distance below the plateau, in nats."""
  distances: dict[str, float] = {}
  trained = [row for row in results['cells'] if row in table.rows and table.rows[row].start != 'scratch']
  for row in trained:
    for digest in (digest for by_seed in results['cells'][row].values() for digests in by_seed for digest in digests):
      run = results['runs'].get(digest)
      while run is not None and table.plateau not in run.get('metrics', {}):
        run = results['runs'].get(run.get('source'))
      if run is not None:
        distance = results['plateau']['frequencies'] - math.log(run['metrics'][table.plateau])
        distances[row] = min(distances.get(row, math.inf), distance)
  return distances


def comma_separated(table: Table, results: Mapping[str, Any]) -> str:
  """Format one CSV line per cell.

  A line has the published and the measured number, deviation, number of runs, and the value of each run. If published
  numbers have several origins, it also has the origin.
  """
  others = footnotes(table)
  out = io.StringIO()
  writer = csv.writer(out, lineterminator='\n')
  heads = ['row', 'column', 'published', 'measured', 'deviation', 'runs', 'values', 'empty']
  verdicts = _verdicts(table, results)
  compares = any(row.folder for row in table.rows.values())
  writer.writerow(heads + ['origin'] * bool(others) + ['compared'] * compares)
  for row_name, row in table.rows.items():
    for name, column in table.columns.items():
      cell = measured(table, results, row_name, name)
      values = np.array([]) if cell is None else cell.finite
      number = '' if cell is None else f'{intervals.summarise(cell, table.summary):.6g}'
      spread = f'{values.std(ddof=1):.6g}' if len(values) > 1 else ''
      each = ' '.join(f'{value:.6g}' for value in values)
      reason = row.empty or column.empty or row.without.get(name) or ('' if len(values) else 'not run')
      line = [row_name, name, row.published.get(name, ''), number, spread, len(values), each, reason]
      source = _origin_text(origin(table, row_name, name)) if name in row.published else ''
      writer.writerow(line + [source] * bool(others) + [verdicts[row_name, name]] * compares)
  return out.getvalue()


def draw(table: Table, results: Mapping[str, Any], file: files.Path) -> None:
  """Plot the table, with a remark on the plateau."""
  keys = ((row, name) for name in table.columns for row in table.rows)
  cells = {key: cell for key in keys if (cell := measured(table, results, *key)) is not None}
  warning = any('PLATEAU' in fact for fact in _plateau_facts(table, results))
  remark = 'The pre-training learned nothing from context' if warning else ''
  picture.draw(table, cells, file, remark=remark)
