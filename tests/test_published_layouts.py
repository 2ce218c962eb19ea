"""Configs on files as their authors publish them, and on the sets of ../shared/data: what is read of each row.

Nothing is trained here: `tests/test_experiments_run.py` trains every config on rows of its kind.
"""

import json
import pathlib

import pytest

from plm_jax.cli import command
from plm_jax.core import errors
from plm_jax.scores import multirc, record, seqeval, squad2, superglue, wsc
from plm_jax.text import byte_bpe, tokenizer
from plm_jax.training import parts
from plm_jax.training.before import from_data
from tests import conftest

ROOT = conftest.ROOT


@pytest.fixture(scope='module')
def vocab(tmp_path_factory):
  """Provide a folder with a vocabulary of bytes."""
  folder = tmp_path_factory.mktemp('bytes') / 'vocab'
  byte_bpe.train(['a a b b'], size=270).save(folder)
  return folder


def settings_of(name, *changes):
  """Resolve a config with changes, data-dependent settings included."""
  flags = [f'--config={ROOT}/experiments/{name}', *(f'--config.{change}' for change in changes), '--workdir=w']
  return from_data.filled(command.parse(command.command('train', ''), flags)[1])


def sources_of(name, vocab, cache, *changes, train=True):
  """Return name -> examples of the evaluations of a config with changes, and the vocabulary."""
  settings = settings_of(name, *changes)
  extra = settings['vocab']['extra']
  known, second = (tokenizer.load(vocab, extra=extra), tokenizer.load(vocab) if settings['second_vocab'] else None)
  blocks = {'train': settings['data']} if train else {}
  blocks |= {name: one['data'] for name, one in settings['eval'].items()}
  return {
    name: parts.make_source({**block, 'cache': str(cache)}, known, seed=0, second_vocab=second)
    for name, block in blocks.items()
  }, known  # fmt: skip


def texts(source, vocab, key='tokens', number=0):
  """Decode an example of the first batch, or its several sequences, with special tokens."""
  batch = next(source.once())
  ids, real = batch[key][number], batch[key.replace('tokens', 'segment_ids')][number] > 0
  if ids.ndim == 1:
    return vocab.decode(ids[real], specials=True)
  return [vocab.decode(row[keep], specials=True) for row, keep in zip(ids, real, strict=True) if keep.any()]


def write(file: pathlib.Path, text) -> None:
  file.parent.mkdir(parents=True, exist_ok=True)
  file.write_text(text if isinstance(text, str) else ''.join(f'{json.dumps(row)}\n' for row in text))


# Files as they are published -----------------------------------------------------------------------------------------

SWAG = """,video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label
0,anetv_jkn,3416,He sits. He,He sits.,He,gold,"walks, slowly",eats a cake.,sings.,jumps.,0
1,anetv_xyz,3417,She reads. She,She reads.,She,gen,turns a page.,flies.,melts.,barks.,2
"""


def test_swag(vocab, tmp_path):
  for split in ('train', 'val'):
    write(tmp_path / 'swag' / f'{split}.csv', SWAG)
  for name in ('bert/choose.py:swag', 'deberta/reading.py:swag', 'options/fine_tune.py:swag,electra'):
    found, known = sources_of(name, vocab, tmp_path, f'data.path={tmp_path / "swag"}')
    assert texts(found['val'], known)[0] == '<s>He sits.</s>He walks, slowly</s>'
    assert [found['val'].record(row)['label'] for row in range(2)] == [0, 2]


def test_race(vocab, tmp_path):
  row = {
    'answers': ['B', 'D'], 'options': [['one', 'two', 'three', 'four'], ['red', 'green', 'blue', 'white']],
    'questions': ['How many?', 'Which _ ?'], 'article': 'Two white cats.', 'id': 'high1.txt',
  }  # fmt: skip
  for split in ('train', 'dev'):
    write(tmp_path / 'race' / f'{split}.jsonl', [row])
  for name in (
    'bert/choose.py:race', 'roberta/reading.py:race', 'albert/fine_tune.py:race', 'xlnet/fine_tune.py:race',
    'deberta/reading.py:race', 'gpt/choose.py:race',
  ):  # fmt: skip
    found, known = sources_of(name, vocab, tmp_path, f'data.path={tmp_path / "race"}')
    assert (found['train'].rows, [found['dev'].record(n)['label'] for n in range(2)]) == (2, [1, 3])
    assert all('Two white cats.' in text and option in text for text, option in zip(
      texts(found['dev'], known, number=1), row['options'][1], strict=True
    ))  # fmt: skip


def squad2_of(rows):
  """Add to each SQuAD question an unanswerable copy with another context."""
  articles = {}
  for row in rows:
    articles.setdefault(row['title'], {}).setdefault(row['context'], []).append(row)
  titles, data = sorted(articles), []
  for number, title in enumerate(titles):
    foreign = [row for text in articles[titles[number - 1]].values() for row in text]
    paragraphs = []
    for context, asked in articles[title].items():
      answered = [
        {
          'id': row['id'], 'question': row['question'], 'is_impossible': False,
          'answers': [
            {'text': text, 'answer_start': start} for text, start in zip(*row['answers'].values(), strict=True)
          ],
        }
        for row in asked
      ]  # fmt: skip
      moved = [
        {'id': f'{row["id"]}-moved', 'question': row['question'], 'is_impossible': True, 'answers': []}
        for row in foreign[: len(asked)]
      ]
      paragraphs.append({'context': context, 'qas': [*answered, *moved]})
    data.append({'title': title, 'paragraphs': paragraphs})
  return {'version': 'v2.0', 'data': data}


def rows_of_squad():
  """Return questions of two articles, synthetic without the shared set."""
  text = [('Rome', 'Rome lies on the Tiber.', 'Where?', 'the Tiber'), ('Oslo', 'Oslo is cold.', 'How?', 'cold')]
  return [
    {
      'id': title, 'title': title, 'context': context, 'question': question,
      'answers': {'text': [answer], 'answer_start': [context.index(answer)]},
    }
    for title, context, question, answer in text
  ]  # fmt: skip


def shared_squad(shared_data, cache):
  """Return forty questions of each of the first two shared articles."""
  from plm_jax.data.corpora import sources

  rows = list(sources.open_source(str(shared_data('squad')), split='train[:2000]', cache=cache))
  titles = list(dict.fromkeys(row['title'] for row in rows))[:2]
  return [row for title in titles for row in [one for one in rows if one['title'] == title][:40]]


@pytest.mark.parametrize('where', ['made up', 'shared'])
def test_squad_2_from_questions_that_are_moved(where, vocab, tmp_path, request):
  if where == 'made up':
    rows = rows_of_squad()
  else:
    rows = shared_squad(request.getfixturevalue('shared_data'), cache=str(tmp_path / 'cache'))
  for split in ('train-v2.0', 'dev-v2.0'):
    write(tmp_path / 'squad2' / f'{split}.json', json.dumps(squad2_of(rows)))
  places = ('data.split=train-v2.0', 'eval.validation.data.split=dev-v2.0', f'data.path={tmp_path / "squad2"}')
  for name in ('bert/squad.py:v2', 'albert/fine_tune.py:squad2', 'xlnet/squad.py', 'bart/squad.py:v2'):
    found, _ = sources_of(name, vocab, tmp_path, *places, 'data.batch_size=1')
    source, empty, predictions, records = found['validation'], 0, [], []
    for batch in source.once():
      row_id = int(batch['row_id'][0])
      kept = {**source.record(row_id), 'group': source.group(row_id)}
      start, end, context = int(batch['start'][0]), int(batch['end'][0]), batch['context'][0]
      answered = bool(kept['answers'])
      empty += not answered
      assert answered or context[start] == 3, 'no answer points at what stands for the row'
      here = answered and context[start] != 3
      score = [2.0 if here else 0.0]  # no answer scores 1
      if not here:
        start = end = int((context == 2).argmax())  # some token of the text
      predictions.append({'start': [start], 'end': [end], 'score': score, 'no_answer': 1.0})
      records.append(kept)
    assert empty >= len(rows) // 2
    scored = squad2.score(predictions, records)
    assert scored['exact_match'] == scored['has_answer_f1'] == scored['no_answer_f1'] == 100.0
    higher = squad2.score([{**one, 'no_answer': 3.0} for one in predictions], records)
    assert (higher['has_answer_f1'], higher['no_answer_f1'], higher['best_f1']) == (0.0, 100.0, 100.0)
    if where == 'shared':
      break  # one layout is enough of so many rows


CONLL = """-DOCSTART- -X- -X- O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
German JJ I-NP I-MISC

Peter NNP I-NP I-PER
Blackburn NNP I-NP I-PER

Peter NNP I-NP I-PER
Mary NNP B-NP B-PER
Oslo NNP I-NP I-LOC
"""  # IOB1: an entity begins with a B- where it touches another of its type, and with an I- elsewhere


def test_conll_2003(vocab, tmp_path):
  for split in ('train', 'validation', 'test'):
    write(tmp_path / 'conll' / f'{split}.conll', CONLL)
  names = ('O', *(f'{edge}-{kind}' for kind in ('PER', 'ORG', 'LOC', 'MISC') for edge in 'BI'))
  write(tmp_path / 'conll' / 'labels.json', json.dumps({'tags': names}))
  for name in ('tagging/fine_tune.py:conll2003,bert', 'tagging/fine_tune.py:conll2003,t5', 'bert/ner.py'):
    found, _ = sources_of(name, vocab, tmp_path, f'data.path={tmp_path / "conll"}', 'data.label=tags')
    assert found['train'].names == names
    batch = next(found['train'].once())
    assert found['train'].rows == 3
    assert [row[row >= 0].tolist() for row in batch['labels'][:3]] == [[3, 0, 7], [1, 2], [1, 1, 5]]
    records = [found['train'].record(row) for row in range(3)]
    right = [{'labels': labels} for labels in batch['labels'][:3]]
    assert seqeval.score(right, records) == {'strict_precision': 1.0, 'strict_recall': 1.0, 'strict_f1': 1.0}


def test_xsum(vocab, tmp_path):
  row = {'document': 'A long story.', 'summary': 'A story.', 'id': '1'}
  for split in ('train', 'validation', 'test'):
    write(tmp_path / 'xsum' / f'{split}.jsonl', [row])
  found, known = sources_of('bart/summarise.py:xsum', vocab, tmp_path, f'data.path={tmp_path / "xsum"}')
  assert 'A long story.' in texts(found['test'], known) and 'A story.' in texts(found['test'], known, 'target_tokens')
  assert found['test'].record(0)['references'] == ['A story.']


def test_wmt(vocab, tmp_path):
  lines = {'en': 'A dog .\nTwo cats .\n', 'de': 'Ein Hund .\nZwei Katzen .\n', 'ro': 'Un câine .\nDouă pisici .\n'}
  for split in ('train', 'back', 'newsdev2016', 'newstest2016'):
    for language, text in lines.items():
      write(tmp_path / 'wmt' / f'{split}.{language}', text)
  path = f'data.path=parallel:{tmp_path / "wmt"}'
  splits = [f'eval.{name}.data.split=newstest2016' for name in ('validation', 'test')]
  found, known = sources_of('t5/tasks.py:wmt_en_de', vocab, tmp_path, path, *splits)
  assert texts(found['test'], known).startswith('translate English to German: A dog .')
  assert found['test'].record(0)['references'] == ['Ein Hund .']
  found, known = sources_of('bart/translate.py', vocab, tmp_path, path, 'data.batch_size=2')
  assert (found['train'].rows, found['test'].rows) == (4, 2)  # real pairs and back-translations
  assert 'Douǎ pisici'.replace('ǎ', 'ă') in texts(found['test'], known, number=1)
  assert found['test'].record(1)['references'] == ['Two cats .']


MULTIRC = {
  'idx': 7,
  'version': 1.1,
  'passage': {
    'text': 'Sam ate.',
    'questions': [
      {'question': 'Who?', 'idx': 2,
       'answers': [{'text': 'Sam', 'idx': 4, 'label': 1}, {'text': 'Tom', 'idx': 5, 'label': 0}]}
    ],
  },
}  # fmt: skip
RECORD = {
  'source': 'CNN',
  'idx': 3,
  'passage': {
    'text': 'Oslo beat Rome.\n@highlight\nOslo wins',
    'entities': [{'start': 0, 'end': 3}, {'start': 10, 'end': 13}, {'start': 27, 'end': 30}],
  },
  'qas': [{'query': 'Fans of @placeholder sing', 'answers': [{'start': 0, 'end': 3, 'text': 'Oslo'}], 'idx': 9}],
}


def test_superglue(vocab, tmp_path):
  for name, row in (('multirc', MULTIRC), ('record', RECORD)):
    for split in ('train', 'val'):
      write(tmp_path / name / f'{split}.jsonl', [row])

  def change(name):
    return f'data.path=superglue:{tmp_path / name}', 'eval.validation.data.split=val'

  found, known = sources_of('deberta/superglue.py:multirc', vocab, tmp_path, *change('multirc'))
  assert texts(found['validation'], known) == '<s>Sam ate.</s>Who?</s>Sam</s>'
  found, known = sources_of('bert/superglue.py:multirc', vocab, tmp_path, *change('multirc'))
  source = found['validation']
  assert texts(source, known) == '<s>Sam ate.</s>Who?</s>Sam</s>'
  records = [source.record(row) for row in range(source.rows)]
  assert records[0]['row']['idx'] == {'paragraph': 7, 'question': 2, 'answer': 4}
  assert multirc.score([{'label': 1}, {'label': 0}], records)['exact_match'] == 100
  for name in ('bert/choose.py:record', 'deberta/superglue.py:record', 'glm/superglue.py:record', 't5/tasks.py:record'):
    found, known = sources_of(name, vocab, tmp_path, *change('record'))
    kept = found['validation'].record(0)
    assert kept['row']['entities'] == ['Oslo', 'Rome'] and kept['row']['answers'] == ['Oslo']
  found, known = sources_of('bert/choose.py:record', vocab, tmp_path, *change('record'))
  source = found['validation']
  assert texts(source, known)[1].endswith('</s>Fans of @placeholder sing Rome</s>')
  assert record.score([{'label': 0}], [source.record(0)])['f1'] == 100


def test_wic(vocab, tmp_path):
  row = {'word': 'bank', 'sentence1': 'A bank .', 'sentence2': 'The banks .', 'label': True, 'idx': 0}
  for split in ('train', 'val'):
    write(tmp_path / 'wic' / f'{split}.jsonl', [row])
  change = f'data.path={tmp_path / "wic"}', 'eval.validation.data.split=val'
  found, known = sources_of('glm/superglue.py:wic', vocab, tmp_path, *change)
  assert texts(found['train'], known) == '<s>"A bank ." / "The banks ." Similar sense of "bank"?<mask>.</s>'
  assert texts(found['train'], known, 'target_tokens').strip() == 'Yes'
  assert next(found['validation'].once())['label'][0] == 1
  found, known = sources_of('deberta/superglue.py:wic', vocab, tmp_path, *change)
  assert texts(found['train'], known) == '<s>bank</s>A bank .</s>The banks .</s>'


def test_a_test_set_of_record_has_no_answers(vocab, tmp_path):
  write(tmp_path / 'train.jsonl', [RECORD])
  asked = {name: value for name, value in RECORD['qas'][0].items() if name != 'answers'}
  write(tmp_path / 'test.jsonl', [{**RECORD, 'qas': [asked]}])
  changes = (
    f'data.path=superglue:{tmp_path}',
    *(f'eval.validation.data.{change}' for change in ('split=test', 'keep_unlabelled=True')),
  )
  for name, prediction in (('glm/superglue.py:record', {'label': 1}), ('t5/tasks.py:record', {'text': 'Rome'})):
    source = sources_of(name, vocab, tmp_path, *changes)[0]['validation']
    assert source.rows == 1 and source.unlabelled
    line = superglue.submission([prediction], [source.record(0)])
    assert json.loads(line) == {'idx': 9, 'label': 'Rome'}


WSC = {
  'text': 'Tom told Bob that he had won.',
  'target': {'span1_text': 'Tom', 'span1_index': 0, 'span2_text': 'he', 'span2_index': 4},
  'idx': 3,
}


def test_wsc(vocab, tmp_path):
  other = {**WSC, 'target': {**WSC['target'], 'span1_text': 'Bob', 'span1_index': 2}, 'idx': 4}
  for split, labels in (('train', (True, False)), ('val', (True, False)), ('test', ())):
    rows = [{**row, 'label': label} for row, label in zip((WSC, other), labels, strict=False)] or [WSC, other]
    write(tmp_path / 'wsc' / f'{split}.jsonl', rows)
  change = f'data.path=superglue:{tmp_path / "wsc"}', 'eval.validation.data.split=val'
  found, known = sources_of('bert/superglue.py:wsc', vocab, tmp_path, *change)
  source = found['validation']
  shown = ('* Tom * told Bob that # he # had won.', 'Tom told * Bob * that # he # had won.')
  assert [texts(source, known, number=row) for row in range(2)] == [f'<s>{text}</s>' for text in shown]
  assert next(source.once())['label'][:2].tolist() == [1, 0]
  sent = superglue.submission([{'label': 1}, {'label': 0}], [source.record(row) for row in range(2)])
  assert [json.loads(line)['label'] for line in sent.splitlines()] == ['True', 'False']
  changes = *change, 'eval.validation.data.split=test', 'eval.validation.data.keep_unlabelled=True'
  source = sources_of('bert/superglue.py:wsc', vocab, tmp_path, *changes)[0]['validation']
  assert source.rows == 2 and next(source.once())['label'][:2].tolist() == [-1, -1]
  found, known = sources_of('glm/superglue.py:wsc', vocab, tmp_path, *change)
  assert (found['train'].rows, found['validation'].rows) == (1, 2)
  asked = "Tom told Bob that *he* had won. The pronoun '*he*' refers to<mask>."
  assert texts(found['train'], known) == f'<s>{asked}</s>'
  assert texts(found['train'], known, 'target_tokens').strip() == 'Tom</s>'
  records = [found['validation'].record(row) for row in range(2)]
  assert wsc.score([{'text': 'Tom'}, {'text': 'Tom'}], records) == {'wsc_accuracy': 1}
  found, known = sources_of('t5/tasks.py:wsc', vocab, tmp_path, *change)
  assert texts(found['train'], known).startswith('wsc: Tom told Bob that *he* had won.')


WNLI = (
  'bert/glue.py:wnli', 'roberta/glue.py:wnli', 'albert/fine_tune.py:wnli', 'electra/glue.py:wnli',
  'deberta/glue.py:wnli', 'xlnet/fine_tune.py:wnli', 'gpt/classify.py:wnli', 'bart/glue.py:wnli',
)  # fmt: skip


def test_wnli(vocab, tmp_path):
  row = {'sentence1': 'The fish ate the worm. It was tasty.', 'idx': 0}
  rows = [{**row, 'sentence2': f'The {noun} was tasty.', 'label': label} for noun, label in (('worm', 1), ('fish', 0))]
  for split in ('train', 'validation'):
    write(tmp_path / 'wnli' / f'{split}.jsonl', rows)
    write(tmp_path / 'wsc' / f'{split}.jsonl', [{**WSC['target'], 'text': WSC['text'], 'label': 1, 'idx': 0}])
  for name in WNLI:
    found, known = sources_of(name, vocab, tmp_path, f'data.path={tmp_path / "wnli"}')
    assert next(found['validation'].once())['label'][:2].tolist() == [1, 0]
    assert row['sentence1'] in texts(found['validation'], known)
  places = f'data.path={tmp_path / "wsc"}', f'eval.validation.data.path={tmp_path / "wnli"}'
  found, known = sources_of('t5/tasks.py:wnli', vocab, tmp_path, *places)
  assert texts(found['train'], known).startswith('wsc: Tom told Bob that *he* had won.')
  assert texts(found['validation'], known).startswith('wsc: The fish ate the worm. *It* was tasty.')
  records = [found['validation'].record(number) for number in range(2)]
  assert [record['references'] for record in records] == [['The worm'], None]
  assert wsc.score([{'text': 'the worm'}, {'text': 'the worm'}], records) == {'wsc_accuracy': 1}
  assert wsc.score([{'text': 'the fish'}, {'text': 'the fish'}], records) == {'wsc_accuracy': 0}


# The shared sets -----------------------------------------------------------------------------------------------------

IN_SHARED = ('cola', 'sst2', 'mrpc', 'stsb', 'mnli', 'rte')  # of GLUE
# config: set
SHARED = {
  **{f'{family}/glue.py:{task}': f'glue_{task}' for family in ('bert', 'roberta', 'electra', 'deberta', 'bart')
     for task in IN_SHARED},
  **{f'{name}:{task}': f'glue_{task}' for name in ('albert/fine_tune.py', 'xlnet/fine_tune.py', 't5/tasks.py')
     for task in IN_SHARED},
  **{f'gpt/classify.py:{task}': f'glue_{task}' for task in ('cola', 'sst2', 'mnli', 'rte')},
  **{f'gpt/similarity.py:{task}': f'glue_{task}' for task in ('mrpc', 'stsb')},
  **{f'gpt/heuristics.py:{task}': f'glue_{task}' for task in ('cola', 'sst2')},
  **{f'{name}.py:{task}': f'glue_{task}' for name in ('roberta/cloze', 'bert/features') for task in ('sst2', 'mnli')},
  **dict.fromkeys(
    ('bert/squad.py', 'roberta/reading.py:squad1', 'albert/fine_tune.py:squad1', 'electra/squad.py:v1',
     'deberta/reading.py:squad1', 'xlnet/squad.py:v1', 'bart/squad.py:v1', 't5/tasks.py:squad'), 'squad'
  ),
  **{f'{family}/choose.py:hellaswag': 'hellaswag' for family in ('bert', 'gpt')},
  **{f'options/fine_tune.py:hellaswag,{trunk}': 'hellaswag' for trunk in ('roberta', 'xlnet', 't5')},
  **dict.fromkeys(('deberta/superglue.py:copa', 'options/fine_tune.py:copa,albert'), 'super_glue_copa'),
  **{f'gpt/prompt.py:hellaswag{shots}': 'hellaswag' for shots in ('', ',one', ',few')},
  **dict.fromkeys(
    ('bert/choose.py:copa', 'gpt/choose.py:copa', 'glm/superglue.py:copa', 't5/tasks.py:copa', 'gpt/prompt.py:copa',
     'gpt/prompt.py:copa,few'), 'super_glue_copa'
  ),
  **{f'gpt/prompt.py:lambada{shots}': 'lambada' for shots in ('', ',few')},
  **{f'tagging/fine_tune.py:wnut17,{trunk}': 'wnut_17' for trunk in ('bert', 'xlnet', 'gpt', 't5')},
  'tagging/fine_tune.py:ewt,roberta': 'universal_dependencies_en_ewt',
  **dict.fromkeys(('bart/summarise.py:scitldr', 'gpt/summarise.py:scitldr', 't5/tasks.py:scitldr'), 'scitldr_abstract'),
  'bart/translate.py:multi30k': 'multi30k_en_de',
  't5/tasks.py:multi30k': 'multi30k_en_de',
}  # fmt: skip


@pytest.mark.parametrize('name', SHARED)
def test_configs_read_the_shared_sets(name, vocab, tmp_path, shared_data):
  path = f'data.path={shared_data(SHARED[name])}'
  settings = settings_of(name, path)
  slices = [f'data.split={settings["data"]["split"]}[:24]', 'data.batch_size=8']
  slices += [f'eval.{split}.data.split={block["data"]["split"]}[:24]' for split, block in settings['eval'].items()]
  found, _ = sources_of(name, vocab, tmp_path, path, *slices)
  for source in found.values():
    assert source.rows >= 24 and next(source.once())['row_weight'].sum() == 8
    assert not source.unlabelled


# config: (set, evaluation that reads it), where `data.path` is that of a corpus
EVALUATED = {'gpt/zero_shot.py:lambada': ('lambada', 'lambada')}


@pytest.mark.parametrize('name', EVALUATED)
def test_evaluations_read_the_shared_sets(name, vocab, tmp_path, shared_data):
  folder, evaluation = EVALUATED[name]
  head = (ROOT / 'experiments' / name.partition(':')[0]).read_text()
  assert f'--config.eval.{evaluation}.data.path=../shared/data/{folder}' in head
  where = f'eval.{evaluation}.data'
  changes = f'{where}.path={shared_data(folder)}', f'{where}.split=test[:24]', f'{where}.batch_size=8'
  source = sources_of(name, vocab, tmp_path, *changes, train=False)[0][evaluation]
  assert source.rows == 24 and next(source.once())['row_weight'].sum() == 8


# Splits that copies lack ---------------------------------------------------------------------------------------------

MNLI = [{'premise': 'He sits.', 'hypothesis': 'He stands.', 'label': number % 3} for number in range(6)]
OPTIONAL = (
  'bert/glue.py:mnli', 'roberta/glue.py:mnli', 'albert/fine_tune.py:mnli', 't5/tasks.py:mnli', 'bert/features.py:mnli',
  'roberta/cloze.py:mnli',
)  # fmt: skip


@pytest.mark.parametrize('name', OPTIONAL)
def test_an_optional_split_that_a_copy_lacks_is_left_out(name, vocab, tmp_path, caplog):
  for split in ('train', 'validation_matched'):
    write(tmp_path / 'mnli' / f'{split}.jsonl', MNLI)
  path = f'data.path={tmp_path / "mnli"}'
  with caplog.at_level('INFO'):
    assert set(settings_of(name, path)['eval']) == {'validation_matched'}
  assert 'eval.validation_mismatched' in caplog.text
  write(tmp_path / 'mnli' / 'validation_mismatched.jsonl', MNLI)
  found, _ = sources_of(name, vocab, tmp_path, path, 'data.batch_size=2')
  assert {split: source.rows for split, source in found.items()} == dict.fromkeys(
    ('train', 'validation_matched', 'validation_mismatched'), 6
  )


@pytest.mark.parametrize(
  ('changes', 'lacking'),
  [
    (('eval.validation_mismatched.data.split=validation_mismached',), 'validation_mismached'),
    (('eval.validation_matched.data.split=validation_matchd',), 'validation_matchd'),
    (("best=('validation_mismatched/accuracy', 'max')",), 'validation_mismatched'),
  ],
)
def test_other_splits_that_are_not_there_are_refused(changes, lacking, vocab, tmp_path):
  for split in ('train', 'validation_matched'):
    write(tmp_path / 'mnli' / f'{split}.jsonl', MNLI)
  with pytest.raises(errors.ConfigError, match=f'split {lacking!r}'):
    sources_of('bert/glue.py:mnli', vocab, tmp_path, f'data.path={tmp_path / "mnli"}', *changes)
