"""Agreement between hosts: `doctor` compares their answers before a run, and a run when it starts.

Every host receives all answers through the coordinator and reaches the same verdict. Hosts that differ also exchange
the values behind their digests, so that the message names keys and values.
"""

import itertools
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.training.hosts import join as hosts
from plm_jax.training.hosts.host_facts import Answer

OWN = ('memory', 'disk')  # questions whose answers may differ by host
ABSENT = Answer(problem='it did not answer')
KEYS_SHOWN = 8  # of a value with many, where hosts differ
WAIT_S = 86_400  # for a host that makes its data as the run begins; one that is gone ends the others sooner
_asked = itertools.count()


class Said(NamedTuple):
  """An answer, and the hosts that gave it."""

  hosts: list[int]
  text: str


class Check(NamedTuple):
  """Verdict on one question."""

  name: str  # of the question
  # 'differs' where hosts do not agree, 'failed' where something is wrong on a host
  result: Literal['ok', 'differs', 'failed']
  said: list[Said]  # every answer
  keys: dict[str, list[Said]] = {}  # where hosts differ in a value with many keys, what each said of each such key


def agree(answers: Callable[[], Mapping[str, Answer]]) -> None:
  """Return if all processes of the run give the same answers.

  All of them call it equally often. Nothing passes through devices, and a single process is not compared. Raises
  ConfigError: in every process, with what each host says.
  """
  if hosts.alone():
    return
  key = f'agree {next(_asked)}'
  wrong = [check for check in compared(key, answers(), timeout=WAIT_S) if check.result != 'ok']
  if not wrong:
    return
  called = names(f'{key}/name', timeout=WAIT_S)
  told = [f'{check.name}: {line}' for check in wrong for line in lines(check, called)]
  raise ConfigError(
    'the processes of this run differ, and all have to begin it with the same command, code and data '
    f'(`plm-jax doctor` compares more):\n{chr(10).join(told)}'
  )


def names(key: str, *, timeout: int) -> list[str]:
  """Return the host name of each process, in order."""
  return [name or 'did not answer' for name in hosts.tell_all(key, socket.gethostname(), timeout=timeout)]


def compared(key: str, mine: Mapping[str, Answer], *, timeout: int) -> list[Check]:
  """Collect the answers of all hosts to the same questions.

  Hosts that differ send the values behind their digests.
  """
  sent = json.dumps({name: answer._replace(detail={})._asdict() for name, answer in mine.items()})
  heard = hosts.tell_all(key, sent, timeout=timeout)
  answers = [None if one is None else _answers(one) for one in heard]
  asked = dict.fromkeys(name for one in answers if one is not None for name in one)
  checks = []
  for name in asked:
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
  """Return a question's verdict, None if a host was not asked."""
  asked_of = {host: answer for host, answer in enumerate(answers) if answer is not None}
  if any(answer.problem for answer in asked_of.values()):
    result: Literal['ok', 'differs', 'failed'] = 'failed'
  elif name not in OWN and len({answer.value for answer in asked_of.values()}) > 1:
    result = 'differs'
  else:
    result = 'ok'
  own = [answer.problem or ', '.join(filter(None, (answer.value, answer.note))) for answer in asked_of.values()]
  said = [Said([list(asked_of)[number] for number in one.hosts], one.text) for one in grouped(own)]
  return Check(name, result, said)


def grouped(texts: Sequence[str]) -> list[Said]:
  """Group equal texts with their hosts, most frequent first."""
  found: dict[str, list[int]] = {}
  for host, text in enumerate(texts):
    found.setdefault(text, []).append(host)
  return [Said(group, text) for text, group in sorted(found.items(), key=lambda one: (-len(one[1]), one[1]))]


def _keys(details: Sequence[Mapping[str, str]]) -> dict[str, list[Said]]:
  """Return what hosts report for each key in which they differ."""
  known = dict.fromkeys(name for detail in details for name in detail)
  return {
    name: grouped([detail.get(name, 'not there') for detail in details])
    for name in known
    if len({detail.get(name) for detail in details}) > 1
  }


def lines(check: Check, called: Sequence[str]) -> list[str]:
  """Format answers to one question, differences by answer, key and host."""
  alike = len(check.said) == 1 and len(check.said[0].hosts) == len(called)
  texts = [one.text if alike else f'{_hosts(one.hosts, called)}: {one.text}' for one in check.said]
  for key, said in list(check.keys.items())[:KEYS_SHOWN]:
    texts.append(f'{key}: ' + '; '.join(f'{_hosts(one.hosts, called)}: {one.text}' for one in said))
  if len(check.keys) > KEYS_SHOWN:
    texts.append(f'and {len(check.keys) - KEYS_SHOWN} more')
  return texts


def _hosts(numbers: Sequence[int], called: Sequence[str]) -> str:
  """Format hosts: 'process 3 (worker-3)' or 'processes 0 to 2, 5'."""
  if len(numbers) == 1:
    return f'process {numbers[0]} ({called[numbers[0]]})'
  runs: list[list[int]] = []
  for number in numbers:
    if runs and number == runs[-1][-1] + 1:
      runs[-1].append(number)
    else:
      runs.append([number])
  return 'processes ' + ', '.join(f'{one[0]} to {one[-1]}' if len(one) > 1 else str(one[0]) for one in runs)
