"""Plot the attention weights of every head.

plm-jax heads --workdir=runs/quickstart/pretrain --text="Returns the sum of the array." --out=heads.png
plm-jax heads --weights=FOLDER --text="The cat sat on the mat."        a pretrained or converted checkpoint

One panel per head: rows are queries, columns are keys, darker means a larger weight. For each head it prints the
mean distance between a query and the keys it attends to. It also prints the entropy of the weights in bits, next to
that of uniform weights.
"""

from collections.abc import Sequence
from pathlib import Path

from plm_jax.cli import command, logs, pictures


def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax heads`; import jax only for a valid config."""
  parser = command.command('heads', __doc__)
  parser.add_argument('--text', required=True, help='text of a few words')
  parser.add_argument('--out', default='heads.png', type=Path, help='picture to write (default: heads.png)')
  parser.add_argument('--layer', type=int, help='draw only this layer, from 0')
  parser.add_argument('--head', type=int, help='draw only this head, from 0')
  command.add_step(parser)
  command.add_part(parser)
  command.add_weights(parser)
  arguments, settings = command.parse_model(parser, argv)
  if settings is None and arguments.weights is None:
    return 0
  pictures.check_place(arguments.out, name='--out')
  from plm_jax.inference import attention_maps, opened

  logs.start()
  folder = arguments.weights or arguments.workdir
  model = opened.open(folder, step=arguments.step, part=arguments.part, settings=settings)
  maps = attention_maps.look(model, text=arguments.text, layer=arguments.layer, head=arguments.head)
  attention_maps.draw(maps, arguments.out)
  attention_maps.show(attention_maps.measure(maps), title=arguments.text)
  print(f'Pictures in {arguments.out}')
  return 0
