"""A parser: trained, scored, applied to new sentences in Python and by files, alone and in multi-view training."""

import json
import random

import pytest

import plm_jax
from plm_jax import config
from plm_jax.commands import evaluate, predict
from plm_jax.core.errors import ConfigError
from plm_jax.text import words
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

HEADS = [2, 0, 5, 5, 2]  # Anna is in the kitchen
DEPREL = ['subject', 'root', 'case', 'det', 'place']
SIZES = {'word_dim': 8, 'char_dim': 4, 'filters': (0, 4), 'hidden_dim': 16, 'mlp_dims': (12, 8)}


@pytest.fixture(scope='module')
def trees(tmp_path_factory):
  """Write sentences of five or six words, and their vocabulary."""
  folder, draw = tmp_path_factory.mktemp('trees'), random.Random(0)
  rows = []
  for number in range(24):
    tokens = [draw.choice(conftest.NAMES), 'is', 'in', 'the', draw.choice(conftest.PLACES)]
    row = {'tokens': tokens, 'head': HEADS, 'deprel': DEPREL}
    if number % 2:
      moved = [head + 1 if head else 0 for head in HEADS]
      row = {'tokens': ['Today', *tokens], 'head': [3, *moved], 'deprel': ['when', *DEPREL]}
    rows.append(row)
  (folder / 'trees').mkdir()
  for split in ('train', 'validation'):
    (folder / 'trees' / f'{split}.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  words.train([' '.join(row['tokens']) for row in rows], size=60, min_frequency=1).save(folder / 'vocab')
  return folder


def settings(folder, **changes):
  return {
    'steps': 60, 'log_every': 20, 'eval_every': 60, 'save_every': 60,
    'vocab': {'name': 'words', 'path': str(folder / 'vocab')},
    'model': {'name': 'cvt', 'variant': 'tiny', 'overrides': SIZES},
    'optim': {'name': 'adamw', 'rate': 2e-2, 'schedule': 'constant', 'warmup': 0},
    **changes,
  }  # fmt: skip


def rows_of(folder, **kind):
  found = {'name': 'labelled', 'kind': 'arcs', 'fields': ('tokens', 'head'), 'label': 'deprel', 'layout': 'plain'}
  return found | {'path': str(folder / 'trees'), 'cache': str(folder / 'cache')} | kind


@pytest.fixture(scope='module')
def parser(trees):
  """Train a run whose relations come from its data."""
  adapter = {'name': 'parse', 'layers': (-2, -1), 'width': 8, 'dropout': 0.0, 'init_std': 0.2}
  data = {**rows_of(trees), 'length': 16, 'batch_size': 8}
  held_out = {'data': {'split': 'validation'}, 'scores': ('attachment',)}
  one = settings(trees, adapter=adapter, data=data, eval={'validation': held_out}, best=('validation/las', 'max'))
  outcome = loop.train(config.resolve(one), trees / 'PARSER')
  measured = outcome.result['metrics']
  assert measured['validation/las'] > 0.95
  assert measured['validation/universal_las'] >= measured['validation/las']
  return trees / 'PARSER'


def test_new_sentences_are_parsed(parser):
  model = plm_jax.load(parser)
  found = model.parse('Boris is in the garden')
  assert [(one['head'], one['relation']) for one in found] == list(zip(HEADS, DEPREL, strict=True))
  assert [one['word'] for one in found] == ['Boris', 'is', 'in', 'the', 'garden']
  assert (found[4]['start'], found[4]['end']) == (16, 22) and 0.5 < found[4]['probability'] <= 1
  both = model.parse([['Today', 'Anna', 'is', 'in', 'the', 'kitchen'], []])
  assert [one['head'] for one in both[0]] == [3, 3, 0, 6, 6, 3] and both[1] == []
  with pytest.raises(ConfigError, match=r'parse: text 1\b.*\b40 tokens.*\b14\b'):
    model.parse(['Anna is here', 'so ' * 40])
  with pytest.raises(ConfigError, match=r"tag.*adapter.*'tag'"):
    model.tag('Anna')


def test_files_get_arcs_as_conllu_writes_them(parser, trees, tmp_path, capsys):
  file, out = tmp_path / 'new.jsonl', tmp_path / 'out.jsonl'
  # heads that stand there are not read, whatever they are
  file.write_text('{"tokens": ["Anna", "is", "in", "the", "kitchen"], "head": [9, "?"]}\n{"tokens": []}\n')
  assert predict.main([f'--workdir={parser}', f'--file={file}', f'--out={out}']) == 0
  rows = [json.loads(line) for line in out.read_text().splitlines()]
  assert rows[0]['prediction'] == ['2:subject', '0:root', '5:case', '5:det', '2:place']
  assert len(rows[0]['probability']) == 5 and rows[1]['prediction'] == []
  predictions = tmp_path / 'predictions.jsonl'
  asked = [f'--workdir={parser}', '--evaluation=validation', f'--predictions={predictions}']
  assert evaluate.main(asked) == 0
  row = json.loads(predictions.read_text().splitlines()[0])
  assert row['arcs'] == [f'{head}:{name}' for head, name in zip(HEADS, DEPREL, strict=True)], row
  capsys.readouterr()
  assert evaluate.main(['--score', str(predictions)]) == 0
  assert {'uas 1', 'las 1'} <= {*capsys.readouterr().out.splitlines()}, 'a file is scored as its evaluation was'


@pytest.mark.parametrize(('name', 'text'), [('a.txt', 'Anna is in'), ('a.jsonl', '{"words": ["Anna", "is", "in"]}\n')])
def test_words_stand_in_any_field_that_a_tagger_finds(parser, tmp_path, name, text):
  (tmp_path / name).write_text(text)
  out = tmp_path / 'out.jsonl'
  assert predict.main([f'--workdir={parser}', f'--file={tmp_path / name}', f'--out={out}']) == 0
  assert len(json.loads(out.read_text())['prediction']) == 3


@pytest.mark.slow
def test_a_parser_and_a_tagger_learn_from_sentences_without_trees(trees, tmp_path):
  parts = {
    'arcs': rows_of(trees),
    'names': rows_of(trees, kind='words', fields=('tokens',)),
    'text': rows_of(trees, kind='words', fields=('tokens',)),
  }
  relations = tuple(sorted({*DEPREL, 'when'}))
  objective = {'name': 'multiview', 'tags': {'names': relations}, 'relations': {'arcs': relations}}
  one = settings(
    trees,
    objective={**objective, 'hidden': 8, 'arc_width': 8, 'layers': (-2, -1), 'init_std': 0.2},
    data={'name': 'mixture', 'per': 'step', 'alternate': 'text', 'parts': parts, 'length': 16, 'batch_size': 8},
    eval={'validation': {'data': {'parts': {name: {**part, 'split': 'validation'} for name, part in parts.items()}}}},
    best=('validation/arcs/las', 'max'),
    steps=120,
    eval_every=120,
  )
  outcome = loop.train(config.resolve(one), tmp_path)
  measured = outcome.result['metrics']
  assert measured['validation/arcs/las'] > 0.9 and measured['validation/names/accuracy'] > 0.9
  assert [head['head'] for head in plm_jax.load(tmp_path, part='arcs').parse('Anna is in the garden')] == HEADS
  assert plm_jax.load(tmp_path, part='names').tag('Anna is in the garden')[1]['tag'] == 'root'
  assert runs.params_of(runs.saved_state(tmp_path))
