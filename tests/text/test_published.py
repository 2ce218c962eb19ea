"""Folders without a `tokenizer.json`: every older form, against transformers and the sentencepiece library, live."""

import functools
import io
import json
import random
import unicodedata

import pytest

from plm_jax.text import byte_bpe, spm, tokenizer, wordpiece
from tests import conftest

transformers = pytest.importorskip('transformers')
sentencepiece = pytest.importorskip('sentencepiece')

PLAIN = [
  'Anna went to the kitchen.',
  'The "quotes", (brackets) and 3.14, 1,000 or 2,5!',
  "it's naïve, café, Émile — £3",
  'two  blanks and the end ',
  'plombagnisterflockduwyhnezkjrtqxa' * 9,
  'I [MASK] you , he <mask> it',
  '',
]
BARE = [  # transformers 5 sets a space behind each mark of ALBERT and XLNet, which their own code does not
  'Anna went to the kitchen',
  "naïve café, Émile's",
  'two  blanks and the end ',
]
ODD = [
  *PLAIN,
  ' \t two  blanks\tand\na line\r\n\n',
  'é e\u0301 ﬁ ½ Ａ ① 我在这里 العربية हिन्दी 😀👩‍👩‍👧 q',
  '\x07a\u200bb \u00a0c\u3000d',
  '▁a ▁',
  '</s> <s> <unk> <pad> [CLS] <extra_id_0>',
  'İstanbul ẞ ǅ',
  '   ',
]


@pytest.fixture(scope='module')
def documents():
  draw = random.Random(1)
  return [conftest.story(draw) for _ in range(120)] + [text for text in ODD if text.strip()] * 3


def train(documents, *, size=400, algorithm='unigram', **settings):
  """Train a model file with the reference library."""
  written = io.BytesIO()
  lines = (line for text in documents for line in text.splitlines() if line.strip())
  sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=lines, model_writer=written, vocab_size=size, model_type=algorithm, hard_vocab_limit=False,
    minloglevel=2, **settings,
  )  # fmt: skip
  return written.getvalue()


def write(folder, files):
  folder.mkdir(parents=True, exist_ok=True)
  for name, content in files.items():
    if isinstance(content, bytes):
      (folder / name).write_bytes(content)
    else:
      (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding='utf-8')
  return folder


T5 = dict(pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
MARKS = ['(', ')', '"', '-', '.', '–', '£', '€']
ALBERT = dict(
  pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, control_symbols=['[CLS]', '[SEP]', '[MASK]'], user_defined_symbols=MARKS
)
XLNET = dict(
  unk_id=0, bos_id=1, eos_id=2, pad_id=5, control_symbols=['<cls>', '<sep>', '<mask>', '<eod>', '<eop>'],
  user_defined_symbols=MARKS,
)  # fmt: skip
DEBERTA = dict(
  pad_id=0, bos_id=1, eos_id=2, unk_id=3, pad_piece='[PAD]', bos_piece='[CLS]', eos_piece='[SEP]', unk_piece='[UNK]'
)
LLAMA = dict(
  algorithm='bpe', size=700, byte_fallback=True, normalization_rule_name='identity', remove_extra_whitespaces=False
)
CASED = {'do_lower_case': False, 'keep_accents': True}
FOLDERS = {  # name: (model_type, file, how it was trained, tokenizer_config.json, texts on which transformers agrees)
  't5': ('t5', 'spiece.model', T5, None, ODD),
  't5-few': ('t5', 'spiece.model', T5, {'extra_ids': 7}, ODD),
  'mt5': ('mt5', 'spiece.model', {**T5, 'byte_fallback': True, 'size': 700}, {'extra_ids': 0}, PLAIN[:2]),
  'albert': ('albert', 'spiece.model', ALBERT, None, BARE),
  'albert-cased': ('albert', 'spiece.model', ALBERT, CASED, BARE),
  'xlnet': ('xlnet', 'spiece.model', XLNET, None, BARE),
  'llama': ('llama', 'tokenizer.model', LLAMA, {'tokenizer_class': 'LlamaTokenizer', 'add_bos_token': True}, PLAIN),
  'xlm-roberta': ('xlm-roberta', 'sentencepiece.bpe.model', {}, None, ODD),
  'camembert': ('camembert', 'sentencepiece.bpe.model', {}, None, ODD),
  'mbart': ('mbart', 'sentencepiece.bpe.model', {}, None, PLAIN),
  'deberta-v2': ('deberta-v2', 'spm.model', DEBERTA, None, PLAIN),
}


@pytest.fixture(scope='module', params=FOLDERS)
def folder(request, documents, tmp_path_factory):
  """Provide (folder with only a model file, the reference library on that file, its texts)."""
  model_type, file, settings, about, texts = FOLDERS[request.param]
  content = train(documents, **settings)
  files = {'config.json': {'model_type': model_type}, file: content}
  made = write(tmp_path_factory.mktemp('release'), files | ({'tokenizer_config.json': about} if about else {}))
  return made, sentencepiece.SentencePieceProcessor(model_proto=content), texts


def offset(name, number):
  """Convert one of SentencePiece's ids to fairseq's."""
  moved = {0: 3, 1: 0, 2: 2} if name != 'camembert' else {0: 3}
  return moved.get(number, number + (4 if name == 'camembert' else 1))


def test_a_model_file_gives_the_ids_of_its_library(folder, request):
  name = request.node.callspec.params['folder']
  made, library, _ = folder
  vocab = tokenizer.load(made)
  assert vocab.kind == 'sentencepiece'
  bare = name in ('xlm-roberta', 'camembert', 'mbart')
  for text in ODD:
    if name in ('albert', 'albert-cased', 'xlnet'):
      ids = prepared(text, library, lowercase=name == 'albert', accents=name == 'albert-cased')
    else:
      ids = library.encode(text)
    assert vocab.encode(text) == ([offset(name, number) for number in ids] if bare else ids), text


def prepared(text, library, *, lowercase, accents):
  """Normalise as the code of XLNet and ALBERT (prepro_utils.py).

  Quotation marks, accents, case and commas after digits are changed. As published for the fast library, every mark is
  removed, not only those that combine.
  """
  text = ' '.join(text.split()).replace('``', '"').replace("''", '"')
  if not accents:
    text = ''.join(c for c in unicodedata.normalize('NFKD', text) if unicodedata.category(c)[0] != 'M')
  pieces = []
  for piece in library.encode(text.lower() if lowercase else text, out_type=str):
    if len(piece) > 1 and piece[-1] == ',' and piece[-2].isdigit():
      parts = library.encode(piece[:-1].replace('▁', ''), out_type=str)
      if piece[0] != '▁' and parts[0][0] == '▁':
        parts = parts[1:] if len(parts[0]) == 1 else [parts[0][1:], *parts[1:]]
      pieces += [*parts, piece[-1]]
    else:
      pieces.append(piece)
  return [library.piece_to_id(piece) for piece in pieces]


def test_a_model_file_gives_the_rows_of_transformers(folder, request):
  made, _, texts = folder
  vocab, theirs = tokenizer.load(made), transformers.AutoTokenizer.from_pretrained(made)
  assert {token: number for number, token in enumerate(vocab.tokens)} == theirs.get_vocab()
  special = [text for text in texts if not any(name in text for name in theirs.all_special_tokens)]
  for text in special:
    ids = theirs(text, add_special_tokens=False)['input_ids']
    assert vocab.encode(text) == ids, text
    assert vocab.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
  processed = tokenizer.marked(made)
  for one in texts[:2]:
    found = theirs(one, return_token_type_ids=True)
    assert (processed.encode(one).ids, processed.encode(one).type_ids) == (found['input_ids'], found['token_type_ids'])
    if request.node.callspec.params['folder'] != 'llama':
      assert processed.encode(one, texts[0]).ids == theirs(one, texts[0])['input_ids']
      check_blank_pairs(processed, theirs)
  for role in ('pad', 'unk', 'mask', 'eos', 'bos', 'cls', 'sep'):
    if getattr(theirs, f'{role}_token') and role in vocab.roles:
      assert getattr(theirs, f'{role}_token') == vocab.roles[role], role


def check_blank_pairs(marked, theirs):
  """Compare pairs with a blank text, which keep all special tokens.

  transformers keeps them in lists of pairs. Its call with one pair reads an empty second text as no text.
  """
  for pair in (('the boat', ''), ('the boat', ' '), ('', 'the boat'), ('', ''), ('the boat', '\n')):
    assert marked.encode(*pair).ids == theirs([pair])['input_ids'][0], pair


def bert_files(documents, *, lowercase=True):
  vocab = wordpiece.train(documents, size=600, lowercase=lowercase)
  return {'vocab.txt': '\n'.join(vocab.tokens) + '\n'}


FLAGS = {'special': False, 'lstrip': False, 'rstrip': False, 'single_word': False, 'normalized': False}


@pytest.mark.parametrize(
  'about',
  [
    None,
    {'do_lower_case': False},
    {'do_lower_case': True, 'strip_accents': False},
    {'do_lower_case': False, 'strip_accents': True, 'tokenize_chinese_chars': False},
    {'additional_special_tokens': ['<a b>', '[X]']},
    {
      'added_tokens_decoder': {
        '600': {**FLAGS, 'content': '<new one>', 'lstrip': True, 'normalized': True},
        '601': {**FLAGS, 'content': '[X]', 'special': True, 'rstrip': True},
      }
    },
  ],
)
def test_a_word_list(documents, tmp_path, about):
  cased = bool(about) and about.get('do_lower_case') is False
  made = write(tmp_path / 'r', {'config.json': {'model_type': 'bert'}, **bert_files(documents, lowercase=not cased)})
  if about:
    write(made, {'tokenizer_config.json': about})
  vocab, theirs = tokenizer.load(made), transformers.AutoTokenizer.from_pretrained(made)
  assert {token: number for number, token in enumerate(vocab.tokens)} == theirs.get_vocab()
  for text in (*ODD, 'a <new one> b', 'a[X] b', 'x <a b>y'):
    assert vocab.encode(text, specials=True) == theirs(text, add_special_tokens=False)['input_ids'], text
  check_blank_pairs(tokenizer.marked(made), theirs)
  row = tokenizer.marked(made).encode(PLAIN[0], PLAIN[1])
  found = theirs(PLAIN[0], PLAIN[1])
  assert (row.ids, row.type_ids) == (found['input_ids'], found['token_type_ids'])


def test_words_that_are_never_split(documents, tmp_path):
  """Compare with the slow tokenizer of transformers, as in the paper."""
  from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

  files = bert_files(documents)
  names = ['[unused1]', "John's", 'USA']
  files['vocab.txt'] += '\n'.join(names) + '\n'
  made = write(tmp_path / 'r', {'config.json': {'model_type': 'bert'}, **files})
  write(made, {'tokenizer_config.json': {'never_split': [*names, 'unknown-word']}})
  theirs = BertTokenizerLegacy(str(made / 'vocab.txt'), never_split=names)
  vocab = tokenizer.load(made)
  for text in ("the USA and John's [unused1] boat", 'usa USAx john', 'the [unused1]', 'unknown-word'):
    assert vocab.encode(text) == theirs.encode(text, add_special_tokens=False), text


def test_a_word_list_with_a_token_on_two_lines(documents, tmp_path):
  files = bert_files(documents)
  lines = files['vocab.txt'].split('\n')
  lines[20:20] = ['the', '']
  made = write(tmp_path / 'r', {'config.json': {'model_type': 'bert'}, 'vocab.txt': '\r\n'.join(lines)})
  vocab = tokenizer.load(made)
  assert vocab.size == len(lines) - 1 and vocab.encode('the') == [lines.index('the', 21)]


def merge_files(model_type, documents):
  """Build vocab.json and merges.txt with the special tokens of a model."""
  trained = byte_bpe.train(documents, size=700, specials='gpt2' if model_type == 'gpt2' else 'roberta')
  ids = {token: number for number, token in enumerate(trained.tokens)}
  if model_type == 'deberta':
    names = {'<s>': '[CLS]', '</s>': '[SEP]', '<pad>': '[PAD]', '<unk>': '[UNK]', '<mask>': '[MASK]'}
    ids = {names.get(token, token): number for token, number in ids.items()}
  merges = '\n'.join(map(' '.join, json.loads(trained.content)['model']['merges']))
  return {'vocab.json': ids, 'merges.txt': f'#version: 0.2\n{merges}\n'}


@pytest.mark.parametrize('model_type', ['gpt2', 'roberta', 'bart', 'deberta'])
def test_merges(documents, tmp_path, model_type):
  files = {'config.json': {'model_type': model_type}, **merge_files(model_type, documents)}
  ids = files['vocab.json']
  for number, about in enumerate((None, {'add_prefix_space': True})):
    made = write(tmp_path / str(number), files | ({'tokenizer_config.json': about} if about else {}))
    vocab, theirs = tokenizer.load(made), transformers.AutoTokenizer.from_pretrained(made)
    assert vocab.kind == 'byte_bpe' and ids == theirs.get_vocab()
    for text in ODD:
      if not any(name in text for name in theirs.all_special_tokens):
        assert vocab.encode(text) == theirs(text, add_special_tokens=False)['input_ids'], text
    if model_type != 'deberta':  # whose pairs transformers 5 writes with two separators, against its releases
      assert tokenizer.marked(made).encode(PLAIN[0], PLAIN[1]).ids == theirs(PLAIN[0], PLAIN[1])['input_ids']
      check_blank_pairs(tokenizer.marked(made), theirs)


def merged_words(documents, *, specials, lowercase):
  """Build the files of a BPE whose merges end words with </w>."""
  import tokenizers

  made = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token='<unk>', end_of_word_suffix='</w>'))
  made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lowercase, strip_accents=lowercase)
  made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
  trainer = tokenizers.trainers.BpeTrainer(
    vocab_size=500, special_tokens=specials, end_of_word_suffix='</w>', show_progress=False
  )
  made.train_from_iterator(documents, trainer)
  content = json.loads(made.to_str())['model']
  merges = '#version: 0.2\n' + '\n'.join(map(' '.join, content['merges'])) + '\n'
  return {'vocab.json': content['vocab'], 'merges.txt': merges}


def test_herbert(documents, tmp_path):
  """Check BERT with the first GPT's word ends, with case and accents."""
  files = merged_words(documents, specials=['<s>', '<pad>', '</s>', '<unk>', '<mask>'], lowercase=False)
  about = {'config.json': {'model_type': 'bert'}, 'tokenizer_config.json': {'tokenizer_class': 'HerbertTokenizer'}}
  folder = write(tmp_path / 'herbert', files | about)
  vocab, theirs = tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
  for text in ODD:
    if not any(name in text for name in theirs.all_special_tokens):
      assert vocab.encode(text) == theirs(text, add_special_tokens=False)['input_ids'], text
  row = tokenizer.marked(folder).encode(PLAIN[0], PLAIN[1])
  found = theirs(PLAIN[0], PLAIN[1], return_token_type_ids=True)
  assert (row.ids, row.type_ids) == (found['input_ids'], found['token_type_ids'])


@pytest.mark.parametrize(
  'about', [{}, {'add_bos_token': True}, {'add_eos_token': True}, {'add_bos_token': True, 'add_eos_token': True}]
)
@pytest.mark.parametrize('model_type', ['opt', 'gpt2'])
def test_tokens_around_the_texts_of_decoders(documents, tmp_path, model_type, about):
  """Ignore <s> and </s> in the vocabularies of decoders."""
  trained = byte_bpe.train(documents, size=700, specials='roberta')
  merges = '\n'.join(map(' '.join, json.loads(trained.content)['model']['merges']))
  ids = {token: number for number, token in enumerate(trained.tokens)}
  names = {'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>', 'tokenizer_class': 'GPT2Tokenizer'}
  files = {'config.json': {'model_type': model_type}, 'vocab.json': ids, 'merges.txt': f'{merges}\n'}
  made = write(tmp_path / 'r', files | {'tokenizer_config.json': names | about})
  marked, theirs = tokenizer.marked(made), transformers.AutoTokenizer.from_pretrained(made)
  for texts in ([PLAIN[0]], PLAIN[:2]):
    found = theirs(*texts, return_token_type_ids=True)
    row = marked.encode(*texts)
    assert (row.ids, row.type_ids) == (found['input_ids'], found['token_type_ids'])


@pytest.mark.parametrize('name', ['Bert', 'DistilBert', 'Electra', 'MobileBert', 'SqueezeBert', 'Lxmert', 'ConvBert'])
def test_classes_with_the_word_list_of_bert(documents, tmp_path, name):
  about = {'tokenizer_class': f'{name}Tokenizer', 'do_lower_case': False}
  files = {'tokenizer_config.json': about, 'config.json': {'model_type': 'bert'}, **bert_files(documents)}
  made = write(tmp_path / 'r', files)
  marked, theirs = tokenizer.marked(made), transformers.AutoTokenizer.from_pretrained(made)
  for texts in ([PLAIN[2]], PLAIN[:2]):
    row, found = marked.encode(*texts), theirs(*texts, return_token_type_ids=True)
    assert (row.ids, row.type_ids) == (found['input_ids'], found['token_type_ids'])


def test_other_tokenizers_of_the_same_files_are_refused_by_name(documents, tmp_path):
  words, merged = {'vocab.txt': '[PAD]\n[UNK]\na\n'}, {'vocab.json': {'a': 0}, 'merges.txt': ''}
  for number, (files, key, named) in enumerate(
    (
      (words, 'tokenizer_class', 'BertJapaneseTokenizer'),
      (words, 'tokenizer_class', 'TapasTokenizerFast'),
      (words, 'model_type', 'splinter'),
      (merged, 'tokenizer_class', 'CTRLTokenizer'),
      (merged, 'tokenizer_class', 'BlenderbotTokenizer'),
      (merged, 'model_type', 'xlm'),
    )
  ):
    place = 'config.json' if key == 'model_type' else 'tokenizer_config.json'
    made = write(tmp_path / str(number), {**files, place: {key: named}})
    with pytest.raises(ValueError, match=rf'{named}.*tokenizer\.json'):
      tokenizer.load(made)


WORDS = ['Bert', 'DistilBert', 'Electra', 'MobileBert', 'SqueezeBert', 'Lxmert', 'LayoutLM']
MERGES = ['Roberta', 'Bart', 'Longformer', 'LED', 'GPT2', 'Deberta']
PIECES = ['MBart', 'MBart50']
CASES = [{}, {'do_lower_case': False}, {'do_lower_case': True, 'strip_accents': False}, {'strip_accents': True},
         {'do_lower_case': False, 'strip_accents': True, 'tokenize_chinese_chars': False}]  # fmt: skip
SPACES = [{}, {'add_prefix_space': True}, {'add_prefix_space': False}]
SPOKEN = [{}, {'src_lang': 'de_DE'}, {'src_lang': 'en_XX'}]


@pytest.fixture(scope='module')
def saved(documents, tmp_path_factory):
  """Save a tokenizer.json per model type; each test adds its settings."""
  trained = byte_bpe.train(documents, size=700, specials='roberta')
  merges = '\n'.join(map(' '.join, json.loads(trained.content)['model']['merges']))
  ids = {token: number for number, token in enumerate(trained.tokens)}
  olds = {
    'bert': ({'do_lower_case': True}, bert_files(documents)),
    'electra': ({'do_lower_case': False, 'strip_accents': True}, bert_files(documents)),
    'roberta': ({}, {'vocab.json': ids, 'merges.txt': f'{merges}\n'}),
    'bart': ({'add_prefix_space': True}, {'vocab.json': ids, 'merges.txt': f'{merges}\n'}),
    'mbart': ({'src_lang': 'ro_RO'}, {'sentencepiece.bpe.model': train(documents)}),
    'llama': ({'tokenizer_class': 'LlamaTokenizer'}, {'tokenizer.model': train(documents, **LLAMA)}),
    'albert': ({}, {'spiece.model': train(documents, **ALBERT)}),
  }
  made = {}
  for model_type, (about, files) in olds.items():
    folder = tmp_path_factory.mktemp(model_type)
    old = write(folder / 'old', {'config.json': {'model_type': model_type}, 'tokenizer_config.json': about, **files})
    transformers.AutoTokenizer.from_pretrained(old).save_pretrained(folder / 'new')
    made[model_type] = (folder / 'new' / 'tokenizer.json').read_text(encoding='utf-8')
  return made


@pytest.mark.parametrize(
  ('model_types', 'classes', 'settings'),
  [
    (['bert', 'electra'], [None, *WORDS], CASES),
    (['bert'], ['PreTrained', 'Unheard'], CASES[1:3]),
    (['roberta', 'bart'], [None, *MERGES], SPACES),
    (['bart'], ['PreTrained'], SPACES),
    (['mbart'], [None, *PIECES, 'PreTrained'], SPOKEN),
    (['llama'], ['Llama', 'PreTrained'], [{}, {'add_bos_token': True}, {'add_bos_token': True, 'add_eos_token': True}]),
  ],
)
def test_settings_beside_a_tokenizer_json(saved, tmp_path, model_types, classes, settings):
  """Compare the settings and defaults of each class of transformers."""
  cases = [(one, name, about) for one in model_types for name in classes for about in settings]
  for number, (model_type, name, about) in enumerate(cases):
    ending = 'Tokenizer' if number % 2 and name in WORDS else 'TokenizerFast'
    own = {} if name is None else {'tokenizer_class': f'{name}{ending}'}
    files = {'tokenizer.json': saved[model_type], 'tokenizer_config.json': about | own}
    folder = write(tmp_path / str(number), {**files, 'config.json': {'model_type': model_type}})
    marked, theirs = tokenizer.marked(folder), transformers.AutoTokenizer.from_pretrained(folder)
    rows = name != 'Deberta'  # whose tokens around a text are not those of this vocabulary
    for text in (PLAIN[0], PLAIN[2], ODD[8]):
      found = theirs(text, add_special_tokens=rows)['input_ids']
      assert marked.encode(text, add_special_tokens=rows).ids == found, (model_type, own, about, text)


def test_settings_that_a_tokenizer_json_contradicts_are_refused(saved, tmp_path):
  split = {**json.loads(saved['roberta']), 'pre_tokenizer': {'type': 'Whitespace'}}
  plain = {**json.loads(saved['bert']), 'normalizer': {'type': 'Lowercase'}}
  for number, (content, name, about, said) in enumerate(
    (
      (plain, 'Bert', {}, 'normalizer.*Lowercase.*BertTokenizer.*BertNormalizer'),
      (split, 'GPT2', {}, 'pre_tokenizer.*Whitespace.*GPT2Tokenizer.*ByteLevel'),
      (saved['mbart'], 'MBart', {'src_lang': 'xx_XX'}, "src_lang.*'xx_XX'"),
      (saved['albert'], 'Albert', {'do_lower_case': False}, 'do_lower_case.*false.*true'),
      (saved['albert'], 'Albert', {'keep_accents': True}, 'keep_accents.*true.*false'),
      (saved['llama'], 'Llama', {'add_prefix_space': False}, 'add_prefix_space.*false.*true'),
    )
  ):
    files = {'tokenizer.json': content, 'tokenizer_config.json': {'tokenizer_class': f'{name}Tokenizer', **about}}
    with pytest.raises(ValueError, match=said):
      tokenizer.load(write(tmp_path / str(number), files))
    own = {'tokenizer_class': 'PreTrainedTokenizerFast', **about}
    tokenizer.marked(write(tmp_path / str(number), {'tokenizer_config.json': own}))


def test_a_copy_has_the_settings_that_its_source_was_loaded_with(saved, tmp_path):
  """Keep lower case of BERT, which model_type sets in folders without a class."""
  from plm_jax.weights import release

  for number, about in enumerate(({}, {'do_lower_case': False})):
    files = {'tokenizer.json': saved['electra'], 'tokenizer_config.json': about}
    source = write(tmp_path / str(number), {**files, 'config.json': {'model_type': 'electra'}})
    release.copy_tokenizer(source, tmp_path / f'copy{number}')
    assert tokenizer.load(tmp_path / f'copy{number}').digest == tokenizer.load(source).digest
  assert tokenizer.load(tmp_path / 'copy0').encode('ANNA') != tokenizer.load(tmp_path / 'copy1').encode('ANNA')


def test_the_first_gpt(documents, tmp_path):
  files = merged_words(documents, specials=['<unk>'], lowercase=True)
  folder = write(tmp_path / 'gpt', {'config.json': {'model_type': 'openai-gpt'}, **files})
  vocab, theirs = tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
  assert vocab.kind == 'word_bpe' and vocab.roles['pad'] == '<unk>'
  for text in ODD:
    assert vocab.encode(text, specials=True) == theirs(text)['input_ids'], text
  ids = vocab.encode(PLAIN[0])
  assert vocab.decode(ids) == theirs.decode(ids, clean_up_tokenization_spaces=False)
  words = 'the old boat'
  assert vocab.num_bytes[vocab.encode(words)].sum() == len(words) + 1
  more = tokenizer.load(folder, extra=('_start_', '_delimiter_', '_classify_'))
  assert more.size == vocab.size + 3
  more.save(tmp_path / 'kept')
  assert tokenizer.load(tmp_path / 'kept').digest == more.digest


def test_bytes(tmp_path):
  folder = write(tmp_path / 'byt5', {'tokenizer_config.json': {'tokenizer_class': 'ByT5Tokenizer'}})
  vocab, theirs = tokenizer.load(folder), transformers.ByT5Tokenizer()
  assert vocab.size == 384 and vocab.size == len(theirs)
  for text in (*PLAIN, 'é 我 😀', '\n\n a'):
    assert vocab.encode(text) == theirs(text, add_special_tokens=False)['input_ids']
    assert vocab.decode(vocab.encode(text)) == text
  assert (vocab.pad_id, vocab.eos_id, vocab.unk_id, vocab.id('<extra_id_0>')) == (0, 1, 2, 259)
  theirs.save_pretrained(tmp_path / 'saved')
  for marked in map(tokenizer.marked, (folder, tmp_path / 'saved')):  # blanks next to special tokens
    for text in ('a </s> b', 'a  <pad>\n b', '<unk> b', '  </s>', 'a <extra_id_0> b', 'a</s>b', '</s> </s>  <pad>'):
      assert marked.encode(text, add_special_tokens=False).ids == theirs(text, add_special_tokens=False)['input_ids']


def test_unusual_names_of_special_tokens(documents, tmp_path):
  """Read roles from the settings of a folder without well-known names."""
  lines = bert_files(documents)['vocab.txt']
  renamed = {'[PAD]': '<blank>', '[CLS]': '«start»', '[SEP]': 'END!', '[MASK]': '___', '[UNK]': '?unk?'}
  for old, new in renamed.items():
    lines = lines.replace(old, new)
  names = dict(zip(('pad', 'cls', 'sep', 'mask', 'unk'), renamed.values(), strict=True))
  about = {f'{role}_token': token for role, token in names.items()}
  folder = write(
    tmp_path / 'r', {'config.json': {'model_type': 'bert'}, 'vocab.txt': lines, 'tokenizer_config.json': about}
  )
  vocab, theirs = tokenizer.load(folder), transformers.AutoTokenizer.from_pretrained(folder)
  assert {role: vocab.roles[role] for role in names} == names
  assert tokenizer.marked(folder).encode('the boat', 'a cat').ids == theirs('the boat', 'a cat')['input_ids']
  theirs.save_pretrained(tmp_path / 'fast')
  again = tokenizer.load(tmp_path / 'fast')
  assert {role: again.roles[role] for role in names} == names


def test_what_is_damaged_says_so(documents, tmp_path):
  content, words = train(documents, **T5), {'vocab.txt': '[PAD]\n[UNK]\na\n'}

  def added(table):
    return {'tokenizer_config.json': {'added_tokens_decoder': table}}

  for number, (files, said) in enumerate(
    (
      ({'spiece.model': content[: len(content) // 2]}, 'damaged'),
      ({'spiece.model': b''}, 'SentencePiece'),
      ({'tokenizer.model': 'IQ== 0\nIg== 1\n'}, 'SentencePiece'),
      ({'sentencepiece.bpe.model': content}, 'config.json or tokenizer_config.json'),
      ({'vocab.txt': 'a\nb\n'}, r'vocab\.txt.*\[UNK\]'),
      ({'vocab.txt': 'a\n[UNK]\n', 'bpe.codes': ''}, 'fastBPE'),
      ({'vocab.json': {'a': 0}, 'merges.txt': 'a b\n'}, r"merges.txt.*'a b'"),
      ({'vocab.json': [1], 'merges.txt': ''}, 'vocab.json'),
      ({'vocab.json': {'a': 'b'}, 'merges.txt': ''}, 'vocab.json'),
      ({'vocab.txt': b'a\n[UNK]\n\xe9\n'}, 'vocab.txt.*line 3.*UTF-8'),
      ({**words, 'tokenizer_config.json': {'do_lower_case': 'no'}}, "tokenizer_config.json.*do_lower_case.*'no'"),
      ({**words, 'added_tokens.json': {'<n>': 50}}, "'<n>'.* 50.* 3"),
      ({**words, 'added_tokens.json': {'<n>': 'x'}}, "added_tokens.json.*'x'"),
      ({**words, 'added_tokens.json': {'<n>': None}}, 'added_tokens.json.*None'),
      ({**words, **added({'1': {'content': '<q>'}})}, "'<q>'.* 1.* 3"),
      ({**words, **added({'x': {'content': '<q>'}})}, "added_tokens_decoder.*'x'"),
    )
  ):
    with pytest.raises(ValueError, match=said):
      tokenizer.load(write(tmp_path / str(number), files))
  for number in range(60):  # flipped bytes: read otherwise, or refused in one line
    damaged = bytearray(content)
    damaged[random.Random(number).randrange(len(damaged))] ^= 1 << number % 8
    try:
      spm.read(bytes(damaged))
    except ValueError:
      continue


def test_no_other_file_decides(documents, tmp_path):
  """Prefer `tokenizer.json`; GPT-2's `vocab.json` alone is no tokenizer."""
  files = bert_files(documents)
  vocab = tokenizer.load(write(tmp_path / 'r', {'config.json': {'model_type': 'bert'}, **files}))
  write(tmp_path / 'r', {'tokenizer.json': vocab.content, 'vocab.txt': 'nothing\n'})
  assert tokenizer.load(tmp_path / 'r').digest == vocab.digest
  assert not tokenizer.exists(write(tmp_path / 'none', {'vocab.json': {'a': 0}, 'config.json': {'model_type': 'bert'}}))


@pytest.mark.parametrize('model_type', ['bert', 'xlm-roberta', 'albert'])
def test_a_copy_says_everything_by_itself(documents, tmp_path, model_type):
  """Read a converted tokenizer without its config.json, or with another."""
  from plm_jax.weights import release

  files = {'config.json': {'model_type': model_type}}
  if model_type == 'bert':
    files |= {'tokenizer_config.json': {'do_lower_case': False}, **bert_files(documents, lowercase=False)}
  elif model_type == 'albert':
    files['spiece.model'] = train(documents, **ALBERT)
  else:
    files['sentencepiece.bpe.model'] = train(documents)
  source = write(tmp_path / 'r', files)
  release.copy_tokenizer(source, tmp_path / 'copy')
  vocab, again = tokenizer.load(source), tokenizer.load(tmp_path / 'copy')
  assert (again.digest, again.roles) == (vocab.digest, vocab.roles)
  theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / 'copy' / 'tokenizer.json'))
  marked = tokenizer.marked(source)
  for text in BARE:
    assert theirs(text, BARE[0])['input_ids'] == marked.encode(text, BARE[0]).ids


def test_merges_with_the_line_ends_of_windows(documents, tmp_path):
  made = merged_words(documents, specials=['<s>', '<pad>', '</s>', '<unk>', '<mask>'], lowercase=False)
  texts = ['the old boat', 'rain']
  read = []
  for name, end in (('unix', '\n'), ('windows', '\r\n')):
    files = {'config.json': {'model_type': 'roberta'}, **made, 'merges.txt': made['merges.txt'].replace('\n', end)}
    folder = write(tmp_path / name, {key: value for key, value in files.items() if key != 'merges.txt'})
    (folder / 'merges.txt').write_bytes(files['merges.txt'].encode())
    read.append([tokenizer.load(folder).encode(text) for text in texts])
  assert read[0] == read[1]


NAMED = {  # model_type: files
  'bert': bert_files,
  'electra': bert_files,
  **{name: functools.partial(merge_files, name) for name in ('gpt2', 'roberta', 'bart', 'deberta')},
  'openai-gpt': functools.partial(merged_words, specials=['<unk>'], lowercase=True),
  't5': lambda documents: {'spiece.model': train(documents, **T5)},
  'deberta-v2': lambda documents: {'spm.model': train(documents, **DEBERTA)},
  'xlm-roberta': lambda documents: {'sentencepiece.bpe.model': train(documents)},
  'mbart': lambda documents: {'sentencepiece.bpe.model': train(documents)},
}


@pytest.mark.parametrize('model_type', NAMED)
def test_one_reading_of_special_tokens_whatever_the_files(documents, tmp_path, model_type):
  files = {'config.json': {'model_type': model_type}, **NAMED[model_type](documents)}
  theirs = transformers.AutoTokenizer.from_pretrained(write(tmp_path / 'bare', files))
  names = {role: token for role, token in theirs.special_tokens_map.items() if isinstance(token, str)}
  about = {'tokenizer_class': type(theirs).__name__}
  saved = tmp_path / 'saved'
  theirs.save_pretrained(saved)
  write(saved, {'config.json': files['config.json']})
  folders = [tmp_path / 'bare', saved] + [
    write(tmp_path / str(number), files | more)
    for number, more in enumerate((
      {'special_tokens_map.json': names},
      {'tokenizer_config.json': about},
      {'special_tokens_map.json': names, 'tokenizer_config.json': about | names},
    ))
  ]  # fmt: skip
  special = theirs.all_special_tokens
  texts = [*(f'Anna {name} went' for name in special), *(f'a{name}b' for name in special), ' '.join(special)]
  for folder in folders:
    vocab, marked = tokenizer.load(folder), tokenizer.marked(folder)
    for text in texts:
      assert marked.encode(text).ids == theirs(text)['input_ids'], (folder, text)
      assert vocab.encode(text, specials=True) == theirs(text, add_special_tokens=False)['input_ids'], (folder, text)


def test_the_tokenizer_json_of_the_first_gpt_has_the_roles_of_its_other_files(documents, tmp_path):
  files = merged_words(documents, specials=['<unk>'], lowercase=True)
  folder = write(tmp_path / 'files', {'config.json': {'model_type': 'openai-gpt'}, **files})
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  theirs.save_pretrained(tmp_path / 'json')
  theirs.backend_tokenizer.save(str(tmp_path / 'tokenizer.json'))  # nothing beside it
  for other in (tmp_path / 'json', tmp_path / 'tokenizer.json'):
    vocab = tokenizer.load(other)
    assert vocab.roles == tokenizer.load(folder).roles and vocab.roles['pad'] == '<unk>'
    assert vocab.encode(PLAIN[0]) == tokenizer.load(folder).encode(PLAIN[0])


@pytest.mark.parametrize('model_type', ['bert', 'gpt2', 'openai-gpt', 't5'])
def test_tokens_named_beside_a_tokenizer_json_are_tokens(documents, tmp_path, model_type):
  config = {'config.json': {'model_type': model_type}}
  theirs = transformers.AutoTokenizer.from_pretrained(write(tmp_path / 'old', config | NAMED[model_type](documents)))
  theirs.save_pretrained(tmp_path / 'saved')
  whole, new = json.loads((tmp_path / 'saved' / 'tokenizer.json').read_text(encoding='utf-8')), len(theirs)
  entry = {'content': '<new>', 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False}
  beside = {
    'added': {'added_tokens.json': {'<new>': new}},
    'decoder': {'tokenizer_config.json': {'added_tokens_decoder': {str(new): {**entry, 'special': True}}}},
    'list': {'tokenizer_config.json': {'additional_special_tokens': ['<new>']}},
    'names': {'tokenizer_config.json': {'extra_special_tokens': {'new_token': '<new>'}}},
    'map': {'special_tokens_map.json': {'additional_special_tokens': ['<new>']}},
    'stale': {'added_tokens.json': {theirs.unk_token: 7}},
    'none': {},
  }
  texts = [PLAIN[0], 'a <new> b', 'a<new>b', *(f'Anna {name} went' for name in theirs.all_special_tokens)]
  for name, files in beside.items():
    folder = write(tmp_path / name, {**config, **files, 'tokenizer.json': whole})
    library = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.load(folder).size == len(library)
    for text in texts:
      assert tokenizer.marked(folder).encode(text).ids == library(text)['input_ids'], (name, text)
  bare = write(tmp_path / 'unmarked', {**config, 'tokenizer.json': {**whole, 'added_tokens': []}})
  library = transformers.AutoTokenizer.from_pretrained(bare)
  for text in (f'Anna {name} went' for name in library.special_tokens_map.values() if isinstance(name, str)):
    assert tokenizer.marked(bare).encode(text).ids == library(text)['input_ids'], text


def test_added_words_follow_the_normaliser_of_bert(documents, tmp_path):
  """Read a mark of byte order in vocab.txt too, as editors of Windows write it."""
  files = bert_files(documents)
  count = len(files['vocab.txt'].split())
  files = {'config.json': {'model_type': 'bert'}, 'added_tokens.json': {'NewWord': count}, **files}
  folder = write(tmp_path / 'plain', files)
  theirs = transformers.AutoTokenizer.from_pretrained(folder)
  for text in ('a NewWord b', 'a newword b'):
    assert tokenizer.marked(folder).encode(text).ids == theirs(text)['input_ids']
  marked = write(tmp_path / 'marked', {**files, 'vocab.txt': '\ufeff' + files['vocab.txt']})
  assert tokenizer.load(marked).digest == tokenizer.load(folder).digest
