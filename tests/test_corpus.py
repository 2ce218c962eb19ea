"""`python -m plm_jax.corpus`: a pass keeps and drops what it says, and goes on where it was stopped or killed."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from plm_jax import corpus, files
from plm_jax.data.corpora import sources
from plm_jax.data.corpora.cleaning import passes, quality, quantiles
from plm_jax.errors import ConfigError
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


def test_evaluation_sets_are_kept_out_and_counted(source, tmp_path, capsys):
  held = tmp_path / 'held'
  held.mkdir()
  story = sources.documents(str(source))[7]
  (held / 'test.jsonl').write_text(
    json.dumps({'text': story}) + '\n' + json.dumps({'text': 'nothing of it ' * 9}) + '\n'
  )
  out = tmp_path / 'new'
  corpus.main(['filter', str(source), str(out), '--min_chars=10', '--against', f'{held}:test'])
  assert {row['reason'] for row in left_out(out)} == {'evaluation_set'}
  assert 7 in {row['row'] for row in left_out(out)}
  assert json.loads((out / 'corpus.json').read_text())['evaluation_rows'] == {f'{held}:test': {'rows': 2, 'found': 1}}
  assert f'{held}:test: 1 of 2 rows found' in capsys.readouterr().out
  twice = ['--against', f'{held}:test', f'{held}:test']
  corpus.main(['filter', str(source), str(tmp_path / 'twice'), '--min_chars=10', *twice])
  assert (tmp_path / 'twice' / 'train.jsonl').read_bytes() == (out / 'train.jsonl').read_bytes()


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
from plm_jax import corpus, files
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
  with pytest.raises(ConfigError, match=r"row 1 of .*train.* has no field 'text': it has txt"):
    corpus.main([name, str(tmp_path / 'in'), *([] if name == 'stats' else [str(tmp_path / 'out')])])


def test_the_same_request_again_does_nothing_and_another_is_refused(source, tmp_path):
  out = tmp_path / 'new'
  asked = ['filter', str(source), str(out), '--min_chars=10']
  corpus.main(asked)
  before = (out / 'train.jsonl').stat().st_mtime_ns
  assert corpus.main(asked) == 0
  assert (out / 'train.jsonl').stat().st_mtime_ns == before
  with pytest.raises(ConfigError, match='was made with min_chars=10, and 20 is asked now'):
    corpus.main(['filter', str(source), str(out), '--min_chars=20'])
  (source / 'train.txt').write_text('Another text.\n')
  with pytest.raises(ConfigError, match='source_digest'):
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


def test_a_pass_that_was_killed_before_it_read_anything_goes_on(source, tmp_path):
  (tmp_path / 'new').mkdir()
  (tmp_path / 'new' / passes.LOCK).touch()
  assert corpus.main(['dedup', str(source), str(tmp_path / 'new'), '--exact']) == 0


def test_a_folder_of_something_else_is_left_alone(source, tmp_path):
  (tmp_path / 'new').mkdir()
  (tmp_path / 'new' / 'train.jsonl').write_text('mine')
  with pytest.raises(ConfigError, match='holds files that are not of such a pass'):
    corpus.main(['filter', str(source), str(tmp_path / 'new')])
  assert (tmp_path / 'new' / 'train.jsonl').read_text() == 'mine'


@pytest.mark.parametrize('content', [b'{"x', b'[]', b'{"asked": {}}', b'\xff'])
def test_a_damaged_report_is_named_with_the_cure(source, tmp_path, content):
  words = ['dedup', str(source), str(tmp_path / 'new'), '--exact']
  corpus.main(words)
  (tmp_path / 'new' / 'corpus.json').write_bytes(content)
  with pytest.raises(ConfigError, match=r'new/corpus\.json is damaged .*: remove the folder .*new; the pass begins'):
    corpus.main(words)


def test_a_damaged_database_is_named_with_the_cure(source, tmp_path):
  (tmp_path / 'new').mkdir()
  (tmp_path / 'new' / passes.PROGRESS).write_bytes(b'no database' * 1000)
  with pytest.raises(ConfigError, match=r'new/\.pass\.sqlite is damaged .*: remove the folder .*new; the pass begins'):
    corpus.main(['dedup', str(source), str(tmp_path / 'new'), '--exact'])


@pytest.mark.parametrize('below', ['', '/new'])
def test_a_file_is_no_folder_of_a_corpus(source, tmp_path, below):
  file = tmp_path / 'file'
  file.write_text('mine')
  with pytest.raises(ConfigError, match=rf'OUT={file}{below} cannot be made a folder \(.*\): name another place'):
    corpus.main(['dedup', str(source), f'{file}{below}', '--exact'])
  assert file.read_text() == 'mine'


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    (['dedup', 'SOURCE', 'OUT', '--threshold=2'], 'threshold'),
    (['split', 'SOURCE', 'OUT', '--validation=0.6', '--test=0.5'], 'leave nothing to train on'),
    (['filter', 'SOURCE', 'OUT', '--rules=c5'], 'c5'),
    (['filter', 'SOURCE', 'OUT', '--against', 'nowhere'], 'is no PATH:SPLIT'),
    (['filter', 'no/such', 'OUT'], 'no/such'),
    (['filter', 'SOURCE', 'OUT', '--split=dev'], 'dev'),
  ],
)
def test_a_mistake_is_named_before_anything_is_written(source, tmp_path, words, message):
  places = {'SOURCE': str(source), 'OUT': str(tmp_path / 'new')}
  with pytest.raises(ConfigError, match=message):
    corpus.main([places.get(word, word) for word in words])
  assert not (tmp_path / 'new').exists()


def test_a_pass_that_dies_anywhere_ends_with_the_same_bytes(source, tmp_path, monkeypatch):
  """It dies in the middle of a batch, whose rows were written in part and not committed."""
  monkeypatch.setattr(passes, 'TOGETHER', 7)
  whole = tmp_path / 'whole'
  corpus.main(['dedup', str(source), str(whole), '--exact'])
  real = passes.Verdict
  for dies_at in (0, 3, 7, 20, 65):
    out, asked = tmp_path / f'cut{dies_at}', 0

    def verdict(*args, dies_at=dies_at):
      nonlocal asked
      asked += 1
      if asked == dies_at + 1:
        raise KeyboardInterrupt
      return real(*args)

    monkeypatch.setattr(passes, 'Verdict', verdict)
    with pytest.raises(KeyboardInterrupt):
      corpus.main(['dedup', str(source), str(out), '--exact'])
    assert not (out / 'corpus.json').exists()
    monkeypatch.setattr(passes, 'Verdict', real)
    corpus.main(['dedup', str(source), str(out), '--exact'])
    for name in ('train.jsonl', 'left_out.jsonl'):
      assert (out / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_killed_processes_end_with_the_same_bytes(tmp_path):
  """SIGKILL and SIGTERM at random times, on 20,000 short texts."""
  draw = random.Random(3)
  source = tmp_path / 'old.txt'
  source.write_text('\n\n'.join(f'text {draw.randrange(15_000)} of many' for _ in range(20_000)))
  made = {}
  for name, kills in (('whole', 0), ('cut', 8)):
    words = [sys.executable, '-m', 'plm_jax.corpus', 'dedup', str(source), str(tmp_path / name), '--exact']
    for number in range(kills):
      child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
      time.sleep(1.0 + draw.random())
      child.send_signal(signal.SIGTERM if number % 2 else signal.SIGKILL)
      assert child.wait(60) in (-signal.SIGKILL, 0, 3, 130)
    assert subprocess.run(words, stdout=subprocess.DEVNULL, check=False).returncode == 0
    made[name] = (tmp_path / name / 'train.jsonl').read_bytes()
  assert made['whole'] == made['cut']
