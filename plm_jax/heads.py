"""Draws the attention weights of every head for one text.

python -m plm_jax.heads --workdir=runs/quickstart/pretrain --text="Returns the sum of the array." --out=heads.png

One picture a head, queries down and keys across, darker is more. Prints for each head how far it looks on average and
how sure it is: the entropy of its weights in bits, against that of looking everywhere alike.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from plm_jax.cli import command


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the config is found to be sound."""
  parser = command.command('heads', __doc__)
  parser.add_argument('--text', required=True, help='a text of a few words')
  parser.add_argument('--out', default='heads.png', type=pathlib.Path, help='the picture (default: heads.png)')
  parser.add_argument('--step', default='auto', help="a number, 'newest' or 'best'; by default the best there is")
  arguments, settings = command.parse(parser, argv)
  if settings is None:
    return 0
  return _heads(settings, arguments)


def _heads(settings: dict[str, Any], arguments: argparse.Namespace) -> int:
  import jax
  import jax.numpy as jnp
  import numpy as np
  from rich.console import Console
  from rich.table import Table

  from plm_jax import weights
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.training import parts

  logs.start()
  vocab = parts.make_vocab(settings, pathlib.Path(arguments.workdir))
  ids = vocab.encode(arguments.text, specials=True)
  if vocab.cls_id is not None and vocab.sep_id is not None:
    ids = [vocab.cls_id, *ids, vocab.sep_id]
  trunk = parts.make_parts(settings, vocab).trunk
  params = weights.open(arguments.workdir, step=step_named(arguments.step)).params.tree('trunk')
  tokens = jnp.asarray([ids])
  _, sown = jax.jit(
    lambda params: trunk.apply({'params': params}, tokens, segment_ids=jnp.ones_like(tokens), mutable=['attention'])
  )(params)
  attention = np.asarray(sown['attention']['layers']['weights'][0][:, 0])  # [n, 1, h, l, l] -> [n, h, l, l]
  names = [vocab.decode([token]).strip() or vocab.token(token) for token in ids]
  _draw(attention, names, arguments.out)
  distance = np.abs(np.arange(len(ids))[:, None] - np.arange(len(ids)))
  seen = (attention > 0).sum(axis=-1)
  table = Table(title=arguments.text)
  for column in ('layer', 'head', 'mean distance', 'entropy, bits', 'of uniform'):
    table.add_column(column, justify='right')
  for layer, head in np.ndindex(attention.shape[:2]):
    here = attention[layer, head]
    entropy = -(here * np.log2(np.maximum(here, 1e-30))).sum(axis=-1).mean()
    uniform = np.log2(np.maximum(seen[layer, head], 1)).mean()
    far = (here * distance).sum(axis=-1).mean()
    table.add_row(f'{layer}', f'{head}', f'{far:.1f}', f'{entropy:.2f}', f'{entropy / max(uniform, 1e-9):.0%}')
  Console().print(table)
  print(f'Pictures in {arguments.out}')
  return 0


def _draw(weights: Any, names: Sequence[str], out: pathlib.Path) -> None:
  import matplotlib

  matplotlib.use('Agg')
  import matplotlib.pyplot as plt

  layers, heads, length, _ = weights.shape
  side = min(4.0, max(1.6, 0.16 * length))
  figure, grid = plt.subplots(
    layers, heads, figsize=(side * heads + 1, side * layers + 1), squeeze=False, constrained_layout=True
  )
  for layer in range(layers):
    for head in range(heads):
      axes = grid[layer][head]
      axes.imshow(weights[layer, head], cmap='Blues', vmin=0, vmax=1)
      axes.set_title(f'layer {layer}, head {head}', fontsize=8)
      axes.set_xticks(range(length), names if layer == layers - 1 else [''] * length, rotation=90, fontsize=6)
      axes.set_yticks(range(length), names if head == 0 else [''] * length, fontsize=6)
      axes.tick_params(length=0)
  figure.savefig(out, dpi=130)
  plt.close(figure)


if __name__ == '__main__':
  sys.exit(command.run(main))
