"""The output of `--list`: every name that a config can use, and every config.

Everything is read from source; nothing is imported.
"""

import ast
import os
from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.config import annotations, blocks, signatures
from plm_jax.io import files

FOLDERS = {
  'Models': 'models',
  'Objectives': 'objectives',
  'Adapters': 'adapters',
  'Data sources': 'data',
  'Vocabularies': 'text',
  'Scores (eval.NAME.scores)': 'scores',
}
WIDTH = 120


def text() -> str:
  """Return the listing, grouped under headings."""
  groups = {title: list(_files(folder)) for title, folder in FOLDERS.items()}
  for kind in noise_kinds():
    places = signatures.places(kind)
    rows = [(name, signatures.first_line(module, name), '') for name, module in places.items()]
    groups[f'Noise: {kind.removeprefix("noise.")}'] = rows
  groups['Configs (--config=...)'] = [
    (os.path.relpath(str(f)), (ast.get_docstring(ast.parse(files.read_text(f))) or '').partition('\n')[0], '')
    for f in signatures.experiment_files()
  ]
  return '\n\n'.join(_group(title, rows) for title, rows in groups.items() if rows)


def noise_kinds() -> list[str]:
  """Return the kinds of noise functions that a block can name, sorted."""
  tasks = [(folder, name) for folder in ('objectives', 'adapters') for name in signatures.names(folder)]
  keywords = [keyword for folder, name in tasks for keyword in signatures.signature(folder, name).values()]
  kinds = {part.inner for keyword in keywords for part in annotations.parts(keyword.annotation)}
  return sorted(kind for kind in kinds if kind.startswith('noise.'))


def _files(folder: str) -> Iterator[tuple[str, str, str]]:
  """Yield name, first line and classification of each file of a folder."""
  for name in signatures.names(folder):
    module = f'{folder}.{name}'
    paper = signatures.paper(module)
    words = [str(paper[key]) for key in ('year', 'architecture', 'objective_family', 'supervision') if key in paper]
    words += [f'adapters: {", ".join(paper["adapters"])}'] if paper.get('adapters') else []
    words += [f'extension: {paper["extension"]}'] if paper.get('extension') else []
    words += [f'variants: {", ".join(variants)}'] if (variants := signatures.table(module, 'CONFIGS')) else []
    yield name, signatures.first_line(module), '; '.join(words)


def _group(title: str, rows: list[tuple[str, str, str]]) -> str:
  width = max(len(name) for name, _, _ in rows)
  lines = [title]
  for name, line, place in rows:
    whole = f'  {name:<{width}}  {line}{f" [{place}]" if place else ""}'
    lines.append(whole if len(whole) <= WIDTH or not place else f'  {name:<{width}}  {line}\n{"":{width + 4}}[{place}]')
  return '\n'.join(lines)


def types(settings: Mapping[str, Any]) -> str:
  """Return every key of a config with type and value (`--print_config=types`)."""
  return '\n'.join(f'{key}: {typed} = {value}' for key, typed, value in _typed(blocks.WHOLE, settings, ''))


def _typed(kind: str, settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
  """Yield (dotted key, type, value as JSON) of a block."""
  for key, keyword in blocks.block(kind, settings, prefix or 'config').known.items():
    if key not in settings:
      continue
    inside: list[tuple[str, str, str]] = []

    def enter(part: annotations.Part, value: Any, label: str, inside: list[tuple[str, str, str]] = inside) -> Any:
      if part.form == 'block':
        inside += _typed(part.inner, value, label)
      return value

    annotations.rebuild(keyword.annotation, settings[key], enter, f'{prefix}.{key}' if prefix else key)
    if inside:
      yield from inside
    else:
      value = files.json_text(settings[key], indent=None).strip()
      yield f'{prefix}.{key}' if prefix else key, annotations.readable(keyword.annotation), value
