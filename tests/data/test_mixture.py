"""Mixed sources: the shares of T5's rule, exact rounds, pure reading, each row once."""

import itertools

import numpy as np
import pytest

from plm_jax.data import mixture
from tests.data import small

SIZES = {'a': 40, 'b': 10, 'c': 150}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  place = tmp_path_factory.mktemp('mixture')
  for name, count in SIZES.items():
    (place / name).mkdir()
    small.write_text(place / name / 'train.txt', small.documents([6] * count))
  return place


def make(folder, **changes):
  parts = {
    name: {'name': 'stream', 'path': str(folder / name), 'layout': 'rows', 'cache': str(folder)} for name in SIZES
  }
  settings = {'vocab': small.NumberVocab(), 'parts': parts, 'length': 8, 'batch_size': 16, 'seed': 3}
  return mixture.make(**(settings | changes))


def take(source, start, count):
  return list(itertools.islice(source.read(start), count))


def same(left, right):
  assert left.keys() == right.keys()
  for key in left:
    np.testing.assert_array_equal(left[key], right[key], err_msg=key)


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    ({}, {'a': 40 / 200, 'b': 10 / 200, 'c': 150 / 200}),
    ({'limit': 20}, {'a': 20 / 50, 'b': 10 / 50, 'c': 20 / 50}),
    ({'temperature': 2.0}, {name: count**0.5 / (40**0.5 + 10**0.5 + 150**0.5) for name, count in SIZES.items()}),
    ({'rates': {'a': 1, 'b': 1, 'c': 2}}, {'a': 0.25, 'b': 0.25, 'c': 0.5}),
  ],
)
def test_shares_are_those_of_the_rule(settings, expected):
  shares = mixture.shares(SIZES, **settings)
  assert shares == pytest.approx(expected)


GLUE = {'cola': 8551, 'sst2': 67349, 'mrpc': 3668, 'qqp': 363849, 'mnli': 392702, 'qnli': 104743, 'rte': 2490}


@pytest.mark.parametrize(
  ('limit', 'expected'),
  [
    (2**16, {'cola': 8551 / 276853, 'mrpc': 3668 / 276853, 'rte': 2490 / 276853, 'mnli': 65536 / 276853}),
    (2**18, {'cola': 8551 / 711089, 'mrpc': 3668 / 711089, 'rte': 2490 / 711089, 'mnli': 262144 / 711089}),
    (2**21, {'cola': 8551 / 943352, 'mrpc': 3668 / 943352, 'rte': 2490 / 943352, 'mnli': 392702 / 943352}),
  ],
)
def test_shares_of_glue_at_the_limits_of_t5(limit, expected):
  shares = mixture.shares(GLUE, limit=limit)
  assert {name: shares[name] for name in expected} == pytest.approx(expected)
  # a temperature takes the root of every ratio
  for temperature in (2.0, 4.0, 8.0):
    warm = mixture.shares(GLUE, temperature=temperature, limit=limit)
    ratio = shares['mnli'] / shares['rte']
    assert warm['mnli'] / warm['rte'] == pytest.approx(ratio ** (1 / temperature))
    assert sum(warm.values()) == pytest.approx(1)


def test_a_high_temperature_is_even():
  assert list(mixture.shares(SIZES, temperature=1e6).values()) == pytest.approx([1 / 3] * 3, rel=1e-4)


@pytest.mark.parametrize('total', [7, 64, 4096])
def test_counts_are_whole_and_near(total):
  fractions = np.array([0.5, 0.3, 0.1, 0.09, 0.01])
  counts = mixture.counts(fractions, total=total)
  assert counts.sum() == total
  assert counts.min() >= 1
  if total == 4096:
    assert np.abs(counts - fractions * total).max() < 1


def test_a_round_holds_every_share_exactly(folder):
  source = make(folder, limit=20)
  parts = np.concatenate([batch['part'] for batch in take(source, 0, 2 * 4096 // 16)])
  for start in (0, 4096):
    counts = np.bincount(parts[start : start + 4096], minlength=3)
    assert np.abs(counts - 4096 * np.array([0.4, 0.2, 0.4])).max() < 1
  assert (parts[:4096] != parts[4096:]).any()


def test_read_is_a_pure_function_of_the_step(folder):
  source = make(folder)
  batches = take(source, 0, 300)  # goes over the end of a round
  for start in (1, 37, 255, 256, 257, 299):
    same(take(make(folder), start, 1)[0], batches[start])


@pytest.mark.parametrize('hosts', [2, 4, 8])
def test_hosts_together_read_what_one_reads(folder, hosts):
  whole = take(make(folder), 5, 4)
  parts = [take(make(folder, host=host, hosts=hosts), 5, 4) for host in range(hosts)]
  for step, batch in enumerate(whole):
    same({key: np.concatenate([part[step][key] for part in parts]) for key in batch}, batch)


def test_rows_of_a_part_come_once_an_epoch_and_ids_are_unique(folder):
  rows = [
    (int(part), int(row), int(epoch))
    for batch in take(make(folder), 0, 100)
    for part, row, epoch in zip(batch['part'], batch['row_id'], batch['epoch'], strict=True)
  ]
  assert len(set(rows)) == len(rows)
  owners = {row: part for part, row, _ in rows}
  assert all(owners[row] == part for part, row, _ in rows)
  assert set(owners) == set(range(200))


def test_once_gives_every_row_once(folder):
  rows = [
    int(row)
    for batch in make(folder).once()
    for row, weight in zip(batch['row_id'], batch['row_weight'], strict=True)
    if weight
  ]
  assert sorted(rows) == list(range(200))


def test_mistakes_are_named(folder):
  with pytest.raises(ValueError, match='name the same sources'):
    make(folder, rates={'a': 1.0})
  with pytest.raises(ValueError, match='must be positive'):
    make(folder, temperature=0.0)
  with pytest.raises(ValueError, match='name at least one'):
    make(folder, parts={})


def test_records_and_groups_are_those_of_the_part(tmp_path):
  """Also where a part leaves rows out, so that its numbers have gaps."""
  rows = {'a': [0, -1, 1], 'b': [1, 0, -1, 1]}
  for name, labels in rows.items():
    lines = [{'sentence': f'{number}', 'label': label} for number, label in enumerate(labels)]
    (tmp_path / name).mkdir()
    small.write_rows(tmp_path / name / 'train.jsonl', lines)
  parts = {name: {'name': 'labelled', 'path': str(tmp_path / name), 'cache': str(tmp_path)} for name in rows}
  source = make(tmp_path, parts=parts, batch_size=4)
  found = []
  for batch in source.once():
    for place in np.flatnonzero(batch['row_weight']):
      record = source.record(int(batch['row_id'][place]))
      assert record['label'] == batch['label'][place]
      assert record['part'] == 'ab'[batch['part'][place]]
      found.append((record['part'], record['row']['sentence']))
  assert found == [('a', '0'), ('a', '2'), ('b', '0'), ('b', '1'), ('b', '3')]
  ids = np.concatenate([batch['row_id'] for batch in source.once()])
  assert len(set(ids[ids >= 0].tolist())) == source.rows and ids.max() < source.ids
  assert source.group is None
