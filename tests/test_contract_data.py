"""What every file of `data/` keeps to as a `types.Source`; a new one is tested the day it lands.

Sources are made inside tests, from a small corpus and labelled sentences, so a broken file fails its own tests only. A
file whose `make` has keywords without defaults beside the usual ones gets a line in `SETTINGS`.
"""

import itertools
import json
import pathlib
from typing import Any

import numpy as np
import pytest

from plm_jax.config import batch_keys, build, signatures
from plm_jax.core.batch import BATCH, SLOTS
from plm_jax.core.types import Source
from plm_jax.text import tokenizer
from tests import runs

ALWAYS = {'row_id', 'epoch', 'row_weight'}
BATCH_SIZE, LENGTH = 12, 32
# file, or file and what is special -> keywords; CORPUS, LABELLED, PAIRS and CACHE stand for folders
CORPUS, LABELLED, PAIRS, CACHE = 'CORPUS', 'LABELLED', 'PAIRS', 'CACHE'
SETTINGS: dict[str, dict[str, Any]] = {
  'labelled': {'path': LABELLED},
  'minimal_pairs': {'path': PAIRS, 'split': 'train', 'good': 'text', 'bad': 'other'},
  'text_to_text': {'path': LABELLED, 'form': {'name': 'template', 'inputs': '{text}', 'target': '{label}'}},
  'mixture': {
    'parts': {
      'long': {'name': 'stream', 'path': CORPUS, 'cache': CACHE, 'layout': 'rows'},
      'short': {'name': 'stream', 'path': CORPUS, 'cache': CACHE, 'layout': 'rows', 'split': 'validation'},
    }
  },
}
FORMS: dict[str, dict[str, Any]] = {
  'stream, end to end': {'layout': 'stream'},
  'stream, in order': {'shuffle': False},
  'labelled, two lengths': {'buckets': (12, 20)},
  'bptt, both directions': {'both_directions': True},
  'bptt, pairs': {'second_segment': True, 'reverse_half': True},
  'mixture, one part a step': {'per': 'step'},
  'pairs, sentences': {'unit': 'sentence'},
}
EVERY = [*signatures.names('data'), *FORMS]
every_source = pytest.mark.parametrize('name', EVERY)
PLANNED = ('minimal_pairs',)  # batches of similar lengths in one order, for evaluation
Batches = list[dict[str, np.ndarray]]


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  made = runs.write_data(tmp_path_factory.mktemp('data'))
  (made / 'pairs').mkdir()
  rows = [json.loads(line) for line in (made / 'labelled' / 'train.jsonl').read_text().splitlines()]
  lines = [json.dumps(row | {'other': f'not {row["text"]}'}) for row in rows]
  (made / 'pairs' / 'train.jsonl').write_text('\n'.join(lines))
  return made


def block(name: str, folder: pathlib.Path, **changes: Any) -> dict[str, Any]:
  """The block of a config for a name in `EVERY`."""
  places = {CORPUS: folder / 'corpus', LABELLED: folder / 'labelled', PAIRS: folder / 'pairs', CACHE: folder / 'cache'}

  def written_out(value: Any) -> Any:
    if isinstance(value, dict):
      return {key: written_out(item) for key, item in value.items()}
    return str(places[value]) if value in list(places) else value

  file = name.partition(',')[0]
  known = signatures.signature('data', file)
  usual = {'path': CORPUS, 'cache': CACHE, 'length': LENGTH, 'batch_size': BATCH_SIZE, 'seed': 3}
  settings = {key: value for key, value in usual.items() if key in known}
  return {'name': file, **written_out(settings | SETTINGS.get(file, {}) | FORMS.get(name, {}) | changes)}


def make(name: str, folder: pathlib.Path, *, host: int = 0, hosts: int = 1, **changes: Any) -> Source:
  """The source of a name in `EVERY`."""
  vocab = tokenizer.load(folder / 'vocab')
  return build.make('data', block(name, folder, **changes), vocab=vocab, host=host, hosts=hosts)


def gives(name: str, folder: pathlib.Path) -> set[str]:
  """The keys that a config may count on, read from source."""
  known = signatures.signature('data', name.partition(',')[0])
  defaults = {key: one.default for key, one in known.items() if not isinstance(one.default, signatures.Missing)}
  return set(batch_keys.gives(defaults | block(name, folder)) or ())


def take(source: Source, start: int, count: int) -> Batches:
  return list(itertools.islice(source.read(start), count))


def check_same(ours: Batches, theirs: Batches) -> None:
  assert len(ours) == len(theirs)
  for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
    assert one.keys() == other.keys()
    for key in one:
      assert one[key].dtype == other[key].dtype, (number, key)
      np.testing.assert_array_equal(one[key], other[key], err_msg=f'{key} of batch {number}')


@every_source
def test_batches_are_as_the_spec_and_the_table_of_keys_say(name, folder):
  source = make(name, folder)
  assert set(source.spec) - ALWAYS <= gives(name, folder)
  assert set(source.spec) >= ALWAYS
  for key, leaf in source.spec.items():
    assert len(leaf.shape) == len(BATCH[key].axes), key
    assert leaf.shape[0] == BATCH_SIZE
    assert leaf.dtype == BATCH[key].dtype, key
    known = (), (1,), (2,), (LENGTH,), (1, LENGTH), (LENGTH, SLOTS)
    assert key == 'label' or leaf.shape[1:] in known or name in PLANNED, key
  made = [*take(source, 0, 3), *source.once()]
  for batch in made:
    assert batch.keys() == source.spec.keys()
    for key, values in batch.items():
      longest = source.spec[key]
      assert values.dtype == longest.dtype, key
      assert values.shape[0] == BATCH_SIZE and values.ndim == len(longest.shape), key
      assert all(size <= most for size, most in zip(values.shape, longest.shape, strict=True)), key
  if 'buckets' not in FORMS.get(name, {}) and name not in PLANNED:
    assert all(values.shape == source.spec[key].shape for batch in made for key, values in batch.items())


@every_source
def test_reading_is_a_pure_function_of_the_step(name, folder):
  source = make(name, folder)
  whole = take(source, 0, 9)
  for start in (0, 1, 6):
    check_same(take(source, start, 3), whole[start : start + 3])
  check_same(take(make(name, folder), 4, 3), whole[4:7])
  far = 100_000
  check_same(take(source, far + 1, 2), take(source, far, 3)[1:])


@every_source
def test_another_seed_is_another_order(name, folder):
  if FORMS.get(name, {}).get('shuffle') is False or name in PLANNED:
    pytest.skip('keeps the order of the source')
  one, other = (take(make(name, folder, seed=seed), 0, 3) for seed in (3, 4))
  assert any(not np.array_equal(a[key], b[key]) for a, b in zip(one, other, strict=True) for key in a)


@every_source
def test_hosts_read_the_parts_of_one_batch(name, folder):
  alone = make(name, folder)
  hosts = [make(name, folder, host=host, hosts=3) for host in range(3)]
  assert all((each.spec, each.rows, each.digest) == (alone.spec, alone.rows, alone.digest) for each in hosts)

  def joined(parts: tuple[dict[str, np.ndarray], ...]) -> dict[str, np.ndarray]:
    assert all(len(part['row_id']) == BATCH_SIZE // 3 for part in parts)
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}

  read = zip(*(take(each, 2, 4) for each in hosts), strict=True)
  check_same([joined(parts) for parts in read], take(alone, 2, 4))
  once = zip(*(each.once() for each in hosts), strict=True)
  check_same([joined(parts) for parts in once], list(alone.once()))


@every_source
def test_once_gives_every_row_exactly_once(name, folder):
  source = make(name, folder)
  made = list(source.once())
  assert len(made) == source.steps_per_epoch
  ids, weights = (np.concatenate([batch[key] for batch in made]) for key in ('row_id', 'row_weight'))
  assert set(weights.tolist()) <= {0.0, 1.0}
  assert (ids[weights == 0] == -1).all()
  assert sorted(ids[weights == 1].tolist()) == list(range(source.rows))
  check_same(list(source.once()), made)


@every_source
def test_labels_are_those_that_the_source_counts(name, folder):
  source = make(name, folder)
  if 'label' not in source.spec:
    assert source.classes == 0 or 'labels' in source.spec
    return
  labels = np.concatenate([batch['label'] for batch in source.once()])
  assert set(labels.tolist()) <= set(range(source.classes))
  assert len(source.names) in (0, source.classes)


@every_source
def test_records_are_of_the_rows_whichever_host_asks(name, folder):
  source, other = make(name, folder), make(name, folder, host=1, hosts=2)
  if source.record is None:
    assert source.group is None
    return
  for batch in source.once():
    for place in np.flatnonzero(batch['row_weight']):
      row_id = int(batch['row_id'][place])
      record = source.record(row_id)
      assert record == other.record(row_id)
      assert 'label' not in batch or record['label'] == batch['label'][place]
