"""Fills blanks in a text with a masked language model.

python -m plm_jax.fill --workdir=runs/quickstart/pretrain --text="Returns the [MASK] of the array."

Prints the likeliest tokens for each blank, `[MASK]` or the mask token of the run's vocabulary.
"""

import sys
from collections.abc import Sequence
from typing import Any

from plm_jax import errors
from plm_jax.cli import command
from plm_jax.errors import ConfigError
from plm_jax.text.spec import BLANKS


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('fill', __doc__)
  parser.add_argument('--text', required=True, help='a text with one blank or more')
  parser.add_argument('--top', type=int, default=5, help='how many tokens to show for each blank')
  parser.add_argument('--step', default='auto', help="a number, 'newest' or 'best'; by default the best there is")
  arguments, settings = command.parse(parser, argv)
  if settings is None:
    return 0
  return fill(settings, arguments.workdir, text=arguments.text, top=arguments.top, step=arguments.step)


def fill(settings: dict, workdir: str, *, text: str, top: int, step: str) -> int:
  """Prints the likeliest tokens for each blank of `text`."""
  import pathlib

  import jax
  import jax.numpy as jnp
  from rich.console import Console
  from rich.table import Table

  from plm_jax import weights
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.objectives import mlm
  from plm_jax.training.parts import check_length, make_parts, make_vocab

  logs.start()
  vocab = make_vocab(settings, pathlib.Path(workdir))
  if vocab.mask_id is None:
    raise ConfigError('fill: the vocabulary of this run has no mask token; it was not trained to fill blanks')
  mask = vocab.token(vocab.mask_id)
  for blank in BLANKS:
    text = text.replace(blank, mask)
  ids = vocab.encode(text, specials=True)
  ids = [vocab.cls_id, *ids, vocab.sep_id] if vocab.cls_id is not None and vocab.sep_id is not None else ids
  blanks = [place for place, token in enumerate(ids) if token == vocab.mask_id]
  if not blanks:
    raise ConfigError(f'fill: the text has no blank; write {mask} where a word is missing')
  parts = make_parts(settings, vocab)
  if not settings['objective']:
    raise ConfigError(f'fill: {workdir} was trained with an adapter; name the folder of a pre-training run')
  if parts.trunk.ATTENTION != 'bidirectional':
    raise ConfigError(
      f'fill: the {settings["model"]["name"]} in {workdir} reads from left to right and fills no blanks; name the '
      'folder of a run with a masked objective'
    )
  check_length(parts.trunk, len(ids), where='--text')
  params = weights.open(workdir, step=step_named(step)).params.tree()
  if 'mlm' not in params:
    raise ConfigError(
      f'fill: the run in {workdir} has no head that fills blanks, only {", ".join(params)}; name the folder of a run '
      'with a masked objective'
    )
  tokens = jnp.asarray([ids])
  # heads that only pre-training asks are left out; the mask decoder's table of positions is part of the answer
  alone = 'position_embed' not in params
  model = mlm.make(trunk=parts.trunk, vocab=vocab).model if alone else parts.task.model
  params = {name: params[name] for name in ('trunk', 'mlm')} if alone else params
  with errors.stage('fill'):
    logits: Any = model.apply(
      {'params': params}, predict=jnp.asarray([blanks]), tokens=tokens, segment_ids=jnp.ones_like(tokens)
    )
  top = min(top, vocab.size)
  probabilities, best = jax.lax.top_k(jax.nn.softmax(logits[0, :, : vocab.size], axis=-1), top)
  table = Table(title=text)
  table.add_column('blank')
  for rank in range(top):
    table.add_column(f'{rank + 1}')
  for number, (row, tokens) in enumerate(zip(probabilities.tolist(), best.tolist(), strict=True), start=1):
    words = [vocab.decode([token]).strip() or repr(vocab.token(token)) for token in tokens]
    shown = [f'{word} {probability:.2f}' for word, probability in zip(words, row, strict=True)]
    table.add_row(str(number), *shown)
  Console().print(table)
  return 0


if __name__ == '__main__':
  sys.exit(command.run(main))
