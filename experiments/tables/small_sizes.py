"""How many labels does pre-training save? A BERT of 5 M parameters on TREC, with six numbers of labelled texts.

plm-jax tables experiments/tables/small_sizes.py --scale=small --workdir=runs/tables --data=../shared/data

The network is that of experiments/small/pretrain.py:bert, whose head says which text and vocabulary it needs. Every
run takes 200 steps of 32 rows, whatever the number of texts; each draws them by the number of rows alone.
"""

from experiments.tables.shared import downstream

LABELS = (50, 100, 250, 500, 1_000, 5_452)


def get_table(scale):
  """Takes a scale."""
  columns = {
    f'TREC, {count:,} labels': downstream.trec(scale, 'bert', steps=200, data__split=f'train[:{count}shuffled]')
    | dict(along=('labelled questions of TREC', count))
    for count in LABELS
  }
  return downstream.table(scale, 'small/pretrain.py', 'bert', columns) | dict(
    title='A BERT of 5 M parameters by the number of labelled texts', mark='none'
  )
