"""Scores of all predictions in runs: values, `best`, errors, files of predictions, two processes."""

import functools
import json
import pathlib
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn import metrics as peers

from plm_jax.adapters import classify, span
from plm_jax.commands import evaluate
from plm_jax.core.errors import ConfigError
from plm_jax.runs import by_class, metrics, predicted
from plm_jax.scores import macro_f1
from plm_jax.training import evaluation, loop, step
from tests import runs, tiny

pytestmark = pytest.mark.turns

SCORES = ('f1', 'matthews')
NAMES = [f'validation/{name}' for name in ('accuracy', *SCORES)]
# 24 rows in batches of 16, so that the last batch has rows of weight 0
CHANGES: dict[str, Any] = {
  'steps': 4,
  'eval_every': 2,
  'data': {'batch_size': 16},
  'eval': {'validation': {'data': {'split': 'validation'}, 'scores': SCORES}},
  'best': ('validation/matthews', 'max'),
}


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  folder = runs.write_data(tmp_path_factory.mktemp('data'))
  bare = [{'text': json.loads(line)['text']} for line in lines(folder / 'labelled' / 'test.jsonl')]
  (folder / 'labelled' / 'bare.jsonl').write_text('\n'.join(map(json.dumps, bare)))
  return folder


@pytest.fixture(scope='module')
def run(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Train a run on all devices, with a score for `best`."""
  workdir, settings = tmp_path_factory.mktemp('run'), runs.settings('classify', data, **CHANGES)
  kept = predicted.kept(settings, workdir / 'newest.jsonl', None, workdir=workdir)
  assert loop.train(settings, workdir, predictions=kept).result['finished']
  return workdir


def lines(file: pathlib.Path) -> list[str]:
  return file.read_text().splitlines()


def written(*flags: Any, file: pathlib.Path) -> list[dict[str, Any]]:
  """Read the rows that `evaluate --predictions` writes."""
  assert evaluate.main([*map(str, flags), f'--predictions={file}']) == 0
  return [json.loads(line) for line in lines(file)]


def test_scores_join_the_metrics_and_are_those_of_what_is_written(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
  rows = [row for row in metrics.read(run) if NAMES[0] in row]
  assert [row['step'] for row in rows] == [2, 4]
  assert all(set(NAMES) <= set(row) for row in rows)
  result = json.loads((run / 'result.json').read_text())
  best = max(rows, key=lambda row: row['validation/matthews'])
  assert (
    next(row for row in rows if row['step'] == result['best_step'])['validation/matthews']
    == best['validation/matthews']
  )

  predictions = written(f'--workdir={run}', '--step=newest', file=tmp_path / 'out.jsonl')
  assert [row['row_id'] for row in predictions] == list(range(24))  # no padding rows, in the order of the split
  gold, found = [row['record']['label'] for row in predictions], [row['label'] for row in predictions]
  assert gold == [number % 2 for number in range(24)]
  expected = [peers.accuracy_score(gold, found), peers.f1_score(gold, found), peers.matthews_corrcoef(gold, found)]
  assert [rows[-1][name] for name in NAMES] == pytest.approx(expected)
  evaluated = json.loads(lines(run / 'evaluations.jsonl')[-1])
  assert [evaluated[name] for name in NAMES] == pytest.approx(expected)
  for row in predictions:
    assert row['name'] == runs.CLASSES[row['label']]
    assert row['record']['row']['text'] and tuple(row['record']['names']) == runs.CLASSES


def test_a_run_keeps_what_its_last_evaluation_predicts(
  run: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  written(f'--workdir={run}', '--step=newest', file=tmp_path / 'out.jsonl')
  assert (run / 'newest.jsonl').read_bytes() == (tmp_path / 'out.jsonl').read_bytes()
  settings = runs.settings('classify', data, **CHANGES)
  kept = predicted.kept(settings, tmp_path / 'more.jsonl', 'validation', workdir=run)
  loop.train(settings, run, predictions=kept)
  assert 'more.jsonl: ' in caplog.text and 'plm-jax evaluate' in caplog.text


@pytest.mark.parametrize(
  ('evaluations', 'name', 'said'),
  [
    (('a', 'b'), None, '--predictions.*--evaluation.*a, b'),
    ((), None, '--predictions.*--evaluation'),
    (('a', 'b'), 'c', '--evaluation=c: .*a, b'),
    (('a', 'b'), 'b', '--predictions=.*nowhere.*folder|--predictions=.*folder.*nowhere'),
  ],
)
def test_predictions_of_a_run_need_an_evaluation_and_a_folder(
  tmp_path: pathlib.Path, evaluations: tuple[str, ...], name: str | None, said: str
) -> None:
  settings = {'eval': {each: {} for each in evaluations}}
  with pytest.raises(ConfigError, match=said):
    predicted.kept(settings, tmp_path / 'nowhere' / 'out.jsonl', name, workdir=tmp_path / 'run')


def test_metrics_and_predictions_are_those_of_one_pass() -> None:
  """Compute metrics and predictions in one trace.

  Both equal those computed alone.
  """
  task = classify.make(trunk=tiny.make_trunk('bert'), vocab=tiny.VOCAB, classes=2)
  batch = {**tiny.make_batch(), 'label': jnp.array([0, 1, 1, 0])}
  params, key = tiny.init_params(task, batch), jax.random.key(0)
  calls = []

  class Counted:
    def apply(self, *arguments: Any, **inputs: Any) -> Any:
      calls.append(inputs)
      return task.model.apply(*arguments, **inputs)

  both = jax.jit(functools.partial(step.predicting_step, task=task._replace(model=Counted())))
  sums, _, predictions = both(params, batch, (), key)
  assert len(calls) == 1
  alone, _ = jax.jit(functools.partial(step.eval_step, task=task))(params, batch, (), key)
  assert tiny.means(sums) == pytest.approx(tiny.means(alone), rel=1e-6)
  predicted_alone = jax.jit(functools.partial(step.predict_step, task=task))(params, batch, key)
  assert predictions.keys() == predicted_alone.keys()
  for name, value in predicted_alone.items():
    np.testing.assert_allclose(predictions[name], value, rtol=1e-5, err_msg=name)


# What is refused before anything is tokenised.


@pytest.mark.parametrize(
  ('kind', 'changes', 'words'),
  [
    ('classify', {'scores': ('mathews',)}, ["'mathews'", "'matthews'", 'accuracy, ']),
    ('classify', {'scores': ('correlation',)}, ["'correlation'", 'value', "adapter 'classify'"]),
    ('classify', {'scores': ('seqeval',)}, ["'seqeval'", 'labels', 'accuracy, ']),
    ('classify', {'scores': ('f1', 'f1')}, ["'f1'"]),
    ('classify', {'best': ('validation/f1', 'max')}, ["'f1'", 'accuracy']),
    ('classify', {'scores': ('f1',), 'best': ('validation/matthews', 'max')}, ["'matthews'", 'f1']),
    ('mlm', {'scores': ('matthews',)}, ["'matthews'", 'label', "objective 'mlm'"]),
  ],
)
def test_scores_that_do_not_fit_are_refused(
  kind: str, changes: Any, words: list[str], data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  own = {'best': changes.get('best'), 'eval': {'validation': {'data': {'split': 'validation'}, **changes}}}
  own['eval']['validation'].pop('best', None)
  with pytest.raises(ConfigError) as caught:
    loop.train(runs.settings(kind, data, **own), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()
  assert '\n' not in str(caught.value)
  for word in words:
    assert word in str(caught.value)


def test_a_score_without_its_package_is_refused(
  data: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  def absent(package: str) -> None:
    raise metadata.PackageNotFoundError(package)

  monkeypatch.setattr(metadata, 'distribution', absent)
  with pytest.raises(ConfigError, match=r"'f1'.*pip install scikit-learn"):
    loop.train(runs.settings('classify', data, **CHANGES), tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


# Rows without labels.


def test_rows_without_labels_are_predicted_and_neither_trained_nor_scored(
  run: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  bare = {'split': 'bare', 'keep_unlabelled': True}
  for changes in ({'data': bare}, {'eval': {'validation': {'data': bare}}}):
    with pytest.raises(ConfigError, match=r'data\.keep_unlabelled.*label'):
      loop.train(runs.settings('classify', data, **changes), tmp_path / 'new')
  assert not (tmp_path / 'new').exists()

  flags = [f'--workdir={run}', '--config.eval.validation.data.split=bare']
  before = lines(run / 'evaluations.jsonl') if (run / 'evaluations.jsonl').exists() else []
  with pytest.raises(ConfigError, match=r"bare.*'label'"):
    evaluate.main(flags)
  flags.append('--config.eval.validation.data.keep_unlabelled=True')
  with pytest.raises(ConfigError, match=r'eval\.validation\.data.*--predictions=FILE'):
    evaluate.main(flags)
  rows = written(*flags, file=tmp_path / 'bare.jsonl')
  labelled_rows = written(f'--workdir={run}', '--config.eval.validation.data.split=test', file=tmp_path / 'test.jsonl')
  assert [row['label'] for row in rows] == [row['label'] for row in labelled_rows]
  assert all(row['record']['label'] is None and row['name'] in runs.CLASSES for row in rows)
  assert len(lines(run / 'evaluations.jsonl')) == len(before) + 1  # of the rows with labels
  with pytest.raises(ConfigError, match=r'row 0.*label|row_id=0.*label'):
    evaluate.main(['--score', str(tmp_path / 'bare.jsonl'), '--scores', 'f1'])

  table = tmp_path / 'CoLA.tsv'
  assert evaluate.main([*flags, f'--predictions={table}', '--format=glue']) == 0
  assert lines(table) == ['index\tprediction', *(f'{number}\t{row["label"]}' for number, row in enumerate(rows))]


# Files of predictions.


def row(number: int, gold: int, one: float) -> dict[str, Any]:
  """Build a row in which class 1 has the probability `one`."""
  return {
    'row_id': number,
    'label': int(one > 0.5),
    'probability': [1 - one, one],
    'record': {'label': gold, 'names': ['no', 'yes'], 'row': {'idx': number + 10}},
  }


def file_of(path: pathlib.Path, rows: list[dict[str, Any]]) -> str:
  path.write_text(''.join(f'{json.dumps(one)}\n' for one in rows))
  return str(path)


GOLD = (0, 1, 1, 0)


@pytest.fixture
def pair(tmp_path: pathlib.Path) -> list[str]:
  """Write two files, each wrong in one of four rows."""
  return [
    file_of(
      tmp_path / name, [row(number, gold, one) for number, (gold, one) in enumerate(zip(GOLD, ones, strict=True))]
    )
    for name, ones in {'a': (0.6, 0.9, 0.8, 0.1), 'b': (0.2, 0.45, 0.9, 0.3)}.items()
  ]


def test_files_are_scored_alone_and_averaged(
  pair: list[str], tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  for file in pair:
    assert evaluate.main(['--score', file, '--scores', 'accuracy']) == 0
    assert capsys.readouterr().out == 'accuracy 0.75\n'
  out = tmp_path / 'mean.tsv'
  assert evaluate.main(['--score', *pair, f'--predictions={out}', '--format=glue']) == 0
  assert capsys.readouterr().out.splitlines() == ['accuracy 1', 'f1 1', 'macro_f1 1', 'matthews 1']
  assert lines(out) == ['index\tprediction', '10\t0', '11\t1', '12\t1', '13\t0']
  predictions, _ = predicted.join(pair)
  np.testing.assert_allclose([one['probability'][1] for one in predictions], [0.4, 0.675, 0.85, 0.2])
  again = tmp_path / 'mean.jsonl'
  assert evaluate.main(['--score', *pair, f'--predictions={again}']) == 0
  assert predicted.score(*predicted.join([again]), ['accuracy']) == {'accuracy': 1.0}


@pytest.mark.parametrize('sign', ['\u2028', '\u2029', '\x85', '\r', '\x1c'])
def test_signs_that_end_lines_elsewhere_end_no_row(tmp_path: pathlib.Path, sign: str) -> None:
  row = {'row_id': np.array(0), 'label': np.array(1)}
  predicted.write(tmp_path / 'out.jsonl', [row], [{'row': {'text': f'a{sign}b'}, 'label': 1}], form=None)
  (found,) = predicted.read(tmp_path / 'out.jsonl')
  assert found['record']['row']['text'] == f'a{sign}b'
  (tmp_path / 'out.jsonl').write_text('')
  with pytest.raises(ConfigError, match=r'out\.jsonl.*empty'):
    predicted.read(tmp_path / 'out.jsonl')


def test_values_are_averaged(tmp_path: pathlib.Path) -> None:
  files = [
    file_of(tmp_path / name, [{'row_id': n, 'value': value, 'record': {'label': n}} for n, value in enumerate(values)])
    for name, values in {'a': (1.0, 0.0, 2.0), 'b': (-1.0, 2.0, 4.0)}.items()
  ]
  predictions, records = predicted.join(files)
  assert [float(one['value']) for one in predictions] == [0.0, 1.0, 3.0]
  assert predicted.score(predictions, records)['spearman'] == 1.0


def test_metrics_with_one_name_keep_that_of_their_score() -> None:
  record = {'row': {'answers': ['Ann']}, 'options': ['Ann', 'Bea'], 'label': 0}
  found = predicted.score([{'label': np.array(0)}], [record], ['f1', 'record', 'accuracy'])
  assert found == {'f1/f1': 0.0, 'exact_match': 100.0, 'record/f1': 100.0, 'accuracy': 1.0}


def test_a_text_that_is_none_of_the_labels_is_no_class_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
  predictions = [{'label': np.array(label)} for label in (0, 1, -1, 1, 0)]
  records = [{'label': label, 'names': ('bad', 'good')} for label in (0, 1, 1, 1, 1)]
  found = by_class.measure(predictions, records)
  assert found.names == ('bad', 'good')
  assert found.summary == pytest.approx({**macro_f1.score(predictions, records), 'accuracy': 0.6})
  plain = found.plain()['confusion']
  assert (plain['predicted'], plain['counts']) == (['bad', 'good', 'none of them'], [[1, 0, 0], [1, 2, 1]])
  by_class.show(found, title='texts')
  assert 'none of them' in capsys.readouterr().out
  some = by_class.measure(predictions[:2], records[:2])
  assert some.predicted == some.names and some.confusion.tolist() == [[1, 0], [0, 1]]


def test_words_are_scored_as_the_file_has_them(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
  text = 'Ann lives in Rome.'
  about = {'context': text, 'answers': ['Rome'], 'characters': np.array([[0, 3], [4, 9], [10, 12], [13, 17]])}
  spans = [
    {'row_id': n, 'start': np.array([start]), 'end': np.array([start]), 'score': np.array([score]), 'no_answer': 0.0}
    for n, (start, score) in enumerate([(3, 1.0), (6, 2.0), (3, 1.0)])  # two windows of one question, and another
  ]
  records = [{**about, 'first': 3, 'row': {'id': str(n)}, 'group': ('q', n // 2)} for n in range(3)]
  written = [
    {'row_id': n, 'text': found, 'tokens': np.arange(3), 'written': 3, 'score': 0.5}
    for n, found in enumerate(('the cat sat', 'a cat ran'))
  ]
  right = [{'references': [gold], 'options': (), 'row': {'a': gold}} for gold in ('the cat sat', 'a dog ran')]
  for name in 'ab':
    predicted.write(tmp_path / f'spans_{name}', spans, records, form=None, in_words=span.in_words)
    predicted.write(tmp_path / f'texts_{name}', written, right, form=None)
  assert evaluate.main(['--score', f'{tmp_path}/spans_a', '--scores', 'squad']) == 0
  assert capsys.readouterr().out == 'exact_match 50\nf1 50\n'
  assert evaluate.main(['--score', f'{tmp_path}/texts_a']) == 0
  told = capsys.readouterr().out
  assert 'exact_match 0.5\n' in told and 'rouge1 83.3333\n' in told and 'bleu ' in told
  for kind in ('spans', 'texts'):
    with pytest.raises(ConfigError, match='averag'):
      evaluate.main(['--score', f'{tmp_path}/{kind}_a', f'{tmp_path}/{kind}_b'])


def test_parts_of_a_task_are_scored_under_their_names(
  tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  probabilities = {'a': ([0.4, 0.6], [0.6, 0.4]), 'b': ([0.1, 0.9], [0.2, 0.8])}
  records = [{'part': 'cola', 'label': 1}, {'part': 'xsum', 'references': ['the cat']}, {'part': 'cola', 'label': 1}]
  for name, (first, last) in probabilities.items():
    rows = [
      {'row_id': 0, 'cola/label': int(first[1] > 0.5), 'cola/probability': first},
      {'row_id': 1, 'xsum/text': 'the cat', 'xsum/score': 0.5},
      {'row_id': 2, 'cola/label': int(last[1] > 0.5), 'cola/probability': last},
    ]
    told = [{**row, 'part': record['part'], 'record': record} for row, record in zip(rows, records, strict=True)]
    file_of(tmp_path / name, told)
  assert evaluate.main(['--score', f'{tmp_path}/a', '--scores', 'cola/accuracy', 'xsum/rouge']) == 0
  assert capsys.readouterr().out.splitlines()[:2] == ['cola/accuracy 0.5', 'xsum/rouge1 100']
  assert evaluate.main(['--score', f'{tmp_path}/a', f'{tmp_path}/b']) == 0
  assert capsys.readouterr().out.splitlines()[0] == 'cola/accuracy 1'
  with pytest.raises(ConfigError, match=r"'cola/acuracy'.*'cola/accuracy'"):
    evaluate.main(['--score', f'{tmp_path}/a', '--scores', 'cola/acuracy'])
  with pytest.raises(ConfigError, match=r"'xsum/accuracy'.*xsum/label"):
    evaluate.main(['--score', f'{tmp_path}/a', '--scores', 'xsum/accuracy'])


def test_what_cannot_be_scored_is_named(pair: list[str], tmp_path: pathlib.Path) -> None:
  other = file_of(tmp_path / 'other', [row(number, 1, 0.5) for number in range(4)])
  broken = tmp_path / 'broken'
  broken.write_text('{"row_id": 0, "record": {}}\n{"row_id"')
  words = file_of(tmp_path / 'words', [{'row_id': 0, 'text': 'a', 'record': {'label': 1}}])
  cases = [
    (['nothing'], r'\bnothing\b'),
    ([pair[0], other], 'other.*different|different.*other'),
    ([str(broken)], 'line 2.*broken.*JSON|broken, line 2.*JSON'),
    ([words, words], 'averag.*row_id, text'),
    ([words], 'no score'),
    ([pair[0], '--scores', 'correlation'], "'correlation'.*value"),
    ([pair[0], '--scores', 'f2'], "'f2'"),
    ([pair[0], '--workdir=x'], '--score.*--workdir'),
    ([pair[0], '--config.seed=1'], r'seed|config'),
    ([pair[0], '--format=glue'], '--predictions=FILE'),
    ([pair[0], f'--predictions={tmp_path}/x/y', '--format=glue'], r'/x\b.*folder|folder.*/x\b'),
    ([pair[0], f'--predictions={tmp_path}/y', '--format=glu'], "'glu'.*glue, "),
  ]
  for flags, told in cases:
    with pytest.raises(ConfigError, match=told) as caught:
      evaluate.main(['--score', *flags])
    assert '\n' not in str(caught.value)


def test_a_file_of_predictions_is_refused_before_the_model_is_made(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
  for flags, told in (
    ([f'--predictions={tmp_path}/none/out'], r'/none\b.*folder|folder.*/none\b'),
    ([f'--predictions={tmp_path}'], 'is a folder'),
    ([f'--predictions={tmp_path}/out', '--format=squat'], "'squat'"),
    (['--format=glue'], '--predictions=FILE'),
    (['--scores', 'f1'], r'--scores .*--score\b'),
  ):
    with pytest.raises(ConfigError, match=told):
      evaluate.main([f'--workdir={run}', *flags])


# Several processes.


@pytest.mark.slow
def test_two_processes_score_as_one(run: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  if jax.device_count() != 4:
    pytest.skip('needs four devices')
  file = runs.write_config(tmp_path / 'config.json', runs.settings('classify', data, **CHANGES))
  runs.two_processes(f'--config={file}', f'--workdir={tmp_path / "run"}')
  both = [[row for row in metrics.read(folder) if NAMES[0] in row] for folder in (run, tmp_path / 'run')]
  assert len(both[0]) == len(both[1]) == 2
  for alone, together in zip(*both, strict=True):
    assert [together[name] for name in NAMES] == pytest.approx([alone[name] for name in NAMES], abs=1e-6)
  results = [json.loads((folder / 'result.json').read_text()) for folder in (run, tmp_path / 'run')]
  assert results[0]['best_step'] == results[1]['best_step']


def test_a_batch_over_processes_is_read_in_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
  """Read the gathered batch of all processes in order, without the network."""
  batch = {'label': np.array([4, 7, 5, 5]), 'row_id': np.array([8, 9, 10, -1]), 'row_weight': np.array([1.0, 1, 1, 0])}
  monkeypatch.setattr(jax, 'process_count', lambda: 2)
  monkeypatch.setattr(
    evaluation.multihost_utils, 'process_allgather', lambda leaves, tiled: dict(leaves) if tiled else None
  )
  assert [(int(row['label']), int(row['row_id'])) for row in evaluation.rows_of(batch)] == [(4, 8), (7, 9), (5, 10)]


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (['--score', 'a', '--follow'], r'--score\b.*--follow'),
    (['--score', 'a', '--step=3'], r'--score\b.*--step'),
    (['--score', 'a', '--timeout=5'], r'--score\b.*--timeout'),
    (['--workdir=RUN', '--follow', '--step=100'], '--follow.*--step=100'),
    (['--workdir=RUN', '--timeout=5'], '--timeout.*--follow'),
  ],
)
def test_flags_that_would_do_nothing_are_refused(words, said):
  run = 'tests/fixtures/bert_mlm/run'
  with pytest.raises(ConfigError, match=said):
    evaluate.main([word.replace('RUN', run) for word in words])
