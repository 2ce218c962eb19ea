"""Measure what grows with more chips, longer sequences, wider and deeper networks, and larger vocabularies.

    python -m benchmarks.growth --out=DIR [--config=experiments/bert/base.py] [--rows=8] [--only=chips,pods]
    python -m benchmarks.growth --out=DIR --page

chips    The training step compiled for 1, 4, 16, 64, 256 and 1,024 chips of TPU v5e (the last as four slices), with the
         same number of sequences per chip: peak GiB, GiB sent and cycles of a chip according to the compiler, and the
         most tokens per second of a chip at these cycles. It needs libtpu (requirements/plan.txt), but no chip.
         Figures that grow are named.
devices  Seconds of a step of the config's `quick` form on 1, 2 and 4 simulated devices at a fixed batch size: the
         overhead of distributing a step, since the devices share the cores.
sizes    Cycles, GiB and operations of a step on one chip by length, width, depth and vocabulary size, with the exponent
         of the last doubling.
pods     LLaMA 7B on 64, 128 and 256 chips of v5e, and GPT-3 175B on 1,024, 2,048 and 4,096 chips of v5p, each with the
         batch of its paper: GiB, seconds of a step by each estimate of `plm-jax plan`, and days of the run.

Prints tables and plots DIR/growth.png. Parts in DIR/growth.json and programs in DIR/programs.json are not measured
again, so the same command resumes. `--page` measures nothing: it writes experiments/GROWTH.md, growth.json and
growth.png from DIR.
"""

import argparse
import importlib.metadata
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use('Agg')

from matplotlib import pyplot as plt
from rich.console import Console
from rich.table import Table

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / 'experiments' / 'GROWTH.md'
SLICES = {1: ('v5e:1x1', 1), 4: ('v5e:2x2', 1), 16: ('v5e:4x4', 1), 64: ('v5e:8x8', 1), 256: ('v5e:16x16', 1),
          1024: ('v5e:16x16', 4)}  # fmt: skip
CLOCK = 1.5e9  # cycles a second of TPU v5e: four units of 128 x 128 reach its 197 TFLOP/s in bfloat16 so
FLAT = 1.05  # what grows by less from one number of chips to the next counts as flat
LENGTHS, WIDTHS, DEPTHS, WORDS = (128, 256, 512, 1024), (384, 768, 1536), (6, 12, 24), (8_000, 16_000, 32_000, 64_000)
PODS = {  # config -> slice: changes that it needs to fit
  'llama/pretrain.py:llama-7b': {'v5e:8x8': ('--config.accumulate=2',), 'v5e:8x16': (), 'v5e:16x16': ()},
  'gpt/gpt3.py:gpt3-175b': {'v5p:8x8x16': (), 'v5p:8x16x16': (), 'v5p:16x16x16': ('--config.sharding.mesh.model=8',)},
}
DIGITS = {'chips': 0, 'rows': 0, 'tokens': 0, 'seconds': 3, 'days': 1}  # first word of a column -> decimals, else 2
RISING = ('GiB at most', 'GiB sent', 'Mcycles')  # what is compared from one number of chips to the next
WHY = {
  'GiB sent': 'in a slice a chip sends the gradients once, however many chips there are. Between slices the compiler '
  'adds them up within each slice, hands a part of the sum from each chip to the other slices, and gathers the whole '
  'again: two transfers within the slice for one. What the hosts carry from slice to slice is not in the figure.',
  'Mcycles': 'a chip cuts the part that it hands to the other slices out of the sum, which the compiler counts; '
  'sending has no cycles.',
  'length': 'operations grow by more than the length, since those of attention grow with its square, and cycles by '
  'less, since some are the same at any length, as those of the update of the parameters.',
  'width': 'the products of a layer grow with the square of the width, the vectors between them with the width alone.',
  'depth': 'layers have the same operations, and embeddings and head are paid once; why the compiler counts fewer '
  'cycles a layer where there are many is not known.',
  'vocabulary': 'the head computes a logit for each word at the masked positions only, a small part of the step.',
}
Point = dict[str, float]


def command(*words: str, devices: int = 1) -> str:
  """Run `plm-jax` in a new process and return its output."""
  flags = f'--xla_force_host_platform_device_count={devices}'
  env = {**os.environ, 'JAX_PLATFORMS': 'cpu', 'XLA_FLAGS': flags}
  done = subprocess.run([sys.executable, '-m', 'plm_jax', *words], cwd=ROOT, env=env, stdin=subprocess.DEVNULL,
                        capture_output=True, text=True, check=False)  # fmt: skip
  if done.returncode:
    raise SystemExit(f'{" ".join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}')
  return done.stdout


def planned(
  arguments: argparse.Namespace, chips: int, *, rows: int, words: int = 30_522, keys: Mapping[str, Any]
) -> Point:
  """Plan a training step with N sequences per chip by the compiler."""
  topology, slices = SLICES[chips]
  flags = [f'--config.{key}={value}' for key, value in keys.items()]
  target = [f'--config={arguments.config}', f'--topology={topology}', f'--slices={slices}', f'--vocab_size={words}']
  flags = ['--json', f'--config.data.batch_size={rows * chips}', *flags]
  return once(arguments.out, (*target, *flags), lambda found: _point(found, chips))


def once(out: pathlib.Path, words: Sequence[str], select: Callable[[Mapping[str, Any]], Point]) -> Point:
  """Select the figures of a plan, or read those of an earlier run."""
  file = out / 'programs.json'
  known: dict[str, Point] = json.loads(file.read_text()) if file.exists() else {}
  name = ' '.join(('plan', *words))
  if name not in known:
    known[name] = select(json.loads(command('plan', *words)))
    file.write_text(json.dumps(known, indent=1))
  return known[name]


def _point(found: Mapping[str, Any], chips: int) -> Point:
  """Select the figures of a plan."""
  step = found['train']
  if not step['fits']:
    return {'TFLOP': found['tflop_per_step'] / chips}
  return {
    'GiB at most': step['peak_gib'],
    'GiB of state': found['state']['gib'],
    'GiB sent': sum(one['gib'] for one in step.get('collectives', {}).values()),
    'Mcycles': (step.get('cycles') or math.nan) / 1e6,
    'TFLOP': found['tflop_per_step'] / chips,
  }


def chips_of(arguments: argparse.Namespace) -> dict[str, Point]:
  """Measure by number of chips."""
  keys = {'accumulate': 1, 'eval': '{}', 'best': None, 'data.length': arguments.length}
  found = {str(chips): planned(arguments, chips, rows=arguments.rows, keys=keys) for chips in SLICES}
  for point in found.values():
    if 'Mcycles' in point:
      point['tokens/s at most'] = arguments.rows * arguments.length * CLOCK / (1e6 * point['Mcycles'])
  return found


def devices_of(arguments: argparse.Namespace) -> dict[str, Point]:
  """Measure by number of simulated devices.

  It is the fastest logged segment of steps.
  """
  found = {}
  with tempfile.TemporaryDirectory() as temporary:
    vocab = pathlib.Path(temporary) / 'vocab'
    command('vocab', 'train', '--source=pydocs', '--name=byte_bpe', '--size=2000', f'--out={vocab}')
    keys = {'vocab.path': vocab, 'steps': 40, 'log_every': 5, 'save_every': 40, 'eval_every': 40, 'log': '()'}
    flags = [f'--config.{key}={value}' for key, value in {**keys, 'data.batch_size': 32, 'best': None}.items()]
    for devices in (1, 2, 4):
      folder = pathlib.Path(temporary) / str(devices)
      command('train', f'--config={arguments.config}:quick', f'--workdir={folder}', *flags, devices=devices)
      rows = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
      speed = max(row['tokens_per_second'] for row in rows[1:] if 'tokens_per_second' in row)
      result = json.loads((folder / 'result.json').read_text())
      seconds = result['tokens'] / result['step'] / speed
      found[str(devices)] = {'seconds a step': seconds, 'tokens/s': speed, 'load': os.getloadavg()[0]}
  return found


def sizes_of(arguments: argparse.Namespace) -> dict[str, dict[str, Point]]:
  """Measure by quantity and size."""

  def one(rows: int = 8, words: int = 30_522, **keys: Any) -> Point:
    overrides = {'max_length': max(LENGTHS)} | keys.pop('overrides', {})
    fixed = {'accumulate': 1, 'eval': '{}', 'best': None, 'model.overrides': overrides, 'data.length': 128}
    return planned(arguments, 1, rows=rows, words=words, keys=fixed | keys)

  return {
    'length': {str(size): one(**{'data.length': size}) for size in LENGTHS},
    'width': {
      str(size): one(overrides=dict(hidden_dim=size, num_heads=size // 64, mlp_dim=4 * size)) for size in WIDTHS
    },
    'depth': {str(size): one(overrides=dict(num_layers=size)) for size in DEPTHS},
    'vocabulary': {str(size): one(words=size) for size in WORDS},
  }


def pods_of(arguments: argparse.Namespace) -> dict[str, dict[str, Point]]:
  """Measure by config and slice."""
  return {
    config: {
      topology: once(
        arguments.out, (f'--config=experiments/{config}', f'--topology={topology}', '--json', *changes), _pod
      )
      for topology, changes in slices.items()
    }
    for config, slices in PODS.items()
  }


def _pod(found: Mapping[str, Any]) -> Point:
  """Select the figures of a plan for a pod."""
  step, seconds = found['train'], found['seconds_per_step']
  if not step['fits']:
    return {'chips': found['chips'], 'rows': found['rows_per_device']}
  point = {
    'chips': found['chips'],
    'rows': found['rows_per_device'],
    'GiB at most': step['peak_gib'],
    'GiB of state': found['state']['gib'],
  }
  if 'collectives' in step:
    point['GiB sent'] = sum(one['gib'] for one in step['collectives'].values())
  point |= {f'seconds, {key}': seconds[key] for key in ('40 %', 'cycles', 'links') if key in seconds}
  return point | {'days': found['hours'][found['largest']] / 24}


def exponent(points: Mapping[str, Point], name: str) -> float:
  """Compute the exponent of the last doubling.

  It is 1 if the cost doubles with the size.
  """
  (x, before), (y, after) = list(points.items())[-2:]
  if name not in before or name not in after:
    return math.nan
  return math.log(after[name] / before[name]) / math.log(int(y) / int(x))


def rises(points: Mapping[str, Point], name: str) -> list[str]:
  """Name the first rise, such as '64 chips x 1.31'."""
  pairs = zip(points, list(points)[1:], strict=False)
  ratios = {b: points[b][name] / points[a][name] for a, b in pairs if points[a].get(name) and points[b].get(name)}
  return [f'{int(chips):,} chips x {ratio:.2f}' for chips, ratio in ratios.items() if ratio > FLAT]


def show(console: Console, title: str, points: Mapping[str, Point], *, last: Mapping[str, str] | None = None) -> None:
  """Print the table of one part; `last` is one more row."""
  names = list(dict.fromkeys(name for point in points.values() for name in point))
  table = Table(title=title)
  for name in ('', *names):
    table.add_column(name, justify='right')
  for label, point in points.items():
    table.add_row(label, *(f'{point[name]:,.3f}' if name in point else 'does not fit' for name in names))
  if last:
    table.add_row(last[''], *(last.get(name, '') for name in names))
  console.print(table)


def draw(found: Mapping[str, Any], file: pathlib.Path) -> None:
  """Plot figures by number of chips, and cycles by size."""
  panels = {name: panel for name, panel in {'chips': _draw_chips, 'sizes': _draw_sizes}.items() if name in found}
  figure, axes = plt.subplots(1, max(len(panels), 1), figsize=(5.5 * len(panels) + 1, 4.4), squeeze=False)
  for axis, (name, panel) in zip(axes[0], panels.items(), strict=False):
    axis.set(xscale='log', yscale='log')
    panel(axis, found[name])
    axis.minorticks_off()
    axis.grid(alpha=0.3)
    axis.legend(loc='upper center', bbox_to_anchor=(0.5, -0.15), ncols=4, fontsize='small')
  figure.tight_layout()
  figure.savefig(file, dpi=130)


def _draw_chips(axis: Any, by_number: Mapping[str, Point]) -> None:
  for name in (*RISING, 'GiB of state'):
    points = [(int(x), point[name]) for x, point in by_number.items() if point.get(name)]
    if points:
      axis.plot(*zip(*points, strict=True), marker='o', label=name)
  axis.set(title='a chip of TPU v5e, same rows on each', xlabel='chips')
  axis.set_xticks(list(SLICES), [f'{chips:,}' for chips in SLICES])


def _draw_sizes(axis: Any, by_what: Mapping[str, Mapping[str, Point]]) -> None:
  for name, by_size in by_what.items():
    points = [(int(x), point['Mcycles']) for x, point in by_size.items() if 'Mcycles' in point]
    if points:
      (x0, y0), *_ = points
      axis.plot([x / x0 for x, _ in points], [y / y0 for _, y in points], marker='o', label=name)
  ticks = [1, 2, 4, 8]
  axis.set(title='cycles of a step on one chip, times those at the smallest size', xlabel='times the smallest size')
  axis.set_xticks(ticks, ticks)
  axis.set_yticks(ticks, ticks)


PARTS = {'chips': chips_of, 'devices': devices_of, 'sizes': sizes_of, 'pods': pods_of}


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--out', type=pathlib.Path, required=True)
  parser.add_argument('--config', default='experiments/bert/base.py')
  parser.add_argument('--rows', type=int, default=8, help='on each chip')
  parser.add_argument('--length', type=int, default=512, help='of a row, in the part `chips`')
  parser.add_argument('--page', action='store_true', help='make the page in experiments/ of what is there')
  parser.add_argument('--only', default=','.join(PARTS), help='parts, by commas')
  arguments = parser.parse_args()
  arguments.out.mkdir(parents=True, exist_ok=True)
  kept = arguments.out / 'growth.json'
  found: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
  if arguments.page:
    PAGE.with_name('growth.json').write_text(json.dumps(found, indent=1) + '\n')
    PAGE.write_text(page(found))
    draw(found, PAGE.with_name('growth.png'))
    return
  left = [name for name in arguments.only.split(',') if name not in found]
  if left and not any(importlib.metadata.distributions(name='libtpu')):
    parser.error('needs libtpu, which compiles for TPUs: pip install -r requirements/plan.txt')
  for name in left:
    found |= {'config': arguments.config, 'rows': arguments.rows, 'length': arguments.length}
    found |= {name: PARTS[name](arguments)}
    found |= {name: importlib.metadata.version(name) for name in ('libtpu', 'jax')}
    kept.write_text(json.dumps(found, indent=1))
  report(found, arguments.config)
  draw(found, arguments.out / 'growth.png')


def page(found: Mapping[str, Any]) -> str:
  """Write GROWTH.md."""
  return '\n'.join([*_head(found), *_chips(found), *_devices(found), *_sizes(found), *_pods(found)])


_EARLIER = (
  ' The programs are those of before norms and activations were computed again and layers unrolled (decision 105): at '
  '16 rows on each of 16 chips that made 83.7 M cycles of 144.9 M, and 3.94 GiB of 9.43.'
)


def _head(found: Mapping[str, Any]) -> list[str]:
  return [
    '# Growth',
    '',
    *_wrapped(
      f'What a training step of `{found["config"]}` costs as chips are added, and as rows, width, depth and vocabulary '
      f'grow: {found["rows"]} rows of {found["length"]} on each chip of TPU v5e, as the compiler for TPUs says it '
      f'without one (libtpu {found["libtpu"]}, jax {found["jax"]}). Made by `python -m benchmarks.growth`. Tokens a '
      f'second at most are those of the cycles at {CLOCK / 1e9:g} GHz, the clock of its published peak: a bound '
      'by the program of one chip, and no time, since gathers, scatters and waiting for others have no cycles.'
      + _EARLIER
      * found.get('earlier', False)
    ),
    '',
    '![figures of a chip against the number of chips, cycles against sizes](growth.png)',
    '',
  ]


def _chips(found: Mapping[str, Any]) -> Iterator[str]:
  """Describe the cost of a chip and the first rises."""
  points = found.get('chips', {})
  if points:
    yield from ('## Chips', '', *_table('chips', points), '')
  for name in RISING if points else ():
    where = rises(points, name)
    yield from _wrapped(f'- {name}: {"; ".join(where)}; {WHY[name]}' if where else f'- {name}: flat.')
  if points:
    yield ''


def _devices(found: Mapping[str, Any]) -> Iterator[str]:
  if points := found.get('devices'):
    yield from ('## Simulated devices', '')
    yield from _wrapped(
      'The fastest steps of the `quick` form, 32 rows in all, on the cores of one machine; the load is the number of '
      'processes that wanted these cores, and where it is above their number the times are of a busy machine:'
    )
    yield from ('', *_table('devices', points), '')


def _sizes(found: Mapping[str, Any]) -> Iterator[str]:
  """Tabulate costs by size, with the exponents of the last doubling."""
  if 'sizes' in found:
    yield from ('## Sizes', '', 'One chip, 8 rows, of 128 where length does not grow; exponents of the last two.', '')
  for name, points in found.get('sizes', {}).items():
    last = ', '.join(f'{column} {exponent(points, column):.2f}' for column in ('Mcycles', 'GiB at most', 'TFLOP'))
    yield from (*_table(name, points), '', *_wrapped(f'Exponents: {last}; {WHY[name]}'), '')


def _pods(found: Mapping[str, Any]) -> Iterator[str]:
  if 'pods' in found:
    changes = (
      f'`{flag}` on {topology}' for slices in PODS.values() for topology, flags in slices.items() for flag in flags
    )
    yield from ('## Pods', '')
    yield from _wrapped(
      'Models that need a pod, with the batch of their papers at any number of chips. Seconds of a step are those at '
      '40 % of the peak, by the cycles of the compiler and by the bytes over the links; days are those of the run by '
      'the largest. Programs for v5p cannot be read, so they have neither cycles nor bytes. '
      f'Changes that a slice needs: {"; ".join(changes)}.'
    )
    yield ''
  for config, points in found.get('pods', {}).items():
    yield from (f'`{config}`:', '', *_table('slice', points), '')


def _wrapped(text: str) -> list[str]:
  return textwrap.wrap(text, 118, subsequent_indent='  ' * text.startswith('- '))


def _table(what: str, points: Mapping[str, Point]) -> Iterator[str]:
  names = list(dict.fromkeys(name for point in points.values() for name in point))
  yield f'| {" | ".join([what, *names])} |'
  yield f'|{"---:|" * (len(names) + 1)}'
  for label, point in points.items():
    cells = [f'{point[name]:,.{_digits(name)}f}' if name in point else 'does not fit' for name in names]
    yield f'| {" | ".join([f"{int(label):,}" if label.isdecimal() else label, *cells])} |'


def _digits(name: str) -> int:
  """Return the decimals of a column."""
  return next((digits for word, digits in DIGITS.items() if name.startswith(word)), 2)


def report(found: Mapping[str, Any], config: str) -> None:
  """Print the measurements."""
  console = Console(width=110)
  if chips := found.get('chips'):
    show(console, f'{config}: a chip of TPU v5e', chips)
    for name in RISING:
      console.print(f'{name}: {"; ".join(rises(chips, name)) or "flat"}')
  if devices := found.get('devices'):
    show(console, 'simulated devices on the cores of this machine, 32 rows in all', devices)
  for name, points in found.get('sizes', {}).items():
    columns: Sequence[str] = ('GiB at most', 'Mcycles', 'TFLOP')
    last = {'': 'exponent', **{column: f'{exponent(points, column):.2f}' for column in columns}}
    show(console, f'{name}: one chip, 8 rows', points, last=last)
  for name, points in found.get('pods', {}).items():
    show(console, name, points)


if __name__ == '__main__':
  main()
