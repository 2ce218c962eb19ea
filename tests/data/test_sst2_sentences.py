"""SST-2 split by sentence: no row of a split lies in a row of another one, nor holds one."""

import json

import pytest

from launch import sst2_sentences
from tests.conftest import SHARED_DATA

SPLITS = ('train', 'validation', 'test')


def overlap(texts):
  """Return the rows of a split that lie in rows of another, by (split, other)."""
  words = {split: {tuple(text.split()) for text in texts[split]} for split in SPLITS}
  spans = {split: {span for one in words[split] for span in sst2_sentences.inside(one)} for split in SPLITS}
  return {(one, other): words[one] & spans[other] for one in SPLITS for other in SPLITS if one != other}


def by_split(rows):
  found = sst2_sentences.splits(rows)
  return {split: [text for text, chosen in zip(rows, found, strict=True) if chosen == split] for split in SPLITS}


def test_phrases_go_with_their_sentences():
  rows = [f'{letter} {number} x{number}' for number in range(60) for letter in 'ab']
  rows += [f'{number} x{number} ' for number in range(60)]
  found = dict(zip(rows, sst2_sentences.splits(rows), strict=True))
  assert set(found.values()) == {'', *SPLITS}
  for number in range(60):
    both, phrase = {found[f'{letter} {number} x{number}'] for letter in 'ab'}, found[f'{number} x{number} ']
    assert phrase == (both.pop() if len(both) == 1 else '')  # in two splits it is in none
  assert not any(overlap(by_split(rows)).values())


def test_no_row_of_the_real_set_lies_in_a_row_of_another_split(tmp_path, capsys):
  if not (SHARED_DATA / 'glue_sst2').is_dir():
    pytest.skip(f'glue_sst2 is not in {SHARED_DATA}')
  sst2_sentences.main(str(SHARED_DATA / 'glue_sst2'), str(tmp_path))
  assert '42,338 train, 2,142 validation, 19,900 test, 2,969 left out of 67,349 rows' in capsys.readouterr().out
  lines = {split: (tmp_path / f'{split}.jsonl').read_text().splitlines() for split in SPLITS}
  texts = {split: [json.loads(line)['sentence'] for line in rows] for split, rows in lines.items()}
  assert not any(overlap(texts).values())
