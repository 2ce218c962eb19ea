"""Says whether a run fits TPUs that are not there, what these send to each other, and the hours.

plm-jax plan --config=experiments/bert/base.py --topology=v5e:4x4
plm-jax plan --config=experiments/gpt/gpt2.py:gpt2 --topology=v5e:4x4 --search       what makes it fit
plm-jax plan --config=experiments/bert/large.py --topology=v5e:8x8 --slices=2 --json
plm-jax plan --config=experiments/palm/pretrain.py:palm-540b --topology=v5p:8x16x16 --state_only

The training step and those of the evaluations are compiled by libtpu, which needs no TPU (minutes for a large model):
`pip install -r requirements/plan.txt`. --state_only counts the state and the hours, compiles nothing and needs no
libtpu. No data is read, and the vocabulary need not be there: where it is not, its size is that of the config's header,
or --vocab_size. A device is what jax sees as one: a chip, of TPU7x half a chip.
"""

import json
import os
from collections.abc import Sequence

from plm_jax.cli import command
from plm_jax.text import recipe
from plm_jax.training.before.model_from import expand


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a plan; nothing is computed."""
  parser = command.command('plan', __doc__)
  parser.add_argument('--topology', metavar='CHIP:SIZES', help="such as 'v5e:4x4'; v4, v5e, v5p, v6e, tpu7x")
  parser.add_argument('--slices', type=command.COUNT, default=1, help='so many of that topology (default 1)')
  parser.add_argument('--vocab_size', type=command.COUNT, help='ids of the vocabulary, without those of vocab.extra')
  parser.add_argument('--state_only', action='store_true', help='only what is counted: compile nothing')
  parser.add_argument('--search', action='store_true', help='where it does not fit, the cheapest change that does')
  parser.add_argument('--json', action='store_true', help='print JSON')
  arguments, settings = command.parse(parser, argv, workdir=False, expand=expand)
  if settings is None:
    return 0
  if arguments.topology is None:
    parser.error('needs --topology=CHIP:SIZES, such as v5e:4x4')
  if arguments.search and arguments.state_only:
    parser.error('--search compiles what it tries, and --state_only compiles nothing: leave one of them out')
  os.environ['JAX_PLATFORMS'] = 'cpu'  # programs are compiled for others; a TPU that is there may be in use
  os.environ.pop('XLA_FLAGS', None)  # libtpu, which reads LIBTPU_INIT_ARGS, ends a process at a flag for CPUs
  from plm_jax.planning import report, stand_in, topology  # loads jax

  described = topology.parse(arguments.topology, slices=arguments.slices)
  if not arguments.state_only:
    topology.check_installed(described)
  header = recipe.header_of(arguments.config or '')
  vocab = stand_in.vocab_of(settings, header=header, size=arguments.vocab_size)
  found = report.plan(
    settings, vocab, described, state_only=arguments.state_only, search=arguments.search, header=header
  )
  command.show(json.dumps(found, indent=2) if arguments.json else report.text(found))
  return 0
