"""Write the sections of a report except the curves: runs, configs, noise, samples, environment, sweeps."""

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from plm_jax.cli.progress import clock
from plm_jax.studies import compare, curve_sets
from plm_jax.studies.report import html_parts, papers
from plm_jax.studies.report.contents import Contents, Run
from plm_jax.studies.report.html_parts import Cell

Groups = Mapping[str, Sequence[Run]]
LONGEST = 100  # characters of a value in a table
MASKS = ('', 'may look at')  # labels of the lines of an attention mask
MARKS = {'changed': 'changed', 'predicted': 'predicted', 'special': 'special token'}


def runs(groups: Groups, metric: str) -> str:
  """Build the section of all runs, with averages over seeds."""
  heads = ['run', 'curve', 'seed', 'state', 'step', f'best {metric}', 'at step', f'last {metric}']
  heads += ['parameters', 'tokens', 'time', 'remarks']
  rows = [_run(name, run, metric) for name, group in groups.items() for run in group]
  averages = ''
  if any(len(group) > 1 for group in groups.values()):
    averages = '<h3>Averages over seeds</h3>' + _averages(groups, metric)
  return html_parts.section('runs', 'Runs', html_parts.table(heads, rows, label='runs') + averages)


def _run(group: str, run: Run, metric: str) -> list[Cell]:
  best, best_step, last = ends(run, metric)
  seconds = html_parts.number(run.result.get('seconds')).key
  return [
    Cell(run.name),
    Cell(group),
    html_parts.number(run.settings.get(curve_sets.SEED)),
    Cell(run.state),
    html_parts.number(run.step),
    html_parts.number(best),
    html_parts.number(best_step),
    html_parts.number(last),
    html_parts.number(run.result.get('parameters')),
    html_parts.number(run.result.get('tokens')),
    html_parts.NOTHING if seconds is None else Cell(clock(seconds), seconds),
    Cell('; '.join(run.remarks)),
  ]


def ends(run: Run, metric: str) -> tuple[float | None, int | None, float | None]:
  """Return the best value, its step and the last value, or None."""
  if metric not in run.metrics.lines:
    return None, None, None
  steps, values = run.metrics.lines[metric]
  if run.best is None or run.best[0] != metric:
    return None, None, float(values[-1])
  index = int(values.argmax() if run.best[1] == 'max' else values.argmin())
  return float(values[index]), int(steps[index]), float(values[-1])


def _averages(groups: Groups, metric: str) -> str:
  rows = []
  for name, group in groups.items():
    with_metric = [
      compare.Run(run.name, run.folder, run.settings, run.best, lines[metric], run.metrics.diverged.get(metric))
      for run in group
      if metric in (lines := run.metrics.lines)
    ]
    if with_metric:
      row = compare.ends(name, with_metric, metric)
      numbers = ('n', 'step', 'best', 'best_deviation', 'last', 'last_deviation')
      rows.append([Cell(name), *(html_parts.number(row.get(key)) for key in numbers)])
  heads = ['curve', 'runs', 'step', f'best {metric}', 'deviation', f'last {metric}', 'deviation']
  return html_parts.table(heads, rows, label='averages over seeds')


def configs(groups: Groups) -> str:
  """Build the section of config differences, with a column for each curve."""
  all_runs = [run for group in groups.values() for run in group]
  keys = curve_sets.differing(all_runs)
  body = ''
  if keys:
    firsts = {name: group[0].settings for name, group in groups.items()}
    rows = [[Cell(key), *_values([settings.get(key, _ABSENT) for settings in firsts.values()])] for key in keys]
    body = html_parts.table(['key', *firsts], rows, label='differences between the configs', left=True)
    note = f'{len(keys)} keys differ; the most common value is grey.'
  elif len(all_runs) > 1:
    note = 'The configs differ only in the seed.'
  else:
    note = 'One run.'
  same = [key for key in all_runs[0].settings if key not in keys and key != curve_sets.SEED]
  rest = [[Cell(key), Cell(_text(all_runs[0].settings[key]))] for key in same]
  equal_keys = html_parts.table(['key', 'value'], rest, label='equal keys')
  body += html_parts.folded(f'{len(same)} equal keys', equal_keys)
  return html_parts.section('configs', 'Differences between the configs', body, note=note)


_ABSENT = object()


def _values(values: Sequence[Any]) -> list[Cell]:
  """Build the cells of a key; the most common value is quiet."""
  texts = ['–' if value is _ABSENT else _text(value) for value in values]
  usual = max(dict.fromkeys(texts), key=texts.count)
  numbers = [html_parts.number(value).key for value in values]
  is_shared = texts.count(usual) > 1
  return [Cell(text, key, quiet=is_shared and text == usual) for text, key in zip(texts, numbers, strict=True)]


def _text(value: Any) -> str:
  shown = value or "''" if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
  return shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}…'


def environment(all_runs: Sequence[Run]) -> str:
  """Build the section of devices, versions and data."""

  def versions(run: Run) -> Mapping[str, str]:
    by_package = run.result.get('versions')
    return {'devices': run.devices, **(by_package if isinstance(by_package, dict) else {})}

  def data(run: Run) -> Mapping[str, str]:
    shown = {key: value for key, value in run.settings.items() if re.search(r'(^|\.)data\.(path|split)$', key)}
    digests = {key.removesuffix('_digest') + ' checksum': value[:12] for key, value in run.digests.items()}
    return {**{key: value for key, value in shown.items() if value}, **digests}

  body = _grouped(all_runs, versions, 'environment') + '<h3>Data</h3>' + _grouped(all_runs, data, 'data')
  return html_parts.section('environment', 'Environment', body)


def _grouped(all_runs: Sequence[Run], facts_of: Callable[[Run], Mapping[str, Any]], label: str) -> str:
  """Build a table with one row for runs with equal facts."""
  groups: dict[Hashable, tuple[Mapping[str, Any], list[str]]] = {}
  for run in all_runs:
    facts = facts_of(run)
    groups.setdefault(json.dumps(facts, sort_keys=True, default=str), (facts, []))[1].append(run.name)
  heads = list(dict.fromkeys(key for facts, _ in groups.values() for key in facts))
  rows = [
    [Cell('all' if len(groups) == 1 else ', '.join(names)), *(Cell(str(facts.get(head, ''))) for head in heads)]
    for facts, names in groups.values()
  ]
  return html_parts.table(['runs', *heads], rows, label=label)


def noise(samples_of: Mapping[str, Mapping[str, Any]]) -> str:
  """Build the section that shows noise on a text."""
  noises = {name: own['noise'] for name, own in samples_of.items() if isinstance(own.get('noise'), dict)}
  if not noises:
    return ''
  key = ' '.join(f'<span class="{kind}">{text}</span>' for kind, text in MARKS.items())
  same: dict[str, list[str]] = {}
  for name, own in noises.items():
    same.setdefault(json.dumps(own), []).append(name)
  body = f'<p class="note">{key}</p>'
  body += ''.join(_noise(', '.join(names), noises[names[0]]) for names in same.values())
  return html_parts.section('noise', 'Noise', body)


def _noise(name: str, own: Mapping[str, Any]) -> str:
  title = f'<h3>{html_parts.text(name)}</h3>'
  if 'remark' in own:
    return f'{title}<p>{html_parts.text(own["remark"])}</p>'
  lines: list[str] = []
  hidden: list[str] = []
  for line in own['lines']:
    (hidden if line['label'] in MASKS else lines).append(_line(line))
  folded = html_parts.folded('attention mask', f'<dl class="tokens mask">{"".join(hidden)}</dl>') if hidden else ''
  rates = f'<dt>measured</dt><dd>{html_parts.text(own["rates"])}</dd>'
  about = f'<p class="note">objective {html_parts.text(own["objective"])}</p>'
  return f'{title}{about}<dl class="tokens">{"".join(lines)}{rates}</dl>{folded}'


def _line(line: Mapping[str, Any]) -> str:
  def word(text: str, mark: str) -> str:
    return f'<span class="{html_parts.text(mark)}">{html_parts.text(text)}</span>' if mark else html_parts.text(text)

  gap = '<span class="gap"> </span>' if len(line['gap']) > 1 else ' '
  shown = gap.join(' '.join(word(text, mark) for text, mark in item) for item in line['items'])
  return f'<dt>{html_parts.text(line["label"])}</dt><dd>{shown}</dd>'


def samples(samples_of: Mapping[str, Mapping[str, Any]]) -> str:
  """Build the section of filled blanks and generated texts."""
  body = ''
  for name, own in samples_of.items():
    shown = _filled(own['blanks']) if own.get('blanks') else _written(own['written']) if own.get('written') else ''
    remarks = html_parts.bullets(own['remarks']) if own.get('remarks') else ''
    if shown or remarks:
      body += f'<h3>{html_parts.text(name)}</h3>{shown}{remarks}'
  return html_parts.section('samples', 'Samples', body) if body else ''


def _filled(blanks: Mapping[str, Any]) -> str:
  top = max((len(candidates) for candidates in blanks['found']), default=0)
  heads = ['blank', 'original', *(f'{rank}.' for rank in range(1, top + 1))]
  rows = []
  for index, (hidden, candidates) in enumerate(zip(blanks['hidden'], blanks['found'], strict=False), start=1):
    cells = [Cell(f'{word}  {share:.1%}', None) for word, share in candidates]
    rows.append([Cell(str(index), index), Cell(hidden), *cells, *[html_parts.NOTHING] * (top - len(cells))])
  return f'<blockquote>{html_parts.text(blanks["text"])}</blockquote>' + html_parts.table(
    heads, rows, label='filled blanks'
  )


def _written(written: Mapping[str, Any]) -> str:
  prompt = html_parts.text(written['prompt'] + ' → ' * written.get('apart', False))
  texts = ''.join(
    f'<dt>{html_parts.text(method)}</dt><dd><span class="prompt">{prompt}</span>{html_parts.text(text)}</dd>'
    for method, text in written['texts']
  )
  return f'<dl class="written">{texts}</dl>'


def sweeps(by_name: Mapping[str, Mapping[str, Any]]) -> str:
  """Build the section of the points of sweeps, best first."""
  body = ''.join(_sweep(name, table) for name, table in by_name.items())
  return html_parts.section('sweeps', 'Sweeps', body) if body else ''


def _sweep(name: str, table: Mapping[str, Any]) -> str:
  rows = table.get('rows', ())
  keys = list(dict.fromkeys(key for row in rows for key in row['point']))
  heads = [*keys, f'{table.get("metric")}, median', 'mean', 'deviation', 'n', 'trials', 'remarks']
  body = [
    [
      *(papers.cell(str(row['point'].get(key, '–'))) for key in keys),
      *(html_parts.number(row.get(key)) for key in ('score', 'mean', 'deviation', 'n')),
      Cell(' '.join(map(str, row.get('numbers', ())))),
      Cell('; '.join(dict.fromkeys(row.get('reasons', ())))),
    ]
    for row in rows
  ]
  best = table.get('best')
  command, sentence = (str(best.get(key) or '') if isinstance(best, dict) else '' for key in ('command', 'said'))
  sentence = sentence or 'The best keys as a command'  # an earlier version stored only the median
  shown = f'<p>{html_parts.text(sentence)}:</p><pre>{html_parts.text(command)}</pre>' if command else ''
  return f'<h3>{html_parts.text(name)}</h3>{html_parts.table(heads, body, label=f"sweep {name}")}{shown}'


def tables(shown: Contents) -> str:
  """Build the section of tables of papers, with published and measured numbers."""
  body = ''.join(papers.as_html(text, label=name) for name, text in shown.tables.items())
  return html_parts.section('tables', 'Tables of papers', body) if body else ''
