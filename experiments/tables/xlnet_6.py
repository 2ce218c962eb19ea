"""XLNet, Table 6: what its parts are worth (Yang et al. 2019, §3.4).

python -m plm_jax.tables experiments/tables/xlnet_6.py --scale=small --workdir=runs/tables --data=../shared/data
"""

from experiments.tables import common

ROWS = {  # word of the config: name, RACE, SQuAD 2.0 F1, MNLI, SST-2
  'k7': ('XLNet, K = 7', (66.05, 81.33, 85.84, 92.66)),
  'k6': ('XLNet, K = 6', (66.66, 80.98, 85.63, 93.35)),
  'no_memory': ('without memory', (65.55, 80.15, 85.32, 92.78)),
  'no_ngrams': ('without spans', (65.95, 80.61, 85.49, 93.12)),
  'unidirectional': ('without reversed rows', (66.34, 80.65, 85.31, 92.66)),
}
COLUMNS = ('RACE', 'SQuAD 2.0', 'MNLI', 'SST-2')


def get_table(scale):
  """Takes a scale."""
  rows = {
    name: common.pretraining(scale, 'xlnet/base.py', word)
    | dict(family='xlnet', published=common.by_column(COLUMNS, published))
    for word, (name, published) in ROWS.items()
  }
  if scale == 'small':  # of so few steps, the warm-up of the paper's 1,000 would be all
    for row in rows.values():
      row['tuning'] = {'optim.warmup': 0.1}
  dae = common.by_column(COLUMNS, (65.03, 79.56, 84.88, 92.60))
  rows['DAE + Transformer-XL'] = dict(empty='no trunk here has the memory with masked tokens', published=dae)
  return dict(
    title='XLNet, Table 6: what its parts are worth',
    paper='Yang et al. 2019, §3.4; base, Wikipedia and books, medians of five',
    mark='B',
    columns=common.columns(scale, *COLUMNS),
    rows=rows,
    claims=common.claims(
      ('MNLI', 'SST-2'),
      ('XLNet, K = 6', 'without memory'),
      ('XLNet, K = 6', 'without spans'),
      ('XLNet, K = 6', 'without reversed rows'),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='XLNet, K = 6',
  )
