"""Commands that train a vocabulary, from the heads (docstrings) of configs and from the data that a config reads."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plm_jax.config import signatures
from plm_jax.io import files

# Kinds that `plm-jax vocab train` trains; the other kinds are only published.
TRAINED = ('wordpiece', 'byte_bpe', 'sentencepiece', 'words')
_COMMAND = 'plm-jax vocab train'
_OF_ALL = ('source', 'text', 'name', 'size', 'out')
_SIZE = 6000  # without a head


def in_header(header: str, path: Any) -> str | None:
  """Find the `plm-jax vocab train` flags for `path` in a docstring."""
  for flags in re.findall(r'plm-jax vocab train(.*?)(?=\n\s*\n|\nplm-jax|\Z)', header.replace('\\\n', ' '), re.DOTALL):
    out = re.search(r'--out=(\S+)', flags)
    if out and out[1] == str(path):
      return flags
  return None


def header_of(target: str) -> str:
  """Read the docstring of a config file; '' for run configs."""
  file = files.path(target.partition('.py:')[0] + '.py' if '.py:' in target else target)
  if file.suffix != '.py' or not files.is_file(file):
    return ''
  return ast.get_docstring(ast.parse(files.read_text(file))) or ''


def fix(
  path: Any,
  *,
  kind: str | None = None,
  data: Mapping[str, Any] | None = None,
  pretrains: bool = False,
  heads: Sequence[str] = (),
) -> str:
  """Describe how to get the vocabulary that is missing in `path`.

  A head of an experiment that names the path has the command, with its kind and size. A pre-training on another text
  uses its flags, with its own text.

  Args:
    path: `vocab.path` of a config.
    kind: the required kind, a name in `text/`; None accepts every kind.
    data: the data block of the config; None without a config.
    pretrains: whether the config trains on its own text, and not on examples of a task.
    heads: config files whose heads are read before those of the experiments.
  """
  block = _with_path(data or {})
  source, field = block.get('path') or 'TEXT', block.get('text')
  if kind is not None and kind not in TRAINED:
    return 'This kind comes with published weights: name such a folder'
  if match := _found(path, heads):
    config_file, flags = match
    if kind not in (None, flags['name']):  # other flags belong to a kind
      flags = {name: value for name, value in flags.items() if name in _OF_ALL} | {'name': kind}
    if not (pretrains and 'text' in block) or flags['source'] == source:
      return f'Train it as in {config_file}:\n  {_spelt(flags)}'
    flags = {'source': source, 'text': field} | {name: flags[name] for name in flags if name not in ('source', 'text')}
    return f'Train it on the text of this config, with the size in {config_file}:\n  {_spelt(flags)}'
  field = field or next((name for name in block.get('fields') or () if name.isidentifier()), None)
  flags = {'source': source, 'text': field, 'name': kind or 'wordpiece', 'size': _SIZE, 'out': path}
  return f'Train one, with a size of your choice:\n  {_spelt(flags)}'


def fix_of(settings: Mapping[str, Any], name: str = 'vocab', *, heads: Sequence[str] = ()) -> str:
  """Describe how to get the vocabulary of block `name` of a run."""
  block = settings[name]
  pretrains = bool(settings.get('objective'))
  return fix(block['path'], kind=block['name'], data=settings.get('data'), pretrains=pretrains, heads=heads)


def _with_path(data: Mapping[str, Any]) -> Mapping[str, Any]:
  """Return a data block, or the first mixture part with a path."""
  parts = data.get('parts') or {}
  return data if data.get('path') or not parts else next((part for part in map(_with_path, parts.values())), data)


def _spelt(flags: Mapping[str, Any]) -> str:
  words = (f'--{name}' if value is True else f'--{name}={value}' for name, value in flags.items() if value is not None)
  return f'{_COMMAND} {shlex.join(words)}'


def _found(path: Any, heads: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
  """Find the config that trains a vocabulary by its path, and flags."""
  root, parts = signatures.ROOT.parent, str(path).split('/')
  experiments = [*signatures.experiment_files(), root / 'experiments' / 'tables' / 'common.py']
  experiments.sort(key=lambda file: file.parent.name not in parts)
  for name in (*heads, *map(str, experiments)):
    if (flags := in_header(header_of(name), path)) is not None:
      return name.removeprefix(f'{root}/'), dict(_flags(shlex.split(flags)))
  return None


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
  """Yield (name, value) of the flags before the first other word."""
  for word in words:
    if not word.startswith('--'):
      return
    name, equals, value = word.removeprefix('--').partition('=')
    yield name, value if equals else True
