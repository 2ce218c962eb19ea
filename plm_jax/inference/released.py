"""Data blocks for pretrained and converted checkpoints with a task head.

Examples follow the layout of the folder's tokenizer and are as long as the network has positions. Contexts of questions
are read in windows that begin a third of a sequence apart, as in BERT's released code (Devlin et al. 2019, §4.2).
"""

from typing import Any

from plm_jax.config import blocks, signatures
from plm_jax.data.rows import question_windows
from plm_jax.inference.opened import Opened
from plm_jax.training.before import from_data
from plm_jax.training.parts import Settings

LONGEST = 512  # tokens without learned positions; most such networks were trained on 512
WINDOW = 384  # tokens of a question and a window of its context


def settings(opened: Opened) -> dict[str, Any]:
  """Build a checkpoint's config, complete; raise ConfigError for an unknown layout."""
  adapter = blocks.complete('adapters', dict(opened.weights.adapter), 'adapter')
  data = blocks.complete('data', _data(opened, adapter), 'data')
  return {'objective': None, 'adapter': adapter, 'data': data, 'eval': {}, 'accumulate': 1}


def _data(opened: Opened, adapter: Settings) -> dict[str, Any]:
  module = f'adapters.{adapter["name"]}'
  texts = signatures.literal(module, 'TEXTS') or 1
  layout = opened.layout or from_data.layout_of_release(str(opened.folder), texts=texts, key='layout=')
  length = opened.limit or LONGEST
  kind = 'multilabel' if adapter.get('several') else adapter.get('kind')
  block = {'kind': kind, **(signatures.literal(module, 'DATA') or {})}
  block |= {'path': '', 'layout': layout, 'length': length, 'batch_size': 1}
  if signatures.literal(f'data.rows.kinds.{block["kind"]}', 'WINDOWS'):
    length = min(length, WINDOW)
    stride = min(question_windows.STRIDE, -(-length // 3))
    question_length = min(question_windows.QUESTION_LENGTH, -(-length // 6))
    return {**block, 'length': length, 'stride': stride, 'question_length': question_length}
  return block
