"""The page of `benchmarks/growth.py`: built from stored figures; growing values are named."""

import argparse
import json

import pytest

from benchmarks import growth
from plm_jax import config

STORED = json.loads(growth.PAGE.with_name('growth.json').read_text())


def test_the_page_is_made_of_the_figures():
  assert growth.PAGE.read_text() == growth.page(STORED)
  assert growth.PAGE.with_name('growth.png').stat().st_size > 10_000


def test_every_part_stands_there():
  assert growth.PARTS.keys() <= STORED.keys()
  assert list(STORED['chips']) == [str(chips) for chips in growth.SLICES]
  assert STORED['devices']['4'].keys() == {'seconds a step', 'tokens/s', 'load'}


def test_what_stops_being_flat_is_named():
  rising = {name for name in growth.RISING if growth.rises(STORED['chips'], name)}
  assert growth.WHY.keys() == rising | STORED['sizes'].keys()


def test_tokens_are_bounded_by_cycles():
  point = STORED['chips']['4']
  seconds = 1e6 * point['Mcycles'] / growth.CLOCK
  assert point['tokens/s at most'] == pytest.approx(STORED['rows'] * STORED['length'] / seconds)


def test_a_program_is_compiled_once(monkeypatch, tmp_path):
  plan = {'train': {'fits': False}, 'tflop_per_step': 8.0}
  commands = []
  monkeypatch.setattr(growth, 'command', lambda *words: commands.append(words) or json.dumps(plan))
  arguments = argparse.Namespace(out=tmp_path, config='experiments/bert/base.py')
  points = [growth.planned(arguments, 4, rows=8, keys={'accumulate': 1}) for _ in range(2)]
  assert points == [{'TFLOP': 2.0}] * 2
  assert len(commands) == 1
  assert {'plan', '--topology=v5e:2x2', '--config.data.batch_size=32', '--config.accumulate=1'} <= {*commands[0]}


def test_pods_have_the_estimates_of_their_plans():
  for name, slices in growth.PODS.items():
    steps = config.resolve(config.load(f'experiments/{name}'))['steps']
    for topology in slices:
      point = STORED['pods'][name][topology]
      largest = max(value for key, value in point.items() if key.startswith('seconds'))
      assert point['days'] == pytest.approx(largest * steps / 86_400)


POINTS = {'1': {'a': 2.0, 'b': 0.0}, '4': {'a': 2.08, 'b': 1.0}, '16': {'a': 3.12, 'b': 1.0}, '64': {'b': 2.0}}


def test_a_rise_is_more_than_a_twentieth():
  assert growth.rises(POINTS, 'a') == ['16 chips x 1.50']
  assert growth.rises(POINTS, 'b') == ['64 chips x 2.00']


def test_the_exponent_is_that_of_the_last_two_sizes():
  assert growth.exponent({'1': {'a': 7.0}, '2': {'a': 2.0}, '4': {'a': 8.0}}, 'a') == pytest.approx(2.0)
  assert growth.exponent(POINTS, 'a') != growth.exponent(POINTS, 'a')  # nan: the last does not fit
