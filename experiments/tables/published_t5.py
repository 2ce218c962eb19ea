"""T5, Table 14, from published weights: one task after the other (Raffel et al. 2020, §3.7 and appendix D).

plm-jax tables experiments/tables/published_t5.py --scale=published --weights=DIR --workdir=runs/tables --print
plm-jax tables experiments/tables/published_t5.py:t5-small --scale=published --weights=DIR --workdir=runs/tables

Words after the colon: rows, and `quick`. One seed of 2^18 updates a cell, on an accelerator. GLUE is that of the test
set in the paper, where labels are not public, so that its numbers are not compared with those of development sets here.
Sources: t5-base as the head of t5/tasks.py has it; the numbers of t5-small and t5-large could not be checked.
"""

from experiments import common
from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

ON_TEST = 'the paper has the test set'
# column: task, metric, factor, examples, folder below --data, why it is not compared
COLUMNS = {
  'CoLA': ('cola', 'validation/matthews', 100, 0, 'glue_cola', ON_TEST),
  'SST-2': ('sst2', 'validation/exact_match', 100, 0, 'glue_sst2', ON_TEST),
  'RTE': ('rte', 'validation/exact_match', 100, 0, 'glue_rte', ON_TEST),
  'SQuAD EM': ('squad', 'validation/exact_match', 1, 87_599 + 10_570, 'squad', ''),
  'CNN/DM R-2': ('cnn_dailymail', 'test/rouge2', 1, 287_113 + 11_490, '', ''),
  'WMT en-de': ('wmt_en_de', 'test/bleu_intl', 1, 0, '', ''),
}
PAPER = {
  't5-small': (41.0, 91.8, 69.9, 79.10, 19.56, 26.7),
  't5-base': (51.1, 95.2, 80.1, 85.44, 20.34, 30.9),
  't5-large': (61.2, 96.3, 87.2, 86.66, 20.68, 32.0),
}


def get_table(scale, arg=''):
  """Takes the scale; `arg` rows and `quick`."""
  columns = {
    name: published.column(
      metric, ['t5/tasks.py:{}'], arg, task=task, times=times, whole=whole, folder=folder, unlike=unlike
    )
    for name, (task, metric, times, whole, folder, unlike) in COLUMNS.items()
  }
  rows = {
    name: dict(mark='C' if name == 't5-base' else 'D', published=dict(zip(columns, numbers, strict=True)))
    for name, numbers in PAPER.items()
  }
  return dict(
    title='T5, Table 14, from published weights',
    paper='Raffel et al. 2020, Table 14, fine-tuned on one task',
    mark='C',
    rows=published.rows(rows, arg, family='t5/tasks.py:{}'),
    columns=columns,
    tuning_seeds=1 if 'quick' in common.words(arg) else 3,
  )
