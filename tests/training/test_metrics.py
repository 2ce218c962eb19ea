"""Metrics: the files after each way a run can end, and strict JSON."""

import json
import pathlib
import sys
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from plm_jax.runs import curves, metrics
from plm_jax.runs.metrics import Writer


def lines(workdir: pathlib.Path) -> list[Any]:
  """Parse the lines as strict JSON."""

  def refuse(constant: str) -> None:
    raise AssertionError(f'{constant} is not JSON')

  text = (workdir / 'metrics.jsonl').read_text()
  assert text == '' or text.endswith('\n')
  return [json.loads(line, parse_constant=refuse) for line in text.splitlines()]


def write(workdir: pathlib.Path, steps: range | list[int], *, loss: float = 1.0, **options: Any) -> None:
  with Writer(workdir, sinks=(), **options) as writer:
    for step in steps:
      writer.write(step, {'loss': loss})


# Means.


def test_mean_divides_sums_by_weights() -> None:
  sums = {'loss': (jnp.float32(6), jnp.float32(4)), 'accuracy': (3, 4), 'never': (jnp.float32(0), jnp.float32(0))}
  means = metrics.mean(sums)
  assert (means['loss'], means['accuracy']) == (1.5, 0.75)
  assert np.isnan(means['never'])
  assert all(type(value) is float for value in means.values())


# metrics.jsonl.


def test_each_step_has_one_line(tmp_path: pathlib.Path) -> None:
  with Writer(tmp_path / 'new' / 'run', sinks=()) as writer:
    writer.write(1, {'loss': jnp.float32(2.5), 'tokens_per_second': np.float64(10)})
    writer.write(2, {'loss': 1.0})
    writer.write(2, {'validation/loss': 1.5, 'loss': 0.25})
    writer.write(3, {'loss': 0.5})
  assert lines(tmp_path / 'new' / 'run') == [
    {'step': 1, 'loss': 2.5, 'tokens_per_second': 10.0},
    {'step': 2, 'loss': 0.25, 'validation/loss': 1.5},
    {'step': 3, 'loss': 0.5},
  ]


def test_lines_are_on_disk_at_once_and_a_shorter_one_leaves_nothing_behind(tmp_path: pathlib.Path) -> None:
  with Writer(tmp_path, sinks=()) as writer:
    writer.write(1, {'loss': 0.123456789})
    assert lines(tmp_path) == [{'step': 1, 'loss': 0.123456789}]
    writer.write(1, {'loss': 1.0})
    assert lines(tmp_path) == [{'step': 1, 'loss': 1.0}]


def test_numbers_that_json_lacks_are_words_and_come_back(tmp_path: pathlib.Path) -> None:
  with Writer(tmp_path, sinks=()) as writer:
    writer.write(1, {'loss': float('nan'), 'norm': jnp.float32(jnp.inf), 'low': -np.inf})
  assert lines(tmp_path) == [{'step': 1, 'loss': 'nan', 'norm': 'inf', 'low': '-inf'}]
  row = metrics.read(tmp_path)[0]
  assert np.isnan(row['loss'])
  assert (row['norm'], row['low']) == (np.inf, -np.inf)


def test_steps_do_not_go_back(tmp_path: pathlib.Path) -> None:
  write(tmp_path, range(1, 6))
  with Writer(tmp_path, sinks=()) as writer, pytest.raises(ValueError, match=r'step 4\b.*step 5\b'):
    writer.write(4, {'loss': 1.0})


@pytest.mark.parametrize(('resume_step', 'kept'), [(None, 5), (5, 5), (9, 5), (3, 3), (0, 0)])
def test_resuming_drops_later_lines(tmp_path: pathlib.Path, resume_step: int | None, kept: int) -> None:
  write(tmp_path, range(1, 6))
  with Writer(tmp_path, sinks=(), resume_step=resume_step) as writer:
    assert [row['step'] for row in lines(tmp_path)] == list(range(1, kept + 1))
    writer.write(10, {'loss': 3.0})
  assert [row['step'] for row in lines(tmp_path)] == [*range(1, kept + 1), 10]


def test_a_resumed_step_is_merged_into_its_line(tmp_path: pathlib.Path) -> None:
  write(tmp_path, [1, 2, 3])
  with Writer(tmp_path, sinks=(), resume_step=2) as writer:
    writer.write(2, {'validation/loss': 4.0})
    writer.write(3, {'loss': 5.0})
  assert lines(tmp_path) == [
    {'step': 1, 'loss': 1.0},
    {'step': 2, 'loss': 1.0, 'validation/loss': 4.0},
    {'step': 3, 'loss': 5.0},
  ]


def test_every_torn_end_is_repaired(tmp_path: pathlib.Path) -> None:
  write(tmp_path, [1, 2, 3])
  file = tmp_path / 'metrics.jsonl'
  whole = file.read_bytes()
  length = len(whole) // 3
  for size in range(len(whole) + 1):
    file.write_bytes(whole[:size])
    assert [row['step'] for row in metrics.read(tmp_path)] == list(range(1, size // length + 1))
    write(tmp_path, [7])
    assert [row['step'] for row in lines(tmp_path)] == [*range(1, size // length + 1), 7]
  file.write_bytes(whole + b'\xff\0{"step')
  write(tmp_path, [7])
  assert [row['step'] for row in lines(tmp_path)] == [1, 2, 3, 7]


def test_a_bad_line_in_the_middle_is_named_and_left_out(
  tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  write(tmp_path, [1, 2, 3])
  file = tmp_path / 'metrics.jsonl'
  file.write_text(file.read_text().replace('"step": 2', '"step": 2.5'))
  Writer(tmp_path, sinks=()).close()
  assert 'metrics.jsonl, line 2 is damaged' in caplog.text
  assert [row['step'] for row in metrics.read(tmp_path)] == [1, 3]


def test_rows_and_last(tmp_path: pathlib.Path) -> None:
  assert (metrics.read(tmp_path), metrics.last(tmp_path)) == ([], {})
  with Writer(tmp_path, sinks=()) as writer:
    writer.write(1, {'loss': 3.0})
    writer.write(2, {'loss': 2.0, 'validation/loss': 4.0})
    writer.write(3, {'loss': 'nan'})
  assert metrics.read(tmp_path)[:2] == [{'step': 1, 'loss': 3.0}, {'step': 2, 'loss': 2.0, 'validation/loss': 4.0}]
  assert metrics.last(tmp_path)['validation/loss'] == 4.0
  assert np.isnan(metrics.last(tmp_path)['loss'])


def test_only_process_0_writes(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(jax, 'process_index', lambda: 1)
  with Writer(tmp_path / 'run') as writer:
    writer.write(1, {'loss': 1.0})
  assert curves.curves(tmp_path / 'run') is None
  assert not (tmp_path / 'run').exists()


# TensorBoard and Weights & Biases.


def events(workdir: pathlib.Path) -> list[event_pb2.Event]:
  found = []
  for path in sorted(workdir.glob('events.*')):
    content, at = path.read_bytes(), 0
    while at < len(content):  # records: length u64, its checksum u32, bytes, their checksum u32
      size = int.from_bytes(content[at : at + 8], 'little')
      found.append(event_pb2.Event.FromString(content[at + 12 : at + 12 + size]))
      at += 16 + size
  return found


def test_tensorboard_separates_training_from_evaluations(tmp_path: pathlib.Path) -> None:
  with Writer(tmp_path) as writer:
    writer.write(5, {'loss': 2.0, 'validation/loss': 3.0, 'note': 'not a number'})
  scalars = {v.tag: (e.step, v.simple_value) for e in events(tmp_path) for v in e.summary.value}
  assert scalars == {'train/loss': (5, 2.0), 'validation/loss': (5, 3.0)}


def test_tensorboard_forgets_what_a_resume_repeats(tmp_path: pathlib.Path) -> None:
  Writer(tmp_path, resume_step=7).close()
  starts = [e.step for e in events(tmp_path) if e.session_log.status == event_pb2.SessionLog.START]
  assert starts == [8]


def test_wandb_gets_the_same_numbers_and_one_run_for_a_folder(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  calls: list[Any] = []
  run = types.SimpleNamespace(
    log=lambda values, step: calls.append((step, values)), finish=lambda: calls.append('finished')
  )
  fake = types.ModuleType('wandb')
  fake.init = lambda **settings: calls.append(settings) or run  # type: ignore[attr-defined]
  monkeypatch.setitem(sys.modules, 'wandb', fake)
  for step in (1, 2):
    with Writer(tmp_path / 'mine', sinks=('wandb',), wandb={'project': 'theirs'}) as writer:
      writer.write(step, {'loss': 2.0, 'note': 'text'})
  assert calls[1:3] == [(1, {'loss': 2.0}), 'finished']
  assert calls[0] == calls[3]
  assert {'project': 'theirs', 'name': 'mine', 'resume': 'allow', 'dir': str(tmp_path / 'mine')}.items() <= calls[
    0
  ].items()


def test_wandb_is_asked_for_and_absent(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setitem(sys.modules, 'wandb', None)
  with pytest.raises(ImportError, match=r'pip install -r requirements/wandb\.txt.*\blog\b'):
    Writer(tmp_path, sinks=('wandb',))


def test_an_unknown_sink_is_refused(tmp_path: pathlib.Path) -> None:
  with pytest.raises(ValueError, match=r'tensorbord.*tensorboard, wandb'):
    Writer(tmp_path, sinks=('tensorbord',))


# JSON files.


def test_write_json_is_strict_and_keeps_the_order(tmp_path: pathlib.Path) -> None:
  value = {
    'z': (1, 2.5), 'a': np.float32(0.5), 'inf': float('inf'), 'count': jnp.int32(3), 'none': None, 'yes': True,
    'deep': {'path': tmp_path, 'values': [np.nan, np.bool_(False)]}, 'word': 'Käse',
  }  # fmt: skip
  metrics.write_json(tmp_path / 'result.json', value)
  text = (tmp_path / 'result.json').read_text(encoding='utf-8')
  assert list(json.loads(text)) == list(value)
  assert json.loads(text) == {
    'z': [1, 2.5], 'a': 0.5, 'inf': 'inf', 'count': 3, 'none': None, 'yes': True,
    'deep': {'path': str(tmp_path), 'values': ['nan', False]}, 'word': 'Käse',
  }  # fmt: skip
  assert 'Käse' in text
  assert not any(word in text for word in ('NaN', 'Infinity'))


def test_write_json_leaves_the_old_file_where_the_new_one_cannot_be(tmp_path: pathlib.Path) -> None:
  file = tmp_path / 'result.json'
  metrics.write_json(file, {'old': 1})
  for value in (object(), np.zeros(3), {1, 2}):
    with pytest.raises(TypeError, match='JSON'):
      metrics.write_json(file, {'new': value})
  assert json.loads(file.read_text()) == {'old': 1}
  assert sorted(tmp_path.iterdir()) == [tmp_path / 'SHA256SUMS', file]


# The picture.


def test_curves_shows_what_there_is(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  from matplotlib.figure import Figure

  drawn: list[Any] = []
  save = Figure.savefig
  monkeypatch.setattr(Figure, 'savefig', lambda self, *args, **kw: (drawn.append(self), save(self, *args, **kw)))
  assert curves.curves(tmp_path) is None
  with Writer(tmp_path, sinks=()) as writer:
    for step in range(1, 201):
      values = {'loss': 5 / step, 'learning_rate': 1e-4, 'gradient_norm': 1.0, 'tokens_per_second': 1000.0}
      writer.write(step, values if step != 50 else {**values, 'loss': float('nan'), 'gradient_norm': float('inf')})
      if step % 50 == 0:
        writer.write(step, {'validation/loss': 6 / step, 'test/loss': 7 / step})
  metrics.write_json(tmp_path / 'result.json', {'best_step': 150})
  picture = curves.curves(tmp_path)
  assert picture == tmp_path / 'curves.png'
  assert picture.read_bytes().startswith(b'\x89PNG')
  panels = {axis.get_ylabel(): axis for axis in drawn[0].axes}
  assert list(panels) == ['loss', 'learning rate', 'gradient norm', 'tokens per second']
  assert all(axis.get_xlabel() == 'step' for axis in panels.values())
  legend = [text.get_text() for text in panels['loss'].get_legend().get_texts()]
  assert legend == ['training', 'test', 'validation', 'best step 150']
  raw, smooth = panels['gradient norm'].get_lines()
  assert len(raw.get_xdata()) == len(smooth.get_xdata()) == 199
  assert raw.get_alpha() < 0.5
  assert panels['loss'].get_yscale() == 'log'
  assert panels['tokens per second'].get_ylim()[0] == 0


def test_curves_of_a_short_run_without_evaluations(tmp_path: pathlib.Path) -> None:
  write(tmp_path, [1])
  (tmp_path / 'result.json').write_text('{"best_step": 1}')
  assert curves.curves(tmp_path) == tmp_path / 'curves.png'


def test_names_with_dollars_are_shown_as_they_are(tmp_path: pathlib.Path) -> None:
  folder = tmp_path / '$_{$'
  folder.mkdir()
  with Writer(folder, sinks=()) as writer:
    writer.write(1, {'loss': 2.0, '$_{$/loss': 3.0})
  assert curves.curves(folder) == folder / 'curves.png'


def test_the_running_mean_is_a_mean() -> None:
  values = np.random.default_rng(0).standard_normal(400)
  smooth = curves._smooth(values)
  assert smooth.shape == values.shape
  np.testing.assert_allclose(smooth[200], values[195:206].mean())
  np.testing.assert_allclose(smooth[0], values[:6].mean())
  np.testing.assert_allclose(smooth[-1], values[-6:].mean())
  np.testing.assert_array_equal(curves._smooth(values[:10]), values[:10].cumsum() - np.r_[0, values[:9].cumsum()])
