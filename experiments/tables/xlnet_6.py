"""XLNet, Table 6: what its parts are worth (Yang et al. 2019, §3.4).

plm-jax tables experiments/tables/xlnet_6.py --scale=small --workdir=runs/tables --data=../shared/data
"""

from experiments.tables.shared import claims, scales, tasks

ROWS = {  # word of the config: name, RACE, SQuAD 2.0 (F1, exact match), MNLI (matched, mismatched), SST-2
  'k7': ('XLNet, K = 7', (66.05, 81.33, 78.46, 85.84, 85.43, 92.66)),
  'k6': ('XLNet, K = 6', (66.66, 80.98, 78.18, 85.63, 85.12, 93.35)),
  'no_memory': ('without memory', (65.55, 80.15, 77.27, 85.32, 85.05, 92.78)),
  'no_ngrams': ('without spans', (65.95, 80.61, 77.91, 85.49, 85.02, 93.12)),
  'unidirectional': ('without reversed rows', (66.34, 80.65, 77.87, 85.31, 84.99, 92.66)),
  'dae': ('DAE + Transformer-XL', (65.03, 79.56, 76.80, 84.88, 84.45, 92.60)),
}
OTHERS = {  # why there is none here, and its numbers
  'BERT base': ("the numbers of BERT's authors", (64.3, 76.30, 73.66, 84.34, 84.65, 92.78)),
  'with next sentences': ('no XLNet here has a second task', (66.76, 79.83, 76.94, 85.32, 85.09, 92.89)),
}  # fmt: skip
COLUMNS = ('RACE', 'SQuAD 2.0', 'SQuAD 2.0 EM', 'MNLI', 'MNLI-mm', 'SST-2')


def get_table(scale):
  """Takes a scale."""
  rows = {
    name: scales.pretraining(scale, 'xlnet/base.py', word)
    | dict(family='xlnet', published=claims.by_column(COLUMNS, published))
    for word, (name, published) in ROWS.items()
  }
  if scale == 'small':  # of so few steps, the warm-up of the paper's 1,000 would be all
    for row in rows.values():
      row['tuning'] = {'optim.warmup': 0.1}
  for name, (why, published) in OTHERS.items():
    rows[name] = dict(empty=why, published=claims.by_column(COLUMNS, published))
  columns = tasks.columns(scale, *COLUMNS)
  return dict(
    title='XLNet, Table 6: what its parts are worth',
    paper='Yang et al. 2019, §3.4; base, Wikipedia and books, medians of five',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claimed(
      columns,
      rows,
      ('XLNet, K = 7', 'DAE + Transformer-XL'),
      ('XLNet, K = 6', 'DAE + Transformer-XL'),
      ('XLNet, K = 6', 'without memory'),
      ('XLNet, K = 6', 'without spans'),
      ('XLNet, K = 6', 'without reversed rows'),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='XLNet, K = 6',
  )
