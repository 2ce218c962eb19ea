"""SentencePiece as published: both kinds of model, words, bytes, roles, more tokens, against Hugging Face's reading."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from plm_jax.text import sentencepiece, spec, tokenizer

SENTINELS = ('<extra_id_0>', '<extra_id_1>')


def unigram(texts):
  """As T5's: a Unigram model, white space marked before words, sentinels at the end."""
  made = tokenizers.Tokenizer(models.Unigram())
  made.normalizer = normalizers.NFKC()
  made.pre_tokenizer = pre_tokenizers.Metaspace(replacement='▁', prepend_scheme='always')
  made.decoder = decoders.Metaspace(replacement='▁', prepend_scheme='always')
  front = ['<pad>', '</s>', '<unk>']
  made.train_from_iterator(
    texts, trainers.UnigramTrainer(vocab_size=300, special_tokens=front, unk_token='<unk>', show_progress=False)
  )
  made.add_special_tokens(list(SENTINELS))
  return json.loads(made.to_str())


def merges(texts):
  """As LLaMA's: pairs of pieces, a byte for what has no piece, white space by the normaliser."""
  front = ['<unk>', '<s>', '</s>']
  made = tokenizers.Tokenizer(models.BPE())
  made.pre_tokenizer = pre_tokenizers.Metaspace(replacement='▁', prepend_scheme='always')  # no piece of two words
  made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=250, special_tokens=front, show_progress=False))
  made.normalizer = normalizers.Sequence([normalizers.Prepend('▁'), normalizers.Replace(' ', '▁')])
  content = {**json.loads(made.to_str()), 'pre_tokenizer': None}
  tokens = sorted(content['model']['vocab'], key=content['model']['vocab'].__getitem__)
  tokens[3:3] = [f'<0x{byte:02X}>' for byte in range(256)]
  content['model'] |= {
    'vocab': {token: number for number, token in enumerate(tokens)},
    'byte_fallback': True,
    'fuse_unk': True,
    'unk_token': '<unk>',
  }
  content['decoder'] = json.loads(
    decoders.Sequence(
      [decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(' ', 1, 0)]
    ).__getstate__()
  )
  return content


@pytest.fixture(scope='module', params=[unigram, merges])
def published(request, tiny_corpus, tmp_path_factory):
  """(folder with a `tokenizer.json` alone, its content)."""
  folder = tmp_path_factory.mktemp('published')
  content = request.param(tiny_corpus[:150])
  (folder / 'tokenizer.json').write_text(json.dumps(content, ensure_ascii=False))
  return folder, content


@pytest.fixture(scope='module')
def vocab(published):
  return sentencepiece.make(path=str(published[0]))


def test_gives_the_ids_of_hugging_face(published, vocab, tiny_corpus):
  transformers = pytest.importorskip('transformers')
  theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(published[0] / 'tokenizer.json'))
  assert vocab.size == len(theirs)
  for text in (*tiny_corpus[150:170], '', ' two  blanks ', 'Ein Käse für 我'):
    ids = theirs(text, add_special_tokens=False).input_ids
    assert vocab.encode(text) == ids
    assert vocab.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_words_and_bytes(vocab, tiny_corpus):
  for text in tiny_corpus[150:160]:
    ids = np.array(vocab.encode(text))
    assert vocab.starts_word[ids].sum() == len(text.split())
    assert vocab.num_bytes[ids].sum() == len(f' {text}'.encode())
    assert b''.join(map(vocab.token_bytes, ids.tolist())).decode() == f' {text}'
    assert vocab.decode(ids) == text
  assert not vocab.num_bytes[list(vocab.special_ids)].any()


def test_bytes_stand_in_for_what_has_no_piece(published, vocab):
  ids = vocab.encode('我')
  if published[1]['model']['type'] == 'Unigram':
    assert vocab.unk_id in ids
  else:
    assert [vocab.token(token_id) for token_id in ids[1:]] == ['<0xE6>', '<0x88>', '<0x91>']
    assert vocab.num_bytes[ids].tolist() == [1, 1, 1, 1] and not vocab.starts_word[ids[1:]].any()
  assert spec.piece_bytes('<0x0A>') == b'\n' and spec.piece_bytes('▁a') == b' a'


def test_roles_are_those_of_the_names(published, vocab):
  if published[1]['model']['type'] == 'Unigram':
    assert vocab.roles == {'pad': '<pad>', 'unk': '<unk>', 'eos': '</s>', 'sep': '</s>'}
    assert {vocab.id(token) for token in SENTINELS} < set(vocab.special_ids)
  else:  # nothing of its own to pad with
    assert vocab.roles == {
      'unk': '<unk>', 'bos': '<s>', 'eos': '</s>', 'cls': '<s>', 'sep': '</s>', 'pad': '</s>',
    }  # fmt: skip


def test_goes_with_a_run_and_takes_more_tokens(published, vocab, tmp_path):
  vocab.save(tmp_path / 'vocab')
  again = tokenizer.load(tmp_path / 'vocab')
  assert (again.kind, again.digest, again.content) == ('sentencepiece', vocab.digest, vocab.content)
  more = sentencepiece.make(path=str(published[0]), extra=('<mask>',))
  assert more.mask_id == vocab.size
  assert tokenizer.check_compatible(more, vocab) == ('<mask>',)
  assert more.token(more.encode('the <mask>', specials=True)[-1]) == '<mask>'


def test_none_is_trained_here(tmp_path):
  with pytest.raises(FileNotFoundError, match='come with published weights: name such a folder'):
    sentencepiece.make(path=str(tmp_path / 'none'))
