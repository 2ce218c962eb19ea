"""Rows that a score refuses are found before training, and a failed evaluation loses no step."""

import copy
import json
import pathlib
from typing import Any

import pytest

from plm_jax import config
from plm_jax.checkpoint import saved_steps
from plm_jax.commands import evaluate
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Labels
from plm_jax.runs import scoring
from plm_jax.training import evaluation, loop
from tests import conftest, runs

pytestmark = [pytest.mark.turns, pytest.mark.usefixtures('log')]
SHORT = {'steps': 2, 'epochs': None, 'log_every': 1, 'eval_every': 2, 'save_every': 9, 'log': (), 'init_from': ()}
FINE = {
  'qa': {'question': 'who ?', 'context': 'Anna met Bob', 'answers': {'text': ['Anna'], 'answer_start': [0]}},
  'tag': {'tokens': ['Anna', 'met'], 'tags': ['B-X', 'O']},
  'classify': {'text': 'Anna', 'label': 1},
}
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
  'qa': (FINE['qa'] | {'answers': {'text': [], 'answer_start': []}}, (), '1 of 4 questions have no answer'),
  'tag': ({'tokens': ['Anna'], 'tags': ['PER']}, ('seqeval',), 'labels named O, B-'),
  'classify': (FINE['classify'] | {'label': 2}, ('f1',), "use 'macro_f1'"),
}


def resolved(name: str, folder: pathlib.Path, data: pathlib.Path, **changes: Any) -> dict[str, Any]:
  written = config.load(f'{conftest.ROOT}/experiments/finetune/{name}.py') | SHORT
  written['vocab'] = {'name': 'byte_bpe', 'path': str(data / 'vocab')}
  written['model'] = {'name': 'bert', 'variant': 'tiny', 'overrides': runs.SIZES}
  short = {'length': 32, 'batch_size': 4, 'buckets': (), 'cache': str(data / 'cache'), 'path': str(folder)}
  written['data'] |= short | ({'stride': 8, 'question_length': 8} if name == 'qa' else {})
  return config.resolve(written | changes)


def write(folder: pathlib.Path, name: str, bad: str = '') -> pathlib.Path:
  folder.mkdir(exist_ok=True)
  for split in ('train', 'validation', 'test'):
    rows = [FINE[name]] * 3 + [BAD[name][0] if split == bad else FINE[name]]
    if name == 'classify':
      rows[0] = rows[0] | {'label': 0}
    (folder / f'{split}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return folder


@pytest.mark.parametrize('bad', ['train', 'validation', 'test'])
@pytest.mark.parametrize('name', FINE)
def test_rows_that_a_score_refuses_stop_before_training(name, bad, data, tmp_path):
  if bad == 'train' and name != 'qa':
    bad = 'validation'  # scores of an evaluation read its rows
  settings = resolved(name, write(tmp_path / 'data', name, bad), data)
  _, scores, said = BAD[name]
  if name == 'tag':  # names come from the training rows
    write(tmp_path / 'data', name, 'train')
    (tmp_path / 'data' / f'{bad}.jsonl').write_text(json.dumps(BAD[name][0]) + '\n')
  if name == 'classify':
    (tmp_path / 'data' / 'labels.json').write_text('{"label": ["a", "b", "c"]}')
  settings['eval']['test'] = copy.deepcopy(settings['eval']['validation'])
  settings['eval']['test']['data']['split'] = 'test'
  for block in settings['eval'].values():
    block['scores'] = block['scores'] if name == 'qa' else scores
  where = 'data' if bad == 'train' else rf'eval\.{bad}\.data' if name != 'tag' else r'eval\.\w+\.data'
  with pytest.raises(ConfigError, match=rf'^({where}): .*{said}'):
    loop.train(settings, tmp_path / 'run')
  assert not (tmp_path / 'run').exists()


def test_the_fix_that_is_named_works_and_evaluate_asks_too(data, tmp_path):
  folder = write(tmp_path / 'data', 'qa', 'train')
  settings = resolved('qa', folder, data)
  with pytest.raises(ConfigError, match=r'set adapter\.no_answer=True'):
    loop.train(settings, tmp_path / 'run')
  settings['adapter']['no_answer'] = True
  assert loop.train(settings, tmp_path / 'run').result['finished']
  assert loop.train(resolved('qa', write(folder, 'qa'), data), tmp_path / 'plain').result['finished']
  write(folder, 'qa', 'test')
  flags = [f'--workdir={tmp_path / "plain"}', '--config.eval.validation.data.split=test']
  with pytest.raises(ConfigError, match=r'^eval\.validation\.data: 1 of 4 questions have no answer'):
    evaluate.main(flags)


REFUSED = {
  'conll': {'names': ('O', 'PER')},
  'gender_parity': {'row': {'text': 'he is', 'idx': 0}},
  'multirc': {'row': {'idx': 3}, 'label': 1},
  'record': {'row': {'text': 'a'}, 'options': ['a']},
  'squad2': {'row': {'answers': 'none'}},
  'threshold': {'row': {'label': 2}},
  'wsc': {'row': {'label': 1}},
}


@pytest.mark.parametrize('score', REFUSED)
def test_every_score_looks_at_the_rows(score):
  record = {'labels': [0], 'places': [0], **REFUSED[score]}
  task: Any = type('Task', (), {'parts': {}, 'class_names': ()})
  with pytest.raises(ConfigError, match=f"score '({score}|squad)'"):
    scoring.check_rows((score,), Labels(rows=1, record=lambda row: record), task, where='data')


@pytest.mark.parametrize(
  ('kind', 'error'), [('causal_lm', ConfigError('a row')), ('classify', RuntimeError('RESOURCE_EXHAUSTED'))]
)
def test_a_step_is_saved_before_a_failed_evaluation_is_told(kind, error, data, tmp_path, monkeypatch):
  plateau = {'optim': {'schedule': 'plateau', 'patience': 1, 'shrink': 0.5, 'rate': 0.3}} if kind == 'causal_lm' else {}
  settings = runs.settings(kind, data, eval_every=5, save_every=100, **plateau)
  assert loop.train(settings, tmp_path / 'whole').result['finished']
  calls = []

  def failing(*args: Any, **kwargs: Any) -> Any:
    calls.append(1)
    if len(calls) in (2, 3):
      raise error
    return evaluation.evaluate(*args, **kwargs)

  monkeypatch.setattr(loop, 'evaluate', failing)
  for _ in range(2):  # the second call fails at once, and loses nothing
    with pytest.raises(type(error), match=str(error)):
      loop.train(settings, tmp_path / 'run')
    assert saved_steps.numbered(tmp_path / 'run' / 'checkpoints')[-1] == 10
  assert len(calls) == 3
  assert loop.train(settings, tmp_path / 'run').result['finished']
  assert not runs.differing(runs.saved_state(tmp_path / 'run'), runs.saved_state(tmp_path / 'whole'))
  curves = [runs.curve(tmp_path / name) for name in ('run', 'whole')]
  for ours, theirs in zip(*curves, strict=True):
    assert all(ours[key] == theirs[key] for key in theirs if '/' in key and 'tokens' not in key)
  best = [saved_steps.best_step(tmp_path / name / 'checkpoints') for name in ('run', 'whole')]
  assert best[0] == best[1] is not None
