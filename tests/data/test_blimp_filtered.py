"""Pairs of BLiMP whose words a text has, and those of the challenge's own files."""

import json

import pytest

from launch import blimp_filtered


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
