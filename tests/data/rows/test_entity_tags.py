"""Schemes of entities beside seqeval's, in data, metrics and scores; entities given as character offsets."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax.adapters import tag
from plm_jax.core.errors import ConfigError
from plm_jax.data import labelled
from plm_jax.data.rows import entity_tags
from plm_jax.runs import scoring
from plm_jax.text import wordpiece

KINDS = ('PER', 'LOC')


def random_entities(draw, length):
  """Entities of a text, some adjacent, of one type or two."""
  found, place = [], 0
  while place < length:
    size = int(draw.integers(1, 4))
    if draw.random() < 0.6 and place + size <= length:
      found.append((KINDS[int(draw.integers(2))], place, place + size))
    place += size
  return found


@pytest.mark.parametrize('scheme', entity_tags.SCHEMES)
def test_a_scheme_is_that_of_seqeval(scheme):
  """What is written in a scheme, seqeval reads in it strictly; what any tags mean, it reads in its default mode."""
  seqeval = pytest.importorskip('seqeval')
  from seqeval.metrics.sequence_labeling import get_entities
  from seqeval.scheme import Entities

  own = getattr(seqeval.scheme, scheme)
  draw = np.random.default_rng(0)
  for _ in range(200):
    wanted = random_entities(draw, 12)
    tags = entity_tags.written(wanted, ['O'] * 12, scheme)
    (found,) = Entities([tags], own).entities
    assert [(each.tag, each.start, each.end) for each in found] == wanted
    assert entity_tags.of_tags(tags) == wanted
    assert entity_tags.convert(entity_tags.convert(tags, 'IOBES'), scheme) == tags
    noise = draw.choice(['O', 'B-PER', 'I-PER', 'E-PER', 'S-PER', 'I-LOC', 'E-LOC'], 12).tolist()
    assert [(kind, start, end - 1) for kind, start, end in entity_tags.of_tags(noise)] == get_entities(noise)
  assert set(entity_tags.names_of(('O', 'B-PER', 'I-PER', 'B-LOC'), scheme)) >= set(tags)


def test_other_letters_mean_the_same():
  assert entity_tags.convert(['B-x', 'M-x', 'E-x', 'S-x', 'O'], 'IOB2') == ['B-x', 'I-x', 'I-x', 'B-x', 'O']  # BMES
  assert entity_tags.convert(['B-x', 'I-x', 'L-x', 'U-x', 'O'], 'IOBES') == ['B-x', 'I-x', 'E-x', 'S-x', 'O']
  assert entity_tags.convert(['I-x', -1, 'I-x', 'I-y'], 'IOB2') == ['B-x', -1, 'I-x', 'B-y']


def write(folder, rows, name='train.jsonl'):
  (folder / name).write_text('\n'.join(json.dumps(row, ensure_ascii=False) for row in rows))


def read(folder, **settings):
  vocab = wordpiece.train(['我 们 在 北 京 大 学 play Anna New York , 。'] * 2, size=120)
  fields = dict(vocab=vocab, path=str(folder), cache=str(folder), fields=('tokens',), label='tags', kind='words')
  source = labelled.make(**(fields | dict(length=24, batch_size=4, seed=0, shuffle=False) | settings))
  records = [source.record(row) for row in range(source.rows)]
  tags = [[record['names'][label] if label >= 0 else label for label in record['labels']] for record in records]
  return [record['words'] for record in records], tags, source


@pytest.mark.parametrize('scheme', entity_tags.SCHEMES)
@pytest.mark.parametrize('given', ['IOB1', 'IOB2', 'IOBES', 'BILOU'])
@pytest.mark.parametrize('listed', [False, True])
def test_tags_of_data_are_read_in_the_scheme(tmp_path, scheme, given, listed):
  texts = [[('PER', 0, 2), ('PER', 2, 3), ('LOC', 4, 5)], [('LOC', 0, 3)]]
  tags = [entity_tags.written(entities, ['O'] * 5, given) for entities in texts]
  if listed:
    names = list(entity_tags.names_of(('B-PER', 'B-LOC'), given))
    (tmp_path / 'labels.json').write_text(json.dumps({'tags': names}))
    tags = [[names.index(each) for each in row] for row in tags]
  write(tmp_path, [{'tokens': list('我们在北京'), 'tags': row} for row in tags])
  assert read(tmp_path, scheme=scheme)[1] == [entity_tags.written(each, ['O'] * 5, scheme) for each in texts]


def test_a_scheme_needs_tags_of_entities(tmp_path):
  write(tmp_path, [{'tokens': ['我', '们'], 'tags': ['NOUN', 'VERB']}])
  with pytest.raises(ValueError, match=r"data\.scheme='IOBES' needs labels 'O' and 'B-\.\.\.', but there is 'NOUN'"):
    read(tmp_path, scheme='IOBES')
  with pytest.raises(ValueError, match=r"data\.scheme and data\.words are for kind='words', not 'class'"):
    read(tmp_path, scheme='IOBES', kind='class')


@pytest.mark.parametrize('scheme', entity_tags.SCHEMES)
def test_scores_are_those_of_seqeval(scheme):
  """F1 as CoNLL counts it, of the adapter and of the score, and the strict one."""
  seqeval = pytest.importorskip('seqeval')
  from seqeval import metrics

  draw = np.random.default_rng(1)
  names = entity_tags.names_of(('B-PER', 'B-LOC'), scheme)
  gold = [entity_tags.written(random_entities(draw, 9), ['O'] * 9, scheme) for _ in range(60)]
  noise = [[str(draw.choice(names)) if draw.random() < 0.3 else each for each in row] for row in gold]
  numbers = [np.array([[names.index(each) for each in row] for row in rows]) for rows in (noise, gold)]
  records = [{'labels': row.tolist(), 'places': list(range(9)), 'names': names, 'scheme': scheme} for row in numbers[1]]
  predictions = [{'labels': row} for row in numbers[0]]
  plain = [
    [[each.replace('L-', 'E-', 1).replace('U-', 'S-', 1) for each in row] for row in rows] for rows in (gold, noise)
  ]
  default = metrics.f1_score(*plain, zero_division=0)
  assert scoring.score('conll', predictions, records)['f1'] == pytest.approx(default)
  tp, fp, fn = map(float, tag.span_counts(*map(jnp.asarray, numbers), jnp.ones((60, 9), int), tag.bio(names)))
  assert 2 * tp / (2 * tp + fp + fn) == pytest.approx(default)
  strict = metrics.f1_score(gold, noise, mode='strict', scheme=getattr(seqeval.scheme, scheme), zero_division=0)
  assert scoring.score('seqeval', predictions, records)['strict_f1'] == pytest.approx(strict)
  if scheme != 'IOB1':  # its letters tell it
    unnamed = [{key: value for key, value in record.items() if key != 'scheme'} for record in records]
    assert scoring.score('seqeval', predictions, unnamed)['strict_f1'] == pytest.approx(strict)


CHINESE = {
  'text': '王小明在北京大学play。',
  'entities': [{'start': 0, 'end': 3, 'label': 'PER'}, {'start': 4, 'end': 8, 'label': 'ORG'}],
}
SPLIT = [*'王小明在北京大学', 'play', '。']
TAGS = ['B-PER', 'I-PER', 'I-PER', 'O', 'B-ORG', 'I-ORG', 'I-ORG', 'I-ORG', 'O', 'O']
BY_SCRIPT = dict(fields=('text',), label='entities', words='script')


def test_entities_given_as_characters_are_tags_of_words(tmp_path):
  lists = {'text': 'Anna lives in New York, 北京', 'entities': [[14, 22, 'LOC'], [0, 4, 'PER'], [24, 26, 'LOC']]}
  write(tmp_path, [CHINESE, lists, {'text': '在', 'entities': []}])
  words, tags, _ = read(tmp_path, **BY_SCRIPT)
  assert words == [SPLIT, ['Anna', 'lives', 'in', 'New', 'York', ',', '北', '京'], ['在']]
  assert tags[0] == TAGS and tags[2] == ['O']
  assert tags[1] == ['B-PER', 'O', 'O', 'B-LOC', 'I-LOC', 'O', 'B-LOC', 'I-LOC']
  assert read(tmp_path, scheme='IOBES', **BY_SCRIPT)[1][0][:3] == ['B-PER', 'I-PER', 'E-PER']


def test_entities_in_the_cells_of_a_table(tmp_path):
  cell = json.dumps(CHINESE['entities']).replace('"', '""')
  (tmp_path / 'train.csv').write_text(f'text,entities\n{CHINESE["text"]},"{cell}"\n')
  assert read(tmp_path, **BY_SCRIPT)[1] == [TAGS]


@pytest.mark.parametrize(
  ('entities', 'says'),
  [
    ([(0, 99, 'PER')], 'not within the 13 characters'),
    ([(3, 3, 'PER')], 'not within'),
    ([(0, 3, 'PER'), (2, 4, 'LOC')], "'start': 2.*overlaps another"),
    ([(0, 3, '')], 'has no label'),
  ],
)
def test_entities_that_are_none_stop_the_run(tmp_path, entities, says):
  write(
    tmp_path,
    [CHINESE, CHINESE | {'entities': [dict(zip(('start', 'end', 'label'), each, strict=True)) for each in entities]}],
  )
  with pytest.raises(ValueError, match=f'row 1 .*{says}'):
    read(tmp_path, **BY_SCRIPT)


def test_offsets_without_the_setting_name_it(tmp_path):
  write(tmp_path, [CHINESE])
  with pytest.raises(ValueError, match=r"'entities' holds character offsets: set data\.words='script'"):
    read(tmp_path, **(BY_SCRIPT | {'words': 'spaces'}))


def test_an_entity_that_ends_inside_a_word_covers_it_and_is_counted(tmp_path, caplog):
  write(tmp_path, [{'text': 'playing 在', 'entities': [[0, 4, 'X']]}])
  assert read(tmp_path, **BY_SCRIPT)[1] == [['B-X', 'O']]
  assert '1 texts have an entity that begins or ends inside a word' in caplog.text


def test_a_score_of_other_labels_is_refused():
  with pytest.raises(ConfigError, match=r"needs labels named O, B-\.\.\. and I-\.\.\., but there is 'NOUN'"):
    scoring.score('seqeval', [{'labels': np.array([0])}], [{'labels': [0], 'places': [0], 'names': ('NOUN', 'O')}])
