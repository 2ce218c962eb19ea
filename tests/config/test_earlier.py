"""A `config.json` that an earlier version wrote, with a null for every keyword of every rule and schedule."""

import json
import pathlib

import pytest

from plm_jax import config
from plm_jax.config import earlier
from plm_jax.core.errors import ConfigError

FILE = pathlib.Path(__file__).with_name('earlier_config.json')
OLD = json.loads(FILE.read_text())


def test_it_is_read_and_resumes_without_a_difference():
  new = config.resolve(config.load(str(FILE)))
  assert sum(value is None for value in OLD['optim'].values()) == 25
  assert [key for key, value in new['optim'].items() if value is None] == ['ema']
  assert (new['optim']['momentum'], new['optim']['nesterov'], new['optim']['until']) == (0.9, True, 1.0)
  assert config.check_resume(new, OLD) == []
  assert config.resolve(json.loads(json.dumps(new))) == new


def test_a_config_of_today_is_left_as_it_is():
  new = config.resolve(config.load(str(FILE)))
  assert earlier.current(new) == new


def test_an_asgd_whose_default_was_written_out_goes_on():
  base = {key: value for key, value in OLD.items() if key != 'optim'}
  own = {'name': 'asgd', 'rate': 1.0, 'schedule': 'constant'}
  for start in ({}, {'start': 2}):
    new = config.resolve({**base, 'optim': own | start})
    old = {**new, 'optim': {**new['optim'], 'nonmonotone': 5}}
    assert config.check_resume(new, old) == config.check_resume(new, new) == []
  assert config.resolve(earlier.current(old))['optim']['nonmonotone'] is None  # with a start nothing is waited for
  waits = config.resolve({**base, 'optim': own | {'nonmonotone': 5}})
  assert config.check_resume(waits, {**waits, 'optim': {**waits['optim'], 'nonmonotone': None}}) == []
  with pytest.raises(ConfigError, match=r'optim\.nonmonotone: 3 -> 5'):
    config.check_resume(waits, {**waits, 'optim': {**waits['optim'], 'nonmonotone': 3}})


def test_what_is_none_by_default_stays_none():
  old = {**OLD, 'optim': {**OLD['optim'], 'name': 'adafactor', 'nesterov': None}}
  new = config.resolve(earlier.current(old))['optim']
  assert (new['b1'], new['eps'], new['clip']) == (None, 1e-30, 1.0)
  assert 'momentum' not in new
