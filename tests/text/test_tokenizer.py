"""What all vocabularies share: files, pickles, added tokens, published files, comparing two."""

import dataclasses
import json
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

from plm_jax.core import types
from plm_jax.io import files
from plm_jax.text import byte_bpe, tokenizer, wordpiece

ROOT = pathlib.Path(__file__).resolve().parents[2]
KINDS = {'wordpiece': wordpiece, 'byte_bpe': byte_bpe}
GPT_TOKENS = ('_start_', '_delimiter_', '_classify_')


@pytest.fixture(scope='module', params=KINDS)
def trained(request, tiny_corpus):
  return KINDS[request.param].train(tiny_corpus[:100], size=400)


def same(one, other):
  arrays = ('starts_word', 'num_bytes', 'counts')
  values = ('kind', 'content', 'roles', 'tokens', 'special_ids', 'digest', 'size', 'record')
  return all(getattr(one, name) == getattr(other, name) for name in values) and all(
    np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
  )


def publish(vocab, folder, **changes):
  """Save only `tokenizer.json`, as others do."""
  folder.mkdir()
  (folder / 'tokenizer.json').write_text(json.dumps({**json.loads(vocab.content), **changes}))
  return str(folder)


def rename(vocab, names):
  """Rename the special tokens of a vocabulary."""
  spec = json.loads(vocab.content)
  spec['model']['vocab'] = {names.get(token, token): i for token, i in spec['model']['vocab'].items()}
  spec['added_tokens'] = [
    {**item, 'content': names.get(item['content'], item['content'])} for item in spec['added_tokens']
  ]
  return {'model': spec['model'], 'added_tokens': spec['added_tokens']}


def test_has_all_that_the_protocol_names(trained):
  names = {name for name in vars(types.Vocab) if not name.startswith('_')}
  assert {'size', 'digest', 'pad_id', 'starts_word', 'encode', 'save'} <= names <= set(dir(trained))
  assert trained.starts_word.shape == trained.num_bytes.shape == trained.counts.shape == (trained.size,)
  assert (trained.starts_word.dtype, trained.num_bytes.dtype, trained.counts.dtype) == (bool, np.int32, np.int64)


def test_a_batch_is_each_text(trained, tiny_corpus):
  texts = [*tiny_corpus, '', '我 <s> [MASK]']
  assert trained.encode_batch(texts) == [trained.encode(text) for text in texts]
  assert trained.encode_batch([]) == []


def test_offsets_cover_the_text(trained, tiny_corpus):
  text = tiny_corpus[0]
  ids, offsets = trained.encode_offsets(text)
  assert ids == trained.encode(text) and len(offsets) == len(ids)
  for token_id, (start, end) in zip(ids, offsets, strict=True):
    token = trained.token(token_id)
    assert text[start:end].lower() == token.removeprefix('##').replace('Ġ', ' ').lower()


def test_tokens_and_ids(trained):
  assert [trained.id(trained.token(i)) for i in range(trained.size)] == list(range(trained.size))
  with pytest.raises(ValueError, match=r"'teachr'.*[Dd]id you mean '.*t"):
    trained.id('teachr')
  for outside in (-1, 400):
    with pytest.raises(ValueError, match=f'{outside}.*400'):
      trained.token(outside)


def test_survives_saving_and_pickling(trained, tmp_path):
  trained.encode('fills what is cached')
  folder = tmp_path / 'a' / 'vocab'
  trained.save(str(folder))
  trained.save(folder)
  assert sorted(file.name for file in folder.iterdir()) == ['tokenizer.json', 'vocab.json']
  read = KINDS[trained.kind].make(path=str(folder))
  copy = pickle.loads(pickle.dumps(trained))  # noqa: S301 - what multiprocessing does
  assert same(read, trained) and same(copy, trained) and same(tokenizer.load(folder / ''), trained)
  text = 'The old sailor of 1924.'
  assert read.encode(text) == copy.encode(text) == trained.encode(text) and copy.encode('[MASK]') == trained.encode(
    '[MASK]'
  )
  code = f'from plm_jax.text import tokenizer; v = tokenizer.load({str(folder)!r}); print(v.digest, v.encode({text!r}))'
  run = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True, check=True)
  assert run.stdout.strip() == f'{trained.digest} {trained.encode(text)}'


def test_does_not_overwrite_another(trained, tiny_corpus, tmp_path):
  trained.save(tmp_path)
  before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
  other = KINDS[trained.kind].train(tiny_corpus[:100], size=390)
  with pytest.raises(ValueError, match=rf'400.*{trained.digest[:12]}.*390'):
    other.save(tmp_path)
  assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_interrupted_save_leaves_no_vocabulary(trained, tmp_path, monkeypatch):
  write = files.write_text

  def dies(file, text):
    if file.name == 'tokenizer.json':
      raise KeyboardInterrupt
    write(file, text)

  monkeypatch.setattr(files, 'write_text', dies)
  with pytest.raises(KeyboardInterrupt):
    trained.save(tmp_path)
  assert not tokenizer.exists(tmp_path)
  monkeypatch.undo()
  trained.save(tmp_path)
  assert same(tokenizer.load(tmp_path), trained)


def test_what_is_not_there_or_not_it(trained, tmp_path):
  module = KINDS[trained.kind]
  with pytest.raises(
    FileNotFoundError, match=rf'vocab train --source=TEXT --name={trained.kind} --size=6000 --out=.*none'
  ):
    module.make(path=str(tmp_path / 'none'))
  trained.save(tmp_path / 'it')
  [other] = set(KINDS.values()) - {module}
  with pytest.raises(ValueError, match=rf"{trained.kind}.*vocab\.name='{trained.kind}'"):
    other.make(path=str(tmp_path / 'it'))
  for damaged in ('{"model"', '[]', '{}', '{"model": {}}'):
    (tmp_path / 'bad').mkdir(exist_ok=True)
    (tmp_path / 'bad' / 'tokenizer.json').write_text(damaged)
    with pytest.raises(ValueError, match=r'vocab\.path: .*bad\b'):
      module.make(path=str(tmp_path / 'bad'))


def test_a_changed_file_is_noticed(trained, tmp_path):
  trained.save(tmp_path)
  file = tmp_path / 'tokenizer.json'
  spec = json.loads(file.read_text())
  swapped = {trained.token(300): 301, trained.token(301): 300}
  spec['model']['vocab'] |= swapped
  file.write_text(json.dumps(spec))
  with pytest.raises(ValueError, match=r'tokenizer\.json'):
    tokenizer.load(tmp_path)


def test_flipped_bits_are_noticed(trained, tmp_path):
  counted = dataclasses.replace(trained, counts=np.arange(trained.size), record={'documents': 3})
  counted.save(tmp_path)
  draw = np.random.default_rng(0)
  for name in ('vocab.json', 'tokenizer.json'):
    file = tmp_path / name
    before = file.read_bytes()
    for place in draw.integers(len(before), size=40):
      damaged = bytearray(before)
      damaged[place] ^= 1 << draw.integers(8)
      file.write_bytes(damaged)
      try:
        found = tokenizer.load(tmp_path)
      except ValueError as error:
        assert 'vocab.path' in str(error)
      else:  # white space became other white space
        assert json.loads(damaged) == json.loads(before) and found.counts.tolist() == counted.counts.tolist()
    file.write_bytes(before)
  assert tokenizer.load(tmp_path).record == {'documents': 3}


def test_folders_without_digests_are_read(trained, tmp_path):
  trained.save(tmp_path)
  facts = json.loads((tmp_path / 'vocab.json').read_text())
  del facts['sha256'], facts['sha256_of_files']
  (tmp_path / 'vocab.json').write_text(json.dumps(facts))
  assert tokenizer.load(tmp_path).digest == trained.digest


def test_extra_tokens_come_last(trained, tmp_path):
  trained.save(tmp_path)
  module = KINDS[trained.kind]
  more = module.make(path=str(tmp_path), extra=GPT_TOKENS)
  assert more.size == 403 and more.tokens == (*trained.tokens, *GPT_TOKENS)
  assert [more.id(token) for token in GPT_TOKENS] == [400, 401, 402] == list(more.special_ids[-3:])
  assert more.starts_word[400:].all() and not more.num_bytes[400:].any() and more.counts[400:].tolist() == [0, 0, 0]
  assert more.roles == trained.roles and more.digest != trained.digest
  text = 'The sailor of _start_ 1924.'
  assert more.encode(text) == trained.encode(text) and 400 in more.encode(text, specials=True)
  assert tokenizer.check_compatible(more, trained) == GPT_TOKENS
  more.save(tmp_path / 'more')
  again = module.make(path=str(tmp_path / 'more'), extra=GPT_TOKENS)
  assert same(again, more) and tokenizer.check_compatible(again, more) == ()
  with pytest.raises(ValueError, match=r'extra token'):
    module.make(path=str(tmp_path), extra=(trained.token(350),))


def test_extra_tokens_take_roles_that_are_open(tiny_corpus, tmp_path):
  byte_bpe.train(tiny_corpus, size=300, specials='gpt2').save(tmp_path)
  vocab = byte_bpe.make(path=str(tmp_path), extra=('<pad>', '<mask>', '_classify_'), roles={'cls': '_classify_'})
  assert (vocab.pad_id, vocab.mask_id, vocab.cls_id, vocab.bos_id, vocab.eos_id) == (300, 301, 302, 299, 299)
  assert vocab.encode('I <mask>', specials=True) == [vocab.id('I'), 301]


def test_another_vocabulary_is_not_compatible(trained, tiny_corpus):
  module = KINDS[trained.kind]
  short = module.train(tiny_corpus[:100], size=390)
  with pytest.raises(ValueError, match=rf'{short.digest[:12]}.*{trained.digest[:12]}.*id 390'):
    tokenizer.check_compatible(short, trained)
  other = module.train([text.upper() + ' QQ zz' for text in tiny_corpus[100:200]], size=400)
  first = next(i for i in range(400) if other.tokens[i] != trained.tokens[i])
  with pytest.raises(ValueError, match=rf'id {first}\b'):
    tokenizer.check_compatible(other, trained)


def test_the_same_ids_under_other_rules_are_not_compatible(trained):
  spec = json.loads(trained.content)
  spec['normalizer'] = {'type': 'NFC'}
  other = tokenizer.assemble(spec, roles=trained.roles)
  assert other.digest != trained.digest and other.tokens == trained.tokens
  with pytest.raises(ValueError, match=r'normalizer'):
    tokenizer.check_compatible(other, trained)


def test_the_digest_is_of_ids_and_roles_alone(trained):
  spec = json.loads(trained.content)
  assert tokenizer.assemble(spec, roles=trained.roles, record={'seen': 'elsewhere'}).digest == trained.digest
  assert tokenizer.assemble({**spec, 'decoder': None}, roles=trained.roles).digest == trained.digest
  assert tokenizer.assemble(spec, roles={**trained.roles, 'bos': trained.roles['mask']}).digest != trained.digest


def test_published_files_are_read(trained, tmp_path):
  padding = {'strategy': {'Fixed': 9}, 'direction': 'Right', 'pad_to_multiple_of': None, 'pad_id': 0, 'pad_type_id': 0}
  cut = {'direction': 'Right', 'max_length': 2, 'strategy': 'LongestFirst', 'stride': 0}
  path = publish(trained, tmp_path / 'v', padding={**padding, 'pad_token': trained.roles['pad']}, truncation=cut)
  read = KINDS[trained.kind].make(path=path)
  assert read.digest == trained.digest and read.roles == trained.roles and read.counts is None and not read.record
  text = 'The old sailor of 1924.'
  assert read.encode(text) == trained.encode(text) and len(read.encode(text)) > 2
  assert tokenizer.load(f'{path}/tokenizer.json').digest == trained.digest
  (tmp_path / 'v' / 'vocab.json').write_text(json.dumps({'digest': 5, 'roles': 6}))  # a table of tokens, as in GPT-2's
  assert tokenizer.load(path).digest == trained.digest


def test_older_spellings_are_the_same_vocabulary(trained, tmp_path):
  model = json.loads(trained.content)['model']
  del model['type']
  if 'merges' in model:
    model['merges'] = [' '.join(pair) for pair in model['merges']]
  read = tokenizer.load(publish(trained, tmp_path / 'v', model=model))
  assert read.digest == trained.digest and read.kind == trained.kind
  assert read.encode('The old sailor') == trained.encode('The old sailor')


def test_roles_of_published_vocabularies(tiny_corpus, tmp_path):
  vocab = byte_bpe.train(tiny_corpus, size=300, specials='roberta')
  two = publish(vocab, tmp_path / 'two', **rename(vocab, {'<unk>': '[PAD]'}))
  with pytest.raises(ValueError, match=r"'\[PAD\]' and '<pad>'.*vocab\.roles=dict\(pad='\[PAD\]'\)"):
    byte_bpe.make(path=two)
  assert byte_bpe.make(path=two, roles={'pad': '<pad>'}).pad_id == 1
  odd = publish(vocab, tmp_path / 'odd', **rename(vocab, {'<pad>': '<nothing>', '</s>': '<end>'}))
  with pytest.raises(ValueError, match=r"pad.*vocab\.roles=dict\(pad='<pad>'\)"):
    byte_bpe.make(path=odd)
  said = byte_bpe.make(path=odd, roles={'pad': '<nothing>'})
  assert (said.pad_id, said.eos_id, said.bos_id) == (1, None, 0)
  with pytest.raises(ValueError, match=r"pad.*'<padding>'"):
    byte_bpe.make(path=odd, roles={'pad': '<padding>'})
  with pytest.raises(ValueError, match=r"'blank'.*pad, unk"):
    byte_bpe.make(path=odd, roles={'blank': '<nothing>'})


def test_what_a_folder_names_wins_over_well_known_names(tiny_corpus, tmp_path):
  vocab = byte_bpe.train(tiny_corpus, size=300, specials='roberta')
  folder = publish(vocab, tmp_path / 'v')
  settings = tmp_path / 'v' / 'tokenizer_config.json'
  settings.write_text(json.dumps({'bos_token': '</s>', 'unk_token': {'content': '</s>'}, 'pad_token': '<gone>'}))
  read = tokenizer.load(folder)
  assert (read.bos_id, read.unk_id, read.eos_id, read.pad_id) == (
    vocab.eos_id,
    vocab.eos_id,
    vocab.eos_id,
    vocab.pad_id,
  )
  assert tokenizer.load(folder, roles={'bos': '<s>'}).bos_id == vocab.bos_id
  assert set(vocab.special_ids) == set(read.special_ids)
  odd = publish(vocab, tmp_path / 'odd', **rename(vocab, {'<s>': '<begin>', '</s>': '<end>'}))
  (tmp_path / 'odd' / 'tokenizer_config.json').write_text(json.dumps({'bos_token': '<end>', 'eos_token': '<end>'}))
  assert (tokenizer.load(odd).bos_id, tokenizer.load(odd).eos_id) == (vocab.eos_id, vocab.eos_id)


def test_a_role_makes_a_token_special(trained, tmp_path):
  spec = json.loads(trained.content)
  unmarked = [item for item in spec['added_tokens'] if item['content'] != trained.roles['mask']]
  read = tokenizer.load(publish(trained, tmp_path / 'v', added_tokens=unmarked))
  assert read.special_ids == trained.special_ids and read.digest == trained.digest


def test_ids_with_holes_are_refused(trained):
  spec = json.loads(trained.content)
  spec['model']['vocab'][trained.token(399)] = 450
  with pytest.raises(ValueError, match=r'400.*399'):
    tokenizer.assemble(spec, roles=trained.roles)


def test_counting_needs_little_memory_at_a_time(trained, tiny_corpus, monkeypatch):
  whole = tokenizer.count(trained, tiny_corpus)
  monkeypatch.setattr(tokenizer, '_BATCH_CHARACTERS', 1000)
  assert np.array_equal(tokenizer.count(trained, iter(tiny_corpus)), whole)
  assert whole.sum() == sum(map(len, trained.encode_batch(tiny_corpus)))
  assert not tokenizer.count(trained, []).any() and not tokenizer.count(trained, ['', '']).any()
