"""The page of a report, one file that needs no network."""

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
from plm_jax.studies.report import asked, figures, found, html_parts, sections
from plm_jax.studies.report.found import Found, Run

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
  """Writes the page.

  Args:
    folders: of runs, sweeps and tables, or that hold such folders.
    out: the page.
    by: dotted keys; runs with the same values of them are one curve. Without any, those of the same config but for the
      seed.
    metric: that the tables show; None takes that of `best` of the first run that has one, else 'loss'.
    more: patterns of metrics that are drawn beside those that always are.
    ask: of how many curves the first run is asked for its noise and for samples; answers that are kept show anyway.
    title: of the page.
    command: that made it, for the reader.

  Returns:
    The file.

  Raises:
    ConfigError: no such folder, nothing in it, a key, a metric or a pattern that no run has.
  """
  target = files.path(out)
  if files.is_folder(target):
    raise ConfigError(f'--out={out} is a folder: name a file, such as report.html')
  run_paths.check_new_folder(target.parent, name='the folder of --out')
  what = found.find(folders, figures.wanted(more, metric))
  _check_patterns(what.runs, more)
  metric = _headline(what.runs, metric)
  what = _without_copies(what, metric)
  groups = curve_sets.named(curve_sets.grouped(what.runs, by), by) if what.runs else {}
  answers = _answers(groups, ask)
  parts = _parts(what, groups, metric, answers)
  drawn = figures.make(groups, figures.drawn(what.runs, metric))
  page = _page(title or _title(what, groups), _summary(what.runs), parts, drawn, command)
  files.make_folder(target.parent)
  files.write_text(target, page)
  count = len(what.runs)
  log.info(f'{target}: {count} run{"s" * (count != 1)}, {files.size(target) / 1000:,.0f} kB')
  return target


def _without_copies(what: Found, metric: str) -> Found:
  """Each run once; a copy is a remark."""
  runs, copies = curve_sets.apart(what.runs, lambda run: run.metrics.lines.get(metric))
  names = {run.folder: run.name for run in what.runs}
  told = [f'{names[copy]} is left out: {curve_sets.COPY % names[original]}' for copy, original in copies.items()]
  for line in told:
    log.warning(line)
  return what._replace(runs=runs, remarks=[*what.remarks, *told])


def _headline(runs: Sequence[Run], metric: str | None) -> str:
  """The metric of the tables."""
  if metric is None:
    return next((run.best[0] for run in runs if run.best and run.best[0] in run.metrics.lines), 'loss')
  names = sorted({name for run in runs for name in run.metrics.names})
  if runs and metric not in names:
    raise ConfigError(
      f'--metric={metric}: no run has it.{errors.suggest(metric, names)} There are: {", ".join(names)}.'
    )
  return metric


def _check_patterns(runs: Sequence[Run], patterns: Sequence[str]) -> None:
  """Refuses a pattern of --curves that no metric of the runs fits; runs without metrics have nothing to choose from."""
  names = sorted({name for run in runs for name in run.metrics.names})
  for one in patterns:
    if names and not fnmatch.filter(names, one):
      raise ConfigError(f'--curves={one}: no run has it.{errors.suggest(one, names)} There are: {", ".join(names)}.')


def _answers(groups: Mapping[str, Sequence[Run]], ask: int) -> dict[str, Mapping[str, Any]]:
  """The answers of the first run of each curve that has a vocabulary: those that are kept, and up to `ask` new ones."""
  answers: dict[str, Mapping[str, Any]] = {}
  new = 0
  for name, own in groups.items():
    run = next((run for run in own if files.is_folder(RunFolder(run.folder).vocab)), None)
    if run is None:
      continue
    answer = asked.kept(run.folder)
    if not answer and new < ask:
      new += 1
      signals.check()
      log.info(f'{run.name}: asking it for its noise and for samples')
      answer = asked.ask(run.folder)
    if answer:
      answers[name if len(own) == 1 or run.name == name else f'{name}, by {run.name}'] = answer
  return answers


def _parts(
  what: Found, groups: Mapping[str, Sequence[Run]], metric: str, answers: Mapping[str, Mapping[str, Any]]
) -> list[str]:
  """The sections of the page, those that have something to say."""
  remarks = [*what.remarks, *(f'{run.name}: {remark}' for run in what.runs for remark in run.remarks)]
  parts = [html_parts.section('remarks', 'Remarks', html_parts.bullets(remarks))] if remarks else []
  if what.runs:
    parts += [
      html_parts.section('curves', 'Curves', files.read_text(HERE / 'curves.html')),
      sections.runs(groups, metric),
      sections.configs(groups),
      sections.noise(answers),
      sections.samples(answers),
    ]
  parts += [sections.tables(what), sections.sweeps(what.sweeps)]
  parts += [sections.environment(what.runs)] if what.runs else []
  return [part for part in parts if part]


def _title(what: Found, groups: Mapping[str, Sequence[Run]]) -> str:
  if len(what.runs) == 1:
    return what.runs[0].name
  counts = {'run': len(what.runs), 'config': len(groups), 'sweep': len(what.sweeps), 'table': len(what.tables)}
  return ', '.join(f'{count} {noun}{"s" * (count > 1)}' for noun, count in counts.items() if count)


def _summary(runs: Sequence[Run]) -> str:
  """How many runs are finished, and what they took, in a sentence."""
  if not runs:
    return ''
  done = sum(run.state == 'finished' for run in runs)
  seconds = sum(html_parts.number(run.result.get('seconds')).key or 0 for run in runs)
  devices = ', '.join(dict.fromkeys(run.devices for run in runs if run.devices))
  verb = {'diverged': '', 'no end yet': ' has', 'stopped': ' was'}.get(runs[0].state, ' is')
  said = f'The run{verb} {runs[0].state}' if len(runs) == 1 else f'{done} of {len(runs)} runs are finished'
  took = f' {clock(seconds)} of training{" on " if devices else ""}{devices}.' if seconds else ''
  return f'{said}.{took}'


def _page(title: str, summary: str, parts: Sequence[str], drawn: Mapping[str, Any], command: str) -> str:
  heads = [re.search(r'<section id="(\w+)"><h2>(.*?)</h2>', part) for part in parts]
  links = ''.join(f'<a href="#{head[1]}">{head[2]}</a>' for head in heads if head)
  now = datetime.datetime.now(datetime.UTC).strftime('%Y-%m-%d %H:%M UTC')
  made = f'plm_jax, {now}.' + (f' <code>{html_parts.text(command)}</code>' if command else '')
  holes = {
    'TITLE': html_parts.text(title),
    'SUMMARY': html_parts.text(summary),
    'STYLE': files.read_text(HERE / 'page.css'),
    'LINKS': links,
    'PARTS': ''.join(parts),
    'MADE': made,
    'DATA': html_parts.data(drawn),
    'SCRIPT': files.read_text(HERE / 'page.js'),
  }
  frame = files.read_text(HERE / 'page.html')
  return re.sub(r'\{\{(\w+)\}\}', lambda hole: holes[hole[1]], frame)
