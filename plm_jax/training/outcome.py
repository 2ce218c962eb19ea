"""How a call of `train` ends: its exit code, its result, and how a run that diverged goes on."""

import functools
import os
import platform
import shlex
import subprocess
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from plm_jax.config import signatures
from plm_jax.io.run_paths import RunFolder

if TYPE_CHECKING:
  import jax

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
    f'batches; to leave them out, run it again after\n  plm-jax rewind --workdir={workdir} '
    f'--to_step={newest}{skip}\nor begin again in another --workdir, say with a lower optim.rate'
  )


def versions() -> dict[str, str]:
  """Versions of what the numbers of a run may depend on."""
  from importlib.metadata import version

  from plm_jax import __version__

  packages = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')
  return {'plm_jax': __version__, 'python': platform.python_version(), **{name: version(name) for name in packages}}


def machine(devices: Sequence['jax.Device'] = ()) -> str:
  """The machine, in words, with the accelerators among these devices of it."""
  kinds = [device.device_kind for device in devices if device.platform != 'cpu']
  accelerators = [f'{kinds.count(kind)} x {kind}' for kind in dict.fromkeys(kinds)]
  return ', '.join([platform.machine(), f'{os.cpu_count()} cores', platform.system(), *accelerators])


def made(devices: Sequence['jax.Device']) -> dict[str, Any]:
  """By which commit, on which machine and with which versions this process makes numbers on these devices."""
  return {'versions': versions(), 'code': code(), 'machine': machine(devices)}


@functools.cache
def code() -> str:
  """The commit of the package when this was first asked, with '+changes' where files of the package differ from it.

  Empty where the package stands in no repository, or git is not there or cannot be asked.
  """
  if _git('ls-files', '--error-unmatch', 'core/types.py') is None:  # another project's repository around it
    return ''
  commit, changed = _git('rev-parse', '--short=12', 'HEAD'), _git('status', '--porcelain', '--', '.')
  return '' if not commit or changed is None else commit + '+changes' * bool(changed)


def _git(*words: str) -> str | None:
  """What git says of the folder of the package, which it only reads; None where it fails."""
  asked = ['git', '--no-optional-locks', '-C', str(signatures.ROOT), *words]
  try:
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return None
