"""Checks that all hosts can start one run together: the engine of `plm-jax doctor`.

Each host examines itself (`host_facts.py`). All exchange the answers through the coordinator, which needs no device,
and reach the same verdict. What only shows between hosts is tried: clocks, one folder, one sum over all devices.
"""

import contextlib
import functools
import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax.cli import signals
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.io import files
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.training.hosts import agreement, host_facts
from plm_jax.training.hosts import join as hosts
from plm_jax.training.hosts.agreement import ABSENT, Check, Said, compared, grouped
from plm_jax.training.hosts.host_facts import Answer, asked, asked_several

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]

CLOCK_S = 5.0  # by how much the clocks of hosts may differ
QUICK_S, SLOW_S, SUM_S = 300, 3600, 300  # for an answer; for one that reads data; for the sum over all devices


class Report(NamedTuple):
  """Result of the doctor, the same on every host; `hosts` are their names."""

  hosts: list[str]
  checks: list[Check]

  @property
  def sound(self) -> bool:
    """True if the run can start."""
    return all(check.result == 'ok' for check in self.checks)


def examine(
  settings: Settings | None, workdir: Where, *, devices: Callable[[], Sequence[jax.Device]], wrong: str = ''
) -> Report:
  """Check whether all hosts can start; all of them call it.

  Args:
    settings: as `config.resolve` returns them; None where this host has none.
    workdir: the run folder; made, and removed if it is empty in the end.
    devices: of all hosts, `jax.devices`; where this host has none, that is one of its answers.
    wrong: why this host has no settings.
  """
  names = agreement.names('name', timeout=QUICK_S)
  checks = compared('host', _of_host(settings, wrong, devices), timeout=QUICK_S)
  checks.append(_clock())
  checks += compared('folder', {'workdir': asked(lambda: _folder(workdir))}, timeout=QUICK_S)
  if settings is None:
    mine = {}
  else:
    log.info('looking at the run and its data')
    mine = _of_run(settings, RunFolder.at(workdir))
  checks += compared('run', mine, timeout=SLOW_S)
  found = {check.name: check.result for check in checks}
  if all(found[name] == 'ok' for name in ('versions', 'devices', 'environment')):
    checks += compared('sum', {'all devices': asked(lambda: _sum(devices()))}, timeout=SUM_S)
  return Report(names, checks)


def _of_host(settings: Settings | None, wrong: str, devices: Callable[[], Sequence[jax.Device]]) -> dict[str, Answer]:
  return {
    'code': asked(host_facts.code),
    'config': Answer(problem=wrong) if settings is None else host_facts.settings_of(settings),
    'versions': asked(host_facts.versions),
    'environment': asked(host_facts.environment),
    'devices': asked(lambda: host_facts.devices(devices())),
  }


def _of_run(settings: Settings, folder: RunFolder) -> dict[str, Answer]:
  """Collect the run's answers, without consequences of earlier mistakes."""
  answers = {
    'resuming': asked(lambda: host_facts.begun(settings, folder)),
    'vocabulary': asked(lambda: host_facts.vocabulary(settings)),
  }
  if any(answer.problem for answer in answers.values()):
    return answers
  for name, question in (('run', host_facts.run), ('data', host_facts.data)):
    found = asked_several(name, functools.partial(question, settings, folder))
    answers |= found
    if found[name].problem:
      break
  return answers


def _folder(workdir: Where) -> Answer:
  """Try the run folder: write, read others, remove, host by host."""
  process, problem = jax.process_index(), ''
  root, new = None, False
  try:
    root = RunFolder.at(workdir).root
    new = not files.exists(root)
  except ConfigError as error:
    problem = str(error)
  # whoever has heard of the name of the file comes after process 0 has looked for the folder
  nonce = hosts.tell_all('nonce', f'{time.time_ns():x}', timeout=QUICK_S)[0]
  own = None if root is None else root / f'.doctor.{nonce}.{process}'
  if root is not None and own is not None:
    problem = _written(root, own)
  met = hosts.meet('written', timeout=QUICK_S)
  if met and not problem and root is not None:
    others = sorted({0, (process + 1) % jax.process_count()} - {process})
    if unseen := [other for other in others if not files.exists(root / f'.doctor.{nonce}.{other}')]:
      problem = (
        f'{root}: what process {unseen[0]} wrote there is not there: hosts have folders of their own, and a run needs '
        'one that all see (a bucket, NFS)'
      )
  hosts.meet('seen', timeout=QUICK_S)
  if own is not None:
    with contextlib.suppress(OSError):  # it was never written
      files.remove(own)
  hosts.meet('removed', timeout=QUICK_S)
  if root is not None and new and process == 0 and not files.listing(root):
    files.remove_folder(root)
  return Answer('written, read and removed', problem=problem)


def _written(root: Path, own: Path) -> str:
  try:
    files.make_folder(root)
    files.write_text(own, own.name)
    same = files.read_text(own) == own.name
  except OSError as error:
    return f'{root} cannot be written to ({error.strerror or error}): name another --workdir'
  return '' if same else f'{root}: what was written there is not what is read'


def _clock() -> Check:
  if hosts.alone():
    return Check('clock', 'ok', [Said([0], 'no other host to differ from')])
  hosts.meet('clock', timeout=QUICK_S)
  heard = hosts.tell_all('time', repr(time.time()), timeout=QUICK_S)
  times = [None if one is None else float(one) for one in heard]
  middle = statistics.median_low([one for one in times if one is not None])
  ahead = [None if one is None else one - middle for one in times]
  if any(one is None for one in ahead):
    return Check('clock', 'failed', grouped([ABSENT.problem if one is None else 'it answered' for one in ahead]))
  skew = max(ahead) - min(ahead)  # type: ignore[type-var, operator]
  if skew <= CLOCK_S:
    return Check('clock', 'ok', [Said(list(range(len(times))), f'within {skew:.2f} s of each other')])
  texts = ['with the others' if abs(one) <= CLOCK_S else f'{one:+,.1f} s' for one in ahead]  # type: ignore[arg-type]
  return Check('clock', 'differs', grouped(texts))


def _sum(devices: Sequence[jax.Device]) -> Answer:
  count, began = len(devices), time.monotonic()

  def work() -> float:
    place = NamedSharding(Mesh(np.array(devices), ('all',)), PartitionSpec('all'))
    ones = jax.make_array_from_callback((count,), place, lambda index: np.ones(count, np.float32)[index])
    return float(jax.jit(jnp.sum, out_shardings=NamedSharding(place.mesh, PartitionSpec()))(ones))

  def told(seconds: float) -> None:
    if seconds > SUM_S:
      raise RunError(f'the devices of all hosts did not add {count} ones in {SUM_S} s: they do not reach each other')

  total = signals.waiting(work, told=told)
  return Answer(
    f'{count} add up to {total:g}',
    f'{time.monotonic() - began:.1f} s',
    problem='' if total == count else f'the sum of {count} ones is {total:g}',
  )


def rows(report: Report) -> list[tuple[str, str, str]]:
  """Return (question, result, answers) for a table, differences by host."""
  return [(check.name, check.result, '\n'.join(agreement.lines(check, report.hosts))) for check in report.checks]


def plain(report: Report) -> dict[str, Any]:
  """Return the report as plain data for JSON."""
  return {
    'sound': report.sound,
    'hosts': report.hosts,
    'checks': [
      {
        'name': check.name,
        'result': check.result,
        'said': [one._asdict() for one in check.said],
        'keys': {key: [one._asdict() for one in said] for key, said in check.keys.items()},
      }
      for check in report.checks
    ],
  }
