"""Minimal pairs, beside plain loops over transformers' models of the same folder; runs, groups, messages."""

import json
import pathlib
import random

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers

import plm_jax
from plm_jax import config
from plm_jax.commands import evaluate
from plm_jax.config import build
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Execution, Sentences, Template
from plm_jax.data import minimal_pairs as source
from plm_jax.objectives import minimal_pairs
from plm_jax.text import byte_bpe, chars, sentencepiece, tokenizer, wordpiece, words
from plm_jax.text.tokenizer import around
from plm_jax.training import loop
from tests import conftest, runs, tiny

pytestmark = pytest.mark.turns

CONFIG = pathlib.Path(__file__).resolve().parent.parent.parent / 'experiments' / 'blimp' / 'pairs.py'
# one token differs, lengths differ, everything differs, both are equal
PAIRS = [
  ('Anna went to the garden.', 'Anna came to the garden.', 'a'),
  ("Boris doesn't see the clock", "Boris don't see the old clock", 'b'),
  ('In the morning Peter came.', 'Unbelievable weather, friends!', 'a'),
  ('Everyone knew.', 'Everyone knew.', 'b'),
]
SIZES = {'hidden_size': 16, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 24}
TWO = {f'{side}_{name}': size for side in ('encoder', 'decoder')
       for name, size in (('layers', 2), ('attention_heads', 2), ('ffn_dim', 24))}  # fmt: skip


def write(folder: pathlib.Path, pairs=PAIRS) -> pathlib.Path:
  folder.mkdir(exist_ok=True)
  rows = [{'sentence_good': good, 'sentence_bad': bad, 'UID': group} for good, bad, group in pairs]
  (folder / 'test.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return folder


def make(kind: str, folder: pathlib.Path):
  """Write a random folder of transformers with a small vocabulary; return the model."""
  torch, t = pytest.importorskip('torch'), pytest.importorskip('transformers')
  draw = random.Random(0)
  texts = [conftest.story(draw) for _ in range(40)]
  if kind in ('bert', 'distilbert', 'minilm', 'electra'):
    vocab = wordpiece.train(texts, size=300)
    template = around(vocab, separators=1, typed=True)
  elif kind in ('albert', 't5', 'xlnet'):
    vocab = sentencepiece.train(texts, size=260, specials=kind, sentinels=10 if kind == 't5' else None)
    ends = (('A', 0), (vocab.eos_id, 0))
    template = Template(ends, ends) if kind == 't5' else around(vocab, separators=1, typed=True)
  else:
    vocab = byte_bpe.train(texts, size=400, specials='gpt2' if kind == 'gpt2' else 'roberta')
    template = None if kind == 'gpt2' else around(vocab, separators=2, typed=False)
  vocab.save(folder, template=template)
  ids = {'vocab_size': vocab.size, 'pad_token_id': vocab.pad_id, 'eos_token_id': vocab.eos_id}
  ids['bos_token_id'] = vocab.bos_id
  two = {'d_model': 16, **ids}
  small = {'dim': 16, 'n_heads': 2, 'hidden_dim': 24, **ids}
  deep = {'d_kv': 8, 'd_ff': 24, 'num_layers': 2, 'num_heads': 2, **two}
  config, auto = {
    'bert': lambda: (t.BertConfig(**SIZES, **ids), t.BertForMaskedLM),
    'minilm': lambda: (t.BertConfig(**SIZES, **ids), t.BertModel),
    'distilbert': lambda: (t.DistilBertConfig(**small, n_layers=1), t.DistilBertForMaskedLM),
    'roberta': lambda: (t.RobertaConfig(**SIZES, type_vocab_size=1, **ids), t.RobertaForMaskedLM),
    'albert': lambda: (t.AlbertConfig(embedding_size=8, **SIZES, **ids), t.AlbertForMaskedLM),
    'gpt2': lambda: (t.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **ids), t.GPT2LMHeadModel),
    't5': lambda: (t.T5Config(decoder_start_token_id=vocab.pad_id, **deep), t.T5ForConditionalGeneration),
    'bart': lambda: (t.BartConfig(decoder_start_token_id=vocab.eos_id, **TWO, **two), t.BartForConditionalGeneration),
    'xlnet': lambda: (t.XLNetConfig(d_model=16, n_layer=2, n_head=2, d_inner=24, **ids), t.XLNetLMHeadModel),
    'electra': lambda: (t.ElectraConfig(embedding_size=16, **SIZES, **ids), t.ElectraForPreTraining),
  }[kind]()  # fmt: skip
  torch.manual_seed(0)
  model = auto(config).eval()
  for parameter in model.parameters():  # large enough for tokens to differ
    parameter.data += 0.3 * torch.randn(parameter.shape)
  model.save_pretrained(folder)
  return model


def run(folder: pathlib.Path, data: pathlib.Path, out: pathlib.Path, *flags: str) -> tuple[dict, np.ndarray]:
  """Run the command; return its line and log p of the good and the bad sentence of each row."""
  argv = [f'--config={CONFIG}', f'--weights={folder}', f'--config.data.path={data}', f'--workdir={out}']
  assert evaluate.main([*argv, f'--predictions={out}.jsonl', f'--config.data.cache={out}.cache', *flags]) == 0
  rows = sorted(map(json.loads, pathlib.Path(f'{out}.jsonl').read_text().splitlines()), key=lambda row: row['row_id'])
  [line] = map(json.loads, (out / 'evaluations.jsonl').read_text().splitlines())
  return line, np.array([row['log_probability'] for row in rows])


def expected(kind: str, model, folder: pathlib.Path, text: str, *, word_l2r: bool = False, begin: bool = True) -> float:
  """Score a sentence by a loop over its tokens, one sequence each."""
  import torch

  marked, vocab = tokenizers.Tokenizer.from_file(str(folder / 'tokenizer.json')), tokenizer.load(folder)
  encoding = marked.encode(text)
  ids, total = encoding.ids, 0.0
  with torch.no_grad():
    if kind == 'gpt2':
      ids = [vocab.eos_id, *ids] if begin else ids
      logs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
      return float(sum(logs[place - 1, ids[place]] for place in range(1, len(ids))))
    if kind == 'electra':
      return float((-model(torch.tensor([ids])).logits[0]).sigmoid().log().sum())
    special, words = encoding.special_tokens_mask, encoding.word_ids
    for place in [place for place in range(len(ids)) if not special[place]]:
      masked = list(ids)
      mask = vocab.id('<extra_id_0>') if kind == 't5' else vocab.mask_id
      hidden = [place]
      if word_l2r:  # minicons: the token, and those to its right with the same word id of the tokenizer
        hidden += [later for later in range(place + 1, len(ids)) if words[later] == words[place] and not special[later]]
      for one in hidden:
        masked[one] = mask
      if kind == 't5':
        logits = model(torch.tensor([masked]), decoder_input_ids=torch.tensor([[vocab.pad_id, mask]])).logits[0, 1]
      elif kind == 'bart':
        before = torch.tensor([[vocab.eos_id, *ids[:-1]]])
        logits = model(torch.tensor([masked]), decoder_input_ids=before).logits[0, place]
      elif kind == 'xlnet':
        unseen, at = torch.zeros(1, len(ids), len(ids)), torch.zeros(1, 1, len(ids))
        unseen[:, :, hidden], at[:, :, place] = 1, 1
        logits = model(torch.tensor([ids]), perm_mask=unseen, target_mapping=at).logits[0, 0]
      else:
        logits = model(torch.tensor([masked])).logits[0, place]
      total += float(logits.log_softmax(-1)[ids[place]])
  return total


CASES = ['bert', 'bert word_l2r', 'roberta word_l2r', 'gpt2', 'gpt2 begin', 't5', 'bart', 'xlnet word_l2r', 'electra']
SLOW = ['distilbert', 'roberta', 'albert', 'albert word_l2r', 't5 word_l2r']


@pytest.mark.parametrize('case', [*CASES, *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW)])
def test_equals_a_loop_over_transformers(case, tmp_path):
  kind, _, word = case.partition(' ')
  model = make(kind, tmp_path / 'folder')
  flag = {'word_l2r': '--config.objective.masking=word_l2r', 'begin': '--config.objective.begin=False'}.get(word)
  line, ours = run(tmp_path / 'folder', write(tmp_path / 'data'), tmp_path / 'out', *([flag] if flag else []))
  settings = {'word_l2r': word == 'word_l2r', 'begin': word != 'begin'}
  theirs = [[expected(kind, model, tmp_path / 'folder', text, **settings) for text in pair[:2]] for pair in PAIRS]
  np.testing.assert_allclose(ours, theirs, rtol=1e-5)
  right = [bool(good > bad) for good, bad in ours[:3]] + [True]  # the last pair has two equal sentences
  assert line['test/accuracy'] == sum(right) / 4
  assert line['test/ties'] == 0.25
  assert ours[3, 0] == ours[3, 1]
  assert {key: line[key] for key in line if '/UID/' in key} == {
    'test/UID/a': (right[0] + right[2]) / 2, 'test/UID/b': (right[1] + right[3]) / 2
  }  # fmt: skip


def test_elmo_reads_both_ways(data, tmp_path):
  """By the definition: log p of each word after the words before it, and after those behind it."""
  texts = (data / 'corpus' / 'train.txt').read_text().split('\n\n')
  words.train(texts, size=200).save(tmp_path / 'vocab')
  plain = runs.settings('bidirectional_lm', data)
  settings = {**plain, 'vocab': {'name': 'words', 'path': str(tmp_path / 'vocab')}}
  assert loop.train(config.resolve(settings), tmp_path / 'run').exit_code == 0
  pairs = [('Anna is in the garden .', 'Anna is in zzyzx .', 'a')]
  _, ours = run(tmp_path / 'run', write(tmp_path / 'data', pairs), tmp_path / 'out')
  opened = plm_jax.load(tmp_path / 'run').folder
  trunk, params = opened.loaded
  vocab = opened.vocab
  for side in (0, 1):
    split = pairs[0][side].split()
    spelt = [chars.table(vocab)[vocab.bos_id], *(chars.of_word(vocab.normalise(word)) for word in split)]
    spelt = np.stack([*spelt, chars.table(vocab)[vocab.eos_id]])[None]
    ids = vocab.encode(pairs[0][side])
    assert len(ids) == len(split)
    states, _ = trunk.apply(
      {'params': params['trunk']}, spelt, spelt[:, ::-1], carry=trunk.init_carry(1), method='stream'
    )
    table, bias = params['softmax']['output']['table'], params['softmax']['bias']
    logs = jax.nn.log_softmax(states[0] @ jnp.asarray(table).T + bias)  # [l, 2, v]
    total = sum(
      logs[place, 0, token] + logs[place, 1, back]
      for place, (token, back) in enumerate(zip(ids, ids[::-1], strict=True))
    )
    np.testing.assert_allclose(ours[0, side], total, rtol=1e-5)


@pytest.mark.parametrize('name', ['glm', 'gpt_bert word_l2r'])
def test_trunks_without_a_head_equal_the_definition(name, tmp_path):
  """GLM writes the token into the blank of part A; GPT-BERT predicts it by the state before the mask."""
  vocab = byte_bpe.train([text for pair in PAIRS for text in pair[:2]] * 9, size=320, specials='roberta')
  sizes, rest = dict(num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=24), name.endswith('l2r')
  settings = dict(name=name.split()[0], variant='tiny', overrides=sizes)
  trunk = build.make('models', settings, vocab_size=vocab.size, execution=Execution())
  task = minimal_pairs.make(trunk=trunk, vocab=vocab, heads=('trunk',), masking='word_l2r' if rest else 'token')
  read = source.make(
    vocab=vocab, path=str(write(tmp_path / 'data', PAIRS[::3])), sequences=task.sentences, batch_size=64, seed=0
  )
  example = task.prepare(jax.random.key(0), next(iter(read.once())))
  params = nn.unbox(task.model.init(jax.random.key(1), **example.inputs))['params']
  params = jax.tree.map(lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), params)
  forward = lambda **words: task.model.apply({'params': params}, **words)  # noqa: E731
  ours, rows = task.predict(forward, example)['log_probability'], next(iter(read.once()))['row_id']
  variables = {'params': params['trunk']}
  for row, pair in enumerate(PAIRS[::3]):
    for side, text in enumerate(pair[:2]):
      ids, [words], total = vocab.encode(text), vocab.words([text]), 0.0
      for place, hidden in enumerate(ids):
        later = [at for at in range(place + 1, len(ids)) if rest and words[at] == words[place]]
        masked = [vocab.mask_id if at in (place, *later) else token for at, token in enumerate(ids)]
        whole, at = [vocab.cls_id, *masked, vocab.sep_id], place
        inputs = {}
        if name == 'glm':
          size, at = len(whole), len(whole)
          whole = [*whole, vocab.bos_id]
          inputs = {'positions': jnp.array([[*range(size), place + 1]]), 'prefix': jnp.array([size])}
          inputs['block_positions'] = jnp.array([[0] * size + [1]])
        tokens = jnp.array([whole])
        states = trunk.apply(variables, tokens, segment_ids=jnp.ones_like(tokens), **inputs)['hidden'][0, at]
        total += float(jax.nn.log_softmax(trunk.apply(variables, states, method='attend'))[hidden])
      np.testing.assert_allclose(ours[list(rows).index(row), side], total, rtol=1e-4)


def test_pairs_of_a_smoke_test_have_two_fields():
  assert source.QUICK['good'] != source.QUICK['bad']  # one field is refused


@pytest.mark.parametrize(('name', 'heads'), [('gpt', None), ('bert', ('trunk', 'rtd'))])
def test_masks_of_words_are_refused_where_nothing_is_masked(name, heads):
  trunk = tiny.make_trunk(name)
  minimal_pairs.make(trunk=trunk, vocab=tiny.VOCAB, heads=heads)
  with pytest.raises(ValueError, match=r"masking='word_l2r' is not for this .* without masks: use masking='token'"):
    minimal_pairs.make(trunk=trunk, vocab=tiny.VOCAB, heads=heads, masking='word_l2r')


@pytest.mark.parametrize('heads', [('trunk', 'mlm'), ('trunk', 'rtd')])
def test_begin_is_refused_where_nothing_begins_with_it(heads):
  with pytest.raises(ValueError, match=r'objective\.begin=False is for decoders, not for this .*: remove it'):
    minimal_pairs.make(trunk=tiny.make_trunk('bert'), vocab=tiny.VOCAB, heads=heads, begin=False)


@pytest.mark.parametrize('kind', ['mlm', 'causal_lm'])
def test_a_run_of_pre_training_measures_it(kind, data, tmp_path):
  block = {'name': 'minimal_pairs', 'path': str(write(tmp_path / 'data')), 'cache': str(tmp_path / 'cache')}
  evaluation = {'task': {'name': 'minimal_pairs'}, 'data': {**block, 'batch_size': 8, 'length': 30}}
  plain = runs.settings(kind, data)
  settings = {**plain, 'eval': {**plain['eval'], 'blimp': {**next(iter(plain['eval'].values())), **evaluation}}}
  settings = config.resolve({**settings, 'best': ('blimp/accuracy', 'max')})
  assert loop.train(settings, tmp_path / 'run').exit_code == 0
  lines = [line for line in runs.curve(tmp_path / 'run') if 'blimp/accuracy' in line]
  assert {'blimp/loss', 'blimp/ties', 'blimp/UID/a'} <= set(lines[-1])
  assert evaluate.main([f'--workdir={tmp_path / "run"}', '--step=newest', '--evaluation=blimp']) == 0
  [again] = map(json.loads, (tmp_path / 'run' / 'evaluations.jsonl').read_text().splitlines())
  assert again['blimp/loss'] == pytest.approx(lines[-1]['blimp/loss'], rel=1e-6)
  line, _ = run(tmp_path / 'run', tmp_path / 'data', tmp_path / 'out', '--config.data.length=30')
  assert line['test/accuracy'] in [one['blimp/accuracy'] for one in lines]


@pytest.mark.parametrize(
  ('kind', 'pairs', 'flags', 'message'),
  [
    ('minilm', PAIRS, (), r'no language-model head \(mlm\), only trunk'),
    ('bert', [('Anna came.', ' ', 'a')], (), 'line 1: row 0 of .* has an empty sentence'),
    ('gpt2', [('word ' * 70, 'a', 'a')], (), 'line 1.*more than 64'),
    (
      'bert',
      PAIRS,
      ('--config.data.good=sentence',),
      "unknown field 'sentence'.*Did you mean 'sentence_bad' or 'sentence_good'",
    ),
    ('bert', PAIRS, ('--config.data.bad=sentence_good',), "are both 'sentence_good'"),
    ('bert', PAIRS, ("--config.data.groups=('field',)",), "data.groups: unknown field 'field'"),
  ],
)
def test_bad_input(kind, pairs, flags, message, tmp_path):
  make(kind, tmp_path / 'folder')
  with pytest.raises((ConfigError, ValueError), match=message) as raised:
    run(tmp_path / 'folder', write(tmp_path / 'data', pairs), tmp_path / 'out', *flags)
  assert len(str(raised.value)) < 400
  assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(('suffix', 'mark'), [('csv', ','), ('tsv', '\t')])
def test_tables_of_text(suffix, mark, tmp_path):
  folder = tmp_path / 'data'
  folder.mkdir()
  rows = ''.join(f'{good}{mark}{bad}{mark}{group}\n' for good, bad, group in [PAIRS[0], PAIRS[2]])
  (folder / f'test.{suffix}').write_text(f'yes{mark}no{mark}kind\n{rows.replace("weather, ", "weather ")}')
  vocab = wordpiece.train([text for pair in PAIRS for text in pair[:2]], size=120)
  read = source.make(vocab=vocab, path=str(folder), good='yes', bad='no', groups=('kind',), batch_size=4, seed=0)
  assert [read.record(row)['groups'] for row in (0, 1)] == [{'kind': 'a'}, {'kind': 'a'}]


@pytest.mark.parametrize('rest', [False, True])
def test_every_sequence_is_read_once(rest, tmp_path):
  """Each (sequence, place) of a pair once, however the batches are cut; shared ones count for both sentences."""
  vocab = byte_bpe.train([text for pair in PAIRS for text in pair[:2]] * 9, size=400, specials='roberta')
  sentences = Sentences((vocab.cls_id,), (vocab.sep_id,), vocab.mask_id, rest)
  read = source.make(vocab=vocab, path=str(write(tmp_path / 'data')), sequences=sentences, batch_size=8, seed=0)
  seen: dict[tuple, np.ndarray] = {}
  for batch in read.once():
    assert batch['tokens'].shape[0] % 8 == 0
    for row in np.flatnonzero(batch['counted'].sum(axis=1)):
      ids = tuple(batch['tokens'][row][batch['segment_ids'][row] > 0].tolist())
      key = (int(batch['row_id'][batch['pair'][row]]), ids, int(batch['masked_at'][row]))
      assert key not in seen
      assert ids[key[2]] == vocab.mask_id
      seen[key] = batch['counted'][row]
  wanted: dict[tuple, list[int]] = {}
  for row, pair in enumerate(PAIRS):
    for side, text in enumerate(pair[:2]):
      ids, [words] = vocab.encode(text), vocab.words([text])
      for place in range(len(ids)):
        hidden = [place, *(later for later in range(place + 1, len(ids)) if rest and words[later] == words[place])]
        masked = [vocab.mask_id if at in hidden else token for at, token in enumerate(ids)]
        key = (row, (vocab.cls_id, *masked, vocab.sep_id), place + 1)
        wanted.setdefault(key, [0, 0])[side] = 1
  assert {key: value.tolist() for key, value in seen.items()} == wanted
  assert [1, 1] in [value for key, value in wanted.items() if key[0] == 0]  # the sentences differ in this word only
