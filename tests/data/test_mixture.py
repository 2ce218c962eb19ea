"""Mixed sources: shares of T5's rule, exact rounds, pure reading, each example once."""

import dataclasses
import itertools

import numpy as np
import pytest

from plm_jax.data import mixture, text_to_text
from plm_jax.training.parts import check_names
from tests.data import small

pytestmark = pytest.mark.turns

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
  with pytest.raises(ValueError, match=r'positive|rate'):
    make(folder, temperature=0.0)
  with pytest.raises(ValueError, match='name at least one'):
    make(folder, parts={})


def test_records_and_groups_are_those_of_the_part(tmp_path):
  """Include a part that drops rows, so that its ids have gaps."""
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


# Tasks as text, row by row.

WRITTEN = {
  'cola': {'sentence': 'A b', 'label': 1},
  'mnli': {'premise': 'A b', 'hypothesis': 'C', 'label': 2},
  'stsb': {'sentence1': 'A b', 'sentence2': 'C d', 'label': 3.2},
  'xsum': {'document': 'A b c d e', 'summary': 'A b c d e f'},
}


class WordVocab(small.NumberVocab):
  """A vocabulary with one token per word length."""

  def encode(self, text):
    return [len(small.SPECIAL) + len(word) for word in text.split()]


@pytest.fixture(scope='module')
def tasks_as_text(tmp_path_factory):
  place = tmp_path_factory.mktemp('text')
  for count, (name, row) in enumerate(WRITTEN.items(), start=3):
    (place / name).mkdir()
    small.write_rows(place / name / 'train.jsonl', [row] * count)
  return place


def as_text(place, **changes):
  rows = {'name': 'text_to_text', 'layout': 'text', 'cache': str(place)}
  parts = {
    name: {
      **rows,
      'path': str(place / name),
      'form': {'name': 't5', 'task': name},
      'target_length': 5 + 4 * (name == 'xsum'),
    }
    for name in WRITTEN
  }
  return mixture.make(**{'vocab': WordVocab(), 'parts': parts, 'length': 12, 'batch_size': 6, 'seed': 0, **changes})


@pytest.mark.parametrize('settings', [{}, {'limit': 4}, {'temperature': 2.0}, {'rates': 'equal'}])
def test_tasks_as_text_are_mixed_row_by_row(tasks_as_text, settings):
  """Mix tasks with three options, two or none, and different target lengths."""
  source = as_text(tasks_as_text, **settings)
  assert source.spec['option_tokens'].shape == (6, 3, 9) and source.spec['target_tokens'].shape == (6, 9)
  alone = {}
  for name in WRITTEN:
    block = {'form': {'name': 't5', 'task': name}, 'path': str(tasks_as_text / name), 'cache': str(tasks_as_text)}
    given = {'vocab': WordVocab(), 'layout': 'text', 'length': 12, 'target_length': 5 + 4 * (name == 'xsum')}
    alone[name] = next(text_to_text.make(**block, **given, batch_size=1, seed=0).once())
  seen = set()
  for batch in take(source, 0, 20):
    assert {key: (leaf.shape, leaf.dtype) for key, leaf in batch.items()} == {
      key: (leaf.shape, leaf.dtype) for key, leaf in source.spec.items()
    }
    for row, part in enumerate(batch['part'].tolist()):
      name = sorted(WRITTEN)[part]
      seen.add(name)
      for key in set(batch) - {'row_id', 'epoch', 'part'}:
        whole, own = batch[key][row], alone[name][key][0]
        more = [(0, long - short) for long, short in zip(whole.shape, own.shape, strict=True)]
        filler = small.PAD if key.endswith('tokens') else 0
        expected = np.pad(own, more, constant_values=filler) if more else own
        np.testing.assert_array_equal(whole, expected, err_msg=f'{name} {key}')
  assert seen == set(WRITTEN)


def test_rows_with_other_keys_are_not_mixed_row_by_row(tasks_as_text):
  rows = {'cache': str(tasks_as_text), 'path': str(tasks_as_text / 'cola')}
  written = {'name': 'text_to_text', 'form': {'name': 't5', 'task': 'cola'}, **rows}
  labelled = {'name': 'labelled', 'fields': ('sentence',), **rows}
  with pytest.raises(ValueError, match=r"'a'.*'b'.*data\.per='step'"):
    as_text(tasks_as_text, parts={'a': written, 'b': labelled})


# One part a step.

LABELLED = {
  'words': {'kind': 'words', 'fields': ('words',), 'label': 'tags', 'length': 6},
  'pair': {'fields': ('text', 'other'), 'length': 10, 'buckets': (6,)},
  'value': {'kind': 'regression', 'fields': ('text',), 'label': 'score'},
  'write': {'kind': 'text', 'fields': ('text',), 'label': 'other', 'target_length': 5},
}
COUNTS = {'pair': 21, 'value': 8, 'words': 13, 'write': 34}


@pytest.fixture(scope='module')
def tasks(tmp_path_factory):
  place = tmp_path_factory.mktemp('tasks')
  for name, count in COUNTS.items():
    (place / name).mkdir()
    rows = [
      {'text': f'{n} {n}', 'other': f'{n}', 'words': ['1', '2'], 'tags': [0, n % 3], 'label': n % 2, 'score': n / 2}
      for n in range(count)
    ]
    small.write_rows(place / name / 'train.jsonl', rows)
  return place


def by_step(place, names=tuple(LABELLED), **changes):
  parts = {
    name: {'name': 'labelled', 'path': str(place / name), 'cache': str(place), **LABELLED[name]} for name in names
  }
  settings = {'vocab': small.NumberVocab(), 'parts': parts, 'length': 12, 'batch_size': 4, 'seed': 3, 'per': 'step'}
  return mixture.make(**(settings | changes))


def test_a_batch_is_of_one_part_with_the_keys_of_all(tasks):
  source = by_step(tasks)
  shapes = {key: leaf.shape[1:] for key, leaf in source.spec.items()}
  assert shapes == {
    **dict.fromkeys(('tokens', 'segment_ids', 'type_ids', 'labels'), (12,)), 'label': (),
    'target_tokens': (5,), 'target_segment_ids': (5,), **dict.fromkeys(('row_id', 'epoch', 'row_weight', 'part'), ()),
  }  # fmt: skip
  assert source.spec['label'].dtype == np.float32
  assert list(source.parts) == sorted(LABELLED)
  seen = set()
  for batch in take(source, 0, 40):
    assert {key: (leaf.shape, leaf.dtype) for key, leaf in batch.items()} == {
      key: (leaf.shape, leaf.dtype) for key, leaf in source.spec.items()
    }
    (part,) = set(batch['part'].tolist())
    name = sorted(LABELLED)[part]
    seen.add(name)
    if name != 'words':
      assert (batch['labels'] == -1).all()
    if name != 'write':
      assert (batch['target_tokens'] == small.PAD).all()
      assert (batch['target_segment_ids'] == 0).all()
    if name not in ('pair', 'value'):
      assert (batch['label'] == -1).all()
    real = batch['segment_ids'] > 0
    assert (batch['tokens'][~real] == small.PAD).all()
  assert seen == set(LABELLED)


def test_the_batches_of_a_part_are_those_of_its_source(tasks):
  source = by_step(tasks)
  start = 0
  for position, name in enumerate(sorted(LABELLED)):
    ours = [batch for batch in take(source, 0, 60) if batch['part'][0] == position]
    theirs = take(source.parts[name], 0, len(ours))
    for batch, own in zip(ours, theirs, strict=True):
      for key, values in own.items():
        wanted = np.where(own['row_weight'] > 0, values + start, -1) if key == 'row_id' else values
        room = tuple(map(slice, values.shape))
        np.testing.assert_array_equal(batch[key][room], wanted, err_msg=f'{name} {key}')
    start += COUNTS[name]


def test_steps_are_drawn_by_rate_and_reading_is_a_pure_function_of_the_step(tasks):
  source = by_step(tasks, rates={'words': 1, 'pair': 2, 'value': 1, 'write': 4})
  batches = take(source, 0, 4096)
  counts = np.bincount([batch['part'][0] for batch in batches])
  np.testing.assert_array_equal(counts, [1024, 512, 512, 2048])
  for start in (1, 77, 4090):
    for one, other in zip(take(source, start, 3), batches[start : start + 3], strict=False):
      same(one, other)


def test_every_second_step_is_of_the_part_that_alternates(tasks):
  """Apply the rates to the other parts: square roots of their sizes."""
  source = by_step(tasks, alternate='value', temperature=2.0)
  batches = take(source, 0, 4096)
  drawn = np.array([batch['part'][0] for batch in batches])
  names = sorted(LABELLED)
  assert (drawn[1::2] == names.index('value')).all()
  roots = {name: COUNTS[name] ** 0.5 for name in names if name != 'value'}
  wanted = [2048 * roots.get(name, 0.0) / sum(roots.values()) for name in names]
  assert np.abs(np.bincount(drawn[::2], minlength=4) - wanted).max() <= 1
  for start in (1, 78, 4090):
    for one, other in zip(take(source, start, 3), batches[start : start + 3], strict=False):
      same(one, other)
  assert source.digest != by_step(tasks, temperature=2.0).digest


@pytest.mark.parametrize('settings', [{'alternate': 'valu'}, {'alternate': 'value', 'per': 'row'}])
def test_a_part_that_cannot_alternate_is_refused(tasks, settings):
  with pytest.raises(ValueError, match=r"alternate='valu.*pair.*per='step'"):
    by_step(tasks, **settings)
  with pytest.raises(ValueError, match=r"alternate=.*per='step'"):
    mixture.look(parts={'one': {}}, per='step', alternate='one')


@pytest.mark.parametrize(
  ('settings', 'expected'),
  [
    ({'rates': 'equal'}, [1024] * 4),
    ({}, [4096 * count / 76 for count in COUNTS.values()]),
    ({'limit': 10}, [4096 * count / 38 for count in (10, 8, 10, 10)]),
    ({'temperature': 2.0}, [4096 * count**0.5 / sum(n**0.5 for n in COUNTS.values()) for count in COUNTS.values()]),
  ],
)
def test_rates_of_t5(tasks, settings, expected):
  parts = [batch['part'][0] for batch in take(by_step(tasks, **settings), 0, 4096)]
  assert np.abs(np.bincount(parts) - expected).max() <= 1


def test_once_gives_each_row_of_each_part_once_and_numbers_lead_back(tasks):
  source = by_step(tasks)
  made = list(source.once())
  assert len(made) == source.steps_per_epoch == sum(-(-count // 4) for count in COUNTS.values())
  ids = np.concatenate([batch['row_id'] for batch in made])
  assert sorted(ids[ids >= 0].tolist()) == list(range(sum(COUNTS.values())))
  for batch in made:
    for row in batch['row_id'][batch['row_weight'] > 0].tolist():
      record = source.record(row)
      name = sorted(LABELLED)[batch['part'][0]]
      assert record['part'] == name
      before = sum(count for other, count in COUNTS.items() if other < name)
      assert record['row']['score'] == (row - before) / 2


@pytest.mark.parametrize('hosts', [2, 4])
def test_hosts_share_each_step(tasks, hosts):
  whole = by_step(tasks)
  parts = [by_step(tasks, host=host, hosts=hosts) for host in range(hosts)]
  assert all(part.spec == whole.spec and part.digest == whole.digest for part in parts)
  for read in (lambda one: take(one, 5, 6), lambda one: list(one.once())):
    for batch, *pieces in zip(read(whole), *map(read, parts), strict=True):
      same({key: np.concatenate([piece[key] for piece in pieces]) for key in batch}, batch)


def test_what_does_not_go_together_is_refused(tasks):
  with pytest.raises(ValueError, match=r"data\.per='step'"):
    plain = {name: {key: value for key, value in LABELLED[name].items() if key != 'length'} for name in LABELLED}
    parts = {
      name: {'name': 'labelled', 'path': str(tasks / name), 'cache': str(tasks), **plain[name]} for name in plain
    }
    by_step(tasks, parts=parts, per='row')
  with pytest.raises(ValueError, match=r'data\.parts\.pair\.length=10.*data\.length=8'):
    by_step(tasks, length=8)
  with pytest.raises(ValueError, match='name the same sources'):
    by_step(tasks, rates={'pair': 1.0})
  with pytest.raises(ValueError, match=r"data\.per='batch'.*row, step"):
    by_step(tasks, per='batch')


def test_labels_are_those_of_each_part(tasks):
  settings = {key: value for key, value in LABELLED['words'].items() if key not in ('length',)}
  parts = {
    'pair': {'name': 'labelled', 'path': str(tasks / 'pair'), 'cache': str(tasks), 'fields': ['text']},
    'words': {'name': 'labelled', 'path': str(tasks / 'words'), 'cache': str(tasks), **settings},
  }
  found = mixture.look(parts=parts, per='step', length=12)
  assert {name: part.classes for name, part in found.parts.items()} == {'pair': 2, 'words': 3}


def test_tasks_that_are_answered_in_words_number_their_own_options(tmp_path):
  """Mix a task without options, and two with the same names in another order."""
  answered = {
    'free': {'name': 'template', 'inputs': '{text}', 'target': '{answer}'},
    'three': {'name': 'template', 'inputs': '{text}', 'options': ['yes', 'maybe', 'no']},
    'two': {'name': 'template', 'inputs': '{text}', 'options': ['no', 'yes']},
  }
  (tmp_path / 'train.jsonl').write_text('{"text": "Is it so?", "answer": "It is.", "label": 1}\n' * 4)
  parts = {
    name: {'name': 'text_to_text', 'path': str(tmp_path), 'cache': str(tmp_path / 'cache'), 'form': form}
    for name, form in answered.items()
  }
  mixed = mixture.look(parts=parts, length=12).mixed
  assert {name: labels.names for name, labels in mixed.items()} == {
    'free': (), 'three': ('yes', 'maybe', 'no'), 'two': ('no', 'yes')
  }  # fmt: skip
  check_names(mixed)
  with pytest.raises(ValueError, match=r'labels\.json'):
    check_names({name: dataclasses.replace(labels, places=False) for name, labels in mixed.items()})
