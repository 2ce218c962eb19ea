"""Convert the Children's Book Test (Hill et al. 2016) from its published text to JSON lines.

python launch/cbt.py CBTest/data/cbtest_CN_test_2500ex.txt runs/data/cbt/test.jsonl

An example of the text is 21 numbered lines, and a blank line ends it. The last one has the question with XXXXX, a tab,
the answer, two tabs, and the candidates with | between them:

  21 She gave the XXXXX a bone .<tab>dog<tab><tab>cat|dog|moon

The lines have sentences, question, answer and options, as TFDS names them; `gpt/prompt.py:cbt` reads them.
"""

import json
import sys
from typing import Any

from plm_jax.io import files

LINES = 21


def parse(text: str, *, where: str) -> list[dict[str, Any]]:
  """Read the examples of a text; raise SystemExit with the line of a damaged one."""
  found, sentences = [], list[str]()
  for number, line in enumerate(text.splitlines(), start=1):
    if not line.strip():
      continue
    index, _, rest = line.strip().partition(' ')
    fields = [field for field in rest.split('\t') if field]
    if index != str(len(sentences) + 1) or len(fields) != (3 if index == str(LINES) else 1):
      raise SystemExit(
        f'{where}, line {number}: expected "{len(sentences) + 1} TEXT"'
        f'{" with a tab, the answer, two tabs and candidates" * (len(sentences) == LINES - 1)}, got {line[:60]!r}'
      )
    if len(fields) == 1:
      sentences.append(fields[0])
      continue
    question, answer, options = fields[0], fields[1], fields[2].split('|')
    if 'XXXXX' not in question or answer not in options:
      raise SystemExit(f'{where}, line {number}: no XXXXX in the question, or the answer {answer!r} is no candidate')
    found.append({'sentences': sentences, 'question': question, 'answer': answer, 'options': options})
    sentences = []
  if sentences or not found:
    raise SystemExit(f'{where}: the last example has {len(sentences)} of {LINES} lines')
  return found


def main(source: str, target: str) -> None:
  """Write the examples of the text `source` to the file `target`."""
  rows = parse(files.read_text(files.path(source)), where=source)
  files.make_folder(files.path(target).parent)
  files.write_text(files.path(target), ''.join(f'{json.dumps(row)}\n' for row in rows))
  print(f'{target}: {len(rows):,} examples')


if __name__ == '__main__':
  main(*sys.argv[1:])
