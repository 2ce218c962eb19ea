"""Starting from saved parameters: each way to fit a leaf, and each refusal."""

import pathlib
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from plm_jax import checkpoint
from plm_jax.checkpoint import init_from
from plm_jax.checkpoint.fit import interpolate_positions
from plm_jax.checkpoint.init_from import initialise


def trunk(
  seed: int, *, layers: int = 6, positions: int = 8, vocab: int = 20, hidden: int = 4, dtype: Any = jnp.float32
) -> dict[str, Any]:
  draw = np.random.default_rng(seed)

  def table(*shape: int) -> Any:
    return jnp.asarray(draw.standard_normal(shape), dtype)

  return {
    'token_embed': {'embedding': table(vocab, hidden)},
    'position_embed': {'embedding': table(positions, hidden)},
    'layers': {'query': {'kernel': table(layers, hidden, hidden)}},
    'norm': {'scale': table(hidden)},
  }


@pytest.fixture(scope='module')
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """A run folder: steps 10 (the best) and 20, each with a trunk and a head."""
  workdir = tmp_path_factory.mktemp('pretrained')
  with checkpoint.Checkpoints(workdir / 'checkpoints', keep=2, best=('loss', 'min')) as saved:
    for step in (10, 20):
      params = {'trunk': trunk(step), 'mlm_head': {'bias': jnp.zeros(20)}}
      saved.save(step, {'params': params, 'step': jnp.int32(step)}, metrics={'loss': step})
  return workdir


def fresh(**sizes: Any) -> dict[str, Any]:
  return {'trunk': trunk(1, **sizes), 'classifier': {'kernel': jnp.ones((4, 2))}}


def entry(source: pathlib.Path, **fields: Any) -> list[dict[str, Any]]:
  return [{'source': str(source), **fields}]


def equal(a: Any, b: Any) -> bool:
  return jax.tree.structure(a) == jax.tree.structure(b) and all(
    np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )


def test_the_trunk_is_restored_and_the_head_is_new(pretrained: pathlib.Path) -> None:
  params, report = initialise(fresh(), entry(pretrained, step='newest'))
  assert equal(params, {**fresh(), 'trunk': trunk(20)})
  assert sorted(report.restored) == [
    'trunk/layers/query/kernel',
    'trunk/norm/scale',
    'trunk/position_embed/embedding',
    'trunk/token_embed/embedding',
  ]
  assert report.restored['trunk/norm/scale'] == f'{pretrained}:trunk/norm/scale'
  assert report.new == ('classifier/kernel',)
  assert report.skipped == ()


@pytest.mark.parametrize(
  ('fields', 'taken'), [({}, 10), ({'step': 'best'}, 10), ({'step': 'newest'}, 20), ({'step': 20}, 20)]
)
def test_which_step_is_taken(pretrained: pathlib.Path, fields: dict[str, Any], taken: int) -> None:
  params, _ = initialise(fresh(), entry(pretrained, **fields))
  assert equal(params['trunk'], trunk(taken))


def test_all_of_a_source(pretrained: pathlib.Path) -> None:
  params, report = initialise({'trunk': trunk(1), 'other': jnp.zeros(2)}, entry(pretrained, from_='', to=''))
  assert equal(params['trunk'], trunk(10))
  assert report.new == ('other',)
  assert report.skipped == (f'{pretrained}:mlm_head/bias',)


@pytest.mark.parametrize('place', ['', 'trunk', 'trunk/norm/scale'])
def test_what_fits_is_taken_wherever_it_goes(tmp_path: pathlib.Path, place: str) -> None:
  checkpoint.save_params(tmp_path, {'trunk': trunk(5)})
  where = [{'source': tmp_path, 'from_': place, 'to': place, 'fitting': True}]
  params, report = initialise({'trunk': trunk(1)}, where)
  assert report.restored and not report.skipped
  assert equal(params['trunk']['norm'], trunk(5)['norm'])
  larger = {'trunk': trunk(1), 'other': jnp.zeros(2)}
  if not place:  # the source lacks a leaf
    assert initialise(larger, where)[1].restored == {}


def test_saved_parameters_are_a_source_too(tmp_path: pathlib.Path) -> None:
  checkpoint.save_params(tmp_path, {'trunk': trunk(5)})
  params, _ = initialise(fresh(), entry(tmp_path))
  assert equal(params['trunk'], trunk(5))


def test_parts_go_to_other_places_and_later_entries_win(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> None:
  checkpoint.save_params(tmp_path, {'vectors': np.full((20, 4), 7, np.float32)})
  params = {'trunk': {'encoder': trunk(1), 'decoder': trunk(2)}}
  params, report = initialise(
    params,
    [
      {'source': pretrained, 'to': 'trunk/encoder'},
      {'source': pretrained, 'step': 20, 'to': 'trunk/decoder'},
      {'source': tmp_path, 'from_': 'vectors', 'to': 'trunk/encoder/token_embed/embedding'},
    ],
  )
  assert equal(params['trunk']['decoder'], trunk(20))
  assert equal(params['trunk']['encoder'], {**trunk(10), 'token_embed': {'embedding': jnp.full((20, 4), 7.0)}})
  assert report.restored['trunk/encoder/token_embed/embedding'] == f'{tmp_path}:vectors'
  assert report.new == ()


def test_a_part_may_be_added_to_an_earlier_one(pretrained: pathlib.Path, tmp_path: pathlib.Path) -> None:
  checkpoint.save_params(tmp_path, {'delta': {'embedding': np.full((20, 4), 7, np.float32)}})
  more = {'source': tmp_path, 'from_': 'delta', 'to': 'trunk/token_embed', 'add': True}
  params, report = initialise(fresh(), [{'source': pretrained}, more])
  expected = {**trunk(10), 'token_embed': {'embedding': trunk(10)['token_embed']['embedding'] + 7}}
  assert equal(params['trunk'], expected)
  place = 'trunk/token_embed/embedding'
  assert report.restored[place] == f'{pretrained}:{place} + {tmp_path}:delta/embedding'
  with pytest.raises(ValueError, match='earlier entry'):
    initialise(fresh(), [more])


SUMS = {'trunk/token_embed/embedding': ('second/token_embed/embedding', 'delta/embedding')}


def test_a_leaf_that_one_side_keeps_as_a_sum(tmp_path: pathlib.Path) -> None:
  """From a table that is whole to two that make it up, back, and from two to two."""
  whole = trunk(10)
  checkpoint.save_params(tmp_path / 'whole', {'trunk': whole})
  alone, own = {name: tree for name, tree in trunk(1).items() if name != 'token_embed'}, trunk(2)['token_embed']
  fresh_two = {'trunk': alone, 'second': {'token_embed': own}, 'delta': {'embedding': jnp.zeros((20, 4))}}
  params, report = initialise(fresh_two, entry(tmp_path / 'whole'), sums=SUMS)
  np.testing.assert_allclose(
    params['second']['token_embed']['embedding'] + params['delta']['embedding'],
    whole['token_embed']['embedding'], rtol=0, atol=1e-6,
  )  # fmt: skip
  assert equal(params['second']['token_embed'], own)
  assert report.new == ('second/token_embed/embedding',) and report.skipped == ()
  assert report.restored['delta/embedding'].endswith(':trunk/token_embed/embedding, less second/token_embed/embedding')

  longer = {**fresh_two, 'second': {'token_embed': trunk(2, vocab=23)['token_embed']}}
  longer['delta'] = {'embedding': jnp.full((23, 4), 5.0)}
  with pytest.raises(ValueError, match=r'delta/embedding.*\[20, 4\].*\[23, 4\]'):
    initialise(longer, entry(tmp_path / 'whole'), sums=SUMS)
  rows, _ = initialise(longer, entry(tmp_path / 'whole', resize='new_rows'), sums=SUMS)
  np.testing.assert_array_equal(rows['delta']['embedding'][20:], 5)
  table = (rows['second']['token_embed']['embedding'] + rows['delta']['embedding'])[:20]
  np.testing.assert_allclose(table, whole['token_embed']['embedding'], rtol=0, atol=1e-6)

  checkpoint.save_params(tmp_path / 'two', params)

  def open_params(source: Any, step: Any) -> Any:
    return checkpoint.open_params(source, step=step).with_sums(SUMS)

  back, report = initialise(fresh(), entry(tmp_path / 'two'), sums=SUMS, open_params=open_params)
  np.testing.assert_allclose(
    back['trunk']['token_embed']['embedding'], whole['token_embed']['embedding'], rtol=0, atol=1e-6
  )
  assert report.new == ('classifier/kernel',)
  again, report = initialise(fresh_two, entry(tmp_path / 'two', from_='', to=''), sums=SUMS, open_params=open_params)
  assert equal(again, params) and report.new == ()


def test_some_layers_of_the_stack(pretrained: pathlib.Path) -> None:
  params, report = initialise(fresh(layers=3), entry(pretrained, layers=[0, 2, 5]))
  source = trunk(10)
  np.testing.assert_array_equal(
    params['trunk']['layers']['query']['kernel'], source['layers']['query']['kernel'][jnp.array([0, 2, 5])]
  )
  np.testing.assert_array_equal(params['trunk']['norm']['scale'], source['norm']['scale'])
  assert report.restored['trunk/layers/query/kernel'].endswith(':trunk/layers/query/kernel, layers 0, 2, 5')


def test_positions_are_interpolated_and_rows_added_where_asked(pretrained: pathlib.Path) -> None:
  params, report = initialise(fresh(positions=15, vocab=23), entry(pretrained, resize=('interpolate', 'new_rows')))
  source, own = trunk(10), fresh(positions=15, vocab=23)['trunk']
  positions = params['trunk']['position_embed']['embedding']
  np.testing.assert_array_equal(positions[::2], source['position_embed']['embedding'])
  np.testing.assert_allclose(positions[1::2], (positions[:-1:2] + positions[2::2]) / 2, rtol=1e-6)
  tokens = params['trunk']['token_embed']['embedding']
  np.testing.assert_array_equal(tokens[:20], source['token_embed']['embedding'])
  np.testing.assert_array_equal(tokens[20:], own['token_embed']['embedding'][20:])
  assert report.restored['trunk/position_embed/embedding'].endswith(', 8 positions interpolated to 15')
  assert report.restored['trunk/token_embed/embedding'].endswith(', rows 20 to 22 new')


def test_new_rows_of_an_untied_output(tmp_path: pathlib.Path) -> None:
  checkpoint.save_params(
    tmp_path, {'trunk': {'out': {'kernel': np.ones((4, 20), np.float32), 'bias': np.ones(20, np.float32)}}}
  )
  params = {'trunk': {'out': {'kernel': jnp.zeros((4, 22)), 'bias': jnp.zeros(22)}}}
  params, _ = initialise(params, entry(tmp_path, resize='new_rows'))
  np.testing.assert_array_equal(params['trunk']['out']['kernel'], np.tile([1.0] * 20 + [0.0] * 2, (4, 1)))
  np.testing.assert_array_equal(params['trunk']['out']['bias'], [1.0] * 20 + [0.0] * 2)


@pytest.mark.parametrize('resize', ['new_rows', 'mean_rows'])
@pytest.mark.parametrize(
  ('path', 'old', 'new'),
  [
    ('trunk/token_embed/table', (20, 4), (20, 6)),  # columns
    ('trunk/out/kernel', (4, 20), (6, 20)),
    ('trunk/norm/bias', (4,), (6,)),
    ('trunk/layers/mlp/bias', (2, 4), (2, 6)),
    ('trunk/layers/mlp/kernel', (2, 4, 4), (2, 4, 6)),
    ('trunk/lstm_0/bias', (2, 4, 4), (2, 4, 6)),
    ('trunk/mix/weights', (3,), (5,)),
    ('head/bias', (3,), (5,)),  # classes
  ],
)
def test_rows_are_new_along_the_vocabulary_alone(
  resize: str, path: str, old: tuple[int, ...], new: tuple[int, ...], tmp_path: pathlib.Path
) -> None:
  def tree(leaf: Any) -> Any:
    for name in reversed(path.split('/')):
      leaf = {name: leaf}
    return leaf

  checkpoint.save_params(tmp_path, tree(np.ones(old, np.float32)))
  with pytest.raises(ValueError, match=rf'{path}.*\[.*\]') as caught:
    initialise(tree(jnp.zeros(new)), entry(tmp_path, from_='', to='', resize=resize))
  assert 'new_rows' not in str(caught.value) and 'mean_rows' not in str(caught.value)


@pytest.mark.parametrize('resize', [None, 'new_rows', 'mean_rows'])
def test_vectors_of_another_width_are_refused_by_it(resize: str | None) -> None:
  def open_params(source: str, *, step: Any) -> checkpoint.Params:
    return checkpoint.in_memory({'table': np.ones((20, 3), np.float32)}, where=source)

  vectors: Any = {'open_params': open_params, 'width_key': lambda source, path: 'model.overrides.hidden_dim'}
  asked = [{'source': 'v.txt', 'from_': '', 'to': 'trunk/token_embed', 'resize': resize}]
  with pytest.raises(ValueError, match=r'hidden_dim=3') as caught:
    initialise({'trunk': {'token_embed': {'table': jnp.zeros((20, 4))}}}, asked, **vectors)
  assert re.search(
    r'trunk/token_embed/table .*\b4 .*v\.txt.*\b3\b.*--config\.model\.overrides\.hidden_dim=3\b', str(caught.value)
  )
  params: Any = {'trunk': {'token_embed': {'table': jnp.zeros((24, 3))}}}  # padded by vocab_multiple
  if resize is None:
    with pytest.raises(ValueError, match=r"trunk/token_embed/table .*\b24 .*\b20 .*v\.txt.*resize='new_rows'"):
      initialise(params, asked, **vectors)
  else:
    params, _ = initialise(params, asked, **vectors)
    assert params['trunk']['token_embed']['table'][:20].all()


def test_new_rows_may_start_from_the_mean(pretrained: pathlib.Path) -> None:
  params, report = initialise(fresh(vocab=23), entry(pretrained, resize='mean_rows'))
  source, tokens = trunk(10)['token_embed']['embedding'], params['trunk']['token_embed']['embedding']
  np.testing.assert_array_equal(tokens[:20], source)
  np.testing.assert_allclose(tokens[20:], np.tile(np.mean(np.asarray(source), axis=0), (3, 1)), rtol=1e-6)
  assert report.restored['trunk/token_embed/embedding'].endswith(', rows 20 to 22 their mean')


@pytest.mark.parametrize('rows', [20, 22, 24])
def test_the_mean_is_that_of_tokens_without_padding(rows: int, tmp_path: pathlib.Path) -> None:
  """Eighteen ids in 20 rows; new words begin behind the ids, and there is as much of the mean as there are rows."""
  table = np.asarray(trunk(10)['token_embed']['embedding'])
  checkpoint.save_params(tmp_path, {'trunk': {'token_embed': {'table': table}, 'kernel': np.ones((20, 3), np.float32)}})
  params = {'trunk': {'token_embed': {'table': jnp.zeros((rows, table.shape[1]))}, 'kernel': jnp.zeros((20, 3))}}
  asked = entry(tmp_path, resize='mean_rows')
  params, _ = initialise(params, asked, vocab_size={str(tmp_path): 18}.__getitem__)
  tokens = params['trunk']['token_embed']['table']
  np.testing.assert_array_equal(tokens[:18], table[:18])
  np.testing.assert_allclose(tokens[18:], np.tile(table[:18].mean(axis=0), (rows - 18, 1)), rtol=1e-6)
  np.testing.assert_array_equal(params['trunk']['kernel'], np.ones((20, 3)))  # as many rows, and none of tokens


def test_rows_are_found_by_their_token(tmp_path: pathlib.Path) -> None:
  """Eighteen ids of two rows more, for sharding; here 23 ids in 24 rows, and an untied output of as many columns."""
  out = {'kernel': np.arange(80, dtype=np.float32).reshape(4, 20), 'bias': np.arange(20, dtype=np.float32)}
  saved = {**trunk(10), 'out': out}
  saved['token_embed'] = {'table': saved['token_embed']['embedding']}
  checkpoint.save_params(tmp_path, {'trunk': saved})
  rows = np.array([5, 17, -1, 0, *[-1] * 18, 3])
  where = init_from.SameTokens(rows, size=18)
  params = {'trunk': {**trunk(1, vocab=24), 'out': {'kernel': jnp.zeros((4, 24)), 'bias': jnp.zeros(24)}}}
  asked = entry(tmp_path, resize='same_tokens')
  params['trunk']['token_embed'] = {'table': params['trunk']['token_embed']['embedding']}
  params, report = initialise(params, asked, same_tokens={str(tmp_path): where}.__getitem__)
  source, tokens = np.asarray(saved['token_embed']['table']), params['trunk']['token_embed']['table']
  np.testing.assert_array_equal(tokens[np.array([0, 1, 3, 22])], source[[5, 17, 0, 3]])
  for row in (2, 4, 21, 23):
    np.testing.assert_allclose(tokens[row], source[:18].mean(axis=0), rtol=1e-6)
  np.testing.assert_array_equal(params['trunk']['out']['kernel'][:, 1], out['kernel'][:, 17])
  np.testing.assert_array_equal(params['trunk']['out']['bias'][:4], [5, 17, 8.5, 0])
  assert report.restored['trunk/token_embed/table'].endswith(', 4 of 23 rows by their token, the others their mean')
  assert equal(params['trunk']['layers'], saved['layers']) and equal(params['trunk']['norm'], saved['norm'])


def test_rows_are_found_by_their_token_where_both_tables_are_as_long(tmp_path: pathlib.Path) -> None:
  checkpoint.save_params(tmp_path, {'trunk': trunk(10)})
  where = init_from.SameTokens(np.arange(20)[::-1], size=20)
  params, _ = initialise(fresh(), entry(tmp_path, resize='same_tokens'), same_tokens=lambda source: where)
  np.testing.assert_array_equal(
    params['trunk']['token_embed']['embedding'], np.asarray(trunk(10)['token_embed']['embedding'])[::-1]
  )


def test_rows_of_zeros_stay_fresh_where_asked(tmp_path: pathlib.Path) -> None:
  saved = trunk(5)
  gaps = np.asarray(saved['token_embed']['embedding']).copy()
  gaps[[0, 7]] = 0
  gaps[3, 0] = 0  # one number of a row is no row
  saved['token_embed']['embedding'] = jnp.asarray(gaps)
  checkpoint.save_params(tmp_path / 'gaps', {'trunk': saved})
  for sizes, resize in (({}, None), ({'vocab': 23}, 'new_rows')):
    asked = entry(tmp_path / 'gaps', from_='trunk/token_embed', to='trunk/token_embed', resize=resize)
    params, report = initialise(fresh(**sizes), [{**asked[0], 'fresh_zeros': True}])
    own = np.asarray(fresh(**sizes)['trunk']['token_embed']['embedding'])
    expected = np.concatenate([gaps, own[20:]])
    expected[[0, 7]] = own[[0, 7]]
    assert np.array_equal(params['trunk']['token_embed']['embedding'], expected)
    assert '2 rows of zeros new' in report.restored['trunk/token_embed/embedding']
    params, _ = initialise(fresh(**sizes), asked)
    assert not np.asarray(params['trunk']['token_embed']['embedding'])[[0, 7]].any()
  with pytest.raises(ValueError, match='fresh_zeros'):
    initialise(fresh(), entry(tmp_path / 'gaps', fresh_zeros=True, add=True))


def test_a_dtype_is_changed_only_where_asked(pretrained: pathlib.Path) -> None:
  half = fresh(dtype=jnp.bfloat16)
  with pytest.raises(ValueError, match=r"trunk/.*float32.*bfloat16.*dtype='bfloat16'"):
    initialise(half, entry(pretrained))
  with pytest.raises(ValueError, match=r"dtype='bfloat16'"):
    initialise(half, entry(pretrained, dtype='float16'))
  params, report = initialise(half, entry(pretrained, dtype='bfloat16'))
  assert equal(params['trunk'], jax.tree.map(lambda x: x.astype(jnp.bfloat16), trunk(10)))
  assert report.restored['trunk/norm/scale'].endswith(', float32 to bfloat16')


@pytest.mark.skipif(jax.device_count() < 4, reason='needs four devices')
@pytest.mark.parametrize('sizes', [{}, {'vocab': 24, 'positions': 12}])
def test_leaves_keep_their_places(pretrained: pathlib.Path, sizes: dict[str, int]) -> None:
  mesh = jax.make_mesh((2, 2), ('data', 'model'), axis_types=(AxisType.Auto,) * 2)
  places = jax.tree.map(lambda x: NamedSharding(mesh, PartitionSpec(*['data', 'model'][: x.ndim])), fresh(**sizes))
  placed = jax.device_put(fresh(**sizes), places)
  params, _ = initialise(placed, entry(pretrained, resize=['new_rows', 'interpolate']))
  assert jax.tree.map(lambda x: x.sharding, params) == places
  expected, _ = initialise(fresh(**sizes), entry(pretrained, resize=['new_rows', 'interpolate']))
  assert equal(params, expected)


# Refusals.


@pytest.mark.parametrize(
  ('sizes', 'fields', 'match'),
  [
    ({'positions': 16}, {}, r"trunk/position_embed/embedding.*\[8, 4\].*\[16, 4\].*resize='interpolate'"),
    ({'positions': 16}, {'resize': 'new_rows'}, r"resize='interpolate'"),
    ({'vocab': 21}, {}, r"trunk/token_embed/embedding.*\[20, 4\].*\[21, 4\].*resize='new_rows'"),
    ({'vocab': 21}, {'resize': 'interpolate'}, r"resize='new_rows'"),
    ({'vocab': 19}, {'resize': 'new_rows'}, r'\[20, 4\].*\[19, 4\].*size'),
    ({'layers': 3}, {}, r'trunk/layers/query/kernel.*\[6, 4, 4\].*\[3, 4, 4\].*layers=\(\.\.\.\).*\b3 layers'),
    ({'layers': 3}, {'layers': (0, 1)}, r'\[2, 4, 4\].*\[3, 4, 4\].*size'),
    ({'layers': 3}, {'layers': (0, 2, 6)}, r'layers=\(0, 2, 6\).*\b0 to 5'),
    ({'layers': 3}, {'layers': (-1, 0, 1)}, r'layers=\(-1, 0, 1\)'),
    ({'hidden': 5}, {}, r'size.*--config\.model\.from=FOLDER'),
    ({}, {'from_': 'trnk'}, r"'trnk'.*mlm_head, trunk"),
    ({}, {'to': 'encoder'}, r"'trunk'.*'encoder'.*classifier/kernel"),
    ({}, {'from_': 'mlm_head', 'layers': (0,)}, r"stacked layers.*'mlm_head'"),
    ({}, {'layer': (0,)}, r"init_from.*'layer'.*'layers'"),
    ({}, {'resize': 'stretch'}, r"resize='stretch'.*interpolate, new_rows"),
  ],
)
def test_what_does_not_fit_is_refused_with_the_cure(
  pretrained: pathlib.Path, sizes: dict[str, int], fields: dict[str, Any], match: str
) -> None:
  with pytest.raises(ValueError, match=match):
    initialise(fresh(**sizes), entry(pretrained, **fields))


def test_a_head_of_other_classes_is_left_out(tmp_path: pathlib.Path) -> None:
  checkpoint.save_params(tmp_path, {'trunk': trunk(5), 'head': {'kernel': jnp.ones((4, 3))}})
  here = {'trunk': fresh()['trunk'], 'head': {'kernel': jnp.zeros((4, 5))}}
  whole = [{'source': str(tmp_path), 'from_': '', 'to': ''}]
  with pytest.raises(ValueError, match=r"head/kernel.*\[4, 3\].*from_='trunk', to='trunk'"):
    initialise(here, whole)
  params, _ = initialise(here, [{**whole[0], 'from_': 'trunk', 'to': 'trunk'}])
  assert equal(params['trunk'], trunk(5)) and not params['head']['kernel'].any()


def test_an_entry_names_its_source() -> None:
  with pytest.raises(ValueError, match="'source'"):
    initialise(fresh(), [{'from_': 'trunk'}])


def test_a_damaged_source_is_refused(tmp_path: pathlib.Path) -> None:
  file = checkpoint.save_params(tmp_path, {'trunk': trunk(5)})
  file.write_bytes(file.read_bytes()[:-1] + b'\x7f')
  with pytest.raises(checkpoint.CheckpointError, match='damaged'):
    initialise(fresh(), entry(tmp_path))


# The report and the interpolation.


def test_the_report_reads_as_a_table() -> None:
  report = init_from.Report({'trunk/a': 'run:trunk/a', 'trunk/longer': 'run:trunk/b'}, ('head/k',), ('run:mlm/bias',))
  assert report.table().splitlines() == [
    'restored  trunk/a       run:trunk/a',
    'restored  trunk/longer  run:trunk/b',
    'new       head/k',
    'skipped   run:mlm/bias',
    '2 restored, 1 new, 1 skipped',
  ]


def test_another_loader_may_be_given() -> None:
  asked = []

  def open_params(source: str, *, step: Any) -> checkpoint.Params:
    asked.append((source, step))
    return checkpoint.in_memory({'trunk': trunk(9), 'head': trunk(8)})

  params, _ = initialise(fresh(), [{'source': 'hub/bert', 'step': 3}], open_params=open_params)
  assert asked == [('hub/bert', 3)]
  assert equal(params['trunk'], trunk(9))


@pytest.mark.parametrize('length', [1, 2, 5, 8, 15, 100])
def test_interpolation_is_linear_and_keeps_the_ends(length: int) -> None:
  table = np.random.default_rng(0).standard_normal((8, 3)).astype(np.float32)
  stretched = interpolate_positions(table, length)
  at = np.linspace(0, 7, length)
  expected = np.stack([np.interp(at, np.arange(8), column) for column in table.T], axis=1)
  np.testing.assert_allclose(stretched, expected, rtol=1e-5, atol=1e-6)
  assert stretched.dtype == np.float32
  np.testing.assert_array_equal(stretched[0], table[0])
  if length > 1:
    np.testing.assert_array_equal(stretched[-1], table[-1])
  if length == 8:
    np.testing.assert_array_equal(stretched, table)


def test_rows_before_the_positions_are_kept(pretrained: pathlib.Path) -> None:
  table = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)  # 2 rows and 8 positions, as in RoBERTa
  stretched = interpolate_positions(table, 17, before=2)
  np.testing.assert_array_equal(stretched[:2], table[:2])
  np.testing.assert_array_equal(stretched[2::2], table[2:])
  np.testing.assert_array_equal(stretched[2:], interpolate_positions(table[2:], 15))
  with pytest.raises(ValueError, match=r'\b10 rows.*\b2\b'):
    interpolate_positions(table, 2, before=2)
  rows = {'position_embed': range(2, 13)}
  params, report = initialise(fresh(positions=13), entry(pretrained, resize='interpolate'), position_rows=rows)
  source = trunk(10)['position_embed']['embedding']
  np.testing.assert_array_equal(params['trunk']['position_embed']['embedding'][:3], source[:3])
  np.testing.assert_array_equal(params['trunk']['position_embed']['embedding'][2::2], source[2:])
  assert report.restored['trunk/position_embed/embedding'].endswith(', 6 positions interpolated to 11')


def test_layers_are_never_interpolated(tmp_path: pathlib.Path) -> None:
  """XLNet's kernels of relative positions are stacked by layer, and are no table of positions."""
  kernel = {'trunk': {'layers': {'position': {'kernel': np.ones((6, 4, 4), np.float32)}}}}
  checkpoint.save_params(tmp_path, kernel)
  params = {'trunk': {'layers': {'position': {'kernel': jnp.zeros((12, 4, 4))}}}}
  with pytest.raises(ValueError, match='size'):
    initialise(params, entry(tmp_path, resize='interpolate'))


def test_interpolation_keeps_the_dtype_and_refuses_nothing_to_do() -> None:
  assert interpolate_positions(np.ones((1, 2), jnp.bfloat16), 4).tolist() == [[1.0, 1.0]] * 4
  assert interpolate_positions(np.ones((4, 2), jnp.bfloat16), 8).dtype == jnp.bfloat16
  with pytest.raises(ValueError, match=r'\b4 rows.*\b0\b'):
    interpolate_positions(np.ones((4, 2)), 0)
