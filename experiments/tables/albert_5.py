"""ALBERT, Table 5: no second task, next sentences, sentence order (Lan et al. 2019, §4.6).

plm-jax tables experiments/tables/albert_5.py --scale=small --workdir=runs/tables --data=../shared/data

Small: three pre-trainings a row, of rows of 64 tokens: a pair has two segments of 30.
"""

from experiments.tables.shared import albert, claims, scales, tasks

ROWS = {  # accuracy of MLM, NSP and SOP; F1 on SQuAD 1.1 and 2.0, MNLI, SST-2, RACE, average
  'none': (('mlm',), (54.9, 52.4, 53.3, 88.6, 78.1, 81.5, 89.9, 61.7, 79.0)),
  'NSP': (('nsp',), (54.5, 90.5, 52.0, 88.4, 77.2, 81.6, 91.1, 62.3, 79.2)),
  'SOP': ((), (54.0, 78.9, 86.5, 89.3, 80.0, 82.0, 90.3, 64.0, 80.1)),
}
COLUMNS = (*(f'{task} accuracy' for task in ('MLM', 'NSP', 'SOP')), *albert.COLUMNS)
NAMED = ('SQuAD F1', 'SQuAD 2.0', 'RACE', 'average')  # tasks of several sentences, which the text claims


def get_table(scale):
  """Takes a scale."""
  rate = scales.masks(scale)
  small = dict(scales.SIZES, embed_dim=32)
  heads = [f'{task} accuracy' for task in ROWS if task != 'none']
  rows = {
    name: scales.pretraining(scale, 'albert/pretrain.py', *words, small=small, **rate)
    | dict(published=claims.by_column(COLUMNS, published))
    | dict(without={head: 'its pre-training has no such head' for head in heads if head != f'{name} accuracy'})
    for name, (words, published) in ROWS.items()
  }
  columns = {'MLM accuracy': dict(metric='validation/accuracy', of='pretraining', times=100)}
  for head in heads:
    metric = f'validation/{head.replace(" ", "_").lower()}'
    columns[head] = dict(metric=metric, of='pretraining', times=100)
  columns |= tasks.columns(scale, *albert.COLUMNS)
  return dict(
    title='ALBERT, Table 5: sentence order against next sentences',
    paper='Lan et al. 2019, §4.6; base, 125,000 steps of 4,096 rows',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'albert', rows),
    claims=claims.claimed(columns, rows, ('SOP', 'none', NAMED), ('SOP', 'NSP', NAMED), asked=('SST-2',)),
    pretraining_seeds=3 if scale == 'small' else 1,
    tuning_seeds=dict(tiny=1, small=1, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='none',
    note=scales.masked(scale),
  )
