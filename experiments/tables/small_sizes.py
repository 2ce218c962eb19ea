"""How many labels does pre-training save? A BERT of 5 M parameters on TREC, with six numbers of labelled texts.

plm-jax tables experiments/tables/small_sizes.py --scale=small --workdir=runs/tables --data=../shared/data

The network is that of experiments/small/pretrain.py:bert, whose head says which text and vocabulary it needs. Every
run takes 200 steps of 32 rows, whatever the number of texts; each draws them by the number of rows alone.
"""

from experiments.tables.shared import downstream

CLASS = 'most frequent class'
LABELS = {50: 48.2, 100: 61.1, 250: 69.5, 500: 75.7, 1_000: 81.4, 5_452: 90.8}  # and accuracy of a bag of words


def get_table(scale):
  """Takes a scale."""
  columns = {
    f'TREC, {count:,} labels': downstream.trec(scale, 'bert', steps=200, data__split=f'train[:{count}shuffled]')
    | dict(along=('labelled questions of TREC', count))
    | ({} if scale == 'tiny' else dict(trivial={CLASS: 18.8, 'bag of words': bag}))
    for count, bag in LABELS.items()
  }
  return downstream.table(scale, 'small/pretrain.py', 'bert', columns) | dict(
    title='A BERT of 5 M parameters by the number of labelled texts', mark='none'
  )
