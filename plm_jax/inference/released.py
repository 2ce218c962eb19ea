"""How a release or an import with the head of a task reads new rows, as the config of a run would say it.

Rows stand as the tokenizer of the folder writes texts, and are as long as its network has positions for. Answers are
looked for in windows, which begin a third of a row apart as in BERT's released code (Devlin et al. 2019, §4.2).
"""

from typing import Any

from plm_jax.config import blocks
from plm_jax.data.rows import question_windows
from plm_jax.inference.opened import Opened
from plm_jax.training.before import from_data
from plm_jax.training.parts import Settings

LONGEST = 512  # tokens of a row where nothing bounds it: what most networks without learned positions were trained on
WINDOW = 384  # tokens of a row of a question and a part of its text
_KINDS = {'tag': 'words', 'span': 'spans', 'choose': 'options'}  # of rows, by adapter


def settings(opened: Opened) -> dict[str, Any]:
  """The adapter that computes the head of a folder, and data of which new rows are made, with every default.

  Raises:
    ConfigError: its tokenizer writes texts in no layout that is known.
  """
  adapter = blocks.complete('adapters', dict(opened.weights.adapter), 'adapter')
  data = blocks.complete('data', _data(opened, adapter), 'data')
  return {'objective': None, 'adapter': adapter, 'data': data, 'eval': {}, 'accumulate': 1}


def _data(opened: Opened, adapter: Settings) -> dict[str, Any]:
  kind = _KINDS.get(adapter['name'], adapter.get('kind'))
  layout = from_data.layout_of_release(str(opened.folder), texts=2 if adapter['name'] in ('span', 'choose') else 1)
  length = opened.limit or LONGEST
  block = {'name': 'labelled', 'path': '', 'layout': layout, 'kind': kind, 'length': length, 'batch_size': 1}
  if kind == 'words':
    return {**block, 'fields': ('tokens',)}
  if kind == 'spans':
    length = min(length, WINDOW)
    stride, question = (
      min(question_windows.STRIDE, -(-length // 3)),
      min(question_windows.QUESTION_LENGTH, -(-length // 6)),
    )
    return {**block, 'length': length, 'stride': stride, 'question_length': question}
  return block
