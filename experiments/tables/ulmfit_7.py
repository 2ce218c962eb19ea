"""ULMFiT, Table 7: how the classifier is fine-tuned (Howard and Ruder 2018, §5).

plm-jax tables experiments/tables/ulmfit_7.py --scale=small --workdir=runs/tables --data=../shared/data

Small: as ulmfit_4.py, with which it shares the first two stages.
"""

from experiments.tables.shared import claims, scales, ulmfit

ROWS = {  # word of the config: name, errors
  'scratch': ('from scratch', (9.93, 13.36, 6.81)),
  'full': ('full', (6.87, 6.86, 5.81)),
  'full_discr': ('full + discr', (5.57, 6.21, 5.62)),
  'last': ('last', (6.49, 16.09, 8.38)),
  'freez': ('freez', (6.37, 6.86, 5.81)),
  'freez_discr': ('freez + discr', (5.39, 5.86, 6.04)),
  'freez_stlr': ('freez + stlr', (5.04, 6.02, 5.35)),
  'freez_cos': ('freez + cos', (5.70, 6.38, 5.29)),
  'ulmfit': ('freez + discr + stlr', (5.00, 5.69, 5.38)),
  'thaw': ('chain-thaw', (5.39, 6.71, 5.90)),
}


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for word, (name, published) in ROWS.items():
    rows[name] = scales.staged(scale, 'ulmfit/pretrain.py')
    rows[name] |= dict(family=word, published=claims.by_column(ulmfit.COLUMNS, published))
  rows['from scratch'] |= dict(direct=True, start='scratch')
  best = ROWS['ulmfit'][0]
  columns = ulmfit.columns(scale, *ROWS)
  claim_list = []
  for column in claims.measured(columns):
    numbers = {name: errors[ulmfit.COLUMNS.index(column)] for name, errors in ROWS.values()}
    worse = [name for name, error in numbers.items() if error > numbers[best]]  # on AG two schedules are better
    claim_list += claims.claims([column], *((best, name) for name in worse))
  return dict(
    title='ULMFiT, Table 7: how the classifier is fine-tuned',
    paper='Howard and Ruder 2018, §5; validation error rates in per cent',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claim_list,
    tuning_seeds=dict(tiny=1, small=3, paper=1)[scale],
    reference='full',
  )
