"""The vocabulary of words: which words get an id, in which order, and what a text becomes."""

import collections
import re

import pytest

from plm_jax.text import tokenizer, wordpiece, words

TEXT = ['The cat saw the dog . The dog saw <s> twice', "don't   SAY <unk> !? the-end"]


def test_words_are_sorted_by_frequency(tiny_corpus):
  vocab = words.train(tiny_corpus, size=10_000, min_frequency=3)
  counted = collections.Counter(word for text in tiny_corpus for word in re.findall(r'\w+|[^\w\s]+', text))
  expected = sorted((word for word in counted if counted[word] >= 3), key=lambda word: (-counted[word], word))
  assert vocab.tokens == ('<pad>', '<unk>', '<s>', '</s>', '<mask>', *expected)
  assert vocab.counts[5:].tolist() == [counted[word] for word in expected]
  assert vocab.counts[vocab.unk_id] == sum(times for times in counted.values() if times < 3)
  few = words.train(tiny_corpus, size=20, min_frequency=3)
  assert few.tokens == vocab.tokens[:20] and few.counts.sum() == counted.total()


def test_what_a_text_becomes():
  vocab = words.train(TEXT, size=100, min_frequency=1)

  def spell(text):
    return [vocab.token(number) for number in vocab.encode(text)]

  assert spell("The dog don't") == ['The', 'dog', 'don', "'", 't'] and spell('THE !?') == ['<unk>', '!?']
  assert spell('<s>') == ['<', 's', '>'] and vocab.encode('<s> x', specials=True) == [vocab.bos_id, vocab.unk_id]
  assert vocab.decode(vocab.encode('The dog saw <s>')) == 'The dog saw < s >'
  assert vocab.num_bytes[vocab.id('twice')] == 6 and not vocab.num_bytes[:5].any() and vocab.starts_word.all()
  assert vocab.encode('') == [] and vocab.encode_offsets('The dog')[1] == [(0, 3), (4, 7)]
  assert vocab.token_bytes(vocab.id('twice')) == b'twice'


def test_names_of_special_tokens_are_no_words():
  vocab = words.train(TEXT, size=100, min_frequency=1, boundaries='spaces', lowercase=True)
  assert len(set(vocab.tokens)) == vocab.size and "don't" in vocab.tokens and 'the-end' in vocab.tokens
  assert vocab.encode('the <s> <unk> dog') == [vocab.id('the'), vocab.unk_id, vocab.unk_id, vocab.id('dog')]
  assert vocab.counts[vocab.bos_id] == 0 and vocab.counts[vocab.unk_id] == 2  # '<s>' and '<unk>' of the text
  assert vocab.counts[vocab.id('the')] == 3


def test_names_as_in_bilm(tmp_path):
  words.train(TEXT, size=8, min_frequency=1, specials='elmo').save(tmp_path)
  vocab = words.make(path=str(tmp_path))
  assert vocab.tokens[:3] == ('<S>', '</S>', '<UNK>') and (vocab.bos_id, vocab.eos_id, vocab.unk_id) == (0, 1, 2)
  assert vocab.pad_id == vocab.eos_id and vocab.mask_id is None


def test_a_list_of_bilm_keeps_its_ids():
  vocab = words.of_list(['</S>', '<S>', '<UNK>', "don't", 'cat'])
  assert (vocab.eos_id, vocab.bos_id, vocab.unk_id, vocab.pad_id) == (0, 1, 2, 0)
  assert vocab.encode("cat  don't <S> dog") == [4, 3, 2, 2]  # words end at white space, and '<S>' in a text is a word


def test_survives_saving(tmp_path):
  made = words.train(TEXT, size=100, min_frequency=1, lowercase=True)
  made.save(tmp_path, template=words.template(made))
  read = words.make(path=str(tmp_path))
  assert (read.digest, read.tokens, read.roles, read.kind) == (made.digest, made.tokens, made.roles, 'words')
  assert read.counts.tolist() == made.counts.tolist() and read.encode('THE dog') == made.encode('the dog')
  more = words.make(path=str(tmp_path), extra=('<new>',))
  assert more.id('<new>') == made.size and more.encode('the <new>') == made.encode('the <new>')
  assert more.encode('the <new>', specials=True) == [made.id('the'), made.size]
  assert tokenizer.check_compatible(more, made) == ('<new>',)
  with pytest.raises(ValueError, match=r"wordpiece.*vocab\.name='words'"):
    wordpiece.make(path=str(tmp_path))
  with pytest.raises(FileNotFoundError, match='vocab train --source=TEXT --name=words --size=6000 --out='):
    words.make(path=str(tmp_path / 'none'))
  for name in ('tokenizer.json', 'vocab.json'):
    before = (tmp_path / name).read_text()
    (tmp_path / name).write_text(before.replace('dog', 'cow', 1).replace('"size": ', '"size": 1', 1))
    with pytest.raises(ValueError, match=r'vocab\.path'):
      words.make(path=str(tmp_path))
    (tmp_path / name).write_text(before)


def test_others_read_it(tmp_path):
  transformers = pytest.importorskip('transformers')
  vocab = words.train(TEXT, size=100, min_frequency=1)
  vocab.save(tmp_path)
  theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / 'tokenizer.json'))
  assert theirs('The dog saw me')['input_ids'] == vocab.encode('The dog saw me')


def test_mistakes():
  for settings, said in (
    ({'size': 5}, 'size=5.* 5 special'),
    ({'size': 50, 'min_frequency': 9}, ' 9 times'),
    ({'size': 50, 'boundaries': 'lines'}, "boundaries='lines'.*punctuation, spaces"),
    ({'size': 50, 'specials': 'bert'}, "specials='bert'.*all, elmo"),
  ):
    with pytest.raises(ValueError, match=said):
      words.train(TEXT, **settings)
  one = words.train(['aaa ' * 9], size=50)  # a text of one word
  assert one.tokens[5:] == ('aaa',) and one.counts[5] == 9
  assert tokenizer.count(one, ['aaa b']).tolist()[1] == 1
