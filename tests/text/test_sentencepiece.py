"""SentencePiece: what is published against Hugging Face, what is trained here against the reference library."""

import json

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from plm_jax.text import sentencepiece, spec, tokenizer

SENTINELS = ('<extra_id_0>', '<extra_id_1>')


def unigram(texts):
  """Build a Unigram model as T5's, with sentinels at the end."""
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
  """Build merges as LLaMA's, with bytes for text without a piece."""
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
  """Return (folder with only a `tokenizer.json`, its content)."""
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


def test_special_names_in_text_are_text(vocab):
  for number in vocab.special_ids:
    name = vocab.token(number)
    for text in (name, f'the {name} boat', f'a{name}b'):
      assert not set(vocab.encode(text)) & (set(vocab.special_ids) - {vocab.unk_id}), text
    assert number in vocab.encode(f'the {name} boat', specials=True)
    assert vocab.decode([number], specials=True) == name


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


# Training ----------------------------------------------------------------------------------------------------------

ODD = ('', '  ', ' two  blanks\n', 'Ein Käse für 我, ½ ﬁ', '</s> <extra_id_0> <pad>', 'x😀y', '\0a\r\n', 'ÀÉ İ')
TRAINED = {
  'all': dict(size=300),
  'bytes': dict(size=700, byte_fallback=True, algorithm='bpe', specials='llama'),
  't5': dict(size=450, specials='t5'),
  't5-few': dict(size=330, specials='t5', sentinels=3, algorithm='bpe'),
  'albert': dict(size=300, specials='albert', lowercase=True),
  'xlnet': dict(size=300, specials='xlnet', byte_fallback=False, sentinels=0),
}


@pytest.fixture(scope='module', params=TRAINED)
def trained(request, tiny_corpus):
  pytest.importorskip('sentencepiece')
  return request.param, sentencepiece.train(tiny_corpus[:120], **TRAINED[request.param])


def test_the_reference_library_reads_what_is_trained(trained, tiny_corpus, tmp_path):
  """Compare ids, texts and names of the folder of a vocabulary."""
  import sentencepiece as library

  name, vocab = trained
  vocab.save(tmp_path / 'vocab', template=sentencepiece.template(vocab))
  theirs = library.SentencePieceProcessor(model_file=str(tmp_path / 'vocab' / 'spiece.model'))
  assert vocab.size == theirs.get_piece_size() <= TRAINED[name]['size']
  assert [theirs.id_to_piece(number) for number in range(vocab.size)] == list(vocab.tokens)
  for text in (*tiny_corpus[100:140], *ODD):
    ids = theirs.encode(text)
    assert vocab.encode(text) == ids, text
    if vocab.unk_id not in ids:
      assert vocab.decode(ids) == theirs.decode(ids)
  assert [theirs.is_control(number) for number in vocab.special_ids if number != vocab.unk_id].count(False) == 0
  again = sentencepiece.make(path=str(tmp_path / 'vocab'))
  assert (again.digest, again.model, again.counts.tolist()) == (vocab.digest, vocab.model, vocab.counts.tolist())
  assert vocab.counts.sum() == sum(len(vocab.encode(text)) for text in tiny_corpus[:120])


def test_special_tokens_are_those_of_the_published_vocabularies(trained):
  name, vocab = trained
  names = list(sentencepiece.SPECIALS[{'bytes': 'llama', 't5-few': 't5'}.get(name, name)].values())
  assert list(vocab.tokens[: len(names)]) == names
  sentinels = {'t5': 100, 't5-few': 3}.get(name, 0)
  last = [vocab.token(number) for number in range(vocab.size - sentinels, vocab.size)]
  assert last == [f'<extra_id_{number}>' for number in reversed(range(sentinels))]
  assert {vocab.id(token) for token in (*names, *last)} == set(vocab.special_ids)
  if name == 'bytes':
    assert vocab.unk_id not in vocab.encode('我 😀 ½') and vocab.decode(vocab.encode('我 😀')) == '我 😀'


def test_rows_are_framed_as_published(trained, tmp_path):
  transformers = pytest.importorskip('transformers')
  from plm_jax.weights import release

  name, vocab = trained
  vocab.save(tmp_path / 'vocab', template=sentencepiece.template(vocab))
  release.write(tmp_path / 'out', {'model_type': 'bert'}, {}, tokenizer=tmp_path / 'vocab', types=True)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / 'out')
  forms = {
    'all': '<s> A </s> </s> B </s>', 'bytes': '<s> A <s> B', 't5': 'A </s> B </s>', 't5-few': 'A </s> B </s>',
    'albert': '[CLS] A [SEP] B [SEP]', 'xlnet': 'A <sep> B <sep> <cls>',
  }  # fmt: skip
  texts = {'A': vocab.encode('the boat'), 'B': vocab.encode('a cat , ½')}
  ids = [number for part in forms[name].split() for number in texts.get(part) or [vocab.id(part)]]
  assert theirs('the boat', 'a cat , ½')['input_ids'] == ids
  for text in ODD[:4]:
    assert theirs(text, add_special_tokens=False)['input_ids'] == vocab.encode(text)


def test_what_cannot_be_trained(tiny_corpus):
  pytest.importorskip('sentencepiece')
  for settings, said in (
    (dict(size=5), 'size=5.* 5 special'),
    (dict(size=90, specials='t5'), 'size=90.*3 special.*100 sentinels'),
    (dict(size=20), 'smaller than required_chars'),
    (dict(size=300, sentinels=-1), 'sentinels=-1.* 0'),
    (dict(size=300, specials='bert'), "specials='bert'.*all, t5"),
  ):
    with pytest.raises(ValueError, match=said):
      sentencepiece.train(tiny_corpus, **settings)
  with pytest.raises(ValueError, match='vocabulary'):
    sentencepiece.train(['', ' \n'], size=300)
