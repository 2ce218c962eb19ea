"""Digests of the files of a step, made by the hosts that write them and checked by the hosts that read them.

Orbax gives each process a folder of its own within a step, `ocdbt.process_<i>`, which holds nearly all of the bytes. As
soon as a process has written its files, it reads them again and leaves their digests in the unfinished step. Process 0
adds those of the few files that belong to all, and writes one record of all of them (`records.write`). Before a step is
read, its files are dealt out to the processes, however many there are by then. So no byte is read twice, and none by a
host that has nothing to do with it but for process 0.
"""

import concurrent.futures
import heapq
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

from plm_jax.io import files

log = logging.getLogger(__name__)

Digests = dict[str, tuple[int, str]]  # file, relative to the step folder -> (bytes, digest as `files.digest` gives it)
_OF_A_PROCESS = 'digests.process_{}.json'
_THREADS = 4


def of_files(paths: Mapping[str, Path], *, like: Mapping[str, str] | None = None) -> Digests:
  """Name -> (bytes, digest) of files, of the kind of the one in `like`; raises OSError where one cannot be read."""
  kinds = [(like or {}).get(name, '') for name in paths]
  with concurrent.futures.ThreadPoolExecutor(max_workers=_THREADS) as pool:  # hashing releases the interpreter lock
    made = pool.map(lambda path, kind: files.digest(path, like=kind), paths.values(), kinds)
    return {name: (files.size(paths[name]), digest) for name, digest in zip(paths, made, strict=True)}


def write_own(unfinished: Path, *, process: int, item: str) -> None:
  """Makes the digests of the files that one process wrote, for `collect`.

  Args:
    unfinished: the folder of a step, before it has its name.
    process: index of this process.
    item: name of what is saved in the step; its folder may have a longer one while it is written.
  """
  mine = {f'ocdbt.process_{process}', f'process_{process}'}  # the arrays, and what `array_metadatas` says of them
  found = {}
  for path in files.files_below(unfinished):
    folder, *rest = path.relative_to(unfinished).parts
    if folder.startswith(item) and mine & set(rest):
      found['/'.join((item, *rest))] = path
  files.write_json(unfinished / _OF_A_PROCESS.format(process), of_files(found), indent=None)


def collect(unfinished: Path) -> Digests:
  """The digests that the processes left, of files whose sizes they still are; what they left is removed."""
  found: Digests = {}
  for file in files.listing(unfinished, _OF_A_PROCESS.format('*')):
    try:
      found.update({name: (int(size), str(digest)) for name, (size, digest) in files.read_json(file).items()})
    except (OSError, ValueError, TypeError, AttributeError) as error:
      log.warning('%s cannot be read (%s): process 0 makes these digests', file, error)
    files.remove(file)
  there = {name: unfinished / name for name in found}
  return {
    name: found[name] for name, path in there.items() if files.exists(path) and files.size(path) == found[name][0]
  }


def deal(known: Mapping[str, tuple[int, str]], processes: int) -> list[list[str]]:
  """The files that each process checks: about as many bytes each; the same in every process."""
  dealt: list[list[str]] = [[] for _ in range(processes)]
  loads = [(0, process) for process in range(processes)]
  for name in sorted(known, key=lambda name: (-known[name][0], name)):
    load, process = heapq.heappop(loads)
    dealt[process].append(name)
    heapq.heappush(loads, (load + known[name][0], process))
  return dealt


def changed(folder: Path, known: Mapping[str, tuple[int, str]], names: Iterable[str]) -> str | None:
  """The first of the named files that is not as it was written, in the order of the names, or None.

  Raises:
    OSError: one of them cannot be read.
  """
  chosen = list(names)
  now = of_files({name: folder / name for name in chosen}, like={name: known[name][1] for name in chosen})
  return next((name for name in chosen if now[name][1] != known[name][1]), None)
