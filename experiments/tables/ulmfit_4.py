"""ULMFiT, Tables 4 to 6: pre-training, its language model, and how that is fine-tuned (Howard and Ruder 2018, §5).

plm-jax tables experiments/tables/ulmfit_4.py --scale=small --workdir=runs/tables --data=../shared/data

Small: the size `small` of experiments/ulmfit/, layers of 256, 256 and 128 that read 4,000 steps of 32 rows of 70.
"""

from experiments import common as sizes
from experiments.tables.shared import claims, scales, ulmfit

PLAIN = dict(name='adam', rate=4e-3, schedule='constant', b1=0.8, b2=0.99, decay=1e-7, clip=0.3)
SILENT = {'model.overrides.dropout': 0.0}  # "vanilla": the same layers without any dropout
ROWS = {  # changes of the pre-training, other fields of the row, changes of the second stage; errors
  'all of it (4, 5, 6)': ({}, {}, {}, (5.00, 5.69, 5.38)),
  'without pre-training (4)': ({}, dict(between_start='scratch', mark='C'), {}, (5.63, 10.67, 5.52)),
  'vanilla language model (5)': (SILENT, dict(tuning=SILENT), SILENT, (5.98, 7.41, 5.76)),
  'no fine-tuned language model (6)': ({}, dict(direct=True), {}, (6.99, 6.38, 6.09)),
  'full (6)': ({}, {}, {'optim': PLAIN}, (5.86, 6.54, 5.61)),
  'full + discr (6)': ({}, {}, {'optim': dict(PLAIN, scale=sizes.awd_groups(2.6))}, (5.55, 6.36, 5.47)),
  'rates of the released code': ({}, {}, {'optim.scale': sizes.AWD_RELEASED}, ()),  # of the second stage
}


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (keys, fields, between, published) in ROWS.items():
    row = scales.staged(scale, 'ulmfit/pretrain.py')
    rows[name] = row | dict(
      keys=row['keys'] | keys,
      family='ulmfit',
      between=between,
      published=claims.by_column(ulmfit.COLUMNS, published) if published else {},
      **fields,
    )
  whole, *others, _ = rows
  columns = ulmfit.columns(scale, 'ulmfit')
  return dict(
    title='ULMFiT, Tables 4 to 6: pre-training and the language model',
    paper='Howard and Ruder 2018, §5; validation error rates in per cent',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claims(claims.measured(columns), *((whole, other) for other in others), (others[4], others[3])),
    tuning_seeds=dict(tiny=1, small=3, paper=1)[scale],
    reference=whole,
  )
