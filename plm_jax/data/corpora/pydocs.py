"""The embedded corpus: its packages, its splits, and the build of its data sets.

There are two digests. The *key* names a build in the cache before it exists. It covers the packages with their
versions, and `RULES`, the version of the rules that turn docstrings into rows. It does not depend on the code, so
editing the code causes no new build. A change of the rows requires a new value of `RULES`; a test fails otherwise. The
*digest of a split* covers its rows (`pydocs_builder.py`). Token stores and runs see only this digest: a new build with
the same rows is the same data to them.
"""

import contextlib
import hashlib
import io
import logging
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_jax.data import made
from plm_jax.data.corpora import docstrings, filters, pydocs_tasks
from plm_jax.data.corpora.docstrings import Document, Package
from plm_jax.io import checksums, files

log = logging.getLogger(__name__)

CACHE = '~/.cache/plm_jax'
RULES = 2
SPLITS = ('train', 'validation', 'test')
SETS = tuple(pydocs_tasks.TASKS)

# Fixed list: only packages of requirements.txt, and their hard requirements.
PACKAGES = (
  Package('python', ('.',)),
  Package('absl-py', ('absl',)),
  Package('etils', ('etils',)),
  Package('flax', ('flax',)),
  Package('fonttools', ('fontTools',)),
  Package('grain', ('grain',)),
  Package('huggingface_hub', ('huggingface_hub',)),
  Package('jax', ('jax',)),
  Package('jaxlib', ('jaxlib',)),
  Package('matplotlib', ('matplotlib', 'mpl_toolkits')),
  Package('ml_collections', ('ml_collections',)),
  Package('numpy', ('numpy',)),
  Package('optax', ('optax',)),
  Package('orbax-checkpoint', ('orbax',)),
  Package('packaging', ('packaging',)),
  Package('pillow', ('PIL',)),
  Package('protobuf', ('google/protobuf',)),
  Package('Pygments', ('pygments',)),
  Package('pyparsing', ('pyparsing',)),
  Package('rich', ('rich',)),
  Package('scipy', ('scipy',)),
  Package('tensorboardX', ('tensorboardX',)),
  Package('tensorflow-datasets', ('tensorflow_datasets',)),
  Package('tensorstore', ('tensorstore/__init__.pyi',)),
  Package('tokenizers', ('tokenizers', 'tokenizers/__init__.pyi', 'tokenizers/models/__init__.pyi')),
  Package('treescope', ('treescope',)),
)


def key(packages: Sequence[Package]) -> str:
  """Name a build by packages, versions and `RULES`, or raise ModuleNotFoundError."""
  return hashlib.sha256(f'{RULES} {docstrings.fingerprint(packages)}'.encode()).hexdigest()[:16]


def split_of(text: str) -> str:
  """Assign 'train' (90 %), 'validation' or 'test' by hashed first letters."""
  # A text that starts with a section has its heading on a separate line.
  line = next((line for line in text.splitlines() if line and not line.endswith(':')), text)
  key = filters.alphanumeric(line)[:60]
  fraction = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], 'big') / 2**64
  return 'train' if fraction < 0.9 else 'validation' if fraction < 0.95 else 'test'


def read(packages: Sequence[Package], *, quiet: bool = True) -> tuple[dict[str, list[Document]], filters.FilterStats]:
  """Read the documents of each split (`splits_of`), with the filter's counts."""
  with _progress('Reading docstrings', quiet=quiet) as advance:
    return splits_of(docstrings.extract(packages, processes=min(os.cpu_count() or 1, 8), progress=advance))


def splits_of(extracted: Iterable[Document]) -> tuple[dict[str, list[Document]], filters.FilterStats]:
  """Filter documents, and divide them into splits.

  Returns the documents by split, in a random but fixed order, and the counts of the filter.
  """
  selected, stats = filters.filter_documents(
    extracted, min_chars=80, min_alpha=0.6, min_english=0.1, dedup_prefix=150, text=lambda document: document.text
  )
  selected.sort(key=lambda document: hashlib.sha256(document.text.encode()).digest())
  splits: dict[str, list[Document]] = {split: [] for split in SPLITS}
  for document in selected:
    splits[split_of(document.text)].append(document)
  return splits, stats


def prepare(
  *, cache: str = CACHE, packages: Sequence[Package] | None = None, sets: Sequence[str] = (), quiet: bool = False
) -> dict[str, Path]:
  """Build missing or damaged sets, and return all folders.

  The sets are `corpus` and the tasks; those without rows have no folder. `packages` are those to read, `PACKAGES` by
  default. Of `sets`, which will be read, the bytes are checked, and others are not built; () stands for all. Safe to
  call from several processes at once, and after a kill: folders are renamed when complete, under a lock. Raises
  ModuleNotFoundError if one of the packages is not installed.
  """
  packages, sets = PACKAGES if packages is None else packages, sets or SETS
  build = key(packages)
  root = files.local_path(cache, what='data.cache') / 'tfds' / 'pydocs'
  if not _rows(_summary(root, build, quiet=True)).keys() >= set(sets):
    made.missing('docstrings', digest=build, folder=root)
  with files.locked(root / '.lock', doing='building the corpus'):
    summary = _summary(root, build)
    unmade = [name for name in sets if name not in _rows(summary) or _is_damaged(root, name, summary)]
    if unmade:
      _build(packages, unmade, summary, build=build, root=root, quiet=quiet)
      summary = files.read_json(root / f'{build}.json')
    rows = _rows(summary)
    size = f'{sum(rows["corpus"].values()):,} documents' if 'corpus' in rows else ''
    made.tell('docstrings', digest=build, folder=root, size=size, found=not unmade)
  return {name: root / f'{name}-{build}' / '1.0.0' for name in SETS if rows.get(name)}


def _rows(summary: Mapping[str, Any]) -> dict[str, dict[str, int]]:
  return summary.get('rows', {})


def _summary(root: Path, build: str, *, quiet: bool = False) -> dict[str, Any]:
  file = root / f'{build}.json'
  try:
    summary = files.read_json(file)
    if not checksums.holds(summary):
      raise ValueError('another sha256')
    rows = {name: dict(summary['rows'][name]) for name in SETS if name in summary['rows']}
    return {'sha256_of_files': {}, **summary, 'rows': rows}
  except FileNotFoundError:
    return {}
  except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
    if not quiet:
      log.warning('%s is damaged (%s): building the corpus again', file, error)
    return {}


def _digests(root: Path, name: str, build: str) -> dict[str, str]:
  below = files.files_below(root / f'{name}-{build}')
  return {file.relative_to(root).as_posix(): files.sha256(file) for file in below}


def _is_damaged(root: Path, name: str, summary: Mapping[str, Any]) -> bool:
  for file, digest in summary['sha256_of_files'].get(name, {}).items():
    if not files.is_file(root / file) or files.sha256(root / file) != digest:
      log.warning('%s is damaged: building the corpus again', root / file)
      return True
  return False


def account(*, cache: str = CACHE, sets: Sequence[str] = ()) -> dict[str, Any]:
  """Return the summary of the corpus; build missing `sets` first.

  It has versions, documents and characters of each package, rows of each built set and split, and the counts of the
  filter.
  """
  prepare(cache=cache, sets=sets)
  return files.read_json(files.local_path(cache, what='data.cache') / 'tfds' / 'pydocs' / f'{key(PACKAGES)}.json')


def _build(
  packages: Sequence[Package], names: Sequence[str], old: Mapping[str, Any], *, build: str, root: Path, quiet: bool
) -> None:
  """Build the sets `names`, and add them to `old` ones."""
  start = time.perf_counter()
  splits, stats = read(packages, quiet=quiet)
  from plm_jax.data.corpora.pydocs_builder import Pydocs, PydocsConfig  # imports TFDS, which takes a second

  rows, old_sums = dict(_rows(old)), old.get('sha256_of_files', {})
  with _progress('Writing pydocs', quiet=quiet) as advance, _silent_tfds():
    for n, name in enumerate(names):
      folder = root / f'{name}-{build}'
      files.remove_folder(folder)  # of an interrupted build
      task = pydocs_tasks.TASKS[name]
      task_rows = {split: values for split, values in pydocs_tasks.make(task, splits).items() if values}
      rows[name] = {split: len(values) for split, values in task_rows.items()}
      if task_rows:
        config = PydocsConfig(name=folder.name, description=task.description, task=name, rows=task_rows)
        Pydocs(config=config, data_dir=str(root.parent), file_format='array_record').download_and_prepare()
      advance(n + 1, len(names))
  summary = {
    'packages': _table(packages, splits),
    'rows': {name: rows[name] for name in SETS if name in rows},
    'filter': stats._asdict(),
    'seconds': round(time.perf_counter() - start, 1),
    'sha256_of_files': old_sums | {name: _digests(root, name, build) for name in names},
  }
  files.write_json(root / f'{build}.json', checksums.sealed(summary))


def _table(packages: Sequence[Package], splits: Mapping[str, Sequence[Document]]) -> list[dict[str, Any]]:
  documents, chars = Counter[str](), Counter[str]()
  for split in splits.values():
    for document in split:
      documents[document.package] += 1
      chars[document.package] += len(document.text)
  versions = {package.name: docstrings.version(package) for package in packages}
  return [
    {'name': name, 'version': version, 'documents': documents[name], 'chars': chars[name]}
    for name, version in versions.items()
  ]


@contextlib.contextmanager
def _silent_tfds() -> Iterator[None]:
  """Silence TFDS, which shows a bar for every split and shard."""
  import tensorflow_datasets as tfds

  from plm_jax.data.corpora import tfds_sets

  tfds.disable_progress_bar()
  try:
    with tfds_sets.quiet(), contextlib.redirect_stdout(io.StringIO()):
      yield
  finally:
    tfds.enable_progress_bar()


@contextlib.contextmanager
def _progress(title: str, *, quiet: bool) -> Iterator[Any]:
  import rich.console
  import rich.progress

  with rich.progress.Progress(console=rich.console.Console(stderr=True), disable=quiet) as progress:
    bar = progress.add_task(title, total=None)
    yield lambda done, total: progress.update(bar, completed=done, total=total)
