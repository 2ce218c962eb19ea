"""Pairs of BLiMP whose words a text has, and those of the challenge's own files."""

import gzip
import json
import subprocess
import sys

import pytest

from launch import blimp_filtered
from tests import conftest


def pair(good, bad, term='binding'):
  return {'sentence_good': good, 'sentence_bad': bad, 'linguistics_term': term, 'UID': 'a'}


def read(folder):
  return [json.loads(line) for line in (folder / 'test.jsonl').read_text().splitlines()]


def test_every_word_is_twice_in_the_text(tmp_path):
  rows = [pair('The cat sleeps.', 'The cat sleep.'), pair('A dog sleeps.', 'A dog sleep.', 's-selection')]
  rows.append(pair('Cat!', 'Bird!'))
  (tmp_path / 'test.jsonl').write_text(''.join(f'{json.dumps(row)}\n' for row in rows))
  (tmp_path / 'a.txt').write_text('the cat sleeps\nthe cat, a dog; sleep bird')
  (tmp_path / 'b.txt').write_text('THE DOG SLEEPS. Sleep! A cat')
  texts = [str(tmp_path / name) for name in ('a.txt', 'b.txt')]
  blimp_filtered.main(str(tmp_path), str(tmp_path / 'out'), *texts)
  assert read(tmp_path / 'out') == [rows[0], rows[1] | {'linguistics_term': 'argument_structure'}]  # one bird
  blimp_filtered.main(str(tmp_path), str(tmp_path / 'out'), texts[1])
  assert read(tmp_path / 'out') == []


def test_files_as_published_a_compressed_text_and_mistakes(tmp_path):
  rows = [pair('The cat sleeps.', 'The cat sleep.'), pair('A dog.', 'A bird.')]
  for name, row in zip(('a', 'b'), rows, strict=True):
    (tmp_path / f'{name}.jsonl').write_text(json.dumps(row) + '\n')
  (tmp_path / 'text.txt.gz').write_bytes(gzip.compress(b'the cat sleeps sleep ' * 2))
  blimp_filtered.main(f'{tmp_path}/*.jsonl', str(tmp_path / 'out'), str(tmp_path / 'text.txt.gz'))
  assert read(tmp_path / 'out') == rows[:1]
  (tmp_path / 'a.jsonl').write_text('{"sentence_good": "a"}\n')
  with pytest.raises(SystemExit, match='no sentence_bad'):
    blimp_filtered.main(f'{tmp_path}/*.jsonl', str(tmp_path / 'other'), str(tmp_path / 'text.txt.gz'))
  words = [sys.executable, '-m', 'launch.blimp_filtered', str(tmp_path / 'out'), str(tmp_path / 'other'), 'nope.txt']
  done = subprocess.run(words, cwd=conftest.ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 1 and 'nope.txt' in done.stderr and 'Traceback' not in done.stderr
  assert not (tmp_path / 'other').exists()


def test_files_of_the_challenge_are_phenomena(tmp_path):
  for name in blimp_filtered.PHENOMENA:
    (tmp_path / f'{name}.json').write_text(json.dumps(pair(name, 'b', 'x')) + '\n')
  blimp_filtered.main(str(tmp_path), str(tmp_path / 'out'))
  terms = {row['sentence_good']: row['linguistics_term'] for row in read(tmp_path / 'out')}
  assert terms == blimp_filtered.PHENOMENA and terms['filler_gap'] == 'filler_gap_dependency'
  (tmp_path / 'binding.json').unlink()
  with pytest.raises(SystemExit, match=r'has no binding\.json'):
    blimp_filtered.main(str(tmp_path), str(tmp_path / 'other'))
  assert not (tmp_path / 'other').exists()
