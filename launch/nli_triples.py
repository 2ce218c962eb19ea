"""Write triples of inference pairs for supervised SimCSE: a premise, an entailed text and a contradiction.

python launch/nli_triples.py ../shared/data/snli runs/data/nli_triples
python launch/nli_triples.py tfds:snli runs/data/nli_triples

A premise gives one triple for each of its entailed texts (Gao et al. 2021, §4.2), with its contradictions in turn.
Premises without both are left out. Labels are 0 entailment, 2 contradiction, as in SNLI and MultiNLI.
"""

import json
import sys

from plm_jax.data.corpora import sources
from plm_jax.io import files


def main(source: str, target: str) -> None:
  """Write train.jsonl in `target` from the split 'train' of `source`."""
  texts = {}
  for row in sources.open_source(source, split='train'):
    texts.setdefault(row['premise'].strip(), {0: [], 1: [], 2: [], -1: []})[int(row['label'])].append(row['hypothesis'])
  lines = []
  for premise, by_label in texts.items():
    for index, entailed in enumerate(by_label[0] if by_label[2] else ()):
      hard = by_label[2][index % len(by_label[2])]
      lines.append(json.dumps({'anchor': premise, 'entailment': entailed, 'contradiction': hard, 'label': 0}))
  files.make_folder(files.path(target))
  files.write_text(files.path(target) / 'train.jsonl', '\n'.join([*lines, '']))
  print(f'{target}: {len(lines)} triples of {len(texts)} premises')


if __name__ == '__main__':
  main(*sys.argv[1:])
