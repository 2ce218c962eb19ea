"""The form in which SuperGLUE takes predictions of a test set: a JSON object a line (super.gluebenchmark.com).

The files of a submission are BoolQ.jsonl, CB.jsonl, COPA.jsonl, MultiRC.jsonl, ReCoRD.jsonl, RTE.jsonl, WiC.jsonl,
WSC.jsonl, AX-b.jsonl and AX-g.jsonl. Classes are words (CB, RTE, AX-b, AX-g), 'true' and 'false' (BoolQ, WiC), 'True'
and 'False' (WSC) or numbers (COPA); those of MultiRC stand in one object for each paragraph. ReCoRD's are the texts of
the options that are chosen. A noun that is written for WSC (T5) is 'True' where it is the one that the row asks about,
a text that is written for ReCoRD stands as it is, and other texts that are no label become the first one (`glue.py`).
"""

import json
from collections.abc import Sequence
from typing import Any

from plm_jax.scores import Row, glue, wsc

READS = ('label', 'text')  # one of them


def submission(predictions: Sequence[Row], records: Sequence[Row]) -> str:
  """The lines, rows in their order; those of MultiRC by paragraph and question."""
  pairs = list(zip(glue.with_labels(predictions), records, strict=True))
  tasks = {'BoolQ': {'question', 'passage'}, 'CB or RTE': {'premise', 'hypothesis'}, 'WiC': {'word', 'sentence1'}}
  glue.warn_of_numbers(predictions, records, tasks)
  nested = all({'paragraph', 'question', 'answer'} == set(_idx(record) or ()) for _, record in pairs)
  if nested:
    objects = _paragraphs(pairs)
  else:
    objects = [
      {'idx': (_idx(record) or {}).get('query', glue.index(record, number)), 'label': _label(row, record)}
      for number, (row, record) in enumerate(pairs)
    ]
  return '\n'.join([*(json.dumps(one, ensure_ascii=False) for one in objects), ''])


def _idx(record: Row) -> dict[str, int] | None:
  """The number of a row, where it is one for each level: of MultiRC and ReCoRD."""
  given = record.get('row', {}).get('idx')
  return given if isinstance(given, dict) else None


def _label(row: Row, record: Row) -> Any:
  fields = record.get('row', {})
  if 'label' not in row and 'span1_text' in fields:
    return str(wsc.names(row['text'], fields['span1_text']))
  if 'label' not in row and 'entities' in fields:  # ReCoRD
    return row['text']
  if 'label' not in row:
    raise ValueError('only WSC and ReCoRD are written as texts, and these rows have neither span1_text nor entities')
  label, names = int(row['label']), glue.label_names(record)
  if 'query' in (_idx(record) or {}) and 'options' in record:
    return record['options'][label]
  if 'entities' in fields and 'options' in record:  # ReCoRD
    return record['options'][label]
  if not names or 'choice1' in fields or names[0].startswith('choice'):
    return label
  if set(names) == {'False', 'True'} and 'span1_text' not in fields:
    return names[label].lower()
  return names[label]


def _paragraphs(pairs: list[tuple[Row, Row]]) -> list[dict[str, Any]]:
  """MultiRC's answers by question and paragraph, each in the order of its first row."""
  # paragraph, question, answer of rows 000 001 010   ->   paragraph 0: question 0: answers 0 1, question 1: answer 0
  found: dict[int, dict[int, list[dict[str, int]]]] = {}
  for row, record in pairs:
    place = record['row']['idx']
    answers = found.setdefault(place['paragraph'], {}).setdefault(place['question'], [])
    answers.append({'idx': place['answer'], 'label': int(row['label'])})
  return [
    {'idx': paragraph, 'passage': {'questions': [{'idx': q, 'answers': answers} for q, answers in questions.items()]}}
    for paragraph, questions in found.items()
  ]
