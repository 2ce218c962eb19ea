"""Classification of each model, objective and adapter by the four dimensions of Qiu et al. 2020, section 3.

A row is read from the `PAPER` of a file. Its dimensions are the representation (does a word's vector depend on its
context?), the architecture, the pre-training task with the source of its labels, and the extension. `NOT_HERE` lists
the parts of the survey without a file.
"""

from typing import Any

from plm_jax.config import signatures

KINDS = ('models', 'objectives', 'adapters')
COLUMNS = (
  'kind', 'name', 'representation', 'architecture', 'task', 'supervision', 'extension', 'transfer', 'task network',
  'adapters', 'year', 'paper',
)  # fmt: skip
# transfer of a model -> what a task adds to it
TASK_NETWORKS = {'features': 'task-specific', 'fine-tuning': 'one layer', 'joint': 'heads of each view'}
# part of the survey -> why it is not here
NOT_HERE = {
  'knowledge-enriched models (ERNIE, KnowBERT, K-BERT)': 'out of scope: they read entities and knowledge graphs',
  'multi-modal models (VideoBERT, ViLBERT, LXMERT)': 'out of scope: rows hold text alone, no images, video or speech',
  'encoders over parse trees and other graphs (Tree-LSTM, graph convolutions)': (
    'out of scope: rows hold no graphs; a Transformer is the case in which each word is linked with every other'
  ),
  'multilingual models': (
    'no file of their own: mT5, ByT5, mBART and XLM-R are sizes or releases of t5, bart and bert; the translation '
    'language model of XLM is not here'
  ),
  'domain-specific and language-specific models': (
    'no file of their own: they are other text, on which a config pre-trains a model that `init_from` or `model.from` '
    'names'
  ),
  'words to be put in order again beside masks (StructBERT)': (
    'not here; sentences and whole texts are, by the noise `permute_sentences` and `deshuffle`'
  ),
  'compression by replacing modules (BERT-of-Theseus)': 'not here; the other four ways of the survey are',
}


def rows() -> list[dict[str, Any]]:
  """Return one row per file, with keys `COLUMNS`, by kind and year."""
  found = [_row(kind, name) for kind in KINDS for name in signatures.names(kind)]
  return sorted(found, key=lambda row: (KINDS.index(row['kind']), row['year'], row['name']))


def _row(kind: str, name: str) -> dict[str, Any]:
  fields = {field: keyword.default for field, keyword in signatures.keywords('core.types', 'Paper').items()}
  paper = fields | signatures.paper(f'{kind}.{name}')
  representation = {'static': 'non-contextual', 'any': 'any'}.get(paper['architecture'], 'contextual')
  return {
    'kind': kind,
    'name': name,
    'representation': representation,
    'architecture': paper['architecture'],
    'task': paper['objective_family'],
    'supervision': paper['supervision'],
    'extension': paper['extension'],
    'transfer': paper['transfer'] if kind == 'models' else None,
    'task network': TASK_NETWORKS[paper['transfer']] if kind == 'models' else None,
    'adapters': list(paper['adapters']),
    'year': paper['year'],
    'paper': paper['title'],
  }


def cells(row: dict[str, Any]) -> list[str]:
  """Format a row as texts: lists with commas, '' for missing values."""
  return [', '.join(row[one]) if isinstance(row[one], list) else str(row[one] or '') for one in COLUMNS]


def markdown(table: list[dict[str, Any]]) -> str:
  """Format the rows as a Markdown table."""
  lines = [list(COLUMNS), ['---'] * len(COLUMNS), *map(cells, table)]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


def not_here() -> list[str]:
  """Return a line with the reason for each part without a file."""
  return [
    'Of the survey, not here or without a file of their own:',
    '',
    *(f'- {part}: {why}' for part, why in NOT_HERE.items()),
  ]
