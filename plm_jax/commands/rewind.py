"""Takes a run back to an older checkpoint, for instance one that diverged.

plm-jax rewind --workdir=runs/mine --to_step=8000 [--skip=300]

Step S becomes the newest. What the run did after it (newer checkpoints, be they best or not, lines of metrics,
result.json) moves to `checkpoints/set_aside/`, and nothing is deleted. The command that trained then goes on from S.
`config.json` records what is done here. Extensions (`train --extend`) that were made after S are undone.

Order of data, noise and dropout depend on the number of the step alone. Without --skip the run reads after S what it
read before, and is bit for bit a run that was never beyond S. With --skip=K, the K batches after S are left out: step
S + 1 reads what step S + 1 + K read, and a memory over rows begins anew. (PaLM went back about 100 steps before a spike
and left out 200 to 500 batches; Chowdhery 2022, section 5.1.)
"""

import argparse
from collections.abc import Sequence

from plm_jax.cli import command
from plm_jax.core.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line."""
  parser = command.Parser('plm-jax rewind', description=__doc__, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
  parser.add_argument('--workdir', metavar='DIR', help='the run folder')
  parser.add_argument('--to_step', type=int, metavar='S', help='the step that becomes the newest; left out: lists them')
  parser.add_argument('--skip', type=int, default=0, metavar='K', help='batches after S that are left out (default 0)')
  arguments = parser.parse_args(argv)
  if not arguments.workdir:
    raise ConfigError(f'{parser.prog}: needs --workdir=DIR, the folder of the run.')
  from plm_jax.cli import logs
  from plm_jax.training.guards import rewind  # loads jax

  logs.start()
  rewind.rewind(arguments.workdir, arguments.to_step, skip=arguments.skip)
  return 0
