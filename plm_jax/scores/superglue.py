"""Format of SuperGLUE for predictions of a test set: one JSON object per line (super.gluebenchmark.com).

The files of a submission are BoolQ.jsonl, CB.jsonl, COPA.jsonl, MultiRC.jsonl, ReCoRD.jsonl, RTE.jsonl, WiC.jsonl,
WSC.jsonl, AX-b.jsonl and AX-g.jsonl. Classes are words (CB, RTE, AX-b, AX-g), 'true' and 'false' (BoolQ, WiC), 'True'
and 'False' (WSC) or numbers (COPA). Those of MultiRC are nested in one object per paragraph, and ReCoRD's are the texts
of the chosen options. A noun that is written for WSC (T5) is 'True' if it is the queried one, a text that is written
for ReCoRD is not changed, and other texts that are no label become the first one (`glue.py`).
"""

import json
from collections.abc import Sequence
from typing import Any

from plm_jax.scores import Row, glue, wsc

READS = ('label', 'text')  # one of them


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """Format the lines in row order; MultiRC by paragraph and question."""
  pairs = list(zip(glue.with_labels(predictions), records, strict=True))
  tasks = {'BoolQ': {'question', 'passage'}, 'CB or RTE': {'premise', 'hypothesis'}, 'WiC': {'word', 'sentence1'}}
  glue.warn_of_numbers(predictions, records, tasks)
  nested = all({'paragraph', 'question', 'answer'} == set(_idx(record) or ()) for _, record in pairs)
  if nested:
    objects = _paragraphs(pairs)
  else:
    objects = [
      {'idx': (_idx(record) or {}).get('query', glue.index(record, position)), 'label': _label(row, record)}
      for position, (row, record) in enumerate(pairs)
    ]
  return '\n'.join([*(json.dumps(item, ensure_ascii=False) for item in objects), ''])


def _idx(record: Row) -> dict[str, int] | None:
  given = record.get('row', {}).get('idx')
  return given if isinstance(given, dict) else None


def _label(row: Row, record: Row) -> Any:
  fields = record.get('row', {})
  if 'label' not in row and 'span1_text' in fields:
    return str(wsc.names(row['text'], fields['span1_text']))
  if 'label' not in row and 'entities' in fields:  # ReCoRD
    return row['text']
  if 'label' not in row:
    raise ValueError('only WSC and ReCoRD take texts, and these rows have neither span1_text nor entities')
  label, names = int(row['label']), glue.label_names(record)
  if ('query' in (_idx(record) or {}) or 'entities' in fields) and 'options' in record:  # ReCoRD
    return record['options'][label]
  if not names or 'choice1' in fields or names[0].startswith('choice'):
    return label
  if set(names) == {'False', 'True'} and 'span1_text' not in fields:
    return names[label].lower()
  return names[label]


def _paragraphs(pairs: list[tuple[Row, Row]]) -> list[dict[str, Any]]:
  """Nest MultiRC's answers by question and paragraph, by first row."""
  # paragraph, question, answer of rows 000 001 010   ->   paragraph 0: question 0: answers 0 1, question 1: answer 0
  paragraphs: dict[int, dict[int, list[dict[str, int]]]] = {}
  for row, record in pairs:
    idx = record['row']['idx']
    answers = paragraphs.setdefault(idx['paragraph'], {}).setdefault(idx['question'], [])
    answers.append({'idx': idx['answer'], 'label': int(row['label'])})
  return [
    {'idx': paragraph, 'passage': {'questions': [{'idx': q, 'answers': answers} for q, answers in questions.items()]}}
    for paragraph, questions in paragraphs.items()
  ]
