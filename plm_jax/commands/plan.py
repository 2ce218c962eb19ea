"""Estimate memory, communication and time of a run on TPUs.

plm-jax plan --config=experiments/bert/base.py --topology=v5e:4x4
plm-jax plan --config=experiments/gpt/gpt2.py:gpt2 --topology=v5e:4x4 --search       the cheapest change that fits
plm-jax plan --config=experiments/bert/large.py --topology=v5e:8x8 --slices=2 --json
plm-jax plan --config=experiments/palm/pretrain.py:palm-540b --topology=v5p:8x16x16 --state_only

libtpu compiles the training step and the evaluation steps, without a TPU (minutes for a large model):
`pip install -r requirements/plan.txt`. --state_only counts the state and the hours only, compiles nothing and needs no
libtpu; cycles and transfers are then those stored in experiments/slices.json, if the config is one of its rows.

Hours are those at 40, 50 and 60 % of the peak, by the compiler's cycles and by the bytes over the links, not measured.

No data is read. If the vocabulary does not exist yet, its size is that of the command in the config's header, or
--vocab_size. A device is what jax counts as one: a chip, or half a chip of TPU7x.
"""

import json
import os
from collections.abc import Sequence

from plm_jax.cli import command
from plm_jax.config import signatures
from plm_jax.text import recipe
from plm_jax.training.before.model_from import expand

SAME_PROGRAM = {'seed', 'steps', 'log_every', 'eval_every', 'save_every', 'save_minutes', 'best'}  # keys of any value


def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax plan`; compile, but execute nothing."""
  parser = command.command('plan', __doc__)
  add = parser.add_argument
  add('--topology', metavar='CHIP:SIZES', help='TPU topology, such as v5e:4x4 (v4, v5e, v5p, v6e, tpu7x)')
  add('--slices', type=command.COUNT, default=1, help='number of slices of that topology (default 1)')
  add('--vocab_size', type=command.COUNT, help='vocabulary size, without vocab.extra')
  add('--epoch_tokens', type=command.COUNT, help='tokens in an epoch, for hours of a run of epochs')
  add('--state_only', action='store_true', help='count the state only; compile nothing')
  add('--search', action='store_true', help='search the cheapest change that makes it fit')
  add('--json', action='store_true', help='print JSON')
  arguments, settings = command.parse(parser, argv, workdir=False, expand=expand)
  if settings is None:
    return 0
  if arguments.topology is None:
    parser.error('needs --topology=CHIP:SIZES, such as v5e:4x4')
  if arguments.search and arguments.state_only:
    parser.error('--search compiles and --state_only does not: remove one of them')
  if arguments.epoch_tokens and settings['steps']:
    parser.error('--epoch_tokens is for a run of epochs, and this config has steps: remove it')
  os.environ['JAX_PLATFORMS'] = 'cpu'  # a TPU of this machine may be in use
  os.environ.pop('XLA_FLAGS', None)  # libtpu exits at a flag meant for CPUs
  from plm_jax.planning import report, stand_in, topology  # loads jax

  described = topology.parse(arguments.topology, slices=arguments.slices)
  if not arguments.state_only:
    topology.check_installed(described)
  header = recipe.header_of(arguments.config or '')
  vocab = stand_in.vocab_of(settings, header=header, size=arguments.vocab_size)
  changes = {key for key, _ in arguments.changes} - SAME_PROGRAM
  changed = changes or arguments.slices > 1 or not arguments.config
  # a copy of a config elsewhere may differ: '../...' names no row
  own = '' if changed else os.path.relpath(os.path.realpath(arguments.config), signatures.ROOT.parent / 'experiments')
  flags = {name: vars(arguments)[name] for name in ('state_only', 'search', 'epoch_tokens')}
  estimate = report.plan(settings, vocab, described, header=header, row=f'{own} on {described.name}', **flags)
  command.show(json.dumps(estimate, indent=2) if arguments.json else report.text(estimate))
  return 0
