"""Every config of `experiments/`, shrunk by `:quick`, takes two steps on a small corpus and leaves a run folder.

So does every command of `experiments/MIGRATION.md`, with its keys but for sizes and places.
"""

import json
import pathlib
import random
import re
from typing import Any

import pytest

from plm_jax import config
from plm_jax.config import overrides, signatures
from plm_jax.runs import metrics
from plm_jax.training import loop
from tests import conftest, runs, test_migration

EVALUATED = ('sts/similarity', 'blimp/pairs')  # by `plm-jax evaluate`; they are not trained
FILES = [file for file in signatures.experiment_files() if f'{file.parent.name}/{file.stem}' not in EVALUATED]
ALWAYS = 'quickstart'  # the others take turns
# keys of a command that are too large for two steps on a laptop, or name text that is not there
LARGE = re.compile(
  r'data\.(length|target_length|batch_size|path|form)|objective\.\w+_length|accumulate|steps|epochs|optim\.warmup'
  r'|model\.|\w+_every'
)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  """What `runs.write_data` writes, with singles of 8 classes, pairs of 2, words of 5, and texts to write or choose."""
  folder = runs.write_data(tmp_path_factory.mktemp('experiments'))
  draw = random.Random(2)
  held_out = [conftest.story(draw) for _ in range(64)]  # as many as the evaluations of `quick` ask for
  (folder / 'corpus' / 'validation.txt').write_text('\n\n'.join(held_out))
  for name, classes in (('singles', 8), ('pairs', 2)):
    (folder / name).mkdir()
    for split in ('train', 'validation', 'test'):
      texts = [[conftest.story(draw) for _ in range(3)] for _ in range(64)]
      rows = [{'text': a, 'summary': b[:40], 'body': c, 'label': n % classes} for n, (a, b, c) in enumerate(texts)]
      for row, (a, b, c) in zip(rows, texts, strict=True):
        row |= {'source': a, 'target': b[:40], 'context': a[:80], 'endings': [b[:20], c[:20], 'no', 'yes']}
      (folder / name / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  (folder / 'words').mkdir()
  for split in ('train', 'validation', 'test'):
    tokens = [conftest.story(draw).split() for _ in range(64)]
    rows = [{'tokens': row, 'tags': [n % 5 for n in range(len(row))]} for row in tokens]
    rows = [{**row, 'heads': [0, *[1] * (len(row['tokens']) - 1)]} for row in rows]  # all hang on the first word
    (folder / 'words' / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  for name in ('options', 'spans'):
    (folder / name).mkdir()
    for split in ('train', 'validation', 'test'):
      texts = [conftest.story(draw) for _ in range(64)]
      rows = [
        {'context': text, 'endings': text.split()[:4], 'label': n % 4}
        if name == 'options'
        else {'question': 'Who?', 'context': text, 'answers': {'text': [text[:4]], 'answer_start': [0]}}
        for n, text in enumerate(texts)
      ]
      (folder / name / f'{split}.jsonl').write_text('\n'.join(map(json.dumps, rows)) + '\n')
  return folder


@pytest.mark.parametrize(
  'file',
  [
    pytest.param(
      file, marks=[] if file.parent.name == ALWAYS else pytest.mark.slow, id=f'{file.parent.name}/{file.stem}'
    )
    for file in FILES
  ],
)
def test_quick_form_takes_two_steps(file: pathlib.Path, data: pathlib.Path, tmp_path: pathlib.Path):
  take_two_steps(config.load(f'{file}:quick'), data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
  'target',
  [
    'bert/features.py:stsb',
    'bert/superglue.py:wsc',
    'elmo/pretrain.py:cut',
    'glm/superglue.py:wsc',
    'glm/superglue.py:wic',
    't5/tasks.py:wnli',
    *(f'options/fine_tune.py:copa,{trunk}' for trunk in ('roberta', 'deberta', 'xlnet', 'gpt', 'bart', 't5')),
  ],
)
def test_quick_form_of_a_task_with_rows_of_its_own_takes_two_steps(target, data, tmp_path):
  take_two_steps(config.load(f'{conftest.ROOT}/experiments/{target},quick'), data, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('words', test_migration.COMMANDS, ids=test_migration.IDS)
def test_commands_of_the_migration_page_take_two_steps(words: list[str], data: pathlib.Path, tmp_path: pathlib.Path):
  file, _, argument = words[0].removeprefix('--config=').partition(':')
  settings = config.load(f'{file}:{argument},quick')
  keys = [word.removeprefix('--config.').partition('=') for word in words if word.startswith('--config.')]
  changes = [(key, text) for key, _, text in keys if not LARGE.match(key)]
  assert changes
  settings, _ = overrides.apply(settings, changes)
  take_two_steps(settings, data, tmp_path)


def take_two_steps(settings: dict[str, Any], data: pathlib.Path, workdir: pathlib.Path) -> None:
  settings['vocab']['path'] = str(data / 'vocab')
  sizes = {'hidden_dim': 32, 'num_heads': 2, 'mlp_dim': 64}
  known = signatures.keywords(f'models.{settings["model"]["name"]}', 'Config')
  settings['model']['overrides'] = {name: size for name, size in sizes.items() if name in known}
  for second in ('generator', 'teacher'):  # the other trunk of an objective
    if (settings['objective'] or {}).get(second):
      settings['objective'][second]['overrides'] = dict(settings['model']['overrides'])
  if settings['second_vocab']:
    settings['second_vocab']['path'] = str(data / 'vocab')
    if (settings['adapter'] or {}).get('source'):
      settings['adapter']['source']['overrides'] = dict(settings['model']['overrides'])
  for block in settings['data'].get('parts', {'': settings['data']}).values():
    if block.get('kind') in ('words', 'options', 'spans'):
      kind = block['kind']
    elif block.get('kind') in ('arcs', 'multilabel'):
      kind = 'words'
    elif block['name'] == 'text_to_text':
      kind = 'pairs'
    elif settings['objective']:
      kind = 'corpus'
    else:
      kind = 'pairs' if len(block['fields']) > 1 else 'singles'
    block |= {'path': str(data / kind), 'cache': str(data / 'cache')}
  settings |= {'steps': 2, 'epochs': None, 'log_every': 1}
  settings['optim']['warmup'] = 0
  outcome = loop.train(config.resolve(settings), workdir)
  assert outcome.exit_code == 0
  lines = metrics.read(workdir)
  assert [line['step'] for line in lines] == [1, 2]
  assert all(0 < line['loss'] < 60 for line in lines)  # ELECTRA weighs one of its terms by 50
  assert not settings['eval'] or any(name.partition('/')[0] in settings['eval'] for name in lines[-1])
