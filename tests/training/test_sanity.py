"""Losses of tiny models on real text against estimates that owe nothing to the package but the rows of tokens.

From above: a model that has learned anything beats the frequencies of single tokens. From below: a short run cannot
beat pair frequencies of the whole training text, and a long one not those of the very text it is scored on; a loss
below these means that the model sees what it is asked for.
"""

import gzip
import math
import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from plm_jax import config
from plm_jax.core.types import Vocab
from plm_jax.runs import metrics
from plm_jax.text import byte_bpe
from plm_jax.training import loop, parts

SIZE = 512
SIZES = {
  'hidden_dim': 64, 'num_layers': 2, 'num_heads': 2, 'mlp_dim': 128, 'max_length': 64, 'dropout': 0.0,
  'attention_dropout': 0.0,
}  # fmt: skip
Shared = Callable[[str], pathlib.Path]


class Text(NamedTuple):
  """A data set beside the repository.

  Attributes:
    folder: where it is.
    train: split to learn from.
    held_out: split to be scored on.
    documents: what ends a document.
    cache: folder with its vocabulary in `vocab`, and for token stores.
  """

  folder: pathlib.Path
  train: str
  held_out: str
  documents: str
  cache: pathlib.Path


class Estimate(NamedTuple):
  """Nats a token of the held-out text, predicted from the token before.

  Attributes:
    unigram: frequencies of the training text.
    bigram: frequencies of pairs of the training text, backed off to single tokens.
    cheat: frequencies of pairs of the held-out text itself.
    predicted: tokens that have one before them in their row.
    num_bytes: UTF-8 bytes of those.
  """

  unigram: float
  bigram: float
  cheat: float
  predicted: int
  num_bytes: int


pytestmark = pytest.mark.usefixtures('log')


def read_text(text: Text, split: str) -> str:
  return gzip.decompress((text.folder / f'{split}.txt.gz').read_bytes()).decode()


def open_text(folder: pathlib.Path, cache: pathlib.Path, *, train: str, held_out: str, documents: str) -> Text:
  text = Text(folder, train, held_out, documents, cache)
  byte_bpe.train([read_text(text, train).strip('\n')], size=SIZE).save(cache / 'vocab')
  return text


@pytest.fixture(scope='module')
def shakespeare(shared_data: Shared, tmp_path_factory: pytest.TempPathFactory) -> Text:
  folder, cache = shared_data('tiny_shakespeare'), tmp_path_factory.mktemp('shakespeare')
  return open_text(folder, cache, train='train', held_out='validation', documents='file')


def settings(text: Text, kind: str, *, steps: int, rate: float) -> dict[str, Any]:
  causal = kind == 'causal_lm'
  data = {
    'name': 'stream', 'path': str(text.folder), 'split': text.train, 'documents': text.documents, 'length': 64,
    'batch_size': 16, 'cache': str(text.cache), 'layout': 'stream' if causal else 'documents',
  }  # fmt: skip
  return config.resolve(
    {
      'steps': steps,
      'log_every': 1,
      'vocab': {'name': 'byte_bpe', 'path': str(text.cache / 'vocab')},
      'model': {'name': 'gpt' if causal else 'bert', 'variant': 'tiny', 'overrides': SIZES},
      'objective': {'name': kind, 'packing': 'stream'} if causal else {'name': kind},
      'data': data | {'end': ''} if causal else data,
      'optim': {'name': 'adamw', 'rate': rate, 'schedule': 'linear', 'warmup': min(5, steps), 'clip': 1.0},
      'eval': {'held_out': {'data': {'split': text.held_out}}},
      'log': [],
    }
  )


def rows_of(block: dict[str, Any], vocab: Vocab) -> np.ndarray:
  """int32[rows, length], -1 where there is padding, in the order of the text."""
  batches = list(parts.make_source(block, vocab, seed=0).once())
  tokens, segments, ids, weights = (
    np.concatenate([batch[name] for batch in batches]) for name in ('tokens', 'segment_ids', 'row_id', 'row_weight')
  )
  real = weights > 0
  assert np.array_equal(ids[real], np.arange(real.sum()))
  return np.where(segments > 0, tokens, -1)[real]


def pairs(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  first, second = rows[:, :-1], rows[:, 1:]
  real = second >= 0
  return first[real], second[real]


def count(rows: np.ndarray) -> np.ndarray:
  table = np.zeros((SIZE, SIZE))
  np.add.at(table, pairs(rows), 1)
  return table


def estimate(text: Text) -> Estimate:
  plain = settings(text, 'causal_lm', steps=1, rate=1.0)
  vocab = parts.make_vocab(plain)
  train, held_out = (rows_of(block, vocab) for block in (plain['data'], plain['eval']['held_out']['data']))
  if text.documents == 'file':  # the rows are the text, from its first byte to its last
    assert vocab.decode(held_out[held_out >= 0]) == read_text(text, text.held_out)
  unigram = np.bincount(train[train >= 0], minlength=SIZE) + 1.0
  unigram /= unigram.sum()
  counts = count(train)
  seen = counts.sum(axis=1, keepdims=True)
  bigram = (counts + 50 * unigram) / (seen + 50)
  own = count(held_out)
  own /= np.maximum(own.sum(axis=1, keepdims=True), 1)
  before, after = pairs(held_out)
  nats = [-np.log(values).mean() for values in (unigram[after], bigram[before, after], own[before, after])]
  # a token is spelt with one letter for each of its bytes
  sizes = np.array([0 if token in vocab.special_ids else len(vocab.token(token)) for token in range(SIZE)])
  return Estimate(*nats, len(after), int(sizes[after].sum()))


def train(text: Text, workdir: pathlib.Path, kind: str, **changes: Any) -> tuple[list[float], dict[str, float]]:
  """Training losses from step 1 on, and the scores on held-out text."""
  assert loop.train(settings(text, kind, **changes), workdir).result['finished']
  rows = metrics.read(workdir)
  scores = {name.removeprefix('held_out/'): value for name, value in rows[-1].items() if name.startswith('held_out/')}
  return [row['loss'] for row in rows], scores


@pytest.mark.turns
def test_gpt_is_between_unigrams_and_bigrams(shakespeare: Text, tmp_path: pathlib.Path) -> None:
  losses, scores = train(shakespeare, tmp_path, 'causal_lm', steps=120, rate=6e-3)
  known = estimate(shakespeare)
  print(scores, known)
  assert losses[0] == pytest.approx(math.log(SIZE), abs=0.05)
  assert known.bigram < scores['loss'] < known.unigram - 0.3
  assert scores['loss'] == pytest.approx(np.mean(losses[-10:]), abs=0.3)
  assert scores['perplexity'] == pytest.approx(math.exp(scores['loss']))
  bits = scores['loss'] * known.predicted / math.log(2)
  assert scores['bits_per_byte'] == pytest.approx(bits / known.num_bytes, rel=1e-5)


@pytest.mark.turns
def test_bert_learns_frequencies_first(shakespeare: Text, tmp_path: pathlib.Path) -> None:
  losses, scores = train(shakespeare, tmp_path, 'mlm', steps=40, rate=1e-2)
  known = estimate(shakespeare)
  print(scores, known)
  assert losses[0] == pytest.approx(math.log(SIZE), abs=0.05)
  # neighbours take an encoder hundreds of steps; a mask that shows what is under it takes a few
  assert scores['loss'] == pytest.approx(known.unigram, abs=0.3)
  assert scores['targets_without_slot'] == 0


@pytest.mark.slow
def test_a_longer_gpt_beats_bigrams_and_does_not_cheat(shakespeare: Text, tmp_path: pathlib.Path) -> None:
  _, scores = train(shakespeare, tmp_path, 'causal_lm', steps=2500, rate=6e-3)
  known = estimate(shakespeare)
  print(scores, known)
  assert known.cheat < scores['loss'] < known.bigram


@pytest.mark.slow
def test_a_longer_bert_beats_unigrams_and_does_not_cheat(shakespeare: Text, tmp_path: pathlib.Path) -> None:
  _, scores = train(shakespeare, tmp_path, 'mlm', steps=2000, rate=2e-3)
  known = estimate(shakespeare)
  print(scores, known)
  assert known.cheat < scores['loss'] < known.unigram - 0.4


@pytest.mark.slow
def test_gpt_on_encyclopaedia_articles(shared_data: Shared, tmp_path: pathlib.Path) -> None:
  text = open_text(
    shared_data('wikitext_2'), tmp_path / 'cache', train='validation', held_out='test', documents='blank_line'
  )
  losses, scores = train(text, tmp_path / 'run', 'causal_lm', steps=800, rate=6e-3)
  known = estimate(text)
  print(scores, known)
  assert losses[0] == pytest.approx(math.log(SIZE), abs=0.05)
  assert known.cheat < scores['loss'] < known.unigram - 0.8
  bits = scores['loss'] * known.predicted / math.log(2)
  assert scores['bits_per_byte'] == pytest.approx(bits / known.num_bytes, rel=1e-5)
