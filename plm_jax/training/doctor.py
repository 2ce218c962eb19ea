"""Whether all hosts can begin one run together: the engine of `python -m plm_jax.doctor`.

Each host asks itself (`host_facts.py`). All tell each other the answers through the coordinator, which needs no device,
and every host comes to the same verdict. What only shows between hosts is tried: clocks, one folder, one sum over all
devices.
"""

import contextlib
import functools
import json
import logging
import socket
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from plm_jax import files
from plm_jax.cli import signals
from plm_jax.errors import ConfigError, RunError
from plm_jax.files import RunFolder, Where
from plm_jax.training import host_facts, hosts
from plm_jax.training.host_facts import Answer, asked, asked_several

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]

CLOCK_S = 5.0  # by how much the clocks of hosts may differ
QUICK_S, SLOW_S, SUM_S = 300, 3600, 300  # for an answer; for one that reads data; for the sum over all devices
OWN = ('memory', 'disk')  # questions whose answers may differ by host
ABSENT = Answer(problem='it did not answer')
KEYS_SHOWN = 8  # of a value with many, where hosts differ


class Said(NamedTuple):
  """One answer, and the hosts that gave it."""

  hosts: list[int]
  text: str


class Check(NamedTuple):
  """The verdict on one question.

  Attributes:
    name: of the question.
    result: 'differs' where hosts do not agree, 'failed' where something is wrong on a host.
    said: every answer.
    keys: where hosts differ in a value with many keys, what each said of each such key.
  """

  name: str
  result: Literal['ok', 'differs', 'failed']
  said: list[Said]
  keys: dict[str, list[Said]] = {}


class Report(NamedTuple):
  """What the doctor found, the same on every host; `hosts` are their names."""

  hosts: list[str]
  checks: list[Check]

  @property
  def sound(self) -> bool:
    """Whether the run can begin."""
    return all(check.result == 'ok' for check in self.checks)


def examine(
  settings: Settings | None, workdir: Where, *, devices: Callable[[], Sequence[jax.Device]], wrong: str = ''
) -> Report:
  """Asks all hosts, all of which call it, whether they can begin one run.

  Args:
    settings: as `config.resolve` returns them; None where this host has none.
    workdir: the run folder; made, and removed if it is empty in the end.
    devices: of all hosts, `jax.devices`; where this host has none, that is one of its answers.
    wrong: why this host has no settings.
  """
  names = [name or 'did not answer' for name in hosts.tell_all('name', socket.gethostname(), timeout=QUICK_S)]
  checks = _compared('host', _of_host(settings, wrong, devices), timeout=QUICK_S)
  checks.append(_clock())
  checks += _compared('folder', {'workdir': asked(lambda: _folder(workdir))}, timeout=QUICK_S)
  if settings is None:
    mine = {}
  else:
    log.info('looking at the run and its data')
    mine = _of_run(settings, RunFolder.at(workdir))
  checks += _compared('run', mine, timeout=SLOW_S)
  found = {check.name: check.result for check in checks}
  if all(found[name] == 'ok' for name in ('versions', 'devices', 'environment')):
    checks += _compared('sum', {'all devices': asked(lambda: _sum(devices()))}, timeout=SUM_S)
  return Report(names, checks)


# Questions -----------------------------------------------------------------------------------------------------------


def _of_host(settings: Settings | None, wrong: str, devices: Callable[[], Sequence[jax.Device]]) -> dict[str, Answer]:
  return {
    'code': asked(host_facts.code),
    'config': Answer(problem=wrong) if settings is None else host_facts.settings_of(settings),
    'versions': asked(host_facts.versions),
    'environment': asked(host_facts.environment),
    'devices': asked(lambda: host_facts.devices(devices())),
  }


def _of_run(settings: Settings, folder: RunFolder) -> dict[str, Answer]:
  """The answers that need the run; what follows from a mistake is not asked."""
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
  """Writes a file into the run folder, reads what others wrote, and removes it; every host comes to every meeting."""
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
  """Writes and reads a file; what is wrong with that, or nothing."""
  try:
    files.make_folder(root)
    files.write_text(own, own.name)
    same = files.read_text(own) == own.name
  except OSError as error:
    return f'{root} cannot be written to ({error.strerror or error}): name another --workdir'
  return '' if same else f'{root}: what was written there is not what is read'


def _clock() -> Check:
  """What the clocks say at one moment."""
  if hosts.alone():
    return Check('clock', 'ok', [Said([0], 'no other host to differ from')])
  hosts.meet('clock', timeout=QUICK_S)
  heard = hosts.tell_all('time', repr(time.time()), timeout=QUICK_S)
  times = [None if one is None else float(one) for one in heard]
  middle = statistics.median_low([one for one in times if one is not None])
  ahead = [None if one is None else one - middle for one in times]
  if any(one is None for one in ahead):
    return Check('clock', 'failed', _grouped([ABSENT.problem if one is None else 'it answered' for one in ahead]))
  skew = max(ahead) - min(ahead)  # type: ignore[type-var, operator]
  if skew <= CLOCK_S:
    return Check('clock', 'ok', [Said(list(range(len(times))), f'within {skew:.2f} s of each other')])
  texts = ['with the others' if abs(one) <= CLOCK_S else f'{one:+,.1f} s' for one in ahead]  # type: ignore[arg-type]
  return Check('clock', 'differs', _grouped(texts))


def _sum(devices: Sequence[jax.Device]) -> Answer:
  """Adds one of each device: they find each other, and compute."""
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


# Verdicts ------------------------------------------------------------------------------------------------------------


def _compared(key: str, mine: Mapping[str, Answer], *, timeout: int) -> list[Check]:
  """What all hosts answered to the same questions; those that differ tell what their values stand for."""
  sent = json.dumps({name: answer._replace(detail={})._asdict() for name, answer in mine.items()})
  heard = hosts.tell_all(key, sent, timeout=timeout)
  answers = [None if one is None else _answers(one) for one in heard]
  names = dict.fromkeys(name for one in answers if one is not None for name in one)
  checks = []
  for name in names:
    check = judged(name, [ABSENT if one is None else one.get(name) for one in answers])
    if check.result == 'differs':
      own = mine[name].detail if name in mine else {}
      details = hosts.tell_all(f'{key}/{name}', json.dumps(dict(own)), timeout=timeout)
      check = check._replace(keys=_keys([files.parse_json(one) if one else {} for one in details]))
    checks.append(check)
  return checks


def _answers(text: str) -> dict[str, Answer]:
  return {name: Answer(**said) for name, said in files.parse_json(text).items()}


def judged(name: str, answers: Sequence[Answer | None]) -> Check:
  """The verdict on one question; None of a host that was not asked, because of another problem of its own."""
  asked_of = {host: answer for host, answer in enumerate(answers) if answer is not None}
  if any(answer.problem for answer in asked_of.values()):
    result: Literal['ok', 'differs', 'failed'] = 'failed'
  elif name not in OWN and len({answer.value for answer in asked_of.values()}) > 1:
    result = 'differs'
  else:
    result = 'ok'
  own = [answer.problem or ', '.join(filter(None, (answer.value, answer.note))) for answer in asked_of.values()]
  said = [Said([list(asked_of)[number] for number in one.hosts], one.text) for one in _grouped(own)]
  return Check(name, result, said)


def _grouped(texts: Sequence[str]) -> list[Said]:
  """Each text once with the hosts that said it, the most common one first."""
  found: dict[str, list[int]] = {}
  for host, text in enumerate(texts):
    found.setdefault(text, []).append(host)
  return [Said(group, text) for text, group in sorted(found.items(), key=lambda one: (-len(one[1]), one[1]))]


def _keys(details: Sequence[Mapping[str, str]]) -> dict[str, list[Said]]:
  """What the hosts say of each key in which they differ."""
  names = dict.fromkeys(name for detail in details for name in detail)
  return {
    name: _grouped([detail.get(name, 'not there') for detail in details])
    for name in names
    if len({detail.get(name) for detail in details}) > 1
  }


# Words ---------------------------------------------------------------------------------------------------------------


def rows(report: Report) -> list[tuple[str, str, str]]:
  """(question, result, what was said) for a table; what differs stands below its question, by host."""
  found: list[tuple[str, str, str]] = []
  for check in report.checks:
    alike = len(check.said) == 1 and len(check.said[0].hosts) == len(report.hosts)
    texts = [one.text if alike else f'{_hosts(one.hosts, report.hosts)}: {one.text}' for one in check.said]
    for key, said in list(check.keys.items())[:KEYS_SHOWN]:
      texts.append(f'{key}: ' + '; '.join(f'{_hosts(one.hosts, report.hosts)}: {one.text}' for one in said))
    if len(check.keys) > KEYS_SHOWN:
      texts.append(f'and {len(check.keys) - KEYS_SHOWN} more')
    found.append((check.name, check.result, '\n'.join(texts)))
  return found


def plain(report: Report) -> dict[str, Any]:
  """The report as plain data for JSON."""
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


def _hosts(numbers: Sequence[int], names: Sequence[str]) -> str:
  """Hosts for a person: 'process 3 (worker-3)', or 'processes 0 to 2, 5'."""
  if len(numbers) == 1:
    return f'process {numbers[0]} ({names[numbers[0]]})'
  runs: list[list[int]] = []
  for number in numbers:
    if runs and number == runs[-1][-1] + 1:
      runs[-1].append(number)
    else:
      runs.append([number])
  return 'processes ' + ', '.join(f'{one[0]} to {one[-1]}' if len(one) > 1 else str(one[0]) for one in runs)
