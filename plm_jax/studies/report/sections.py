"""The parts of a report's page but for the curves: the runs, their configs, noise, samples, environment, sweeps."""

import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from plm_jax.cli.progress import clock
from plm_jax.studies import compare, curve_sets
from plm_jax.studies.report import html_parts, papers
from plm_jax.studies.report.found import Found, Run
from plm_jax.studies.report.html_parts import Cell

Groups = Mapping[str, Sequence[Run]]
LONGEST = 100  # characters of a value in a table
MASKS = ('', 'allowed', 'permutation mask')  # labels of the lines of a mask of attention
MARKS = {'changed': 'changed', 'predicted': 'predicted', 'special': 'special token'}


def runs(groups: Groups, metric: str) -> str:
  """Every run: where it stands, what came out, what it cost; and where the runs of each curve ended."""
  heads = ['run', 'curve', 'seed', 'state', 'step', f'best {metric}', 'at step', f'last {metric}']
  heads += ['parameters', 'tokens', 'time', 'remarks']
  rows = [_run(name, run, metric) for name, own in groups.items() for run in own]
  together = ''
  if any(len(own) > 1 for own in groups.values()):
    together = '<h3>Seeds together</h3>' + _together(groups, metric)
  return html_parts.section('runs', 'Runs', html_parts.table(heads, rows, label='runs') + together)


def _run(group: str, run: Run, metric: str) -> list[Cell]:
  best, at, last = ends(run, metric)
  seconds = html_parts.number(run.result.get('seconds')).key
  return [
    Cell(run.name),
    Cell(group),
    html_parts.number(run.settings.get(curve_sets.SEED)),
    Cell(run.state),
    html_parts.number(run.step),
    html_parts.number(best),
    html_parts.number(at),
    html_parts.number(last),
    html_parts.number(run.result.get('parameters')),
    html_parts.number(run.result.get('tokens')),
    html_parts.NOTHING if seconds is None else Cell(clock(seconds), seconds),
    Cell('; '.join(run.remarks)),
  ]


def ends(run: Run, metric: str) -> tuple[float | None, int | None, float | None]:
  """The best value of a metric, its step, and the last value; None where they are not known."""
  if metric not in run.metrics.lines:
    return None, None, None
  steps, values = run.metrics.lines[metric]
  if run.best is None or run.best[0] != metric:
    return None, None, float(values[-1])
  place = int(values.argmax() if run.best[1] == 'max' else values.argmin())
  return float(values[place]), int(steps[place]), float(values[-1])


def _together(groups: Groups, metric: str) -> str:
  """The table of `plm-jax compare`."""
  rows = []
  for name, own in groups.items():
    there = [
      compare.Run(
        run.name,
        run.folder,
        run.settings,
        run.best,
        run.metrics.lines[metric],
        run.metrics.diverged.get(metric),
      )
      for run in own
      if metric in run.metrics.lines
    ]
    if there:
      row = compare.ends(name, there, metric)
      numbers = ('n', 'step', 'best', 'best_deviation', 'last', 'last_deviation')
      rows.append([Cell(name), *(html_parts.number(row.get(key)) for key in numbers)])
  heads = ['curve', 'runs', 'step', f'best {metric}', 'deviation', f'last {metric}', 'deviation']
  return html_parts.table(heads, rows, label='seeds together')


# Configs and environment ---------------------------------------------------------------------------------------------


def configs(groups: Groups) -> str:
  """The keys in which the configs differ, a column for each curve, and all others folded."""
  every = [run for own in groups.values() for run in own]
  keys = curve_sets.differing(every)
  body = ''
  if keys:
    firsts = {name: own[0].settings for name, own in groups.items()}
    rows = [[Cell(key), *_values([own.get(key, _ABSENT) for own in firsts.values()])] for key in keys]
    body = html_parts.table(['key', *firsts], rows, label='differences between the configs', left=True)
    note = f'{len(keys)} keys differ; grey is what most have.'
  elif len(every) > 1:
    note = 'The configs differ in nothing but the seed.'
  else:
    note = 'One run.'
  same = [key for key in every[0].settings if key not in keys and key != curve_sets.SEED]
  rest = [[Cell(key), Cell(_said(every[0].settings[key]))] for key in same]
  shown = html_parts.table(['key', 'value'], rest, label='keys that are the same')
  body += html_parts.folded(f'{len(same)} keys that are the same in all', shown)
  return html_parts.section('configs', 'Differences between the configs', body, note=note)


_ABSENT = object()


def _values(values: Sequence[Any]) -> list[Cell]:
  """The values of a key; those that most configs have are quiet."""
  said = ['–' if value is _ABSENT else _said(value) for value in values]
  usual = max(dict.fromkeys(said), key=said.count)
  numbers = [html_parts.number(value).key for value in values]
  many = said.count(usual) > 1
  return [Cell(text, key, quiet=many and text == usual) for text, key in zip(said, numbers, strict=True)]


def _said(value: Any) -> str:
  shown = value or "''" if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
  return shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}…'


def environment(every: Sequence[Run]) -> str:
  """Devices and versions, and what was read: a row for the runs that agree."""

  def versions(run: Run) -> Mapping[str, str]:
    found = run.result.get('versions')
    return {'devices': run.devices, **(found if isinstance(found, dict) else {})}

  def read(run: Run) -> Mapping[str, str]:
    shown = {key: value for key, value in run.settings.items() if re.search(r'(^|\.)data\.(path|split)$', key)}
    digests = {key.removesuffix('_digest') + ' digest': value[:12] for key, value in run.digests.items()}
    return {**{key: value for key, value in shown.items() if value}, **digests}

  body = _agreeing(every, versions, 'environment') + '<h3>Data</h3>' + _agreeing(every, read, 'data')
  return html_parts.section('environment', 'Environment', body)


def _agreeing(every: Sequence[Run], ask: Callable[[Run], Mapping[str, Any]], label: str) -> str:
  """A table with a row for all the runs of which the same is true."""
  found: dict[Hashable, tuple[Mapping[str, Any], list[str]]] = {}
  for run in every:
    own = ask(run)
    found.setdefault(json.dumps(own, sort_keys=True, default=str), (own, []))[1].append(run.name)
  heads = list(dict.fromkeys(key for own, _ in found.values() for key in own))
  rows = [
    [Cell('all' if len(found) == 1 else ', '.join(names)), *(Cell(str(own.get(head, ''))) for head in heads)]
    for own, names in found.values()
  ]
  return html_parts.table(['runs', *heads], rows, label=label)


# Noise and samples ---------------------------------------------------------------------------------------------------


def noise(answers: Mapping[str, Mapping[str, Any]]) -> str:
  """What the objective of each run that was asked makes of a text of it."""
  found = {name: own['noise'] for name, own in answers.items() if isinstance(own.get('noise'), dict)}
  if not found:
    return ''
  key = ' '.join(f'<span class="{kind}">{text}</span>' for kind, text in MARKS.items())
  alike: dict[str, list[str]] = {}
  for name, own in found.items():
    alike.setdefault(json.dumps(own), []).append(name)
  body = f'<p class="note">{key}</p>'
  body += ''.join(_noise(', '.join(names), found[names[0]]) for names in alike.values())
  return html_parts.section('noise', 'What the noise does to a text', body)


def _noise(name: str, found: Mapping[str, Any]) -> str:
  title = f'<h3>{html_parts.text(name)}</h3>'
  if 'remark' in found:
    return f'{title}<p>{html_parts.text(found["remark"])}</p>'
  lines: list[str] = []
  hidden: list[str] = []
  for line in found['lines']:
    shown = _line(line)
    (hidden if line['label'] in MASKS else lines).append(shown)
  folded = (
    html_parts.folded('the mask of attention', f'<dl class="tokens mask">{"".join(hidden)}</dl>') if hidden else ''
  )
  rates = f'<dt>measured</dt><dd>{html_parts.text(found["rates"])}</dd>'
  about = f'<p class="note">objective {html_parts.text(found["objective"])}</p>'
  return f'{title}{about}<dl class="tokens">{"".join(lines)}{rates}</dl>{folded}'


def _line(line: Mapping[str, Any]) -> str:
  """A label and its words, each with its mark."""

  def word(text: str, mark: str) -> str:
    return f'<span class="{html_parts.text(mark)}">{html_parts.text(text)}</span>' if mark else html_parts.text(text)

  gap = '<span class="gap"> </span>' if len(line['gap']) > 1 else ' '
  shown = gap.join(' '.join(word(*one) for one in item) for item in line['items'])
  return f'<dt>{html_parts.text(line["label"])}</dt><dd>{shown}</dd>'


def samples(answers: Mapping[str, Mapping[str, Any]]) -> str:
  """Blanks that runs filled, and texts that they wrote."""
  body = ''
  for name, own in answers.items():
    shown = _filled(own['blanks']) if own.get('blanks') else _written(own['written']) if own.get('written') else ''
    remarks = html_parts.bullets(own['remarks']) if own.get('remarks') else ''
    if shown or remarks:
      body += f'<h3>{html_parts.text(name)}</h3>{shown}{remarks}'
  return html_parts.section('samples', 'Samples', body) if body else ''


def _filled(blanks: Mapping[str, Any]) -> str:
  top = max((len(found) for found in blanks['found']), default=0)
  heads = ['blank', 'stood there', *(f'{place}.' for place in range(1, top + 1))]
  rows = []
  for place, (hidden, found) in enumerate(zip(blanks['hidden'], blanks['found'], strict=False), start=1):
    cells = [Cell(f'{word}  {share:.1%}', None) for word, share in found]
    rows.append([Cell(str(place), place), Cell(hidden), *cells, *[html_parts.NOTHING] * (top - len(cells))])
  return f'<blockquote>{html_parts.text(blanks["text"])}</blockquote>' + html_parts.table(
    heads, rows, label='filled blanks'
  )


def _written(written: Mapping[str, Any]) -> str:
  prompt = html_parts.text(written['prompt'] + ' → ' * written.get('apart', False))
  texts = ''.join(
    f'<dt>{html_parts.text(how)}</dt><dd><span class="prompt">{prompt}</span>{html_parts.text(text)}</dd>'
    for how, text in written['texts']
  )
  return f'<dl class="written">{texts}</dl>'


# Sweeps and tables ---------------------------------------------------------------------------------------------------


def sweeps(found: Mapping[str, Mapping[str, Any]]) -> str:
  """The points of sweeps, the best first."""
  body = ''.join(_sweep(name, own) for name, own in found.items())
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
  command, said = (str(best.get(key) or '') if isinstance(best, dict) else '' for key in ('command', 'said'))
  said = said or 'The best keys as a command'  # a sweep of an earlier version has the median alone
  shown = f'<p>{html_parts.text(said)}:</p><pre>{html_parts.text(command)}</pre>' if command else ''
  return f'<h3>{html_parts.text(name)}</h3>{html_parts.table(heads, body, label=f"sweep {name}")}{shown}'


def tables(found: Found) -> str:
  """Tables of papers, published and measured numbers side by side."""
  body = ''.join(papers.as_html(text, label=name) for name, text in found.tables.items())
  return html_parts.section('tables', 'Tables of papers', body) if body else ''
