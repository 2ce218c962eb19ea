"""Checksums of the files of a step, computed by the hosts that write them and checked by the hosts that read them.

Orbax gives each process its own folder within a step, `ocdbt.process_<i>`, which holds nearly all of the bytes. As soon
as a process has written its files, it reads them again and stores their checksums in the unfinished step. Process 0
adds those of the few shared files, and writes one record of all of them (`saved_steps.write`). Before a step is read,
its files are divided among the present processes. So no byte is read twice, and except for process 0 no host reads a
file that it did not write.
"""

import concurrent.futures
import heapq
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from plm_jax.io import checksums, files

log = logging.getLogger(__name__)

Digests = dict[str, tuple[int, str]]  # file, relative to the step folder -> (bytes, digest of `checksums.digest`)
_OF_A_PROCESS = 'digests.process_{}.json'
_THREADS = 4


def of_files(paths: Mapping[str, Path], *, like: Mapping[str, str] | None = None) -> Digests:
  """Compute name -> (bytes, digest) of files, of the kinds in `like`."""
  kinds = [(like or {}).get(name, '') for name in paths]
  with concurrent.futures.ThreadPoolExecutor(max_workers=_THREADS) as pool:  # hashing releases the interpreter lock
    computed = pool.map(lambda path, kind: checksums.digest(path, like=kind), paths.values(), kinds)
    return {name: (files.size(paths[name]), digest) for name, digest in zip(paths, computed, strict=True)}


def write_own(unfinished: Path, *, process: int, item: str) -> None:
  """Write the checksums of the files of one process, for `collect`.

  Args:
    unfinished: the folder of a step, before it has its name.
    item: name of the saved item in the step; its folder may have a longer name while it is written.
  """
  folders = {f'ocdbt.process_{process}', f'process_{process}'}  # the arrays and their `array_metadatas`
  own_files = {}
  for path in files.files_below(unfinished):
    folder, *rest = path.relative_to(unfinished).parts
    if folder.startswith(item) and folders & set(rest):
      own_files['/'.join((item, *rest))] = path
  files.write_json(unfinished / _OF_A_PROCESS.format(process), of_files(own_files), indent=None)


def collect(unfinished: Path) -> Digests:
  """Collect and remove the checksums that the processes wrote.

  Those of files whose sizes have changed are dropped.
  """
  collected: Digests = {}
  for file in files.listing(unfinished, _OF_A_PROCESS.format('*')):
    try:
      collected.update({name: (int(size), str(digest)) for name, (size, digest) in files.read_json(file).items()})
    except (OSError, ValueError, TypeError, AttributeError) as error:
      log.warning('%s cannot be read (%s): process 0 computes these checksums', file, error)
    files.remove(file)
  paths = {name: unfinished / name for name in collected}
  return {
    name: collected[name]
    for name, path in paths.items()
    if files.exists(path) and files.size(path) == collected[name][0]
  }


def deal(recorded: Mapping[str, tuple[int, str]], processes: int) -> list[list[str]]:
  """Divide files among processes by bytes, the same result in every process."""
  dealt: list[list[str]] = [[] for _ in range(processes)]
  loads = [(0, process) for process in range(processes)]
  for name in sorted(recorded, key=lambda name: (-recorded[name][0], name)):
    load, process = heapq.heappop(loads)
    dealt[process].append(name)
    heapq.heappush(loads, (load + recorded[name][0], process))
  return dealt


def changed(folder: Path, recorded: Mapping[str, tuple[int, str]], names: Iterable[str]) -> str | None:
  """Find the first of the named files with another digest, or None."""
  chosen = list(names)
  now = of_files({name: folder / name for name in chosen}, like={name: recorded[name][1] for name in chosen})
  return next((name for name in chosen if now[name][1] != recorded[name][1]), None)
