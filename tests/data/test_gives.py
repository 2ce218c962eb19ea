"""Declared keys of sources, compared with the specs of built sources."""

import numpy as np
import pytest

from plm_jax.config import build, signatures
from plm_jax.core.batch import BATCH
from plm_jax.data import bptt, cooccurrence, labelled, minimal_pairs, mixture, pairs, stream, text_to_text
from tests.data import small

ALWAYS = {'row_id', 'epoch', 'row_weight'}
SOURCES = {
  'bptt': bptt, 'cooccurrence': cooccurrence, 'labelled': labelled, 'minimal_pairs': minimal_pairs,
  'mixture': mixture, 'pairs': pairs, 'stream': stream, 'text_to_text': text_to_text,
}  # fmt: skip


SPLIT = 'gives_words:split'  # a segmenter


def part(**settings):
  return {'name': 'stream', 'layout': 'rows', **settings}


FORMS = {
  'bptt': [{}, {'second_segment': True}, {'both_directions': True}],
  'cooccurrence': [{}, {'window': 2}],
  'labelled': [{'layout': 'gpt'}, {'both_orders': True, 'characters': True}, {'kind': 'regression'},
               {'kind': 'multilabel'},
               {'kind': 'words', 'fields': ('words',), 'label': 'tags'},
               {'kind': 'arcs', 'fields': ('words', 'heads'), 'label': 'tags'},
               {'kind': 'options', 'fields': ('text', 'words')},
               {'kind': 'spans', 'fields': ('sentence2', 'text'), 'label': 'answers', 'question_length': 4},
               {'kind': 'text', 'label': 'sentence2'}],
  'minimal_pairs': [{'split': 'train', 'good': 'sentence2', 'bad': 'other', 'characters': True}],
  'mixture': [{'parts': {name: {'name': 'stream', 'layout': 'stream', 'stride': 4, 'end': ''} for name in 'ab'}},
              {'parts': {'a': part(sentences='line'), 'b': part(split='train[:50%]', sentences='line')},
               'characters': True},
              {'parts': {'a': part(segmenter=SPLIT), 'b': part(segmenter=SPLIT)}}],
  'pairs': [{'sentences': 'line'}, {'sentences': 'line', 'unit': 'sentence', 'segmenter': SPLIT}],
  'stream': [{}, {'layout': 'stream', 'stride': 4, 'end': ''},
             {'layout': 'full', 'characters': True, 'sentences': 'line'}, {'segmenter': SPLIT}],
  'text_to_text': [{'form': {'name': 'template', 'inputs': '{sentence1}', 'target': '{sentence2}'}},
                   {'form': {'name': 'template', 'inputs': '{sentence1}', 'options': ('1', '2 3')}}],
}  # fmt: skip


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  place = tmp_path_factory.mktemp('gives')
  texts = small.documents([20] * 8)
  rows = [
    {
      'sentence1': text,
      'sentence2': '1 2',
      'other': '1 3',
      'text': text.replace(' ', '\n', 1),
      'label': n % 2,
      'words': ['1', '2'],
      'tags': [0, 1],
      'heads': [2, 0],
      'answers': {'text': [text[:1]], 'answer_start': [0]},
    }
    for n, text in enumerate(texts)
  ]
  small.write_rows(place / 'train.jsonl', rows)
  (place / 'gives_words.py').write_text("SEGMENTERS = ('split',)\ndef split(text): return text.split()\n")
  with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(place)
    yield place


def specs(name, folder):
  text = {} if name in ('labelled', 'minimal_pairs', 'mixture', 'text_to_text') else {'text': 'text'}
  place = {'path': str(folder), 'cache': str(folder)}
  for form in FORMS[name]:
    if name == 'mixture':
      form = form | {'parts': {key: {**block, **place, 'text': 'text'} for key, block in form['parts'].items()}}
    settings = form if name == 'mixture' else {**place, **form, **text}
    source = SOURCES[name].make(vocab=small.NumberVocab(), length=16, batch_size=2, seed=0, **settings)
    yield form, source


def test_every_file_is_tried():
  assert sorted(SOURCES) == signatures.names('data')


@pytest.mark.parametrize('name', SOURCES)
def test_a_source_gives_what_it_declares(name, folder):
  kinds = {key for kind in build.files_of('data.rows.kinds').values() for key in kind.GIVES}
  may = set(SOURCES[name].GIVES) | ({*stream.GIVES} if name == 'mixture' else kinds if name == 'labelled' else set())
  given = set()
  for form, source in specs(name, folder):
    assert set(source.spec) - ALWAYS <= may, form
    assert source.spec.keys() >= ALWAYS
    given |= set(source.spec) - ALWAYS
  assert given == may
  assert may <= BATCH.keys() - ALWAYS


@pytest.mark.parametrize('name', SOURCES)
def test_specs_are_those_of_the_table(name, folder):
  for form, source in specs(name, folder):
    (batch, *_) = source.once()
    for key, leaf in source.spec.items():
      real = form.get('kind') == 'regression' and key == 'label'
      options = form.get('kind') == 'options' and 'l' in BATCH[key].axes  # [b, k, l] instead of [b, l]
      assert len(leaf.shape) == len(BATCH[key].axes) + options, key
      assert np.dtype(leaf.dtype) == np.dtype('float32' if real else BATCH[key].dtype), key
      assert (batch[key].shape, batch[key].dtype) == (leaf.shape, leaf.dtype), key
