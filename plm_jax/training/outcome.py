"""How a call of `train` ends: its exit code, its result, and how a run that diverged goes on."""

import platform
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

from plm_jax.files import RunFolder

DONE, INTERRUPTED, DIVERGED = 0, 3, 4


class Outcome(NamedTuple):
  """How a call of `train` ended: the exit code of the command, and what `result.json` holds."""

  exit_code: int
  result: dict[str, Any]


def way_on(folder: RunFolder, steps: Sequence[int], done: int) -> str:
  """How to go on with a run that diverged at step `done`; `steps` are saved and sound."""
  if not steps:
    return f'no step of {folder.root} was saved before: begin again in another --workdir, say with a lower optim.rate'
  newest, workdir = max(steps), shlex.quote(str(folder.root))
  skip = f' --skip={done - newest}' if done > newest else ''
  return (
    f'the newest sound step is {newest} (there are {", ".join(map(str, steps))}). The same command would meet the same '
    f'batches; to leave them out, run it again after\n  python -m plm_jax.rewind --workdir={workdir} '
    f'--to_step={newest}{skip}\nor begin again in another --workdir, say with a lower optim.rate'
  )


def versions() -> dict[str, str]:
  """Versions of what the numbers of a run may depend on."""
  from importlib.metadata import version

  from plm_jax import __version__

  packages = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')
  return {'plm_jax': __version__, 'python': platform.python_version(), **{name: version(name) for name in packages}}
