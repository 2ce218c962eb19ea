"""Cross-view training: what each view has read, what unlabelled rows train, and that labelled rows train a tagger."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import parse, tag
from plm_jax.models import bert, cvt, elmo, lstm
from plm_jax.noise import keys
from plm_jax.objectives import multiview
from plm_jax.training import step
from tests import tiny

pytestmark = pytest.mark.turns

TAGS = {'names': ('O', 'B-a', 'I-a'), 'words': ('noun', 'verb', 'other', 'mark')}
PARTS = sorted([*TAGS, 'text'])
VIEWS = ('forward', 'backward', 'future', 'past', 'full')
HEADS = {'hidden': 6, 'init_std': 0.3}
KEY = jax.random.key(3)


def make_trunk(kind='cvt', *, dropout=0.0):
  sizes = {'word_dim': 6, 'filters': (0, 2), 'char_dim': 4, 'hidden_dim': 8, 'mlp_dims': (5, 7), 'dropout': dropout}
  if kind == 'lstm':
    sizes = {'hidden_dim': 8, 'num_layers': 2, 'mlp_dim': 5, 'dropout': dropout}
  if kind == 'elmo':
    sizes = {'hidden_dim': 8, 'num_layers': 2, 'mlp_dim': 5, 'filters': (2, 3), 'dropout': dropout}
  return {'cvt': cvt, 'lstm': lstm, 'elmo': elmo}[kind].make(
    vocab_size=tiny.VOCAB.size, variant='tiny', overrides=sizes
  )


@functools.cache
def make(kind='cvt', *, views=VIEWS, dropout=0.0, **settings):
  return multiview.make(
    trunk=make_trunk(kind, dropout=dropout), vocab=tiny.VOCAB, tags=TAGS, views=views, **HEADS, **settings
  )


def batch(part, lengths=((16,), (7, 5), (11,), (3, 4, 5))):
  rows = tiny.make_batch(lengths)
  labels = np.arange(64, dtype=np.int32).reshape(4, 16) % 4 - 1
  real = np.asarray(rows['segment_ids']) > 0
  more = {'labels': jnp.asarray(np.where(real, labels, -1)), 'part': jnp.full(4, PARTS.index(part), jnp.int32)}
  return rows | {'characters': tiny.make_streams(rows)['characters']} | more


@functools.cache
def params(kind='cvt'):
  return jax.tree.map(lambda leaf: 3 * leaf, tiny.init_params(make(kind), batch('text')))


def logits_of(rows, kind='cvt'):
  """{task: {view: [4, 16, labels]}} of unlabelled rows, and what the primary heads say."""
  task = make(kind)
  example = task.prepare(keys.noise_root(KEY), keys.with_step(rows, 0)).inputs
  forward = step.bind(task, params(kind), train=False, rng=KEY)
  return jax.device_get((forward(part='text', **example['text']), {
    name: forward(part=name, **example['text']) for name in TAGS
  }))  # fmt: skip


@pytest.mark.parametrize('kind', ['cvt', 'lstm', 'elmo'])
@pytest.mark.parametrize('place', [0, 5, 15])
def test_a_view_does_not_change_where_words_change_that_it_does_not_see(kind, place):
  rows = batch('text', ((16,),) * 4)
  before, primary = logits_of(rows, kind)
  other = jnp.where(jnp.arange(16) == place, 7 + (rows['tokens'] + 5) % 54, rows['tokens'])
  spelt = jnp.where((jnp.arange(16) == place)[:, None], 1 + rows['characters'] % 200, rows['characters'])
  after, others = logits_of({**rows, 'tokens': other, 'characters': spelt}, kind)
  words = np.arange(16)
  sees = {
    'forward': words >= place,
    'backward': words <= place,
    'future': words > place,
    'past': words < place,
    'full': words >= 0,
  }
  near = np.abs(words - place) <= 3
  for task in TAGS:
    assert (primary[task] != others[task]).any(axis=(0, 2))[near].all()
    for view in VIEWS:
      changed = (before[task][view] != after[task][view]).any(axis=(0, 2))
      assert not changed[~sees[view]].any(), (task, view)
      assert changed[sees[view] & near].all(), (task, view)


def test_hidden_words_have_a_neighbour_in_their_text():
  """Texts [CLS] a b [SEP] ... of 7, 5 and 4 tokens: no view at marks, no hidden view at their neighbours."""
  rows = dict(batch('text', ((7, 5), (4,), (16,), (1,))))
  # row 0: cls a b sep c d sep | cls a sep b sep
  starts = np.asarray(tiny.VOCAB.starts_word)
  tokens = np.asarray(rows['tokens'])
  tokens = np.where((tokens > 6) & ~starts[tokens], tokens + 1, tokens)  # every token is a word
  tokens[0, 1] = tiny.VOCAB.unk_id  # which an unknown one is
  rows['tokens'] = jnp.asarray(tokens)
  targets = jax.device_get(make().prepare(KEY, keys.with_step(rows, 0)).targets['text'])
  row = {view: np.flatnonzero(targets[view][0]).tolist() for view in VIEWS}
  assert row == {
    'forward': [1, 2, 4, 5, 8, 10],
    'backward': [1, 2, 4, 5, 8, 10],
    'full': [1, 2, 4, 5, 8, 10],
    'future': [2, 5],
    'past': [1, 4],
  }
  for view in VIEWS:
    np.testing.assert_allclose(targets[f'{view}_scale'], 1 / targets[view].sum())


def test_pieces_inside_a_word_have_no_view_and_show_no_word():
  rows = dict(batch('text', ((16,),) * 4))
  inside = 3 * (1 + np.arange(16) // 4 + 3)  # ids that are multiples of 3 begin no word
  tokens = np.where(np.arange(16) % 4 == 2, inside, 10)
  rows['tokens'] = jnp.asarray(np.broadcast_to(tokens, (4, 16)), jnp.int32)
  targets = jax.device_get(make().prepare(KEY, keys.with_step(rows, 0)).targets['text'])
  assert np.flatnonzero(targets['forward'][0]).tolist() == [n for n in range(16) if n % 4 != 2]
  # the state behind the first piece of a word is that of its second one, which would show the word
  assert np.flatnonzero(targets['past'][0]).tolist() == [n for n in range(15) if n % 4 not in (1, 2)]
  assert np.flatnonzero(targets['future'][0]).tolist() == [n for n in range(1, 16) if n % 4 != 2]


@functools.cache
def of_part(part, kind='cvt', views=VIEWS):
  return jax.device_get(tiny.loss_and_gradient(make(kind, views=views), params(kind), batch(part)))


def test_unlabelled_rows_train_views_towards_the_primary_heads():
  """KL over the words of each view, written again in numpy; the sum over tasks and views is what is trained."""
  loss, _ = of_part('text')
  found, primary = logits_of(batch('text'))
  targets = jax.device_get(make().prepare(KEY, keys.with_step(batch('text'), 0)).targets['text'])
  whole = 0.0
  for task in TAGS:
    theirs = np.exp(primary[task].astype(np.float64))
    theirs /= theirs.sum(axis=-1, keepdims=True)
    for view in VIEWS:
      ours = found[task][view].astype(np.float64)
      ours -= np.log(np.exp(ours).sum(axis=-1, keepdims=True))
      nats = (theirs * (np.log(theirs) - ours)).sum(axis=-1)[targets[view] > 0]
      agree = (theirs.argmax(axis=-1) == ours.argmax(axis=-1))[targets[view] > 0]
      total, weight = loss.metrics[f'text/{task}_{view}']
      np.testing.assert_allclose(total / weight, nats.mean(), rtol=1e-4)
      total, weight = loss.metrics[f'text/{task}_{view}_accuracy']
      np.testing.assert_allclose(total / weight, agree.mean(), rtol=1e-6)
      whole += nats.mean()
  np.testing.assert_allclose(loss.value, whole, rtol=1e-4)
  total, weight = loss.metrics['loss']
  np.testing.assert_allclose(total / weight, whole, rtol=1e-4)


@pytest.mark.parametrize('views', [VIEWS, VIEWS[:4]])
def test_unlabelled_rows_give_no_gradient_to_the_teacher(views):
  _, gradient = of_part('text', views=views)
  for task in TAGS:
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient[task])), 'the primary head learns from itself'
  assert all(leaf.any() for leaf in jax.tree.leaves(gradient['trunk']['lstm_0']))
  above = [bool(leaf.any()) for leaf in jax.tree.leaves(gradient['trunk']['lstm_1'])]
  assert all(above) if 'full' in views else not any(above)  # restricted views read the first level alone
  heads = {name: leaf for name, leaf in gradient['text'].items() if name.rpartition('_')[2] in views}
  assert heads and all(leaf.any() for leaf in jax.tree.leaves(heads))


@pytest.mark.parametrize('part', sorted(TAGS))
def test_a_labelled_step_is_that_of_a_tagger(part):
  loss, gradient = of_part(part)
  own = {'layers': (-2, -1), 'activation': 'relu', 'dropout': 0.0, 'label_smoothing': 0.1, **HEADS}
  alone = tag.make(trunk=make_trunk(), vocab=tiny.VOCAB, tags=TAGS[part], **own)
  theirs, wanted = tiny.loss_and_gradient(alone, {'trunk': params()['trunk'], **params()[part]}, batch(part))
  np.testing.assert_allclose(loss.value, theirs.value, rtol=1e-6)
  error, where = tiny.gradient_error({'trunk': gradient['trunk'], **gradient[part]}, wanted)
  assert error < 1e-5, where
  for other in {*TAGS, 'text'} - {part}:
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient[other]))
  for name, (total, weight) in theirs.metrics.items():
    np.testing.assert_allclose(loss.metrics[f'{part}/{name}'], (total, weight), rtol=1e-6)


def test_only_views_drop_out_where_rows_are_unlabelled():
  """The teacher of a training step is that of an evaluation, and the rate of the views is their own."""
  task, rows = make(dropout=0.9, unlabelled_dropout=0.0), batch('text')
  calm, _ = tiny.loss_and_gradient(task, params(), rows, train=True)
  np.testing.assert_allclose(calm.value, of_part('text')[0].value, rtol=1e-5)
  wild, _ = tiny.loss_and_gradient(make(dropout=0.0, unlabelled_dropout=0.5), params(), rows, train=True)
  assert abs(wild.value - calm.value) > 1e-3
  labelled, _ = tiny.loss_and_gradient(task, params(), batch('words'), train=True)
  assert abs(labelled.value - of_part('words')[0].value) > 1e-3


def test_evaluation_scores_primary_heads_and_predictions_are_theirs():
  metrics, _ = step.eval_step(params(), batch('names'), (), KEY, task=make())
  assert metrics['names/accuracy'][1] > 0 and metrics['text/loss'][1] == metrics['words/loss'][1] == 0
  found = step.predict_step(params(), batch('words'), KEY, task=make())
  _, primary = logits_of(batch('words'))
  labelled = np.asarray(batch('words')['labels']) >= 0
  np.testing.assert_array_equal(found['words/labels'][labelled], primary['words'].argmax(axis=-1)[labelled])
  assert not any(key.startswith('text/') for key in found)
  means = {name: float(total) / max(float(weight), 1.0) for name, (total, weight) in metrics.items()}
  assert 'names/f1' in make().summary(means)


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'tags': {}}, r'objective\.tags'),
    ({'tags': {'text': ('a', 'b')}}, r"objective\.tags.*text.*objective\.unlabelled.*'text'"),
    ({'tags': {'trunk': ('a', 'b')}}, r'\btrunk\b'),
    ({'unlabelled': 'train'}, r'\btrain\b'),
    ({'tags': {'pos': ('a',)}}, r"tags=\('a',\)"),
    ({'views': ()}, r'objective\.views=\(\)'),
    ({'views': ('past', 'past')}, r'objective\.views=.*past.*past'),
    ({'views': ('passed',)}, "objective.views='passed'.*forward, backward, future, past, full"),
  ],
)
def test_mistakes_are_named(settings, message):
  with pytest.raises(ValueError, match=message):
    multiview.make(trunk=make_trunk(), vocab=tiny.VOCAB, **{'tags': TAGS, **settings})


def test_a_trunk_of_one_direction_is_refused():
  trunk = bert.make(vocab_size=tiny.VOCAB.size, variant='tiny')
  with pytest.raises(ValueError, match=r"'multiview'.*Directions.*model\.name"):
    multiview.make(trunk=trunk, vocab=tiny.VOCAB, tags=TAGS)


# Trees ---------------------------------------------------------------------------------------------------------------

RELATIONS = {'trees': ('root', 'subject', 'object')}
TREE_PARTS = sorted(['names', 'trees', 'text'])


@functools.cache
def make_with_trees(arc_width=5):
  tags = {'names': TAGS['names']}
  heads = {**HEADS, 'arc_width': arc_width, 'relations': RELATIONS}
  return multiview.make(trunk=make_trunk(), vocab=tiny.VOCAB, tags=tags, **heads)


def batch_with_trees(part, lengths=((16,), (7, 5), (11,), (3, 4, 5))):
  """The rows of `batch`; each labelled word hangs on the first one of its text that has a label."""
  rows = dict(batch('text', lengths)) | {'part': jnp.full(4, TREE_PARTS.index(part), jnp.int32)}
  labels, segments = np.asarray(rows['labels']), np.asarray(rows['segment_ids'])
  heads = np.full(labels.shape, -1)
  for row, place in np.argwhere(labels >= 0):
    heads[row, place] = np.flatnonzero((labels[row] >= 0) & (segments[row] == segments[row, place]))[0]
  return rows | {'heads': jnp.asarray(heads, jnp.int32)}


@functools.cache
def params_with_trees():
  return jax.tree.map(lambda leaf: 3 * leaf, tiny.init_params(make_with_trees(), batch_with_trees('text')))


def arcs_of(rows):
  """{view: [4, 16, arcs]} of unlabelled rows, and what the primary head says."""
  task = make_with_trees()
  example = task.prepare(keys.noise_root(KEY), keys.with_step(rows, 0)).inputs['text']
  forward = step.bind(task, params_with_trees(), train=False, rng=KEY)
  return jax.device_get((forward(part='text', **example)['trees'], forward(part='trees', **example)))


@pytest.mark.parametrize('place', [3, 9])
def test_a_view_of_arcs_reads_one_direction_for_heads_and_one_for_words(place):
  """The arc to word t from word u changes where the word at `place` is seen by one of the two, and nowhere else."""
  rows = dict(batch_with_trees('text', ((16,),) * 4))
  starts = np.asarray(tiny.VOCAB.starts_word)
  word = int(np.flatnonzero(starts)[-1])
  tokens = jnp.full((4, 16), word, jnp.int32)
  other = tokens.at[:, place].set(int(np.flatnonzero(starts)[-2]))
  before, primary = arcs_of({**rows, 'tokens': tokens})
  after, others = arcs_of({**rows, 'tokens': other})
  relations, words = len(RELATIONS['trees']), np.arange(16)
  sees = {'forward': words >= place, 'backward': words <= place}
  assert (primary != others).reshape(4, 16, 16, relations).any(axis=(0, 3)).mean() > 0.5
  assert set(before) == set(multiview.ARC_VIEWS)
  for view in multiview.ARC_VIEWS:
    head, _, word_state = view.partition('_')
    changed = (before[view] != after[view]).reshape(4, 16, 16, relations).any(axis=(0, 3))  # [word, head]
    seen = sees[word_state][:, None] | sees[head][None, :]
    assert not changed[~seen].any(), view
    assert changed[seen].mean() > 0.5, view


def test_unlabelled_rows_train_views_of_arcs_towards_the_parser():
  task, rows = make_with_trees(), batch_with_trees('text')
  loss, gradient = jax.device_get(tiny.loss_and_gradient(task, params_with_trees(), rows))
  found, primary = arcs_of(rows)
  targets = jax.device_get(task.prepare(KEY, keys.with_step(rows, 0)).targets['text'])
  theirs = np.exp(primary.astype(np.float64) - primary.max(axis=-1, keepdims=True))
  theirs /= theirs.sum(axis=-1, keepdims=True)
  for view in multiview.ARC_VIEWS:
    seen = targets[view] > 0
    ours = found[view].astype(np.float64)
    ours -= ours.max(axis=-1, keepdims=True)
    ours -= np.log(np.exp(ours).sum(axis=-1, keepdims=True))
    with np.errstate(divide='ignore', invalid='ignore'):
      nats = np.where(theirs > 0, theirs * (np.log(theirs) - ours), 0).sum(axis=-1)[seen]
    total, weight = loss.metrics[f'text/trees_{view}']
    np.testing.assert_allclose(total / weight, nats.mean(), rtol=1e-4)
  assert not any(leaf.any() for leaf in jax.tree.leaves(gradient['trees'])), 'the parser learns from itself'
  views = {name: tree for name, tree in gradient['text'].items() if name.startswith('arcs_')}
  assert len(views) == 4 and all(leaf.any() for leaf in jax.tree.leaves(views))
  assert not any(leaf.any() for leaf in jax.tree.leaves(gradient['trunk']['lstm_1']))


def test_a_labelled_step_is_that_of_a_parser():
  task, rows = make_with_trees(), batch_with_trees('trees')
  loss, gradient = tiny.loss_and_gradient(task, params_with_trees(), rows)
  own = {'layers': (-2, -1), 'dropout': 0.0, 'width': 5, 'init_std': HEADS['init_std']}
  alone = parse.make(trunk=make_trunk(), vocab=tiny.VOCAB, relations=RELATIONS['trees'], **own)
  held = {'trunk': params_with_trees()['trunk'], **params_with_trees()['trees']}
  theirs, wanted = tiny.loss_and_gradient(alone, held, rows)
  np.testing.assert_allclose(loss.value, theirs.value, rtol=1e-6)
  error, where = tiny.gradient_error({'trunk': gradient['trunk'], **gradient['trees']}, wanted)
  assert error < 1e-5, where
  assert loss.metrics['trees/las'][1] > 0


def test_a_task_has_one_name():
  with pytest.raises(ValueError, match=r'labels.*relations'):
    multiview.make(trunk=make_trunk(), vocab=tiny.VOCAB, tags=TAGS, relations={'names': ('a', 'b')}, **HEADS)
