"""Hostile tokenizers: one line and exit code 2, in bounded time and memory; harmless ones start no process."""

import base64
import copy
import json
import subprocess
import sys

import pytest

from plm_jax.core.errors import RunError
from plm_jax.text import probe, tokenizer, wordpiece
from tests import conftest

PIECES = {'type': 'BPE', 'vocab': {'<pad>': 0, 'a': 1, 'b': 2, 'ab': 3}, 'merges': [['a', 'b']]}
LEVEL = {'type': 'ByteLevel', 'add_prefix_space': False, 'trim_offsets': True, 'use_regex': True}
UNIGRAM = {'type': 'Unigram', 'unk_id': 1, 'vocab': [['<pad>', 0.0], ['<unk>', 0.0], ['a', -1.0]]}


def charsmap(content):
  return {'type': 'Precompiled', 'precompiled_charsmap': base64.b64encode(content).decode()}


def grow(times):
  return [{'type': 'Replace', 'pattern': {'String': 'a'}, 'content': 'a' * 1000}] * times


def deep(levels):
  return json.loads('{"type": "Sequence", "normalizers": [' * levels + '{"type": "NFC"}' + ']}' * levels)


HOSTILE = {  # name: (what changes in the file, what the message says)
  'panics when used': ({'pre_tokenizer': {'type': 'FixedLength', 'length': 0}, 'model': UNIGRAM}, 'non-zero'),
  'panics on a table': ({'normalizer': charsmap(b'\x04\0\0\0\xff\xff\xff\xffab'), 'model': UNIGRAM}, 'out of bounds'),
  'panics while read': ({'normalizer': charsmap(b'\xff\0'), 'model': UNIGRAM}, 'precompiled_charsmap'),
  'panics on a prefix': ({'model': {**PIECES, 'continuing_subword_prefix': '#' * 20}}, 'out of range'),
  'panics when it decodes': (
    {'decoder': {'type': 'Strip', 'content': 'a', 'start': 10**9, 'stop': 10**9}}, 'out of bounds'
  ),
  'grows without end': ({'normalizer': {'type': 'Sequence', 'normalizers': grow(6)}, 'model': UNIGRAM}, 'GiB|seconds'),
  'is too deep': ({'normalizer': deep(90), 'model': UNIGRAM}, 'levels deep'),
  'merges what is not there': ({'model': {**PIECES, 'merges': [['a', 'z']]}}, 'out of vocabulary'),
  'merges at random': ({'model': {**PIECES, 'dropout': 0.1}}, 'model.dropout.*0.1'),
  'has no unknown': ({'model': {**UNIGRAM, 'unk_id': 9}}, 'UnkIdNotInVocabulary'),
  'numbers wildly': ({'model': {**PIECES, 'vocab': {**PIECES['vocab'], 'ab': 4 * 10**9}}}, 'without holes'),
  'numbers below 0': ({'model': {**PIECES, 'vocab': {**PIECES['vocab'], 'ab': -1}}}, 'without holes'),
  'numbers in words': ({'model': {**PIECES, 'vocab': {**PIECES['vocab'], 'ab': 'x'}}}, 'damaged'),
  'has no model': ({'model': None}, 'damaged'),
  'has a list': ({'model': [1]}, 'damaged'),
  'adds what is no token': ({'added_tokens': [3]}, 'damaged'),
  'is of no known kind': ({'pre_tokenizer': None, 'model': {'type': 'WordLevel', 'vocab': {'a': 0}}}, 'none of'),
}  # fmt: skip
SLOW = ('grows without end',)


def write(folder, changes):
  content = {'version': '1.0', 'added_tokens': [], 'normalizer': None, 'pre_tokenizer': LEVEL, 'decoder': LEVEL}
  folder.mkdir(exist_ok=True)
  (folder / 'tokenizer.json').write_text(json.dumps({**content, 'model': PIECES, **changes}))
  return folder


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in HOSTILE]
)
def test_one_line_and_no_traceback(name, tmp_path, monkeypatch):
  monkeypatch.setattr(probe, 'SECONDS', 5)
  changes, said = HOSTILE[name]
  with pytest.raises(ValueError, match=said) as raised:
    tokenizer.load(write(tmp_path / 'v', changes))
  assert '\n' not in str(raised.value)


def test_the_command_ends_with_one_line(tmp_path):
  folder = write(tmp_path / 'v', HOSTILE['panics when used'][0])
  words = [sys.executable, '-m', 'plm_jax', 'vocab', 'show', str(folder)]
  done = subprocess.run(words, cwd=conftest.ROOT, capture_output=True, text=True, timeout=60)
  assert done.returncode == 2 and not done.stdout
  assert len(done.stderr.strip().split('\n')) == 1 and 'tokenizer' in done.stderr
  (folder / 'tokenizer.json').write_text('[' * 100_000)
  done = subprocess.run(words, cwd=conftest.ROOT, capture_output=True, text=True, timeout=60)
  assert done.returncode == 2 and len(done.stderr.strip().split('\n')) == 1 and 'damaged' in done.stderr


def test_what_is_known_starts_no_process(tiny_corpus, tmp_path, monkeypatch):
  monkeypatch.setattr(subprocess, 'run', lambda *_, **__: pytest.fail('a process was started'))
  vocab = wordpiece.train(tiny_corpus[:50], size=300)
  vocab.save(tmp_path / 'v')
  assert tokenizer.load(tmp_path / 'v').digest == vocab.digest
  assert tokenizer.load(write(tmp_path / 'bytes', {})).kind == 'byte_bpe'


def test_rows_are_written_by_what_was_tried(tmp_path):
  padding = {'strategy': {'Fixed': 10**10}, 'direction': 'Right', 'pad_to_multiple_of': None, 'pad_id': 0}
  changes = {'padding': {**padding, 'pad_type_id': 0, 'pad_token': '<pad>'}}
  assert tokenizer.marked(write(tmp_path / 'v', changes)).encode('ab').tokens == ['ab']
  with pytest.raises(ValueError, match='out of bounds'):
    tokenizer.marked(write(tmp_path / 'v', HOSTILE['panics when it decodes'][0]))


@pytest.mark.parametrize(
  'around',
  [
    {'type': 'TemplateProcessing', 'single': [{'Sequence': {'id': 'A', 'type_id': 0}}], 'pair': [],
     'special_tokens': {'<s>': {'id': '<s>', 'ids': [4], 'tokens': ['<s>']}}},
    {'type': 'Sequence', 'processors': [{'type': 'BertProcessing', 'sep': ['<pad>', 0], 'cls': ['<s>', 4]}]},
  ],
)  # fmt: skip
def test_what_stands_around_a_text_is_in_the_vocabulary(around, tmp_path):
  with pytest.raises(ValueError, match=r"4.*'<s>'.*post_processor.*3"):
    tokenizer.marked(write(tmp_path / 'v', {'post_processor': around}))


@pytest.mark.parametrize('around', [[], 3, {'type': 'BertProcessing', 'sep': 3}, {'type': 'TemplateProcessing'}])
def test_a_damaged_post_processor_is_one_line(around, tmp_path):
  with pytest.raises(ValueError, match='cannot be used') as raised:
    tokenizer.marked(write(tmp_path / 'v', {'post_processor': around}))
  assert '\n' not in str(raised.value)


def test_a_pattern_that_gives_up_on_a_text_is_no_mistake_of_ours(tmp_path):
  pattern = {'type': 'Split', 'pattern': {'Regex': '(a+)+$'}, 'behavior': 'Isolated', 'invert': False}
  folder = write(tmp_path / 'v', {'pre_tokenizer': {'type': 'Sequence', 'pretokenizers': [pattern, LEVEL]}})
  vocab, text = tokenizer.load(folder), 'a' * 40 + 'b'
  assert vocab.encode('ab')
  for call in (vocab.encode, vocab.encode_offsets, lambda text: vocab.encode_batch([text])):
    with pytest.raises(RunError, match='tokenizer'):
      call(text)
  words = [sys.executable, '-m', 'plm_jax', 'vocab', 'show', str(folder), f'--text={text}']
  done = subprocess.run(words, cwd=conftest.ROOT, capture_output=True, text=True, timeout=60)
  assert done.returncode == 1 and 'Traceback' not in done.stderr
  assert 'gives up' in done.stderr.strip().rpartition('\n')[2]


def test_what_is_unusual_and_works_is_read(tmp_path):
  changes = {'normalizer': {'type': 'Replace', 'pattern': {'Regex': '[0-9]+'}, 'content': 'b'}}
  vocab = tokenizer.load(write(tmp_path / 'v', copy.deepcopy(changes)))
  assert [vocab.token(number) for number in vocab.encode('a123')] == ['ab']
