"""The picture `curves.png` of a run, drawn from its metrics."""

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from plm_jax.cli import pictures
from plm_jax.io import files
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.runs.metrics import TRAINED_ON, Row, read

log = logging.getLogger(__name__)

LOSS, RATE, NORM, SPEED = 'loss', 'learning rate', 'gradient norm', 'tokens per second'  # titles of the panels
TRAINING = 'training'  # the line of the training loss
Line = tuple[np.ndarray, np.ndarray]  # steps, values


def curves(workdir: Where) -> Path | None:
  """Draw loss, learning rate, gradient norm and speed over the steps.

  The best step of `result.json`, if any, is marked in the loss of `metrics.jsonl`. Only process 0 writes the picture,
  `curves.png`. Returns the picture, or None if there are no metrics yet or the disk is full.
  """
  folder = RunFolder.at(workdir)
  panels = {title: lines for title, lines in _panels(read(folder.root)).items() if lines}
  if not panels or jax.process_index() != 0:
    return None
  best_step = run_folder.read_result(folder).get('best_step')
  columns = min(2, len(panels))
  rows = math.ceil(len(panels) / columns)
  figure = pictures.new(5.6 * columns, 3.6 * rows)
  figure.suptitle(pictures.plain(files.absolute(folder.root).name), fontsize=12)
  axes = figure.subplots(rows, columns, squeeze=False).flatten()
  for spare in axes[len(panels) :]:
    spare.set_axis_off()
  for axis, (title, lines) in zip(axes, panels.items(), strict=False):
    _draw(axis, title, lines, best_step if title == LOSS else None)
  try:
    pictures.save(figure, folder.curves)
  except OSError as error:  # the picture can be drawn again from the metrics
    log.warning('%s cannot be written: %s', folder.curves, error.strerror)
    return None
  return folder.curves


def _panels(rows: Sequence[Row]) -> dict[str, dict[str, Line]]:
  """Collect the curves: title -> line name -> (steps, values)."""
  measured = {name.removesuffix('/loss') for row in rows for name in row if name.endswith('/loss')}
  trained = next((name for name in TRAINED_ON if any(name in row for row in rows)), TRAINED_ON[0])
  metrics = {
    LOSS: {TRAINING: trained, **{name: f'{name}/loss' for name in sorted(measured)}},
    RATE: {RATE: 'learning_rate'},
    NORM: {NORM: 'gradient_norm'},
    SPEED: {SPEED: 'tokens_per_second'},
  }
  panels = {}
  for title, names in metrics.items():
    lines = {label: _line(rows, name) for label, name in names.items()}
    panels[title] = {label: line for label, line in lines.items() if len(line[0])}
  return panels


def _line(rows: Sequence[Row], name: str) -> Line:
  points = [(row['step'], row[name]) for row in rows if name in row and math.isfinite(row[name])]
  steps, values = zip(*points, strict=True) if points else ((), ())
  return np.array(steps), np.array(values, float)


def _smooth(values: np.ndarray) -> np.ndarray:
  """Compute the running mean over a fortieth of the curve."""
  half = len(values) // 80
  total = np.concatenate([[0.0], np.cumsum(values)])
  index = np.arange(len(values))
  first, after = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
  return (total[after] - total[first]) / (after - first)


def _draw(axis: Any, title: str, lines: Mapping[str, Line], best_step: int | None) -> None:
  """Draw a panel: faint curves with running means, evaluations as dots."""
  from matplotlib.ticker import EngFormatter

  for index, (name, (steps, values)) in enumerate(lines.items()):
    color, label = f'C{index}', pictures.label(name)
    if title == RATE or (title == LOSS and name != TRAINING):
      axis.plot(steps, values, color=color, marker='' if title == RATE else 'o', markersize=3, label=label)
    else:
      axis.plot(steps, values, color=color, alpha=0.25, linewidth=0.8)
      axis.plot(steps, _smooth(values), color=color, linewidth=1.6, label=label)
  if best_step is not None:
    axis.axvline(best_step, color='0.4', linestyle='--', linewidth=1, label=f'best step {best_step:,}')
  if len(lines) > 1 or best_step is not None:
    axis.legend(frameon=False, fontsize=9)
  all_values = np.concatenate([values for _, values in lines.values()])
  if title in (LOSS, NORM) and all_values.min() > 0 and all_values.max() > 30 * np.median(all_values):
    axis.set_yscale('log')  # a spike would flatten the rest
  elif title == RATE:
    axis.ticklabel_format(axis='y', style='sci', scilimits=(-2, 3), useMathText=True)
  elif title == SPEED:
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_formatter(EngFormatter(sep=''))
  axis.set_xlabel('step')
  axis.set_ylabel(title)
  axis.xaxis.set_major_formatter(EngFormatter(sep=''))
  axis.grid(alpha=0.25)
  axis.spines[['top', 'right']].set_visible(False)
