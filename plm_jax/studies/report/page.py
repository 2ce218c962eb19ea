"""Write the page of a report, one file that needs no network."""

import datetime
import fnmatch
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_jax.cli import signals
from plm_jax.cli.progress import clock
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import files, run_paths
from plm_jax.io.run_paths import RunFolder
from plm_jax.studies import curve_sets
from plm_jax.studies.report import contents, figures, html_parts, run_samples, sections
from plm_jax.studies.report.contents import Contents, Run

log = logging.getLogger(__name__)

HERE = Path(__file__).parent


def report(
  folders: Sequence[files.Where],
  out: files.Where,
  *,
  by: Sequence[str] = (),
  metric: str | None = None,
  more: Sequence[str] = (),
  ask: int = 0,
  title: str | None = None,
  command: str = '',
) -> Path:
  """Write the page.

  Returns the file. Raises ConfigError: no such folder, nothing in it, or a key, metric or pattern that no run has.

  Args:
    folders: folders of runs, sweeps and tables, or folders that contain them.
    by: dotted keys; runs with the same values are one curve. Without any, runs that differ only in the seed are.
    metric: metric of the tables; None means that of `best` of the first run that has one, else 'loss'.
    more: patterns of additional metrics to plot.
    ask: number of curves of whose first run samples are computed; stored ones are shown anyway.
  """
  target = files.path(out)
  if files.is_folder(target):
    raise ConfigError(f'--out={out} is a folder: name a file, such as {out}/report.html')
  run_paths.check_new_folder(target.parent, name='the folder of --out')
  everything = contents.find(folders, figures.wanted(more, metric))
  _check_patterns(everything.runs, more)
  metric = _headline(everything.runs, metric)
  shown = _without_copies(everything, metric)
  groups = curve_sets.named(curve_sets.grouped(shown.runs, by), by) if shown.runs else {}
  parts = _parts(shown, groups, metric, _samples(groups, ask))
  curves = figures.make(groups, figures.drawn(shown.runs, metric))
  page = _page(title or _title(shown, groups), _summary(shown.runs), parts, curves, command)
  files.make_folder(target.parent)
  files.write_text(target, page)
  count = len(shown.runs)
  log.info(f'{target}: {count} run{"s" * (count != 1)}, {files.size(target) / 1000:,.0f} kB')
  return target


def _without_copies(everything: Contents, metric: str) -> Contents:
  """Remove copies of runs, with a remark."""
  runs, copies = curve_sets.apart(everything.runs, lambda run: run.metrics.lines.get(metric))
  names = {run.folder: run.name for run in everything.runs}
  remarks = [f'{names[copy]} is left out: {curve_sets.COPY % names[original]}' for copy, original in copies.items()]
  for remark in remarks:
    log.warning(remark)
  return everything._replace(runs=runs, remarks=[*everything.remarks, *remarks])


def _headline(runs: Sequence[Run], metric: str | None) -> str:
  """Choose the metric of the tables."""
  if metric is None:
    return next((run.best[0] for run in runs if run.best and run.best[0] in run.metrics.lines), 'loss')
  names = sorted({name for run in runs for name in run.metrics.names})
  if runs and metric not in names:
    raise ConfigError(f'--metric={metric}: no run has it.{errors.suggest(metric, names)} Metrics: {", ".join(names)}.')
  return metric


def _check_patterns(runs: Sequence[Run], patterns: Sequence[str]) -> None:
  """Raise ConfigError for a pattern of --curves that matches no metric."""
  names = sorted({name for run in runs for name in run.metrics.names})
  for pattern in patterns:
    if names and not fnmatch.filter(names, pattern):
      hint = errors.suggest(pattern, names)
      raise ConfigError(f'--curves={pattern}: no run has it.{hint} Metrics: {", ".join(names)}.')


def _samples(groups: Mapping[str, Sequence[Run]], limit: int) -> dict[str, Mapping[str, Any]]:
  """Collect each curve's samples; compute up to `limit` missing ones."""
  samples: dict[str, Mapping[str, Any]] = {}
  computed = 0
  for name, group in groups.items():
    run = next((run for run in group if files.is_folder(RunFolder(run.folder).vocab)), None)
    if run is None:
      continue
    of_run = run_samples.stored(run.folder)
    if not of_run and computed < limit:
      computed += 1
      signals.check()
      log.info(f'{run.name}: computing noise and samples')
      of_run = run_samples.compute(run.folder)
    if of_run:
      samples[name if len(group) == 1 or run.name == name else f'{name}, by {run.name}'] = of_run
  return samples


def _parts(
  shown: Contents, groups: Mapping[str, Sequence[Run]], metric: str, samples: Mapping[str, Mapping[str, Any]]
) -> list[str]:
  """Build the non-empty sections of the page."""
  remarks = [*shown.remarks, *(f'{run.name}: {remark}' for run in shown.runs for remark in run.remarks)]
  parts = [html_parts.section('remarks', 'Remarks', html_parts.bullets(remarks))] if remarks else []
  if shown.runs:
    parts += [
      html_parts.section('curves', 'Curves', files.read_text(HERE / 'curves.html')),
      sections.runs(groups, metric),
      sections.configs(groups),
      sections.noise(samples),
      sections.samples(samples),
    ]
  parts += [sections.tables(shown), sections.sweeps(shown.sweeps)]
  parts += [sections.environment(shown.runs)] if shown.runs else []
  return [part for part in parts if part]


def _title(shown: Contents, groups: Mapping[str, Sequence[Run]]) -> str:
  if len(shown.runs) == 1:
    return shown.runs[0].name
  counts = {'run': len(shown.runs), 'config': len(groups), 'sweep': len(shown.sweeps), 'table': len(shown.tables)}
  return ', '.join(f'{count} {noun}{"s" * (count > 1)}' for noun, count in counts.items() if count)


def _summary(runs: Sequence[Run]) -> str:
  """Describe in a sentence how many runs are finished, and their time."""
  if not runs:
    return ''
  done = sum(run.state == 'finished' for run in runs)
  seconds = sum(html_parts.number(run.result.get('seconds')).key or 0 for run in runs)
  devices = ', '.join(dict.fromkeys(run.devices for run in runs if run.devices))
  verb = {'diverged': '', 'no result yet': ' has', 'stopped': ' was'}.get(runs[0].state, ' is')
  state = f'The run{verb} {runs[0].state}' if len(runs) == 1 else f'{done} of {len(runs)} runs are finished'
  duration = f' {clock(seconds)} of training{" on " if devices else ""}{devices}.' if seconds else ''
  shares = runs[0].result.get('goodput') if len(runs) == 1 else None
  if isinstance(shares, dict) and (total := html_parts.number(shares.get('total')).key):
    parts = {
      name: html_parts.number(value).key or 0 for name, value in shares.items() if name not in ('share', 'total')
    }
    told = ', '.join(f'{name} {100 * value / total:.1f} %' for name, value in parts.items() if value >= total / 1000)
    duration += f' Of {clock(total)} since it began: {told}.'
  return f'{state}.{duration}'


def _page(title: str, summary: str, parts: Sequence[str], curves: Mapping[str, Any], command: str) -> str:
  heads = [re.search(r'<section id="(\w+)"><h2>(.*?)</h2>', part) for part in parts]
  links = ''.join(f'<a href="#{head[1]}">{head[2]}</a>' for head in heads if head)
  now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M UTC')
  footer = f'plm_jax, {now}.' + (f' <code>{html_parts.text(command)}</code>' if command else '')
  holes = {
    'TITLE': html_parts.text(title),
    'SUMMARY': html_parts.text(summary),
    'STYLE': files.read_text(HERE / 'page.css'),
    'LINKS': links,
    'PARTS': ''.join(parts),
    'MADE': footer,
    'DATA': html_parts.data(curves),
    'SCRIPT': files.read_text(HERE / 'page.js'),
  }
  frame = files.read_text(HERE / 'page.html')
  return re.sub(r'\{\{(\w+)\}\}', lambda hole: holes[hole[1]], frame)
