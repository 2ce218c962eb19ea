"""Zero-shot scores of a model, `plm-jax evaluate --weights`, by the config of GPT-2's language modelling."""

import gzip
import json
import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.commands import evaluate
from plm_jax.core.errors import ConfigError
from plm_jax.objectives import causal_lm
from plm_jax.text import byte_bpe, tokenizer
from plm_jax.training import loop
from tests import conftest, runs, tiny

pytestmark = pytest.mark.turns

CONFIG = pathlib.Path(__file__).resolve().parent.parent / 'experiments' / 'gpt' / 'zero_shot.py'
LENGTH = 32


@pytest.fixture(scope='module')
def released(data):
  """Build a random GPT-2 of Hugging Face with a vocabulary: (folder, model)."""
  transformers = pytest.importorskip('transformers')
  torch = pytest.importorskip('torch')
  texts = (data / 'corpus' / 'train.txt').read_text().split('\n\n')
  vocab = byte_bpe.train(texts, size=400, specials='gpt2')
  sizes = {'n_embd': 16, 'n_layer': 2, 'n_head': 2, 'n_positions': LENGTH}
  torch.manual_seed(0)
  model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=vocab.size, initializer_range=0.3, **sizes))
  words = [number for number, token in enumerate(vocab.tokens) if token[:1] == 'Ġ' and token[1:].isalpha()]
  model.transformer.wte.weight.data[words, 0] += 1
  model.transformer.ln_f.bias.data[0] = 8  # words are likely, so that some guesses are right
  model.eval().save_pretrained(data / 'released')
  vocab.save(data / 'released')
  return data / 'released', model


def score(folder, out, *flags, name='wikitext2', words=''):
  """Run the command and read the metrics of one evaluation."""
  cache = f'--config.data.cache={folder.parent / "cache"}'
  length = f'--config.eval.{name}.data.length={LENGTH}'
  argv = [f'--config={CONFIG}{words}', f'--weights={folder}', f'--workdir={out}', f'--evaluation={name}']
  assert evaluate.main([*argv, cache, f'--config.data.length={LENGTH}', length, *flags]) == 0
  [line] = map(json.loads, (out / 'evaluations.jsonl').read_text().splitlines())
  assert line['weights'] == str(folder)
  assert {'versions', 'code', 'machine'} == set(json.loads((out / 'evaluated_by.json').read_text()))
  return {key.removeprefix(f'{name}/'): value for key, value in line.items()}


def nats_and_right(model, ids):
  """Score each token except the first with Hugging Face's model."""
  import torch

  with torch.no_grad():
    logits = model(torch.tensor([ids])).logits[0, :-1].double()
  nats = -torch.log_softmax(logits, -1)[range(len(ids) - 1), ids[1:]]
  return nats.numpy(), (logits.argmax(-1).numpy() == np.array(ids[1:]))


def test_perplexity_of_a_text_is_that_of_hugging_face(released, data, tmp_path):
  folder, model = released
  text = (data / 'corpus' / 'validation.txt').read_text().strip()
  words = len(text.split())
  (tmp_path / 'set').mkdir()
  (tmp_path / 'set' / 'test.txt').write_text(text)
  path = f'--config.eval.wikitext2.data.path={tmp_path / "set"}'
  found = score(folder, tmp_path, path, f'--config.eval.wikitext2.units={words}')
  ids = tokenizer.load(folder).encode(text)
  nats = np.concatenate([nats_and_right(model, ids[at : at + LENGTH])[0] for at in range(0, len(ids), LENGTH)])
  rows = math.ceil(len(ids) / LENGTH)
  assert len(nats) == len(ids) - rows
  assert found['loss'] == pytest.approx(nats.mean(), rel=1e-5)
  assert found['perplexity'] == pytest.approx(math.exp(nats.mean()), rel=1e-4)
  assert found['unit_perplexity'] == pytest.approx(math.exp(nats.sum() / words), rel=1e-4)
  assert found['bits_per_unit'] == pytest.approx(nats.sum() / words / math.log(2), rel=1e-5)
  read = [len(tokenizer.load(folder).decode([token]).encode()) for at in range(0, len(ids), LENGTH)
          for token in ids[at + 1 : at + LENGTH]]  # fmt: skip
  assert found['bits_per_byte'] == pytest.approx(nats.sum() / math.log(2) / sum(read), rel=1e-5)


def test_last_words_are_those_of_hugging_face(released, tmp_path):
  folder, model = released
  vocab = tokenizer.load(folder)
  passages = [f'{name} went to the {place}' for name in conftest.NAMES[:5] for place in conftest.PLACES]
  guesses = []
  for number, passage in enumerate(passages):  # half of them end as the model would have it
    if number % 2:
      passage = passage.rpartition(' ')[0]
      likeliest = np.argsort(-last_logits(model, vocab.encode(passage)))
      passage += next(text for text in map(vocab.token, likeliest.tolist()) if text[:1] == 'Ġ' and text[1:].isalpha())
      passage = passage.replace('Ġ', ' ')
    guesses.append(passage)
  (tmp_path / 'set').mkdir()
  (tmp_path / 'set' / 'test.jsonl').write_text('\n'.join(json.dumps({'passage': text}) for text in guesses))
  path = f'--config.eval.lambada.data.path={tmp_path / "set"}'
  found = score(folder, tmp_path, path, name='lambada', words=':lambada')
  nats, right, tokens = [], [], 0
  for text in guesses:
    ids = vocab.encode(text)
    size = len(vocab.encode(' ' + text.rpartition(' ')[2]))
    each, correct = nats_and_right(model, ids)
    nats.append(each[-size:].sum())
    right.append(correct[-size:].all())
    tokens += size
  assert tokens > len(guesses)  # words of several tokens
  assert 0 < np.mean(right) < 1
  assert found['word_accuracy'] == pytest.approx(np.mean(right), abs=1e-6)
  assert found['nats_per_word'] == pytest.approx(np.mean(nats), rel=1e-5)
  assert found['word_perplexity'] == pytest.approx(math.exp(np.mean(nats)), rel=1e-4)
  assert found['loss'] == pytest.approx(np.sum(nats) / tokens, rel=1e-5)


def last_logits(model, ids):
  import torch

  with torch.no_grad():
    return model(torch.tensor([ids])).logits[0, -1].numpy()


@pytest.mark.slow
def test_wikitext_2(released, shared_data, tmp_path):
  """Compare two computations of bits per word on the test set."""
  folder, _ = released
  found = score(folder, tmp_path, f'--config.eval.wikitext2.data.path={shared_data("wikitext_2")}')
  with gzip.open(shared_data('wikitext_2') / 'test.txt.gz', 'rt', encoding='utf-8') as file:
    size = len(file.read().strip().encode())
  # rows of 32 leave out their first tokens
  assert found['bits_per_unit'] == pytest.approx(found['bits_per_byte'] * size / 245_569, rel=0.04)


@pytest.mark.slow
def test_a_run_has_the_scores_of_its_training(data, tmp_path):
  outcome = loop.train(runs.settings('causal_lm', data, steps=2, log_every=1), tmp_path / 'run')
  flags = (f'--config={tmp_path / "run"}', f'--weights={tmp_path / "run"}', f'--workdir={tmp_path / "scores"}')
  assert evaluate.main(flags) == 0
  line = json.loads((tmp_path / 'scores' / 'evaluations.jsonl').read_text())
  last = outcome.result['metrics']
  assert line['validation/loss'] == pytest.approx(last['validation/loss'], rel=1e-6)
  assert 'validation/unit_perplexity' not in line


def test_what_cannot_be_scored_is_said(data, tmp_path):
  with pytest.raises(ConfigError, match=r'--workdir=DIR.*--weights=FOLDER'):
    evaluate.main([f'--config={CONFIG}'])
  with pytest.raises(ConfigError, match=r'none.*folder|folder.*none'):
    evaluate.main([f'--config={CONFIG}', f'--weights={tmp_path / "none"}'])
  with pytest.raises(ConfigError, match=r'--step.*--follow'):
    evaluate.main([f'--config={CONFIG}', f'--weights={tmp_path}', '--step=3'])
  with pytest.raises(ConfigError, match=r'eval\.wikitext2\.units'):
    evaluate.main([f'--config={CONFIG}', f'--weights={tmp_path}', '--config.eval.wikitext2.units=0'])


def test_the_last_word_of_a_row():
  starts = np.zeros(10, bool)
  starts[5:] = True  # ids that begin a word
  tokens = np.array([[5, 1, 6, 2, 3, 0, 0, 0], [7, 8, 1, 9, 0, 0, 0, 0], [1, 2, 3, 0, 0, 0, 0, 0]])
  found = np.asarray(causal_lm.in_last_word(tokens, tokens > 0, starts)).astype(int).tolist()
  assert found == [[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0, 0, 0]]
  with pytest.raises(ValueError, match=r"objective\.predict='words'.*all, last_word"):
    causal_lm.make(trunk=tiny.make_trunk('gpt'), vocab=tiny.VOCAB, predict='words')


def test_a_special_token_is_no_word():
  """Score `<s> w w ## </s>` with and without the end token.

  The end token is not a word. Ids divisible by 3 continue a word.
  """
  task = causal_lm.make(trunk=tiny.make_trunk('gpt'), vocab=tiny.VOCAB, predict='last_word')
  tokens = jnp.array([[5, 10, 11, 12, 6, 0], [5, 10, 11, 12, 13, 15], [5, 10, 6, 0, 0, 0], [5, 10, 1, 6, 0, 0]])
  segments = (tokens > 0).astype(jnp.int32)
  batch = {'tokens': tokens, 'segment_ids': segments, 'row_weight': jnp.ones(4)}
  weights = task.prepare(jax.random.key(0), batch).targets['weights']
  # a token is predicted from the place before it; the unknown token is a word
  assert weights.astype(int).tolist() == [
    [0, 1, 1, 0, 0, 0],
    [0, 0, 0, 1, 1, 0],
    [1, 0, 0, 0, 0, 0],
    [0, 1, 0, 0, 0, 0],
  ]
