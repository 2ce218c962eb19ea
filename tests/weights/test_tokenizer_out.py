"""What is exported gives transformers the ids and the types of the rows that training read, for every layout."""

import json
import pathlib

import numpy as np
import pytest

from plm_jax.config import build
from plm_jax.text import byte_bpe, tokenizer, wordpiece, words
from plm_jax.training import parts
from plm_jax.weights import release

transformers = pytest.importorskip('transformers')

EXTRA = ('_start_', '_delimiter_', '_classify_', '<a b>', '[MASK]x')
TEXTS = [
  'Anna went to the kitchen.',
  'Émile  saw\ttwo\nlines , and "quotes" — it\'s 3.14!',
  'e\u0301 cafe\u0301 naïve ½ ﬁ',
  '我在这里 العربية हिन्दी 😀👩‍👩‍👧',
  'x' * 300,
  ' blank before',
  '[ MASK ] < s > ##ing ▁a',
  '\x00\x07\u200b\ufffd a',
  'To be , or not to be , that is the question .',
]
KINDS = {
  'wordpiece': lambda texts: wordpiece.train(texts, size=400),
  'wordpiece-cased': lambda texts: wordpiece.train(texts, size=400, lowercase=False),
  'byte_bpe': lambda texts: byte_bpe.train(texts, size=500),
  'byte_bpe-roberta': lambda texts: byte_bpe.train(texts, size=500, specials='roberta'),
  'byte_bpe-gpt2': lambda texts: byte_bpe.train(texts, size=500, specials='gpt2'),
  'words': lambda texts: words.train(texts, size=400, min_frequency=1),
}


@pytest.fixture(scope='module', params=KINDS)
def vocab(request, tiny_corpus, tmp_path_factory):
  folder = tmp_path_factory.mktemp('vocab')
  KINDS[request.param]([*tiny_corpus[:100], *TEXTS]).save(folder)
  return tokenizer.load(folder, extra=EXTRA)


@pytest.fixture(scope='module')
def data(tmp_path_factory):
  folder = tmp_path_factory.mktemp('data')
  for name, rows in {
    'one': [{'text': text, 'label': 0} for text in TEXTS],
    'two': [{'a': one, 'b': other, 'label': 0} for one, other in zip(TEXTS, reversed(TEXTS), strict=True)],
    'words': [{'words': text.split(), 'tags': [0] * len(text.split())} for text in TEXTS],
  }.items():
    (folder / name).mkdir()
    (folder / name / 'train.jsonl').write_text('\n'.join(map(json.dumps, rows)))
  (folder / 'stream').mkdir()
  (folder / 'stream' / 'train.jsonl').write_text('\n'.join(json.dumps({'text': text}) for text in TEXTS))
  return folder


def export(vocab, settings, folder: pathlib.Path):
  """Export a run with these settings; return the tokenizer of transformers."""
  vocab.save(folder / 'run', template=parts.make_template(settings, vocab))
  release.write(folder / 'out', {'model_type': 'bert'}, {}, tokenizer=folder / 'run', types=True)
  return transformers.AutoTokenizer.from_pretrained(folder / 'out')


def rows(vocab, settings):
  """Build the batch of all examples of a source, in the order of its file."""
  source = build.make('data', settings, vocab=vocab, seed=0)
  return {key: np.concatenate(values) for key, values in _joined(source.once()).items()}


def _joined(batches):
  found = {}
  for batch in batches:
    for key, value in batch.items():
      found.setdefault(key, []).append(value)
  return found


def real(made, row, key='tokens'):
  return made[key][row][made['segment_ids'][row] > 0].tolist()


@pytest.mark.parametrize('layout', sorted(build.files_of('data.rows.layouts')))
def test_labelled_rows(vocab, data, layout, tmp_path):
  for name, fields in {'one': ('text',), 'two': ('a', 'b')}.items():
    block = dict(name='labelled', path=str(data / name), fields=fields, layout=layout, length=900, batch_size=8)
    settings = {'data': {**block, 'cache': str(tmp_path / 'cache')}}
    if layout in ('glm4', 'tokenizer') or (layout == 'glm' and vocab.mask_id is None):
      lacking = {'glm': r'\[MASK\]', 'glm4': r'\[gMASK\]', 'tokenizer': 'no special tokens'}[layout]
      with pytest.raises(ValueError, match=lacking):
        rows(vocab, settings['data'])
      continue
    theirs = export(vocab, settings, tmp_path / name)
    made = rows(vocab, settings['data'])
    for row, texts in enumerate(zip(TEXTS, reversed(TEXTS), strict=True)):
      found = theirs(*texts[: len(fields)], return_token_type_ids=True)
      assert found['input_ids'] == real(made, row), texts[: len(fields)]
      types = real(made, row, 'type_ids') if 'type_ids' in made else [0] * len(found['input_ids'])
      assert found['token_type_ids'] == types
    assert ('token_type_ids' in theirs('a')) == ('type_ids' in made)
    empty = theirs('')['input_ids']
    assert empty == [part for part, _ in parts.make_template(settings, vocab).single if part != 'A']


def test_words(vocab, data, tmp_path):
  block = dict(name='labelled', path=str(data / 'words'), fields=('words',), label='tags', kind='words', layout='bert')
  settings = {'data': {**block, 'length': 900, 'batch_size': 8, 'cache': str(tmp_path / 'cache')}}
  theirs = export(vocab, settings, tmp_path / 'words')
  made = rows(vocab, settings['data'])
  for row, text in enumerate(TEXTS):
    assert theirs(text.split(), is_split_into_words=True)['input_ids'] == real(made, row), text


STREAMS = {
  'documents': dict(name='stream', layout='documents'),
  'rows': dict(name='stream', layout='rows'),
  'rows-named': dict(name='stream', layout='rows', begin='_start_', end='_classify_'),
  'rows-bare': dict(name='stream', layout='rows', begin='', end=''),
  'full': dict(name='stream', layout='full'),
  'stream': dict(name='stream', layout='stream'),
  'stream-bos': dict(name='stream', layout='stream', bos=True),
  'stream-bare': dict(name='stream', layout='stream', end=''),
  'bptt': dict(name='bptt', length=64),
}


@pytest.mark.parametrize('layout', STREAMS)
def test_rows_of_text(vocab, data, layout, tmp_path):
  """Compare sequences of text with transformers: all documents, concatenated in order."""
  block = {'length': 600, 'batch_size': 1, **STREAMS[layout]}
  block |= {'path': str(data / 'stream'), 'cache': str(tmp_path / 'cache')}
  settings = {'data': block}
  theirs = export(vocab, settings, tmp_path)
  made = rows(vocab, block)
  read = [token for row in range(len(made['tokens'])) for token in real(made, row)]
  written = [theirs(text)['input_ids'] for text in TEXTS]
  if layout == 'full':  # a row begins once, and documents are joined
    first, last = [part for part, _ in parts.make_template(settings, vocab).single if part != 'A']
    body = [token for text in written for token in text[1:-1]]
    assert [token for token in read if token not in (first, last)] == [t for t in body if t not in (first, last)]
    assert theirs(TEXTS[0], TEXTS[1])['input_ids'] == [*written[0], last, *written[1][1:]]
    assert read[: len(written[0])] == written[0]
  else:
    assert read == [token for text in written for token in text]


def test_two_texts_in_one_row(vocab, data, tmp_path):
  """Check the segments of pre-training on pairs."""
  from plm_jax.noise import pair

  for layout, separators in {'bert': 1, 'roberta': 2}.items():
    settings = {'data': {'name': 'pairs'}, 'objective': {'name': 'sentence_pair', 'layout': layout}}
    theirs = export(vocab, settings, tmp_path / layout)
    for one, other in zip(TEXTS, reversed(TEXTS), strict=True):
      sides = [np.array(vocab.encode(text), np.int32) for text in (one, other)]
      segments = [pair.Segment(np.pad(ids, (0, 700 - len(ids))), len(ids)) for ids in sides]
      ids = dict(cls_id=vocab.cls_id, sep_id=vocab.sep_id, pad_id=vocab.pad_id)
      row = pair.join(*segments, length=800, separators=separators, **ids)
      kept = np.asarray(row.segment_ids) > 0
      found = theirs(one, other, return_token_type_ids=True)
      assert found['input_ids'] == np.asarray(row.ids)[kept].tolist()
      assert found['token_type_ids'] == np.asarray(row.type_ids)[kept].tolist()


def test_what_an_encoder_reads_ends_with_the_end_token(vocab, tmp_path):
  for more, end in {(): [vocab.eos_id], (('append_eos', False),): []}.items():
    settings = {
      'data': {'name': 'stream', 'layout': 'stream', 'end': ''},
      'objective': {'name': 'denoise_seq2seq', **dict(more)},
    }
    theirs = export(vocab, settings, tmp_path / str(len(more)))
    one, other = vocab.encode(TEXTS[0]), vocab.encode(TEXTS[1])
    assert theirs(TEXTS[0])['input_ids'] == one + end
    assert theirs(TEXTS[0], TEXTS[1])['input_ids'] == one + end + other + end


def test_special_tokens_in_text_are_those_of_the_vocabulary(vocab, tmp_path):
  theirs = export(vocab, {'data': {'name': 'stream', 'layout': 'stream', 'end': ''}}, tmp_path)
  names = [vocab.token(number) for number in vocab.special_ids]
  for text in (f'I {name} you{name}, {name}' for name in names):
    assert theirs(text)['input_ids'] == vocab.encode(text, specials=True), text
  for role, token in vocab.roles.items():
    assert getattr(theirs, f'{role}_token') == token
  ids = vocab.encode(TEXTS[0])
  assert theirs.decode(ids, skip_special_tokens=True) == vocab.decode(ids)


def test_vocabularies_frame_rows_by_themselves(tmp_path, tiny_corpus):
  for name, (maker, expected) in {
    'wordpiece': (wordpiece, '[CLS] A [SEP] B [SEP]'),
    'byte_bpe': (byte_bpe, '<s> A </s> </s> B </s>'),
    'words': (words, '<s> A </s> B </s>'),
  }.items():
    vocab = maker.train(tiny_corpus, size=400)
    vocab.save(tmp_path / name, template=maker.template(vocab))
    release.write(tmp_path / 'out', {'model_type': 'bert'}, {}, tokenizer=tmp_path / name)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
    texts = {'A': vocab.encode(TEXTS[0]), 'B': vocab.encode(TEXTS[1])}
    ids = [number for part in expected.split() for number in texts.get(part, [vocab._ids.get(part)])]
    assert theirs(TEXTS[0], TEXTS[1])['input_ids'] == ids
    assert tokenizer.load(tmp_path / name).digest == vocab.digest
  assert byte_bpe.template(byte_bpe.train(tiny_corpus, size=400, specials='gpt2')) is None
