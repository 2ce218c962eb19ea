"""By which command a vocabulary is made: the heads of configs name it, and what a config reads says the rest."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plm_jax.config import signatures
from plm_jax.io import files

# What `plm-jax vocab train` makes; of the other kinds there are only published ones.
TRAINED = ('wordpiece', 'byte_bpe', 'sentencepiece', 'words')
_COMMAND = 'plm-jax vocab train'
_OF_ALL = ('source', 'text', 'name', 'size', 'out')
_SIZE = 6000  # where no head names one


def in_header(header: str, path: Any) -> str | None:
  """The flags behind `plm-jax vocab train` in a config's docstring that make the vocabulary in `path`."""
  for made in re.findall(r'plm-jax vocab train(.*?)(?:\n\s*\n|\nplm-jax|\Z)', header.replace('\\\n', ' '), re.DOTALL):
    out = re.search(r'--out=(\S+)', made)
    if out and out[1] == str(path):
      return made
  return None


def header_of(target: str) -> str:
  """The docstring of the file that `--config` names; empty for the config of a run."""
  file = files.path(target.partition('.py:')[0] + '.py' if '.py:' in target else target)
  if file.suffix != '.py' or not files.is_file(file):
    return ''
  return ast.get_docstring(ast.parse(files.read_text(file))) or ''


def cure(
  path: Any,
  *,
  kind: str | None = None,
  data: Mapping[str, Any] | None = None,
  pretrains: bool = False,
  heads: Sequence[str] = (),
) -> str:
  """What a user can do where `path` holds no vocabulary.

  A head of an experiment that names the path has the command, with its kind and size. A pre-training on another text
  than that takes its flags, and its own text.

  Args:
    path: as `vocab.path` of a config says.
    kind: what it has to be, a name in `text/`; None takes every kind.
    data: the data block of the config; None where there is no config.
    pretrains: whether the config trains on text of its own, and not on rows of a task.
    heads: files, as a user names them, whose heads are read before those of the experiments.
  """
  block = _with_path(data or {})
  source, field = block.get('path') or 'TEXT', block.get('text')
  if kind is not None and kind not in TRAINED:
    return 'Those of this kind come with published weights: name such a folder'
  if found := _found(path, heads):
    place, flags = found
    if kind not in (None, flags['name']):  # other flags are those of a kind
      flags = {name: value for name, value in flags.items() if name in _OF_ALL} | {'name': kind}
    if not (pretrains and 'text' in block) or flags['source'] == source:
      return f'The head of {place} says how it is made:\n  {_spelt(flags)}'
    flags = {'source': source, 'text': field} | {name: flags[name] for name in flags if name not in ('source', 'text')}
    return f'The text of this config makes one of the size that the head of {place} names:\n  {_spelt(flags)}'
  field = field or next((name for name in block.get('fields') or () if name.isidentifier()), None)
  flags = {'source': source, 'text': field, 'name': kind or 'wordpiece', 'size': _SIZE, 'out': path}
  return f'This makes one, of a size to choose:\n  {_spelt(flags)}'


def cure_of(settings: Mapping[str, Any], name: str = 'vocab', *, heads: Sequence[str] = ()) -> str:
  """As `cure`, of the vocabulary that a block of the settings of a run names, 'vocab' or 'second_vocab'."""
  block = settings[name]
  pretrains = bool(settings.get('objective'))
  return cure(block['path'], kind=block['name'], data=settings.get('data'), pretrains=pretrains, heads=heads)


def _with_path(data: Mapping[str, Any]) -> Mapping[str, Any]:
  """A data block, or the first part of a mixture that reads a path."""
  parts = data.get('parts') or {}
  return data if data.get('path') or not parts else next((part for part in map(_with_path, parts.values())), data)


def _spelt(flags: Mapping[str, Any]) -> str:
  words = (f'--{name}' if value is True else f'--{name}={value}' for name, value in flags.items() if value is not None)
  return f'{_COMMAND} {shlex.join(words)}'


def _found(path: Any, heads: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
  """The file whose head says how a vocabulary is made, and its flags with their values.

  Of several experiments it is one whose folder the path names, 'runs/quickstart/vocab', else the first.
  """
  root, parts = signatures.ROOT.parent, str(path).split('/')
  experiments = [*signatures.experiment_files(), root / 'experiments' / 'tables' / 'common.py']
  experiments.sort(key=lambda file: file.parent.name not in parts)
  for name in (*heads, *map(str, experiments)):
    if (made := in_header(header_of(name), path)) is not None:
      return name.removeprefix(f'{root}/'), dict(_flags(shlex.split(made)))
  return None


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
  """(name, value) of flags up to the first word that is none: behind a command may stand a sentence."""
  for word in words:
    if not word.startswith('--'):
      return
    name, equals, value = word.removeprefix('--').partition('=')
    yield name, value if equals else True
