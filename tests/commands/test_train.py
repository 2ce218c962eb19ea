"""Runs as a user meets them: pre-training, fine-tuning, their folders, what is refused, and the commands on them."""

import fcntl
import json
import math
import pathlib
import re
import resource
import shutil
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from plm_jax import checkpoint, config
from plm_jax.checkpoint import saved_steps
from plm_jax.cli import command
from plm_jax.commands import evaluate, fill, heads, sample_efficiency, train
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.inference import attention_maps
from plm_jax.io import checksums
from plm_jax.runs import metrics, predicted
from plm_jax.text import byte_bpe, tokenizer
from plm_jax.training import feed, loop, parts, start
from tests import conftest, runs

STEP_METRICS = {'loss', 'accuracy', 'learning_rate', 'gradient_norm', 'skipped', 'tokens_per_second'}
RESULT = {
  'finished', 'exit_code', 'step', 'steps', 'best_step', 'metrics', 'metrics_sha256', 'seconds', 'goodput', 'tokens',
  'skipped', 'parameters', 'trained', 'outside_trunk', 'data_digest', 'vocab_digest', 'first_ten_batches', 'versions',
  'spikes', 'code', 'machine',
}  # fmt: skip


pytestmark = pytest.mark.usefixtures('log')


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp('runs')


@pytest.fixture(scope='module')
def mlm(root: pathlib.Path, data: pathlib.Path) -> pathlib.Path:
  """A finished pre-training run of BERT."""
  outcome = loop.train(runs.settings('mlm', data), root / 'mlm')
  assert outcome.exit_code == 0
  return root / 'mlm'


@pytest.fixture(scope='module')
def half_done(root: pathlib.Path, data: pathlib.Path) -> pathlib.Path:
  """The same run, stopped on the way; tests go on from copies."""
  outcome = loop.train(runs.settings('mlm', data), root / 'half_done', stop_at=5)
  assert outcome.exit_code == 0
  assert not outcome.result['finished']
  assert outcome.result['step'] == 5
  return root / 'half_done'


@pytest.fixture
def stopped(half_done: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
  return pathlib.Path(shutil.copytree(half_done, tmp_path / 'stopped'))


@pytest.fixture(scope='module')
def gpt(root: pathlib.Path, data: pathlib.Path) -> pathlib.Path:
  """A finished run of GPT."""
  assert loop.train(runs.settings('causal_lm', data), root / 'gpt').exit_code == 0
  return root / 'gpt'


@pytest.fixture(scope='module')
def classify(root: pathlib.Path, data: pathlib.Path, mlm: pathlib.Path) -> pathlib.Path:
  """Fine-tuning from the pre-training run."""
  init = [{'source': str(mlm), 'from_': 'trunk', 'to': 'trunk'}]
  assert loop.train(runs.settings('classify', data, init_from=init), root / 'classify').exit_code == 0
  return root / 'classify'


def result_of(workdir: pathlib.Path) -> dict[str, Any]:
  return json.loads((workdir / 'result.json').read_text())


# The run folder.


def test_the_folder_holds_what_is_promised(mlm: pathlib.Path) -> None:
  names = {'events' if path.name.startswith('events.') else path.name for path in mlm.iterdir()}
  assert names == {
    '.lock', 'checkpoints', 'config.json', 'curves.png', 'data.json', 'events', 'log.txt', 'metrics.jsonl',
    'result.json', 'vocab', 'SHA256SUMS',
  }  # fmt: skip
  assert (mlm / 'curves.png').read_bytes().startswith(b'\x89PNG')
  assert not list(mlm.rglob('*.tmp*'))


def test_metrics_are_one_line_a_logged_step(mlm: pathlib.Path) -> None:
  rows = [json.loads(line) for line in (mlm / 'metrics.jsonl').read_text().splitlines()]
  assert [row['step'] for row in rows] == list(range(2, runs.STEPS + 1, 2))
  for row in rows:
    assert row.keys() >= STEP_METRICS
    assert all(math.isfinite(value) for value in row.values())
    assert row['tokens_per_second'] > 0
    assert row['perplexity'] == pytest.approx(math.exp(row['loss']))
    assert ('validation/loss' in row) == (row['step'] % 6 == 0)


@pytest.mark.parametrize('change', ['digit', 'line', 'gone', 'none'])
def test_metrics_of_a_finished_run_that_were_changed_are_told(
  change: str, mlm: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  run = pathlib.Path(shutil.copytree(mlm, tmp_path / 'run'))
  file, text = run / 'metrics.jsonl', (mlm / 'metrics.jsonl').read_text()
  if change == 'digit':
    place = next(place for place in range(len(text) // 2, len(text)) if text[place].isdigit())
    file.write_text(f'{text[:place]}{(int(text[place]) + 1) % 10}{text[place + 1 :]}')
  elif change == 'line':
    file.write_text(''.join(text.splitlines(keepends=True)[1:]))
  elif change == 'gone':
    file.unlink()
  before = (run / 'result.json').read_text()
  with caplog.at_level('INFO', logger='plm_jax'):
    assert loop.train(runs.settings('mlm', data), run).exit_code == 0
  assert any('metrics.jsonl' in line for line in caplog.messages) == (change != 'none')
  assert (run / 'result.json').read_text() == before


@pytest.mark.parametrize('kind', ['mlm', 'gpt'])
def test_pre_training_learns(kind: str, request: pytest.FixtureRequest) -> None:
  rows = metrics.read(request.getfixturevalue(kind))
  first, last = (np.mean([row['loss'] for row in part]) for part in (rows[:2], rows[-2:]))
  assert last < 0.95 * first
  assert rows[0]['loss'] == pytest.approx(math.log(runs.VOCAB_SIZE), rel=0.05)


def test_result_counts_what_was_done(mlm: pathlib.Path, data: pathlib.Path) -> None:
  result = result_of(mlm)
  assert result.keys() == RESULT
  assert (result['finished'], result['exit_code'], result['step'], result['steps']) == (True, 0, 12, 12)
  settings = runs.settings('mlm', data)
  source = parts.make_source(settings['data'], parts.make_vocab(settings), seed=0)
  batches = source.read(0)
  assert result['tokens'] == sum(int((next(batches)['segment_ids'] > 0).sum()) for _ in range(runs.STEPS))
  params = runs.params_of(runs.saved_state(mlm))
  assert result['parameters'] == result['trained'] == sum(leaf.size for leaf in params.values())
  assert result['outside_trunk'] == sum(leaf.size for name, leaf in params.items() if '/mlm/' in name)
  assert result['metrics']['loss'] == metrics.read(mlm)[-1]['loss']
  assert result['versions'].keys() >= {'plm_jax', 'python', 'jax', 'flax', 'optax', 'orbax-checkpoint', 'grain'}


def test_the_newest_and_the_best_steps_stay(mlm: pathlib.Path, classify: pathlib.Path) -> None:
  for workdir, name, best in ((mlm, 'validation/loss', min), (classify, 'validation/accuracy', max)):
    scores = {row['step']: row[name] for row in metrics.read(workdir) if name in row}
    best_step = next(step for step in scores if scores[step] == best(scores.values()))
    assert result_of(workdir)['best_step'] == best_step
    assert saved_steps.numbered(workdir / 'checkpoints') == sorted({best_step, 8, 12})


def test_the_log_tells_what_happened(mlm: pathlib.Path) -> None:
  text = (mlm / 'log.txt').read_text()
  assert f'{result_of(mlm)["parameters"]:,} parameters' in text
  assert 'steps 0 to 12 of 12' in text
  assert text.count('validation/loss') == 2


def test_the_vocabulary_is_kept_with_the_run(mlm: pathlib.Path, data: pathlib.Path) -> None:
  assert tokenizer.load(mlm / 'vocab').digest == tokenizer.load(data / 'vocab').digest
  kept = json.loads((mlm / 'data.json').read_text())
  assert kept['vocab_digest'] == tokenizer.load(data / 'vocab').digest
  settings = runs.settings('mlm', data)
  source = parts.make_source(settings['data'], parts.make_vocab(settings), seed=0)
  assert kept['first_ten_batches'] == feed.first_batches_digest(source)
  assert kept['data_digest'] == source.digest


def test_config_json_alone_repeats_the_run(mlm: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = config.resolve(config.load(str(mlm / 'config.json')))
  assert loop.train(settings, tmp_path / 'again').exit_code == 0
  assert not runs.differing(runs.saved_state(tmp_path / 'again'), runs.saved_state(mlm))
  assert runs.curve(tmp_path / 'again') == runs.curve(mlm)
  assert (tmp_path / 'again' / 'config.json').read_bytes() == (mlm / 'config.json').read_bytes()


# Running again.


def test_a_finished_run_says_so_and_changes_nothing(
  mlm: pathlib.Path, data: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  before = runs.snapshot(mlm)
  outcome = loop.train(runs.settings('mlm', data), mlm)
  assert outcome == (0, result_of(mlm))
  assert runs.snapshot(mlm) == before
  assert 'is finished' in caplog.text and '12 steps' in caplog.text


@pytest.mark.parametrize(
  ('change', 'shown'),
  [
    ({'optim': {'rate': 2e-2}}, 'optim.rate: 0.01 -> 0.02'),
    ({'seed': 1}, 'seed: 0 -> 1'),
    ({'steps': 24}, 'steps: 12 -> 24'),
    ({'data': {'batch_size': 16}}, 'data.batch_size: 8 -> 16'),
    ({'best': None}, "best: ['validation/loss', 'min'] -> None"),
    ({'log_every': 3, 'seed': 1}, 'seed: 0 -> 1'),
  ],
)
def test_another_config_is_refused(stopped: pathlib.Path, data: pathlib.Path, change: Any, shown: str) -> None:
  before = runs.snapshot(stopped)
  with pytest.raises(ConfigError) as refused:
    loop.train(runs.settings('mlm', data, **change), stopped)
  assert shown in str(refused.value)
  assert 'log_every: 2' not in str(refused.value)
  assert '--workdir' in str(refused.value)
  assert runs.snapshot(stopped) == before


def test_what_leaves_results_alone_may_change(stopped: pathlib.Path, data: pathlib.Path, mlm: pathlib.Path) -> None:
  settings = runs.settings('mlm', data, log_every=3, keep=5, log=[])
  outcome = loop.train(settings, stopped)
  assert outcome.result['finished']
  text = (stopped / 'log.txt').read_text()
  assert 'resuming with log_every: 2 -> 3' in text
  assert 'from step 5' in text
  assert json.loads((stopped / 'config.json').read_text())['keep'] == 5
  assert [row['step'] for row in metrics.read(stopped)] == [2, 4, 5, 6, 9, 12]
  assert not runs.differing(runs.saved_state(stopped), runs.saved_state(mlm))
  whole = result_of(mlm)
  assert outcome.result['tokens'] == whole['tokens']
  assert outcome.result['seconds'] > 0


def test_another_text_is_refused(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  copy = pathlib.Path(shutil.copytree(data, tmp_path / 'data'))
  settings = runs.settings('mlm', copy)
  assert loop.train(settings, tmp_path / 'run', stop_at=1).exit_code == 0
  file = copy / 'corpus' / 'train.txt'
  file.write_text(file.read_text().replace('lantern', 'candle'))
  with pytest.raises(ConfigError, match=r'(?s)data: .*--workdir'):
    loop.train(settings, tmp_path / 'run')


def test_another_vocabulary_is_refused_and_a_lost_one_is_no_loss(
  stopped: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  path = tmp_path / 'vocab'
  config = (stopped / 'config.json').read_text()
  checksums.write(stopped, {'config.json': config.replace(str(data / 'vocab'), str(path))})
  settings = runs.settings('mlm', data, vocab={'path': str(path)})
  byte_bpe.train(['a quite different text'], size=300).save(path)
  with pytest.raises(ConfigError, match=r'(?s)vocab: .*vocabulary'):
    loop.train(settings, stopped)
  shutil.rmtree(path)
  assert loop.train(settings, stopped, stop_at=6).result['step'] == 6


def test_epochs_become_steps_that_stay(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings('mlm', data)
  each = parts.make_source(settings['data'], parts.make_vocab(settings), seed=0).steps_per_epoch
  settings |= {'steps': None, 'epochs': runs.STEPS / each}
  assert loop.train(settings, tmp_path, stop_at=2).result['steps'] == runs.STEPS
  assert loop.train(settings, tmp_path, stop_at=3).result['step'] == 3
  with pytest.raises(ConfigError, match=r'epochs=1 .*\b12\b'):
    loop.train({**settings, 'epochs': 1.0}, tmp_path)
  whole = loop.train(settings, tmp_path)
  assert whole.result['finished'] and loop.train(settings, tmp_path) == whole
  before = runs.snapshot(tmp_path)
  with pytest.raises(ConfigError, match=r'epochs=1 .*\b12\b'):
    loop.train({**settings, 'epochs': 1.0}, tmp_path)
  assert runs.snapshot(tmp_path) == before


def test_an_end_before_the_step_of_a_run_is_told(stopped: pathlib.Path, data: pathlib.Path) -> None:
  assert loop.train(runs.settings('mlm', data), stopped, stop_at=3).result['step'] == 5
  said = (stopped / 'log.txt').read_text().partition('from step 5')[2]
  assert 'step 5 of 12' in said and '--stop_at' in said
  assert 'steps 5 to' not in said


def test_a_folder_in_use_is_refused(stopped: pathlib.Path, data: pathlib.Path) -> None:
  with open(stopped / '.lock', 'w') as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(ConfigError, match='another process'):
      loop.train(runs.settings('mlm', data), stopped)


def test_a_folder_that_is_none_is_refused(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  (tmp_path / 'file').touch()
  for workdir in (tmp_path / 'file', tmp_path / 'file' / 'below', pathlib.Path('/proc/run')):
    with pytest.raises(ConfigError, match=r'(?s)cannot .*--workdir'):
      loop.train(runs.settings('mlm', data), workdir)


def test_settings_that_another_hand_changed_are_refused(
  stopped: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  file = stopped / 'config.json'
  file.write_text(file.read_text().replace('"seed": 0', '"seed": 1', 1))
  before = runs.snapshot(stopped / 'checkpoints')
  with pytest.raises(RunError, match=r'config\.json'):
    loop.train(runs.settings('mlm', data), stopped)
  with pytest.raises(RunError, match=r'config\.json'):
    config.load(str(stopped))
  assert runs.snapshot(stopped / 'checkpoints') == before
  shutil.copy(file, tmp_path / 'mine.json')
  assert config.load(str(tmp_path / 'mine.json'))['seed'] == 1


def test_a_start_that_was_cut_off_binds_nobody(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  workdir = tmp_path / 'run'
  workdir.mkdir()
  (workdir / 'data.json').write_text('{"data_digest": "of another text"}')
  (workdir / 'vocab').mkdir()
  (workdir / 'vocab' / 'vocab.json').write_text('{}')
  assert loop.train(runs.settings('mlm', data), workdir, stop_at=1).result['step'] == 1


# Ends.


def test_early_stop_is_the_end_of_a_run(
  data: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  # the loss falls, so that the first evaluation has the highest
  settings = runs.settings('mlm', data, best=('validation/loss', 'max'), eval_every=2, early_stop=2)
  outcome = loop.train(settings, tmp_path / 'whole')
  assert outcome.exit_code == 0
  assert (outcome.result['finished'], outcome.result['step'], outcome.result['best_step']) == (True, 6, 2)
  assert 'early stop at step 6' in (tmp_path / 'whole' / 'log.txt').read_text()
  with caplog.at_level('INFO'):
    assert loop.train(settings, tmp_path / 'whole') == outcome
  assert 'step 6 of 12' in caplog.text and '--extend=N' in caplog.text and 'step 12 + N' in caplog.text
  assert loop.train(settings, tmp_path / 'whole', extend=4, stop_at=7).result['steps'] == 16
  loop.train(settings, tmp_path / 'pieces', stop_at=5)
  assert loop.train(settings, tmp_path / 'pieces').result['step'] == 6


def test_a_run_that_diverges_stops_with_4(data: pathlib.Path, mlm: pathlib.Path, tmp_path: pathlib.Path) -> None:
  params = checkpoint.open_params(mlm).tree()
  params['mlm']['bias'][7] = np.inf
  checkpoint.save_params(tmp_path / 'broken', params)
  settings = runs.settings(
    'mlm', data, init_from=[{'source': str(tmp_path / 'broken'), 'from_': '', 'to': ''}], max_skipped=3, save_every=1
  )
  file = runs.write_config(tmp_path / 'config.json', settings)
  workdir = tmp_path / 'run'
  assert train.main([f'--config={file}', f'--workdir={workdir}']) == 4
  result = result_of(workdir)
  assert (result['finished'], result['exit_code'], result['skipped'], result['step']) == (False, 4, 3, 3)
  text = (workdir / 'log.txt').read_text()
  assert re.search(r'step 1: .*not finite.*skipped', text) and re.search(r'step 3: .*max_skipped.*diverged', text)
  assert re.search(r'step 2 .*not saved.*params/mlm/bias', text) and '--workdir' in text
  assert not saved_steps.numbered(workdir / 'checkpoints')
  assert train.main([f'--config={file}', f'--workdir={workdir}']) == 4


def test_a_run_of_skipped_updates_has_diverged_however_few(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings('mlm', data, steps=2, save_every=1, max_skipped=None)
  settings['optim']['eps'] = 0.0  # which no config may have: 0 / 0 where a gradient is 0
  for _ in range(2):  # the same command again says it again
    outcome = loop.train(settings, tmp_path)
    assert (outcome.exit_code, outcome.result['finished'], outcome.result['skipped']) == (4, False, 2)
    assert '2 updates' in (tmp_path / 'log.txt').read_text()


def test_best_must_name_a_metric_before_a_step_is_made(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match=r"(?s)best: .*'los'.*'validation'.*perplexity"):
    loop.train(runs.settings('mlm', data, best=('validation/los', 'min')), tmp_path)
  assert not (tmp_path / 'metrics.jsonl').exists()


# Fine-tuning.


def test_fine_tuning_starts_from_the_best_trunk(classify: pathlib.Path, mlm: pathlib.Path) -> None:
  text = (classify / 'log.txt').read_text()
  trunk = runs.params_of(runs.saved_state(mlm), 'params/trunk')
  for name in trunk:
    assert f'restored  {name.removeprefix("params/")}' in text
  # pre-training had no use for a pooler
  new = ('head/bias', 'head/kernel', 'trunk/pooler/bias', 'trunk/pooler/kernel')
  assert all(f'new       {name}' in text for name in new)
  assert f'{len(trunk)} restored, {len(new)} new, 0 skipped' in text
  assert 'accuracy' in result_of(classify)['metrics']


def test_fine_tuning_from_scratch(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  outcome = loop.train(runs.settings('classify', data), tmp_path, stop_at=2)
  assert outcome.exit_code == 0
  assert 'restored' not in (tmp_path / 'log.txt').read_text()


def test_a_frozen_trunk_keeps_its_bits(data: pathlib.Path, mlm: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings(
    'classify',
    data,
    init_from=[{'source': str(mlm), 'step': 'newest'}],
    adapter={'frozen': True},
    optim={'scale': [['trunk/.*', None], ['.*', 1.0]]},
  )
  outcome = loop.train(settings, tmp_path)
  state, source = runs.saved_state(tmp_path), runs.params_of(runs.saved_state(mlm), 'params/trunk')
  assert len(source) > 10
  assert not runs.differing({name: state[name] for name in source}, source)
  head = runs.params_of(state, 'params/head')
  assert all(leaf.any() for leaf in head.values())
  assert outcome.result['trained'] == outcome.result['outside_trunk'] == sum(leaf.size for leaf in head.values())
  assert not [name for name in state if name.startswith('opt_state/') and '/trunk/' in name]


def test_parameters_of_another_vocabulary_are_refused(
  data: pathlib.Path, mlm: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  byte_bpe.train(['a quite different text'] * 9, size=300).save(tmp_path / 'vocab')
  settings = runs.settings('classify', data, vocab={'path': str(tmp_path / 'vocab')}, init_from=[{'source': str(mlm)}])
  with pytest.raises(ConfigError, match=r'init_from: .*vocabulary'):
    loop.train(settings, tmp_path / 'run')


def test_an_extended_vocabulary_continues(data: pathlib.Path, mlm: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings(
    'classify',
    data,
    vocab={'extra': ['_start_', '_classify_']},
    init_from=[{'source': str(mlm), 'step': 'newest', 'resize': 'new_rows'}],
    optim={'scale': [['trunk/.*', None], ['.*', 1.0]]},
  )
  assert loop.train(settings, tmp_path, stop_at=1).exit_code == 0
  text = (tmp_path / 'log.txt').read_text()
  assert re.search(rf'2 .*{mlm}.*_start_, _classify_', text)
  assert f'{runs.VOCAB_SIZE} to {runs.VOCAB_SIZE + 1}' in text
  name = 'params/trunk/token_embed/table'
  table, old = runs.saved_state(tmp_path)[name], runs.saved_state(mlm)[name]
  assert table.shape[0] == old.shape[0] + 2
  assert np.array_equal(table[: len(old)], old)
  assert table[len(old) :].any()


# The command.


def call(*flags: Any) -> tuple[int, str, float, set[str]]:
  """Exit code, stderr, seconds of computation and loaded modules of `plm-jax train`."""
  code = (
    'import sys\nfrom plm_jax.commands import train\nfrom plm_jax.cli import command\ncode = command.run(train.main)\n'
    'print(*sys.modules)\nsys.exit(code)'
  )
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  done = subprocess.run(
    [sys.executable, '-c', code, *map(str, flags)],
    cwd=conftest.ROOT,
    capture_output=True,
    text=True,
    stdin=subprocess.DEVNULL,
    timeout=120,
    check=False,
  )
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  return done.returncode, done.stderr, seconds, set(done.stdout.split())


def test_a_misspelt_key_ends_at_once_without_jax(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  code, said, seconds, modules = call(f'--config={file}', f'--workdir={tmp_path / "run"}', '--config.optim.rat=1')
  assert code == 2
  assert 'unknown key optim.rat: did you mean optim.rate' in said and 'Traceback' not in said
  assert seconds < 2
  assert not modules & {'jax', 'flax', 'orbax', 'grain', 'tokenizers'}
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize(
  ('where', 'said'),
  [
    ('{0}/file', '--compile_cache=.*file'),
    ('{0}/file/below', '--compile_cache=.*below'),
    ('gs:/bucket/x', 'gs://bucket/x'),
    ('s3://', 's3://.*bucket'),
  ],
)
def test_a_cache_of_programs_that_cannot_be_kept_is_refused(
  data: pathlib.Path, tmp_path: pathlib.Path, where: str, said: str
) -> None:
  (tmp_path / 'file').write_text('in the way')
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  with pytest.raises(ConfigError, match=said):
    train.main([f'--config={file}', f'--workdir={tmp_path / "run"}', f'--compile_cache={where.format(tmp_path)}'])
  assert not (tmp_path / 'run').exists()


def test_programs_that_one_start_keeps_are_read_by_the_next(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  """Each start makes its own run from the first step; programs that are read compute the same bits."""
  monkeypatch.delenv('JAX_COMPILATION_CACHE_DIR')
  monkeypatch.setenv('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0')
  monkeypatch.setenv('JAX_DEBUG_LOG_MODULES', 'jax._src.compiler')
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  cache = tmp_path / 'programs'
  read, kept = [], []
  for name in ('first', 'second'):
    done = runs.command(
      'train', f'--config={file}', f'--workdir={tmp_path / name}', '--stop_at=2', f'--compile_cache={cache}'
    )
    assert done.returncode == 0, done.stderr[-3000:]
    read.append(set(re.findall("Persistent compilation cache hit for '(.*?)'", done.stderr)))
    kept.append({path.name for path in cache.glob('*-cache')})
  assert 'jit_logged_step' in read[1] - read[0]
  assert kept[0] == kept[1]
  assert len(kept[0]) >= len(read[1]) > 0
  assert runs.curve(tmp_path / 'first') == runs.curve(tmp_path / 'second')
  assert runs.differing(runs.saved_state(tmp_path / 'first'), runs.saved_state(tmp_path / 'second')) == []


def test_an_unfit_pair_is_refused_before_any_data_is_read(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings(
    'mlm', data, model={'name': 'gpt'}, data={'path': str(tmp_path / 'nowhere')}, eval={}, best=None
  )
  file = runs.write_config(tmp_path / 'config.json', settings)
  code, said, seconds, _ = call(f'--config={file}', f'--workdir={tmp_path / "run"}')
  assert code == 2
  assert "objective 'mlm'" in said and 'bidirectional' in said and 'Gpt' in said
  assert 'nowhere' not in said and 'Traceback' not in said
  assert seconds < 10


def test_rows_without_what_the_objective_reads_are_refused(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data))
  words = (f'--config={file}', f'--workdir={tmp_path}', '--config.objective.name=sentence_pair')
  code, said, seconds, modules = call(*words)
  assert code == 2
  assert "objective 'sentence_pair'" in said and "data 'stream'" in said
  assert 'first, next, other' in said and 'pairs' in said and 'Traceback' not in said
  assert seconds < 2 and 'jax' not in modules


def test_what_a_source_gives_may_depend_on_its_settings(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(start, 'abstract_params', None)  # nothing of the optimiser or of the parameters is made
  settings = runs.settings('classify', data) | {'adapter': {'name': 'tag', 'tags': runs.CLASSES}}
  with pytest.raises(ConfigError) as error:
    loop.train(settings, tmp_path)
  message = str(error.value)
  assert message.startswith("data: adapter 'tag' reads tokens, segment_ids, labels;")
  assert "data 'labelled'" in message and 'labels' in message
  assert 'label,' in message and "data.kind ('words')" in message and 'adapter.name' in message


@pytest.mark.parametrize(
  ('change', 'where'),
  [
    ({'data': {'path': '/nowhere', 'length': 33}, 'eval': {}, 'best': None}, 'data'),
    ({'data': {'path': '/nowhere'}, 'eval': {'validation': {'data': {'length': 33}}}}, 'eval.validation.data'),
  ],
)
def test_rows_beyond_the_positions_are_refused_before_any_data_is_read(
  data: pathlib.Path, tmp_path: pathlib.Path, change: Any, where: str
) -> None:
  with pytest.raises(ConfigError) as error:
    loop.train(runs.settings('mlm', data, **change), tmp_path)
  message = str(error.value)
  assert message.startswith(f'{where}: Bert has learned positions for 32 tokens and was given a row of 33')
  assert 'model.overrides.max_length=33' in message and 'resize="interpolate"' in message


def test_longer_rows_than_the_source_had(data: pathlib.Path, mlm: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """Fine-tuning at twice the length that was trained: the table is stretched where init_from asks for it, only then."""
  longer = {'model': {'overrides': {**runs.SIZES, 'max_length': 63}}, 'data': {'length': 63}}
  source = {'source': str(mlm), 'step': 'newest'}
  with pytest.raises(ConfigError, match=r"(?s)\[32, 32\].*\[63, 32\].*resize='interpolate'"):
    loop.train(runs.settings('classify', data, **longer, init_from=[source]), tmp_path / 'refused')
  frozen = {'optim': {'scale': [['trunk/.*', None], ['.*', 1.0]]}}
  settings = runs.settings('classify', data, **longer, **frozen, init_from=[{**source, 'resize': 'interpolate'}])
  assert loop.train(settings, tmp_path, stop_at=1).exit_code == 0
  name = 'params/trunk/position_embed/table'
  table, old = runs.saved_state(tmp_path)[name], runs.saved_state(mlm)[name]
  assert np.array_equal(table[::2], old)
  np.testing.assert_allclose(table[1::2], (old[:-1] + old[1:]) / 2, rtol=1e-5, atol=1e-7)
  assert re.search(r'32 .*interpolated.* 63', (tmp_path / 'log.txt').read_text())


@pytest.mark.parametrize(
  ('change', 'said'),
  [
    ({'data': {'path': '/nowhere'}}, r"data: .*file or folder '/nowhere'"),
    ({'vocab': {'path': '/nowhere'}}, r'vocab.path: there is no vocabulary in /nowhere'),
    ({'data': {'batch_size': 6}}, r'data\.batch_size=6 rows cannot be cut into 4 devices'),
    (
      {'eval': {'validation': {'data': {'split': 'validation', 'batch_size': 6}}}},
      r'eval\.validation\.data\.batch_size=6 rows cannot be cut into 4 devices: make it .*, such as 8',
    ),
    ({'init_from': [{'source': '/nowhere'}]}, r'init_from: there is no /nowhere'),
    ({'sharding': {'mesh': {'data': 3}}}, r'sharding\.mesh=.* does not use all 4 devices'),
    ({'model': {'overrides': {**runs.SIZES, 'max_length': 16}}}, r'learned positions for 16 tokens'),
    ({'data': {'length': 1}}, r'length=1 is too short'),
    ({'data': {'split': 'train[:101%tokens]'}}, r'101%'),
  ],
)
def test_mistakes_that_only_the_data_and_the_machine_show(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], change: Any, said: str
) -> None:
  file = runs.write_config(tmp_path / 'config.json', runs.settings('mlm', data, **change))
  code = command.run(lambda: train.main([f'--config={file}', f'--workdir={tmp_path / "run"}']))
  error = capsys.readouterr().err
  assert code == 2
  assert re.search(said, error), error
  assert not (tmp_path / 'run').exists()


# Scores and blanks.


def scored(workdir: pathlib.Path) -> list[dict[str, Any]]:
  return [json.loads(line) for line in (workdir / 'evaluations.jsonl').read_text().splitlines()]


def test_evaluate_gives_the_scores_of_training(mlm: pathlib.Path) -> None:
  assert evaluate.main([f'--workdir={mlm}', '--step=12']) == 0
  last = metrics.read(mlm)[-1]
  assert scored(mlm)[-1] == {'step': 12} | {name: last[name] for name in last if name.startswith('validation/')}


def test_evaluate_knows_its_evaluations(mlm: pathlib.Path) -> None:
  with pytest.raises(ConfigError, match=r"evaluation.*'test'.*validation"):
    evaluate.main([f'--workdir={mlm}', '--evaluation=test'])
  with pytest.raises(ConfigError, match=r'batch_size=6.*\b4 devices'):
    evaluate.main([f'--workdir={mlm}', '--config.eval.validation.data.batch_size=6'])
  with pytest.raises(ConfigError, match=r"--step=last.*'newest'.*'best'"):
    evaluate.main([f'--workdir={mlm}', '--step=last'])
  with pytest.raises(checkpoint.CheckpointError, match=r'\bstep 7\b'):
    evaluate.main([f'--workdir={mlm}', '--step=7'])


def test_predictions_are_asked_only_of_tasks_that_make_them(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings('mlm', data)
  made = parts.make_parts(settings, parts.make_vocab(settings))
  predicted.check_task(made.task, tmp_path, user=made.user)
  silent = made.task._replace(predict=None)
  predicted.check_task(silent, None, user=made.user)
  with pytest.raises(ConfigError, match=r"--predictions.*'mlm'"):
    predicted.check_task(silent, tmp_path, user=made.user)


def test_evaluate_writes_predictions(classify: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  file = tmp_path / 'predictions.jsonl'
  assert (
    evaluate.main([f'--workdir={classify}', f'--predictions={file}', '--config.eval.validation.data.split=test']) == 0
  )
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  labels = [json.loads(line)['label'] for line in (data / 'labelled' / 'test.jsonl').read_text().splitlines()]
  assert [row['row_id'] for row in rows] == list(range(len(labels)))
  for row in rows:
    assert sum(row['probability']) == pytest.approx(1, abs=1e-6)
    assert row['label'] == int(np.argmax(row['probability']))
    assert row['name'] == runs.CLASSES[row['label']]
  last = scored(classify)[-1]
  assert last['step'] == result_of(classify)['best_step']
  right = np.mean([row['label'] == label for row, label in zip(rows, labels, strict=True)])
  assert last['validation/accuracy'] == pytest.approx(right)


def test_evaluate_follows_a_run_to_its_end(gpt: pathlib.Path) -> None:
  assert evaluate.main([f'--workdir={gpt}', '--follow', '--timeout=60']) == 0
  assert [row['step'] for row in scored(gpt)] == saved_steps.numbered(gpt / 'checkpoints')


@pytest.mark.parametrize(
  'text', ['Anna was a [MASK] who lived near the <mask>.', 'I <MASK> you because you are <MASK>']
)
def test_fill_shows_a_table(text: str, mlm: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  assert fill.main([f'--workdir={mlm}', f'--text={text}', '--top=3']) == 0
  lines = capsys.readouterr().out.splitlines()
  assert any('blank' in line and '3' in line for line in lines)
  assert sum(line.lstrip(' │').startswith(('1 ', '2 ')) for line in lines) == 2


def test_fill_refuses_what_cannot_be_filled(mlm: pathlib.Path, gpt: pathlib.Path, classify: pathlib.Path) -> None:
  for workdir, text, said in (
    (mlm, 'no gap', 'blank'),
    (mlm, 'a [MASK] ' * 40, r'\b32\b'),
    (gpt, 'a [MASK]', 'causal'),
    (classify, 'a [MASK]', 'adapter'),
  ):
    with pytest.raises(ConfigError, match=said):
      fill.main([f'--workdir={workdir}', f'--text={text}'])


def test_heads_measures_and_draws_every_head(
  mlm: pathlib.Path, gpt: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  for workdir in (mlm, gpt):
    out = tmp_path / f'{workdir.name}.png'
    assert heads.main([f'--workdir={workdir}', '--text=Anna was in the garden.', f'--out={out}']) == 0
    assert out.read_bytes().startswith(b'\x89PNG')
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.endswith('% │')]
    assert [row[1:4:2] for row in rows] == [['0', '0'], ['0', '1'], ['1', '0'], ['1', '1']]  # layers and heads
  maps = attention_maps.Maps(['a', 'b'], np.array([[[[1.0, 0.0], [0.5, 0.5]]]]), [0], [0])
  (head,) = attention_maps.measure(maps)
  assert (head.distance, head.entropy, head.uniform) == (0.25, 0.5, 0.5)


def test_sample_efficiency_study(
  classify: pathlib.Path, tmp_path: pathlib.Path, data: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  plain = json.loads((classify / 'config.json').read_text())
  plain['eval']['test'] = {'data': {**plain['eval']['validation']['data'], 'split': 'test'}, 'every': None}
  file = runs.write_config(tmp_path / 'config.json', plain)
  flags = [f'--config={file}', f'--workdir={tmp_path / "study"}', '--sizes=4', '--seeds=1', '--rates=1e-2']
  assert sample_efficiency.main(flags) == 0
  first = capsys.readouterr().out
  assert 'Test accuracy, mean of 1 seeds' in first
  table = json.loads((tmp_path / 'study' / 'table.json').read_text())
  (row,) = table['rows']
  assert row['labels_per_class'] == 4
  assert all(0 <= row[start][0] <= 1 for start in ('scratch', 'pretrained'))
  lines = (tmp_path / 'study' / 'runs.jsonl').read_text().splitlines()
  assert len(lines) == 2
  assert (tmp_path / 'study' / 'curves.png').read_bytes().startswith(b'\x89PNG')
  assert sample_efficiency.main(flags) == 0
  assert (tmp_path / 'study' / 'runs.jsonl').read_text().splitlines() == lines
  assert capsys.readouterr().out == first
