"""Answers as parts of a text: scores beside transformers, the best pairs against a plain search, whole runs."""

import functools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import config, weights
from plm_jax.adapters import span
from plm_jax.data.corpora import sources
from plm_jax.data.rows import question_windows
from plm_jax.inference import replies
from plm_jax.models import bart
from plm_jax.runs import metrics
from plm_jax.scores import Group, squad, squad2
from plm_jax.text import byte_bpe
from plm_jax.training import loop, parts, step
from tests import conftest, runs, tiny
from tests.adapters import running
from tests.adapters.running import predict, run

pytestmark = pytest.mark.turns

ROWS = ((16,), (7,), (11,), (6,))


def make_task(trunk: str = 'bert', **settings):
  return span.make(trunk=tiny.make_trunk(trunk), vocab=tiny.VOCAB, **settings)


def make_batch():
  """[CLS] A [SEP] B [SEP] whose text is B; the third row has no answer."""
  batch = tiny.make_batch(ROWS)
  context = np.where(np.asarray(batch['type_ids']) == 1, 2, 0)
  for row, (size,) in enumerate(ROWS):
    context[row, size - 1] = 0  # the last [SEP]
  context[:, 0] = 3
  context[0, 9] = 1  # another window shows more around it
  answers = {'start': [10, 4, 0, 4], 'end': [12, 4, 0, 4]}
  return batch | {'context': jnp.asarray(context, jnp.int32)} | {name: jnp.array(v) for name, v in answers.items()}


BERT = make_task(n_best=5, max_answer=3)


def test_a_bilstm_below_the_head_shows_each_token_what_follows():
  batch = make_batch()
  later = batch | {'tokens': batch['tokens'].at[0, 12].add(1)}
  for layers, changes in ((None, False), (1, True)):  # a causal trunk alone does not see later tokens
    task = make_task('gpt', lstm_layers=layers)
    params = tiny.init_params(task, batch)
    scores = [np.asarray(run(task, text, params)[0][0])[0, :12] for text in (batch, later)]
    assert (scores[0] != scores[1]).any() == changes


def test_an_answer_costs_the_mean_of_its_two_edges():
  batch = make_batch()
  params = tiny.init_params(BERT, batch)
  (scores, _), loss = run(BERT, batch, params)
  assert scores.shape == (4, 16, 2)
  costs, right = [], []
  for row, (size,) in enumerate(ROWS):
    own = np.asarray(scores, np.float64)[row, :size]  # padding is no choice
    nats = np.log(np.exp(own).sum(axis=0)) - own
    edges = int(batch['start'][row]), int(batch['end'][row])
    costs.append((nats[edges[0], 0] + nats[edges[1], 1]) / 2)
    right.append(tuple(own.argmax(axis=0)) == edges)
  means = tiny.means(loss.metrics)
  assert float(loss.value) == pytest.approx(np.mean(costs), rel=1e-5) == pytest.approx(means['loss'], rel=1e-5)
  assert means['accuracy'] == np.mean(right)


def test_scores_are_those_of_transformers(tmp_path):
  torch, model = pytest.importorskip('torch'), running.their_bert('BertForQuestionAnswering')
  batch = make_batch()
  with torch.no_grad():
    tokens, inputs = running.torch_inputs(batch)
    theirs = model(tokens, **inputs)
  model.bert.save_pretrained(tmp_path)
  trunk, params = weights.load(tmp_path)
  params.pop('head', None)
  head = {'kernel': model.qa_outputs.weight.detach().numpy().T, 'bias': model.qa_outputs.bias.detach().numpy()}
  task = span.make(trunk=trunk, vocab=tiny.VOCAB)
  (scores, _), _ = run(task, batch, {'trunk': params, 'head': head})
  real = np.asarray(batch['segment_ids']) > 0
  for number, logits in enumerate((theirs.start_logits, theirs.end_logits)):
    assert tiny.worst(np.asarray(scores)[real, number], logits.numpy()[real]) < 1e-5


def search(start, end, context, *, n_best, max_answer):
  """The pairs by the plain search over all of them, best first."""
  found = []
  for i in range(len(start)):
    for j in range(i, min(i + max_answer, len(start))):
      if context[i] == question_windows.MAXIMUM and context[j] in (question_windows.SHOWN, question_windows.MAXIMUM):
        found.append((start[i] + end[j], i, j))
  return sorted(found, key=lambda pair: -pair[0])[:n_best]


@pytest.mark.parametrize(('n_best', 'max_answer'), [(1, 1), (5, 3), (20, 30), (400, 8)])
def test_the_best_pairs_are_those_of_a_plain_search(n_best, max_answer):
  draw = np.random.default_rng(n_best)
  start, end = draw.standard_normal((2, 40, 12)).astype(np.float32)
  context = draw.choice([0, 1, 2], (40, 12), p=[0.3, 0.3, 0.4])
  context[0] = 0
  context[:, 0] = 3
  best = jax.jit(functools.partial(span.best_spans, n_best=n_best, max_answer=max_answer))
  found = {name: np.asarray(value) for name, value in best(start, end, context).items()}
  assert found['score'].shape == found['start'].shape == (40, n_best)
  assert found['no_answer'] == pytest.approx(start[:, 0] + end[:, 0])
  for row in range(40):
    expected = search(start[row], end[row], context[row], n_best=n_best, max_answer=max_answer)
    legal = found['score'][row] > squad.NEVER
    assert legal.sum() == len(expected) and legal[: len(expected)].all()
    assert found['score'][row][legal] == pytest.approx([score for score, _, _ in expected])
    pairs = zip(found['start'][row][legal].tolist(), found['end'][row][legal].tolist(), strict=True)
    assert list(pairs) == [(i, j) for _, i, j in expected]
    assert (found['start'][row] < 12).all() and (found['end'][row] < 12).all()


def test_an_answer_may_be_one_token_and_no_longer_than_allowed():
  start, end = np.zeros((2, 1, 6), np.float32)
  start[0, 3] = end[0, 3] = 5
  context = np.array([[3, 0, 2, 2, 2, 2]])
  found = span.best_spans(start, end, context, n_best=1, max_answer=30)
  assert (int(found['start'][0, 0]), int(found['end'][0, 0])) == (3, 3)
  start[0, 2], end[0, 3], end[0, 5] = 9, 0, 9
  found = span.best_spans(start, end, context, n_best=1, max_answer=3)
  assert int(found['end'][0, 0] - found['start'][0, 0]) <= 2


def test_predictions_are_the_best_pairs_and_the_threshold_moves_no_answer():
  batch = make_batch()
  params = tiny.init_params(BERT, batch)
  (scores, _), _ = run(BERT, batch, params)
  found = predict(BERT, batch, params)
  for row in range(4):
    own = np.asarray(scores)[row]
    expected = search(own[:, 0], own[:, 1], np.asarray(batch['context'])[row], n_best=5, max_answer=3)
    assert found['score'][row, : len(expected)].tolist() == pytest.approx([score for score, _, _ in expected])
    assert float(found['no_answer'][row]) == pytest.approx(own[0].sum(), rel=1e-5)
  higher = predict(make_task(n_best=5, max_answer=3, threshold=1.5), batch, params)
  assert np.asarray(found['no_answer'] - higher['no_answer']) == pytest.approx(1.5, rel=1e-5)


def test_an_answer_in_words_is_a_part_of_the_text():
  record = {'context': '北京 is  Beijing.', 'characters': np.array([(0, 2), (2, 5), (5, 14), (14, 15)]), 'first': 3}
  prediction = {'start': np.array([5]), 'end': np.array([6]), 'score': np.array([2.0])}
  record['context'] = '北京 is  Beijing.'
  assert span.in_words(prediction, record) == {'answer': record['context'][5:15].strip()}
  assert span.in_words({**prediction, 'score': np.array([-2e30])}, record) == {'answer': ''}


@pytest.mark.parametrize('end', ['independent', 'conditional'])
def test_an_answer_in_words_is_that_of_the_rule(end):
  """No answer where the submission of the row has none, if the task knows of texts without an answer."""
  record = {
    'row': {'id': 'q'}, 'context': 'in Rome', 'characters': np.array([(0, 2), (3, 7)]), 'first': 3, 'answers': None
  }  # fmt: skip
  for score, nothing in ((1.0, 9.0), (1.0, 0.5), (-2e30, -3e30)):
    row = {'start': np.array([4]), 'end': np.array([4]), 'score': np.array([score]), 'no_answer': np.array(nothing)}
    row |= {'impossible': np.array(nothing - 2)} if end == 'conditional' else {}
    sent = json.loads(squad2.submission([row], [record]))['q']
    assert make_task(no_answer=True, end=end).in_words(row, record) == {'answer': sent}
    assert replies.answer_of(Group([row], [record]), best=1, knows_none=True)['text'] == sent
    assert sent == ('Rome' if nothing == 0.5 else '')
    assert make_task(end=end).in_words(row, record) == {'answer': 'Rome' if score > 0 else ''}


def test_which_score_is_taken_depends_on_whether_texts_may_hold_no_answer():
  assert make_task().scores == ('squad',)
  assert make_task(no_answer=True).scores == ('squad2',)


def test_an_encoder_decoder_points_by_the_states_of_its_decoder():
  trunk = bart.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=tiny.SIZES)
  task, batch = span.make(trunk=trunk, vocab=tiny.VOCAB), make_batch()
  params = tiny.init_params(task, batch)
  (scores, _), loss = run(task, batch, params)
  assert scores.shape == (4, 16, 2) and np.isfinite(float(loss.value))


def test_a_frozen_trunk_is_kept():
  running.check_that_the_trunk_is_kept(make_task(frozen=True), make_batch())


# An end that depends on the start -----------------------------------------------------------------------------------

CONDITIONAL = make_task(end='conditional', n_best=8, starts=3, max_answer=3, no_answer=True)


def test_the_head_of_xlnet_is_that_of_transformers(tmp_path):
  torch, transformers = pytest.importorskip('torch'), pytest.importorskip('transformers')
  torch.manual_seed(0)
  settings = transformers.XLNetConfig(vocab_size=61, d_model=16, n_layer=2, n_head=2, d_inner=40, start_n_top=5)
  model = running.shaken(transformers.XLNetForQuestionAnswering(settings))
  model.transformer.save_pretrained(tmp_path)
  trunk, params = weights.load(tmp_path)
  params.pop('head', None)

  def dense(layer):
    bias = {} if layer.bias is None else {'bias': layer.bias.detach().numpy()}
    return {'kernel': layer.weight.detach().numpy().T, **bias}

  end, none = model.end_logits, model.answer_class
  head = {
    'start': dense(model.start_logits.dense), 'end_inner': dense(end.dense_0), 'end': dense(end.dense_1),
    'end_norm': {'scale': end.LayerNorm.weight.detach().numpy(), 'bias': end.LayerNorm.bias.detach().numpy()},
    'none_inner': dense(none.dense_0), 'none': dense(none.dense_1),
  }  # fmt: skip
  batch = make_batch()
  batch['context'] = jnp.where(batch['context'] == 1, 2, batch['context'])
  task = span.make(trunk=trunk, vocab=tiny.VOCAB, end='conditional', starts=5, n_best=200, max_answer=16)
  own = {'trunk': params, 'head': head}
  _, loss = run(task, batch, own)
  found = {name: np.asarray(value) for name, value in predict(task, batch, own).items()}

  tokens, inputs = running.torch_inputs(batch)
  hidden = torch.tensor(np.asarray(batch['context']) == 0).float()
  start, stop = (torch.tensor(np.asarray(batch[name])).long() for name in ('start', 'end'))
  with torch.no_grad():
    trained = model(tokens, start_positions=start, end_positions=stop, p_mask=hidden, **inputs)
    theirs = model(tokens, cls_index=torch.zeros(4).long(), p_mask=hidden, **inputs)
  assert tiny.means(loss.metrics)['span_loss'] == pytest.approx(float(trained.loss), rel=1e-4)
  assert tiny.worst(found['no_answer'], theirs.cls_logits.numpy()) < 1e-4
  for row in range(4):
    pairs = {}  # of their beam: (start, end) -> the product of probabilities
    for k, first in enumerate(theirs.start_top_index[row].tolist()):
      for j in range(settings.end_n_top):
        place = j * settings.start_n_top + k
        value = theirs.start_top_log_probs[row, k] * theirs.end_top_log_probs[row, place]
        pairs[first, int(theirs.end_top_index[row, place])] = float(value)
    mine = {(int(i), int(j)): float(np.exp(score)) for i, j, score in
            zip(found['start'][row], found['end'][row], found['score'][row], strict=True) if score > -1e20}  # fmt: skip
    both = [pair for pair in pairs if pair in mine]
    assert both and all(mine[pair] == pytest.approx(pairs[pair], rel=1e-3) for pair in both)


def test_a_conditional_end_is_legal_and_no_answer_is_told():
  batch = make_batch()
  params = tiny.init_params(CONDITIONAL, batch)
  (scores, _), loss = run(CONDITIONAL, batch, params)
  assert scores.shape == (4, 16, 1)
  means = tiny.means(loss.metrics)
  assert means['loss'] == pytest.approx(means['span_loss'] + 0.5 * means['answerable_loss'], rel=1e-5)
  found = {name: np.asarray(value) for name, value in predict(CONDITIONAL, batch, params).items()}
  context = np.asarray(batch['context'])
  for row in range(4):
    legal = found['score'][row] > squad.NEVER
    assert (np.diff(found['score'][row]) <= 0).all() and legal.any()
    for i, j in zip(found['start'][row][legal], found['end'][row][legal], strict=True):
      assert i <= j < i + 3 and context[row, i] == 2 and context[row, j] in (1, 2)
    assert len(set(found['start'][row][legal].tolist())) <= 3
  _, gradient = tiny.loss_and_gradient(CONDITIONAL, params, batch)
  # softmax does not see what all places have in common
  no_gradient = {('start', 'bias'), ('end', 'bias'), ('end_norm', 'bias')}
  for name, leaves in gradient['head'].items():
    for leaf, value in leaves.items():
      assert (name, leaf) in no_gradient or np.abs(np.asarray(value)).max() > 1e-6, (name, leaf)


def test_padding_changes_nothing_for_a_conditional_end():
  batch = make_batch()
  params = tiny.init_params(CONDITIONAL, batch)
  noise = {**batch, 'tokens': jnp.where(batch['segment_ids'] > 0, batch['tokens'], 51)}
  one, other = (run(CONDITIONAL, each, params)[1] for each in (batch, noise))
  assert tiny.same(one, other)
  with pytest.raises(ValueError, match=r"adapter\.end='joint'.*independent, conditional"):
    make_task(end='joint')


# Whole runs ------------------------------------------------------------------------------------------


def article(draw, *, impossible=False):
  """A story with questions about who stands in it, as a paragraph of a published file; without answers where asked."""
  text, other = conftest.story(draw), conftest.story(draw)
  name = text.split()[0]
  asked = [{'id': f'{draw.random()}', 'question': 'Who lived near it?', 'answers': [{'text': name, 'answer_start': 0}]}]
  if impossible:
    asked.append({'id': f'{draw.random()}', 'question': other.split()[-1], 'answers': [], 'is_impossible': True})
  return {'title': name, 'paragraphs': [{'context': text, 'qas': asked}]}


def settings(folder, **changes):
  plain = {
    'steps': 4, 'log_every': 2, 'eval_every': 4, 'save_every': 4,
    'vocab': {'name': 'byte_bpe', 'path': str(folder / 'vocab')},
    'model': {'name': 'bert', 'variant': 'tiny', 'overrides': runs.SIZES | {'max_length': 64}},
    'adapter': {'name': 'span'},
    'data': {'name': 'labelled', 'kind': 'spans', 'path': str(folder), 'length': 48, 'stride': 16, 'batch_size': 8,
             'question_length': 12, 'layout': 'bert', 'cache': str(folder / 'cache')},
    'optim': {'name': 'adamw', 'rate': 1e-3, 'schedule': 'constant'},
    'eval': {'validation': {'data': {'split': 'validation'}}},
    'best': ('validation/loss', 'min'),
  }  # fmt: skip
  return config.resolve(plain | changes)


@pytest.fixture(scope='module', params=[False, True], ids=['squad', 'squad2'])
def folder(request, tmp_path_factory):
  place, draw = tmp_path_factory.mktemp('span'), random.Random(0)
  for split, count in (('train', 12), ('validation', 5)):
    data = [article(draw, impossible=request.param) for _ in range(count)]
    (place / f'{split}.json').write_text(json.dumps({'version': '2.0' if request.param else '1.1', 'data': data}))
  byte_bpe.train([conftest.story(draw) for _ in range(60)], size=400).save(place / 'vocab')
  return place, request.param


def test_a_run_trains_and_evaluates(folder, tmp_path):
  place, no_answer = folder
  made = settings(place, adapter={'name': 'span', 'no_answer': no_answer}, best=('validation/f1', 'max'))
  assert loop.train(made, tmp_path).exit_code == 0
  last = metrics.read(tmp_path)[-1]
  assert 0 <= last['validation/exact_match'] <= last['validation/f1'] <= 100
  assert ('validation/best_f1' in last) is no_answer


def test_predictions_and_records_are_what_the_score_reads(folder):
  place, no_answer = folder
  made = settings(place, adapter={'name': 'span', 'no_answer': no_answer, 'n_best': 3})
  vocab = parts.make_vocab(made)
  task = parts.make_parts(made, vocab).task
  source = parts.make_source(made['data'], vocab, seed=0)
  params = tiny.draw(step.abstract_params(task, source.spec))
  score = {'squad': squad, 'squad2': squad2}[task.scores[0]]
  run, predictions = jax.jit(functools.partial(step.predict_step, task=task)), []
  for batch in source.once():
    found = jax.device_get(run(params, batch, jax.random.key(0)))
    predictions += [{name: value[row] for name, value in found.items()} for row in np.flatnonzero(batch['row_weight'])]
  ids = [int(prediction['row_id']) for prediction in predictions]
  records = [{**source.record(row), 'group': source.group(row)} for row in ids]
  assert set(score.READS) <= set(predictions[0]) and set(score.RECORDS) <= set(records[0])
  values = score.score(predictions, records)
  assert set(values) == set(score.METRICS)
  assert 0 <= values['exact_match'] <= values['f1'] <= 100
  answers = json.loads(score.submission(predictions, records))
  texts = {record['row']['id']: record['context'] for record in records}
  assert len(answers) == (24 if no_answer else 12) < len(records)
  assert all(answer in texts[name] for name, answer in answers.items())


def test_a_record_leads_from_places_back_to_the_text(folder):
  place, _ = folder
  made = settings(place)
  source = parts.make_source(made['data'], parts.make_vocab(made), seed=0)
  seen = 0
  for batch in source.once():
    for row in np.flatnonzero(batch['row_weight']):
      record = source.record(int(batch['row_id'][row]))
      assert (batch['context'][row][record['first'] :][: len(record['characters'])] > 0).all()
      if record['answers'] and batch['start'][row]:
        answer = squad.text_of(record, int(batch['start'][row]), int(batch['end'][row]))
        assert squad.exact_match(answer, record['answers'][0])
        seen += 1
  assert seen >= 12


def short_rows(path, split, cache):
  """SQuAD's questions that ask for a number, with 150 characters of text on either side of it."""
  for row in sources.open_source(str(path), split=split, cache=str(cache)):
    answer, place = row['answers']['text'][0], int(row['answers']['answer_start'][0])
    if answer.isdigit():
      first = max(0, place - 150)
      answers = {'text': [answer], 'answer_start': [place - first]}
      yield {'question': row['question'], 'context': row['context'][first : place + 150], 'answers': answers}


@pytest.mark.slow
def test_a_tiny_network_learns_that_answers_are_numbers(shared_data, tmp_path):
  """A BERT of 0.6 M parameters from scratch: F1 is 45 after 50 steps; a word chosen at random has 1."""
  data = tmp_path / 'data'
  data.mkdir()
  for split in ('train', 'validation[:25%]'):
    rows = list(short_rows(shared_data('squad'), split, tmp_path))
    (data / f'{split.partition("[")[0]}.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  byte_bpe.train([row['context'] for row in rows], size=1000).save(tmp_path / 'vocab')
  read = {
    'name': 'labelled', 'kind': 'spans', 'path': str(data), 'length': 128, 'stride': 48, 'question_length': 24,
    'batch_size': 16, 'layout': 'bert', 'cache': str(tmp_path / 'cache'),
  }  # fmt: skip
  made = settings(
    tmp_path, steps=60, eval_every=60, save_every=60, data=read, best=('validation/f1', 'max'),
    model={'name': 'bert', 'variant': 'tiny', 'overrides': {'init_std': 0.06}},
    optim={'name': 'bert_adam', 'rate': 1e-3, 'schedule': 'linear_bert', 'warmup': 0.1, 'clip': 1.0},
    eval={'validation': {'data': {'split': 'validation'}}},
  )  # fmt: skip
  assert loop.train(made, tmp_path / 'run').exit_code == 0
  assert metrics.read(tmp_path / 'run')[-1]['validation/f1'] > 25
