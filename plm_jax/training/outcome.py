"""Exit codes of `train`, the provenance of its numbers, and how to resume a run that diverged."""

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
  """End of a call of `train`: the exit code of the command, and the content of `result.json`."""

  exit_code: int
  result: dict[str, Any]


def way_on(folder: RunFolder, steps: Sequence[int], done: int) -> str:
  """Return how to resume a run diverged at `done`, from sound `steps`."""
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
  """Return the versions of packages that numbers depend on."""
  from importlib.metadata import version

  from plm_jax import __version__

  packages = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'grain', 'numpy')
  return {'plm_jax': __version__, 'python': platform.python_version(), **{name: version(name) for name in packages}}


def machine(devices: Sequence['jax.Device'] = ()) -> str:
  """Describe this machine and the accelerators among `devices`."""
  kinds = [device.device_kind for device in devices if device.platform != 'cpu']
  accelerators = [f'{kinds.count(kind)} x {kind}' for kind in dict.fromkeys(kinds)]
  return ', '.join([platform.machine(), f'{os.cpu_count()} cores', platform.system(), *accelerators])


def made(devices: Sequence['jax.Device']) -> dict[str, Any]:
  """Return the commit, machine and versions of this process."""
  return {'versions': versions(), 'code': code(), 'machine': machine(devices)}


@functools.cache
def code() -> str:
  """Return the commit of the package at the first call.

  '+changes' follows if its files differ. It is empty without a repository or without git.
  """
  if _git('ls-files', '--error-unmatch', 'core/types.py') is None:  # another project's repository around it
    return ''
  commit, changed = _git('rev-parse', '--short=12', 'HEAD'), _git('status', '--porcelain', '--', '.')
  return '' if not commit or changed is None else commit + '+changes' * bool(changed)


def _git(*words: str) -> str | None:
  """Return the output of a git command, None if it fails."""
  asked = ['git', '--no-optional-locks', '-C', str(signatures.ROOT), *words]
  try:
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return None
