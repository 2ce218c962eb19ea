"""Compile each pre-training config for the TPU slice that it names.

    python -m benchmarks.slices [--only=bert/base.py] [--minutes=240] [--count]
    python -m benchmarks.slices --check [--only=bert] [--minutes=240] [--out=runs/slices.json]
    python -m benchmarks.slices --heads

Fills experiments/slices.json row by row, and writes experiments/SLICES.md from it. The state of a device and the hours
at 40 % of the peak are counted. libtpu (requirements/plan.txt) compiles the steps without a TPU and gives the peak
memory of the training step and the evaluations, and, except for v5p, what a device sends and the cycles of the training
step. Rows that have them are not compiled again, so the same command resumes; `--count` compiles nothing. A compilation
of more than 30 minutes or 20 GiB is aborted.

`--check` compiles rows again that have all figures: a peak and cycles may differ by 3 %, the peak of the evaluations
and what is sent of each kind by 3 % or .05 GiB. It exits with 1 if more differs or rows are left. Checked rows are
stored in `--out`, so the same command resumes; it starts again at another commit, or with other versions or stored
figures.

`--heads` writes the slices, their largest hours and the cost of a lost chip into the heads of the configs.
"""

import argparse
import importlib.metadata
import json
import math
import os
import pathlib
import re
import resource
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax import config
from plm_jax.planning import compile as compiling
from plm_jax.planning import report

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE, PAGE = ROOT / 'experiments' / 'slices.json', ROOT / 'experiments' / 'SLICES.md'
CHECKED = ROOT / 'runs' / 'slices.json'
SECONDS, GIB = 1_800, 20
CLOSE, SMALL = 0.03, 0.05  # a share, and GiB


class Row(NamedTuple):
  """A config below experiments/, with its arguments, and the slice named in its header."""

  config: str
  topology: str

  @property
  def name(self) -> str:
    return f'{self.config} on {self.topology}'


ROWS = tuple(
  Row(*line.split())
  for line in """
bert/base.py v5e:4x4
bert/large.py v5e:8x8
roberta/pretrain.py:base v5e:16x16
roberta/pretrain.py:large v5e:16x16
albert/pretrain.py:base v5e:8x8
albert/pretrain.py:xxlarge v5e:16x16
xlnet/base.py v5e:4x4
xlnet/large.py v5e:16x16
electra/small.py v5e:2x2
electra/base.py v5e:4x4
electra/large.py v5e:16x16
deberta/base.py:base v5e:8x8
deberta/v3.py:base v5e:8x8
deberta/v3.py:large v5e:16x16
spanbert/pretrain.py v5e:8x8
distilbert/base.py v5e:4x4
bart/base.py v5e:4x4
bart/large.py v5e:16x16
t5/pretrain.py v5e:4x4
t5/pretrain.py:large v5e:8x8
t5/pretrain.py:3b v5p:4x4x4
t5/pretrain.py:11b v5p:4x8x8
t5/ul2.py v5e:4x4
gpt/gpt.py v5e:4x4
gpt/gpt2.py:gpt2 v5e:4x4
gpt/gpt2.py:gpt2-xl v5e:8x8
gpt/gpt3.py:gpt3-small v5e:8x16
gpt/gpt3.py:gpt3-xl v5e:16x16
gpt/gpt3.py:gpt3-175b v5p:8x8x16
llama/pretrain.py:llama-7b v5p:4x8x8
llama/pretrain.py:llama-65b v5p:8x8x16
palm/pretrain.py:palm-8b v5p:4x8x8
palm/pretrain.py:palm-540b v5p:16x16x16
glm/base.py v5e:4x4
glm/large.py v5e:4x4
glm/10b.py v5p:4x8x8
elmo/pretrain.py v5e:4x4
ulmfit/pretrain.py v5e:2x2
word2vec/skipgram.py v5e:1x1
""".strip().splitlines()
)


def read() -> dict[str, Any]:
  """Read the versions, and the figures by name of a row."""
  return json.loads(FILE.read_text()) if FILE.exists() else {'libtpu': '', 'jax': '', 'rows': {}}


def write(known: Mapping[str, Any]) -> None:
  """Write both files, with rows in the order of `ROWS`."""
  rows = {row.name: known['rows'][row.name] for row in ROWS if row.name in known['rows']}
  FILE.write_text(json.dumps({**known, 'rows': rows}, indent=1) + '\n')
  PAGE.write_text(page({**known, 'rows': rows}))


def planned(row: Row, *, count: bool) -> dict[str, Any] | str:
  """Plan a row by `plm-jax plan`; return figures or an error."""
  words = ['plm_jax', 'plan', f'--config=experiments/{row.config}', f'--topology={row.topology}', '--json']
  words += ['--state_only'] * count

  def limit() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (GIB * 2**30, GIB * 2**30))

  try:
    done = subprocess.run([sys.executable, '-m', *words], cwd=ROOT, env={**os.environ, 'JAX_PLATFORMS': 'cpu'},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SECONDS,
                          preexec_fn=limit)  # fmt: skip
  except subprocess.TimeoutExpired:
    return f'not within {SECONDS // 60} minutes'
  if done.returncode:
    return f'exit {done.returncode}: {done.stderr.strip().splitlines()[-1:] or ["no word"]}'
  return json.loads(done.stdout)


def counted(found: Mapping[str, Any]) -> dict[str, Any]:
  """Select the figures that need no compiler; no hours if the size of an epoch is unknown."""
  return report.counted(found) | {'hours': rounded(found['hours']['40 %']) if 'hours' in found else None}


def rounded(hours: float) -> float:
  """Round to a tenth, or to two digits below 1."""
  return round(hours, 1) if hours >= 1 else float(f'{hours:.2g}')


def compiled(found: Mapping[str, Any]) -> dict[str, Any]:
  """Select the figures of the compiler."""
  train, evaluations = found['train'], found['evaluate'].values()
  said = {
    'fits': train['fits'] and all(one['fits'] for one in evaluations),
    'peak_gib': round(train['peak_gib'] if train['fits'] else train['needed_gib'] or 0, 2),
    'evaluation_gib': round(max((one['peak_gib'] or one['needed_gib'] or 0 for one in evaluations), default=0), 2),
  }
  if 'collectives' in train:
    said['sent_gib'] = {kind: round(one['gib'], 2) for kind, one in train['collectives'].items()}
  if 'cycles' in train:
    said |= {'cycles': train['cycles'], 'without_cycles': train['without_cycles']}
  hours = {key: rounded(found['hours'][key]) for key in ('cycles', 'links') if key in found.get('hours', {})}
  return said | ({'hours_by': hours} if hours else {})


def whole(row: Mapping[str, Any]) -> bool:
  """Return True if a row has all that the compiler can give; programs for v5p cannot be read."""
  return 'peak_gib' in row and ('cycles' in row or 'sent_gib' not in row)


def largest(row: Mapping[str, Any]) -> tuple[float, str]:
  """Return the most hours of a row and what gives them."""
  by = {'at 40 % of peak': row['hours'], **{f'by {key}': hours for key, hours in row.get('hours_by', {}).items()}}
  words = max(by, key=lambda key: by[key])
  return by[words], words


def page(known: Mapping[str, Any]) -> str:
  """Write SLICES.md."""
  heads = 'config', 'slice', 'mesh, rules', 'rows a device', 'state', 'peak', 'evaluation', 'of', 'sent a step', '40 %'
  heads = *heads, 'cycles', 'links', 'without cycles'
  by = f' (libtpu {known["libtpu"]}, jax {known["jax"]})' if known['libtpu'] else ''
  lines = [
    '# Slices',
    '',
    'The TPUs that each pre-training config names in its head: GiB a device, GiB that a device sends in a step, and',
    'hours: at 40 % of the peak, by the cycles that the compiler estimates at the clock of the published peak, and by',
    'the bytes sent at the published bandwidth of the links. The largest, in bold, is what heads name. 40 % is an',
    'assumption; the others are lower bounds, since the runs in the last column have no cycles, and transfers may not',
    'overlap. State and hours at 40 % are counted; the compiler, without a TPU, gives the rest. Nothing was measured.',
    'Cycles of v5p are unknown because its programs cannot be read, and of other rows because they were not compiled',
    'since cycles are stored. Peaks of rows without cycles may be those of programs that saved more in norms and',
    'activations (decision 105), and be lower now.',
    f'Made by `python -m benchmarks.slices`{by}.',
    '',
    f'| {" | ".join(heads)} |',
    f'|{"---|" * 3}{"---:|" * 9}---|',
  ]
  for row in ROWS:
    if row.name in known['rows']:
      lines.append(f'| {" | ".join(_cells(row, known["rows"][row.name]))} |')
  return '\n'.join([*lines, ''])


def _cells(row: Row, one: Mapping[str, Any]) -> Iterator[str]:
  mesh = ' x '.join(str(size) for size in one['mesh'].values() if size > 1) or '1'
  yield from (f'`{row.config}`', row.topology, f'{mesh}, {one["rules"]}')
  yield f'{one["rows"]}' + (f' x {one["accumulate"]}' if one['accumulate'] > 1 else '')
  yield f'{one["state_gib"]:.2f}'
  if 'peak_gib' in one:
    yield f'{one["peak_gib"]:.2f}' + ('' if one['fits'] else ' DOES NOT FIT')
    yield f'{one["evaluation_gib"]:.2f}'
  else:
    yield from (one.get('why', 'not compiled'), '')
  yield f'{one["limit_gib"]:g}'
  yield ', '.join(f'{kind} {gib:g}' for kind, gib in one.get('sent_gib', {}).items() if gib)
  hours = {'40 %': one['hours'], **one.get('hours_by', {})}
  most = max((figure for figure in hours.values() if figure is not None), default=None)
  for key in ('40 %', 'cycles', 'links'):
    figure = hours.get(key)
    unknown = 'unknown' if key == 'cycles' and one['hours'] is not None else ''
    word = unknown if figure is None else report.short(figure)
    yield f'**{word}**' if figure is not None and figure == most else word
  yield ', '.join(f'{count} {name}' for name, count in one.get('without_cycles', {}).items())


def fill(rows: list[Row], *, minutes: float, count: bool) -> None:
  """Add the missing figures of rows."""
  known, began = read(), time.monotonic()
  for row in rows:
    if row.name in known['rows'] and (count or whole(known['rows'][row.name])):
      continue
    if time.monotonic() - began > 60 * minutes:
      break
    found = planned(row, count=count)
    if isinstance(found, str):
      print(f'{row.name}: {found}', flush=True)
      if row.name in known['rows']:
        known['rows'][row.name]['why'] = f'not compiled: {found}'
    else:
      known['rows'][row.name] = counted(found) | ({} if count else compiled(found))
      if not count:
        known |= {name: importlib.metadata.version(name) for name in ('libtpu', 'jax')}
      print(f'{row.name}: {known["rows"][row.name]}', flush=True)
    write(known)
  write(known)


def differences(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
  """List the figures that differ from the stored ones."""
  pairs = {
    'peak': (stored['peak_gib'], now['peak_gib'], 0.0),
    'evaluation': (stored['evaluation_gib'], now['evaluation_gib'], SMALL),
  }
  if 'cycles' in stored and 'cycles' in now:
    pairs['gigacycles'] = (stored['cycles'] / 1e9, now['cycles'] / 1e9, 0.0)
  sent = stored.get('sent_gib', {})
  said = now.get('sent_gib', {}) if sent else {}
  pairs |= {kind: (sent.get(kind, 0.0), said.get(kind, 0.0), SMALL) for kind in sorted({*sent, *said})}
  return [
    f'{name} {found:g}{"" if "cycles" in name else " GiB"}, stored {was:g}'
    for name, (was, found, least) in pairs.items()
    if abs(found - was) > max(CLOSE * was, least) + 1e-9
  ]


def check(rows: Sequence[Row], *, minutes: float = math.inf, out: pathlib.Path | None = None) -> tuple[int, int]:
  """Compile stored rows again.

  Args:
    rows: of them those that have been compiled.
    minutes: no row begins after so many.
    out: file of what has been checked; None remembers nothing.

  Returns:
    The number of rows that differ, and of those that are left.
  """
  known, began = read()['rows'], time.monotonic()
  compiled_rows = [row for row in rows if whole(known.get(row.name, {}))]
  checked = _checked(out)
  for row in compiled_rows:
    stored = known[row.name]
    if checked['rows'].get(row.name, {}).get('stored') == stored or time.monotonic() - began > 60 * minutes:
      continue
    found = planned(row, count=False)
    said = [found] if isinstance(found, str) else differences(stored, compiled(found))
    print(f'{row.name}: {"; ".join(said) or "as stored"}', flush=True)
    checked['rows'][row.name] = {'stored': stored, 'said': said, 'compiled': not isinstance(found, str)}
    if out is not None:
      out.parent.mkdir(parents=True, exist_ok=True)
      out.write_text(json.dumps(checked, indent=1) + '\n')
  done = [one for row in compiled_rows if (one := checked['rows'].get(row.name)) and one['stored'] == known[row.name]]
  return sum(bool(one['said']) for one in done), len(compiled_rows) - len(done)


def _checked(out: pathlib.Path | None) -> dict[str, Any]:
  """Read the rows checked at this commit with these versions."""
  commit = subprocess.run(['git', 'rev-parse', 'HEAD'], cwd=ROOT, capture_output=True, text=True, check=False).stdout
  now = {'commit': commit.strip(), **{name: importlib.metadata.version(name) for name in ('libtpu', 'jax')}}
  if out is not None and out.exists():
    before: dict[str, Any] = json.loads(out.read_text())
    if {**before, 'rows': {}} == {**now, 'rows': {}}:
      return {**now, 'rows': {name: one for name, one in before['rows'].items() if one['compiled']}}
  return {**now, 'rows': {}}


def heads(known: Mapping[str, Any]) -> None:
  """Write slices, hours and the cost of a lost chip into the heads of configs."""
  for name in dict.fromkeys(row.config.partition(':')[0] for row in ROWS):
    file = ROOT / 'experiments' / name
    rows = {row: known[row.name] for row in ROWS if row.config.partition(':')[0] == name}
    text = file.read_text()
    paragraph = re.search(r'^Hardware: .*?(?=\n\n|\nExpect)', text, re.DOTALL | re.MULTILINE)
    if paragraph is None:
      raise SystemExit(f'{file}: the head has no paragraph "Hardware: ..."')
    words = ' '.join(paragraph[0].split())
    old = re.search(
      r' Slices?(, at 40 % of peak|, cycles unknown)?: .*?\.(?= [A-Z]|$)( A lost chip costs .*?\.(?= [A-Z]|$))?', words
    )
    rest = words.replace(old[0], '') if old else words
    made = textwrap.wrap(f'{rest} {" ".join(sentences(rows))}', 120, break_long_words=False, break_on_hyphens=False)
    file.write_text(text.replace(paragraph[0], '\n'.join(made)))


def sentences(rows: Mapping[Row, Mapping[str, Any]]) -> Iterator[str]:
  """Write the slices of a config file with their hours, and the cost of a lost chip."""
  names = {row: f'`{size}`' if (size := row.config.partition(':')[2]) else '' for row in rows}
  unknown = {row for row, one in rows.items() if 'cycles' not in one and one['hours'] is not None}
  words, lost = [], {}
  for row, one in rows.items():
    words.append(f'{names[row]} {row.topology}'.strip())
    if one['hours'] is None:
      continue
    hours, by = largest(one)
    words[-1] += f', {duration(hours)} {by}' + ', cycles unknown' * (row in unknown and len(unknown) < len(rows))
    settings = config.resolve(config.load(f'experiments/{row.config}'))
    if settings['steps']:
      seconds = hours * 3600 / settings['steps']
      lost[names[row]] = math.ceil(compiling.lost_minutes(settings, seconds) - 1e-6)
  plural, all_unknown = 's' * (len(rows) > 1), ', cycles unknown' * (len(unknown) == len(rows))
  yield f'Slice{plural}{all_unknown}: {"; ".join(words)}.'
  if lost:
    by_size = len(set(lost.values())) > 1
    minutes = list(dict.fromkeys(f'{most} ({size})' if size and by_size else f'{most}' for size, most in lost.items()))
    numbers = ' or '.join([', '.join(minutes[:-1])] * (len(minutes) > 1) + minutes[-1:])
    yield f'A lost chip costs at most {numbers} minute{"s" * (numbers != "1")}.'


def duration(hours: float) -> str:
  """Write hours, or days from two on."""
  amount, unit, least = (hours / 24, 'day', 20) if hours >= 48 else (hours, 'hour', 10)
  figure = (
    f'{amount:.0f}' if amount >= least else f'{amount:.1f}'.removesuffix('.0') if amount >= 1 else f'{amount:.2g}'
  )
  return f'{figure} {unit}{"s" * (figure != "1")}'


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--only', default='', help='rows whose config begins so')
  parser.add_argument('--minutes', type=float, default=240, help='no row begins after so many')
  parser.add_argument('--count', action='store_true', help='compile nothing')
  parser.add_argument('--check', action='store_true', help='compile again what stands there')
  parser.add_argument('--heads', action='store_true', help='write the heads of the configs')
  parser.add_argument('--out', type=pathlib.Path, default=CHECKED, help='what --check has checked')
  arguments = parser.parse_args()
  rows = [row for row in ROWS if row.config.startswith(arguments.only)]
  if not rows:
    parser.error(f'--only={arguments.only}: no row begins so; {", ".join(sorted({row.config for row in ROWS}))}')
  if arguments.heads:
    heads(read()['rows'])
    return 0
  if not arguments.count and not any(importlib.metadata.distributions(name='libtpu')):
    parser.error('needs libtpu, which compiles for TPUs: pip install -r requirements/plan.txt; --count needs none')
  if arguments.check:
    wrong, left = check(rows, minutes=arguments.minutes, out=arguments.out)
    print(f'{wrong} of {len(rows)} rows differ' + (f', {left} are left: the same command goes on' if left else ''))
    return int(wrong > 0 or left > 0)
  fill(rows, minutes=arguments.minutes, count=arguments.count)
  return 0


if __name__ == '__main__':
  sys.exit(main())
