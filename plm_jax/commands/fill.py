"""Fill the blanks of a text with a language model.

plm-jax fill --workdir=runs/quickstart/pretrain --text="Returns the [MASK] of the array."
plm-jax fill --workdir=runs/t5 --text="Thank you <extra_id_0> me to your party <extra_id_1> week."
plm-jax fill --weights=FOLDER --text="Paris is the [MASK] of France."        a pretrained or converted checkpoint

A blank is `[MASK]`, the mask token of the model's vocabulary, or a sentinel such as <extra_id_0>. For each blank, a
masked language model lists the most probable tokens, and an encoder-decoder the text it generates, with its
probability.
"""

from collections.abc import Sequence

from plm_jax.cli import command, logs


def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax fill`; import jax only for a valid config."""
  parser = command.command('fill', __doc__)
  parser.add_argument('--text', required=True, help='text with at least one blank')
  parser.add_argument('--top', type=command.COUNT, default=5, help='number of tokens per blank (default 5)')
  command.add_step(parser)
  command.add_weights(parser)
  arguments, settings = command.parse_model(parser, argv)
  if settings is None and arguments.weights is None:
    return 0
  from plm_jax.inference import fill_mask, opened

  logs.start()
  model = opened.open(arguments.weights or arguments.workdir, step=arguments.step, settings=settings)
  fill_mask.show(fill_mask.fill(model, [arguments.text], top=arguments.top)[0])
  return 0
