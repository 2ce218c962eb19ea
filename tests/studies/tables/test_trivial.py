"""What needs no network, typed in the tables of small networks, counted again from the rows."""

import collections
import gzip
import itertools
import json
import statistics

import pytest

from plm_jax.studies.tables import file
from tests.conftest import SHARED_DATA

CLASS = 'most frequent class'
# column: folder, field of the label, split that is scored
CLASSES = {
  'SST-2': ('glue_sst2', 'label', 'validation'),
  'MRPC': ('glue_mrpc', 'label', 'validation'),
  'RTE': ('glue_rte', 'label', 'validation'),
  'TREC': ('trec', 'label-coarse', 'test'),
  'SNLI': ('snli', 'label', 'test'),
  'COPA': ('super_glue_copa', 'label', 'validation'),
  'HellaSwag': ('hellaswag', 'label', 'validation'),
}


def rows(folder, split):
  path = SHARED_DATA / folder / f'{split}.jsonl.gz'
  if not path.exists():
    pytest.skip(f'{folder} is not in {SHARED_DATA}')
  with gzip.open(path, 'rt', encoding='utf-8') as lines:
    return [json.loads(line) for line in lines]


def typed(column, name):
  """The number in each of the tables that has the column."""
  tables = [file.read(f'experiments/tables/small_{model}.py', 'small') for model in ('bert', 'gpt', 'bart')]
  return [table.columns[column].trivial[name] for table in tables if column in table.columns]


@pytest.mark.parametrize('column', CLASSES)
def test_the_most_frequent_class_of_training(column):
  folder, label, split = CLASSES[column]
  most = collections.Counter(row[label] for row in rows(folder, 'train')).most_common(1)[0][0]
  share = 100 * statistics.fmean(row[label] == most for row in rows(folder, split))
  assert {round(share, 1)} == set(typed(column, CLASS))


def test_the_most_frequent_tag_of_each_word():
  seen = collections.defaultdict(collections.Counter)
  for row in rows('universal_dependencies_en_ewt', 'train'):
    for word, tag in zip(row['tokens'], row['upos'], strict=True):
      seen[word][tag] += 1
      seen[''][tag] += 1  # of words that were never seen
  best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
  pairs = itertools.chain.from_iterable(
    zip(row['tokens'], row['upos'], strict=True) for row in rows('universal_dependencies_en_ewt', 'test')
  )
  share = 100 * statistics.fmean(best.get(word, best['']) == tag for word, tag in pairs)
  assert {round(share, 1)} == set(typed('EWT', 'most frequent tag of a word'))


def test_the_first_sentence_of_an_abstract():
  pytest.importorskip('rouge_score')
  from plm_jax.scores import rouge

  each = rows('scitldr_abstract', 'test')
  found = rouge.score([{'text': row['source'][0]} for row in each], [{'references': row['target']} for row in each])
  assert {round(found['rouge1'], 1)} == set(typed('SciTLDR', 'first sentence'))


def test_the_text_as_its_own_translation():
  pytest.importorskip('sacrebleu')
  from plm_jax.scores import bleu

  each = rows('multi30k_en_de', 'test')
  found = bleu.score([{'text': row['de']} for row in each], [{'references': [row['en']]} for row in each])
  assert {round(found['bleu'], 1)} == set(typed('Multi30k', 'copy'))
