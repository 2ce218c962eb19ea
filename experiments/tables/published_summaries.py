"""BART's summaries without training, from published weights: CNN/DailyMail and XSum (Lewis et al. 2019, Table 3).

plm-jax tables experiments/tables/published_summaries.py --scale=published --weights=DIR --workdir=runs/tables --print

Words after the colon: rows, and `quick`. Summaries of 11,490 and 11,334 articles by beam search, on an accelerator.
Sources: the model cards (verified results of the evaluator of Hugging Face, by rouge-score, with the search of the
folder). The paper has 44.16, 21.28, 40.90 and 45.14, 22.27, 37.25, by files2rouge over Stanford's tokens; `beams` of
bart/summarise.py are those of the folders.
"""

from experiments import common
from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

SETS = {'CNN/DM': ('cnn_dailymail', 11_490), 'XSum': ('xsum', 11_334)}
METRICS = {'R-1': 'rouge1', 'R-2': 'rouge2', 'R-Lsum': 'rougeLsum'}
CARDS = {'bart-large-cnn': ('CNN/DM', (44.06, 21.07, 41.00)), 'bart-large-xsum': ('XSum', (45.45, 22.35, 37.23))}


def get_table(scale, arg=''):
  """Takes the scale; `arg` rows and `quick`."""
  columns, rows = {}, {}
  for name, (word, whole) in SETS.items():
    for short, metric in METRICS.items():
      keys = (
        {} if 'quick' in common.words(arg) else {'eval': {'test': dict(data=dict(split='test'), scores=('rouge',))}}
      )
      columns[f'{name} {short}'] = published.column(
        f'test/{metric}', ['bart/summarise.py:{}'], arg, task=word, of='evaluation', keys={**keys, 'best': None},
        whole=whole,
      )  # fmt: skip
  for name, (written, numbers) in CARDS.items():
    others = [column for column in columns if not column.startswith(written)]
    own = dict(zip([column for column in columns if column.startswith(written)], numbers, strict=True))
    rows[name] = dict(published=own, without=dict.fromkeys(others, 'it was trained for the other set'))
  return dict(
    title='Summaries without training, from published weights',
    paper='Model cards of facebook/bart-large-cnn and facebook/bart-large-xsum; ROUGE F1',
    mark='A',
    rows=published.rows(rows, arg, family='bart/summarise.py:{}'),
    columns=columns,
    tuning_seeds=1,
  )
