"""`plm-jax corpus`: a pass keeps and drops what it says, and goes on where it was stopped or killed."""

import contextlib
import gzip
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import typing
import unicodedata

import numpy as np
import pytest

from plm_jax.cli import signals
from plm_jax.commands import corpus
from plm_jax.core.errors import ConfigError, Interrupted
from plm_jax.data.corpora import sources
from plm_jax.data.corpora.cleaning import contamination, copies, passes, quality, quantiles
from plm_jax.io import files
from tests import conftest


@pytest.fixture
def source(tmp_path):
  """Sixty stories, of which every tenth stands there twice."""
  draw = random.Random(0)
  stories = [conftest.story(draw) for _ in range(60)]
  stories += [story.upper() for story in stories[::10]]
  path = tmp_path / 'old'
  path.mkdir()
  (path / 'train.txt').write_text('\n\n'.join(stories) + '\n')
  return path


def texts(folder, split='train'):
  return [json.loads(line)['text'] for line in (folder / f'{split}.jsonl').read_text().splitlines()]


def left_out(folder):
  return [json.loads(line) for line in (folder / 'left_out.jsonl').read_text().splitlines()]


def dying(verdict, *, after):
  """A verdict in the middle of which the pass dies, after so many of them."""
  numbers = itertools.count()

  def made(*args):
    if next(numbers) == after:
      raise KeyboardInterrupt
    return verdict(*args)

  return made


def test_copies_are_left_out_and_named(source, tmp_path, capsys):
  out = tmp_path / 'new'
  assert corpus.main(['dedup', str(source), str(out), '--exact']) == 0
  assert len(texts(out)) == 60
  assert left_out(out) == [{'row': 60 + n, 'reason': 'duplicate', 'copies': 10 * n} for n in range(6)]
  assert 'left out: duplicate' in capsys.readouterr().out
  report = json.loads((out / 'corpus.json').read_text())
  assert (report['read'], report['kept'], report['dropped']) == (66, {'train': 60}, {'duplicate': 6})
  assert sources.documents(str(out))[0] == texts(out)[0]  # a config reads it
  assert {file.name for file in out.iterdir()} == {'train.jsonl', 'left_out.jsonl', 'corpus.json', '.lock'}


def test_splits_are_drawn_by_the_text(source, tmp_path):
  out = tmp_path / 'new'
  corpus.main(['split', str(source), str(out), '--validation=0.2', '--test=0.1'])
  parts = {name: {text.lower() for text in texts(out, name)} for name in ('train', 'validation', 'test')}
  assert sum(map(len, parts.values())) == 60  # both copies of a text are on one side
  assert all(parts.values())
  assert sum(len(texts(out, name)) for name in parts) == 66
  other = tmp_path / 'other'
  corpus.main(['split', str(source), str(other), '--validation=0.2', '--test=0.1', '--seed=1'])
  assert texts(other, 'validation') != texts(out, 'validation')


def write(file, documents):
  file.write_text(''.join(f'{json.dumps({"text": one})}\n' for one in documents))


def test_texts_whose_accents_stand_elsewhere_are_on_one_side(tmp_path):
  plain = [f'canción número {n} de la niña del año pasado' for n in range(60)]
  write(tmp_path / 'old.jsonl', [*plain, *(unicodedata.normalize('NFD', text) for text in plain)])
  corpus.main(['split', str(tmp_path / 'old.jsonl'), str(tmp_path / 'new'), '--validation=0.3', '--test=0.2'])
  names = ('train', 'validation', 'test')
  sides = [{unicodedata.normalize('NFC', one) for one in texts(tmp_path / 'new', name)} for name in names]
  assert sum(map(len, sides)) == 60 and all(sides)


def test_bounds_hold_for_what_is_kept(tmp_path):
  sentences = 'This is a sentence of some words. And this is one more of them. Here is a third one of these.'
  menu = '\n'.join(f'Home item {n}' for n in range(60))
  write(tmp_path / 'old.jsonl', [f'{menu}\n{sentences}', '\n'.join([sentences] * 5)])
  corpus.main(['filter', str(tmp_path / 'old.jsonl'), str(tmp_path / 'new'), '--rules=c4', '--min_chars=300'])
  assert [row['reason'] for row in left_out(tmp_path / 'new')] == ['too_short']
  assert [len(text) for text in texts(tmp_path / 'new')] == [len('\n'.join([sentences] * 5))]


def evaluation(folder, *rows):
  """An evaluation set of these texts; its folder, of which 'test' is the split."""
  folder.mkdir(exist_ok=True)
  (folder / 'test.jsonl').write_text(''.join(json.dumps({'text': row}) + '\n' for row in rows))
  return folder


def test_evaluation_sets_are_kept_out_and_counted(source, tmp_path, capsys):
  held = evaluation(tmp_path / 'held', sources.documents(str(source))[7], 'nothing of it ' * 9)
  out = tmp_path / 'new'
  corpus.main(['filter', str(source), str(out), '--min_chars=10', '--against', f'{held}:test'])
  assert {row['reason'] for row in left_out(out)} == {'evaluation_set'}
  assert 7 in {row['row'] for row in left_out(out)}
  assert json.loads((out / 'corpus.json').read_text())['evaluation_rows'] == {
    f'{held}:test': {'rows': 2, 'found': 1, 'too_short': 0}
  }
  assert f'{held}:test: 1 of 2 ' in capsys.readouterr().out
  twice = ['--against', f'{held}:test', f'{held}:test']
  corpus.main(['filter', str(source), str(tmp_path / 'twice'), '--min_chars=10', *twice])
  assert (tmp_path / 'twice' / 'train.jsonl').read_bytes() == (out / 'train.jsonl').read_bytes()


@pytest.mark.parametrize('killed', [False, True])
def test_an_evaluation_set_that_has_changed_is_refused_by_its_name(source, tmp_path, monkeypatch, killed):
  """Of a folder that is whole, and of a pass that was killed, which would go on with rows judged by the old set."""
  monkeypatch.setattr(passes, 'TOGETHER', 7)
  stories, out = sources.documents(str(source)), tmp_path / 'new'
  held, same = evaluation(tmp_path / 'held', stories[7]), evaluation(tmp_path / 'same', stories[8])
  asked = ['filter', str(source), str(out), '--against', f'{same}:test', f'{held}:test']
  if killed:
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
      patched.setattr(passes, 'Verdict', dying(passes.Verdict, after=20))
      corpus.main(asked)
  else:
    corpus.main(asked)
  evaluation(held, stories[30])
  with pytest.raises(ConfigError, match=rf'--against: {held}:test .*changed.*new.*another folder'):
    corpus.main(asked)
  evaluation(held, stories[7])
  assert corpus.main(asked) == 0  # the rows of before, in a file that is written again


def test_rows_too_short_to_be_looked_for_are_counted(source, tmp_path, capsys):
  held = evaluation(tmp_path / 'held', sources.documents(str(source))[7], 'the cat sat', 'a dog', 'one ' * 7)
  corpus.main(['filter', str(source), str(tmp_path / 'new'), '--against', f'{held}:test'])
  report = json.loads((tmp_path / 'new' / 'corpus.json').read_text())
  assert report['evaluation_rows'] == {f'{held}:test': {'rows': 4, 'found': 1, 'too_short': 3}}
  assert re.search('1 of 4 .*; 3 ', capsys.readouterr().out)
  with pytest.raises(SystemExit):
    corpus.main(['filter', '--help'])
  assert f'fewer than {contamination.FEWEST} words' in ' '.join(capsys.readouterr().out.split())


def test_rows_inside_documents_that_a_rule_drops_are_found(source, tmp_path):
  held = evaluation(tmp_path / 'held', sources.documents(str(source))[7])
  asked = ['filter', str(source), str(tmp_path / 'new'), '--min_chars=100_000', '--against', f'{held}:test']
  corpus.main(asked)
  assert {row['reason'] for row in left_out(tmp_path / 'new')} == {'too_short'}
  report = json.loads((tmp_path / 'new' / 'corpus.json').read_text())
  assert report['evaluation_rows'][f'{held}:test']['found'] == 1


def test_a_document_stays_whose_evaluation_row_a_rule_takes_out(tmp_path):
  """C4's rules leave the line out; the row was in the corpus, and is not in the new one."""
  row = 'a b c d e f g h i j k l m n'
  held = evaluation(tmp_path / 'held', row)
  (tmp_path / 'old').mkdir()
  text = f'One good line of words.\n{row}\nOne more good line of words. Another good line of words.'
  (tmp_path / 'old' / 'train.jsonl').write_text(json.dumps({'text': text}) + '\n')
  asked = ['filter', str(tmp_path / 'old'), str(tmp_path / 'new'), '--rules=c4', '--against', f'{held}:test']
  corpus.main(asked)
  assert len(texts(tmp_path / 'new')) == 1
  report = json.loads((tmp_path / 'new' / 'corpus.json').read_text())
  assert report['evaluation_rows'][f'{held}:test']['found'] == 1


def test_a_slice_of_an_evaluation_set(source, tmp_path):
  stories = sources.documents(str(source))
  name = f'{evaluation(tmp_path / "held", *(stories[n] for n in range(20)))}:test[:10%]+test[-2:]'
  corpus.main(['filter', str(source), str(tmp_path / 'new'), '--against', name])
  report = json.loads((tmp_path / 'new' / 'corpus.json').read_text())
  assert report['evaluation_rows'] == {name: {'rows': 4, 'found': 4, 'too_short': 0}}


def test_sets_named_one_by_one(source, tmp_path):
  """Behind one --against, and behind one each, before SOURCE as well."""
  stories = sources.documents(str(source))
  one, two = (f'{evaluation(tmp_path / str(n), stories[n])}:test' for n in (7, 8))
  together, apart = tmp_path / 'together', tmp_path / 'apart'
  corpus.main(['filter', str(source), str(together), '--against', one, two])
  corpus.main(['filter', f'--against={one}', f'--against={two}', str(source), str(apart)])
  assert (together / 'train.jsonl').read_bytes() == (apart / 'train.jsonl').read_bytes()
  assert (together / 'corpus.json').read_bytes() == (apart / 'corpus.json').read_bytes()


CHINESE = '房间很干净早餐也不错服务员的态度非常好下次还会选择这家酒店只是离地铁站有一点远'


def test_chinese_rows_are_found_letter_by_letter(tmp_path, capsys):
  held = evaluation(tmp_path / 'held', CHINESE[5:18], CHINESE[20:30], '很干净。')
  (tmp_path / 'old').mkdir()
  rows = [CHINESE, f'我说：{CHINESE[20:30]}！', CHINESE[5:17], '别的']
  lines = ''.join(json.dumps({'text': row}) + '\n' for row in rows)
  (tmp_path / 'old' / 'train.jsonl').write_text(lines)
  corpus.main(['filter', str(tmp_path / 'old'), str(tmp_path / 'new'), '--against', f'{held}:test'])
  assert texts(tmp_path / 'new') == [rows[2], rows[3]]
  assert re.search('2 of 3 .*; 1 ', capsys.readouterr().out)


def test_chinese_reviews_of_a_test_set_that_stand_in_train(shared_data, tmp_path):
  """334 of the rows stand there verbatim."""
  path = str(shared_data('chnsenticorp'))
  corpus.main(['filter', path, str(tmp_path / 'new'), '--text=text', '--against', f'{path}:test'])
  (counts,) = json.loads((tmp_path / 'new' / 'corpus.json').read_text())['evaluation_rows'].values()
  assert counts['found'] >= 334
  assert counts['too_short'] == 0


def test_stats(source, capsys):
  corpus.main(['stats', str(source)])
  said = capsys.readouterr().out
  assert '66 documents' in said
  assert 'scripts: latin 100.0%' in said


def test_stats_are_the_same_in_parts_of_any_size(source, capsys, monkeypatch):
  corpus.main(['stats', str(source)])
  whole = capsys.readouterr().out
  monkeypatch.setattr(quantiles, 'AT_ONCE', 7)
  corpus.main(['stats', str(source)])
  assert capsys.readouterr().out == whole
  chars = [quality.measure(text).chars for text in sources.documents(str(source))]
  row = next(line for line in whole.splitlines() if line.startswith('│ characters'))
  found = [cell.strip().replace(',', '') for cell in row.strip('│').split('│')[1:]]
  assert found == [f'{value:.0f}' for value in np.quantile(chars, [0.01, 0.25, 0.5, 0.75, 0.99])]


MEASURED = """
import resource, sys
from plm_jax.commands import corpus
from plm_jax.data.corpora.cleaning import quantiles
quantiles.AT_ONCE = 2_000
corpus.main(['stats', sys.argv[1]])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.turns
def test_stats_of_a_long_corpus_take_no_more_memory(tmp_path):
  """30 times what is held at one time; the lines of a file have an index of 16 bytes each."""
  most = []
  for count in (2_000, 60_000):
    folder = tmp_path / str(count)
    folder.mkdir()
    (folder / 'train.jsonl').write_text(''.join(f'{{"text": "the cat number {n}"}}\n' for n in range(count)))
    done = subprocess.run([sys.executable, '-c', MEASURED, str(folder)], capture_output=True, text=True, check=True)
    most.append(int(done.stdout.splitlines()[-1]) / 1024)  # MiB
  assert most[1] - most[0] < 6


@pytest.mark.parametrize('name', ['stats', 'filter', 'dedup', 'split'])
def test_a_row_without_a_text_is_named(name, tmp_path):
  (tmp_path / 'in').mkdir()
  (tmp_path / 'in' / 'train.jsonl').write_text('{"text": "the cat"}\n{"txt": "abc"}\n')
  with pytest.raises(ConfigError, match=r"row 1 of .*train.*'text'.*txt"):
    out = str(tmp_path / 'out')
    words = {'stats': [], 'filter': [out, '--rules=c4'], 'dedup': [out, '--exact'], 'split': [out]}[name]
    corpus.main([name, str(tmp_path / 'in'), *words])


@pytest.mark.parametrize('first', [0, 2])
def test_rows_whose_text_is_null_are_left_out_and_counted(first, tmp_path, capsys):
  rows = [{'text': 'the cat and the dog', 'id': 'a'}, {'text': None, 'id': 'b'}, {'text': None, 'id': 'c'}]
  rows = [*rows[3 - first :], *rows[: 3 - first]]
  source, out = tmp_path / 'in.jsonl', tmp_path / 'out'
  source.write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  assert corpus.main(['dedup', str(source), str(out), '--exact']) == 0
  assert json.loads((out / 'corpus.json').read_text())['dropped'] == {'no_text': 2}
  assert (out / 'train.jsonl').read_text() == '{"text": "the cat and the dog"}\n'
  assert len((out / 'left_out.jsonl').read_text().splitlines()) == 2
  capsys.readouterr()
  assert corpus.main(['stats', str(source)]) == 0
  assert '1 documents, 19 characters, 2 further rows' in ' '.join(capsys.readouterr().out.split())
  source.write_text('{"text": null}\n' * 3)
  with pytest.raises(ConfigError, match='field'):
    corpus.main(['stats', str(source)])


def test_documents_of_a_text_file_may_be_its_lines(tmp_path):
  (tmp_path / 'in.txt').write_text('the cat\nthe dog\n\nthe cat\n')
  asked = ['dedup', str(tmp_path / 'in.txt'), str(tmp_path / 'out'), '--exact']
  assert corpus.main([*asked, '--documents=line']) == 0
  assert (tmp_path / 'out' / 'train.jsonl').read_text().splitlines() == ['{"text": "the cat"}', '{"text": "the dog"}']
  with pytest.raises(ConfigError, match=r'--documents=line.*--documents'):
    corpus.main(asked)
  assert typing.get_args(sources.Boundary) == corpus.DOCUMENTS


def test_a_pass_that_is_asked_to_stop_keeps_what_it_has_read(source, tmp_path, monkeypatch):
  whole, out = tmp_path / 'whole', tmp_path / 'cut'
  corpus.main(['dedup', str(source), str(whole), '--exact'])
  asked = iter([False, False, True])  # before the first row, at row 8, at row 16
  with monkeypatch.context() as patched, pytest.raises(Interrupted, match=r'\b16\b'):
    patched.setattr(signals, 'asked', lambda: next(asked, True))
    corpus.main(['dedup', str(source), str(out), '--exact'])
  corpus.main(['dedup', str(source), str(out), '--exact'])
  for name in ('train.jsonl', 'left_out.jsonl'):
    assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_a_place_that_cannot_be_made_is_named_before_the_corpus_is_read(tmp_path):
  (tmp_path / 'file').write_text('mine')
  (tmp_path / 'folder').mkdir()
  (tmp_path / 'folder' / 'mine').touch()
  for out, said in (('file', 'OUT=.*file'), ('folder', 'folder.*files')):
    with pytest.raises(ConfigError, match=said):
      corpus.main(['split', 'no/such/corpus', str(tmp_path / out)])


def test_the_same_request_again_does_nothing_and_another_is_refused(source, tmp_path):
  out = tmp_path / 'new'
  asked = ['filter', str(source), str(out), '--min_chars=10']
  corpus.main(asked)
  before = (out / 'train.jsonl').stat().st_mtime_ns
  assert corpus.main(asked) == 0
  assert (out / 'train.jsonl').stat().st_mtime_ns == before
  with pytest.raises(ConfigError, match=r'--min_chars=10.*--min_chars=20'):
    corpus.main(['filter', str(source), str(out), '--min_chars=20'])
  with pytest.raises(ConfigError, match=r'--rules.*--rules=c4'):
    corpus.main([*asked, '--rules=c4'])
  with pytest.raises(ConfigError, match=r'filter.*split'):
    corpus.main(['split', str(source), str(out)])
  (source / 'train.txt').write_text('Another text.\n')
  with pytest.raises(ConfigError, match=rf'SOURCE={source} .*changed.*new.*another folder'):
    corpus.main(asked)


def test_another_field_of_text_is_refused_by_its_flag(tmp_path):
  (tmp_path / 'old.jsonl').write_text('{"one": "the cat", "two": "a dog"}\n')
  asked = ['dedup', str(tmp_path / 'old.jsonl'), str(tmp_path / 'new'), '--exact']
  corpus.main([*asked, '--text=one'])
  with pytest.raises(ConfigError, match=r'--text=one.*--text=two'):
    corpus.main([*asked, '--text=two'])


def test_a_folder_of_a_version_before_goes_on(source, tmp_path):
  """It knows no field of text and no sizes of its files, which its digests stand for."""
  asked = ['dedup', str(source), str(tmp_path / 'new'), '--exact']
  corpus.main(asked)
  report = json.loads((tmp_path / 'new' / 'corpus.json').read_text())
  del report['asked']['text'], report['bytes'], report['sha256']['corpus.json']
  files.write_json(tmp_path / 'new' / 'corpus.json', report)
  assert corpus.main(asked) == 0


def test_a_folder_of_a_version_before_that_kept_no_digests_of_evaluation_sets(source, tmp_path):
  held = evaluation(tmp_path / 'held', sources.documents(str(source))[7])
  asked = ['filter', str(source), str(tmp_path / 'new'), '--against', f'{held}:test']
  corpus.main(asked)
  report = json.loads((tmp_path / 'new' / 'corpus.json').read_text())
  del report['asked']['against_digests'], report['sha256']['corpus.json']
  files.write_json(tmp_path / 'new' / 'corpus.json', report)
  with pytest.raises(ConfigError, match=rf'{held}:test.*new.*another'):
    corpus.main(asked)


@pytest.mark.parametrize('name', ['train', 'test', 'left_out'])
@pytest.mark.parametrize(('change', 'message'), [('removed', 'is missing'), ('longer', 'is'), ('same', 'is')])
def test_a_file_that_is_gone_or_damaged_is_named_with_the_cure(source, tmp_path, name, change, message):
  out = tmp_path / 'new'
  asked = ['split', str(source), str(out), '--validation=0.2', '--test=0.2']
  corpus.main(asked)
  file = out / f'{name}.jsonl'
  content = file.read_bytes() or b' '
  if change == 'removed':
    file.unlink()
  else:
    file.write_bytes(content + b' ' if change == 'longer' else b'X' + content[1:])
  with pytest.raises(ConfigError, match=rf'(?s)new/{name}\.jsonl {message}.*remove .*new'):
    corpus.main(asked)


@pytest.mark.parametrize('gone', [True, False])
def test_a_pass_whose_files_lost_what_was_committed_does_not_go_on(source, tmp_path, monkeypatch, gone):
  """It would write zeros in place of the rows, or leave them out."""
  monkeypatch.setattr(passes, 'TOGETHER', 7)
  out = tmp_path / 'new'
  asked = ['dedup', str(source), str(out), '--exact']
  with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
    patched.setattr(passes, 'Verdict', dying(passes.Verdict, after=20))
    corpus.main(asked)
  (out / 'train.jsonl').unlink() if gone else os.truncate(out / 'train.jsonl', 10)
  with pytest.raises(ConfigError, match=r'(?s)new/train\.jsonl is damaged.*remove .*new'):
    corpus.main(asked)


def test_a_pass_that_waited_for_another_of_the_same_request_leaves_what_that_one_made(source, tmp_path, monkeypatch):
  """It does not begin again over files that `corpus.json` vouches for, where it could be killed."""
  out, made = tmp_path / 'new', []
  asked = ['dedup', str(source), str(out), '--exact']
  real = files.locked

  def locked(file, **given):
    if file.parent == out and not made:
      made.append('by the other process, which holds the lock first')
      assert corpus.main(asked) == 0
      made.append((out / 'train.jsonl').stat().st_mtime_ns)
    return real(file, **given)

  monkeypatch.setattr(files, 'locked', locked)
  assert corpus.main(asked) == 0
  assert (out / 'train.jsonl').stat().st_mtime_ns == made[1]
  assert not (out / passes.PROGRESS).exists()


def test_texts_that_differ_by_marks_or_pictures_are_no_copies(tmp_path):
  apart = ['पिता', 'पता', 'ข้าว', 'ขาว', 'cafe\u0301', 'cafe', 'fine 🙂', 'fine 🚀']
  same = ['café', 'Cafe!', 'fine, 🚀']  # one accent on its letter, case, punctuation
  old = tmp_path / 'old.jsonl'
  old.write_text(''.join(json.dumps({'text': text}) + '\n' for text in [*apart, *same]))
  assert corpus.main(['dedup', str(old), str(tmp_path / 'new'), '--exact']) == 0
  assert texts(tmp_path / 'new') == apart
  assert [row['copies'] for row in left_out(tmp_path / 'new')] == [4, 5, 7]


def test_vowels_that_are_marks_count_as_letters(tmp_path):
  old = tmp_path / 'old.jsonl'
  old.write_text(json.dumps({'text': 'मैं हिन्दी में लिखता हूँ'}) + '\n')
  assert corpus.main(['filter', str(old), str(tmp_path / 'new'), '--min_alpha=0.95', '--min_chars=5']) == 0
  assert len(texts(tmp_path / 'new')) == 1


def test_a_folder_belongs_to_the_command_that_began_it(source, tmp_path, monkeypatch):
  out = tmp_path / 'new'
  with monkeypatch.context() as patch:
    patch.setattr(passes, '_cut_back', dying(passes._cut_back, after=1))  # before anything is committed
    with pytest.raises(KeyboardInterrupt):
      passes.run(
        sources.documents(str(source)), out, lambda database: None, splits=('train', 'test'), asked={'command': 'split'}
      )
  with pytest.raises(ConfigError, match=r'split.*dedup'):
    corpus.main(['dedup', str(source), str(out), '--exact'])
  with pytest.raises(ValueError, match=str(out)):
    sources.documents(str(out))


def test_a_split_without_documents_is_said(tmp_path, caplog):
  old = tmp_path / 'old.jsonl'
  old.write_text(''.join(json.dumps({'text': f'a story of {number}'}) + '\n' for number in range(10)))
  asked = ['split', str(old), str(tmp_path / 'new'), '--validation=0.0001', '--test=0.5']
  assert corpus.main(asked) == 0
  kept = json.loads((tmp_path / 'new' / 'corpus.json').read_text())['kept']
  assert kept['validation'] == 0
  assert kept['train'] + kept['test'] == 10
  assert re.search(r'validation.*\b10\b', caplog.text)


def test_signatures_are_those_of_one_batch(tmp_path, monkeypatch):
  pytest.importorskip('datasketch')
  made = []
  for size in (10_000, 3):
    monkeypatch.setattr(copies, 'TOGETHER', size)
    with contextlib.closing(sqlite3.connect(':memory:')) as database:
      made.append(copies.Copies(database, threshold=0.8)._signature('one two three four five six seven eight nine ten'))
  np.testing.assert_array_equal(*made)


@pytest.mark.parametrize(('command', 'flag', 'near'), [('filter', 'min_char', 'min_chars'), ('split', 'seeds', 'seed')])
def test_a_flag_of_a_command_that_does_not_exist_is_compared_with_its_own(command, flag, near, source, tmp_path):
  with pytest.raises(ConfigError, match=rf'--{flag}=5\b.*--{near}\b.*--{near}\b'):
    corpus.main([command, str(source), str(tmp_path / 'new'), f'--{flag}=5'])


def test_a_pass_that_was_killed_before_it_read_anything_goes_on(source, tmp_path):
  (tmp_path / 'new').mkdir()
  (tmp_path / 'new' / passes.LOCK).touch()
  assert corpus.main(['dedup', str(source), str(tmp_path / 'new'), '--exact']) == 0


def test_a_folder_of_something_else_is_left_alone(source, tmp_path):
  (tmp_path / 'new').mkdir()
  (tmp_path / 'new' / 'train.jsonl').write_text('mine')
  with pytest.raises(ConfigError, match=r'new.*files'):
    corpus.main(['split', str(source), str(tmp_path / 'new')])
  assert (tmp_path / 'new' / 'train.jsonl').read_text() == 'mine'


@pytest.mark.parametrize('content', [b'{"x', b'[]', b'{"asked": {}}', b'\xff'])
def test_a_damaged_report_is_named_with_the_cure(source, tmp_path, content):
  words = ['dedup', str(source), str(tmp_path / 'new'), '--exact']
  corpus.main(words)
  (tmp_path / 'new' / 'corpus.json').write_bytes(content)
  with pytest.raises(ConfigError, match=r'(?s)new/corpus\.json is damaged.*remove .*new'):
    corpus.main(words)


def test_a_damaged_database_is_named_with_the_cure(source, tmp_path):
  (tmp_path / 'new').mkdir()
  (tmp_path / 'new' / passes.PROGRESS).write_bytes(b'no database' * 1000)
  with pytest.raises(ConfigError, match=r'(?s)new/\.pass\.sqlite is damaged.*remove .*new'):
    corpus.main(['dedup', str(source), str(tmp_path / 'new'), '--exact'])


@pytest.mark.parametrize('below', ['', '/new'])
def test_a_file_is_no_folder_of_a_corpus(source, tmp_path, below):
  file = tmp_path / 'file'
  file.write_text('mine')
  with pytest.raises(ConfigError, match=rf'OUT={file}{below}.*folder'):
    corpus.main(['dedup', str(source), f'{file}{below}', '--exact'])
  assert file.read_text() == 'mine'


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['dedup', 'SOURCE', 'OUT', '--threshold=2'], 'threshold'),
    (['split', 'SOURCE', 'OUT', '--validation=0.6', '--test=0.5'], '--validation=0.6.*--test=0.5'),
    (['split', 'SOURCE', 'OUT', '--validation=0', '--test=0'], '--validation=0.*--test=0'),
    (['filter', 'SOURCE', 'OUT', '--rules=c5'], 'c5'),
    (['filter', 'SOURCE', 'OUT', '--against', 'nowhere'], 'PATH:SPLIT'),
    (['filter', 'SOURCE', 'OUT', '--against', 'SOURCE:train[:10'], r"split 'train\[:10'"),
    (['filter', 'SOURCE', 'OUT', '--against', 'SOURCE:dev[:10%]'], "split 'dev'"),
    (['filter', '--against', 'SOURCE:train', 'SOURCE', 'OUT'], 'SOURCE and OUT .*--against'),
    (['filter', 'SOURCE', '--against', 'SOURCE:train', 'OUT'], 'SOURCE and OUT .*--against'),
    (['filter', 'SOURCE', 'OUT'], r'--rules=gopher.*--min_chars, .*--min_english,.* --against'),
    (['filter', 'SOURCE', 'OUT', '--min_chars=0'], '--min_chars'),
    (['filter', 'SOURCE', 'OUT', '--min_chars=10', '--max_chars=5'], '--min_chars=10.*--max_chars=5'),
    (['dedup', 'SOURCE', 'OUT', '--exact', '--threshold=0.8'], '--exact.*--threshold=0.8'),
    (['dedup', 'no/such', 'OUT'], 'no/such'),
    (['dedup', 'SOURCE', 'OUT', '--split=dev'], 'dev'),
  ],
)
def test_a_mistake_is_named_before_anything_is_written(source, tmp_path, words, message):
  places = {'SOURCE': str(source), 'OUT': str(tmp_path / 'new')}
  with pytest.raises(ConfigError, match=message):
    corpus.main([re.sub('^(SOURCE|OUT)', lambda found: places[found[1]], word) for word in words])
  assert not (tmp_path / 'new').exists()


def test_a_pass_that_dies_anywhere_ends_with_the_same_bytes(source, tmp_path, monkeypatch):
  """It dies in the middle of a batch, whose rows were written in part and not committed."""
  monkeypatch.setattr(passes, 'TOGETHER', 7)
  whole = tmp_path / 'whole'
  corpus.main(['dedup', str(source), str(whole), '--exact'])
  for dies_at in (0, 3, 7, 20, 65):
    out = tmp_path / f'cut{dies_at}'
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
      patched.setattr(passes, 'Verdict', dying(passes.Verdict, after=dies_at))
      corpus.main(['dedup', str(source), str(out), '--exact'])
    assert not (out / 'corpus.json').exists()
    corpus.main(['dedup', str(source), str(out), '--exact'])
    for name in ('train.jsonl', 'left_out.jsonl'):
      assert (out / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.parametrize('exact', [True, False])
def test_flipped_bits_of_a_killed_pass_are_found_or_harmless(source, tmp_path, monkeypatch, exact):
  """Before, damaged text of before the kill was sealed, and a damaged index of copies used."""
  monkeypatch.setattr(passes, 'TOGETHER', 7)
  if not exact:
    pytest.importorskip('datasketch')
  flags = ['--exact'] if exact else ['--threshold=0.8']
  whole, killed, out = tmp_path / 'whole', tmp_path / 'killed', tmp_path / 'out'
  corpus.main(['dedup', str(source), str(whole), *flags])
  with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
    patched.setattr(passes, 'Verdict', dying(passes.Verdict, after=62))
    corpus.main(['dedup', str(source), str(killed), *flags])
  draw, found = random.Random(0), dict.fromkeys(['train.jsonl', 'left_out.jsonl', passes.PROGRESS], 0)
  for name, flips in zip(found, (25, 5, 60 if exact else 25), strict=True):
    for _ in range(flips):
      shutil.rmtree(out, ignore_errors=True)
      shutil.copytree(killed, out)
      content = bytearray((out / name).read_bytes())
      content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
      (out / name).write_bytes(content)
      try:
        corpus.main(['dedup', str(source), str(out), *flags])
      except ConfigError as error:
        assert str(out) in str(error)
        found[name] += 1
        continue
      for file in ('train.jsonl', 'left_out.jsonl', 'corpus.json'):
        assert (out / file).read_bytes() == (whole / file).read_bytes(), name
  assert found['train.jsonl'] > 15 and found[passes.PROGRESS]  # others are in pages or lines that are not used


def test_flipped_bits_of_the_report_of_a_pass_are_found(source, tmp_path):
  asked = ['dedup', str(source), str(tmp_path / 'new'), '--exact']
  corpus.main(asked)
  file, draw = tmp_path / 'new' / 'corpus.json', random.Random(0)
  before, report = file.read_bytes(), json.loads(file.read_text())
  for _ in range(150):
    content = bytearray(before)
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    file.write_bytes(content)
    try:
      corpus.main(asked)
    except ConfigError as error:
      assert 'new' in str(error)
    else:  # white space, or the name of the checksum
      left = json.loads(content)
      assert {**left, 'sha256': 0} == {**report, 'sha256': 0}


@pytest.mark.slow
def test_killed_processes_end_with_the_same_bytes(tmp_path):
  """SIGKILL and SIGTERM at random times, on 20,000 short texts."""
  draw = random.Random(3)
  source = tmp_path / 'old.txt'
  source.write_text('\n\n'.join(f'text {draw.randrange(15_000)} of many' for _ in range(20_000)))
  made = {}
  for name, kills in (('whole', 0), ('cut', 8)):
    words = [sys.executable, '-m', 'plm_jax', 'corpus', 'dedup', str(source), str(tmp_path / name), '--exact']
    for number in range(kills):
      child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
      time.sleep(1.0 + draw.random())
      child.send_signal(signal.SIGTERM if number % 2 else signal.SIGKILL)
      assert child.wait(60) in (-signal.SIGKILL, 0, 3, 130)
    assert subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode == 0
    made[name] = (tmp_path / name / 'train.jsonl').read_bytes()
  assert made['whole'] == made['cut']


def test_the_text_of_the_small_tables(tmp_path, capsys):
  from plm_jax.data.corpora import english

  data, out = tmp_path / 'data', tmp_path / 'out'
  with pytest.raises(ConfigError, match=r'classic_books.validation.txt.gz is missing: name the folder'):
    corpus.main(['english', str(data), str(out)])
  assert not out.exists()
  for name, text in {
    'classic_books/train': 'a\n',
    'classic_books/validation': 'b\n',
    'english_wiki/train': 'c\n',
  }.items():
    (data / name).parent.mkdir(parents=True, exist_ok=True)
    (data / f'{name}.txt.gz').write_bytes(gzip.compress(text.encode()))
  assert corpus.main(['english', str(data), str(out)]) == corpus.main(['english', str(data), str(out)]) == 0
  assert {file.name: file.read_text() for file in out.iterdir()} == {'train.txt': 'a\n\nc\n', 'validation.txt': 'b\n'}
  assert hashlib.sha256(b'b\n').hexdigest() in capsys.readouterr().out
  (out / 'train.txt').write_text('d')
  with pytest.raises(ConfigError, match='holds other files: name another folder'):
    corpus.main(['english', str(data), str(out)])
  (data / 'classic_books/train.txt.gz').write_bytes(b'no gzip')
  with pytest.raises(ConfigError, match='damaged'):
    english.make(data, tmp_path / 'new')
  assert not (tmp_path / 'new').exists()


def test_the_text_of_the_small_tables_has_the_bytes_of_their_runs(tmp_path):
  from plm_jax.data.corpora import english

  if not (conftest.SHARED_DATA / 'classic_books').is_dir():
    pytest.skip(f'classic_books is not in {conftest.SHARED_DATA}')
  assert english.make(conftest.SHARED_DATA, tmp_path) == {name: digest for name, (_, digest) in english.TEXTS.items()}
