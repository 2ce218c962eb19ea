"""Slices of a split by tokens: exact shares of the text for any documents."""

import numpy as np
import pytest

from plm_jax.data.corpora import sources, splits
from plm_jax.data.rows import documents
from tests.data import small

VOCAB = small.NumberVocab()


@pytest.fixture(scope='module')
def corpus(tmp_path_factory):
  """Write 50 short documents, and one at the end with half of the text."""
  folder = tmp_path_factory.mktemp('corpus')
  short = [' '.join(str(number + i) for i in range(number % 7 + 3)) for number in range(50)]
  (folder / 'train.txt').write_text('\n\n'.join([*short, ' '.join(map(str, range(300)))]))
  return folder


def read(corpus, split):
  return documents.Corpus(path=str(corpus), split=split, cache=str(corpus / 'cache')).tokenise(VOCAB)


@pytest.mark.parametrize('percent', [1, 5, 50, 98])
def test_a_cut_by_tokens_has_its_share_of_the_text(corpus, percent):
  whole = read(corpus, 'train')
  first, rest = read(corpus, f'train[:{percent}%tokens]'), read(corpus, f'train[{percent}%tokens:]')
  assert len(first.ids) == round(len(whole.ids) * percent / 100)
  assert np.concatenate([first.ids, rest.ids]).tolist() == whole.ids.tolist()
  for part in (first, rest):
    assert part.offsets[0] == 0 and part.offsets[-1] == len(part.ids) and (np.diff(part.offsets) > 0).all()
  assert len({whole.digest, first.digest, rest.digest}) == 3
  assert read(corpus, f'train[:{percent}%tokens]').digest == first.digest


def test_documents_keep_their_bounds_where_they_are_whole(corpus):
  whole, part = read(corpus, 'train'), read(corpus, 'train[20tokens:100tokens]')
  kept = [end - 20 for end in whole.offsets if 20 < end < 100]
  assert part.offsets.tolist() == [0, *kept, 80]


def test_a_share_of_documents_may_be_quite_another_share_of_text(corpus):
  whole, rows = read(corpus, 'train'), read(corpus, 'train[98%:]')
  assert len(rows.ids) > 0.4 * len(whole.ids)
  assert len(read(corpus, 'train[98%tokens:]').ids) < 0.03 * len(whole.ids)


@pytest.mark.parametrize('split', ['train', 'train[:90%]', 'train[3:5]+train[:2]'])
def test_a_cut_by_rows_is_as_it_was(corpus, split):
  texts = list(sources.documents(str(corpus), split=split, cache=str(corpus / 'cache')))
  found = read(corpus, split)
  assert found.ids.tolist() == [token for text in texts for token in VOCAB.encode(text)]


@pytest.mark.parametrize(
  ('split', 'words'),
  [
    ('train[:90%tokens]+train[5:]', '90%tokens'),
    ('train[5:90%tokens]', 'tokens'),
    ('train[:101%tokens]', '101%'),
    ('train[50%tokens:50%tokens]', 'no token'),
    ('train[:5%words]', '5%words'),
  ],
)
def test_a_mistake_in_a_slice_by_tokens_is_told(corpus, split, words):
  with pytest.raises(ValueError, match=words):
    read(corpus, split)


def test_rows_are_not_cut_by_tokens(corpus):
  for opens in (sources.open_source, sources.documents):
    with pytest.raises(ValueError, match="'train"):
      opens(str(corpus), split='train[:5%tokens]', cache=str(corpus / 'cache'))
  assert splits.without_tokens('train[:5%tokens]', path='x') == 'train'
