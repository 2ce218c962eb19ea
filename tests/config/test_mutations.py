"""500 configs with a mistake: each is refused by one message, or complete and the same when it is read again."""

import json
import pathlib
import random

import pytest

from plm_jax import config
from plm_jax.config import overrides
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.training import loop
from tests import runs
from tests.config import mutations

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASES = (
  'bert/base', 'electra/small', 'gpt/classify', 't5/ul2', 'xlnet/base', 'glm/base', 'llama/pretrain', 'bart/glue',
  'albert/pretrain', 'bert/ner', 'quickstart/classify', 'contrastive/simcse',
)  # fmt: skip
TEXTS = (
  '-1', '0', '1e9', '1000000000', 'nan', 'inf', 'Infinity', '1e999', '', 'x', '(', 'None', '[]', '{}', '[0]', "{'': 0}",
  '[[]]', 'true', '1.5', '-', '"', "('(', 1)", '[1, "x"]', '9' * 40,
)  # fmt: skip


@pytest.fixture(scope='module')
def bases():
  return [config.resolve(config.load(f'{ROOT}/experiments/{name}.py:quick')) for name in BASES]


def told(call, *arguments):
  """The message of a refusal; '' where nothing is refused. Every other exception is a mistake of ours."""
  try:
    return '', call(*arguments)
  except ConfigError as error:
    text = str(error)
    assert text.strip() and 'Traceback' not in text
    return text, None


def test_500_configs_with_a_mistake(bases):
  draw, accepted = random.Random(9), 0
  for number in range(500):
    made = mutations.mutate(bases[number % len(bases)], draw)
    text, whole = told(config.resolve, made.config)
    if not text:
      accepted += 1
      assert config.resolve(whole) == whole, made.key
      assert json.loads(json.dumps(whole, allow_nan=False)) == whole, made.key
  assert 50 < accepted < 350  # some mistakes are none: a key left out has a default


def test_500_flags_with_a_mistake(bases):
  draw, refused = random.Random(10), 0
  for number in range(500):
    base = bases[number % len(bases)]
    key = '.'.join(map(str, draw.choice(list(mutations.places(base)))))
    if draw.random() < 0.2:
      key = draw.choice((f'{key}.x', f'{key}x', f'{key}..', '', '.', 'model.', 'lr', 'eval.x.data.split'))
    text, changed = told(overrides.apply, base, [(key, draw.choice(TEXTS))])
    text = text or told(config.resolve, changed[0])[0]
    refused += bool(text)
  assert refused > 250


def begin(settings, folder, *, changed):
  """Two steps of a run that nothing refused: they end well, or one message says why not and no folder is left."""
  try:
    outcome = loop.train({**settings, 'steps': min(settings['steps'] or 2, 2)}, folder)
  except (ConfigError, RunError) as error:
    assert str(error).strip(), changed
    return False
  assert outcome.exit_code == 0, changed
  return True


@pytest.mark.turns
@pytest.mark.parametrize('kind', ['mlm', 'classify'])
def test_what_is_accepted_starts_or_says_why_not(kind, data, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  starts(kind, data, tmp_path, count=4)


@pytest.mark.slow
@pytest.mark.parametrize('part', range(5))
@pytest.mark.parametrize('kind', ['mlm', 'causal_lm', 'permutation_lm', 'classify'])
def test_everything_that_is_accepted_starts_or_says_why_not(kind, part, data, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  starts(kind, data, tmp_path, count=125, part=part, parts=5)


def starts(kind, data, folder, *, count, part=0, parts=1):
  """Starts every `parts`-th of the first `count` configs with a mistake that are accepted."""
  base = runs.settings(kind, data, steps=2, log=(), optim={'warmup': 0})
  draw, begun, tried = random.Random(11), 0, 0
  while tried < count:
    made = mutations.mutate(base, draw)
    text, whole = told(config.resolve, made.config)
    if not text and whole != base:
      tried += 1
      if tried % parts != part:
        continue
      print(kind, made.key, made.value, flush=True)
      begun += begin(whole, folder / str(tried), changed=(made.key, made.value))
  assert begun > 0
