"""The journal of a sweep: torn and damaged lines lose nothing but themselves, and Optuna reads what is sound."""

import json
import logging

import pytest

optuna = pytest.importorskip('optuna', reason='needs the extra sweep: bash launch/setup.sh sweep')

from plm_jax.studies.sweep import journal  # noqa: E402

TrialState = optuna.trial.TrialState

KINDS = {'seed': optuna.distributions.CategoricalDistribution(('0', '1', '2', '3'))}


def make(file, numbers=range(4)):
  """A study with trials whose value is ten times their number."""
  study = journal.open_study(file, direction='maximize')
  for number in numbers:
    study.add_trial(
      optuna.trial.create_trial(state=TrialState.RUNNING, params={'seed': str(number)}, distributions=KINDS)
    )
    study.tell(number, 10.0 * number)
  return study


def trials(file):
  found = journal.open_study(file, direction='maximize').trials
  return [(trial.number, trial.params.get('seed'), trial.value, trial.state.name) for trial in found]


def spoil(file, number, change):
  lines = file.read_bytes().splitlines(keepends=True)
  lines[number] = change(lines[number])
  file.write_bytes(b''.join(lines))


def test_a_journal_is_read_as_it_was_written_by_ours_and_by_optuna(tmp_path):
  file = tmp_path / 'journal.jsonl'
  expected = [(n, str(n), 10.0 * n, 'COMPLETE') for n in range(4)]
  make(file)
  assert trials(file) == expected
  storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(file)))
  theirs = optuna.load_study(study_name=journal.STUDY, storage=storage)
  assert [(one.number, one.params['seed'], one.value, one.state.name) for one in theirs.trials] == expected


@pytest.mark.parametrize(
  'change',
  [
    lambda line: b'\0' * (len(line) - 1) + b'\n',
    lambda line: line[:20] + b'\n',
    lambda line: line.replace(b'[2]', b'[1]').replace(b'"trial_id": 1', b'"trial_id": 2').replace(b'r": 1', b'r": 0'),
  ],
  ids=['zeros', 'torn', 'another number'],
)  # fmt: skip
@pytest.mark.parametrize('which', ['study', 'trial 1 begins', 'trial 1 ends'])
def test_a_damaged_line_is_named_and_the_others_stay(tmp_path, caplog, change, which):
  file = tmp_path / 'journal.jsonl'
  make(file)
  written = file.read_text().splitlines()
  created = [n for n, line in enumerate(written) if json.loads(line)['op_code'] == journal.CREATE_TRIAL]
  number = {'study': 0, 'trial 1 begins': created[1], 'trial 1 ends': created[2] - 1}[which]
  spoil(file, number, change)
  with caplog.at_level(logging.WARNING, 'plm_jax'):
    found = trials(file)
  assert f'line {number + 1}' in caplog.text
  others = [(n, str(n), 10.0 * n, 'COMPLETE') for n in (0, 2, 3)]
  assert [trial for trial in found if trial[0] != 1] == others
  one = {
    'study': (1, '1', 10.0, 'COMPLETE'),
    'trial 1 begins': (1, None, None, 'FAIL'),
    'trial 1 ends': (1, '1', None, 'RUNNING'),  # and its worker goes on with it
  }[which]
  assert found[1] == one


def test_a_line_that_was_torn_by_a_kill_is_closed_by_the_next_writer(tmp_path):
  file = tmp_path / 'journal.jsonl'
  study = make(file, range(3))
  with file.open('ab') as stream:
    stream.write(b'{"op_code": 4, "worker_id": "x", "study_i')
  assert [one.number for one in study.trials] == [0, 1, 2]  # a reader beside it waits
  study.add_trial(optuna.trial.create_trial(state=TrialState.RUNNING, params={'seed': '3'}, distributions=KINDS))
  study.tell(3, 30.0)
  assert trials(file) == [(n, str(n), 10.0 * n, 'COMPLETE') for n in range(4)]


def test_two_that_write_in_turn_see_each_other(tmp_path):
  file = tmp_path / 'journal.jsonl'
  ours, theirs = (journal.open_study(file, direction='maximize') for _ in range(2))
  for number in range(4):
    (ours, theirs)[number % 2].add_trial(
      optuna.trial.create_trial(state=TrialState.RUNNING, params={'seed': str(number)}, distributions=KINDS)
    )
    (theirs, ours)[number % 2].tell(number, 10.0 * number)
  assert trials(file) == [(n, str(n), 10.0 * n, 'COMPLETE') for n in range(4)]
