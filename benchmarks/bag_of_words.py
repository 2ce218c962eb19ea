"""Score a bag of words on the columns of a table: the baseline that needs no network.

    python -m benchmarks.bag_of_words experiments/tables/minilm.py --scale=small --data=FOLDER
    python -m benchmarks.bag_of_words experiments/tables/bert_5.py --scale=1m --data=FOLDER --svm

Each column is read as its runs read it: the same training examples, and the same examples of its evaluation. A
logistic regression of scikit-learn predicts a class from TF-IDF of words and pairs of words (sublinear counts, C = 10),
a ridge regression a number. Two texts give the counts of each, their products, their differences and their cosine. The
tag of a word is its most frequent one in the training examples, else the most frequent of all; columns of F1 have that
of the spans too. With --svm a linear SVM reads words between spaces, of as many examples as the updates of the
fine-tuning read, sampled at random.
"""

import argparse
import collections
import random
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from plm_jax.adapters import tag as tagging
from plm_jax.data.corpora import sources
from plm_jax.studies.tables import file, runs

Rows = Sequence[Mapping[str, Any]]


def rows_of(path: str, split: str, label: str) -> Rows:
  """Read the labelled rows of a split."""
  records = sources.open_source(path, split=split)
  rows = [records[index] for index in range(len(records))]
  return [row for row in rows if not isinstance(row[label], int) or row[label] >= 0]


def features(vectors: Any, rows: Rows, fields: Sequence[str]) -> Any:
  """Compute sparse features [n, d]."""
  from scipy import sparse

  counts = [vectors.transform([row[field] for row in rows]) for field in fields]
  if len(counts) == 1:
    return counts[0]
  first, second = counts
  product = first.multiply(second)
  cosine = sparse.csr_matrix(product.sum(axis=1))
  return sparse.hstack([first, second, product, abs(first - second), cosine]).tocsr()


def bag(
  train: Rows, test: Rows, fields: Sequence[str], label: str, *, number: bool, svm: bool = False
) -> tuple[Any, Any]:
  """Predict a class or a number; return predictions and labels."""
  from sklearn.feature_extraction.text import TfidfVectorizer
  from sklearn.linear_model import LogisticRegression, Ridge
  from sklearn.svm import LinearSVC

  texts = [row[field] for row in train for field in fields]
  words = {'token_pattern': r'\S+'} if svm else {}
  vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, **words).fit(texts)
  model: Any = Ridge(1.0) if number else LinearSVC() if svm else LogisticRegression(C=10, max_iter=2000)
  model.fit(features(vectors, train, fields), [row[label] for row in train])
  return model.predict(features(vectors, test, fields)), np.array([row[label] for row in test])


def tags(train: Rows, test: Rows, fields: Sequence[str], label: str) -> tuple[Any, Any]:
  """Predict the most frequent tag of each word; return all tags."""
  by_word: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
  for row in train:
    for word, tag in zip(row[fields[0]], row[label], strict=True):
      by_word[word][tag] += 1
  most = sum(by_word.values(), collections.Counter()).most_common(1)[0][0]
  found = [by_word[word].most_common(1)[0][0] if word in by_word else most for row in test for word in row[fields[0]]]
  return np.array(found), np.array([tag for row in test for tag in row[label]])


def names_of(data: Mapping[str, Any]) -> tuple[str, ...]:
  """Return the names of the tags."""
  return tuple(sources.open_source(data['path'], split='train').labels[data['label']])


def span_f1(found: Any, labels: Any, lengths: Sequence[int], names: tuple[str, ...]) -> float:
  """Compute the F1 of entities; `found` and `labels` are int[words] of texts with `lengths` words."""
  texts = np.repeat(np.arange(len(lengths)) + 1, lengths)[None]
  scheme = tagging.bio(names)
  if scheme is None:
    raise ValueError(f'{names} are no tags of entities')
  counts = map(float, tagging.span_counts(*map(jnp.asarray, (found[None], labels[None], texts)), scheme))
  return tagging.span_scores(dict(zip(('tp', 'fp', 'fn'), counts, strict=True)))['f1']


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('table')
  parser.add_argument('--scale', default='small')
  parser.add_argument('--data', required=True, help='folder of the task data sets')
  parser.add_argument('--svm', action='store_true')
  arguments = parser.parse_args()
  table = file.read(arguments.table, arguments.scale)
  row = next(iter(table.rows))
  for cell, by_seed in runs.plan(table, runs.Places(None, arguments.data)).items():
    settings = by_seed[0][0].settings
    data, metric = settings['data'], table.columns[cell.column].metric
    if cell.row != row or data.get('kind') not in ('class', 'regression', 'words'):
      continue
    tested = settings['eval'][metric.partition('/')[0]]['data']['split']
    of = (data['fields'], data['label'])
    train, test = (rows_of(data['path'], split, data['label']) for split in (data['split'], tested))
    if data['kind'] == 'words':
      found, labels = tags(train, test, *of)
    else:
      if arguments.svm and settings['steps']:
        train = random.Random(0).sample(train, min(len(train), settings['steps'] * data['batch_size']))
      found, labels = bag(train, test, *of, number=data['kind'] == 'regression', svm=arguments.svm)
    counts = collections.Counter(tag for row in train for tag in np.atleast_1d(row[of[1]]).tolist())
    shown = scores(found, labels, metric, most=counts.most_common(1)[0][0])
    if metric.endswith('/f1'):
      lengths = [len(row[data['label']]) for row in test]
      shown += f', spans {100 * span_f1(found, labels, lengths, names_of(data)):.1f}'
    print(f'{cell.column}: {len(train):,} and {len(test):,} examples, {shown}', flush=True)


def scores(found: Any, labels: Any, metric: str, *, most: Any) -> str:
  """Format the scores of a column, in per cent; `most` is the most frequent label in training."""
  from scipy import stats
  from sklearn import metrics

  name = metric.partition('/')[2]
  if name in ('spearman', 'pearson'):
    measure: Any = stats.spearmanr if name == 'spearman' else stats.pearsonr
    return f'{name} {100 * measure(found, labels).statistic:.1f}'
  frequent = (labels == most).mean()
  matthews = f', matthews {100 * metrics.matthews_corrcoef(labels, found):.1f}' if name == 'matthews' else ''
  return f'accuracy {100 * (found == labels).mean():.1f}, of the most frequent {100 * frequent:.1f}{matthews}'


if __name__ == '__main__':
  main()
