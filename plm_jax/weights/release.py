"""Files of a folder in Hugging Face's form: config.json, one or several safetensors files, a tokenizer."""

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plm_jax.checkpoint import Leaf, tensor_files
from plm_jax.checkpoint.tensor_files import Plan, WeightsError
from plm_jax.core.errors import stage
from plm_jax.core.types import Template
from plm_jax.io import downloads, files, model_folders, other_forms
from plm_jax.text import published
from plm_jax.text import spec as specs

CONFIG, SINGLE, INDEX = 'config.json', 'model.safetensors', 'model.safetensors.index.json'
TOKENIZER, _ROLES, _FACTS = 'tokenizer.json', 'tokenizer_config.json', 'vocab.json'
GENERATION = 'generation_config.json'
# fields of config.json
TOKEN_IDS = (
  'pad_token_id', 'bos_token_id', 'eos_token_id', 'decoder_start_token_id', 'forced_bos_token_id',
  'forced_eos_token_id',
)  # fmt: skip
TOKENIZER_FILES = (
  TOKENIZER, _ROLES, 'special_tokens_map.json', 'added_tokens.json', _FACTS, 'vocab.txt',
  'merges.txt', 'spiece.model', 'sentencepiece.bpe.model', 'tokenizer.model', 'spm.model',
  'chat_template.jinja', 'chat_template.json',
  GENERATION,  # the tokens that begin and end a text, and settings of generation
)  # fmt: skip
SHARD = 5 * 10**9

log = logging.getLogger(__name__)


class Release:
  """The tensors of a folder by name.

  Each is read when it is used.

  Attributes:
    folder: their path.
    config: the content of config.json.
    FILE: the only file, or the name of its index without '.index.json'.

  Raises:
    WeightsError: the folder has no safetensors (pickles are never read, because reading executes them), or a file is
      damaged.
  """

  FILE = SINGLE

  def __init__(self, folder: Path):
    self.folder = folder
    self.config = model_folders.config_of(folder)
    # An index next to a single file is stale: the folder was saved in shards before.
    index = {} if files.is_file(folder / self.FILE) else self._read_index()
    self._missing = f'{self.FILE}.index.json' if index else self.FILE
    names = sorted(set(index.values())) if index else [self._single()]
    opened = {file: self.open_file(folder / file) for file in names}
    self._places = {name: file for file, leaves in opened.items() for name in leaves}
    self._leaves = {name: leaf for leaves in opened.values() for name, leaf in leaves.items()}
    for name, file in index.items():
      if self.renamed(name) not in opened[file]:
        raise WeightsError(
          f'{folder / file} has no tensor {name!r}, but {self._missing} lists it there: fetch both again'
        )

  def open_file(self, file: Path) -> dict[str, Leaf]:
    """Open the tensors of one file by name."""
    container = tensor_files.Container(file)
    read = lambda name, layer: container.read(name)  # noqa: E731
    return {name: Leaf(tensor.shape, functools.partial(read, name)) for name, tensor in container.tensors.items()}

  def renamed(self, name: str) -> str:
    """Convert a name of the index."""
    return name

  def _read_index(self) -> dict[str, str]:
    """Read tensor -> file, if there are several files; else empty."""
    file = self.folder / f'{self.FILE}.index.json'
    if not files.is_file(file):
      return {}
    index = read_json(file).get('weight_map')
    if not isinstance(index, dict) or not index or not all(isinstance(name, str) for name in index.values()):
      raise WeightsError(f'{file} has no weight_map (tensor -> file): fetch it again')
    for tensor, name in index.items():
      if Path(name).name != name or not files.is_file(self.folder / name):
        raise WeightsError(f'{file} lists tensor {tensor!r} in {name}, which is missing: fetch that file')
      if not files.is_inside(self.folder / name, self.folder):
        raise WeightsError(f'{file} lists tensor {tensor!r} in {name}, a link out of the folder: replace it by a copy')
    return index

  def _single(self) -> str:
    if files.is_file(self.folder / self.FILE):
      return self.FILE
    raise WeightsError(other_forms.explain(self.folder) or f'{self.folder} has neither {SINGLE} nor {INDEX}: fetch one')

  def __contains__(self, name: object) -> bool:
    return name in self._places

  def __iter__(self) -> Iterator[str]:
    return iter(self._places)

  def shape(self, name: str) -> tuple[int, ...]:
    return self._leaves[name].shape

  def where(self, name: str) -> str:
    """Describe file and tensor, or where a missing one should be."""
    file = self._places.get(name, self._missing)
    return f'{self.folder / file}, tensor {name!r}'

  def read(self, name: str) -> np.ndarray:
    return self._leaves[name].read(None)


class Converted(Release):
  """Tensors of another form, by their names in transformers.

  Attributes:
    folder: the file or folder that holds them.
  """

  def __init__(self, folder: Path, config: Mapping[str, Any], leaves: Mapping[str, Leaf], *, file: str = ''):
    self.folder, self.config, self._leaves = folder, dict(config), dict(leaves)
    self._places, self._missing = dict.fromkeys(leaves, file), file


def write(
  folder: Path,
  config: Mapping[str, Any],
  plans: Mapping[str, Plan],
  *,
  shard: int = SHARD,
  tokenizer: Path | None = None,
  template: Template | None = None,
  types: bool = False,
  longest: int | None = None,
  finish: Callable[[Path], None] = lambda folder: None,
) -> None:
  """Write a folder, or replace one once everything is on disk.

  Other files of an existing folder stay.

  Args:
    folder: created if missing.
    plans: name -> tensor.
    shard: maximum bytes per file of tensors.
    tokenizer: a folder whose tokenizer is copied; it replaces the one in `folder`.
    template: as in `copy_tokenizer`, and so `types` and `longest`.
    finish: writes other files into the folder.

  Raises:
    WeightsError: the disk is full, or a tensor cannot be read; the folder is unchanged.
  """
  groups = tensor_files.shards(plans.items(), shard)
  folder = files.followed(folder)  # keep links
  with making(folder) as partial:
    numbered = [f'model-{shard_index:05}-of-{len(groups):05}.safetensors' for shard_index in range(1, len(groups) + 1)]
    names = [SINGLE] if len(groups) == 1 else numbered
    for name, group in zip(names, groups, strict=True):
      tensor_files.write(partial / name, group)
    if len(groups) > 1:
      index = {tensor: name for name, group in zip(names, groups, strict=True) for tensor in group}
      total = sum(plan.size for plan in plans.values())
      files.write_json(partial / INDEX, {'metadata': {'total_size': total}, 'weight_map': index})
    copied = copy_tokenizer(tokenizer, partial, template=template, types=types, longest=longest) if tokenizer else []
    files.write_json(partial / CONFIG, dict(config))
    replaced = {INDEX, CONFIG, model_folders.MODULES, *(TOKENIZER_FILES if copied else ())}
    replaced |= {file.name for file in files.listing(folder, 'model*.safetensors')}
    for other in () if files.is_address(folder) else files.files_below(folder):  # other files are kept
      relative = other.relative_to(folder)
      if str(relative) not in replaced:
        files.make_folder((partial / relative).parent)
        files.copy(other, partial / relative)
    finish(partial)
    put_in_place(partial, folder, mark=CONFIG, replaced=replaced)


@contextlib.contextmanager
def making(folder: Path) -> Iterator[Path]:
  """Provide an empty folder next to `folder`, to be filled and moved.

  What is left of it is removed at the end.

  Raises:
    WeightsError: it cannot be written to.
  """
  if files.exists(folder) and not files.is_folder(folder):
    raise WeightsError(f'{folder} is a file: name another folder')
  if files.is_address(folder):
    with files.temporary_folder() as partial:
      try:
        yield partial
      except OSError as error:
        raise WeightsError(f'{folder} cannot be written: {error}; name another folder') from error
    return
  partial, aside = folder.with_name(f'{folder.name}.partial'), _aside(folder)
  with contextlib.ExitStack() as stack:
    try:
      stack.enter_context(files.locked_folder(partial))  # the lock tells other processes that it is in use
      stack.callback(files.remove_folder, partial)
      for leftover in files.listing(partial):
        (files.remove_folder if files.is_folder(leftover) else files.remove)(leftover)
      if files.exists(aside):  # a process was killed between two renames
        if files.listing(folder):
          files.remove_folder(aside)
        else:
          files.move(aside, folder)
          log.warning('%s is restored: writing its replacement was interrupted', folder)
      yield partial
    except BlockingIOError as error:
      raise WeightsError(f'another process is writing to {folder}: wait for it, or name another folder') from error
    except OSError as error:
      raise WeightsError(f'{folder} cannot be written: {error}; free disk space or name another folder') from error


def put_in_place(partial: Path, folder: Path, *, mark: str, replaced: Iterable[str] = ()) -> None:
  """Rename a complete folder to `folder`.

  An existing one is renamed first and removed at the end. At a URL the files are uploaded, `mark` last, and those of
  `replaced` that are not among them are removed (`downloads.publish`).
  """
  if files.is_address(folder):
    downloads.publish(partial, folder, mark=mark, replaced=replaced)
    return
  aside = _aside(folder)
  if files.exists(folder):
    files.move(folder, aside)
  try:
    files.move(partial, folder)
  except OSError:
    if files.exists(aside):
      files.move(aside, folder)
    raise
  files.remove_folder(aside)


def _aside(folder: Path) -> Path:
  return folder.with_name(f'.{folder.name}.replaced')


def check_tokenizer(folder: Path, rows: int, *, where: str) -> None:
  """Raise WeightsError if `tokenizer.json` in `folder` has ids from `rows` on."""
  size = tokenizer_size(folder)
  if size is not None and size > rows:
    raise WeightsError(
      f'{folder / TOKENIZER} has ids up to {size - 1}, but {where} has {rows} rows. Fetch the tokenizer of this model, '
      'or add rows with `model.resize_token_embeddings(len(tokenizer))` and save both'
    )


def tokenizer_size(folder: Path) -> int | None:
  """Return the largest id in `tokenizer.json` plus one; None without the file."""
  if not files.is_file(folder / TOKENIZER):
    return None
  return max(_ids(folder).values(), default=-1) + 1


def _ids(folder: Path) -> dict[str, int]:
  try:
    return specs.token_ids(read_json(folder / TOKENIZER))
  except ValueError as error:
    raise WeightsError(f'{folder / TOKENIZER} {error}; fetch it again') from error


def token_ids(folder: Path) -> dict[str, int]:
  """Read role ('pad') -> id from our `vocab.json`; {} for other folders."""
  roles = _facts(folder).get('roles', {})
  ids = _ids(folder) if roles else {}
  return {role: ids[token] for role, token in roles.items()}


def copy_tokenizer(
  source: Path, target: Path, *, template: Template | None = None, types: bool = False, longest: int | None = None
) -> list[str]:
  """Copy the files of a tokenizer of any kind; return their names.

  The `vocab.json` of a vocabulary folder of this package, with the role of each special token, becomes
  `tokenizer_config.json` in the copy. A published tokenizer gets a `tokenizer.json` that can be read without
  config.json.

  Args:
    source: a folder with a tokenizer.
    target: created if there is something to copy.
    template: special tokens around a text, if a vocabulary folder of this package does not specify them.
    types: whether the model reads token types.
    longest: maximum positions of the model, at which a tokenizer of this package truncates; None without a position
      table.
  """
  facts = _facts(source)
  copied = [name for name in TOKENIZER_FILES if files.is_file(source / name) and not (facts and name == _FACTS)]
  if copied:
    files.make_folder(target)
  for name in copied:
    files.copy(source / name, target / name)
  if not facts and published.find(source):
    with stage('tokenizer'):
      spec = published.read_folder(source).spec
      if TOKENIZER not in copied or spec != published.as_saved(source / TOKENIZER):
        files.write_text(target / TOKENIZER, json.dumps(spec, ensure_ascii=False))
        copied = [*dict.fromkeys([*copied, TOKENIZER])]
  if facts and _ROLES not in copied:
    _write_own_tokenizer(read_json(source / TOKENIZER), facts, target, template=template, types=types, longest=longest)
    copied.append(_ROLES)
  return copied


def _write_own_tokenizer(
  spec: dict[str, Any],
  facts: Mapping[str, Any],
  target: Path,
  *,
  template: Template | None,
  types: bool,
  longest: int | None,
) -> None:
  """Write a vocabulary of this package as a tokenizer of transformers."""
  spaced = facts.get('spaced', False)
  if template is not None and not spec.get('post_processor'):
    spec, spaced = specs.with_template(spec, template.single, template.pair), template.spaced
  files.write_text(target / TOKENIZER, json.dumps(specs.spaced(spec) if spaced else spec, ensure_ascii=False))
  names = ['input_ids', *(['token_type_ids'] if types and specs.typed(spec) else []), 'attention_mask']
  roles = {f'{role}_token': token for role, token in facts['roles'].items()}
  settings = {'tokenizer_class': 'PreTrainedTokenizerFast', 'clean_up_tokenization_spaces': False, **roles}
  cut = {} if longest is None else {'model_max_length': longest}
  files.write_json(target / _ROLES, {**settings, **cut, 'model_input_names': names})


def _facts(folder: Path) -> dict[str, Any]:
  """Read our `vocab.json`; empty for GPT-2's list of tokens."""
  is_ours = files.is_file(folder / _FACTS) and files.is_file(folder / TOKENIZER)
  facts = read_json(folder / _FACTS) if is_ours else {}
  return facts if isinstance(facts.get('roles'), dict) else {}


def read_json(file: Path) -> dict[str, Any]:
  """Read the JSON object in a file, or raise WeightsError."""
  if not files.is_file(file):
    raise WeightsError(f'{file} is missing: fetch it')
  content = model_folders.read(file)
  if not isinstance(content, dict):
    raise WeightsError(f'{file} is no JSON object: fetch it again')
  return content
