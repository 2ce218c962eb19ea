"""A jump of the loss takes a run back to a saved step, and the batches of the jump are left out."""

import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Source
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import curves, history, metrics
from plm_jax.training import loop
from plm_jax.training.guards import spikes
from tests import runs

pytestmark = [pytest.mark.turns, pytest.mark.usefixtures('log')]

WATCH = {'deviations': 4.0, 'memory': 6, 'back': 2, 'after': 1, 'most': 1}
BAD = 16  # the batch that step 17 reads, unless some were left out before
SETTINGS: dict[str, Any] = {'steps': 24, 'save_every': 4, 'keep': 9, 'eval_every': 24, 'log_every': 2}


def of(**changes: Any) -> dict[str, Any]:
  return {'spikes': WATCH | changes, 'save_every': 10}


def test_the_bound_is_that_of_the_definition(tmp_path: pathlib.Path) -> None:
  watch = spikes.Watch(of(memory=5), RunFolder.at(tmp_path), sums={})
  losses = np.random.default_rng(0).normal(3.0, 0.1, 12)
  for number, loss in enumerate(losses):
    weights = 0.8 ** np.arange(number)[::-1]  # of the losses before this one, oldest first
    if number < 5:
      assert watch.bound() == np.inf
    else:
      mean = np.average(losses[:number], weights=weights)
      deviation = np.sqrt(np.average((losses[:number] - mean) ** 2, weights=weights))
      assert watch.bound() == pytest.approx(mean + 4 * deviation, rel=1e-9)
    assert watch.see(number + 1, float(loss), runs.Saved(1)) is None
  again = spikes.Watch(of(memory=5), RunFolder.at(tmp_path), sums=json.loads(json.dumps(watch.sums())))
  assert again.bound() == watch.bound()


def test_a_spike_goes_back_far_enough_and_covers_what_was_seen(tmp_path: pathlib.Path) -> None:
  watch = spikes.Watch(of(back=10, after=5), RunFolder.at(tmp_path), sums={})
  for step in range(1, 31):
    assert watch.see(step, 3.0 + step % 2 / 10, runs.Saved(10, 20, 30)) is None
  assert watch.see(31, float('nan'), runs.Saved(10, 20, 30)) is None  # `max_skipped` counts these
  bound = watch.bound()
  assert watch.see(31, 9.0, runs.Saved(10, 20, 30)) == spikes.Spike(31, 9.0, bound, back_to=20, skip=16)


@pytest.mark.parametrize(('saved', 'most', 'why'), [((30,), 1, 'no older step'), ((10,), 0, 'back 0 times already')])
def test_a_spike_without_a_way_back_is_told(
  saved: tuple[int, ...], most: int, why: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  watch = spikes.Watch(of(most=most), RunFolder.at(tmp_path), sums={})
  for step in range(1, 31):
    watch.see(step, 3.0 + step % 2 / 10, runs.Saved(*saved))
  assert watch.see(31, 9.0, runs.Saved(*saved)) is None
  assert 'a spike. The run continues' in caplog.text and why in caplog.text


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
  """One batch of the order holds tokens drawn evenly, of which a trained model expects nothing."""
  read = history.read

  def bad(source: Source, start: int, *, skip: history.Pairs) -> Iterator[dict[str, np.ndarray]]:
    for step, batch in enumerate(read(source, start, skip=skip), start=start):
      number = step + sum(count for at, count in skip if at <= step)
      if number == BAD:
        drawn = np.random.default_rng(0).integers(10, runs.VOCAB_SIZE, batch['tokens'].shape)
        batch = batch | {'tokens': drawn.astype(batch['tokens'].dtype)}
      yield batch

  monkeypatch.setattr(history, 'read', bad)


def settings(data: pathlib.Path, **changes: Any) -> dict[str, Any]:
  return runs.settings('causal_lm', data, optim={'rate': 1e-2}, **SETTINGS, **changes)


@pytest.mark.usefixtures('poisoned')
def test_a_run_goes_back_by_itself_and_is_the_one_that_left_the_batches_out(
  data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  whole, pieces, again = tmp_path / 'whole', tmp_path / 'pieces', tmp_path / 'again'
  result = loop.train(settings(data, spikes=WATCH), whole).result
  assert result['finished'] and result['step'] == 24
  (row,) = result['spikes']
  assert (row['step'], row['back_to'], row['skip']) == (17, 12, 6) and row['loss'] > row['bound']
  assert config.load(str(whole))['skip'] == [[12, 6]]
  assert [row['step'] for row in metrics.read(whole)] == list(range(2, 25, 2))
  # stopped between the checkpoint and the spike: what the watch knew comes from the checkpoint
  loop.train(settings(data, spikes=WATCH), pieces, stop_at=14)
  assert loop.train(settings(data, spikes=WATCH), pieces).result['spikes'] == [row]
  assert not runs.differing(runs.saved_state(pieces), runs.saved_state(whole))
  loop.train(config.resolve(config.load(str(whole / 'config.json'))), again)
  assert not runs.differing(runs.saved_state(again), runs.saved_state(whole))
  assert not (again / 'spikes.jsonl').exists()


@pytest.mark.usefixtures('poisoned')
@pytest.mark.slow
def test_a_spike_counts_though_the_run_is_killed_on_its_way_back(
  tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """And once, however often it is met before the run is back."""
  folder, spike = RunFolder.at(tmp_path), spikes.Spike(step=30, loss=9.0, bound=4.25, back_to=20, skip=15)
  went: list[int] = []

  def killed(root: pathlib.Path, step: int, *, skip: int) -> None:
    went.append(step)
    if len(went) < 3:
      raise KeyboardInterrupt

  monkeypatch.setattr(spikes.rewind, 'rewind', killed)
  for _ in range(2):
    with pytest.raises(KeyboardInterrupt):
      spikes.go_back(folder, spike)
    assert spikes.read(folder) == [spike._asdict()]
  spikes.go_back(folder, spike)
  assert spikes.read(folder) == [spike._asdict()] and len(went) == 3
  spikes.go_back(folder, spike._replace(loss=8.0))  # another one at the same step
  assert len(spikes.read(folder)) == 2


def test_a_watch_that_may_not_go_back_changes_nothing(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  plain, watched = tmp_path / 'plain', tmp_path / 'watched'
  loop.train(settings(data), plain, stop_at=12)
  loop.train(settings(data, spikes=WATCH | {'most': 0}), plain)  # asked for on the way
  loop.train(settings(data), watched)
  assert not runs.differing(runs.saved_state(plain), runs.saved_state(watched))


def test_a_loss_of_drawn_words_is_watched_and_shown(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """ELMo with `negatives` measures the loss of all words in evaluations alone."""
  chosen = runs.settings('bidirectional_lm', data, objective={'negatives': 8}, spikes=WATCH | {'deviations': 1e3})
  assert loop.train(chosen, tmp_path).result['finished']
  assert re.search(r'step 2/\d+  sampled_loss \d', (tmp_path / 'log.txt').read_text())
  assert spikes.read(RunFolder.at(tmp_path)) == []
  drawn = curves._panels(metrics.read(tmp_path))['loss']
  assert len(drawn['training'][0]) and len(drawn['validation'][0])


def test_a_watch_is_checked(data: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match=r'spikes\.memory'):
    settings(data, spikes={'memory': 1})
