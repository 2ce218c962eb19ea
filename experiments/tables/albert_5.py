"""ALBERT, Table 5: no second task, next sentences, sentence order (Lan et al. 2019, §4.6).

plm-jax tables experiments/tables/albert_5.py --scale=small --workdir=runs/tables --data=../shared/data

Small: three pre-trainings a row, of rows of 64 tokens: a pair has two segments of 30. Its masked LMs learn nothing from
context. Those of the rungs (--scale=1m) do, after masks of single tokens, with embeddings as wide as the layers; their
columns are those of shared/ladder.py.
"""

from experiments.tables.shared import albert, claims, ladder, scales, tasks
from experiments.tables.shared.scales import SCALES as SCALES

ROWS = {  # accuracy of MLM, NSP and SOP; F1 on SQuAD 1.1 and 2.0, MNLI, SST-2, RACE, average
  'none': (('mlm',), (54.9, 52.4, 53.3, 88.6, 78.1, 81.5, 89.9, 61.7, 79.0)),
  'NSP': (('nsp',), (54.5, 90.5, 52.0, 88.4, 77.2, 81.6, 91.1, 62.3, 79.2)),
  'SOP': ((), (54.0, 78.9, 86.5, 89.3, 80.0, 82.0, 90.3, 64.0, 80.1)),
}
COLUMNS = (*(f'{task} accuracy' for task in ('MLM', 'NSP', 'SOP')), *albert.COLUMNS)
NAMED = ('SQuAD F1', 'SQuAD 2.0', 'RACE', 'average')  # tasks of several sentences, which the text claims


def get_table(scale):
  """Takes a scale."""
  rate, is_rung = scales.masks(scale), scale in scales.RUNGS
  small, note = dict(scales.SIZES, embed_dim=32), scales.masked(scale)
  if is_rung:  # held out, without a second task: 450, with wide embeddings 341, with single tokens as well 151
    small['embed_dim'] = ladder.sizes(scale, 'albert')['hidden_dim']
    rate = dict(objective__where=dict(name='fixed_count', rate=0.4))
    note += ' Single tokens are masked, n-grams in the paper, and embeddings are as wide as the layers.'
  heads = [f'{task} accuracy' for task in ROWS if task != 'none']
  rows = {}
  for name, (words, published) in ROWS.items():
    label = scales.LABEL if is_rung and name != 'none' else {}
    rows[name] = scales.pretraining(scale, 'albert/pretrain.py', *words, small=small, **rate, **label)
    rows[name] |= dict(published=claims.by_column(COLUMNS, published))
    rows[name] |= dict(
      without={head: 'its pre-training has no such head' for head in heads if head != f'{name} accuracy'}
    )
  columns = {'MLM accuracy': dict(metric='validation/accuracy', of='pretraining', times=100)}
  for head in heads:
    metric = f'validation/{head.replace(" ", "_").lower()}'
    columns[head] = dict(metric=metric, of='pretraining', times=100)
  columns |= ladder.columns(scale, *albert.COLUMNS)
  return dict(
    title='ALBERT, Table 5: sentence order against next sentences',
    paper='Lan et al. 2019, §4.6; base, 125,000 steps of 4,096 rows',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'albert', rows),
    claims=claims.claimed(
      columns, rows, ('SOP', 'none', NAMED), ('SOP', 'NSP', NAMED), asked=ladder.asked(scale, 'SST-2')
    ),
    **scales.seeds(scale, small=1) | dict(pretraining_seeds=3 if scale in ('small', '1m') else 1),
    summary=dict(tiny='mean', small='mean', paper='median').get(scale, 'best point on dev'),
    reference='none',
    note=note + scales.labelled(scale),
  )
