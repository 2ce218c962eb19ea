"""Models for lm-evaluation-harness, compared with its own `hf` models of the same folder."""

import json
import random
import types

import numpy as np
import pytest

from plm_jax.config import build
from plm_jax.core.errors import ConfigError
from plm_jax.generate import conventions
from plm_jax.inference import opened
from plm_jax.text import byte_bpe, tokenizer
from tests import conftest

lm_eval = pytest.importorskip('lm_eval', reason='needs the extra lm_eval: bash launch/setup.sh lm_eval')
from plm_jax.inference import harness  # noqa: E402  # imports the harness

pytestmark = pytest.mark.turns

POSITIONS = 48
KINDS = ('gpt2', *(pytest.param(kind, marks=pytest.mark.slow) for kind in ('bart', 'llama', 't5')))
# context, continuation: in the middle of a word, with spaces at the seam, without a context, longer than the model
ANNA = 'Anna went to the garden and then Peter came'
PAIRS = (
  (ANNA, ' to the river.'),
  ('Anna went to the gar', 'den'),
  ('Anna  ', 'went home'),
  ('', 'Anna went home.'),
  ('In the morning', ' one'),
  (f'{ANNA}. ' * 9, ' to the river.'),
  (ANNA, ' home'),
)


def make_release(folder, kind, *, positions=POSITIONS):
  """Build a random Hugging Face model with a small vocabulary."""
  import torch
  import transformers as t

  draw = random.Random(0)
  vocab = byte_bpe.train([conftest.story(draw) for _ in range(40)], size=400, specials='gpt2')
  vocab.save(folder)
  eos = vocab.eos_id
  named = dict.fromkeys(('eos_token', 'bos_token'), vocab.token(eos))
  named['tokenizer_class'] = 'PreTrainedTokenizerFast'
  (folder / 'tokenizer_config.json').write_text(json.dumps(named))
  torch.manual_seed(0)
  ids = {'vocab_size': vocab.size, 'eos_token_id': eos, 'pad_token_id': eos}
  two = {'d_model': 16, 'decoder_start_token_id': eos, **ids}
  if kind == 'gpt2':
    config = t.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=positions, bos_token_id=eos, **ids)
  elif kind == 'llama':
    sizes = {'hidden_size': 16, 'intermediate_size': 24, 'num_hidden_layers': 2, 'num_attention_heads': 2}
    config = t.LlamaConfig(max_position_embeddings=positions, bos_token_id=eos, **sizes, **ids)
  elif kind == 't5':
    config = t.T5Config(d_kv=8, d_ff=24, num_layers=2, num_heads=2, **two)
  else:
    sides = {f'{side}_{name}': size for side in ('encoder', 'decoder')
             for name, size in (('layers', 2), ('attention_heads', 2), ('ffn_dim', 24))}  # fmt: skip
    config = t.BartConfig(max_position_embeddings=positions, bos_token_id=eos, forced_eos_token_id=None, **sides, **two)
  auto = t.AutoModelForSeq2SeqLM if kind in ('t5', 'bart') else t.AutoModelForCausalLM
  model = auto.from_config(config).eval()
  draw = torch.Generator().manual_seed(1)
  for parameter in model.parameters():  # large enough for tokens to differ
    parameter.data += 0.3 * torch.randn(parameter.shape, generator=draw)
  model.save_pretrained(folder)
  return folder


@pytest.fixture(scope='module', params=KINDS)
def both(request, tmp_path_factory):
  """Open one folder as our model and as theirs."""
  pytest.importorskip('torch')
  pytest.importorskip('transformers')
  from lm_eval.models.huggingface import HFLM

  folder = make_release(tmp_path_factory.mktemp(request.param), request.param)
  theirs = HFLM(pretrained=str(folder), device='cpu', batch_size=1, dtype='float32', max_length=POSITIONS)
  return make_model(folder), theirs


def make_model(folder, **settings):
  return harness.Model(opened.open(folder), **{'batch_size': 3, 'max_length': POSITIONS, **settings})


def requests_of(rows):
  return [
    lm_eval.api.instance.Instance(request_type='any', doc={}, arguments=tuple(row), idx=number)
    for number, row in enumerate(rows)
  ]


def test_log_likelihoods_are_those_of_their_model(both):
  ours, theirs = (model.loglikelihood(requests_of(PAIRS), disable_tqdm=True) for model in both)
  np.testing.assert_allclose([total for total, _ in ours], [total for total, _ in theirs], rtol=1e-4, atol=1e-4)
  assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_a_continuation_that_merges_with_its_context_is_scored_alone(both):
  ours, theirs = both
  words = [token for token in ours._opened.vocab.tokens if token.isalpha() and len(token) > 3][:4]
  pairs = [(word[:cut], word[cut:]) for word in words for cut in (1, 2, len(word) - 1)] + [
    ('  ', words[0]),
    (' \n', ' a'),
  ]
  assert ours.backend == 'seq2seq' or any(
    len(ours.tok_encode(''.join(pair))) == len(ours.tok_encode(pair[0])) for pair in pairs
  )
  encoded = []
  for context, continuation in pairs:  # the texts alone where they join to nothing of their own
    before, after = theirs._encode_pair(context, continuation)
    after = after or theirs.tok_encode(continuation, add_special_tokens=False)
    encoded.append(((context, continuation), before or [theirs.prefix_token_id], after))
  # one at a time: their cache of logits confuses pairs that share all tokens but the last
  expected = [theirs._loglikelihood_tokens([each], disable_tqdm=True)[0] for each in encoded]
  found = ours.loglikelihood(requests_of(pairs))
  np.testing.assert_allclose([total for total, _ in found], [total for total, _ in expected], rtol=1e-4, atol=1e-4)
  assert [greedy for _, greedy in found] == [greedy for _, greedy in expected] and all(total < 0 for total, _ in found)


@pytest.mark.parametrize('kind', ['wordpiece', 'sentencepiece'])
def test_every_continuation_has_a_token_or_is_refused(tmp_path, kind):
  texts = [conftest.story(random.Random(seed)) for seed in range(30)]
  module = build.import_file(f'text.{kind}')
  module.train(texts, size=300).save(tmp_path)
  vocab = tokenizer.load(tmp_path)
  model = object.__new__(harness.Model)
  special = conventions.tokens(vocab, {}, {'start': None, 'first': None, 'last': None}, {}, kind='causal')
  model.backend, model._opened = 'causal', types.SimpleNamespace(vocab=vocab)
  model._encode = conventions.Encoder(vocab, tmp_path, special, kind='causal', published=False)
  for text in ('Ans', 'Anna went', ' the garden. ', '  Boris'):
    for cut in range(len(text)):
      context, continuation = text[:cut], text[cut:]
      if continuation.strip():
        before, after = model._encode_pair(context, continuation)
        assert before and after
        whole, alone = model.tok_encode(context.rstrip() + text[len(context.rstrip()) :]), vocab.encode(continuation)
        assert not context.strip() or after == (whole[len(before) :] or alone)
  for context in ('', 'Anna'):
    with pytest.raises(ConfigError, match='has no token'):
      model._encode_pair(context, '')


def test_what_a_model_would_write_is_greedy(both):
  ours, theirs = both
  context = 'Anna went to the'
  (text,) = theirs.generate_until(requests_of([(context, {'until': [], 'max_gen_toks': 1})]), disable_tqdm=True)
  rows = requests_of([(context, text), (context, ' river')])
  assert [greedy for _, greedy in ours.loglikelihood(rows, disable_tqdm=True)] == [True, False]


def test_rolling_log_likelihoods_are_those_of_their_model(both):
  rows = requests_of([(ANNA,), (f'{ANNA}. ' * 9,), ('One',)])
  ours, theirs = (model.loglikelihood_rolling(rows, disable_tqdm=True) for model in both)
  np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_texts_are_those_of_their_model(both):
  ours, theirs = both
  stops = [' a', 'the', 'e', ',']
  ways = (
    {'until': [], 'max_gen_toks': 7},
    {'until': stops, 'max_new_tokens': 7, 'do_sample': False, 'temperature': 0.0},
    {'max_gen_toks': 7, 'num_beams': 3, 'no_repeat_ngram_size': 2, 'length_penalty': 0.5},
  )
  rows = [(context, dict(way)) for way in ways for context in (ANNA, f'{ANNA}. ' * 9, 'One')]
  found = ours.generate_until(requests_of(rows), disable_tqdm=True)
  # they bound what an encoder-decoder writes by the tokens of the context and these, unless a task names the length
  more = {'max_length': 8} if ours.backend == 'seq2seq' else {}
  rows = [(context, {**way, **more}) for context, way in rows]
  assert found == theirs.generate_until(requests_of(rows), disable_tqdm=True)
  assert len(set(found)) > 3
  assert not any(stop in text for stop in stops for text in found[3:6])


def test_few_programs_serve_many_lengths():
  sizes = [harness.rounded(length, 1_000) for length in range(1, 1_001)]
  assert all(size >= length for length, size in enumerate(sizes, start=1))
  assert sorted(set(sizes)) == [8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_000]


def test_what_a_task_asks_for():
  def read(**given):
    return harness.GenerationOptions.read(given, max_length=100, backend='causal')

  assert read(until='\n') == (('\n',), 50, 'greedy', ())
  assert read(until=['', 'b'], max_tokens=3, do_sample=True, temperature=0.5, top_p=0.9) == (
    ('b',), 3, 'sample', (('top_p', 0.9), ('temperature', 0.5))
  )  # fmt: skip
  assert read(temperature=0, do_sample=True).method == 'greedy'
  assert read(num_beams=2).method == 'beam'
  with pytest.raises(ConfigError, match=r'repetition_penalty=2\b.*until, '):
    read(repetition_penalty=2)
  with pytest.raises(ConfigError, match=r'\b100 tokens.*max_gen_toks.*\b100\b'):
    read(max_gen_toks=100)
  assert harness.GenerationOptions.read({'max_gen_toks': 100}, max_length=100, backend='seq2seq').max_new == 100
