"""Messages about a person's own data: the fix that they name, followed word for word, works."""

import ast
import gzip
import json
import re
import subprocess

import pytest

from plm_jax import config
from plm_jax.config import overrides
from plm_jax.core.errors import ConfigError
from plm_jax.data import labelled
from plm_jax.data.corpora import sources
from plm_jax.training.before import from_data
from tests import conftest
from tests.data import small

COLA = [
  ('gj04', '1', '', "Our friends won't buy this analysis, let alone the next one we propose."),
  ('gj04', '1', '', 'One more pseudo generalization and I am giving up.'),
  ('gj04', '0', '*', 'The more we study verbs, the crazier they get it.'),
  ('bc01', '0', '*', 'Day by day the facts are getting murkier is it.'),
]
CONLL = 'Anna B-PER\nmet O\n\nBob B-PER\nleft O\n\nAnna B-PER\n\nBob B-PER\n'
SQUAD = {
  'version': '1.1',
  'data': [
    {
      'title': 't',
      'paragraphs': [
        {
          'context': 'Anna met Bob',
          'qas': [
            {'id': str(k), 'question': 'who', 'answers': [{'text': 'Anna', 'answer_start': 0}]} for k in range(4)
          ],
        }
      ],
    }
  ],
}
ROWS = [{'text': f'good {k}', 'label': 'xy'[k % 2]} for k in range(4)]


def tabs(rows, mark='\t'):
  return '\n'.join(mark.join(row) for row in rows) + '\n'


CASES = {  # config, name of the file, content, examples, and whether it is read without a fix
  'cola': ('classify', 'a.tsv', tabs(COLA), 4, False),
  'cola as csv': (
    'classify',
    'a.csv',
    tabs(((k, label, *rest, f'"{text}"') for k, label, *rest, text in COLA), ','),
    4,
    False,
  ),
  'cola zipped': ('classify', 'a.tsv.gz', tabs(COLA), 4, False),
  'cola with a blank': ('classify', 'my file.tsv', tabs(COLA), 4, False),
  'a text and a number': ('classify', 'a.tsv', 'hide new secretions\t0\nit is good\t1\nno\t0\n', 3, False),
  'a number and a text': ('classify', 'a.csv', '3,bad\n1,so\n2,is good\n1,no\n', 4, False),
  'a text and a name': ('classify', 'a.tsv', 'it is good\tpos\nit is bad\tneg\nso\tpos\n', 3, False),
  'ag news': (
    'pair',
    'a.csv',
    '"1","it is good","it is, bad"\n"1","a b c d","e f g"\n"0","it is so","it is no"\n',
    3,
    False,
  ),
  'a pair': ('pair', 'a.tsv', 'it is good\tit is bad\tno\na b c d\te f g\tyes\nit is so\tit is no\tno\n', 3, False),
  'semicolons': ('classify', 'a.csv', 'text;label\na, b;x\nc;y\n', 2, True),
  'case': ('classify', 'a.csv', 'Text,Label\na,x\nb,y\n', 2, True),
  'names': ('classify', 'a.csv', 'review,Sentiment\na,x\nb,y\n', 2, True),
  'pairs by case': ('pair', 'a.csv', 'Premise,Hypothesis,LABEL\na,b,x\nb,c,y\n', 2, True),
  'other names': ('classify', 'a.csv', 'comment,verdict\na b,x\nb c,y\nc,x\n', 3, False),
  'other names, swapped': ('classify', 'a.csv', 'verdict,comment\nx,a b\ny,b c\nx,c\n', 3, False),
  'ends of old Macs': ('classify', 'a.csv', 'text,label\ra b,x\rb c,y\r', 2, False),
  'ends of old Macs in lines': ('classify', 'a.jsonl', '\r'.join(map(json.dumps, ROWS)), 4, False),
  'ends of old Macs in conll': ('tag', 'a.conll', CONLL.replace('\n', '\r'), 4, False),
  'questions by case': ('qa', 'a.csv', 'Question,Context,Answer,Answer_Start\nwho,Anna met,Anna,0\n', 1, False),
  'questions on passages': ('qa', 'a.csv', 'Question,Passage,Answer,Answer_Start\nwho,Anna met,Anna,0\n', 1, False),
  'conll': ('tag', 'a.txt', CONLL, 4, False),
  'conll as tsv': ('tag', 'a.tsv', CONLL.replace(' ', '\t'), 4, False),
  'squad': ('qa', 'a.jsonl', json.dumps(SQUAD), 4, False),
  'squad without version': ('qa', 'a.jsonl', json.dumps({'data': SQUAD['data']}), 4, False),
  'squad in lines': ('qa', 'a.jsonl', json.dumps(SQUAD, indent=1), 4, False),
  'lines': ('classify', 'a.json', ''.join(json.dumps(row) + '\n' for row in ROWS), 4, False),
  'lines zipped': ('classify', 'a.json.gz', ''.join(json.dumps(row) + '\n' for row in ROWS), 4, False),
  'list': ('classify', 'a.json', json.dumps(ROWS, indent=1), 4, True),
  'list as lines': ('classify', 'a.jsonl', json.dumps(ROWS), 4, False),
}


def found(name, place, **changes):
  read = config.resolve(config.load(f'{conftest.ROOT}/experiments/finetune/{name}.py'))
  read['data'] |= {
    'path': str(place),
    'split': 'train',
    'layout': 'bert',
    'cache': str(place.parent / 'cache'),
  } | changes
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(from_data, '_with_classes', lambda adapter, *rest: adapter)
    patch.setattr(from_data, '_fill_layout', lambda *given: None)
    return from_data.filled(read)['data']


def followed(name, folder, place):
  """Do what the message says, at most twice."""
  changes = {}
  for _ in range(3):
    try:
      read = found(name, place, **changes)
      keys = ('path', 'kind', 'fields', 'label', 'cache')
      return labelled.look(**{key: read[key] for key in keys}), read
    except (ConfigError, ValueError) as error:
      said = str(error)
    assert len(said) <= 240 + 2 * len(str(place)), said
    if commands := re.search(r'((gunzip|mv|sed) .*)$', said):
      subprocess.run(commands[1], shell=True, check=True, cwd=folder)
      (place,) = (file for file in folder.iterdir() if file.name != 'cache')
    else:
      key, value = re.search(r'--config\.data\.(\w+)=("[^"]+"|\w+)', said).groups()
      changes[key] = ast.literal_eval(value[1:-1]) if value.startswith('"(') else value.strip('"')
  raise AssertionError(said)


@pytest.mark.parametrize('case', CASES)
def test_the_fix_works(case, tmp_path):
  name, file, content, count, at_once = CASES[case]
  place = tmp_path / file
  place.write_bytes(gzip.compress(content.encode()) if file.endswith('.gz') else content.encode())
  if at_once:
    read = found(name, place)
    assert read['label'].lower() in ('label', 'sentiment')
  labels, read = followed(name, tmp_path, place)
  assert labels.rows == count  # the fix loses no example
  if name in ('classify', 'pair') and 'number and' not in case:
    assert labels.classes == 2 and len(read['fields']) == 1 + (name == 'pair')


def test_a_file_that_is_one_object_is_told(tmp_path):
  (tmp_path / 'a.json').write_text(json.dumps({'text': {'0': 'a'}, 'label': {'0': 1}}))  # pandas without orient
  with pytest.raises(ValueError, match=r"neither a list of objects.*orient='records'.*SQuAD"):
    sources.open_source(str(tmp_path / 'a.json'), cache=str(tmp_path / 'cache'))
  (tmp_path / 'a.txt').write_text('only text\n')
  with pytest.raises(ConfigError, match=r"one field, text, and none for labels.*'text,label'"):
    found('classify', tmp_path / 'a.txt')


def test_words_are_no_tags_of_themselves(tmp_path):
  for number, content in enumerate(('Anna\nmet\n\nBob\n', CONLL.replace(' ', ','))):
    place = tmp_path / f'{number}.conll'
    place.write_text(content)
    with pytest.raises(ConfigError, match=r'fields text, tokens, and none of them holds labels.*blank or a tab'):
      found('tag', place)


def test_characters_with_tags_name_the_setting(tmp_path):
  small.write_rows(tmp_path / 'a.jsonl', [{'text': '王小在play', 'tags': ['B-PER', 'I-PER', 'O', 'O']}])
  read = found('tag', tmp_path / 'a.jsonl')
  asked = {key: read[key] for key in ('path', 'kind', 'fields', 'label', 'cache')}
  with pytest.raises(ValueError, match=r'set data\.words=script'):
    labelled.look(**asked)
  assert labelled.look(**asked, words='script').names == ('B-PER', 'I-PER', 'O')


def test_fields_that_the_first_row_lacks_are_found(tmp_path):
  for name in ('text', 'label'):
    place = tmp_path / f'{name}.jsonl'
    small.write_rows(place, [{key: value for key, value in ROWS[0].items() if key != name}, *ROWS])
    read = found('classify', place)
    assert (read['fields'], read['label']) == (['text'], 'label')
    with pytest.raises(ValueError, match=f'line 1: .*no field {name!r}'):
      labelled.look(**{key: read[key] for key in ('path', 'kind', 'fields', 'label', 'cache')})
  place.write_text('text,joy,fear\na b,x,\nc d,,\ne f,x,x\n')
  place = place.rename(tmp_path / 'a.csv')
  with pytest.raises(ConfigError, match=r'as in --config\.data\.label="{joy\|fear}"'):
    found('several_labels', place)


@pytest.mark.parametrize(
  ('key', 'said'),
  [
    ('tokenizer.model_max_length', 'did you mean data.length?'),
    ('tokenizer.max_length', 'did you mean data.length or'),
    ('optimizer.lr', 'did you mean optim.rate?'),
    ('trainer.max_steps', 'did you mean steps?'),
    ('trainer.args.num_train_epochs', 'did you mean epochs?'),
    ('model.config.hidden_size', 'did you mean model.overrides.hidden_dim?'),
    ('tokenizer.padding_side', 'nothing to set'),
    ('tokenizer.do_lower_case', 'property of the vocabulary'),
    ('tokenizer.nonsense', 'did you mean vocab.path?'),
  ],
)
def test_a_key_within_an_unknown_one_is_told(key, said):
  read = config.load(f'{conftest.ROOT}/experiments/finetune/classify.py')
  with pytest.raises(ConfigError, match=re.escape(said)) as error:
    overrides.apply(read, [(key, '128')])
  assert key.split('.')[0] in str(error.value)
  *parents, last = key.split('.')
  nested: dict = {last: 128}
  for parent in reversed(parents[1:]):
    nested = {parent: nested}
  if parents[0] != 'model':
    with pytest.raises(ConfigError, match=re.escape('unknown key')):
      config.resolve(read | {parents[0]: nested})
