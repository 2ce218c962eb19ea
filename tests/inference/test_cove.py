"""CoVe from translation to its use: resume, export, mix with word vectors, probes by layer."""

import json
import random

import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.commands import convert, evaluate, probe
from plm_jax.commands import generate as generate
from plm_jax.generate import settings as generation
from plm_jax.inference import continued, translating
from plm_jax.text import words
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

BIO = ('O', 'B-name')


def write(file, rows):
  file.write_text('\n'.join(map(json.dumps, rows)) + '\n')


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """Write sentences and their reversals, labelled words, word vectors and vocabularies."""
  folder, draw = tmp_path_factory.mktemp('cove'), random.Random(0)
  texts = [f'{draw.choice(conftest.NAMES)} is in the {draw.choice(conftest.PLACES)}' for _ in range(24)]
  for name in ('parallel', 'tags'):
    (folder / name).mkdir()
  for split in ('train', 'validation'):
    write(folder / 'parallel' / f'{split}.jsonl', [{'en': text, 'de': text[::-1]} for text in texts])
    tagged = [{'tokens': text.split(), 'tags': [1, *[0] * (len(text.split()) - 1)]} for text in texts]
    write(folder / 'tags' / f'{split}.jsonl', tagged)
  known = words.train(texts, size=60, min_frequency=1)
  known.save(folder / 'en')
  words.train([text[::-1] for text in texts], size=60, min_frequency=1).save(folder / 'de')
  numbers = np.random.default_rng(0).normal(size=(known.size, 8))
  lines = [' '.join([word, *map(str, row)]) for word, row in zip(known.tokens, numbers, strict=True)]
  (folder / 'vectors.txt').write_text('\n'.join(lines[5:]) + '\n')
  return folder


def settings(data, **changes):
  return {
    'steps': 6, 'log_every': 2, 'eval_every': 6, 'save_every': 3,
    'vocab': {'name': 'words', 'path': str(data / 'en')},
    'model': {'name': 'cove', 'variant': 'tiny', 'overrides': {'word_dim': 8, 'hidden_dim': 16}},
    'data': {'length': 16, 'batch_size': 8, 'cache': str(data / 'cache')},
    'optim': {'name': 'adamw', 'rate': 1e-2, 'schedule': 'constant', 'warmup': 0},
    'eval': {'validation': {'data': {'split': 'validation'}}},
    **changes,
  }  # fmt: skip


def pairs_of(data):
  form = {'name': 'template', 'inputs': '{en}', 'target': '{de}'}
  rows = {'name': 'text_to_text', 'path': str(data / 'parallel'), 'form': form, 'second': 'targets'}
  return rows | {'layout': 'bare', 'target_layout': 'text', 'cache': str(data / 'cache')}


@pytest.fixture(scope='module')
def translated(data):
  plain = settings(
    data,
    second_vocab={'name': 'words', 'path': str(data / 'de')},
    objective={'name': 'translate', 'word_dim': 8, 'decoding': {'method': 'greedy', 'max_new': 4}},
    init_from=({'source': str(data / 'vectors.txt'), 'from_': '', 'to': 'trunk/token_embed'},),
  )
  plain['data'] |= pairs_of(data)
  plain['eval']['validation']['scores'] = ()
  return runs.gone_on(config.resolve(plain), data / 'COVE')


def test_what_is_saved_by_itself_says_the_same_as_the_run(translated, tmp_path):
  assert convert.main(['export', str(translated), str(tmp_path / 'out'), '--form=own', '--step=newest']) == 0
  texts = ['Anna is in the kitchen', 'Boris is in the zog']
  ours, theirs = (plm_jax.load(folder).encode(texts, pool='mean') for folder in (translated, tmp_path / 'out'))
  np.testing.assert_array_equal(ours, theirs)
  assert np.abs(ours[0] - ours[1]).max() > 1e-4


def test_what_is_generated_is_what_an_evaluation_writes(translated, tmp_path, capsys):
  """Compare generated texts with those of an evaluation.

  Prompts use the first vocabulary, generated texts the second.
  """
  file = tmp_path / 'translations.jsonl'
  scored = [f'--predictions={file}', "--config.eval.validation.scores=('bleu',)"]
  assert evaluate.main([f'--workdir={translated}', *scored]) == 0
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  asked, wanted = [row['record']['inputs'] for row in rows], [row['text'] for row in rows]
  model = plm_jax.load(translated)
  assert [text.strip() for text in model.generate(asked, max_new=4)] == wanted
  given = {**generation.DEFAULTS, 'max_new': 4}
  scores = [one.score for (one,) in continued.write(translating.writer(model.folder), asked, given)]
  np.testing.assert_allclose(scores, [row['score'] for row in rows], rtol=1e-5)  # as of rows without special tokens
  made = model.generate(asked, max_new=4, min_new=3)
  known = {word for text in asked for word in text[::-1].split()}
  assert all(made) and {word for text in made for word in text.split()} <= known
  assert model.generate(asked[:2], method='sample', num_samples=2, max_new=4)[0]
  assert generate.main([f'--workdir={translated}', f'--prompt={asked[0]}', '--max_new=4', '--trace=2']) == 0
  said = capsys.readouterr().out
  assert wanted[0] in said and 'taken' in said
  assert np.asarray(model.encode(asked[0])).shape == (16,)  # the encoder, as without generation


def test_a_translator_learns_from_texts_without_a_translation(data, tmp_path, capsys):
  """Train with monolingual texts, killed and resumed bit for bit.

  Its part generates the same texts as an evaluation of the run.
  """
  parts = {'pairs': pairs_of(data), 'text': {'name': 'labelled', 'path': str(data / 'tags'), 'layout': 'bare'}}
  parts['text'] |= {'kind': 'words', 'fields': ('tokens',), 'label': 'tags', 'cache': str(data / 'cache')}
  objective = {'name': 'translate_views', 'word_dim': 8, 'scores': {'pairs': ('bleu',)}, 'search': {'max_new': 4}}
  plain = settings(data, second_vocab={'name': 'words', 'path': str(data / 'de')}, objective=objective)
  plain['objective']['decoding'] = {'method': 'greedy', 'max_new': 4}
  plain['data'] = {'name': 'mixture', 'per': 'step', 'alternate': 'text', 'parts': parts, 'length': 16, 'batch_size': 8}
  stopped = runs.gone_on(config.resolve(plain), tmp_path / 'VIEWS')
  last = json.loads((stopped / 'metrics.jsonl').read_text().splitlines()[-1])
  assert {'validation/pairs/bleu', 'validation/pairs/loss', 'validation/text/future'} <= set(last)
  file = tmp_path / 'translations.jsonl'
  assert evaluate.main([f'--workdir={stopped}', '--part=pairs', f'--predictions={file}']) == 0
  rows = [json.loads(line) for line in file.read_text().splitlines()]
  model = plm_jax.load(stopped, part='pairs')
  written = [text.strip() for text in model.generate([row['record']['inputs'] for row in rows], max_new=4)]
  assert written == [row['text'] for row in rows]
  assert generate.main([f'--workdir={stopped}', '--part=pairs', '--prompt=Anna is in the kitchen']) == 0
  assert capsys.readouterr().out


def tagging(data, translated, adapter):
  rows = {'name': 'labelled', 'path': str(data / 'tags'), 'layout': 'bare', 'kind': 'words'}
  start = ({'source': str(translated), 'from_': 'trunk', 'to': 'trunk'},)
  plain = settings(data, adapter=adapter, best=('validation/accuracy', 'max'), init_from=start)
  plain['data'] |= {**rows, 'fields': ('tokens',), 'label': 'tags'}
  return plain


def test_a_word_is_its_vector_beside_its_states(data, translated):
  adapter = {'name': 'scalar_mix', 'vectors': 8, 'layers': (-1,), 'lstm_layers': 1, 'lstm_dim': 8}
  plain = tagging(data, translated, {**adapter, 'inner': {'name': 'tag', 'tags': BIO}})
  beside = {'source': str(translated), 'from_': 'trunk/token_embed', 'to': 'trunk/vectors'}
  scale = (('trunk/(scalar_mix|task_lstm)/.*', 1.0), ('trunk/.*', None), ('.*', 1.0))
  plain |= {'init_from': (*plain['init_from'], beside), 'optim': {**plain['optim'], 'scale': scale}}
  assert loop.train(config.resolve(plain), data / 'TAGS').exit_code == loop.DONE
  before, after = (runs.params_of(runs.saved_state(run)) for run in (translated, data / 'TAGS'))
  table = before['params/trunk/token_embed/table']
  np.testing.assert_array_equal(after['params/trunk/vectors/table'], table)
  np.testing.assert_array_equal(after['params/trunk/token_embed/table'], table)
  assert after['params/trunk/task_lstm/layer_0/input/kernel'].shape[0] == 8 + 16  # [GloVe(x); CoVe(x)]
  asked = plm_jax.load(data / 'TAGS').tag([['Anna', 'is', 'here']])
  assert [word['word'] for word in asked[0]] == ['Anna', 'is', 'here']


def test_each_layer_is_probed(data, translated, tmp_path):
  plain = tagging(data, translated, {'name': 'tag', 'tags': BIO})
  file = runs.write_config(tmp_path / 'config.json', config.resolve(plain))
  assert probe.main([f'--config={file}', f'--workdir={tmp_path / "probe"}', '--layers=0,2,mix']) == 0
  rows = json.loads((tmp_path / 'probe' / 'table.json').read_text())['rows']
  assert [row['layer'] for row in rows] == [0, 2, 'mix'] and (tmp_path / 'probe' / 'layers.png').stat().st_size > 1000
