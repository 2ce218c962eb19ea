"""Columns of ULMFiT's tables."""

from typing import Any

from experiments import common
from experiments.tables.shared import scales, tasks

COLUMNS = ('IMDb', 'TREC-6', 'AG')  # the columns of its tables
LABELS = {  # numbers of labelled texts, by task
  'paper': {
    'IMDb': (100, 500, 1_000, 5_000, 20_000),
    'TREC-6': (100, 500, 1_000, 4_000),
    'AG': (100, 500, 1_000, 5_000, 20_000, 100_000),
  },
  'small': {'IMDb': (100, 500, 1_500), 'TREC-6': (100, 500, 4_000)},
  'tiny': {'IMDb': (100,), 'TREC-6': (100,)},
}

# errors of a bag of words by the number of labelled texts, 0 for all; reviews are cut at 105 words
BAGS = {'IMDb': {100: 36.0, 500: 26.0, 1_500: 19.9}, 'TREC-6': {100: 38.9, 500: 24.3, 4_000: 11.4, 0: 9.2}}


def columns(scale: str, *rows: str, labels: int | None = None) -> dict[str, dict[str, Any]]:
  """Return the columns of ULMFiT: error rates of classifiers by task.

  Args:
    scale: of the table.
    *rows: words of experiments/ulmfit/classify.py, which are families of the table's rows.
    labels: number of labelled texts, drawn; None for nine tenths of them all, in small for 500 of IMDb's.

  Returns:
    The columns; those that report the test set in place of the paper's validation rows have a note that says so.
  """
  columns = {}
  sets = {'IMDb': ('imdb', 'imdb_reviews'), 'TREC-6': ('trec', 'trec')}
  sets |= {'AG': ('ag', '')} if scale == 'paper' else {}
  for task, (word, folder) in sets.items():
    dropout = {'model.overrides.dropout': 1.0}
    rates = {f'model.overrides.{name}': rate for name, rate in common.AWD_DROPOUT.items()}
    keys, between = scales.on_a_laptop(scale) | dropout | rates, scales.on_a_laptop(scale) | dropout
    if scale == 'small' or (labels and scale == 'paper'):  # a tenth of little is too little to score
      keys |= {'eval': {'test': dict(data=dict(split='test'))}, 'best': None}
    is_long = task == 'IMDb' and scale == 'small'  # a review has 200 tokens, a question 12
    drawn = labels or (500 if is_long else None)
    if drawn and scale != 'tiny':
      keys |= {'data.split': f'train[:{drawn}shuffled]', 'data.batch_size': 16 if is_long else 32}
      keys |= {'epochs': 50} if scale == 'paper' else {'epochs': None, 'steps': 300}
    if labels and scale != 'tiny':
      between |= {'data.split': keys['data.split'], 'data.batch_size': 8}
    cut = ''
    if is_long:
      keys |= {'data.length': 140, 'data.buckets': (70,)}
      between |= {'epochs': 3}
      cut = f'of {"" if labels else "500 "}reviews cut at 140 tokens, which the language model reads three times; '
    elif scale == 'small':
      keys |= {'adapter.norms': True}  # its runs have a LayerNorm where the paper has a batch norm
      cut = 'with a LayerNorm in the place of each batch norm; '
    columns[task] = dict(
      metric='test/accuracy' if 'eval' in keys else 'validation/accuracy',
      better='min',
      configs={row: scales.target(scale, 'ulmfit/classify.py', word, row) for row in rows},
      keys=keys,
      between=dict.fromkeys(rows, scales.target(scale, 'ulmfit/fine_tune.py', word)),
      between_keys=between,
      folder='' if scale == 'tiny' else folder,
      times=-100,
      plus=100,
    )
    if scale == 'small':
      bag = BAGS[task].get(labels or (500 if is_long else 0))
      columns[task]['trivial'] = {'most frequent class': 49.8 if is_long else 81.2, 'bag of words': bag}
    if 'eval' in keys:
      columns[task]['note'] = (
        f'{cut}errors of the test set, where the paper has those of rows held out of the training set'
      )
  return columns if scale == 'paper' else columns | {'AG': dict(empty=tasks.NOT_AMONG)}
