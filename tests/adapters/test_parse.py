"""Dependency trees: scores against the formula in numpy, what is counted, packed rows, words of a prediction."""

import numpy as np
import pytest

from plm_jax.adapters import parse
from plm_jax.core import param_paths
from plm_jax.scores import attachment
from tests import tiny
from tests.adapters.running import check_that_the_trunk_is_kept, predict, run

pytestmark = pytest.mark.turns

RELATIONS = ('root', 'subject', 'object')
ROWS = ((16,), (7, 5), (11,), (3, 4, 5))


def make_task(trunk='bert', **settings):
  settings = {'width': 6, 'init_std': 0.4, 'dropout': 0.0, **settings}
  return parse.make(trunk=tiny.make_trunk(trunk), vocab=tiny.VOCAB, relations=RELATIONS, **settings)


def make_batch(rows=ROWS, *, seed=0):
  """The rows of `tiny.make_batch`; two of three tokens begin a word, whose head is any word of its text."""
  batch, draw = tiny.make_batch(rows), np.random.default_rng(seed)
  segments = np.asarray(batch['segment_ids'])
  words = (segments > 0) & (draw.random(segments.shape) < 0.7)
  heads, labels = np.full(segments.shape, -1), np.full(segments.shape, -1)
  for row, place in np.argwhere(words):
    same = np.flatnonzero(words[row] & (segments[row] == segments[row, place]))
    heads[row, place], labels[row, place] = draw.choice(same), draw.integers(len(RELATIONS))
  first = tuple(np.argwhere(words)[3])
  heads[first] = -2  # a head that was cut off
  return {**batch, 'heads': heads.astype(np.int32), 'labels': labels.astype(np.int32)}


TASK, BATCH = make_task(), make_batch()


def expected(batch, params):
  """(row, word) -> f64[l, r], the scores of its arcs by the formula, -inf where there can be none."""
  inputs = {name: batch[name] for name in ('tokens', 'segment_ids', 'type_ids')}
  states = np.asarray(TASK.model.trunk.apply({'params': params['trunk']}, **inputs)['hidden'], np.float64)
  own = {name: np.asarray(leaf, np.float64) for name, leaf in param_paths.flat(params['arcs']).items()}
  part = lambda name: np.maximum(states @ own[f'{name}/kernel'] + own[f'{name}/bias'], 0)  # noqa: E731
  heads, words = part('head'), part('word')
  found, segments = {}, np.asarray(batch['segment_ids'])
  for row, place in np.argwhere((batch['heads'] != -1) & (segments > 0)):
    scores = np.full((segments.shape[1], len(RELATIONS)), -np.inf)
    for head in np.flatnonzero((batch['heads'][row] != -1) & (segments[row] == segments[row, place])):
      for relation in range(len(RELATIONS)):
        matrix = own['relation'][relation] + own['shared']
        scores[head, relation] = heads[row, head] @ matrix @ words[row, place]
    found[row, place] = scores
  return found


def test_each_word_costs_the_nats_of_its_arc_among_all_arcs_to_it():
  params = tiny.init_params(TASK, BATCH)
  _, loss = run(TASK, BATCH, params)
  nats, same_head, same = [], [], []
  for (row, place), scores in expected(BATCH, params).items():
    head, relation = BATCH['heads'][row, place], BATCH['labels'][row, place]
    if head < 0:
      continue
    nats.append(np.log(np.exp(scores).sum()) - scores[head, relation])
    best = np.unravel_index(scores.argmax(), scores.shape)
    same_head.append(best[0] == head)
    same.append(best == (head, relation))
  assert len(nats) > 20
  means = tiny.means(loss.metrics)
  assert float(loss.value) == pytest.approx(np.mean(nats), rel=1e-5)
  assert means['loss'] == pytest.approx(np.mean(nats), rel=1e-5)
  assert means['uas'] == pytest.approx(np.mean(same_head)) and means['las'] == pytest.approx(np.mean(same))
  assert 0 < means['las'] <= means['uas'] < 1 and float(loss.metrics['las'][1]) == len(nats)


def test_the_likeliest_arc_of_each_word_is_predicted():
  params = tiny.init_params(TASK, BATCH)
  predicted = predict(TASK, BATCH, params)
  given = expected(BATCH, params)
  for row, place in np.ndindex(*BATCH['heads'].shape):
    scores = given.get((row, place))
    if scores is None:
      assert predicted['heads'][row, place] == predicted['labels'][row, place] == -1
      assert predicted['probability'][row, place] == 0
      continue
    head, relation = np.unravel_index(scores.argmax(), scores.shape)
    assert (predicted['heads'][row, place], predicted['labels'][row, place]) == (head, relation)
    share = np.exp(scores.max()) / np.exp(scores).sum()
    assert float(predicted['probability'][row, place]) == pytest.approx(share, rel=1e-5)


def test_rows_of_weight_zero_and_other_pieces_count_for_nothing():
  batch = {**BATCH, 'row_weight': np.array([1.0, 0, 1, 1], np.float32)}
  params = tiny.init_params(TASK, batch)
  _, loss = run(TASK, batch, params)
  heads = np.where(np.arange(4)[:, None] == 1, 0, batch['heads']).astype(np.int32)
  assert tiny.same(run(TASK, {**batch, 'heads': heads}, params)[1], loss)


def test_a_frozen_trunk_is_kept():
  check_that_the_trunk_is_kept(make_task(frozen=True), BATCH)


def test_a_prediction_in_words():
  """It (-> rained) has (-> rained) not (cut off) rained (root); the tokens are <s> It has rain ##ed </s>."""
  record = {'heads': [3, 3, 3, 3], 'labels': [1, 2, 2, 0], 'places': [0, 1, 3], 'names': RELATIONS}
  row = {'heads': np.array([-1, 3, 1, 3, -1, -1]), 'labels': np.array([-1, 1, 2, 0, -1, -1])}
  assert parse.in_words(row, record) == {'arcs': ['4:subject', '1:object', None, '0:root']}
  # It and the root have both right, 'has' hangs elsewhere, and 'not' has nothing
  assert attachment.score([row], [record]) == {'uas': 0.5, 'las': 0.5, 'universal_las': 0.5}
  other = {**record, 'names': ('root', 'subject:pass', 'object'), 'labels': [1, 2, 2, 0]}
  named = {**other, 'names': RELATIONS}
  assert attachment.score([row], [named])['las'] == 0.5


def test_universal_relations_end_at_the_colon():
  names = ('root', 'nmod', 'nmod:poss')
  record = {'heads': [1, 1], 'labels': [2, 0], 'places': [0, 1], 'names': names}
  row = {'heads': np.array([1, 1]), 'labels': np.array([1, 0])}
  assert attachment.score([row], [record]) == {'uas': 1.0, 'las': 0.5, 'universal_las': 1.0}


def test_words_outside_the_tree_are_not_counted():
  """CoNLL-U numbers the parts of a contraction and not itself: du (no head) de le lac."""
  record = {'heads': [-1, 3, 3, 3], 'labels': [-1, 1, 2, 0], 'places': [1, 2, 3], 'names': RELATIONS}
  row = {'heads': np.array([-1, 3, 3, 3]), 'labels': np.array([-1, 1, 2, 0])}
  assert attachment.arcs_of(row, record) == ([None, 3, 3, 0], [None, 'subject', 'object', 'root'])
  assert attachment.score([row], [record])['las'] == 1.0


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'relations': ('one',)}, r'adapter\.relations=\(.one.,\)'),
    ({'relations': RELATIONS, 'layers': ()}, r'adapter\.layers=\(\)'),
  ],
)
def test_what_is_refused(settings, message):
  with pytest.raises(ValueError, match=message):
    parse.make(trunk=tiny.make_trunk('bert'), vocab=tiny.VOCAB, **settings)
