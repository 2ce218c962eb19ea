"""`plm_jax.load`: results compared with Hugging Face, with the commands, alone and in a batch; its errors."""

import json
import math
import pathlib
import random
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import plm_jax
from plm_jax import config, weights
from plm_jax.cli import progress
from plm_jax.commands import evaluate, fill
from plm_jax.commands import generate as generate
from plm_jax.core.errors import ConfigError
from plm_jax.generate import decode, settings
from plm_jax.inference import batches, continued, overlapping_windows, replies, vectors
from plm_jax.inference.likelihood import LogProbability, PseudoLogLikelihood
from plm_jax.inference.model import Model
from plm_jax.scores import Group
from plm_jax.training import loop
from tests import conftest, runs

pytestmark = pytest.mark.turns

STORIES = [conftest.story(random.Random(seed)) for seed in range(4)]
TEXTS = ['Anna is here.', STORIES[0], 'a', STORIES[1][:40], 'In the old garden Boris found the clock.', STORIES[2][:90]]
BIO = ('O', 'B-name', 'I-name')


# Runs, named as in docs/guide/python.md.


@pytest.fixture(scope='module')
def mlm(data: pathlib.Path) -> Model:
  return trained(runs.settings('mlm', data), data / 'BERT')


@pytest.fixture(scope='module')
def gpt(data: pathlib.Path) -> Model:
  return trained(runs.settings('causal_lm', data), data / 'GPT')


@pytest.fixture(scope='module')
def classify(data: pathlib.Path) -> Model:
  return trained(runs.settings('classify', data), data / 'CLASSES')


@pytest.fixture(scope='module')
def lora(data: pathlib.Path) -> Model:
  adapter = {'name': 'lora', 'inner': {'name': 'classify', 'classes': 2}}
  return trained(adapted(data, adapter, runs.settings('classify', data)['data']), data / 'lora')


@pytest.fixture(scope='module')
def tag(data: pathlib.Path) -> Model:
  rows = [{'tokens': ['Anna', 'is', 'in', place], 'tags': ['B-name', 'O', 'O', 'O']} for place in conftest.PLACES]
  about = {'kind': 'words', 'fields': ('tokens',), 'label': 'tags', 'path': write_rows(data / 'tags', rows)}
  (data / 'tags' / 'labels.json').write_text(json.dumps({'tags': BIO}))
  return trained(adapted(data, {'name': 'tag', 'tags': BIO}, about), data / 'TAGS')


@pytest.fixture(scope='module')
def parse(data: pathlib.Path) -> Model:
  rows = [
    {'tokens': ['Anna', 'is', 'in', place], 'head': [2, 0, 4, 2], 'deprel': ['who', 'root', 'in', 'where']}
    for place in conftest.PLACES
  ]
  about = {'kind': 'arcs', 'fields': ('tokens', 'head'), 'label': 'deprel', 'path': write_rows(data / 'trees', rows)}
  return trained(adapted(data, {'name': 'parse', 'width': 8}, about), data / 'TREES')


@pytest.fixture(scope='module')
def span(data: pathlib.Path) -> Model:
  answers = [{'text': [text.split()[0]], 'answer_start': [0]} for text in STORIES]
  pairs = zip(STORIES, [*answers[:-1], {'text': [], 'answer_start': []}], strict=True)
  rows = [{'question': 'Who was it?', 'context': text, 'answers': answer} for text, answer in pairs]
  about = {'kind': 'spans', 'stride': 8, 'question_length': 8, 'path': write_rows(data / 'spans', rows)}
  return trained(adapted(data, {'name': 'span', 'no_answer': True}, about), data / 'ANSWERS')


@pytest.fixture(scope='module')
def choose(data: pathlib.Path) -> Model:
  rows = [{'context': 'Anna is', 'endings': [f'in the {place}', 'a moon'], 'label': 0} for place in conftest.PLACES]
  about = {'kind': 'options', 'fields': ('context', 'endings'), 'path': write_rows(data / 'options', rows)}
  return trained(adapted(data, {'name': 'choose'}, about), data / 'OPTIONS')


def write_rows(folder: pathlib.Path, rows: list[dict[str, Any]]) -> str:
  folder.mkdir()
  for split in ('train', 'validation'):
    (folder / f'{split}.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
  return str(folder)


def adapted(data: pathlib.Path, adapter: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
  """Build the config of a short run with an adapter.

  Its rate makes predictions differ.
  """
  return config.resolve(
    {
      'steps': 4, 'log_every': 2, 'eval_every': 4, 'save_every': 4, 'adapter': adapter,
      'vocab': {'name': 'byte_bpe', 'path': str(data / 'vocab')},
      'model': {'name': 'bert', 'variant': 'tiny', 'overrides': runs.SIZES},
      'data': {'name': 'labelled', 'length': 32, 'batch_size': 4, 'cache': str(data / 'cache'), **about},
      'optim': {'name': 'adamw', 'rate': 1e-2, 'schedule': 'constant'},
      'eval': {'validation': {'data': {'split': 'validation'}}},
    }
  )  # fmt: skip


def trained(settings: dict[str, Any], folder: pathlib.Path) -> Model:
  """Train a short run and open it with small batches."""
  assert loop.train(settings, folder).exit_code == 0
  return plm_jax.load(folder, batch_size=2)


def written(model: Model, file: pathlib.Path) -> list[dict[str, Any]]:
  """Read the validation predictions of `plm-jax evaluate`."""
  assert evaluate.main([f'--workdir={model.folder.folder}', f'--predictions={file}']) == 0
  return [json.loads(line) for line in file.read_text().splitlines()]


# Hugging Face.


@pytest.fixture(scope='module')
def released(data: pathlib.Path) -> dict[str, tuple[Any, Any, Model]]:
  """Build random Hugging Face models with a tokenizer: theirs, the tokenizer, ours."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  from tokenizers.processors import TemplateProcessing

  torch.manual_seed(0)
  size = {'vocab_size': runs.VOCAB_SIZE, 'bos_token_id': 1, 'eos_token_id': 2, 'pad_token_id': 0}
  bert = {'hidden_size': 32, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 64}
  models = {
    'bert': transformers.BertForMaskedLM(transformers.BertConfig(max_position_embeddings=64, **bert, **size)),
    'gpt2': transformers.GPT2LMHeadModel(
      transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=64, **size)
    ),
  }
  found = {}
  for name, model in models.items():
    roles = {'bos_token': '<s>', 'eos_token': '</s>', 'pad_token': '<pad>', 'mask_token': '<mask>'}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(data / 'vocab' / 'tokenizer.json'), **roles)
    if name == 'bert':
      tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single='<s> $A </s>', pair='<s> $A </s> $B:1 </s>:1', special_tokens=[('<s>', 1), ('</s>', 2)]
      )
    for parameter in model.parameters():
      torch.nn.init.normal_(parameter, std=0.3)
    model.eval().save_pretrained(data / name)
    tokenizer.save_pretrained(data / name)
    found[name] = model, tokenizer, plm_jax.load(data / name)
  return found


def states_of(model: Any, tokenizer: Any, text: str) -> np.ndarray:
  """Compute their hidden states of a text, [l, n+1, d]."""
  import torch

  ids = torch.tensor([tokenizer(text).input_ids])
  with torch.no_grad():
    out = model.base_model(ids, output_hidden_states=True)
  return torch.stack(out.hidden_states)[:, 0].numpy().transpose(1, 0, 2)


@pytest.mark.parametrize('name', ['bert', 'gpt2'])
def test_states_are_those_of_hugging_face(name: str, released: Any) -> None:
  theirs, tokenizer, ours = released[name]
  texts = [text[:90] for text in TEXTS]
  expected = [states_of(theirs, tokenizer, text) for text in texts]
  for one, states in zip(ours.encode(texts, layer='all', pool='none'), expected, strict=True):
    np.testing.assert_allclose(one.vectors, states, atol=2e-5)
    assert len(one.tokens) == len(states)
  np.testing.assert_allclose(ours.encode(texts), [states[:, -1].mean(axis=0) for states in expected], atol=2e-5)
  for pool, place in (('first', 0), ('last', -1)):
    pooled = ours.encode(texts, layer=[-1, 1], pool=pool)
    np.testing.assert_allclose(pooled, [states[place][[-1, 1]] for states in expected], atol=2e-5)


def test_log_probabilities_are_those_of_hugging_face(released: Any) -> None:
  import torch

  theirs, tokenizer, ours = released['gpt2']
  texts = [text[:90] for text in TEXTS]
  for text, found in zip(texts, ours.score(texts), strict=True):
    ids = torch.tensor([tokenizer(text).input_ids])
    with torch.no_grad():
      logs = torch.log_softmax(theirs(ids).logits[0, :-1].double(), dim=-1)
    expected = logs[torch.arange(len(logs)), ids[0, 1:]].sum().item()
    assert isinstance(found, LogProbability)
    assert found.log_probability == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert found.tokens == ids.shape[1] - 1


def test_a_long_text_is_scored_in_windows_with_half_of_each_before_it(released: Any) -> None:
  import torch

  theirs, tokenizer, ours = released['gpt2']
  ids, expected, read = tokenizer(STORIES[0]).input_ids, 0.0, 1
  assert len(ids) > 128
  for start in range(0, len(ids), 32):  # 64 positions
    shown = torch.tensor([ids[start : start + 64]])
    with torch.no_grad():
      logs = torch.log_softmax(theirs(shown).logits[0, :-1].double(), dim=-1)
    own = range(read, min(start + 64, len(ids)))
    expected += sum(logs[place - start - 1, ids[place]].item() for place in own)
    read = max(read, min(start + 64, len(ids)))
  assert ours.score(STORIES[0]) == LogProbability(pytest.approx(expected, rel=1e-5), len(ids) - 1)


def test_a_masked_model_scores_each_token_by_the_others(released: Any) -> None:
  import torch

  theirs, tokenizer, ours = released['bert']
  for text, found in zip(TEXTS[:1] + TEXTS[2:4], ours.score(TEXTS[:1] + TEXTS[2:4]), strict=True):
    ids, expected = torch.tensor([tokenizer(text).input_ids]), 0.0
    for place in range(1, ids.shape[1] - 1):
      hidden = ids.clone()
      hidden[0, place] = tokenizer.mask_token_id
      with torch.no_grad():
        expected += torch.log_softmax(theirs(hidden).logits[0, place].double(), dim=-1)[ids[0, place]].item()
    assert isinstance(found, PseudoLogLikelihood)
    assert found == (pytest.approx(expected, rel=1e-5), ids.shape[1] - 2)


def test_blanks_are_filled_as_by_hugging_face(released: Any) -> None:
  import torch

  theirs, tokenizer, ours = released['bert']
  texts = ['Anna is in the <mask> .', '<mask> was <mask> here and it was raining.']
  for text, found in zip(texts, ours.fill(texts, top=3), strict=True):
    ids = torch.tensor([tokenizer(text).input_ids])
    with torch.no_grad():
      shares = torch.softmax(theirs(ids).logits[0], dim=-1)[ids[0] == tokenizer.mask_token_id]
    best = shares.topk(3)
    assert len(found.blanks) == len(shares)
    np.testing.assert_allclose([[share for _, share in blank] for blank in found.blanks], best.values, atol=1e-5)
    for blank, row in zip(found.blanks, best.indices.tolist(), strict=True):
      names = [tokenizer.decode([token]).strip() for token in row]
      assert [word for word, _ in blank if word in names] == [name for name in names if name]


def test_texts_go_on_as_by_hugging_face(released: Any) -> None:
  import torch

  theirs, tokenizer, ours = released['gpt2']
  prompts = ['Anna is in the', 'One']
  for prompt, text in zip(prompts, ours.generate(prompts, max_new=6), strict=True):
    ids = tokenizer(prompt).input_ids
    made = theirs.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False)[0].tolist()
    assert tokenizer.decode(made, skip_special_tokens=True) == prompt + text
  draws = ours.generate(prompts, method='sample', num_samples=2, top_k=5, max_new=3)
  assert [len(each) for each in draws] == [2, 2]
  assert ours.generate(prompts, method='sample', draws=2, top_k=5, max_new=3) == draws  # the old name


# Alone and together.


def test_a_batch_changes_nothing(mlm: Model, gpt: Model, classify: Model) -> None:
  together, alone = mlm.encode(TEXTS, layer='all'), [mlm.encode(text, layer='all') for text in TEXTS]
  np.testing.assert_allclose(together, alone, atol=2e-6)
  assert len({row.tobytes() for row in together}) == len(TEXTS)  # so that the order is seen
  np.testing.assert_allclose(gpt.score(TEXTS), [gpt.score(text) for text in TEXTS], rtol=1e-5, atol=1e-6)
  rows = [runs.sentence(random.Random(seed), label=seed % 2)['text'] for seed in range(7)]
  one_by_one = [classify.classify(row)['probabilities']['inside'] for row in rows]
  assert [one['probabilities']['inside'] for one in classify.classify(rows)] == pytest.approx(one_by_one, abs=1e-5)
  assert len(set(one_by_one)) > 3


def test_few_shapes(mlm: Model) -> None:
  vectors.pooled.clear_cache()
  short = [text[: 3 * number] for number, text in enumerate(STORIES * 3, start=1)]
  plm_jax.load(mlm.folder.folder, batch_size=4).encode(short)
  assert vectors.pooled._cache_size() <= 2  # 16 and 32 tokens


@pytest.mark.parametrize('method', ['greedy', 'beam', 'sample'])
def test_texts_are_generated_in_few_shapes(method: str, gpt: Model, monkeypatch: pytest.MonkeyPatch) -> None:
  shown = []

  class Noted(progress.Waiting):
    def __init__(self, total: int, doing: str) -> None:
      super().__init__(total, doing)
      shown.append((total, doing))

  monkeypatch.setattr(progress, 'Waiting', Noted)
  prompts = [text[: 1 + 5 * number % 23] for number, text in enumerate(STORIES * 4)][:14]
  given: dict[str, Any] = {'method': method, 'max_new': 6} | ({'seed': 1} if method == 'sample' else {})
  decode._run.clear_cache()
  texts = gpt.generate(prompts, **given)
  assert decode._run._cache_size() <= 2  # 16 tokens, and 27 that leave room for 6 more
  assert shown == [(14, 'generate')]
  if method == 'sample':  # of the batches in the order given
    assert texts[:4] == gpt.generate(prompts[:4], **given)
    return
  together = continued.write(gpt.folder, prompts, settings.DEFAULTS | given, rows=2)
  alone = [continued.write(gpt.folder, [prompt], settings.DEFAULTS | given)[0][0] for prompt in prompts]
  assert [one.new for (one,) in together] == [one.new for one in alone] == texts
  assert [one.score for (one,) in together] == pytest.approx([one.score for one in alone], rel=1e-4)
  assert len({round(one.score, 3) for one in alone}) > 7  # so that the order is seen


def test_batches_hold_rows_of_like_length() -> None:
  sizes, seen = [5, 40, 7, 16, 17, 3, 33, 60], []

  def compute(members: np.ndarray, width: int) -> np.ndarray:
    seen.append((len(members), width))
    assert all(sizes[row] <= width for row in members)
    return members * 10

  assert batches.run(compute, sizes, limit=60, rows=2, doing='test') == [10 * row for row in range(8)]
  assert sorted(seen) == [(2, 16), (2, 16), (2, 60), (2, 60)]
  seen.clear()
  assert batches.run(compute, sizes, limit=60, rows=2, by_length=False, doing='test') == [10 * row for row in range(8)]
  assert seen == [(2, 60), (2, 32), (2, 16), (2, 60)]
  assert batches.run(compute, [], doing='test') == []
  doubled = batches.run(compute, sizes, finish=lambda row, ten: (row, ten), doing='test')
  assert doubled == [(row, 10 * row) for row in range(8)]
  assert batches.widths(60, limit=60, count=8) == (16, 32, 60)
  assert batches.widths(60, limit=60, count=5000) == (12, 16, 24, 32, 48, 60)
  assert [batches.rows_for(count) for count in (1, 2, 8, 9, 1000)] == [1, 8, 8, 32, 32]


def test_a_long_text_is_encoded_in_windows(mlm: Model) -> None:
  whole = mlm.encode(STORIES[0], pool='none')
  ids = mlm.folder.read([STORIES[0]])[0].ids
  assert len(ids) > 64 and whole.tokens == [mlm.folder.vocab.token(token) for token in ids]
  assert whole.vectors.shape == (len(ids), 32)
  np.testing.assert_allclose(mlm.encode(STORIES[0]), whole.vectors.mean(axis=0), atol=1e-5)
  trunk, params = weights.load(mlm.folder.folder)
  for start, stop, first, last in overlapping_windows.cut(
    [1] * (len(ids) - 2), room=30
  ):  # 32 positions, two special tokens
    tokens = np.array([[ids[0], *ids[1 + start : 1 + stop], ids[-1]]])
    states = trunk.apply({'params': params}, tokens=tokens, segment_ids=np.ones_like(tokens))['hidden'][0]
    own = states[1 + first - start : 1 + last - start]
    np.testing.assert_allclose(whole.vectors[1 + first : 1 + last], own, atol=1e-5)


@pytest.mark.parametrize(
  ('layer', 'plain'),
  [
    (np.array([0, 1]), [0, 1]), (np.array([2], np.uint8), [2]), (np.int64(1), 1), (np.int32(-1), -1),
    ([np.int64(0), 2], [0, 2]),
  ],
)  # fmt: skip
def test_layers_may_be_numbers_of_numpy(layer: Any, plain: Any, mlm: Model) -> None:
  for pool in ('mean', 'none'):
    found, expected = (mlm.encode('Anna is here.', layer=one, pool=pool) for one in (layer, plain))
    np.testing.assert_array_equal(np.array(found[-1]), np.array(expected[-1]))
  assert mlm.encode('a', layer=layer).shape == mlm.encode('a', layer=plain).shape


def test_one_window_alone_has_the_last_token_of_a_long_text(released: Any) -> None:
  *_, ours = released['gpt2']  # neither a begin nor an end token stands around its texts
  whole = ours.encode(STORIES[0], pool='none')
  assert len(whole.tokens) > 2 * 64
  for pool, expected in (
    ('first', whole.vectors[0]), ('last', whole.vectors[-1]), ('mean', whole.vectors.mean(axis=0))
  ):  # fmt: skip
    np.testing.assert_allclose(ours.encode(STORIES[0], pool=pool), expected, atol=2e-5)


# The commands.


def test_fill_says_what_the_command_shows(mlm: Model, capsys: pytest.CaptureFixture[str]) -> None:
  text = 'Anna was a [MASK] who lived near the <mask>.'
  assert fill.main([f'--workdir={mlm.folder.folder}', f'--text={text}', '--top=3']) == 0
  shown = capsys.readouterr().out
  found = mlm.fill([text, 'A [MASK].'], top=3)
  assert len(found[0].blanks) == 2 and len(found[1].blanks) == 1
  assert all(f'{word} {share:.2f}' in shown for blank in found[0].blanks for word, share in blank)


def test_generate_makes_what_the_command_prints(gpt: Model, capsys: pytest.CaptureFixture[str]) -> None:
  flags = ('--method=beam', '--beams=3', '--max_new=6')
  assert generate.main([f'--workdir={gpt.folder.folder}', '--prompt=In the morning', *flags]) == 0
  text = gpt.generate('In the morning', method='beam', beams=3, max_new=6)
  assert capsys.readouterr().out.splitlines()[0] == f'In the morning{text}'.rstrip()


@pytest.mark.parametrize('name', ['classify', 'lora'])
def test_classes_are_those_of_evaluate(
  name: str, data: pathlib.Path, tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> None:
  model = request.getfixturevalue(name)
  rows = written(model, tmp_path / 'predictions.jsonl')
  found = model.classify([row['record']['row']['text'] for row in rows])
  assert [one['label'] for one in found] == [row['name'] for row in rows]
  shares = [list(one['probabilities'].values()) for one in found]
  np.testing.assert_allclose(shares, [row['probability'] for row in rows], atol=1e-5)
  assert set(found[0]['probabilities']) == set(runs.CLASSES)


def test_tags_are_those_of_evaluate(tag: Model, tmp_path: pathlib.Path) -> None:
  rows = written(tag, tmp_path / 'predictions.jsonl')
  found = tag.tag([row['record']['words'] for row in rows])
  assert [[one['tag'] for one in each] for each in found] == [row['tags'] for row in rows]
  shares = [[value for value in row['probability'] if value] for row in rows]
  assert [pytest.approx([one['probability'] for one in each], abs=1e-5) for each in found] == shares


def test_every_word_of_a_long_text_has_its_tag(tag: Model) -> None:
  found = tag.tag(STORIES[0])
  assert [one['word'] for one in found] == re.findall(r'\w+|[^\w\s]', STORIES[0])
  assert all(STORIES[0][one['start'] : one['end']] == one['word'] for one in found)
  assert all(one['tag'] in BIO and 0 < one['probability'] <= 1 for one in found)


def test_answers_are_those_of_evaluate(span: Model, tmp_path: pathlib.Path) -> None:
  from plm_jax.scores import grouped, squad2

  rows = written(span, tmp_path / 'predictions.jsonl')
  records = [row['record'] | {'group': str(row['record']['group'])} for row in rows]
  expected = squad2.questions_of(rows, records)
  texts = [group.records[0]['context'] for group in grouped(rows, records)]
  found = span.answer(['Who was it?'] * len(texts), texts, best=4)
  for question, text, one in zip(expected, texts, found, strict=True):
    assert one['text'] == ('' if question.margin > 0 else question.answer)
    assert one['best'][0]['text'] == question.answer
    assert all(text[each['start'] : each['end']] == each['text'] for each in one['best'])
    assert 0 < sum(each['probability'] for each in one['best']) <= 1 + 1e-6


def test_how_many_answers_are_named_changes_no_probability(span: Model) -> None:
  whole = span.answer('Who was it?', STORIES[0], best=10**6)
  assert len(whole['best']) > 20
  for best in (1, 2, 3, 20):
    found = span.answer('Who was it?', STORIES[0], best=best)
    assert found == {**whole, 'best': whole['best'][:best]}


@pytest.mark.parametrize('knows_none', [False, True])
def test_probabilities_are_those_of_all_answers_of_all_windows(knows_none: bool) -> None:
  spans = np.array([(0, 3), (4, 7), (8, 11)])
  record = {'context': 'one two six', 'answers': ['one'], 'characters': spans, 'first': 0}
  # the second window finds 'two' again, with a smaller score that does not count
  rows = [
    {'start': np.array(at), 'end': np.array(at), 'score': np.log(np.array(odds)), 'no_answer': np.float64(0.0)}
    for at, odds in (([0, 1], [4.0, 2.0]), ([2, 1], [1.0, 0.5]))
  ]
  total = 4 + 2 + 1 + knows_none
  for best in (1, 2, 3):
    found = replies.answer_of(Group(rows, [record] * 2), best=best, knows_none=knows_none)
    assert found['probability'] == pytest.approx(4 / total)
    assert [one['text'] for one in found['best']] == ['one', 'two', 'six'][:best]
    assert [one['probability'] for one in found['best']] == pytest.approx([n / total for n in (4, 2, 1)][:best])


def test_choices_are_those_of_evaluate(choose: Model, tmp_path: pathlib.Path) -> None:
  rows = written(choose, tmp_path / 'predictions.jsonl')
  options = [row['record']['options'] for row in rows]
  found = choose.choose(['Anna is'] * len(rows), options)
  assert [one['option'] for one in found] == [row['option'] for row in rows]
  np.testing.assert_allclose([one['probabilities'] for one in found], [row['probability'] for row in rows], atol=1e-5)


def test_a_classifier_of_its_own_says_how_probable_no_answer_is() -> None:
  spans = np.array([(0, 3), (4, 7)])
  record = {'context': 'one two', 'answers': ['one'], 'characters': spans, 'first': 0}
  row = {'start': np.array([0, 1]), 'end': np.array([0, 1]), 'score': np.log(np.array([3.0, 1.0]))}
  for none in (-2.0, 2.0):
    told = row | {'no_answer': np.float64(none), 'impossible': np.float64(none)}
    found = replies.answer_of(Group([told], [record]), best=2, knows_none=True)
    share = 1 / (1 + np.exp(-none))
    assert found['text'] == ('one' if none < 0 else '')
    assert found['probability'] == pytest.approx((1 - share) * 0.75 if none < 0 else share)
    assert [one['probability'] for one in found['best']] == pytest.approx([(1 - share) * 0.75, (1 - share) * 0.25])


COPA = {'choice1': 'The moon rose.', 'choice2': 'Anna left.', 'premise': 'The garden was empty.', 'question': 'cause'}
RECORD = {'passage': 'Anna met Boris.', 'query': 'It was @placeholder again.', 'entities': ['Anna', 'Boris']}


def test_a_template_names_the_field_of_its_options() -> None:
  form = {'name': 'template', 'inputs': '{premise} [MASK]', 'options': ('{endings}',)}
  assert replies._form_fields({'form': form}) == ('premise', 'endings')
  assert replies._form_fields({'form': {**form, 'options': ('yes', 'no')}}) == ('premise',)


@pytest.mark.parametrize(
  ('task', 'rows'),
  [
    ('copa', [COPA | {'premise': f'The {place} was empty.', 'label': 1} for place in conftest.PLACES]),
    ('record', [RECORD | {'answers': ['Anna']}, RECORD | {'entities': ['Boris', 'Anna', 'Ann'], 'answers': ['Anna']}]),
  ],
)
def test_words_in_a_blank_are_those_of_evaluate(
  task: str, rows: list[dict[str, Any]], data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  """Compare a GLM on COPA and ReCoRD with `plm-jax evaluate`.

  Fields follow the order of the form.
  """
  about = {
    'name': 'text_to_text', 'path': write_rows(tmp_path / 'rows', rows), 'form': {'name': 'patterns', 'task': task},
    'layout': 'bert', 'target_layout': 'text', 'gap': ' ', 'length': 64, 'target_length': 16, 'shuffle': False,
  }  # fmt: skip
  sizes = runs.SIZES | {'max_length': 128}
  model = trained(
    adapted(data, {'name': 'cloze'}, about) | {'model': {'name': 'glm', 'variant': 'tiny', 'overrides': sizes}},
    tmp_path / 'run',
  )
  fields = {'copa': ('choice1', 'choice2', 'premise', 'question'), 'record': ('passage', 'query', 'entities')}[task]
  found = model.classify([tuple(row[name] for name in fields) for row in rows])
  expected = written(model, tmp_path / 'predictions.jsonl')
  for one, row in zip(found, expected, strict=True):
    options = row['record']['options']
    assert one['label'] == options[row['label']] and list(one['probabilities']) == options
    np.testing.assert_allclose(list(one['probabilities'].values()), row['probability'][: len(options)], atol=1e-5)
  with pytest.raises(ConfigError, match=rf'{len(fields)} texts.*{", ".join(fields)}'):
    model.classify('The moon rose.')


def test_options_by_the_names_of_fields() -> None:
  class Asked:
    block = {'fields': ('sent1', '{sent2} {ending0|ending1}')}

  item: Any = replies._item(Asked(), ('a', 'b'), ['c', 'd'])  # type: ignore[arg-type]
  assert item == {'sent1': 'a', 'sent2': 'b', 'ending0': 'c', 'ending1': 'd'}


# Arguments.


def test_nothing_gives_nothing(mlm: Model, gpt: Model, classify: Model, tag: Model, span: Model, choose: Model) -> None:
  assert mlm.encode([]).shape == (0, 32) and mlm.encode([], layer='all').shape == (0, 3, 32)
  assert [mlm.fill([]), mlm.score([]), gpt.score([]), gpt.generate([])] == [[]] * 4
  assert [classify.classify([]), tag.tag([]), span.answer([], []), choose.choose([], [])] == [[]] * 4
  assert tag.tag('') == [] and tag.tag([[], ['Anna']])[0] == []


def test_texts_without_a_token_are_asked_as_any_other(classify: Model, tag: Model, span: Model, choose: Model) -> None:
  alone, beside = classify.classify(('', '')), classify.classify([('', ''), ('Anna', 'Boris')])[0]
  assert alone['label'] == beside['label']
  np.testing.assert_allclose(*([*one['probabilities'].values()] for one in (alone, beside)), rtol=1e-5)
  assert len(tag.tag([['', ' ']])[0]) == 2
  assert span.answer('', '')['text'] == ''
  assert len(choose.choose('', ['', ''])['probabilities']) == 2


@pytest.mark.parametrize(
  ('name', 'call', 'said'),
  [
    ('mlm', lambda model: model.classify('a'), r"'mlm'.*encode, fill, score.*\bclassify"),
    ('mlm', lambda model: model.generate('a'), r'encode, fill, score.*\bgenerate'),
    ('gpt', lambda model: model.fill('[MASK]'), r'fill.*encode, score, generate'),
    ('gpt', lambda model: model.answer('a', 'b'), r"answer\b.*'span'"),
    ('classify', lambda model: model.tag('a'), r"'classify'.*encode, classify.*\btag\b"),
    ('classify', lambda model: model.score('a'), r'score.*encode, classify'),
    ('classify', lambda model: model.classify([('a', 'b', 'c')]), r'classify.*one or two texts.*\b3\b'),
    ('choose', lambda model: model.choose('a', ['b']), r'choose.*two.*\b1 option'),
    ('mlm', lambda model: model.encode(3), r'encode.*\bint\b'),
    ('mlm', lambda model: model.encode(['a', 3]), r'text 1\b.*\bint\b'),
    ('mlm', lambda model: model.encode('a', layer=3), r'layer=3\b.*-3 to 2'),
    ('mlm', lambda model: model.encode('a', pool='max'), r"pool='max'.*mean, first, last, none"),
    ('mlm', lambda model: model.fill('a'), 'blank.*<mask>'),
    ('mlm', lambda model: model.fill('[MASK] ' * 40), r'\b32 tokens'),
    ('mlm', lambda model: model.fill('[MASK]', top=0), r'top=0\b'),
    ('gpt', lambda model: model.generate('a', tempature=1), "tempature.*'temperature'"),
    ('gpt', lambda model: model.generate('a', beams=2), r'beams=2\b.*method=beam'),
    ('gpt', lambda model: model.generate('a', max_new=40), r'\b32 tokens'),
    *(
      ('gpt', lambda model, given=given: model.generate('a', **given), f'{name}={re.escape(repr(given[name]))}')
      for name, given in (
        ('max_new', {'max_new': 2.5}), ('max_new', {'max_new': '4'}), ('max_new', {'max_new': None}),
        ('max_new', {'max_new': True}), ('min_new', {'min_new': None}), ('seed', {'seed': 2**70}),
        ('seed', {'seed': -5}), ('start', {'start': 5}), ('temperature', {'method': 'sample', 'temperature': math.nan}),
        ('temperature', {'method': 'sample', 'temperature': 1e-300}),
        ('num_samples', {'method': 'sample', 'num_samples': 2.0}),
        ('num_samples', {'method': 'sample', 'num_samples': 10**9}),
        ('beams', {'method': 'beam', 'beams': 10**6}),
        ('length_penalty', {'method': 'beam', 'length_penalty': math.nan}),
      )
    ),
    ('gpt', lambda model: model.generate('caf\udce9'), r'text 0\b.*character'),
    ('mlm', lambda model: model.encode('a', layer=1.5), r'layer=1\.5\b'),
    ('mlm', lambda model: model.encode('a', layer=True), r'layer=True\b'),
    *(
      ('mlm', lambda model, layer=layer: model.encode('a', layer=layer), r'layer=.*-3 to 2')
      for layer in (
        np.array([0, 3]), np.array([0.0, 1.0]), np.array([True]), np.array([[0, 1]]), np.array([], int), np.array(1),
        np.int64(3), np.float32(1), [np.array([0])], ['0'], {0, 1}, None, 'last', {'all': 1}, [[0], [0, 1]],
      )
    ),
    ('span', lambda model: model.answer(None, None), 'answer: .*question'),
    ('span', lambda model: model.answer(['a'], 3), 'answer: .*question'),
    ('choose', lambda model: model.choose(None, None), 'choose: .*options'),
    ('choose', lambda model: model.choose('a', None), 'choose: .*options'),
    ('mlm', lambda model: model.encode(np.array('a')), r'encode.*\bndarray\b'),
  ],
)  # fmt: skip
def test_refuses(name: str, call: Any, said: str, request: pytest.FixtureRequest) -> None:
  with pytest.raises(ConfigError, match=said):
    call(request.getfixturevalue(name))


def test_a_folder_that_is_none() -> None:
  with pytest.raises(ConfigError, match=r'nowhere.*folder'):
    plm_jax.load('nowhere')
  with pytest.raises(ConfigError, match=r"dtype='int8'.*float32"):
    plm_jax.load('.', dtype='int8')
  with pytest.raises(ConfigError, match=r'folder.*\bint\b'):
    plm_jax.load(5)  # type: ignore[arg-type]
  with pytest.raises(ConfigError, match=r'batch_size=True\b'):
    plm_jax.load('.', batch_size=True)


def test_a_folder_without_a_model(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  (tmp_path / 'train.csv').write_text('text,label\na,1\n')
  for folder in (tmp_path, data / 'vocab'):
    with pytest.raises(ConfigError, match='no model') as caught:
      plm_jax.load(folder)
    assert 'vocab train' not in str(caught.value)
    assert str(folder) in str(caught.value)
  (tmp_path / 'adapter_config.json').write_text('{}')
  with pytest.raises(weights.WeightsError, match='PEFT'):
    plm_jax.load(tmp_path)


def test_a_step_that_is_not_there_is_refused_at_once(mlm: Model) -> None:
  folder = mlm.folder.folder
  steps = [int(path.name) for path in (folder / 'checkpoints').iterdir() if path.name.isdecimal()]
  for step in ('bset', max(steps) + 1):
    with pytest.raises(ConfigError, match=rf'no step {step} .*\b{max(steps)}\b') as caught:
      plm_jax.load(folder, step=step)
    assert str(caught.value).startswith(str(folder))
  for step in (None, 'newest', *steps):
    assert plm_jax.load(folder, step=step).folder.step == step


def test_the_package_is_imported_without_jax() -> None:
  code = 'import sys, plm_jax; plm_jax.load; sys.exit("jax" in sys.modules)'
  assert subprocess.run([sys.executable, '-c', code], cwd=conftest.ROOT, check=False).returncode == 0


@pytest.mark.usefixtures('mlm', 'gpt', 'classify', 'tag', 'parse', 'span', 'choose')
def test_the_pages_run_as_they_stand(data: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  """Each folder that the guide names is a run here; MODEL of the other pages is one of them."""
  monkeypatch.chdir(data)
  for page in ('README.md', 'docs/index.md', 'docs/guide/python.md'):
    (block,) = re.findall(r'```python\n(.*?)```', (conftest.ROOT / page).read_text(), flags=re.DOTALL)
    exec(compile(block.replace("'MODEL'", "'BERT'"), page, 'exec'), {})  # noqa: S102
  methods = {name for name in vars(Model) if not name.startswith('_')}
  assert methods == set(re.findall(r'\.(\w+)\(', block)) - {'load'}
