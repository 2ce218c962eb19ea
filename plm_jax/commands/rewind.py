"""Rewind a run to an older checkpoint.

plm-jax rewind --workdir=runs/mine                              list the checkpoints
plm-jax rewind --workdir=runs/mine --to_step=8000
plm-jax rewind --workdir=runs/mine --to_step=8000 --skip=300    also leave out the next 300 batches

Use it for a run that diverged. --to_step=S makes step S the newest. Everything after it (newer checkpoints, also the
best one, lines of metrics, result.json) moves to `checkpoints/set_aside/`; nothing is deleted. The training command
then resumes from S. `config.json` records the rewind. Extensions (`train --extend`) made after S are undone.

Data order, noise and dropout depend only on the step. Without --skip, the run reads the same batches again and equals,
bit for bit, a run that never went beyond S. With --skip=K the K batches after S are left out, and a recurrent memory is
reset: step S + 1 reads what step S + 1 + K would have read. PaLM rewound about 100 steps before a spike and skipped 200
to 500 batches (Chowdhery et al. 2022, section 5.1).
"""

from collections.abc import Sequence

from plm_jax.cli import command, logs
from plm_jax.core.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax rewind`."""
  parser = command.Parser('plm-jax rewind', __doc__)
  add = parser.add_argument
  add('--workdir', metavar='DIR', help='run folder')
  add('--to_step', type=int, metavar='S', help='step that becomes the newest (default: list the steps)')
  add('--skip', type=int, default=0, metavar='K', help='number of batches after S to leave out (default 0)')
  arguments = parser.parse_args(argv)
  if not arguments.workdir:
    raise ConfigError(f'{parser.prog}: needs --workdir=DIR, the folder of the run.')
  from plm_jax.training.guards import rewind  # loads jax

  logs.start()
  rewind.rewind(arguments.workdir, arguments.to_step, skip=arguments.skip)
  return 0
