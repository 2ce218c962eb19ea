"""What a run leaves in `cells.json`."""

import json
import logging
import math
import pathlib
import types

import numpy as np
import pytest

from plm_jax.core.errors import ConfigError
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import predicted
from plm_jax.studies.tables import cells
from plm_jax.text import tokenizer


def joined(tmp_path, rows):
  """Return predictions and records of a file with `rows`."""
  file = tmp_path / 'predictions.jsonl'
  file.write_text(''.join(json.dumps({'row_id': n, **row}) + '\n' for n, row in enumerate(rows)))
  return predicted.join([file])


@pytest.mark.parametrize('rows', [[1, 0, 0, 1, 1], [0.25, 1.0, 0.3333]])
def test_scores_of_rows_come_back(rows):
  packed = cells.packed(np.array(rows, float))
  assert ('bits' in packed) == (len(rows) == 5)
  np.testing.assert_allclose(cells.unpacked(json.loads(json.dumps(packed))), rows)


def test_accuracy_is_a_mean_over_rows(tmp_path):
  rows = [dict(label=p, probability=[0.5, 0.5], record=dict(label=g)) for p, g in ((0, 0), (1, 0), (1, 1))]
  np.testing.assert_array_equal(cells.by_row('validation/accuracy', *joined(tmp_path, rows)), [1, 0, 1])


def test_a_correlation_is_no_mean_over_rows(tmp_path):
  rows = [dict(label=p, record=dict(label=g)) for p, g in ((0, 0), (1, 0), (1, 1), (0, 0))]
  assert cells.by_row('validation/matthews', *joined(tmp_path, rows)) is None
  one_class = [dict(label=1, record=dict(label=g)) for g in (0, 1, 1, 0)]  # 0 as a whole, and of each row
  assert cells.by_row('validation/matthews', *joined(tmp_path, one_class)) is None


def test_of_a_correlation_groups_of_rows_are_kept(tmp_path):
  """Where one right row of two classes is missing, the others are as right; without the wrong row, all are."""
  pairs = [(0, 0), (1, 0), (1, 1), (0, 0), (1, 1)]
  both = joined(tmp_path, [dict(label=p, record=dict(label=g)) for p, g in pairs])
  found = cells.by_group('validation/matthews', *both)
  whole = np.corrcoef(np.array(pairs).T)[0, 1]
  assert found.shape == (5,) and found.mean() == pytest.approx(whole)
  assert found.argmin() == 1 and found[0] == found[3] and found[2] == found[4]
  assert cells.by_group('validation/perplexity', *both) is None


def test_a_loss_is_the_mean_over_tokens_of_all_rows(tmp_path):
  """Of three rows with 2, 1 and 0 tokens, of which a jackknife leaves out each."""
  rows = [dict(nats=[1.0, 3.0], weights=[1.0, 1.0]), dict(nats=[2.5, 0.0], weights=[1.0, 0.0])]
  rows.append(dict(nats=[0.0, 0.0], weights=[0.0, 0.0]))
  both = joined(tmp_path, [row | dict(record={}) for row in rows])
  assert cells.by_row('validation/loss', *both) is None
  found = cells.by_group('validation/loss', *both)
  without = np.array([2.5, 2.0, 6.5 / 3])  # the means of the other rows
  np.testing.assert_allclose(found, 6.5 / 3 - 2 * (without - without.mean()))


def test_a_metric_that_no_score_has_gives_no_rows(tmp_path):
  rows = [dict(label=0, record=dict(label=0))]
  assert cells.by_row('validation/perplexity', *joined(tmp_path, rows)) is None


def test_runs_that_no_cell_names_are_left_out(tmp_path):
  kept = {
    **cells.EMPTY,
    'cells': {'a': {'b': [['x']]}},
    'runs': {'x': {'source': 's'}, 's': {}, 'old': {}},
    'failed': {'old': 'no'},
  }
  cells.write(tmp_path / 'cells.json', kept)
  again = cells.read(tmp_path / 'cells.json')
  assert list(again['runs']) == ['s', 'x']
  assert again['failed'] == {}


RUNS = (
  '5',
  'null',
  '{"metrics": []}',
  '{"metrics": {"a/b": "much"}}',
  '{"metrics": {"a/b": []}}',
  '{"versions": {}}',
  '{"versions": 3}',
  '{"rows": 1}',
  '{"rows": {"a/b": {"count": 8, "bits": "0g"}}}',
  '{"rows": {"a/b": {"count": 9, "bits": "00"}}}',
  '{"rows": {"a/b": {"count": 8}}}',
  '{"rows": {"a/b": {"count": 2, "values": "1 x"}}}',
  '{"rows": {"a/b": {"count": 2, "values": "1"}}}',
  '{"groups": {"a/b": {"count": 2, "values": "1"}}}',
)
OTHERS = (
  '{"cells": {"a": []}}',
  '{"cells": {"a": {"b": "x"}}}',
  '{"cells": {"a": {"b": ["x"]}}}',
  '{"cells": {"a": {"b": [[3]]}}}',
  '{"cells": {"a": {"b": [["x"], ["y", "z"]]}}}',
  '{"failed": {"x": 3}}',
  '{"plateau": {"loss": 1}}',
  '{"plateau": {"loss": 1, "frequencies": null}}',
)


@pytest.mark.parametrize('text', ['{', '[]', '{"runs": 3}', *(f'{{"runs": {{"x": {run}}}}}' for run in RUNS), *OTHERS])
def test_a_damaged_file_is_named(tmp_path, text):
  (tmp_path / 'cells.json').write_text(text)
  with pytest.raises(ConfigError, match=r'cells\.json is damaged'):
    cells.read(tmp_path / 'cells.json')


def test_flipped_bits_are_found_or_harmless(tmp_path):
  """Of a measured table with claims; before, every third changed a number that is rendered."""
  before = pathlib.Path('experiments/results/elmo/table_2/cells.json').read_bytes()
  file, draw, found = tmp_path / 'cells.json', np.random.default_rng(0), 0
  file.write_bytes(before)
  expected = cells.read(file)
  for place in draw.integers(len(before), size=300):
    content = bytearray(before)
    content[place] ^= 1 << int(draw.integers(8))
    file.write_bytes(content)
    try:
      assert cells.read(file) == expected
    except ConfigError as error:
      assert str(file) in str(error)
      found += 1
  assert found > 150  # the others are in white space


@pytest.mark.parametrize('folder', sorted(pathlib.Path('experiments/results').glob('*/*/cells.json')), ids=str)
def test_measured_tables_have_checksums(folder):
  assert json.loads(folder.read_text())['sha256']


@pytest.mark.parametrize(('kind', 'values'), [('rows', [1, 0, 0, 1]), ('groups', [0.25, 0.5, 0.3333])])
@pytest.mark.parametrize('sealed', [True, False])
def test_a_metric_that_its_examples_contradict_is_refused(tmp_path, kind, values, sealed):
  mean, file = float(np.mean(values)), tmp_path / 'cells.json'
  for metric, is_sound in ((mean, True), (mean + 1e-3, False)):
    run = {'metrics': {'test/f1': metric}, kind: {'test/f1': cells.packed(np.array(values, float))}}
    cells.write(file, {**cells.EMPTY, 'cells': {'a': {'b': [['x']]}}, 'runs': {'x': run}})
    if not sealed:  # as earlier versions wrote it, or an editor who removes the checksum
      content = json.loads(file.read_text())
      file.write_text(json.dumps({key: value for key, value in content.items() if key != 'sha256'}))
    if is_sound:
      assert cells.read(file)['runs'] == {'x': run}
    else:
      with pytest.raises(ConfigError, match=r'run x: test/f1=.* its examples give'):
        cells.read(file)


def test_no_file_is_an_empty_one(tmp_path):
  assert cells.read(tmp_path / 'cells.json') == cells.EMPTY


def test_the_plateau_is_that_of_sound_lines_and_finite_values(tmp_path, monkeypatch, caplog):
  monkeypatch.setattr(tokenizer, 'load', lambda folder: types.SimpleNamespace(counts=[1, 0, 1, 2]))
  table, folder = types.SimpleNamespace(plateau='validation/perplexity'), RunFolder(tmp_path)
  folder.vocab.mkdir()
  folder.metrics.write_text('{"step": 2, "loss#\n{"step": 3, "validation/perplexity": "inf"}\n')
  with caplog.at_level(logging.WARNING, 'plm_jax'):
    assert cells.plateau(table, folder) == {}
  (warning,) = caplog.messages
  assert f'{folder.metrics}, line 1' in warning
  with folder.metrics.open('a') as lines:
    lines.write('{"step": 4, "validation/perplexity": 20.0}\n{"step": 5, "validation/perplexity": "nan"}\n')
  entropy = 2 * 0.25 * math.log(4) + 0.5 * math.log(2)  # of shares 1/4, 1/4 and 1/2
  assert cells.plateau(table, folder) == {'loss': round(math.log(20), 4), 'frequencies': round(entropy, 4)}


@pytest.mark.parametrize(('random', 'kept'), [(0.0, 0.0), (0.1, 0.1), (0.3, 0.1), (0.1, 0.0), (0.0, 0.15)])
def test_the_best_guess_without_context_is_that_of_all_pairs(random, kept):
  """Of a seen and a right token, written out; one token never occurs."""
  counts = np.array([5.0, 1.0, 0.0, 8.0, 2.0])
  share, size = counts / counts.sum(), len(counts)
  joint = random / size * np.ones((size, 1)) * share + kept * np.diag(share)
  seen = joint.sum(axis=1, keepdims=True)
  hidden = (1 - random - kept) * -sum(p * math.log(p) for p in share if p)
  shown = -sum(
    joint[x, y] * math.log(joint[x, y] / seen[x, 0]) for x in range(size) for y in range(size) if joint[x, y]
  )
  assert abs(cells.without_context(counts, random=random, kept=kept) - hidden - shown) < 1e-12


@pytest.mark.parametrize(
  ('objective', 'shown'),
  [
    (dict(name='causal_lm'), {}),
    (dict(name='mlm', edit=dict(name='bert_80_10_10', mask=0.8, random=0.1)), dict(random=0.1, kept=0.1)),
    (dict(name='mlm', edit=dict(name='to_mask')), {}),
    (dict(name='rtd', keep=0.15), dict(kept=0.15)),
  ],
)
def test_the_plateau_counts_tokens_that_are_shown(tmp_path, monkeypatch, objective, shown):
  counts = [4, 0, 1, 2, 9]
  monkeypatch.setattr(tokenizer, 'load', lambda folder: types.SimpleNamespace(counts=counts))
  folder = RunFolder(tmp_path)
  folder.vocab.mkdir()
  folder.metrics.write_text('{"step": 4, "validation/perplexity": 20.0}\n')
  folder.config.write_text(json.dumps({'objective': objective}))
  least = cells.without_context(np.array(counts, float), **shown)
  found = cells.plateau(types.SimpleNamespace(plateau='validation/perplexity'), folder)
  assert found['frequencies'] == pytest.approx(least, abs=1e-4)
