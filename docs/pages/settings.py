"""Pages of the keys of a config and of the plug-in files, read from source as `plm-jax train --list` reads them."""

import ast
from collections.abc import Iterator
from typing import Any

from pages import markdown
from plm_jax.config import listing, signatures, taxonomy
from plm_jax.config.signatures import Keyword, Missing
from plm_jax.io import files

# The blocks of a config that are classes or functions: title -> kind, and an introduction.
BLOCKS = {
  'Top level': (
    'config.schema:Run',
    'A block with a `name` takes the keywords of that plug-in: [all plug-ins](plugins/index.md).',
  ),
  'sharding': ('config.schema:Sharding', ''),
  'execution': ('core.types:Execution', ''),
  'optim': (
    'optim.optimiser:make',
    'The keywords of the [rule](plugins/rules.md) and the [schedule](plugins/schedules.md) that it names are keys too.',
  ),
  'eval.NAME': ('config.schema:Evaluation', ''),
  'init_from': ('checkpoint.init_from:Entry', 'A sequence of entries. Later ones overwrite earlier ones.'),
  'spikes': ('config.schema:Spikes', ''),
}
GIVEN = ('params', 'steps', 'trains')  # keywords of the optimiser that the run gives
# The kinds of plug-ins: page -> (title, kind, the blocks that name them).
KINDS = {
  'models': ('Models', 'models', '`model`'),
  'objectives': ('Objectives', 'objectives', '`objective`'),
  'adapters': ('Adapters', 'adapters', '`adapter`'),
  'data': ('Data sources', 'data', '`data` and `eval.NAME.data`'),
  'kinds': ('Kinds of labelled examples', 'data.rows.kinds', '`data.kind`'),
  'layouts': ('Layouts of labelled examples', 'data.rows.layouts', '`data.layout`'),
  'forms': ('Forms of examples as text', 'data.rows.forms', '`data.form`'),
  'sentences': ('Ends of sentences', 'data.rows.sentences', '`data.sentences`'),
  'formats': ('File formats', 'data.corpora.formats', 'the suffix of a file, or a prefix such as `tfds:`'),
  'vocabularies': ('Vocabularies', 'text', '`vocab`'),
  'scores': ('Scores', 'scores', '`eval.NAME.scores`'),
  'where': ('Noise: where', 'noise.where', '`objective.where`'),
  'edit': ('Noise: edit', 'noise.edit', '`objective.edit`'),
  'rearrange': ('Noise: rearrange', 'noise.rearrange', '`objective.rearrange`'),
  'rules': ('Update rules', 'optim.rules', '`optim.name`'),
  'schedules': ('Schedules', 'optim.schedules', '`optim.schedule`'),
}
RUN_GIVES = ('trunk', 'vocab', 'second_vocab', 'vocab_size', 'execution', 'characters', 'seed', 'host', 'hosts')
FACTS = {
  'READS': 'reads',
  'GIVES': 'gives',
  'METRICS': 'metrics',
  'RECORDS': 'needs of each example',
  'NEEDS': 'packages',
  'ADDS': 'adds',
}


def pages() -> dict[str, str]:
  """Return the page of the keys, one page a kind of plug-ins, and their index."""
  made = {f'reference/plugins/{page}.md': _kind_page(*about) for page, about in KINDS.items()}
  rows = [
    (f'[{title}]({page}.md)', where, str(len(signatures.places(kind)))) for page, (title, kind, where) in KINDS.items()
  ]
  index = [
    '# Plug-ins',
    'A block of a config names a file or a function by `name`; its other keys are the keywords below. '
    'These pages are read from the source, with the bounds and defaults that a config is checked against.',
    markdown.table(('kind', 'named by', 'how many'), rows),
    ':::{toctree}\n:hidden:\n\n' + '\n'.join(KINDS) + '\n:::',
  ]
  made |= {'reference/plugins/index.md': '\n\n'.join(index) + '\n', 'reference/config.md': _keys()}
  return {**made, 'reference/taxonomy.md': _taxonomy()}


def _taxonomy() -> str:
  parts = [
    '# Taxonomy',
    'Where each model, objective and adapter is in the survey of Qiu et al. 2020, section 3. Rows are read from the '
    '`PAPER` of each file; `plm-jax params --taxonomy` prints them.',
  ]
  for kind in taxonomy.KINDS:
    rows = [row for row in taxonomy.rows() if row['kind'] == kind]
    columns = [name for name in taxonomy.COLUMNS[1:] if any(row[name] for row in rows)]
    parts.append(f'## {kind.capitalize()}')
    parts.append(markdown.table(columns, [[_cell(row[name]) for name in columns] for row in rows]))
  reasons = [f'{markdown.escape(part)}\n: {markdown.escape(why)}' for part, why in taxonomy.NOT_HERE.items()]
  return '\n\n'.join([*parts, '## Not here', *reasons]) + '\n'


def _cell(found: Any) -> str:
  return markdown.escape(', '.join(found) if isinstance(found, list) else str(found or ''))


def _keys() -> str:
  parts = [
    '# Keys of a config',
    'Every key with its type, its bound and its default. `--config.KEY=VALUE` changes one on the command line; '
    '`--print_config` prints all of a run. A wrong key is rejected with the nearest right one.',
  ]
  for title, (kind, intro) in BLOCKS.items():
    module, _, name = kind.partition(':')
    docstring = _docstring(module, name)
    known = {key: one for key, one in signatures.keywords(module, name).items() if key not in GIVEN or name != 'make'}
    parts += [f'## {title}', intro or markdown.prose(markdown.summary(docstring))]
    links = _links('plugins/') | {
      other: f'[{title}](#{title.lower().replace(".", "")})' for title, (other, _) in BLOCKS.items()
    }
    parts += [markdown.keywords(known, markdown.sections(docstring), links)]
  return '\n\n'.join(parts) + '\n'


def _kind_page(title: str, kind: str, where: str) -> str:
  functions = signatures.names_functions(kind)
  parts = [f'# {title}', f'Named by {where}.']
  for name, module in signatures.places(kind).items():
    parts += [f'## {name}', *_plugin(module, name if functions else None)]
  return '\n\n'.join(part for part in parts if part) + '\n'


def _plugin(module: str, function: str | None) -> Iterator[str]:
  docstring = _docstring(module, function)
  yield markdown.prose(markdown.summary(docstring))
  facts = dict(_facts(module)) if function is None else {}
  if facts:
    yield '\n'.join(f'- {name}: {text}' for name, text in facts.items())
  entry = function or _entry(module)
  if entry is None:
    return
  known = {key: one for key, one in signatures.keywords(module, entry).items() if not _is_given(key, one)}
  told = markdown.sections(docstring if function else _docstring(module, entry))
  if known:
    yield markdown.keywords(known, told, _links(''))
  if module.startswith('models.') and signatures.has(module, 'Config'):
    fields = {f'overrides.{key}': one for key, one in signatures.keywords(module, 'Config').items()}
    about = markdown.sections(_docstring(module, 'Config')) | markdown.comments(_source(module), 'Config')
    yield markdown.keywords(fields, {f'overrides.{key}': text for key, text in about.items()}, _links(''))


def _links(folder: str) -> dict[str, str]:
  """Kind -> a link to its page, from a page beside `folder`."""
  return {kind: f'[{title.lower()}]({folder}{page}.md)' for page, (title, kind, _) in KINDS.items()}


def _entry(module: str) -> str | None:
  return next((name for name in ('make', 'score') if signatures.has(module, name)), None)


def _is_given(key: str, one: Keyword) -> bool:
  return key in RUN_GIVES and one.default in (Missing.REQUIRED, None, Missing.COMPUTED)


def _facts(module: str) -> Iterator[tuple[str, str]]:
  paper = signatures.paper(module)
  if paper.get('title'):
    yield 'paper', markdown.escape(f'{paper["title"]} ({paper["year"]})' if 'year' in paper else str(paper['title']))
  if variants := signatures.table(module, 'CONFIGS'):
    yield 'variants', ', '.join(f'`{name}`' for name in variants)
  for name, label in FACTS.items():
    found = _literal(module, name)
    if isinstance(found, tuple | str) and found:
      yield label, ', '.join(f'`{one}`' for one in ([found] if isinstance(found, str) else found))


def _literal(module: str, name: str) -> Any:
  try:
    return signatures.literal(module, name)
  except ValueError:
    return None


def _source(module: str) -> str:
  return files.read_text(signatures.ROOT.joinpath(*module.split('.')).with_suffix('.py'))


def _docstring(module: str, name: str | None = None) -> str:
  tree = ast.parse(_source(module))
  nodes = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name]
  return ast.get_docstring(nodes[0] if nodes else tree) or '' if nodes or name is None else ''


def noise_kinds() -> list[str]:
  """Return the kinds of noise functions, for the test that no kind is missing here."""
  return listing.noise_kinds()
