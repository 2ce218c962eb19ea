"""Fills blanks: the cloze test that masked language models are trained on (Devlin et al. 2018, §3.1)."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.table import Table

from plm_jax import errors, weights
from plm_jax.checkpoint import Step
from plm_jax.cli import tables
from plm_jax.errors import ConfigError
from plm_jax.files import RunFolder
from plm_jax.inference import written
from plm_jax.objectives import mlm
from plm_jax.plugins import build
from plm_jax.text.spec import BLANKS
from plm_jax.training.parts import Parts, Settings, check_length, make_parts, make_vocab
from plm_jax.types import Vocab


class Filled(NamedTuple):
  """A text and what could stand in its blanks.

  Attributes:
    text: with the mask token of the vocabulary in each blank.
    blanks: per blank, in order, the likeliest tokens as text with their probabilities, likeliest first; of an
      encoder-decoder, the one text that it writes.
  """

  text: str
  blanks: list[list[tuple[str, float]]]


def fill(settings: Settings, folder: RunFolder, *, text: str, top: int = 5, step: Step = None) -> Filled:
  """Predicts the tokens of every blank from the whole text at once; an encoder-decoder writes them (written.py).

  Args:
    settings: of the run.
    folder: of a run with a masked objective.
    text: with one blank or more: any spelling of `text.spec.BLANKS`, the mask token of the vocabulary, or a sentinel.
    top: tokens per blank, at most the size of the vocabulary; an encoder-decoder writes one text per blank.
    step: of the run, see `weights.open`.

  Raises:
    ConfigError: the text has no blank, or the run cannot fill any.
  """
  vocab, settings = make_vocab(settings, folder), build.unwrapped(settings)
  parts = make_parts(settings, vocab, folder)
  _check_fills(parts, settings, folder)
  if parts.trunk.ATTENTION == 'encoder-decoder':
    return Filled(*written.fill(settings, folder, parts, text=text, step=step))
  if vocab.mask_id is None:
    raise ConfigError('fill: the vocabulary of this run has no mask token; it was not trained to fill blanks')
  mask = vocab.token(vocab.mask_id)
  for blank in BLANKS:
    text = text.replace(blank, mask)
  ids = with_ends(vocab.encode(text, specials=True), vocab)
  places = [place for place, token in enumerate(ids) if token == vocab.mask_id]
  if not places:
    raise ConfigError(f'fill: the text has no blank; write {mask} where a word is missing')
  check_length(parts.trunk, len(ids), where='--text')
  params = weights.open(folder.root, step=step).params.tree()
  if 'mlm' not in params:
    raise ConfigError(
      f'fill: the run in {folder.root} has no head that fills blanks, only {", ".join(params)}; name the folder of a '
      'run with a masked objective'
    )
  probabilities, best = jax.lax.top_k(_probabilities(parts, params, ids, places), min(top, vocab.size))
  spelt = [[vocab.decode([token]).strip() or repr(vocab.token(token)) for token in row] for row in best.tolist()]
  return Filled(text, [list(zip(*row, strict=True)) for row in zip(spelt, probabilities.tolist(), strict=True)])


def with_ends(ids: list[int], vocab: Vocab) -> list[int]:
  """The ids of a text as its model read them in training: between [CLS] and [SEP] where the vocabulary has both."""
  return ids if vocab.cls_id is None or vocab.sep_id is None else [vocab.cls_id, *ids, vocab.sep_id]


def _check_fills(parts: Parts, settings: Settings, folder: RunFolder) -> None:
  """Raises ConfigError where a run was trained for something else than filling blanks."""
  if not settings['objective']:
    raise ConfigError(f'fill: {folder.root} was trained with an adapter; name the folder of a pre-training run')
  if parts.trunk.ATTENTION not in ('bidirectional', 'encoder-decoder'):
    raise ConfigError(
      f'fill: the {settings["model"]["name"]} in {folder.root} has {parts.trunk.ATTENTION} attention and fills no '
      'blanks; name the folder of a run with a masked objective'
    )


def _probabilities(parts: Parts, params: Any, ids: list[int], places: list[int]) -> jax.Array:
  """f32[blanks, v]: a distribution over the vocabulary per blank, by the head of the run."""
  tokens = jnp.asarray([ids])
  # heads that only pre-training needs are left out; the mask decoder's table of positions is part of the answer
  alone = 'position_embed' not in params
  model = mlm.make(trunk=parts.trunk, vocab=parts.vocab).model if alone else parts.task.model
  params = {name: params[name] for name in ('trunk', 'mlm')} if alone else params
  with errors.stage('fill'):
    logits: Any = model.apply(
      {'params': params}, predict=jnp.asarray([places]), tokens=tokens, segment_ids=jnp.ones_like(tokens)
    )
  return jax.nn.softmax(logits[0, :, : parts.vocab.size], axis=-1)


def show(filled: Filled) -> None:
  """Prints a table with a row per blank."""
  table = Table(title=filled.text)
  table.add_column('blank')
  for rank in range(len(filled.blanks[0])):
    table.add_column(f'{rank + 1}')
  for number, tokens in enumerate(filled.blanks, start=1):
    table.add_row(str(number), *(f'{token} {probability:.2f}' for token, probability in tokens))
  tables.show(table)
