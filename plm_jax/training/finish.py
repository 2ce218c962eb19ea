"""The end of a call of `train`: its messages, result file and curves."""

import logging
import shlex
from typing import Any

import jax

from plm_jax.config import build
from plm_jax.io import files
from plm_jax.runs import curves, metrics
from plm_jax.training.context import LoopState, RunContext
from plm_jax.training.cost.meter import goodput
from plm_jax.training.guards import spikes
from plm_jax.training.outcome import DIVERGED, DONE, Outcome, made, way_on

log = logging.getLogger(__name__)


def finish(run: RunContext, loop: LoopState) -> Outcome:
  """Log how the run ended, and write its result and its curves."""
  skipped = int(jax.device_get(loop.state.skipped))
  if loop.exit_code == DONE and 0 < loop.step == skipped:
    log.error(
      f'none of the {loop.step} updates was finite, so all were skipped and nothing was trained: training diverged. '
      'Begin again in another --workdir, with a lower optim.rate or other numbers in the config'
    )
    loop.exit_code = DIVERGED
  elif loop.exit_code == DIVERGED:
    steps = [step for step in run.checkpoints.steps() if loop.step > run.first_step or step < run.first_step]
    log.error(way_on(run.folder, steps, loop.step))
  is_over = loop.exit_code == DONE and (loop.step == run.total_steps or run.patience.lost)
  _log_end(run, loop, is_over=is_over)
  result = _result(run, loop, is_over=is_over, skipped=skipped)
  if run.is_main:
    result |= made(run.data.layout.mesh.local_devices)
    metrics.write_json(run.folder.result, result)
    try:
      curves.curves(run.folder.root)
    except Exception as error:  # noqa: BLE001 - whatever a plotting library raises, the run is done
      log.warning(f'{run.folder.curves} could not be drawn: {type(error).__name__}: {error}')
  return Outcome(loop.exit_code, result)


def _log_end(run: RunContext, loop: LoopState, *, is_over: bool) -> None:
  """Log why this call ends."""
  stop_at = run.options.stop_at
  if stop_at is not None and stop_at < run.first_step:
    log.info(f'the run is at step {loop.step} of {run.total_steps}, past the one of --stop_at: no step was made')
  elif loop.exit_code == DONE and not is_over:
    log.info(f'stopped at step {loop.step} of {run.total_steps}, as requested; the same command continues from here')
  elif is_over and run.is_main:
    log.info('\n  '.join(['finished; next:', *_next_commands(run)]))
  if run.patience.lost:
    metric = run.settings['best'][0]
    log.info(f'early stop at step {loop.step}: {metric} has not improved in {run.patience.limit} evaluations')


def _next_commands(run: RunContext) -> list[str]:
  """Return commands that use the run."""
  folder, task = shlex.quote(str(run.folder.root)), run.data.parts.task
  if task.predict is not None and build.unwrapped(run.settings)['adapter']:
    part = ' --part=NAME' if task.parts else ''
    use = f'plm-jax predict --workdir={folder}{part} --file=FILE --out=predicted.csv'
  else:
    use = (
      f'plm-jax train --config=experiments/finetune/classify.py --config.model.from={folder} --config.data.path=FILE '
      '--workdir=FOLDER'
    )
  return [use, f'plm-jax report {folder} --out=report.html']


def _result(run: RunContext, loop: LoopState, *, is_over: bool, skipped: int) -> dict[str, Any]:
  spent = run.spent.with_this_call(run.meter)
  return {
    'finished': is_over,
    'exit_code': loop.exit_code,
    'step': loop.step,
    'steps': run.total_steps,
    'best_step': run.checkpoints.best_step(),
    'metrics': metrics.last(run.folder.root),
    'seconds': round(spent['seconds'], 3),
    'tokens': int(spent['tokens']),
    'goodput': goodput(spent, loop.step),
    'skipped': skipped,
    'spikes': spikes.read(run.folder),
    **run.counts,
    **run.data.facts,
    'metrics_sha256': files.sha256(run.folder.metrics) if files.exists(run.folder.metrics) else None,
  }
