"""Labels of words: which state labels what, packed rows, spans against a count of their own, what is refused."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import tag, texts
from plm_jax.layers import lstm
from plm_jax.models import bart
from plm_jax.scores import conll, word_accuracy
from plm_jax.training import step
from tests import tiny
from tests.adapters.running import check_that_the_trunk_is_kept, predict, run

pytestmark = pytest.mark.turns

BIO = ('O', 'B-name', 'I-name', 'B-type', 'I-type')
ROWS = ((16,), (7, 5), (11,), (3, 4, 5))


def make_task(trunk: str = 'bert', *, tags=BIO, fields=None, **settings):
  return tag.make(trunk=tiny.make_trunk(trunk, **(fields or {})), vocab=tiny.VOCAB, tags=tags, **settings)


def make_batch(rows=ROWS, *, seed: int = 0, classes: int = len(BIO)):
  """The rows of `tiny.make_batch`, about two of three tokens the first piece of a word."""
  batch = tiny.make_batch(rows)
  labels = np.random.default_rng(seed).integers(0, classes * 3 // 2, batch['tokens'].shape)
  return {**batch, 'labels': jnp.asarray(np.where(labels < classes, labels, -1).astype(np.int32))}


BERT = make_task()


def states_of(task, params, inputs):
  return jax.jit(lambda params: task.model.trunk.apply({'params': params['trunk']}, **inputs))(params)


def words_of(batch):
  """(row, place) of every word that is scored."""
  scored = (batch['labels'] >= 0) & (batch['segment_ids'] > 0) & (batch['row_weight'] > 0)[:, None]
  return [(int(row), int(place)) for row, place in np.argwhere(np.asarray(scored))]


# What is scored ------------------------------------------------------------------------------------------------------


def test_each_word_costs_the_nats_of_its_first_piece():
  batch = make_batch()
  params = tiny.init_params(BERT, batch)
  logits, loss = run(BERT, batch, params)
  predicted = predict(BERT, batch, params)
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids')}
  hidden = np.asarray(states_of(BERT, params, inputs)['hidden'], np.float64)
  expected = hidden @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])
  assert tiny.worst(logits, expected) < 1e-5
  words = words_of(batch)
  assert 20 < len(words) < (np.asarray(batch['segment_ids']) > 0).sum()
  right = [int(batch['labels'][word]) for word in words]
  nats = [
    np.log(np.exp(expected[word]).sum()) - expected[word][label] for word, label in zip(words, right, strict=True)
  ]
  guesses = [int(expected[word].argmax()) for word in words]
  assert float(loss.value) == pytest.approx(np.mean(nats), rel=1e-5)
  means = tiny.means(loss.metrics)
  assert means['loss'] == pytest.approx(np.mean(nats), rel=1e-5)
  assert means['accuracy'] == pytest.approx(np.mean(np.equal(guesses, right)), rel=1e-6)
  assert float(loss.metrics['accuracy'][1]) == len(words)
  # a guess for every word, and -1 where no word begins
  given = np.full(predicted['labels'].shape, -1)
  for word, guess in zip(words, guesses, strict=True):
    given[word] = guess
  assert predicted['labels'].tolist() == given.tolist()
  shares = np.where(given >= 0, (np.exp(expected) / np.exp(expected).sum(-1, keepdims=True)).max(-1), 0)
  assert tiny.worst(predicted['probability'], shares) < 1e-5


def test_other_pieces_padding_and_rows_of_weight_zero_count_for_nothing():
  batch = {**make_batch(), 'row_weight': jnp.array([1.0, 0, 1, 1])}
  params = tiny.init_params(BERT, batch)
  _, loss = run(BERT, batch, params)
  scored = np.zeros(batch['labels'].shape, bool)
  scored[tuple(zip(*words_of(batch), strict=True))] = True
  other = jnp.where((batch['segment_ids'] == 0) | (batch['row_weight'] == 0)[:, None], 2, batch['labels'])
  assert not tiny.same(other, batch['labels'])
  assert tiny.same(run(BERT, {**batch, 'labels': other}, params)[1], loss)
  # a loss reads the states of first pieces alone: no gradient comes from elsewhere
  example = BERT.prepare(jax.random.key(0), batch)

  class Fixed:
    def __call__(self, **inputs):
      return self.logits

  def value(logits):
    forward = Fixed()
    forward.logits = logits
    return BERT.loss(forward, example, (), jax.random.key(0)).value

  gradient = jax.grad(value)(jnp.zeros((4, 16, len(BIO))))
  assert ((np.abs(np.asarray(gradient)).max(axis=-1) > 0) == scored).all()


def test_texts_packed_in_a_row_are_labelled_as_if_alone():
  batch = make_batch()
  params = tiny.init_params(BERT, batch)
  logits, _ = run(BERT, batch, params)
  for row, number in ((1, 2), (3, 2), (3, 3)):
    inside = np.flatnonzero(np.asarray(batch['segment_ids'])[row] == number)
    alone = {name: value[:1] for name, value in batch.items()}
    for name in ('tokens', 'segment_ids', 'type_ids'):
      alone[name] = jnp.zeros((1, 16), jnp.int32).at[0, : len(inside)].set(batch[name][row, inside])
    alone['segment_ids'] = jnp.minimum(alone['segment_ids'], 1)
    theirs, _ = run(BERT, alone, params)
    assert tiny.worst(logits[row, inside], theirs[0, : len(inside)]) < 1e-5


# Paths of labels -----------------------------------------------------------------------------------------------------

NAMES = ('O', 'B-name', 'I-name')
CRF = make_task(tags=NAMES, crf=True, lstm_layers=2, lstm_dim=5, frozen=True, layers=(-2, -1), dropout=0.0)
FEW = ((5,), (3, 4), (2,), (6,))


def by_enumeration(logits, labels, chain):
  """(nats of the labels, best path) of the words of one text, over all its paths in float64."""
  paths = list(itertools.product(range(len(NAMES)), repeat=len(labels)))
  scores = []
  for path in paths:
    score = chain['start'][path[0]] + chain['end'][path[-1]] + sum(logits[k, label] for k, label in enumerate(path))
    scores.append(score + sum(chain['transitions'][a, b] for a, b in itertools.pairwise(path)))
  return np.log(np.exp(scores).sum()) - scores[paths.index(tuple(labels))], paths[int(np.argmax(scores))]


def test_a_crf_costs_the_nats_of_paths_and_predicts_the_best_of_all():
  batch = make_batch(FEW, classes=len(NAMES))
  params = tiny.init_params(CRF, batch)
  params = {**params, 'label_path': jax.tree.map(lambda leaf: 20 * leaf, params['label_path'])}  # no word decides alone
  chain = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params['label_path'])
  assert {name: leaf.shape for name, leaf in chain.items()} == {'transitions': (3, 3), 'start': (3,), 'end': (3,)}
  logits, loss = run(CRF, batch, params)
  predicted = predict(CRF, batch, params)
  labels, segment_ids = np.asarray(batch['labels']), np.asarray(batch['segment_ids'])
  nats, count, right, independent = 0.0, 0, 0, 0
  for row, number in itertools.product(range(4), (1, 2)):
    words = np.flatnonzero((labels[row] >= 0) & (segment_ids[row] == number))
    if len(words):
      cost, path = by_enumeration(np.asarray(logits, np.float64)[row, words], labels[row, words].tolist(), chain)
      assert predicted['labels'][row, words].tolist() == list(path)
      right += sum(np.equal(path, labels[row, words]))
      independent += sum(np.asarray(logits)[row, words].argmax(-1) == np.array(path))
      nats, count = nats + cost, count + len(words)
  assert independent < count > 8
  assert float(loss.value) == pytest.approx(nats / count, rel=1e-5)
  means = tiny.means(loss.metrics)
  assert means['loss'] == pytest.approx(nats / count, rel=1e-5)
  assert means['accuracy'] == pytest.approx(right / count)
  assert {'precision', 'recall', 'f1'} == set(CRF.summary(means))
  assert (np.asarray(predicted['labels'])[(labels < 0) | (segment_ids == 0)] == -1).all()


def test_layers_of_lstm_read_the_states_of_frozen_layers():
  batch = make_batch(FEW, classes=len(NAMES))
  params = tiny.init_params(CRF, batch)
  logits, _ = run(CRF, batch, params)
  out = states_of(CRF, params, {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids')})
  joined = jnp.concatenate([out['layers'][1], out['hidden']], axis=-1)
  stack = lstm.StackedLstm(5, 2)
  states = np.asarray(stack.apply({'params': params['lstm']}, joined, batch['segment_ids'], train=False))
  expected = states @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])
  assert tiny.worst(logits, expected) < 1e-5


def test_all_but_the_frozen_trunk_trains_and_the_trunk_keeps_every_bit():
  batch = make_batch(FEW, classes=len(NAMES))
  check_that_the_trunk_is_kept(CRF, batch)
  assert set(tiny.init_params(CRF, batch)) == {'trunk', 'lstm', 'head', 'label_path'}


def test_weights_of_classes_weigh_as_in_torch():
  torch = pytest.importorskip('torch')
  weights = (0.25, 2.0, 0.0, 1.0, 3.0)
  task, batch = make_task(class_weights=weights), make_batch()
  params = tiny.init_params(task, batch)
  logits, loss = run(task, batch, params)
  places = tuple(zip(*words_of(batch), strict=True))
  labels = np.asarray(batch['labels'])[places]
  peer = torch.nn.CrossEntropyLoss(weight=torch.tensor(weights))
  expected = float(peer(torch.tensor(np.asarray(logits)[places]), torch.tensor(labels, dtype=torch.int64)))
  assert float(loss.value) == pytest.approx(expected, rel=1e-5)
  assert tiny.means(loss.metrics)['loss'] == pytest.approx(expected, rel=1e-5)
  # accuracy counts every word alike
  guesses = np.asarray(logits)[places].argmax(-1)
  assert tiny.means(loss.metrics)['accuracy'] == pytest.approx((guesses == labels).mean())


# Encoder-decoders ----------------------------------------------------------------------------------------------------


def make_bart():
  trunk = bart.make(vocab_size=tiny.VOCAB.size, variant='tiny', overrides=tiny.SIZES)
  return tag.make(trunk=trunk, vocab=tiny.VOCAB, tags=BIO, dropout=0.0)


BART = make_bart()


def test_an_encoder_decoder_labels_by_the_top_states_of_its_decoder():
  batch = make_batch(((16,), (7,), (11,), (4,)))
  params = tiny.init_params(BART, batch)
  logits, _ = run(BART, batch, params)
  tokens, segment_ids = np.asarray(batch['tokens']), np.asarray(batch['segment_ids'])
  behind = tokens.copy()  # the same text for both, the decoder's rotated by one within the text
  for row, size in enumerate((16, 7, 11, 4)):
    behind[row, :size] = np.roll(tokens[row, :size], 1)
  given = {
    'encoder_tokens': batch['tokens'],
    'encoder_segment_ids': batch['segment_ids'],
    'decoder_tokens': jnp.asarray(behind),
    'decoder_segment_ids': batch['segment_ids'],
  }
  states = np.asarray(states_of(BART, params, given)['hidden'])
  expected = states @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])
  assert tiny.worst(np.asarray(logits)[segment_ids > 0], expected[segment_ids > 0]) < 1e-5
  # not by those of its encoder
  encoder = np.asarray(states_of(BART, params, given)['encoder_hidden'])
  assert tiny.worst(encoder @ np.asarray(params['head']['kernel']), expected) > 0.1


def test_every_word_is_labelled_by_all_of_its_text_and_by_no_other_text():
  batch = make_batch(((5, 6),) * 4)
  params = tiny.init_params(BART, batch)
  logits, _ = run(BART, batch, params)
  for place in (1, 4, 5, 9, 10):  # inner tokens, and the first and last of a text, which the rotation moves
    other = {**batch, 'tokens': batch['tokens'].at[:, place].add(1)}
    moved = np.abs(np.asarray(run(BART, other, params)[0] - logits)).max(axis=(0, 2)) > 0
    assert moved.tolist() == [(place < 5) == (index < 5) and index < 11 for index in range(16)]


def test_the_decoder_reads_each_packed_text_behind_its_own_last_token():
  tokens = jnp.array([[5, 11, 12, 6, 5, 13, 6, 0], [0, 0, 5, 14, 6, 9, 15, 16]])
  segment_ids = jnp.array([[1, 1, 1, 1, 2, 2, 2, 0], [0, 0, 1, 1, 1, 2, 3, 3]])
  inputs = texts.both_sides(tokens, segment_ids)
  shifted = np.where(np.asarray(segment_ids) > 0, np.asarray(inputs['decoder_tokens']), 0)
  assert shifted.tolist() == [[6, 5, 11, 12, 6, 5, 13, 0], [0, 0, 6, 5, 14, 9, 16, 15]]


# Spans ---------------------------------------------------------------------------------------------------------------


def spans_of(names):
  """{(first, last, type)} of a text's labels, read from left to right."""
  found, begun = set(), None
  for place, name in enumerate([*names, 'O']):
    prefix, _, kind = name.partition('-')
    if begun is not None and (prefix != 'I' or kind != begun[1]):
      found.add((begun[0], place - 1, begun[1]))
      begun = None
    if prefix != 'O' and begun is None:
      begun = place, kind
  return found


@pytest.mark.parametrize(
  ('names', 'expected'),
  [
    (['O', 'O'], set()),
    (['B-name'], {(0, 0, 'name')}),
    (['B-name', 'I-name', 'O', 'B-type'], {(0, 1, 'name'), (3, 3, 'type')}),
    (['B-name', 'B-name', 'I-name'], {(0, 0, 'name'), (1, 2, 'name')}),
    (['B-name', 'I-type', 'I-type'], {(0, 0, 'name'), (1, 2, 'type')}),  # another type
    (['O', 'I-name', 'I-name', 'B-name'], {(1, 2, 'name'), (3, 3, 'name')}),  # an I that nothing begins
  ],
)
def test_spans_of_a_text(names, expected):
  assert spans_of(names) == expected
  own = {name: jnp.asarray(value) for name, value in tag.bio(BIO)._asdict().items()}
  tags = jnp.array([[BIO.index(name) for name in names]])
  starts, last, kind = tag.spans(tags, jnp.ones_like(tags), **own)
  kinds = ('', *sorted({name[2:] for name in BIO if name != 'O'}))
  ours = {
    (place, int(last[0, place]), kinds[int(kind[0, place])]) for place in range(len(names)) if bool(starts[0, place])
  }
  assert ours == expected


def test_span_counts_are_those_of_a_count_text_by_text():
  draw = np.random.default_rng(0)
  counted = jax.jit(lambda *arrays: tag.span_counts(*arrays, tag.bio(BIO)))
  whole = np.zeros(3)
  for _ in range(20):
    labels = draw.choice([-1, -1, 0, 0, 1, 2, 2, 3, 4, 4], (8, 40))
    predicted = np.where(draw.random((8, 40)) < 0.7, np.maximum(labels, 0), draw.integers(0, 5, (8, 40)))
    segment_ids = np.sort(draw.integers(0, 4, (8, 40)), axis=1)[:, ::-1].copy()
    labels[segment_ids == 0] = -1
    tp = fp = fn = 0
    for row in range(8):
      for number in (1, 2, 3):
        words = (labels[row] >= 0) & (segment_ids[row] == number)
        right, found = (spans_of([BIO[label] for label in tags[row][words]]) for tags in (labels, predicted))
        tp, fp, fn = tp + len(right & found), fp + len(found - right), fn + len(right - found)
    assert [int(count) for count in counted(predicted, labels, segment_ids)] == [tp, fp, fn]
    whole += tp, fp, fn
  assert (whole > 100).all()


def test_scores_of_files_of_predictions_are_those_of_batches():
  draw = np.random.default_rng(1)
  labels = draw.choice([-1, -1, 0, 0, 1, 2, 2, 3, 4, 4], (30, 40))
  predicted = np.where(draw.random((30, 40)) < 0.7, np.maximum(labels, 0), draw.integers(0, 5, (30, 40)))
  tp, fp, fn = map(float, tag.span_counts(predicted, labels, np.ones_like(labels), tag.bio(BIO)))
  rows = [{'labels': np.where(gold >= 0, found, -1)} for found, gold in zip(predicted, labels, strict=True)]
  cut = [1, 0]  # two words of each text behind its row
  records = [
    {'labels': [*gold[gold >= 0], *cut], 'places': [*range(np.count_nonzero(gold >= 0) + 2)], 'names': BIO}
    for gold in labels
  ]
  assert conll.score(rows, records) == pytest.approx({'f1': 2 * tp / (2 * tp + fp + fn)})
  right = np.mean((predicted == labels)[labels >= 0])
  assert word_accuracy.score(rows, records) == pytest.approx({'accuracy': right})
  with pytest.raises(ValueError, match=r"'conll'.*'NOUN'"):
    conll.score(rows, [{**records[0], 'names': ('NOUN',)}])


def test_f1_is_of_all_rows_together():
  # three spans in all: one found, one found too long, one missed; so 1 / 2 and 1 / 3
  logits = jnp.eye(len(BIO))[jnp.array([[1, 2, 0, 0], [3, 4, 4, 0]])]
  labels = jnp.array([[1, 2, 0, 1], [3, 4, 0, 0]])
  batch = {'tokens': labels, 'segment_ids': jnp.ones_like(labels), 'labels': labels, 'row_weight': jnp.ones(2)}
  sums = []
  for rows in (slice(0, 1), slice(1, 2)):
    example = BERT.prepare(jax.random.key(0), {name: value[rows] for name, value in batch.items()})
    sums.append(BERT.loss(lambda part=logits[rows], **_: part, example, (), jax.random.key(0)).metrics)
  means = tiny.means(jax.tree.map(lambda a, b: a + b, *sums))
  derived = BERT.summary(means)
  assert derived == pytest.approx({'precision': 1 / 2, 'recall': 1 / 3, 'f1': 2 * (1 / 6) / (5 / 6)})
  nothing = dict.fromkeys(('tp', 'fp', 'fn'), 0.0)
  assert BERT.summary(nothing) == {'precision': 0.0, 'recall': 0.0, 'f1': 0.0}


def test_labels_without_spans_have_no_f1():
  task = make_task(tags=('NOUN', 'VERB', 'DET'))
  batch = make_batch(classes=3)
  _, loss = run(task, batch)
  assert set(loss.metrics) == {'loss', 'accuracy'}
  assert task.summary(tiny.means(loss.metrics)) == {}
  assert tag.bio(('O',)) is None
  assert tag.bio(('O', 'B-')) is None
  assert tag.bio(('O', 'B-a', 'X-a')) is None


# Trunks --------------------------------------------------------------------------------------------------------------


def test_layers_are_read_side_by_side():
  task = make_task(layers=(-2, -1, 0), dropout=0.0)
  batch = make_batch()
  params = tiny.init_params(task, batch)
  logits, _ = run(task, batch, params)
  out = states_of(task, params, {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids')})
  joined = np.concatenate([out['layers'][1], out['hidden'], out['layers'][0]], axis=-1)
  assert params['head']['kernel'].shape == (96, len(BIO))
  assert tiny.worst(logits, joined @ np.asarray(params['head']['kernel']) + np.asarray(params['head']['bias'])) < 1e-5


def test_a_frozen_trunk_gets_no_gradient_and_does_not_drop_out():
  task = make_task(frozen=True, dropout=0.0, fields={'dropout': 0.5, 'attention_dropout': 0.5})
  batch = make_batch()
  params = tiny.init_params(task, batch)
  losses = []
  for key in (0, 1):
    loss, gradient = tiny.loss_and_gradient(task, params, batch, key=key, train=True)
    losses.append(loss.value)
  assert tiny.same(*losses)
  assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(gradient['trunk']))
  assert all((np.asarray(leaf) != 0).any() for leaf in jax.tree.leaves(gradient['head']))


def test_what_cannot_be_is_refused():
  with pytest.raises(ValueError, match=r"adapter\.tags=\('O',\)"):
    make_task(tags=('O',))
  with pytest.raises(ValueError, match=r'adapter\.tags='):
    make_task(tags=('O', 'B-a', 'B-a'))
  with pytest.raises(ValueError, match=r'adapter\.layers=\(\)'):
    make_task(layers=())
  with pytest.raises(ValueError, match=r'adapter\.layers=\(-4, -1\).*-3.*2'):
    tiny.init_params(make_task(layers=(-4, -1)), make_batch())
  with pytest.raises(ValueError, match=r'adapter\.class_weights=\(1, 2\).*5'):
    make_task(class_weights=(1, 2))
  with pytest.raises(ValueError, match=r'adapter\.crf'):
    make_task(crf=True, class_weights=(1, 1, 1, 1, 1))


@pytest.mark.slow
@pytest.mark.parametrize('name', ['bert', 'bart'])
def test_a_hundred_steps_find_spans_in_rows_never_seen(name):
  task = {'bert': make_task(dropout=0.0), 'bart': BART}[name]

  def rows(seed):
    """Names are ids 10 to 19 and types 20 to 29; what continues a span is the id after its first."""
    draw = np.random.default_rng(seed)
    tokens, labels = np.full((32, 16), 40), np.zeros((32, 16), np.int32)
    for row in range(32):
      for start in (1, 6, 11):
        kind, size = draw.integers(0, 2), draw.integers(1, 4)
        tokens[row, start : start + 5] = draw.integers(30, 50, 5)
        tokens[row, start : start + size] = 10 + 10 * kind + draw.integers(0, 10, size)
        labels[row, start : start + size] = [1 + 2 * kind] + [2 + 2 * kind] * (size - 1)
    number = np.arange(32, dtype=np.int32) + 32 * seed
    batch = {'tokens': tokens.astype(np.int32), 'segment_ids': np.ones((32, 16), np.int32), 'labels': labels}
    batch |= {'row_id': number, 'epoch': np.zeros(32, np.int32), 'row_weight': np.ones(32, np.float32)}
    return {key: jnp.asarray(value) for key, value in batch.items()}

  tx = tiny.make_optimiser(task, rows(0), rate=3e-3)
  state = tiny.make_state(task, rows(0), tx)
  train = jax.jit(functools.partial(step.train_step, task=task, tx=tx))
  evaluate = jax.jit(functools.partial(step.eval_step, task=task))

  def f1():
    return task.summary(tiny.means(evaluate(state.params, rows(10_000), (), jax.random.key(0))[0]))['f1']

  assert f1() < 0.2
  for number in range(100):
    state, _ = train(state, rows(number), jax.random.key(0))
  assert f1() > 0.95
