"""One task of a multi-task run, used as a run of that task alone: load, predict, score, export."""

import json
import pathlib
import random
import shutil
from typing import Any

import jax
import numpy as np
import pytest

import plm_jax
from plm_jax import config, weights
from plm_jax.adapters import multitask
from plm_jax.commands import compress, convert, evaluate, heads, lm_eval, predict, vectors
from plm_jax.commands import generate as generate
from plm_jax.config import one_part, signatures
from plm_jax.core.errors import ConfigError
from plm_jax.inference import tasks
from plm_jax.training import loop
from plm_jax.weights import WeightsError
from tests import conftest, runs

pytestmark = pytest.mark.turns

BIO = ('O', 'B-name')
KINDS = ('far', 'near')
HEADS: dict[str, dict[str, Any]] = {
  'length': {'name': 'classify', 'kind': 'regression', 'dropout': 0.0},
  'names': {'name': 'tag', 'tags': BIO, 'dropout': 0.0},
  'places': {'name': 'lora', 'targets': ('query',), 'inner': {'name': 'classify', 'classes': 2, 'dropout': 0.0}},
  'kinds': {'name': 'classify', 'classes': 2, 'dropout': 0.0},
}
TEXTS = ['Anna is in the market .', 'Boris is in the castle , it was said .']


@pytest.fixture(scope='module')
def sets(data: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
  """Build the data blocks of four tasks.

  Two have classes with their own names, one has values, one has words.
  """
  folder, draw = tmp_path_factory.mktemp('sets'), random.Random(0)
  for split in ('train', 'validation'):
    texts = [f'{draw.choice(conftest.NAMES)} is in the {draw.choice(conftest.PLACES)} .' for _ in range(16)]
    rows = {
      'length': [{'text': text, 'label': len(text) / 10} for text in texts],
      'kinds': [{'text': text, 'idx': 100 + k, 'label': k % 2} for k, text in enumerate(texts)],
      'names': [{'tokens': text.split(), 'tags': [1, *[0] * (len(text.split()) - 1)]} for text in texts],
    }
    for name, some in rows.items():
      (folder / name).mkdir(exist_ok=True)
      (folder / name / f'{split}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in some))
  (folder / 'kinds' / 'labels.json').write_text(json.dumps({'label': KINDS}))
  more = {'name': 'labelled', 'layout': 'bert', 'cache': str(data / 'cache')}
  return {
    'length': {**more, 'path': str(folder / 'length'), 'kind': 'regression'},
    'names': {**more, 'path': str(folder / 'names'), 'kind': 'words', 'fields': ('tokens',), 'label': 'tags'},
    'places': {**more, 'path': str(data / 'labelled'), 'length': 24},
    'kinds': {**more, 'path': str(folder / 'kinds')},
  }


def settings(data: pathlib.Path, sets: dict[str, dict[str, Any]]) -> dict[str, Any]:
  """Build a config of four tasks over one BERT.

  Evaluations use averaged parameters.
  """
  return config.resolve({
    'steps': 12, 'log_every': 4, 'eval_every': 6, 'save_every': 6,
    'vocab': {'name': 'byte_bpe', 'path': str(data / 'vocab')},
    'model': {'name': 'bert', 'variant': 'tiny', 'overrides': runs.SIZES},
    'adapter': {'name': 'multitask', 'parts': HEADS, 'scores': {'places': ('matthews', 'accuracy')}},
    'data': {'name': 'mixture', 'per': 'step', 'rates': 'equal', 'parts': sets, 'length': 32, 'batch_size': 8},
    'eval': {'validation': {'data': {'split': 'validation'}}},
    'optim': {'name': 'adamw', 'rate': 1e-2, 'schedule': 'constant', 'warmup': 0, 'ema': 0.8},
    'best': ('validation/places/accuracy', 'max'),
  })  # fmt: skip


@pytest.fixture(scope='module')
def run(data: pathlib.Path, sets: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  workdir = tmp_path_factory.mktemp('run')
  assert loop.train(settings(data, sets), workdir).result['finished']
  return workdir


@pytest.fixture(scope='module')
def scored(run: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
  """Predict the examples of all tasks with the whole run."""
  file = tmp_path_factory.mktemp('scored') / 'rows.jsonl'
  assert evaluate.main([f'--workdir={run}', f'--predictions={file}']) == 0
  return read_lines(file)


def read_lines(file: pathlib.Path) -> list[dict[str, Any]]:
  return [json.loads(line) for line in file.read_text().splitlines()]


def rows_of(part: str, scored: list[dict[str, Any]]) -> list[dict[str, Any]]:
  return [row for row in scored if row['part'] == part]


def predicted(run: pathlib.Path, part: str, file: pathlib.Path, out: pathlib.Path) -> list[dict[str, Any]]:
  assert predict.main([f'--workdir={run}', f'--part={part}', f'--file={file}', f'--out={out}']) == 0
  return read_lines(out)


# Predictions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('part', 'names'), [('kinds', KINDS), ('places', runs.CLASSES)])
def test_classes_are_those_that_the_whole_run_predicts(run, sets, scored, tmp_path, part, names):
  file = pathlib.Path(sets[part]['path']) / 'validation.jsonl'
  found, known = predicted(run, part, file, tmp_path / 'out.jsonl'), rows_of(part, scored)
  assert len(found) == len(known) == len(read_lines(file))
  for row, other in zip(found, known, strict=True):
    assert list(row['probabilities']) == list(names)
    np.testing.assert_allclose(list(row['probabilities'].values()), other[f'{part}/probability'], atol=2e-6)
    assert row['prediction'] == names[other[f'{part}/label']]


def test_numbers_and_words_are_those_that_the_whole_run_predicts(run, sets, scored, tmp_path):
  file = pathlib.Path(sets['length']['path']) / 'validation.jsonl'
  found = predicted(run, 'length', file, tmp_path / 'numbers.jsonl')
  values = [row['length/value'] for row in rows_of('length', scored)]
  np.testing.assert_allclose([row['prediction'] for row in found], values, atol=2e-6)
  file = pathlib.Path(sets['names']['path']) / 'validation.jsonl'
  found, known = predicted(run, 'names', file, tmp_path / 'words.jsonl'), rows_of('names', scored)
  for row, other in zip(found, known, strict=True):
    numbers = [label for label in other['names/labels'] if label >= 0]
    assert row['prediction'] == [BIO[number] for number in numbers]


def test_predict_says_which_parts_there_are(run, tmp_path, sets):
  flags = [f'--workdir={run}', f'--file={sets["kinds"]["path"]}/train.jsonl', f'--out={tmp_path / "out.jsonl"}']
  with pytest.raises(ConfigError, match=r'kinds.*--part=NAME'):
    predict.main(flags)
  with pytest.raises(ConfigError, match=r"--part=kind: .*'kinds'"):
    predict.main([*flags, '--part=kind'])
  assert not (tmp_path / 'out.jsonl').exists()


def test_a_run_of_one_task_has_no_part(data, tmp_path):
  one = runs.settings('classify', data)
  assert one_part.names(one) == ()
  with pytest.raises(ConfigError, match=r'--part=x\b'):
    one_part.settings_of(one, 'x', where='--part=x')


# In Python -----------------------------------------------------------------------------------------------------------


def test_a_part_is_asked_what_its_task_answers(run, scored):
  whole = plm_jax.load(run)
  for ask in (whole.classify, whole.tag):
    with pytest.raises(ConfigError, match=r'kinds.*plm_jax\.load\(FOLDER, part=NAME\)'):
      ask(TEXTS)
  kinds, names = plm_jax.load(run, part='kinds'), plm_jax.load(run, part='names')
  known = rows_of('kinds', scored)
  for reply, row in zip(kinds.classify([row['record']['row']['text'] for row in known]), known, strict=True):
    np.testing.assert_allclose(list(reply['probabilities'].values()), row['kinds/probability'], atol=2e-6)
    assert reply['label'] == KINDS[row['kinds/label']]
  assert [word['word'] for word in names.tag(TEXTS[0])] == TEXTS[0].split()
  assert 'value' in plm_jax.load(run, part='length').classify(TEXTS[0])
  np.testing.assert_array_equal(kinds.encode(TEXTS), names.encode(TEXTS))
  with pytest.raises(ConfigError, match=r'encode, classify.*\btag\b'):
    kinds.tag(TEXTS)
  with pytest.raises(ConfigError, match=r"'kind'.*kinds"):
    plm_jax.load(run, part='kind')
  assert repr(kinds).endswith(", part='kinds')")


def test_a_part_with_lora_is_asked_with_its_updates(run, scored):
  """Check that a part uses its LoRA updates of the shared trunk."""
  known = rows_of('places', scored)
  replies = plm_jax.load(run, part='places').classify([row['record']['row']['text'] for row in known])
  for reply, row in zip(replies, known, strict=True):
    np.testing.assert_allclose(list(reply['probabilities'].values()), row['places/probability'], atol=2e-6)
  plain, own = (weights.open(run, part=part).params.arrays('trunk') for part in ('kinds', 'places'))
  assert {path for path in plain if not np.array_equal(plain[path], own[path])} == {'layers/query/kernel'}
  with pytest.raises(WeightsError, match=r'part=NAME: length, names, places, kinds'):
    _ = weights.open(run).params
  assert tasks.abilities(plm_jax.load(run).folder) == []


# Scores --------------------------------------------------------------------------------------------------------------


def test_a_part_is_scored_as_in_the_whole_run(run, tmp_path):
  shutil.copytree(run, tmp_path / 'run')
  workdir = tmp_path / 'run'
  for flags in ([], ['--part=places'], ['--part=kinds', '--step=all']):
    assert evaluate.main([f'--workdir={workdir}', *flags]) == 0
  whole, places, *kinds = read_lines(workdir / 'evaluations.jsonl')[-4:]
  assert (places['part'], places['step']) == ('places', whole['step'])
  own = {key for key in places if key.startswith('validation/')}
  assert {'validation/matthews', 'validation/accuracy', 'validation/loss'} <= own
  for key in own:
    assert places[key] == pytest.approx(whole[key.replace('/', '/places/', 1)], rel=1e-5), key
  assert [(line['part'], line['step']) for line in kinds] == [('kinds', 6), ('kinds', 12)]


def test_a_part_has_the_forms_and_tables_of_one_task(run, scored, tmp_path):
  shutil.copytree(run, tmp_path / 'run')
  workdir, file = f'--workdir={tmp_path / "run"}', tmp_path / 'kinds.tsv'
  submission = [f'--predictions={file}', '--format=glue']
  assert evaluate.main([workdir, '--part=kinds', *submission]) == 0
  known = rows_of('kinds', scored)
  lines = [f'{100 + number}\t{row["kinds/label"]}' for number, row in enumerate(known)]
  assert file.read_text().splitlines() == ['index\tprediction', *lines]
  pytest.importorskip('sklearn')
  assert evaluate.main([workdir, '--part=kinds', '--by_class']) == 0
  table = json.loads((tmp_path / 'run' / 'by_class.json').read_text())['validation']
  right = np.mean([row['kinds/label'] == row['record']['label'] for row in known])
  assert table['accuracy'] == pytest.approx(right) and table['part'] == 'kinds'
  assert set(table['classes']) <= set(KINDS)
  for flags in (submission, ['--by_class']):
    with pytest.raises(ConfigError, match=r'kinds.*--part=NAME'):
      evaluate.main([workdir, *flags])


def test_rows_without_labels_of_a_part(run, scored, tmp_path):
  """Predict a test set for a submission with a part's data."""
  shutil.copytree(run, tmp_path / 'run')
  block = '--config.eval.validation.data.parts.kinds'
  flags = [f'{block}.split=train', f'{block}.keep_unlabelled=True', f'--predictions={tmp_path / "rows.jsonl"}']
  assert evaluate.main([f'--workdir={tmp_path / "run"}', '--part=kinds', *flags]) == 0
  rows = read_lines(tmp_path / 'rows.jsonl')
  assert len(rows) == 16 and {row['name'] for row in rows} <= set(KINDS)


# Exports -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('part', 'kind', 'names'),
  [
    ('kinds', 'ForSequenceClassification', KINDS),
    ('places', 'ForSequenceClassification', runs.CLASSES),
    ('names', 'ForTokenClassification', BIO),
  ],
)
def test_a_part_is_exported_as_the_class_of_its_task(run, tmp_path, part, kind, names):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  assert convert.main(['export', str(run), str(tmp_path / 'out'), f'--part={part}', '--step=best']) == 0
  theirs = getattr(transformers, f'Auto{kind.replace("For", "ModelFor")}').from_pretrained(tmp_path / 'out').eval()
  assert type(theirs).__name__ == f'Bert{kind}'
  assert tuple(theirs.config.id2label.values()) == tuple(names)
  params = weights.open(run, step='best').as_saved.tree()
  tokens = np.random.default_rng(0).integers(5, runs.VOCAB_SIZE, (3, 9))
  with torch.no_grad():
    wanted = theirs(torch.tensor(tokens)).logits.numpy()
  vocab = plm_jax.load(run).folder.vocab
  trunk = weights.open(run, part=part).trunk()
  model = multitask.make(trunk=trunk, vocab=vocab, parts=config.load(str(run))['adapter']['parts']).model
  inputs = {'tokens': tokens, 'segment_ids': np.ones_like(tokens), 'type_ids': np.zeros_like(tokens)}
  found = model.apply({'params': jax.tree.map(np.asarray, params)}, part=part, **inputs)
  (logits,) = [leaf for leaf in jax.tree.leaves(found) if leaf.shape == wanted.shape]
  np.testing.assert_allclose(logits, wanted, atol=2e-5)


def test_an_export_needs_the_name_of_a_part(run, tmp_path):
  with pytest.raises(ConfigError, match=r'kinds.*--part=NAME.*--heads=none'):
    convert.main(['export', str(run), str(tmp_path / 'out')])
  with pytest.raises(ConfigError, match=r"part=kind: .*'kinds'"):
    convert.main(['export', str(run), str(tmp_path / 'out'), '--part=kind'])
  assert not (tmp_path / 'out').exists()


def test_a_part_is_saved_in_our_own_form_with_its_head(run, tmp_path):
  flags = ['--part=kinds', '--form=own', '--heads=head']
  assert convert.main(['export', str(run), str(tmp_path / 'out'), *flags]) == 0
  found, known = (plm_jax.load(run, part='kinds').classify(TEXTS), plm_jax.load(tmp_path / 'out').classify(TEXTS))
  for one, other in zip(found, known, strict=True):
    assert list(one['probabilities']) == list(other['probabilities']) == list(KINDS)
    np.testing.assert_allclose(list(one['probabilities'].values()), list(other['probabilities'].values()), atol=1e-6)


# Smaller networks ----------------------------------------------------------------------------------------------------


def test_a_part_is_compressed_as_the_network_of_its_task(run, tmp_path):
  shutil.copytree(run, tmp_path / 'run')
  workdir, out = tmp_path / 'run', tmp_path / 'small'
  assert evaluate.main([f'--workdir={workdir}', '--part=places']) == 0
  *_, scores = read_lines(workdir / 'evaluations.jsonl')  # other tests may have evaluated the run before
  before = runs.snapshot(workdir)
  flags = [f'--workdir={workdir}', f'--out={out}', '--rounds=1']
  assert compress.main([*flags, '--part=places', '--methods=int8', f'--beside={run}']) == 0
  assert runs.snapshot(workdir) == before
  table = json.loads((out / 'table.json').read_text())
  assert (table['part'], table['metric']) == ('places', 'validation/accuracy')
  assert 'run, part places: validation/accuracy' in (out / 'table.txt').read_text()
  rows = {row['method']: row for row in table['rows']}
  assert list(rows) == ['original', 'int8', run.name]
  for name in ('original', run.name):
    for metric, value in rows[name]['metrics'].items():
      assert value == pytest.approx(scores[f'validation/{metric}'], rel=1e-5), metric
  assert rows['int8']['disk_bytes'] < 0.6 * rows['original']['disk_bytes']
  known = plm_jax.load(run, part='places').classify(TEXTS)
  for name, off in (('original', 1e-6), ('int8', 0.02)):
    for one, other in zip(plm_jax.load(out / name).classify(TEXTS), known, strict=True):
      assert list(one['probabilities']) == list(other['probabilities'])
      np.testing.assert_allclose(list(one['probabilities'].values()), list(other['probabilities'].values()), atol=off)
  with pytest.raises(ConfigError, match=r"--part=place: .*'places'"):
    compress.main([*flags, '--part=place', '--methods=int8'])


def test_the_best_step_of_a_part_is_chosen_by_its_own_metric(run):
  whole = config.resolve(config.load(str(run)))
  assert one_part.settings_of(whole, 'places')['best'] == ('validation/accuracy', 'max')
  assert one_part.settings_of(whole, 'kinds')['best'] is None
  assert one_part.settings_of({**whole, 'best': None}, 'places')['best'] is None


# Texts that are written ----------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def writing(data, sets, tmp_path_factory) -> pathlib.Path:
  """Train a GPT to generate a class and to classify.

  It generates without special tokens and classifies with them.
  """
  form = {'name': 'template', 'inputs': '{text} :', 'options': runs.CLASSES}
  rows = {name: sets['places'][name] for name in ('path', 'cache')}
  text = {**rows, 'name': 'text_to_text', 'form': form, 'layout': 'bare', 'target_layout': 'text', 'target_length': 8}
  parts = {'says': {'name': 'sequence'}, 'places': {'name': 'classify', 'classes': 2}}
  changes = {
    'steps': 2,
    'model': {'name': 'gpt'},
    'adapter': {'name': 'multitask', 'parts': parts},
    'data': {'parts': {'says': text, 'places': sets['places']}, 'length': 24},
    'best': None,
  }
  workdir, plain = tmp_path_factory.mktemp('writing'), settings(data, sets)
  merged = {key: {**plain[key], **new} if key in ('model', 'data') else new for key, new in changes.items()}
  evaluations = {'validation': {'data': {'split': 'validation'}}}
  assert loop.train(config.resolve({**plain, **merged, 'eval': evaluations}), workdir).result['finished']
  return workdir


def test_a_part_that_writes_goes_on_with_prompts(writing, capsys):
  flags = [f'--workdir={writing}', '--prompt=Anna is', '--max_new=3']
  assert generate.main([*flags, '--part=says']) == 0
  made = plm_jax.load(writing, part='says').generate('Anna is', max_new=3)
  assert capsys.readouterr().out.splitlines()[0] == f'Anna is{made}'
  with pytest.raises(ConfigError, match=r"'classify'.*encode, classify.*\bgenerate"):
    generate.main([*flags, '--part=places'])
  with pytest.raises(ConfigError, match=r'says, places.*--part=NAME'):
    generate.main(flags)
  with pytest.raises(ConfigError, match=r"'say'.*'says'"):
    generate.main([*flags, '--part=say'])


def test_texts_stand_between_the_special_tokens_of_their_part(writing):
  says, places = (plm_jax.load(writing, part=part).folder for part in ('says', 'places'))
  (bare,), (around,) = says.read(['Anna']), places.read(['Anna'])
  assert (bare.before, bare.after) == (0, 0)
  assert around.ids == [places.vocab.cls_id, *bare.ids, places.vocab.sep_id]
  assert says.encoder('Anna') == bare.ids


def test_a_part_is_asked_by_the_harness(writing, run, tmp_path):
  pytest.importorskip('lm_eval', reason='needs the extra lm_eval: bash launch/setup.sh lm_eval')
  (tmp_path / 'rows.jsonl').write_text(json.dumps({'text': 'Anna is', 'options': [' inside', ' outside'], 'label': 0}))
  (tmp_path / 'tasks').mkdir()
  data = json.dumps({'data_files': {'test': str(tmp_path / 'rows.jsonl')}, 'cache_dir': str(tmp_path / 'cache')})
  (tmp_path / 'tasks' / 'ours.yaml').write_text(
    f'task: ours\ndataset_path: json\ndataset_kwargs: {data}\ntest_split: test\noutput_type: multiple_choice\n'
    'doc_to_text: "{{text}}"\ndoc_to_choice: "{{options}}"\ndoc_to_target: "{{label}}"\n'
  )
  flags = ['--tasks=ours', f'--include_path={tmp_path / "tasks"}', f'--out={tmp_path / "out.json"}', '--batch_size=2']
  assert lm_eval.main([f'--workdir={writing}', '--part=says', *flags]) == 0
  (sample,) = json.loads((tmp_path / 'out.json').read_text())['samples']['ours']
  assert all(float(answer[0][0]) < 0 for answer in sample['resps'])
  with pytest.raises(ConfigError, match=r"'say'.*says"):
    lm_eval.main([f'--workdir={writing}', '--part=say', *flags])
  with pytest.raises(ConfigError, match=r'bert.*bidirectional'):
    lm_eval.main([f'--workdir={run}', '--part=kinds', *flags])


# Rows of several sources by one adapter ------------------------------------------------------------------------------


def test_a_mixture_that_one_adapter_reads_is_asked_by_the_rows_of_a_part(data, sets, tmp_path):
  names = dict.fromkeys(('here', 'there'), sets['kinds'])
  one = settings(data, sets) | {
    'adapter': {'name': 'classify', 'classes': 2},
    'data': {'name': 'mixture', 'parts': names, 'length': 32, 'batch_size': 8},
    'best': None,
    'steps': 2,
  }
  one['eval'] = {'validation': {'data': {**one['data'], 'split': 'validation'}}}
  assert loop.train(config.resolve(one), tmp_path / 'run').result['finished']
  with pytest.raises(ConfigError, match=r'here, there.*part=NAME'):
    plm_jax.load(tmp_path / 'run').classify(TEXTS)
  assert plm_jax.load(tmp_path / 'run', part='here').classify(TEXTS[0])['label'] in KINDS


@pytest.mark.parametrize('name', sorted(set(signatures.names('objectives')) - {'multiview'}))
def test_a_run_of_one_objective_has_no_parts_of_its_own_heads(name):
  """Check that the hook's name is unique among the functions of objectives."""
  settings = {'adapter': None, 'objective': {'name': name}, 'data': {}, 'eval': {}}
  assert one_part.own_trunks(settings) == {}


def test_pictures_are_of_one_part(run: pathlib.Path, tmp_path: pathlib.Path):
  """Open a part that wraps its trunk by its name.

  The fix in the message is a flag of both commands.
  """
  asked = {
    heads: ['--text=Anna is in the market .'],
    vectors: ['--word=market', '--text=Anna is in the market .', '--text=The market is old .'],
  }
  for number, (command, words) in enumerate(asked.items()):
    words = [*(['polysemy'] if command is vectors else []), f'--workdir={run}', *words]
    out = tmp_path / f'{number}.png'
    with pytest.raises(ConfigError, match=r'places.*part=NAME'):
      command.main([*words, f'--out={out}'])
    command.main([*words, f'--out={out}', '--part=places'])
    assert out.read_bytes().startswith(b'\x89PNG')
