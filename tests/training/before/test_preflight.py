"""What a run is refused for before its folder is made: memory by shape, splits, labels, metrics, missing packages."""

import json
import pathlib
import re
import sys
import types
from typing import Any

import jax
import numpy as np
import pytest

from plm_jax import config
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Labels
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import run_folder
from plm_jax.studies import transfer
from plm_jax.text import tokenizer
from plm_jax.text import words as word_vocabulary
from plm_jax.training import evaluate_saved, loop
from plm_jax.training.before import preflight
from plm_jax.training.cost import memory
from plm_jax.training.parts import make_layout, make_parts, make_vocab
from plm_jax.training.step import abstract_params
from tests import runs
from tests.data import small


@pytest.fixture(autouse=True)
def nothing_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
  from plm_jax.data.rows import store

  def fail(*arguments: Any, **keywords: Any) -> None:
    raise AssertionError('text was tokenised')

  for name in ('on_disk', 'in_memory'):
    monkeypatch.setattr(store, name, fail)


def refused(settings: Any, folder: pathlib.Path) -> str:
  """The one line that refuses a run; neither text was tokenised nor a folder made."""
  with pytest.raises(ConfigError) as caught:
    loop.train(settings, folder / 'run')
  assert not (folder / 'run').exists()
  assert '\n' not in str(caught.value)
  return str(caught.value)


# Memory.


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'model': {'overrides': {**runs.SIZES, 'hidden_dim': 10**9}}}, ['model.overrides.hidden_dim=1000000000']),
    ({'model': {'overrides': {**runs.SIZES, 'mlp_dim': 10**9}}}, ['mlp', 'model.overrides.mlp_dim=1000000000']),
    ({'data': {'batch_size': 10**9}}, ['batch', 'data.batch_size=1000000000', 'data.length=32']),
    ({'model': {'overrides': {**runs.SIZES, 'vocab_multiple': 10**9}}}, ['parameters', 'vocab_multiple']),
  ],
)
def test_what_cannot_fit_is_refused_with_numbers(
  changes: Any, words: list[str], data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  told = refused(runs.settings('mlm', data, **changes), tmp_path)
  for word in ('GiB', 'this machine has free', 'The largest array is', *words):
    assert word in told


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'data': {'length': 10**9}}, ['needs at least', 'data.length=1000000000']),
    ({'data': {'length': 10**7}}, ['a table of 20,000,000 positions of width 32', 'lower data.length']),
    (
      {'model': {'overrides': {**runs.SIZES, 'max_length': 10**9, 'position_init': 'sinusoids'}}},
      ['a table of 1,000,000,000 positions of width 32'],
    ),
  ],
)
def test_rows_of_absurd_lengths_are_refused_before_a_table_is_made(
  changes: Any, words: list[str], data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(memory, 'free', lambda devices: memory.Free(24 << 30, None))  # larger machines hold the first
  objective = 'mlm' if 'model' in changes else 'permutation_lm'
  told = refused(runs.settings(objective, data, **changes), tmp_path)
  for word in words:
    assert word in told


def test_a_run_that_just_fits_is_not_refused(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  settings = runs.settings('mlm', data)
  sizes: list[int] = []
  check = memory.check
  with monkeypatch.context() as patch:
    patch.setattr(memory, 'check', lambda found, *rest, layout: sizes.append(sum(leaf.bytes for leaf in found)))
    preflight.check(settings)
  for device in (False, True):
    needed = max(sizes) * (1 if device else jax.local_device_count())  # the devices of a CPU share the host's memory
    for room, fits in ((needed, True), (needed - 1, False)):
      monkeypatch.setattr(
        memory, 'free', lambda devices, room=room, device=device: memory.Free(room, room if device else None)
      )
      monkeypatch.setattr(memory, 'check', check)
      if fits:
        preflight.check(settings)
      else:
        assert 'optimiser state' in refused(settings, tmp_path)


def test_state_and_batch_are_what_a_step_holds(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setattr(memory, 'free', lambda devices: memory.Free(3 * 10**5, None))
  told = refused(runs.settings('mlm', data), tmp_path)
  parts = dict(part.rsplit(' ', 2)[0::2] for part in told.split(': ')[2].split('. The')[0].split(', '))
  assert set(parts) >= {'parameters', 'optimiser state', 'gradients', 'batch'}


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch) -> None:
  texts = {
    '/proc/meminfo': 'MemTotal: 32 kB\nMemAvailable:    4096 kB\nSwapFree:    1024 kB\n',
    '/sys/fs/cgroup/memory.max': '3000000\n',
    '/sys/fs/cgroup/memory.stat': 'file 9\nanon 1000000\n',
  }
  monkeypatch.setattr(memory, '_read', lambda name: texts.get(name, ''))
  assert memory.free([]).host == 2_000_000
  texts['/sys/fs/cgroup/memory.max'] = 'max\n'
  assert memory.free([]).host == 5120 * 1024
  texts.clear()
  assert memory.free([]).host is None


@pytest.mark.parametrize('best', [None, ('validation/loss', 'min')])
def test_rows_that_are_too_short_for_the_objective_are_refused(
  best: Any, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  short = {'eval': {'validation': {'data': {'length': 1}}}}
  told = refused(runs.settings('permutation_lm', data, best=best, **short), tmp_path)
  assert told.startswith('eval.validation.data: ') and 'a row of 1 tokens' in told


@pytest.mark.parametrize(
  ('optim', 'best', 'said'),
  [
    ({'schedule': 'plateau'}, None, "optim.schedule='plateau' waits for the metric of best, which is not set"),
    ({'name': 'asgd'}, None, "name='asgd' without optim.start waits for .* or set optim.start .* Evaluations: valid"),
    ({'schedule': 'plateau'}, ('valid/f1', 'max'), r"mode='min' is not .*\('valid/f1', 'max'\).*set optim.mode='max'"),
    ({'schedule': 'plateau', 'mode': 'max'}, ('valid/loss', 'min'), "choices are min, max, .*set optim.mode='min'"),
  ],
)
def test_what_waits_for_a_metric_that_nobody_watches_is_refused(optim: Any, best: Any, said: str) -> None:
  with pytest.raises(ConfigError, match=said):
    preflight.check({'optim': optim, 'best': best, 'eval': {'valid': {}}})


@pytest.mark.parametrize(
  ('changes', 'said'),
  [
    ({'stride': 8}, r'data\.stride=8: rows of 16 tokens overlap, .*: leave stride out'),
    ({'second_segment': True}, 'second_segment=True puts two texts into a row'),
  ],
)
def test_a_memory_and_rows_that_do_not_follow_each_other_are_refused(
  changes: Any, said: str, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  settings = runs.settings('awd_lstm', data, data=changes)
  assert re.search(said, refused(settings, tmp_path))


def test_a_mean_that_cannot_begin_is_told(data: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
  for every, told in ((10, False), (20, True)):
    caplog.clear()
    optim = {'name': 'asgd', 'rate': 1.0, 'schedule': 'constant'}
    preflight._check_watched(runs.settings('awd_lstm', data, steps=70, eval_every=every, optim=optim))
    assert ('cannot begin before evaluation 7, and the run has 3' in caplog.text) == told


# Splits, labels, metrics.


@pytest.mark.parametrize(
  ('changes', 'words'),
  [
    ({'data': {'split': 'trian'}}, ["no split 'trian'", "Did you mean 'train'?"]),
    ({'eval': {'validation': {'data': {'split': 'valid'}}}}, ["no split 'valid'", "data.split='train[:95%]'"]),
    ({'eval': {'validation': {'data': {'split': 'train[5:3]'}}}}, ['eval.validation.data', 'holds no row']),
    ({'data': {'path': '/nowhere'}}, ['data: there is no file']),
    (
      {'eval': {'validation': {'data': {'path': 'pydocs', 'documents': 'line'}}}},
      ['eval.validation.data', 'documents'],
    ),
    ({'best': ('validation/los', 'min')}, ['best', "Did you mean 'loss'?"]),
    ({'optim': {'scale': (('trnk/.*', None), ('.*', 1.0))}}, ["'trnk/.*' matches no parameter"]),
    ({'data': {'batch_size': 6}, 'accumulate': 2, 'sharding': {'mesh': {'data': 7}}}, ['sharding.mesh']),
    ({'data': {'length': 64}}, ['64', '32']),
    ({'init_from': [{'source': 'runs/none'}]}, ['init_from: there is no runs/none']),
    ({'log': ('wandb',)}, ["log names 'wandb'", 'pip install']),
  ],
)
def test_a_mistake_is_told_before_text_is_read(
  changes: Any, words: list[str], data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  monkeypatch.setitem(sys.modules, 'wandb', None)
  told = refused(runs.settings('mlm', data, **changes), tmp_path)
  for word in words:
    assert word in told


@pytest.mark.parametrize(
  ('optim', 'said'),
  [
    ({'name': 'lamb'}, "optim.name='lamb' updates whole tensors: set optim.name to sgd or adagrad"),
    ({'name': 'adafactor'}, "optim.name='adafactor' updates whole tensors"),
    ({'name': 'sgd'}, 'few rows of output/table per step, and optim.decay shrinks all of its rows'),
    ({'name': 'sgd', 'decay': 0.0, 'ema': 0.9}, 'optim.ema is an average of all of its rows'),
    (
      {'name': 'sgd', 'decay': 0.0, 'scale': (('output/.*', None), ('.*', 1.0))},
      "reads rows of 'output/table', which does not train: set objective.update='tables'",
    ),
  ],
)
def test_rows_that_cannot_be_updated_alone_are_refused_before_text_is_read(
  optim: Any, said: str, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  word_vocabulary.train((data / 'corpus' / 'train.txt').read_text().splitlines(), size=100).save(tmp_path / 'words')
  settings = runs.settings(
    'mlm',
    data,
    vocab={'name': 'words', 'path': str(tmp_path / 'words')},
    model={'name': 'static', 'overrides': {'hidden_dim': 8}},
    objective={'name': 'skipgram', 'update': 'rows'},
    optim=optim,
    save_every=6,
  )
  told = refused(settings, tmp_path)
  assert told.startswith('optim: ') and said in told


def test_samples_of_word_vectors_are_bounded(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  word_vocabulary.train((data / 'corpus' / 'train.txt').read_text().splitlines(), size=100).save(tmp_path / 'words')

  def settings(name: str, negatives: int) -> dict[str, Any]:
    return runs.settings(
      'mlm',
      data,
      vocab={'name': 'words', 'path': str(tmp_path / 'words')},
      model={'name': 'static', 'overrides': {'hidden_dim': 64}},
      objective={'name': name, 'negatives': negatives, 'subsample': 0.0},
      save_every=6,
    )

  for name in ('skipgram', 'fasttext'):
    with pytest.raises(ConfigError, match=r'objective\.negatives: expected int \(1 <= x <= 10_000\), got int 100000'):
      settings(name, 100_000)
  # the vectors of the samples are what fills the memory, not their ids
  monkeypatch.setattr(memory, 'free', lambda devices: memory.Free(2 << 30, None))
  assert re.search(
    r'words.*lower data\.batch_size=8, objective\.negatives=9999 or', refused(settings('skipgram', 9999), tmp_path)
  )


def test_classes_and_labels_are_compared_before_text_is_read(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  rows = [{'text': 'a', 'label': 0}, {'text': 'b', 'label': 3}]
  folder = tmp_path / 'labelled'
  folder.mkdir()
  for split, some in (('train', rows[:1]), ('validation', rows)):
    (folder / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, some)))
  told = refused(runs.settings('classify', data, data={'path': str(folder)}), tmp_path)
  assert 'eval.validation.data' in told and 'reach 3' in told and 'adapter.classes' in told


@pytest.fixture(scope='module')
def labelled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
  """Sources of labelled rows: one that fits a head of two classes, and others that do not fit it, or the first."""
  folder = tmp_path_factory.mktemp('labelled')
  rows = [{'text': 'a', 'label': 0}, {'text': 'b', 'label': 1}]
  content = {
    'fits': (rows, ['no', 'yes']),
    'more': ([*rows, {'text': 'c', 'label': 2}], ['no', 'yes', 'maybe']),
    'turned': (rows, ['yes', 'no']),
    'words': ([{'text': 'a', 'label': 'no'}, {'text': 'b', 'label': 'nein'}], ['no', 'yes']),
  }
  for name, (lines, names) in content.items():
    (folder / name).mkdir()
    (folder / name / 'labels.json').write_text(json.dumps({'label': names}))
    for split in ('train', 'validation'):
      (folder / name / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, lines)))
  found = {name: {'name': 'labelled', 'path': str(folder / name)} for name in content}
  return {**found, 'nowhere': {**found['fits'], 'path': '/nowhere'}, 'split': {**found['fits'], 'split': 'tain'}}


def mixed(settings: Any, fits: Any, wrong: Any, *, where: str, part: str) -> Any:
  """A config whose data and evaluations are mixtures of parts that fit, but for one part of one of them."""
  inner = {'name': 'mixture', 'parts': {'d': fits, 'e': wrong}}
  parts = {'b': fits, **({'a': inner} if part == 'inner' else {part: wrong})}
  places = ('data', 'eval.validation.data', 'eval.other.data')
  blocks = {place: {'name': 'mixture', 'length': 32, 'batch_size': 8, 'parts': {'b': fits}} for place in places}
  blocks[where]['parts'] = parts
  evaluations = {
    name: {'data': {**blocks[f'eval.{name}.data'], 'split': 'validation'}} for name in ('validation', 'other')
  }
  return config.resolve({**settings, 'best': None, 'data': blocks['data'], 'eval': evaluations})


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('more', 'reach 2'),
    ('turned', 'its classes are'),
    ('words', "holds 'nein'"),
    ('nowhere', 'there is no file'),
    ('split', "no split 'tain'"),
  ],
)
def test_every_part_of_a_mixture_is_checked(
  name: str, says: str, labelled: dict[str, dict[str, Any]], data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  plain = runs.settings('classify', data)
  for where in ('data', 'eval.validation.data', 'eval.other.data'):
    for part in ('a', 'c', 'inner'):
      settings = mixed(plain, labelled['fits'], labelled[name], where=where, part=part)
      with pytest.raises(ConfigError) as caught:
        preflight.check(settings)
      told = str(caught.value)
      assert says in told and where in told, told
      assert re.search(r"parts.a.parts.e|'a', part 'e'" if part == 'inner' else rf"parts.{part}|part '{part}'", told), (
        told
      )
  assert refused(settings, tmp_path) == told
  right = mixed(plain, labelled['fits'], labelled['fits'], where=where, part=part)
  preflight.check(right)


@pytest.mark.parametrize('per', ['row', 'step'])
def test_scores_look_at_the_rows_of_every_part(per: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  answers = [{'text': ['Anna'] * found, 'answer_start': [0] * found} for found in (1, 0, 1)]
  rows = [{'question': 'Who?', 'context': 'Anna is here.', 'answers': each} for each in answers]
  small.write_rows(tmp_path / 'rows.jsonl', rows)
  spans = {'name': 'labelled', 'kind': 'spans', 'fields': ('question', 'context'), 'label': 'answers'}
  spans |= {'path': str(tmp_path / 'rows.jsonl'), 'cache': str(tmp_path / 'cache')}
  block = {'name': 'mixture', 'per': per, 'rates': 'equal', 'length': 32, 'batch_size': 8}
  several = {'name': 'multitask', 'parts': {'one': {'name': 'span', 'no_answer': True}, 'two': {'name': 'span'}}}
  adapter = several if per == 'step' else {'name': 'span'}
  given = {'data': block | {'parts': {'one': spans, 'two': spans}}, 'adapter': adapter, 'eval': {}, 'best': None}
  fix = 'adapter.parts.two.no_answer' if per == 'step' else 'adapter.no_answer'
  place = 'data.parts.two' if per == 'step' else 'data.parts.one'
  settings = config.resolve({**runs.settings('classify', data), **given})
  with pytest.raises(ConfigError, match=rf'^{place}: 1 of 3 questions have no answer.* {fix}=True'):
    preflight.check(settings)
  block = settings['adapter']['parts']['two'] if per == 'step' else settings['adapter']
  preflight.check({**settings, 'adapter': {**settings['adapter'], **_with_no_answer(settings['adapter'], block)}})
  small.write_rows(tmp_path / 'rows.jsonl', [rows[0], {**rows[1], 'context': 3}])
  with pytest.raises(ConfigError, match=r"^data: parts.one: .*data.parts.one.on_bad_row='skip'"):
    preflight.check(settings)


def _with_no_answer(adapter: dict[str, Any], block: dict[str, Any]) -> dict[str, Any]:
  right = {**block, 'no_answer': True}
  return {'parts': {**adapter['parts'], 'two': right}} if 'parts' in adapter else right


def test_a_score_by_itself_checks_every_evaluation_first(
  labelled: dict[str, dict[str, Any]], data: pathlib.Path
) -> None:
  parts = {'a': labelled['fits'], 'b': labelled['more']}
  evaluations = {
    'first': {'data': labelled['fits'] | {'split': 'validation'}},
    'second': {'data': {'name': 'mixture', 'parts': parts, 'split': 'validation', 'length': 32, 'batch_size': 8}},
  }
  settings = runs.settings('classify', data, eval=evaluations)
  made = make_parts(settings, make_vocab(settings))
  with pytest.raises(ConfigError, match=r"eval.second.data: labels of mixture, part 'b' reach 2"):
    layout = make_layout(settings)
    evaluate_saved._evaluator(settings, made, ['first', 'second'], layout=layout, predictions=None)


# Studies.


@pytest.mark.parametrize(
  ('changes', 'keywords', 'says'),
  [
    ({'model': {'overrides': {**runs.SIZES, 'hidden_dim': 10**9}}}, {}, 'model.overrides.hidden_dim=1000000000'),
    ({'eval': {'test': {'data': {'split': 'tset'}}}}, {}, "no split 'tset'"),
    ({'init_from': [{'source': 'runs/none'}]}, {}, 'init_from: there is no runs/none'),
    ({}, {'sizes': (4, 9)}, 'per_class=9, but class 0 has only 8 rows'),
    ({}, {'metric': 'acuracy'}, "unknown metric 'acuracy'"),
    (
      {'adapter': {'classes': 1, 'kind': 'regression'}, 'data': {'kind': 'regression'}},
      {},
      "kind='regression' has none",
    ),
    ({'optim': {'scale': (('trnk/.*', None), ('.*', 1.0))}}, {}, "'trnk/.*' matches no parameter"),
  ],
)
def test_a_study_that_could_not_run_makes_no_folder(
  changes: Any, keywords: Any, says: str, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  evaluations = {name: {'data': {'split': name}} for name in ('validation', 'test')}
  plain = {'init_from': [{'source': str(data)}], **changes, 'eval': {**evaluations, **changes.get('eval', {})}}
  settings = runs.settings('classify', data, **plain)
  with pytest.raises(ConfigError) as caught:
    transfer.run_study(settings, tmp_path / 'study', **{'sizes': (4,), 'seeds': 1, 'rates': (1e-2,), **keywords})
  assert says in str(caught.value) and '\n' not in str(caught.value)
  assert not (tmp_path / 'study').exists()


def test_a_study_needs_labelled_data(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  evaluations = {name: {'data': {'split': 'validation'}} for name in ('validation', 'test')}
  settings = runs.settings('mlm', data, init_from=[{'source': str(data)}], eval=evaluations)
  with pytest.raises(ConfigError, match=r'sample_efficiency: the config needs .*data\.per_class'):
    transfer.run_study(settings, tmp_path / 'study', sizes=(4,), seeds=1, rates=(1e-2,))
  assert not (tmp_path / 'study').exists()


def test_nothing_proposes_to_train_on_a_test_split(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  folder = tmp_path / 'data'
  folder.mkdir()
  (folder / 'test.txt').write_text('a\n\nb')
  told = refused(runs.settings('mlm', data, data={'path': str(folder)}), tmp_path)
  assert 'test[' not in told and 'there are test' in told


def test_an_objective_that_compares_rows_is_not_cut(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  settings = runs.settings('mlm', data, objective={'name': 'contrastive'}, accumulate=2, best=None)
  assert 'set accumulate=1' in refused(settings, tmp_path)


# Folders.


def test_a_folder_without_a_checkpoint_takes_another_config(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  folder = RunFolder.at(tmp_path)
  settings = runs.settings('mlm', data)
  runs.write_config(tmp_path / 'config.json', {**settings, 'seed': 7})
  assert run_folder.begun(folder) == {}
  (tmp_path / 'checkpoints' / '4.orbax-checkpoint-tmp').mkdir(parents=True)
  assert run_folder.begun(folder) == {}
  (tmp_path / 'checkpoints' / '4').mkdir()
  assert run_folder.begun(folder)['seed'] == 7
  with pytest.raises(ConfigError, match='begun with another config'):
    loop.train(settings, tmp_path)


def test_look_gives_labels(data: pathlib.Path) -> None:
  from plm_jax.config import build

  labelled = runs.settings('classify', data)['data']
  found = build.look(labelled)
  assert (found.names, found.classes) == (runs.CLASSES, 2)
  text = runs.settings('mlm', data)['data']
  assert build.look(text) == Labels()
  inner = {'name': 'mixture', 'parts': {'one': text, 'two': labelled}}
  found = build.look({'name': 'mixture', 'parts': {'a': inner, 'b': text}, 'length': 8, 'batch_size': 2})
  assert found.mixed['b'] == found.mixed['a'].mixed['one'] == Labels()
  inside = found.mixed['a'].mixed['two']
  assert (inside.names, inside.classes) == (runs.CLASSES, 2)
  assert tokenizer.exists(data / 'vocab')


@pytest.mark.parametrize(
  ('tokens', 'share', 'level'), [([5, 6, 7, 8], '0.00%', 'INFO'), ([5, 1, 7, 0], '33.33%', 'WARNING')]
)
def test_the_share_of_unknown_tokens_is_told(tokens, share, level, caplog):
  vocab = types.SimpleNamespace(unk_id=1, pad_id=0, token=lambda token_id: '[UNK]')
  with caplog.at_level('INFO', logger='plm_jax'):
    preflight.remark_unknown([{'tokens': np.array([tokens])}, {'label': np.array([1])}], vocab)
  (record,) = caplog.records
  assert (record.levelname, record.getMessage().partition(' ')[0]) == (level, share)


@pytest.mark.parametrize(
  ('steps', 'masking', 'says'), [(2, 'static', True), (2, 'dynamic', False), (9, 'static', False)]
)
def test_static_masking_that_changes_nothing_is_told(
  steps: int, masking: str, says: bool, data: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  settings = runs.settings('mlm', data, steps=steps, objective={'masking': masking})
  source = types.SimpleNamespace(rows=16)
  with caplog.at_level('INFO', logger='plm_jax'):
    preflight.remark(settings, source)  # type: ignore[arg-type]
  assert ('is the same as' in caplog.text) == says


@pytest.mark.parametrize(
  ('adapter', 'says'),
  [
    ({}, ''),
    ({'pool': 'mean'}, 'bert: ForSequenceClassification: it has no adapter.pool=mean: train with the defaults'),
    ({'hidden': 8}, 'bert: ForSequenceClassification: it has one dense layer: train with adapter.hidden=0'),
  ],
)
def test_a_head_that_transformers_lacks_is_told_when_training_begins(
  adapter: dict[str, Any], says: str, data: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  settings = runs.settings('classify', data, adapter=adapter)
  parts = make_parts(settings, make_vocab(settings))
  shapes = abstract_params(parts.task, preflight.batch_spec(parts, settings['data']))
  with caplog.at_level('INFO', logger='plm_jax'):
    preflight.remark_export(settings, shapes, parts.trunk)
  told = [line for line in caplog.messages if line.startswith('export: ')]
  assert [line.partition('has this head. ')[2] for line in told] == ([says] if says else [])
