"""Ordered patterns over parameter paths: matching, values, errors, the printed table."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.config import values as of_plugins
from plm_jax.core import param_paths
from plm_jax.core.errors import ConfigError
from plm_jax.optim import groups

S = jax.ShapeDtypeStruct
PARAMS = {
  'trunk': {
    'embed': {'tokens': {'table': S((100, 8), jnp.float32)}},
    'layers': {
      'attention': {'query': {'kernel': S((3, 8, 2, 4), jnp.float32), 'bias': S((3, 2, 4), jnp.float32)}},
      'norm': {'scale': S((3, 8), jnp.float32)},
    },
    'layers_norm': {'scale': S((8,), jnp.float32)},
  },
  'head': {'kernel': S((8, 5), jnp.float32), 'bias': S((5,), jnp.float32)},
}


def resolve(values, **keywords):
  return groups.resolve(values, PARAMS, steps=1000, what='scale', **keywords)


def test_first_match_wins_and_layers_are_matched_one_by_one():
  found = resolve((('trunk/layers/1/.*', 0.5), ('.*/bias', 0.0), ('trunk/.*', None), ('.*', 2)))
  assert found == {
    'trunk/embed/tokens/table': (None,),
    'trunk/layers/attention/query/kernel': (None, 0.5, None),
    'trunk/layers/attention/query/bias': (0.0, 0.5, 0.0),
    'trunk/layers/norm/scale': (None, 0.5, None),
    'trunk/layers_norm/scale': (None,),
    'head/kernel': (2.0,),
    'head/bias': (0.0,),
  }


def test_lists_from_json_and_a_bare_number():
  assert resolve([['head/.*', None], ['.*', 1]]) == resolve((('head/.*', None), ('.*', 1.0)))
  assert set(resolve(0.1).values()) == {(0.1,), (0.1, 0.1, 0.1)}


def test_a_pattern_matches_whole_paths():
  with pytest.raises(ConfigError, match=r"'head'.*head/kernel"):
    resolve((('head', None), ('.*', 1.0)))


def test_an_unmatched_parameter_is_named():
  with pytest.raises(ConfigError, match=r"optim\.scale.*'trunk/layers/2/attention/query/bias'.*\('\.\*', value\)"):
    resolve((('trunk/layers/[01]/.*', 1.0), ('.*kernel', 1.0), ('head/.*|.*table|.*scale', 1.0)))


def test_a_pattern_without_a_parameter_lists_some():
  with pytest.raises(ConfigError, match=r"optim.scale: 'trunk/layers/3/.*'.*trunk/layers/0"):
    resolve((('trunk/layers/3/.*', 1.0), ('.*', 1.0)))


def test_a_pattern_that_never_decides_is_an_error_unless_nothing_changes():
  with pytest.raises(ConfigError, match=r"optim.scale: 'head/.*'"):
    resolve((('.*', 1.0), ('head/.*', 2.0)))
  resolve((('.*scale', 0.0), ('.*norm/.*', 0.0), ('.*', 1.0)))
  resolve((('trunk/.*', None), ('head/.*', 1.0), ('.*', 0.5)))


@pytest.mark.parametrize('value', ['fast', True, {'freeze': 3}, {'unfreeze': 3, 'until': 4}, (1, 2)])
def test_other_values_are_refused(value):
  with pytest.raises(ConfigError, match=r'optim.scale: .*a number, None'):
    resolve((('.*', value),))


def test_an_entry_is_a_pair():
  with pytest.raises(ConfigError, match=r'optim.scale.*\(pattern, value\)'):
    resolve(('.*', 1.0))


def test_words_stand_for_schedules():
  found = resolve((('.*', 'rate'),), words={'rate': jnp.sqrt})
  assert found['head/kernel'] == (jnp.sqrt,)
  with pytest.raises(ConfigError, match=r"optim.scale: 'rating'.*'rate'"):
    resolve((('.*', 'rating'),), words={'rate': jnp.sqrt})


def test_unfreezing():
  values = resolve(
    (('trunk/layers/2/.*', {'unfreeze': 100}), ('trunk/.*', {'unfreeze': 0.5, 'scale': 0.25}), ('.*', 1))
  )
  kernel = values['trunk/layers/attention/query/kernel']
  at = jax.jit(lambda step: groups.factor(kernel, step, 4))
  for step, expected in ((0, (0, 0, 0)), (99, (0, 0, 0)), (100, (0, 0, 1)), (499, (0, 0, 1)), (500, (0.25, 0.25, 1))):
    np.testing.assert_array_equal(np.ravel(at(step)), expected)
  assert at(0).shape == (3, 1, 1, 1)


def test_layerwise_values_fall_from_the_top():
  values = resolve((('trunk/layers/.*', {'layerwise': 0.5, 'scale': 0.8}), ('.*', {'layerwise': 0.5})))
  assert values['trunk/layers/norm/scale'] == pytest.approx((0.2, 0.4, 0.8))
  assert values['head/kernel'] == (1.0,)


def test_what_stands_outside_a_stack_may_count_as_below_it():
  below = {'layerwise': 0.5, 'scale': 0.8, 'below': 1}
  values = resolve((('trunk/embed/.*', below), ('trunk/layers/.*', {'layerwise': 0.5, 'scale': 0.8}), ('.*', 1.0)))
  assert values['trunk/layers/norm/scale'] == pytest.approx((0.2, 0.4, 0.8))
  assert values['trunk/embed/tokens/table'] == pytest.approx((0.1,))


def joined(values, step):
  """Paths of the parameters that train at a step, a layer of a stack by its number."""
  found = set()
  for path, each in values.items():
    for layer, value in enumerate(each):
      if float(value(step)) if callable(value) else value:
        found.add(f'{path}:{layer}' if len(each) > 1 else path)
  return found


def test_gradual_unfreezing_adds_a_group_from_the_top_each_period():
  values = resolve((('trunk/layers_norm/.*', 1.0), ('trunk/.*', {'gradual': 0.1}), ('.*', 1.0)))
  head = {'head/kernel', 'head/bias', 'trunk/layers_norm/scale'}
  groups_in_order = [
    {f'trunk/layers/{name}:{layer}' for name in ('attention/query/kernel', 'attention/query/bias', 'norm/scale')}
    for layer in (2, 1, 0)
  ] + [{'trunk/embed/tokens/table'}]
  expected = head
  for period, group in enumerate(groups_in_order, start=1):
    assert joined(values, 100 * period - 1) == expected
    expected = expected | group
    assert joined(values, 100 * period) == expected
  assert joined(values, 10_000) == expected


def test_gradual_unfreezing_with_a_rate_by_layer():
  values = resolve((('trunk/.*', {'gradual': 50, 'layerwise': 1 / 2.6, 'scale': 0.5}), ('.*', 1.0)))
  kernel = values['trunk/layers/attention/query/kernel']
  assert [str(value) for value in kernel] == ['0.0739645 from step 150', '0.192308 from step 100', '0.5 from step 50']
  np.testing.assert_allclose(np.ravel(groups.factor(kernel, 149, 4)), [0, 0.5 / 2.6, 0.5], rtol=1e-6)
  assert float(groups.factor(values['trunk/embed/tokens/table'], 200, 2)) == pytest.approx(0.5 / 2.6**3)
  assert float(groups.factor(values['trunk/embed/tokens/table'], 199, 2)) == 0


def test_a_part_that_trains_by_turns():
  """Chain-thaw of a head, an embedding and a stack: each alone for a tenth of the run, and all from .3 on."""
  turn = lambda number: {'during': ((0.1 * number, 0.1 * (number + 1)), (0.3, 1.0)), 'scale': 0.5}  # noqa: E731
  values = resolve((('head/.*', turn(0)), ('trunk/embed/.*', turn(1)), ('.*', turn(2))))
  parts = [{'head/kernel', 'head/bias'}, {'trunk/embed/tokens/table'}]
  for number, part in enumerate(parts):
    assert joined(values, 100 * number) == joined(values, 100 * number + 99) == part
  everything = joined(values, 300)
  assert joined(values, 200) == joined(values, 299) == everything - parts[0] - parts[1]
  assert joined(values, 999) == everything >= parts[0] | parts[1]
  assert joined(values, 1000) == set()
  (head,) = values['head/kernel']
  assert str(head) == '0.5 in steps 0-99, 300-999'
  assert float(jax.jit(head)(5)) == 0.5
  text = groups.table(PARAMS, scale=(('head/.*', turn(0)), ('.*', 1.0)), decay=0.0, steps=1000)
  assert '0.5 in steps 0-99, 300-999' in text
  assert text.endswith('1,093 of 1,093 parameters train')


@pytest.mark.parametrize(
  ('during', 'message'),
  [
    ((), r'during=\(\)'),
    (3, 'during=3'),
    ((0.1, 0.2), r'during=\(0.1, 0.2\)'),
    (((0, 0.1), (0.5, 0.5)), r'during=\(0.5, 0.5\).*500.*1000'),
    (((0, 0.0001),), r'during=\(0, 0.0001\)'),
    (((0, 0.1), (1000, 2000)), r'during=\(1000, 2000\).*1000'),
    (((-1, 5),), 'during=-1'),
  ],
)
def test_turns_without_a_step_are_refused(during, message):
  with pytest.raises(ConfigError, match=f'optim.scale.*{message}'):
    resolve((('.*', {'during': during}),))


@pytest.mark.parametrize('start', [1000, 1.0, 5000])
def test_a_part_that_joins_behind_the_run_is_refused(start):
  with pytest.raises(ConfigError, match=r'optim.scale.*unfreeze=.*1000.*None'):
    resolve((('.*', {'unfreeze': start}),))


def test_a_period_without_a_step_is_refused():
  with pytest.raises(ConfigError, match=r"optim.scale: {'gradual': 0.0001}"):
    resolve((('.*', {'gradual': 0.0001}),))
  with pytest.raises(ConfigError, match=r'optim.scale: .*dict\(gradual=period, layerwise=1.0, scale=1.0\)'):
    resolve((('.*', {'gradual': 3, 'below': 1}),))


def test_a_part_of_a_layer_is_none():
  with pytest.raises(ConfigError, match=r"'below': 0.5}.*dict\(layerwise=factor, below=0"):
    resolve((('.*', {'layerwise': 0.5, 'below': 0.5}),))


@pytest.mark.parametrize(('share', 'steps', 'whole'), [(0.29, 100, 29), (0.57, 10_000, 5_700), (0.1, 15, 1)])
def test_a_share_of_the_run_is_whole_steps(share, steps, whole):
  assert of_plugins.as_steps(share, steps, 'warmup') == whole


def test_what_counts_as_stacked():
  leaf = S((3, 8), jnp.float32)
  assert param_paths.virtual_paths('trunk/decoder/layers/mlp/bias', leaf)[2] == 'trunk/decoder/layers/2/mlp/bias'
  assert param_paths.virtual_paths('trunk/layers/0/bias', leaf) == ['trunk/layers/0/bias']
  assert param_paths.virtual_paths('trunk/my_layers/bias', leaf) == ['trunk/my_layers/bias']
  assert param_paths.virtual_paths('head/layers', leaf) == ['head/layers']
  assert param_paths.virtual_paths('trunk/layers/count', S((), jnp.int32)) == ['trunk/layers/count']


def test_boxes_of_axis_names_do_not_show():
  boxed = jax.tree.map(lambda leaf: nn.LogicallyPartitioned(leaf, (None,) * len(leaf.shape)), PARAMS)
  assert groups.resolve(1.0, boxed, steps=1, what='scale') == resolve(1.0)


def test_table():
  scale = (
    ('trunk/embed/.*', None),
    ('trunk/layers/[01]/.*', 0.5),
    ('trunk/layers/2/.*', {'unfreeze': 0.1}),
    ('.*', 1.0),
  )
  text = groups.table(PARAMS, scale=scale, decay=(('.*(bias|scale)', 0.0), ('.*', 'rate')), steps=1000)
  rows = [line.split(maxsplit=5) for line in text.splitlines()]
  assert ['trunk/embed', '1', '800', 'frozen', 'rate'] in rows
  assert ['trunk/layers', '0-1', '2', '128', '0.5', 'rate'] in rows
  assert ['trunk/layers', '0-1', '4', '32', '0.5', '0'] in rows
  assert ['trunk/layers', '2', '1', '64', '1', 'from step 100  rate'] in rows
  assert text.endswith('\n293 of 1,093 parameters train')
