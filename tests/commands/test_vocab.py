"""The command: what it writes, prints and refuses."""

import gzip
import json
import pathlib
import subprocess
import sys

import pytest

from plm_jax.commands import vocab
from plm_jax.core.errors import ConfigError
from plm_jax.text import tokenizer

ROOT = pathlib.Path(__file__).resolve().parent.parent


@pytest.fixture(scope='module')
def source(tiny_corpus, tmp_path_factory):
  file = tmp_path_factory.mktemp('corpus') / 'train.txt.gz'
  with gzip.open(file, 'wt', encoding='utf-8') as stream:
    stream.write('\n\n'.join(tiny_corpus))
  return str(file)


def train(source, out, *more, name='wordpiece', size=400):
  cache = pathlib.Path(source).parent / 'cache'
  return vocab.main(
    ['train', f'--source={source}', f'--name={name}', f'--size={size}', f'--out={out}', f'--cache={cache}', *more]
  )


def test_trains_and_describes(source, tiny_corpus, tmp_path, capsys):
  assert train(source, tmp_path / 'v') == 0
  made = tokenizer.load(tmp_path / 'v')
  assert made.size == 400 and made.encode('The') == made.encode('the')
  words = sum(len(text.split()) for text in tiny_corpus)
  size = sum(len(text.encode()) for text in tiny_corpus)
  assert (made.record['documents'], made.record['words'], made.record['bytes']) == (len(tiny_corpus), words, size)
  tokens = sum(map(len, made.encode_batch(tiny_corpus)))
  assert made.counts.sum() == tokens
  lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
  assert lines['size'] == '400' and lines['digest'] == made.digest
  assert lines['tokens'] == f'per word {tokens / words:.3f}' and lines['bytes'] == f'per token {size / tokens:.3f}'
  assert lines['sample'].split() == [made.token(i) for i in made.encode(' '.join(tiny_corpus[0].split()[:24]))]


def test_a_sample_of_text_without_spaces_is_short():
  documents = vocab.Documents(['王小明来' * 1_000], total=1, advance=lambda: None)
  assert list(documents) and documents.sample == '王小明来' * 48


def test_the_same_request_is_not_trained_again(source, tmp_path, capsys, monkeypatch):
  train(source, tmp_path / 'v', name='byte_bpe')
  first = capsys.readouterr().out
  before = {file.name: file.stat().st_mtime_ns for file in (tmp_path / 'v').iterdir()}
  monkeypatch.setattr(vocab, '_train', lambda *_, **__: pytest.fail('trained again'))
  monkeypatch.setattr(vocab.run_paths, 'check_new_folder', lambda *_, **__: pytest.fail('the folder may be read-only'))
  assert train(source, tmp_path / 'v', '--specials=all', '--min_frequency=2', name='byte_bpe') == 0
  again = capsys.readouterr().out
  assert again.splitlines()[0] != first.splitlines()[0] and again.splitlines()[1:] == first.splitlines()[1:]
  assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / 'v').iterdir()} == before


def test_another_request_is_refused(source, tmp_path):
  train(source, tmp_path / 'v')
  before = {file.name: file.read_bytes() for file in (tmp_path / 'v').iterdir()}
  for more, said in (({'size': 390}, r'size.*400.*390'), ({'name': 'byte_bpe'}, r'name.*wordpiece.*byte_bpe')):
    with pytest.raises(ConfigError, match=said):
      train(source, tmp_path / 'v', **more)
  with pytest.raises(ConfigError, match=r'lowercase.*True.*False'):
    train(source, tmp_path / 'v', '--cased')
  assert {file.name: file.read_bytes() for file in (tmp_path / 'v').iterdir()} == before
  facts = json.loads((tmp_path / 'v' / 'vocab.json').read_text())
  (tmp_path / 'v' / 'vocab.json').write_text(json.dumps({**facts, 'record': {}}))
  with pytest.raises(ConfigError, match=r'vocab\.json'):
    train(source, tmp_path / 'v')
  del facts['sha256']  # as in a folder of before there were digests
  (tmp_path / 'v' / 'vocab.json').write_text(json.dumps({**facts, 'record': {}}))
  with pytest.raises(ConfigError, match='not made by'):
    train(source, tmp_path / 'v')


def test_flags_reach_the_training(source, tiny_corpus, tmp_path, capsys):
  train(source, tmp_path / 'cased', '--cased', '--limit=50', '--alphabet=30', '--split=train[50%:]')
  cased = tokenizer.load(tmp_path / 'cased')
  assert cased.encode('The') != cased.encode('the') and sum(len(token) == 1 for token in cased.tokens) == 30
  assert cased.counts.sum() == sum(map(len, cased.encode_batch(tiny_corpus[200:250])))
  train(source, tmp_path / 'gpt2', '--specials=gpt2', '--min_frequency=200', name='byte_bpe', size=2000)
  gpt2 = tokenizer.load(tmp_path / 'gpt2')
  assert gpt2.token(gpt2.size - 1) == '<|endoftext|>' and 300 < gpt2.size < 2000
  assert f'{gpt2.size:,} (' in capsys.readouterr().out


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (['--name=byte_bpe', '--size=400', '--cased'], '--name=byte_bpe .*--lowercase.*--cased'),
    (['--name=wordpiece', '--size=400', '--specials=gpt2'], '--name=wordpiece .*--specials'),
    (['--name=byte_bpe', '--size=100'], 'size=100 .*256 bytes'),
    (['--name=byte_bpe', '--size=0'], 'expected int (1 <= x'),
    (['--name=wordpiece', f'--size={10**20}'], 'expected int (1 <= x'),
    (['--name=word', '--size=400'], "invalid choice: 'word'"),
    (['--name=words', '--size=5'], 'size=5 .*5 special tokens: <pad>, <unk>'),
    (['--name=words', '--size=50', '--min_frequency=1000000'], '1000000'),
    (['--name=words', '--size=50', '--specials=bert'], "'bert'.*all, elmo"),
    (['--name=byte_bpe', '--size=400', '--split=dev'], 'dev'),
    (['--name=byte_bpe', '--size=400', '--source=nowhere'], 'nowhere'),
  ],
)
def test_mistakes(source, tmp_path, words, said):
  words = ['train', f'--source={source}', f'--cache={tmp_path / "cache"}', f'--out={tmp_path / "v"}', *words]
  with pytest.raises(ConfigError, match=said.replace('(', r'\(')):
    vocab.main(words)
  assert not (tmp_path / 'v').exists()


def test_words_that_a_vocabulary_lacks_are_counted(tmp_path, capsys):
  text = tmp_path / 'text.txt'
  text.write_text('a cat sat on a mat\n' * 5)
  for name, flags, said in (
    ('words', ['--min_frequency=1'], '2 of 4 words unknown or in part: dog (1), mats (1)'),
    ('wordpiece', ['--min_frequency=1'], '2 of 4 words unknown or in part: dog (1), mats (1)'),
    ('byte_bpe', ['--min_frequency=1'], 'no word can be unknown'),
  ):
    out = tmp_path / name
    size = {'words': 20, 'wordpiece': 60, 'byte_bpe': 300}[name]
    assert vocab.main(['train', f'--source={text}', f'--name={name}', f'--size={size}', f'--out={out}', *flags]) == 0
    assert vocab.main(['show', str(out), '--text=cat dog mats sat']) == 0
    assert said in capsys.readouterr().out


def test_shows_tokens_and_bytes(source, tmp_path, capsys):
  train(source, tmp_path / 'v', name='byte_bpe')
  capsys.readouterr()
  assert vocab.main(['show', str(tmp_path / 'v'), '--text=In 我<mask>']) == 0
  printed = capsys.readouterr().out.splitlines()
  shown = [line.split() for line in printed[printed.index('') + 2 : -1]]
  made = tokenizer.load(tmp_path / 'v')
  assert [int(row[0]) for row in shown] == made.encode('In 我<mask>')
  assert bytes.fromhex(''.join(''.join(row[2:]) for row in shown)).decode() == 'In 我<mask>'
  assert printed[-1] == 'decoded: In 我<mask>'
  vocab.main(['show', str(tmp_path / 'v'), '--text=In <mask>', '--parse_specials'])
  assert '       3  <mask>' in capsys.readouterr().out.splitlines()


def test_exit_codes_without_a_traceback(tmp_path):
  run = subprocess.run(
    [sys.executable, '-m', 'plm_jax', 'vocab', 'show', str(tmp_path / 'none')], cwd=ROOT, capture_output=True, text=True
  )
  assert run.returncode == 2 and 'Traceback' not in run.stderr
  assert f'--out={tmp_path / "none"}' in run.stderr and not run.stdout


def test_help_loads_nothing_heavy():
  code = """
import sys
from plm_jax.commands import vocab
for words in (['--help'], ['train', '--help'], ['show', '--help']):
  try:
    vocab.main(words)
  except SystemExit as end:
    assert end.code == 0
heavy = {'jax', 'numpy', 'tokenizers', 'rich', 'grain', 'tensorflow_datasets'} & set(sys.modules)
assert not heavy, heavy
"""
  run = subprocess.run([sys.executable, '-c', code], cwd=ROOT, capture_output=True, text=True)
  assert run.returncode == 0, run.stderr
  assert '--min_frequency' in run.stdout and '--parse_specials' in run.stdout
