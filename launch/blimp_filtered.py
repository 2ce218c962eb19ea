"""Write the minimal pairs of BLiMP that the BabyLM challenge scores: every word is twice in the text, or oftener.

python launch/blimp_filtered.py ../shared/data/blimp data/blimp_filtered data/babylm_10m/train.txt
python launch/blimp_filtered.py filter-data/blimp_filtered data/blimp_filtered

The first form applies the rule of the challenge's README to all 67,000 pairs; texts may end in .gz, and 'blimp/*.jsonl'
names the 67 files as published. The second takes the challenge's own
files, one per phenomenon, without another filter. The script that made them is not published, so what counts as a word
is our reading: letters, digits and apostrophes, in lower case. Numbers of the two forms may differ.
The twelve phenomena are those of BLiMP's paper: selection ('s-selection' in its files) belongs to argument structure.
"""

import collections
import gzip
import json
import re
import sys
from typing import Any

from plm_jax.data.corpora import sources
from plm_jax.io import files

LEAST = 2  # times that a word must be in the text
SENTENCES = ('sentence_good', 'sentence_bad')
PHENOMENA = {  # file of the challenge: name in BLiMP
  **{name: name for name in (
    'anaphor_agreement', 'argument_structure', 'binding', 'control_raising', 'determiner_noun_agreement', 'ellipsis',
    'irregular_forms', 'island_effects', 'npi_licensing', 'quantifiers', 'subject_verb_agreement',
  )},
  'filler_gap': 'filler_gap_dependency',
}  # fmt: skip
TERM = 'linguistics_term'


def words_of(text: str) -> list[str]:
  """Split a text into lower-case words."""
  return re.findall(r"[\w']+", text.lower())


def known(rows: list[dict[str, Any]], texts: list[str]) -> list[dict[str, Any]]:
  """Return the rows of which each word is in the texts often enough."""
  counts = collections.Counter[str]()
  for text in texts:
    with (gzip.open if text.endswith('.gz') else open)(text, 'rt', encoding='utf-8') as lines:
      counts.update(word for line in lines for word in words_of(line))
  vocabulary = {word for word, count in counts.items() if count >= LEAST}
  return [row for row in rows if vocabulary.issuperset(words_of(' '.join(row[key] for key in SENTENCES)))]


def of_challenge(folder: str) -> list[dict[str, Any]]:
  """Read a folder of one JSON-lines file per phenomenon."""
  found = {name: files.path(folder) / f'{name}.json' for name in PHENOMENA}
  if missing := [file.name for file in found.values() if not files.is_file(file)]:
    sys.exit(f'{folder} has no {missing[0]}: unzip the filter_data.zip of the challenge, or name texts to filter by.')
  lines = {name: file.read_text().splitlines() for name, file in found.items()}
  return [json.loads(line) | {TERM: PHENOMENA[name]} for name in lines for line in lines[name] if line]


def main(source: str, target: str, *texts: str) -> None:
  """Write `target`/test.jsonl."""
  split = 'train' if '*' in source else 'test'
  rows = list(sources.open_source(source, split=split)) if texts else of_challenge(source)
  if lacking := next((key for key in (*SENTENCES, TERM) for row in rows if key not in row), None):
    sys.exit(f'{source}: a row has no {lacking}: name a folder with the fields of BLiMP.')
  left = known(rows, list(texts)) if texts else rows
  left = [row | {TERM: 'argument_structure'} if row[TERM] == 's-selection' else row for row in left]
  files.make_folder(files.path(target))
  files.write_text(files.path(target) / 'test.jsonl', ''.join(f'{json.dumps(row)}\n' for row in left))
  print(f'{target}: {len(left):,} of {len(rows):,} pairs')
  for term, count in collections.Counter(row[TERM] for row in left).items():
    print(f'  {term}: {count:,}')


if __name__ == '__main__':
  if len(sys.argv) < 3:
    sys.exit(__doc__)
  try:
    main(*sys.argv[1:])
  except (OSError, ValueError) as error:
    sys.exit(f'blimp_filtered.py: {error}')
