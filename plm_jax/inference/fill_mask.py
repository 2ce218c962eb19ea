"""Blanks filled by a masked language model: the cloze test of its training (Devlin et al. 2018, §3.1)."""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from rich.table import Table

from plm_jax.cli import tables
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.trunk import longest_row
from plm_jax.core.types import Array, PyTree
from plm_jax.inference import batches, fill_spans
from plm_jax.inference.opened import Opened, with_ends
from plm_jax.objectives import emd_mlm, gpt_bert, mlm
from plm_jax.text.spec import BLANKS
from plm_jax.training.parts import check_length


class Filled(NamedTuple):
  """A text and the predictions for its blanks.

  Attributes:
    text: with the mask token of the vocabulary in each blank.
    blanks: per blank, in order, (token as text, probability) pairs, most likely first. An encoder-decoder gives the one
      text that it generates.
  """

  text: str
  blanks: list[list[tuple[str, float]]]


def fill(opened: Opened, texts: Sequence[str], *, top: int = 5, rows: int = batches.ROWS) -> list[Filled]:
  """Predict the tokens of every blank from the whole text at once.

  An encoder-decoder generates them instead (fill_spans.py).

  Args:
    texts: with one blank or more: any spelling of `text.spec.BLANKS`, the mask token of the vocabulary, or a sentinel.
    top: tokens per blank, at most the size of the vocabulary; an encoder-decoder generates one text per blank.

  Raises:
    ConfigError: a text has no blank or is too long, or the model cannot fill blanks.
  """
  check_fills(opened)
  if opened.kind == 'encoder-decoder':
    return [Filled(text=text, blanks=blanks) for text, blanks in fill_spans.fill(opened, texts, rows=rows)]
  vocab: Any = opened.vocab
  model, params = head_of(opened, user='fill')
  spelt = [_with_masks(text, opened) for text in texts]
  ids = [with_ends(vocab.encode(text, specials=True), vocab) for text in spelt]
  positions = [[position for position, token in enumerate(row) if token == vocab.mask_id] for row in ids]
  if not all(positions):
    raise ConfigError(f'fill: the text has no blank; write {vocab.token(vocab.mask_id)} for a missing word')
  for row in ids:
    check_length(opened.filler[0], len(row), where='the text')
  most = 1 << (max(map(len, positions), default=1) - 1).bit_length()  # a power of two

  def compute(members: np.ndarray, width: int) -> tuple[Array, Array]:
    tokens, segments = batches.padded([ids[row] for row in members], width, filler=vocab.pad_id)
    padded_positions = np.array([[*positions[row], *[0] * (most - len(positions[row]))] for row in members])
    with errors.stage('fill'):
      return likeliest(model, params, tokens, segments, padded_positions, top=min(top, vocab.size), size=vocab.size)

  limit = longest_row(opened.filler[0])
  predicted = batches.run(compute, list(map(len, ids)), limit=limit, rows=rows, doing='fill')
  filled = []
  for text, row, (probabilities, best) in zip(spelt, positions, predicted, strict=True):
    words = [[vocab.decode([token]).strip() or repr(vocab.token(token)) for token in blank] for blank in best.tolist()]
    pairs = [list(zip(*blank, strict=True)) for blank in zip(words, probabilities.tolist(), strict=True)]
    filled.append(Filled(text=text, blanks=pairs[: len(row)]))
  return filled


def _with_masks(text: str, opened: Opened) -> str:
  if opened.vocab.mask_id is None:
    raise ConfigError('fill: the vocabulary has no mask token; name the folder of a masked language model')
  for blank in BLANKS:
    text = text.replace(blank, opened.vocab.token(opened.vocab.mask_id))
  return text


def check_fills(opened: Opened) -> None:
  """Raise ConfigError if a model was not trained to fill blanks."""
  if opened.adapted:
    raise ConfigError(f'fill: {opened.folder} was trained with an adapter; name the folder of a pre-training run')
  if opened.kind not in ('bidirectional', 'encoder-decoder'):
    raise ConfigError(
      f'fill: the {opened.trunk.NAME} in {opened.folder} has {opened.kind} attention and cannot fill blanks; '
      'name the folder of a run with a masked objective'
    )


def head_of(opened: Opened, *, user: str) -> tuple[Any, PyTree]:
  """Return the `objectives.mlm.Model` and its parameters, or raise ConfigError."""
  trunk, params = opened.filler
  if trunk.PREDICTS_NEXT:
    return gpt_bert.Model(trunk), {'trunk': params['trunk']}
  if 'mlm' not in params:
    raise ConfigError(
      f'{user}: the run in {opened.folder} has no masked-LM head, only {", ".join(params)}; '
      'name the folder of a run with a masked objective'
    )
  with errors.stage(user):
    if 'position_embed' not in params:  # other pre-training heads are left out
      return mlm.make(trunk=trunk, vocab=opened.vocab).model, {name: params[name] for name in ('trunk', 'mlm')}
    steps = {'steps': opened.task['steps']} if 'steps' in opened.task else {}
    return emd_mlm.make(trunk=trunk, vocab=opened.vocab, **steps).model, params


@functools.partial(jax.jit, static_argnums=0, static_argnames=('top', 'size'))
def likeliest(
  model: nn.Module, params: PyTree, tokens: Array, segment_ids: Array, positions: Array, *, top: int, size: int
) -> tuple[Array, Array]:
  """Predict the most likely tokens at some positions of each row.

  Tokens and segments int[b, l], positions int[b, t] -> probabilities f32[b, t, k], falling, and ids int32[b, t, k], for
  k = `top`. The table may have more rows than the `size` ids of the vocabulary, which are offered.
  """
  logits: Any = model.apply({'params': params}, predict=positions, tokens=tokens, segment_ids=segment_ids)
  return jax.lax.top_k(jax.nn.softmax(logits, axis=-1)[..., :size], top)


def show(filled: Filled) -> None:
  """Print a table with one row per blank."""
  table = Table(title=filled.text)
  table.add_column('blank')
  for rank in range(len(filled.blanks[0])):
    table.add_column(f'{rank + 1}')
  for index, tokens in enumerate(filled.blanks, start=1):
    table.add_row(str(index), *(f'{token} {probability:.2f}' for token, probability in tokens))
  tables.show(table)
