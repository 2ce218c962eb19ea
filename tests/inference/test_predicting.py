"""`plm-jax predict` on a user's file, for every kind of task; values of a config that data decides."""

import csv
import json
import pathlib
import random
import shutil
from typing import Any

import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.commands import evaluate, predict
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Task
from plm_jax.data import labelled
from plm_jax.data.corpora import sources
from plm_jax.data.corpora.records import NotText
from plm_jax.inference import predicting, replies
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import predicted as predicted_rows
from plm_jax.text import tokenizer
from plm_jax.training import evaluate_saved, loop, parts
from plm_jax.training.before import from_data
from plm_jax.weights import convert
from tests import conftest, runs

pytestmark = pytest.mark.turns

CONFIGS = conftest.ROOT / 'experiments' / 'finetune'
SHORT = {'steps': 2, 'epochs': None, 'log_every': 1, 'eval_every': 2, 'save_every': 1, 'log': (), 'init_from': ()}


def resolved(
  name: str, path: pathlib.Path, data: pathlib.Path, *, head: dict[str, Any] | None = None, **changes: Any
) -> dict[str, Any]:
  """Resolve a config of `experiments/finetune/` for 32 tokens and a tiny network."""
  written = config.load(f'{CONFIGS}/{name}.py') | SHORT
  written['vocab'] = {'name': 'byte_bpe', 'path': str(data / 'vocab')}
  written['model'] = {'name': 'bert', 'variant': 'tiny', 'overrides': runs.SIZES}
  short = {'length': 32, 'batch_size': 8, 'buckets': (), 'cache': str(data / 'cache'), 'path': str(path)}
  if name == 'qa':
    short |= {'stride': 8, 'question_length': 8}
  written['data'] = written['data'] | short | changes
  written['adapter'] = written['adapter'] | (head or {})
  return config.resolve(written)


def write_table(file: pathlib.Path, rows: list[dict[str, Any]], *, delimiter: str = ',') -> None:
  with file.open('w', newline='') as opened:
    writer = csv.DictWriter(opened, list(rows[0]), delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)


def write_lines(file: pathlib.Path, rows: list[dict[str, Any]]) -> pathlib.Path:
  file.write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return file


def read_lines(file: pathlib.Path) -> list[dict[str, Any]]:
  return [json.loads(line) for line in file.read_text().splitlines()]


def contents(folder: pathlib.Path) -> dict[str, int]:
  return {str(file): file.stat().st_mtime_ns for file in folder.rglob('*')}


def sentences(count: int, *, seed: int = 3) -> list[dict[str, Any]]:
  draw = random.Random(seed)
  return [runs.sentence(draw, label=number % 2) for number in range(count)]


@pytest.fixture(scope='module')
def letters(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  """Write a user's table.

  Its columns have other names, its classes are words, it is sorted by class and has no validation file.
  """
  folder = tmp_path_factory.mktemp('letters')
  rows = [
    {'id': f'n{k}', 'note': row['text'], 'topic': runs.CLASSES[row['label']]} for k, row in enumerate(sentences(40))
  ]
  write_table(folder / 'letters.csv', sorted(rows, key=lambda row: row['topic']))
  return folder


@pytest.fixture(scope='module')
def run(letters: pathlib.Path, data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp('run')
  assert loop.train(resolved('classify', letters, data), workdir).result['finished']
  return workdir


def predicted(run: pathlib.Path, file: pathlib.Path, out: pathlib.Path, *flags: str) -> pathlib.Path:
  assert predict.main([f'--workdir={run}', f'--file={file}', f'--out={out}', *flags]) == 0
  return out


def test_long_texts_are_tagged_as_by_load(data, tmp_path, caplog):
  draw = random.Random(2)
  known = ('Anna', 'sees', 'the', 'garden', 'unlikely', '.')
  rows = [[draw.choice(known) for _ in range(size)] for size in (4, 0, 60, 90, 9)]
  written = [{'tokens': words, 'tags': [['B-x', 'O'][len(word) > 4] for word in words]} for words in rows]
  file = write_lines(tmp_path / 'train.jsonl', written)
  with caplog.at_level('WARNING', logger='plm_jax'):
    loop.train(resolved('tag', file, data), tmp_path / 'run')
  said = [record.getMessage() for record in caplog.records if 'not read in training' in record.getMessage()]
  assert said and all('rows are beyond 32 tokens' in text and 'data.length' in text for text in said)
  write_lines(tmp_path / 'new.jsonl', [{'tokens': words, 'id': number} for number, words in enumerate(rows)])
  found = read_lines(predicted(tmp_path / 'run', tmp_path / 'new.jsonl', tmp_path / 'out.jsonl'))
  assert [(row['tokens'], row['id']) for row in found] == [(words, number) for number, words in enumerate(rows)]
  for row, words in zip(found, plm_jax.load(tmp_path / 'run').tag(rows), strict=True):
    assert row['prediction'] == [word['tag'] for word in words] and None not in row['prediction']
    np.testing.assert_allclose(row['probability'], [word['probability'] for word in words], atol=2e-6)
  (tmp_path / 'new.txt').write_text('\n'.join(map(' '.join, rows)) + '\n')
  lines = read_lines(predicted(tmp_path / 'run', tmp_path / 'new.txt', tmp_path / 'lines.jsonl'))
  assert [row['prediction'] for row in lines] == [row['prediction'] for row in found]


# Several classes -----------------------------------------------------------------------------------------------------


def test_several_labels_are_the_same_through_every_door(data, tmp_path, capsys):
  folder, labels = tmp_path / 'notes', ('first', 'long', 'named')
  folder.mkdir()
  rows = []
  for row in sentences(40):
    flags = {'first': row['label'] == 0, 'long': len(row['text']) > 30, 'named': row['text'][0] in 'AB'}
    rows.append({'text': row['text'], **{name: int(flag) for name, flag in flags.items()}})
  write_table(folder / 'train.csv', rows)
  settings = resolved('several_labels', folder, data)
  assert loop.train(settings, tmp_path / 'run').result['finished']
  kept = json.loads((tmp_path / 'run' / 'config.json').read_text())
  assert (kept['adapter']['classes'], kept['data']['label']) == (3, '{first|long|named}')
  flags = [f'--workdir={tmp_path / "run"}', '--config.eval.validation.data.split=train']
  assert evaluate.main([*flags, f'--predictions={tmp_path / "scored.jsonl"}']) == 0
  assert evaluate.main([*flags, '--by_class']) == 0
  by_class = json.loads((tmp_path / 'run' / 'by_class.json').read_text())['validation']
  assert [by_class['classes'][name]['support'] for name in labels] == [
    sum(row[name] for row in rows) for name in labels
  ]
  write_table(tmp_path / 'new.csv', [{'text': row['text']} for row in rows])
  found = read_lines(predicted(tmp_path / 'run', tmp_path / 'new.csv', tmp_path / 'out.jsonl'))
  table = list(
    csv.DictReader(predicted(tmp_path / 'run', tmp_path / 'new.csv', tmp_path / 'out.csv').read_text().splitlines())
  )
  model = plm_jax.load(tmp_path / 'run')
  for row, scored, cells, loaded in zip(
    found, read_lines(tmp_path / 'scored.jsonl'), table, model.classify([row['text'] for row in rows]), strict=True
  ):
    assert row['prediction'] == scored['names'] == loaded['labels'] == json.loads(cells['prediction'])
    assert row['prediction'] == [name for name in labels if row['probabilities'][name] > 0.5]
    np.testing.assert_allclose(list(row['probabilities'].values()), scored['probability'], atol=2e-6)
    np.testing.assert_allclose(list(loaded['probabilities'].values()), scored['probability'], atol=2e-6)
    assert float(cells['probability of long']) == row['probabilities']['long']
  # predictions are labels again; two files are averaged
  again = labelled.look(path=str(tmp_path / 'out.csv'), kind='multilabel', fields=('text',), label='prediction')
  assert set(again.names) <= set(labels)
  scored = [f'--score={tmp_path / "scored.jsonl"}'] * 2
  assert evaluate.main(scored) == 0 and 'micro_f1' in capsys.readouterr().out
  # one setting without the other
  with pytest.raises(ConfigError, match=r'does not give label.*Set adapter\.several'):
    config.resolve({**settings, 'adapter': {'name': 'classify'}})
  with pytest.raises(ConfigError, match=r"does not give classes.*kind='multilabel'"):
    resolved('several_labels', folder, data, kind='class')


# Classes -------------------------------------------------------------------------------------------------------------


def test_what_a_config_leaves_open_is_found_and_kept(run, letters, data):
  kept = json.loads((run / 'config.json').read_text())
  assert kept['adapter']['classes'] == 2
  assert (kept['data']['fields'], kept['data']['label'], kept['data']['layout']) == (['note'], 'topic', 'bert')
  assert kept['data']['split'] == 'letters[:90%shuffled]'
  judged = kept['eval']['validation']['data']
  assert (judged['split'], judged['label'], judged['fields']) == ('letters[90%shuffled:]', 'topic', ['note'])
  assert json.loads((run / 'data.json').read_text())['class_names'] == sorted(runs.CLASSES)
  again = loop.train(resolved('classify', letters, data), run)  # the same command resumes, with changed data
  assert again.result['step'] == 2


def test_predictions_of_rows_without_labels_are_those_of_evaluate(run, letters, tmp_path):
  with (letters / 'letters.csv').open() as opened:
    rows = list(csv.DictReader(opened))
  bare = [{'note': row['note'], 'sender': f'"{k}", me'} for k, row in enumerate(rows)]
  write_table(tmp_path / 'new.csv', bare)
  write_lines(tmp_path / 'labels.json', [])  # next to a user's file, not a file of the package
  (tmp_path / 'labels.json').write_text('{"label": ["x", "y", "z"]}')
  before = contents(run)
  found = read_lines(predicted(run, tmp_path / 'new.csv', tmp_path / 'out.jsonl'))
  assert contents(run) == before  # no score, no file
  split = '--config.eval.validation.data.split=letters'
  assert evaluate.main([f'--workdir={run}', f'--predictions={tmp_path / "scored.jsonl"}', split]) == 0
  scored = read_lines(tmp_path / 'scored.jsonl')
  assert [{key: row[key] for key in ('note', 'sender')} for row in found] == bare
  assert [row['prediction'] for row in found] == [row['name'] for row in scored]
  for row, other in zip(found, scored, strict=True):
    np.testing.assert_allclose(list(row['probabilities'].values()), other['probability'], atol=2e-6)
    assert list(row['probabilities']) == sorted(runs.CLASSES)
    assert row['probability'] == row['probabilities'][row['prediction']] == max(row['probabilities'].values())


def test_batches_that_the_devices_do_not_divide_are_filled_up(run, letters, tmp_path):
  """Predict on four devices with a run of one device.

  The command cannot change its batch size, so batches are padded.
  """
  first = read_lines(predicted(run, letters / 'letters.csv', tmp_path / 'first.jsonl'))
  shutil.copytree(run, tmp_path / 'run')
  settings = json.loads((run / 'config.json').read_text())
  settings['data']['batch_size'] = 6
  (tmp_path / 'run' / 'config.json').write_text(json.dumps(settings))
  (tmp_path / 'run' / 'SHA256SUMS').unlink()
  assert read_lines(predicted(tmp_path / 'run', letters / 'letters.csv', tmp_path / 'out.jsonl')) == first


def test_a_label_that_is_there_is_kept_and_not_read(run, letters, tmp_path):
  rows = [{'note': 'He is in the garden.', 'topic': 'no class of ours'}, {'note': 'x', 'topic': ''}]
  write_table(tmp_path / 'new.csv', rows)
  with predicted(run, tmp_path / 'new.csv', tmp_path / 'out.csv').open() as opened:
    found = list(csv.DictReader(opened))
  assert [(row['note'], row['topic']) for row in found] == [(row['note'], row['topic']) for row in rows]
  for row in found:
    shares = {name: float(row[f'probability of {name}']) for name in runs.CLASSES}
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    assert float(row['probability']) == shares[row['prediction']]


def test_cells_with_signs_that_end_lines_and_empty_ones_are_rows(run, tmp_path):
  texts = ['', 'a\rb', 'c\r\nd, "e"', 'f\ng', '']
  write_table(tmp_path / 'new.csv', [{'note': text} for text in texts])
  out = predicted(run, tmp_path / 'new.csv', tmp_path / 'out.csv')
  with out.open(newline='') as opened:
    assert [row['note'] for row in csv.DictReader(opened, strict=True)] == texts
  assert b'\r' not in out.read_bytes().partition(b'\n')[0]
  write_table(tmp_path / 'empty.csv', [{'note': ''}] * 3)  # a store of tokens that holds none
  found = read_lines(predicted(run, tmp_path / 'empty.csv', tmp_path / 'empty.jsonl'))
  assert len(found) == 3 and len({row['probability'] for row in found}) == 1


def test_a_run_that_left_rows_out_predicts_all_or_none(run):
  settings = json.loads((run / 'config.json').read_text())
  settings['data']['on_bad_row'] = 'skip'
  assert predicting.rows_of(settings, run / 'config.json')['on_bad_row'] == 'stop'


def test_lines_of_a_text_are_rows_whatever_the_field_is_called(run, tmp_path):
  lines = ['Anna is in the garden.', 'It was said that Ben is in the kitchen.', '', 'Anna.']
  (tmp_path / 'new.txt').write_text('\n'.join(lines))
  found = read_lines(predicted(run, tmp_path / 'new.txt', tmp_path / 'out.jsonl', '--step=newest'))
  assert [row['text'] for row in found] == lines  # empty ones too: line k of the one is line k of the other


@pytest.mark.parametrize(
  ('content', 'words'),
  [
    ('{"note": "a"}\n{"text": "b"}\n', ['new.jsonl, line 2', "'note'"]),
    ('{"note": "a"}\n{"note": \n', ['new.jsonl, line 2', 'not valid JSON']),
    ('{"note": 3}\n', ['new.jsonl, line 1', 'no text']),
    ('{"txt": "a", "id": 1}\n', ['new.jsonl: ', "'note'", 'txt, id']),
    ('{"note": "a", "prediction": "x"}\n', ["'prediction'", 'new.jsonl']),
    ('{"note": "a"}\n{"note": "b", "prediction": "x"}\n', ["'prediction'", 'new.jsonl, line 2']),
  ],
)
def test_a_bad_row_is_named_before_anything_is_computed(run, tmp_path, monkeypatch, content, words):
  monkeypatch.setattr('plm_jax.training.evaluation.evaluate', lambda *rest, **more: pytest.fail('the network ran'))
  (tmp_path / 'new.jsonl').write_text(content)
  with pytest.raises(ConfigError) as caught:
    predict.main([f'--workdir={run}', f'--file={tmp_path / "new.jsonl"}', f'--out={tmp_path / "out.jsonl"}'])
  assert all(word in str(caught.value) for word in words)
  assert 'on_bad_row' not in str(caught.value)  # each row is answered
  assert 'eval.' not in str(caught.value) and '(train)' not in str(caught.value)  # which no user wrote
  assert not (tmp_path / 'out.jsonl').exists()


def test_a_column_of_the_probability_of_a_class_is_not_overwritten(run, tmp_path, monkeypatch):
  mine = f'probability of {runs.CLASSES[1]}'
  write_table(tmp_path / 'new.csv', [{'note': 'a', mine: 'b', 'probability of rain': 'c'}])
  found = read_lines(predicted(run, tmp_path / 'new.csv', tmp_path / 'out.jsonl'))  # no column of a class in it
  assert (found[0][mine], found[0]['probability of rain']) == ('b', 'c')
  monkeypatch.setattr('plm_jax.training.evaluation.evaluate', lambda *rest, **more: pytest.fail('the network ran'))
  with pytest.raises(ConfigError, match=rf'new\.csv: .*{mine!r}'):
    predicted(run, tmp_path / 'new.csv', tmp_path / 'out.csv')


def test_a_file_is_not_replaced_unless_asked(run, tmp_path):
  file, out = write_lines(tmp_path / 'new.jsonl', [{'note': 'a'}]), tmp_path / 'out.jsonl'
  out.write_text('mine')
  for name, flags, words in (
    (out, [], '--force'),
    (file, ['--force'], 'new.jsonl.*another file'),
    (tmp_path / 'out.xlsx', [], r'\.jsonl or \.csv'),
    (tmp_path / 'none' / 'out.csv', [], r'none\b.*folder|folder.*none\b'),
  ):
    with pytest.raises(ConfigError, match=words):
      predict.main([f'--workdir={run}', f'--file={file}', f'--out={name}', *flags])
  assert out.read_text() == 'mine'
  assert read_lines(predicted(run, file, out, '--force'))[0]['note'] == 'a'


def test_a_run_that_predicts_no_rows_is_refused(data, tmp_path):
  settings = runs.settings('mlm', data)
  with pytest.raises(ConfigError, match='fine-tuned'):
    predicting.rows_of(settings, tmp_path / 'x.txt')
  parts = {'sst2': {}, 'rte': {}}
  settings |= {'adapter': {'name': 'multitask', 'parts': parts}, 'data': {'name': 'mixture', 'parts': parts}}
  with pytest.raises(ConfigError, match=r'sst2, rte.*--part=NAME'):
    predicting.rows_of(settings, tmp_path / 'x.txt')


# By class, by checkpoint ----------------------------------------------------------------------------------------------


def test_what_predict_cannot_do_names_no_flag_that_it_lacks(run, letters, tmp_path, monkeypatch):
  """Check that errors of predict name no flags of evaluate alone."""
  make = evaluate_saved.parts.make_parts

  def silent(*given):
    made = make(*given)
    return made._replace(task=made.task._replace(predict=None))

  file = write_lines(tmp_path / 'rows.jsonl', [{'text': 'a b'}])
  with monkeypatch.context() as patched:
    patched.setattr(evaluate_saved.parts, 'make_parts', silent)
    with pytest.raises(ConfigError, match="'classify'") as caught:
      predicted(run, file, tmp_path / 'out.jsonl')
  assert '--' not in str(caught.value)
  settings = {'adapter': {'name': 'prompt'}, 'data': {'name': 'text_to_text', 'shots': {'count': 2}}}
  with pytest.raises(ConfigError, match=r'demonstrations.*plm-jax evaluate .*--predictions=FILE'):
    predicting.rows_of(settings, file)


def test_by_class_is_what_scikit_learn_says(run, tmp_path, capsys):
  peers = pytest.importorskip('sklearn.metrics')
  flags = [f'--workdir={run}', '--config.eval.validation.data.split=letters']
  assert evaluate.main([*flags, '--by_class', f'--predictions={tmp_path / "rows.jsonl"}']) == 0
  rows = read_lines(tmp_path / 'rows.jsonl')
  gold, found = [row['record']['label'] for row in rows], [row['label'] for row in rows]
  names = sorted(runs.CLASSES)
  expected = peers.classification_report(gold, found, target_names=names, output_dict=True, zero_division=0)
  kept = json.loads(RunFolder(run).by_class.read_text())['validation']
  assert kept['macro_f1'] == pytest.approx(expected['macro avg']['f1-score'])
  assert kept['accuracy'] == pytest.approx(expected['accuracy'])
  for name in names:
    assert kept['classes'][name]['support'] == expected[name]['support']
    for ours, theirs in (('precision', 'precision'), ('recall', 'recall'), ('f1', 'f1-score')):
      assert kept['classes'][name][ours] == pytest.approx(expected[name][theirs])
  assert kept['confusion']['counts'] == peers.confusion_matrix(gold, found).tolist()
  shown = capsys.readouterr().out
  assert all(name in shown for name in names)
  assert evaluate.main(['--score', str(tmp_path / 'rows.jsonl'), '--by_class', '--scores', 'accuracy']) == 0
  assert f'{expected["macro avg"]["f1-score"]:.3f}' in capsys.readouterr().out


def test_every_checkpoint_is_a_row(run, capsys):
  assert evaluate.main([f'--workdir={run}', '--step=all']) == 0
  shown = capsys.readouterr().out
  steps = sorted(int(file.name) for file in (run / 'checkpoints').iterdir() if file.name.isdecimal())
  assert len(steps) == 2
  assert [line.split('│')[1].strip() for line in shown.splitlines() if line.startswith('│')] == [str(n) for n in steps]
  with pytest.raises(ConfigError, match='--step=all'):
    evaluate.main([f'--workdir={run}', '--step=all', '--by_class'])


# Other tasks ----------------------------------------------------------------------------------------------------------


def test_words(data, tmp_path):
  draw = random.Random(1)
  rows = [[(word, 'B-x' if word[0].isupper() else 'O') for word in conftest.story(draw).split()[:9]] for _ in range(20)]
  (tmp_path / 'own').mkdir()
  text = '\n'.join(''.join(f'{word} {tag}\n' for word, tag in row) for row in rows)
  (tmp_path / 'own' / 'train.conll').write_text(text)
  assert loop.train(resolved('tag', tmp_path / 'own', data), tmp_path / 'run').result['finished']
  kept = json.loads((tmp_path / 'run' / 'config.json').read_text())
  assert (kept['adapter']['tags'], kept['data']['fields'], kept['data']['label']) == (['B-x', 'O'], ['tokens'], 'tags')
  words = [[word for word, _ in row] for row in rows[:3]]
  (tmp_path / 'new.txt').write_text('\n\n'.join(map(' '.join, words)))
  (tmp_path / 'new.conll').write_text('\n\n'.join(map('\n'.join, words)))
  long = [{'tokens': [*words[0], *['kitchen'] * 40]}, {'tokens': []}, {'tokens': words[1]}]
  write_lines(tmp_path / 'new.jsonl', long)
  found = {
    suffix: read_lines(predicted(tmp_path / 'run', tmp_path / f'new.{suffix}', tmp_path / f'{suffix}.jsonl'))
    for suffix in ('txt', 'conll', 'jsonl')
  }
  assert [row['prediction'] for row in found['txt'][::2]] == [row['prediction'] for row in found['conll']]
  assert [row['prediction'] for row in found['txt'][1::2]] == [[], []]
  for row, own in zip(found['conll'], words, strict=True):
    assert row['tokens'] == own
    assert len(row['prediction']) == len(row['probability']) == len(own)
    assert set(row['prediction']) <= {'B-x', 'O'} and min(row['probability']) > 0.3
  write_table(
    tmp_path / 'new.csv', [{'id': 1, 'tokens': ' '}, {'id': 2, 'tokens': 'Anna met'}, {'id': 3, 'tokens': ''}]
  )
  blank, some, bare = read_lines(predicted(tmp_path / 'run', tmp_path / 'new.csv', tmp_path / 'csv.jsonl'))
  assert (blank['prediction'], len(some['prediction']), bare['prediction']) == ([], 2, [])
  first, empty, last = found['jsonl']
  assert len(first['prediction']) == len(first['probability']) == len(long[0]['tokens'])
  assert set(first['prediction']) <= {'B-x', 'O'} and min(first['probability']) > 0.3  # long ones are read in windows
  assert (empty['prediction'], last['prediction']) == ([], found['txt'][2]['prediction'])


def test_options_and_answers(data, tmp_path):
  draw = random.Random(2)
  stories = [conftest.story(draw) for _ in range(24)]
  for name in ('choose', 'qa'):
    (tmp_path / name).mkdir()
  options = [{'start': s[:30], 'ends': s.split()[:3], 'answer': k % 3} for k, s in enumerate(stories)]
  write_lines(tmp_path / 'choose' / 'train.jsonl', options)
  answers = [
    {'question': 'Who?', 'context': s, 'answers': {'text': [s.split()[0]], 'answer_start': [0]}} for s in stories
  ]
  write_lines(tmp_path / 'qa' / 'train.jsonl', answers)
  for name, rows in (('choose', options), ('qa', answers)):
    assert loop.train(resolved(name, tmp_path / name, data), tmp_path / f'{name}_run').result['finished']
    bare = [{key: value for key, value in row.items() if key not in ('answer', 'answers')} for row in rows[:9]]
    file = write_lines(tmp_path / f'{name}.jsonl', bare)
    found = read_lines(predicted(tmp_path / f'{name}_run', file, tmp_path / f'{name}_out.jsonl'))
    assert [{key: row[key] for key in bare[0]} for row in found] == bare
    for row in found:
      if name == 'choose':
        assert row['prediction'] == row['ends'][row['option']]
        assert len(row['probabilities']) == 3
        assert row['probabilities'][row['option']] == max(row['probabilities'])  # both rounded
      else:  # of all windows of the question, one answer
        assert row['prediction'] in row['context'] and row['prediction']
        assert isinstance(row['score'], float)
  file = write_lines(tmp_path / 'empty.jsonl', [{'question': 'Who?', 'context': ''}])
  (found,) = read_lines(predicted(tmp_path / 'qa_run', file, tmp_path / 'empty_out.jsonl'))
  assert (found['prediction'], found['score']) == ('', None)
  table = predicted(tmp_path / 'qa_run', file, tmp_path / 'empty_out.csv')
  assert table.read_text() == 'question,context,prediction,score\nWho?,,,\n'


def test_only_names_that_a_task_writes_are_refused(run, data, tmp_path):
  draw = random.Random(4)
  rows = [{'sentence1': conftest.story(draw)[:20], 'sentence2': 'Anna.', 'score': k / 2} for k in range(20)]
  (tmp_path / 'own').mkdir()
  write_table(tmp_path / 'own' / 'train.csv', rows)
  assert loop.train(resolved('regress', tmp_path / 'own', data), tmp_path / 'run').result['finished']
  found = read_lines(predicted(tmp_path / 'run', tmp_path / 'own' / 'train.csv', tmp_path / 'out.jsonl'))
  assert [row['score'] for row in found] == [row['score'] for row in rows]  # the label, which is kept
  assert all(isinstance(row['prediction'], float) for row in found)
  file = write_lines(tmp_path / 'new.jsonl', [{'note': 'a', 'option': 'b', 'score': 3}])
  assert read_lines(predicted(run, file, tmp_path / 'classes.jsonl'))[0]['score'] == 3


def test_numbers_texts_and_words_for_classes():
  """Describe predictions of tasks whose runs are tested elsewhere."""
  plain = Task(None, None, None)  # type: ignore[arg-type]

  def say(prediction: dict[str, Any], record: dict[str, Any], **words: Any) -> dict[str, Any]:
    task = plain._replace(in_words=lambda *given: words)
    ((_, found),) = predicting.describe(task, [prediction], [record])
    return found

  assert say({'value': np.float32(2.5)}, {}) == {'prediction': 2.5}
  assert say({'tokens': np.arange(3)}, {}, text='a summary') == {'prediction': 'a summary'}
  cloze = {'label': np.int32(1), 'probability': np.array([0.25, 0.75])}
  assert say(cloze, {'options': ('bad', 'good'), 'names': ('bad', 'good')})['probabilities'] == {
    'bad': 0.25,
    'good': 0.75,
  }
  assert say(cloze, {'options': ('a', 'b'), 'names': ()}) == {
    'prediction': 'b',
    'option': 1,
    'probabilities': [0.25, 0.75],
  }
  assert say(cloze, {'names': ()})['prediction'] == '1'
  with pytest.raises(ConfigError, match='plm-jax evaluate'):
    say({'nats': np.float32(1)}, {})


@pytest.mark.parametrize('suffix', predicting.SUFFIXES)
def test_numbers_of_a_table_are_written_as_its_cells_were(suffix, tmp_path):
  (tmp_path / 'new.csv').write_text('price,size\n5.10,1\n1e3,-0\n')
  rows = sources.open_source(str(tmp_path / 'new.csv'), cache=str(tmp_path / 'cache'))
  predicting.write(tmp_path / f'out{suffix}', [{**row, 'prediction': 'x "y"'} for row in rows])
  written = (tmp_path / f'out{suffix}').read_text()
  if suffix == '.csv':
    assert written == 'price,size,prediction\n5.10,1,"x ""y"""\n1e3,-0,"x ""y"""\n'
  else:
    assert written.splitlines()[0] == '{"price": 5.10, "size": 1, "prediction": "x \\"y\\""}'
    assert read_lines(tmp_path / f'out{suffix}')[1] == {'price': 1000.0, 'size': 0, 'prediction': 'x "y"'}


@pytest.mark.parametrize('suffix', predicting.SUFFIXES)
def test_bytes_that_are_no_text_are_written_with_escapes(suffix, tmp_path):
  row = {'text': 'a', 'picture': NotText(b'\xffd'), 'more': [NotText(b'\xfe')]}
  predicting.write(tmp_path / f'out{suffix}', [row])
  (found,) = sources.open_source(str(tmp_path / f'out{suffix}'), cache=str(tmp_path / 'cache'))
  assert (found['picture'], '\\xfe' in str(found['more'])) == (r'\xffd', True)
  predicted_rows.write(tmp_path / 'rows.jsonl', [{'row_id': np.int64(0)}], [{'row': row}], form=None)
  assert read_lines(tmp_path / 'rows.jsonl') == [
    {'row_id': 0, 'record': {'row': {'text': 'a', 'picture': r'\xffd', 'more': [r'\xfe']}}}
  ]


# The layout of a model ------------------------------------------------------------------------------------------------


def release(folder: pathlib.Path, kind: str) -> pathlib.Path:
  """Write a tiny transformers model with the tokenizer of its class."""
  transformers = pytest.importorskip('transformers')
  words = {
    token: number for number, token in enumerate(['<pad>', '[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', 'a', 'b'])
  }
  sizes = {'hidden_size': 16, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'intermediate_size': 16}
  if kind == 'bert':
    folder.mkdir()
    (folder / 'vocab.txt').write_text('\n'.join(words))
    transformers.BertTokenizerFast(str(folder / 'vocab.txt')).save_pretrained(folder)
    transformers.BertModel(transformers.BertConfig(vocab_size=len(words), **sizes)).save_pretrained(folder)
    return folder
  tokens = ['<s>', '<pad>', '</s>', '<unk>', 'a', 'b', 'Ġ', '<mask>']
  folder.mkdir()
  (folder / 'vocab.json').write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
  (folder / 'merges.txt').write_text('#version: 0.2\n')
  transformers.RobertaTokenizerFast(str(folder / 'vocab.json'), str(folder / 'merges.txt')).save_pretrained(folder)
  transformers.RobertaModel(transformers.RobertaConfig(vocab_size=len(tokens), **sizes)).save_pretrained(folder)
  return folder


def on_pairs(folder: pathlib.Path, data: pathlib.Path, source: pathlib.Path, **changes: Any) -> dict[str, Any]:
  """Build settings of a run on text pairs from a trunk."""
  folder.mkdir(exist_ok=True)
  rows = [{'premise': 'a', 'hypothesis': 'b', 'label': name} for name in ('no', 'yes') * 20]
  write_lines(folder / 'train.jsonl', rows)
  settings = resolved('pair', folder, data, **changes)
  return settings | {'init_from': [{'source': str(source), 'from_': 'trunk', 'to': 'trunk'}]}


@pytest.mark.parametrize('imported', [False, True], ids=['release', 'import'])
@pytest.mark.parametrize(('kind', 'other'), [('bert', 'roberta'), ('roberta', 'bert')])
def test_rows_stand_as_the_model_was_trained(kind, other, imported, data, tmp_path):
  folder = release(tmp_path / kind, kind)
  if imported:
    convert.import_release(folder, tmp_path / 'imported')
    folder = tmp_path / 'imported'
  assert from_data.layout_of(str(folder)) == kind
  name = {'bert': 'wordpiece', 'roberta': 'byte_bpe'}[kind]
  vocab = {'name': name, 'path': str(RunFolder(folder).vocab if imported else folder), 'extra': [], 'roles': {}}
  settings = on_pairs(tmp_path / 'own', data, folder) | {'vocab': vocab}
  assert from_data.filled(settings)['data']['layout'] == kind
  settings['data'] = {**settings['data'], 'layout': other}
  with pytest.raises(ConfigError, match=f"layout='{other}': .*'{kind}'"):
    from_data.filled(settings)
  assert from_data.filled(settings, settings)['data']['layout'] == other  # a resumed run


def begun(folder: pathlib.Path, settings: dict[str, Any], data: pathlib.Path) -> pathlib.Path:
  """Write the files of a run that describe its data."""
  known = tokenizer.load(data / 'vocab')
  known.save(RunFolder(folder).vocab, template=parts.make_template(settings, known))
  RunFolder(folder).config.write_text(json.dumps(settings))
  return folder


@pytest.mark.parametrize('own', ['bert', 'roberta'])
def test_rows_stand_as_those_of_the_run_before(own, data, tmp_path):
  """Take the layout of the previous run.

  A run on single texts or on packed documents does not decide the layout of pairs.
  """
  other = {'bert': 'roberta', 'roberta': 'bert'}[own]
  pair = on_pairs(tmp_path / 'own', data, tmp_path / 'nowhere', layout=own)
  single = {**pair, 'data': {**pair['data'], 'fields': ['premise']}}
  known, unknown = [pair], [single]
  if own == 'bert':
    known.append(config.resolve(config.load(f'{conftest.ROOT}/experiments/bert/base.py')))  # pairs of segments
    unknown.append(config.resolve(config.load(f'{conftest.ROOT}/experiments/bert/base.py:mlm')))
  else:
    unknown.append(config.resolve(config.load(f'{conftest.ROOT}/experiments/roberta/pretrain.py')))
  for number, settings in enumerate([*known, *unknown]):
    source = begun(tmp_path / str(number), settings, data)
    wanted = on_pairs(tmp_path / 'own', data, source, layout=other)
    if settings in known:
      with pytest.raises(ConfigError, match=f"layout='{other}': .*'{own}'"):
        from_data.filled(wanted)
    else:
      assert from_data.filled(wanted)['data']['layout'] == other
    assert from_data.filled(on_pairs(tmp_path / 'own', data, source, layout=own))['data']['layout'] == own


def test_a_run_says_its_layout_and_data_that_do_not_say_are_refused(run, data, letters, tmp_path):
  settings = resolved('classify', letters, data)
  settings |= {'init_from': [{'source': str(run), 'from_': 'trunk', 'to': 'trunk'}]}
  assert from_data.filled(settings)['data']['layout'] == 'bert'
  (tmp_path / 'own').mkdir()
  rows = [{'first': 'a', 'second': 'b', 'third': 'c', 'label': k % 2} for k in range(20)]
  write_lines(tmp_path / 'own' / 'train.jsonl', rows)
  with pytest.raises(ConfigError, match=r'text.*first, second, third, label'):
    from_data.filled(resolved('classify', tmp_path / 'own', data))
  write_lines(tmp_path / 'own' / 'train.jsonl', [{'text': 'a', 'coarse': 0, 'fine': 1}] * 20)
  with pytest.raises(ConfigError, match=r'label.*text, coarse, fine'):
    from_data.filled(resolved('classify', tmp_path / 'own', data))
  write_lines(tmp_path / 'own' / 'train.jsonl', [{'text': 'a', 'label': 'x'}] * 20)
  with pytest.raises(ConfigError, match='1 class'):
    from_data.filled(resolved('classify', tmp_path / 'own', data))
  shutil.copy(tmp_path / 'own' / 'train.jsonl', tmp_path / 'own' / 'dev.jsonl')
  found = from_data.filled(resolved('classify', tmp_path / 'own', data) | {'adapter': None})
  assert (found['data']['split'], found['eval']['validation']['data']['split']) == ('train', 'dev')


def test_a_class_without_probabilities_has_a_name() -> None:
  assert replies.class_of({'label': np.int32(1)}, {'names': ('no', 'yes')}) == {'label': 'yes', 'probabilities': {}}
  assert replies.class_of({'label': np.int32(2)}, {}) == {'label': 2, 'probabilities': {}}
