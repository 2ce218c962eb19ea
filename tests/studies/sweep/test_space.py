"""The space of a sweep: how it is written, its points, and what is refused before anything is made."""

import contextlib
import math

import pytest

from plm_jax import config
from plm_jax.config import overrides
from plm_jax.core.errors import ConfigError
from plm_jax.studies.sweep import space as sweep_space
from tests import conftest, runs

optuna = pytest.importorskip('optuna', reason='needs the extra sweep: bash launch/setup.sh sweep')

CONDITIONAL = {
  'optim.name': ['adamw', 'sgd'],
  'optim.b2': {'values': [0.9, 0.99], 'when': {'optim.name': ['adamw']}},
  'seed': [0, 1],
}


def test_a_grid_has_every_point_in_order_and_a_key_only_where_its_condition_holds():
  points = sweep_space.grid(sweep_space.parse(CONDITIONAL))
  assert [tuple(point.values()) for point in points] == [
    ('adamw', '0.9', '0'), ('adamw', '0.9', '1'), ('adamw', '0.99', '0'), ('adamw', '0.99', '1'),
    ('sgd', '0'), ('sgd', '1'),
  ]  # fmt: skip
  assert 'optim.b2' not in points[-1]


def test_ranges_in_a_grid_are_spaced_by_their_scale():
  ranges = {
    'optim.rate': {'low': 1e-5, 'high': 1e-1, 'scale': 'log', 'count': 5},
    'optim.warmup': {'low': 0, 'high': 10, 'count': 3},
    'steps': {'low': 3, 'high': 5},
    'data.length': {'low': 1, 'high': 100, 'scale': 'log'},
  }
  rate, warmup, steps, every = (key.steps() for key in sweep_space.parse(ranges))
  assert every == tuple(map(str, range(1, 101)))
  assert [float(text) for text in rate] == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 1e-1])
  assert (warmup, steps) == (('0', '5', '10'), ('3', '4', '5'))


def test_samples_stay_in_their_ranges_and_follow_the_scale():
  space = sweep_space.parse({'a': {'low': 1e-6, 'high': 1.0, 'scale': 'log'}, 'b': {'low': 1, 'high': 3}})
  study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
  points = [sweep_space.suggest(space, study.ask()) for _ in range(400)]
  rates, wholes = [float(point['a']) for point in points], [point['b'] for point in points]
  assert all(1e-6 <= rate <= 1 for rate in rates) and set(wholes) == {'1', '2', '3'}
  # log10 is uniform on [-6, 0]: the mean of 400 draws has a standard error of 6 / sqrt(12 * 400) = 0.087
  assert abs(sum(map(math.log10, rates)) / len(rates) + 3) < 4 * 0.087


@pytest.mark.parametrize(
  ('literal', 'said'),
  [
    ({}, r'\{\}'),
    ({'seed': 3}, r'seed: .*low.*high.*got 3'),
    ({'seed': [1, 1]}, 'seed: .*1'),
    ({'seed': [1, 'a', 1.0]}, 'seed: .*1'),
    ({'optim.rate': {'low': 2, 'high': 1}}, 'low < high'),
    ({'optim.rate': {'low': True, 'high': 2}}, 'low < high'),
    ({'optim.rate': {'low': 0, 'high': 1, 'scale': 'log'}}, 'optim.rate.*log.*0'),
    ({'optim.rate': {'low': 0, 'high': 1, 'scale': 'logarithmic'}}, r'linear, log'),
    ({'optim.rate': {'low': 0, 'hihg': 1}}, "Did you mean 'high'"),
    ({'optim.rate': [1], 'optim': [{'name': 'sgd', 'rate': 2}]}, 'optim .*optim.rate'),
    ({'optim': [{'name': 'sgd', 'rate': 2}], 'optim.rate': [1]}, 'optim .*optim.rate'),
    ({'optim.rate': {'values': [1], 'when': {'optim.nme': ['sgd']}}}, "'optim.nme'"),
    ({'optim.name': ['sgd'], 'seed': {'values': [1], 'when': {'optim.name': ['lamb']}}}, "'lamb'.*sgd"),
  ],
)  # fmt: skip
def test_a_space_that_is_none_is_refused(literal, said):
  with pytest.raises(ConfigError, match=said):
    sweep_space.parse(literal)


def test_a_grid_needs_a_number_of_values():
  with pytest.raises(ConfigError, match='count'):
    sweep_space.grid(sweep_space.parse({'optim.rate': {'low': 0.1, 'high': 1}}))


def test_a_range_of_more_values_than_a_grid_may_have_is_refused_before_they_are_made():
  for block in ({'low': 0, 'high': 10**15}, {'low': 0.0, 'high': 1.0, 'count': 10**15}):
    with pytest.raises(ConfigError, match=r'1,000,000,000,000,00[01] values'):
      sweep_space.grid(sweep_space.parse({'optim.rate': block}))


def test_a_key_is_tried_with_all_that_the_keys_of_its_conditions_ask_for():
  """The base config has another rule, which has no `b2`: a key that asks for a `b2` asks for its rule as well."""
  literal = {
    'optim.name': ['sgd', 'adamw'],
    'optim.b2': {'values': [0.9], 'when': {'optim.name': ['adamw']}},
    'optim.eps': {'values': [1e-6], 'when': {'optim.b2': [0.9]}},
  }
  asked = []
  sweep_space.check(sweep_space.parse(literal), lambda changes: asked.append(dict(changes)) or {})
  assert asked[-1] == {'optim.name': 'adamw', 'optim.b2': '0.9', 'optim.eps': '1e-06'}


@pytest.mark.parametrize(
  ('literal', 'said'),
  [
    ({'optim.rat': [1]}, 'unknown key optim.rat: did you mean optim.rate'),
    ({'optim.rate': [1e-3, 'fast']}, "float.*'fast'"),
    ({'seed': {'low': 0.5, 'high': 2.5}}, "int.*'0.5'"),
    ({'optim.name': ['sgd'], 'optim.b2': {'values': [0.9], 'when': {'optim.name': ['sgd']}}}, 'unknown key optim.b2'),
    ({'optim.rate': ['1e-3', 0.01, 0.001]}, "'1e-3' and '0.001'.* 0.001"),
    ({'data.path': ['1.0', '1', '1.0 ']}, None),  # names of folders, which are not numbers
  ],
)
def test_every_value_is_tried_on_the_config(tmp_path_factory, literal, said):
  settings = runs.settings('classify', tmp_path_factory.getbasetemp(), best=('validation/loss', 'min'))

  def changed(changes):
    return overrides.apply(settings, changes)[0]

  sweep_space.check(sweep_space.parse(CONDITIONAL), changed, points=sweep_space.grid(sweep_space.parse(CONDITIONAL)))
  with contextlib.nullcontext() if said is None else pytest.raises(ConfigError, match=said):
    sweep_space.check(sweep_space.parse(literal), changed)


def test_a_point_of_a_grid_that_is_no_sound_config_is_named(tmp_path):
  settings = runs.settings('classify', tmp_path)
  space = sweep_space.parse({'early_stop': [2], 'best': [('validation/loss', 'min'), None]})
  with pytest.raises(ConfigError, match=r'early_stop=2 best=None'):
    sweep_space.check(space, lambda changes: overrides.apply(settings, changes)[0], points=sweep_space.grid(space))


def test_a_file_is_read_and_not_executed(tmp_path):
  file = tmp_path / 'space.py'
  file.write_text("raise SystemExit('executed')\nSPACE = {'seed': [0, 1]}\n")
  assert sweep_space.read(str(file)) == sweep_space.parse({'seed': [0, 1]})
  file.write_text("SPACE: dict[str, list[int]] = {'seed': [0, 1]}\n")
  assert sweep_space.read(str(file)) == sweep_space.parse({'seed': [0, 1]})
  file.write_text("SPACE = {'seed': list(range(2))}\n")
  with pytest.raises(ConfigError, match=r'SPACE in .*literal'):
    sweep_space.read(str(file))
  file.write_text('RANGE = {}\n')
  with pytest.raises(ConfigError, match=r'space.py.*SPACE'):
    sweep_space.read(str(file))
  with pytest.raises(ConfigError, match=r'none.py'):
    sweep_space.read(str(tmp_path / 'none.py'))


@pytest.mark.parametrize(
  ('text', 'said'),
  [
    ("{'optim.rate': [nan]}", "'nan'"),
    ("{'optim.rate': [1e-3, -x]}", "'x'"),
    ("{'optim.rate': [2 * 3]}", r"'2 \* 3'"),
    ("{'optim.rate': [1e-3}", 'match'),
    ('[1, 2]', r'got \[1, 2\]'),
    ('(1, 2)', r'got \(1, 2\)'),
  ],
)
def test_what_is_no_literal_is_shown_as_it_was_written(text, said):
  with pytest.raises(ConfigError, match=said) as error:
    sweep_space.read(text)
  assert '0x' not in str(error.value) and 'no such file' not in str(error.value)


@pytest.mark.parametrize(
  ('literal', 'count'),
  [
    (CONDITIONAL, 6),
    ({'steps': {'low': 3, 'high': 7, 'count': 2}, 'seed': [0, 1]}, 10),  # the count is for a grid
    ({'steps': {'low': 1, 'high': 8, 'scale': 'log'}}, 8),
    ({'optim.rate': {'low': 0.1, 'high': 1, 'count': 3}}, None),
    ({'seed': {'low': 0, 'high': 10**15}}, None),
  ],
)
def test_points_that_can_be_drawn_are_counted_where_there_is_an_end_of_them(literal, count):
  space = sweep_space.parse(literal)
  points = sweep_space.all_points(space)
  assert (points and len(points)) == count
  if points is not None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    assert all(sweep_space.suggest(space, study.ask()) in points for _ in range(40))


def test_a_key_that_stands_twice_is_refused(tmp_path):
  twice = "{'optim.rate': [1e-4], 'seed': [0], 'optim.rate': [1e-3]}"
  with pytest.raises(ConfigError, match=r"--space: .*'optim\.rate'.*twice"):
    sweep_space.read(twice)
  with pytest.raises(ConfigError, match=r"'low'.*twice"):
    sweep_space.read("{'seed': {'low': 1, 'high': 2, 'low': 0}}")
  (tmp_path / 'space.py').write_text(f'SPACE = {twice}\n')
  with pytest.raises(ConfigError, match=r"SPACE in .*'optim\.rate'.*twice"):
    sweep_space.read(str(tmp_path / 'space.py'))


def test_the_grid_of_bert_is_that_of_the_paper():
  file = str(conftest.ROOT / 'experiments' / 'bert' / 'glue.py')
  space = sweep_space.read(file)
  points = sweep_space.grid(space)
  assert len(points) == 2 * 3 * 4 * 5  # Devlin et al. 2018, A.3, and five seeds
  assert {point['data.batch_size'] for point in points} == {'16', '32'}
  assert {float(point['optim.rate']) for point in points} == {5e-5, 4e-5, 3e-5, 2e-5}
  written = config.load(file)
  sweep_space.check(space, lambda changes: overrides.apply(written, changes)[0], points=points[::7])
