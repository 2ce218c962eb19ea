"""ALBERT, Table 2: four sizes, and BERT's two (Lan et al. 2019, §4.3).

plm-jax tables experiments/tables/albert_2.py --scale=small --workdir=runs/tables --data=../shared/data

BERT is the same trunk without shared layers, and with embeddings as wide as the layers. Small: two and four layers of
128, 192 and 256, and smaller starts and rates for wider ones, as in bert_6.py.
"""

from experiments.tables.shared import albert, claims, scales, tasks

# word of the config, what is shared, width of the embeddings; when small: layers, width, width of the embeddings,
# start, rate; parameters in millions, F1 on SQuAD 1.1 and 2.0, MNLI, SST-2, RACE, average; speed
ROWS = {
  'BERT base': (
    ('base', 'none', 768), (2, 128, 128, 0.06, 2e-3), (108, 90.4, 80.4, 84.5, 92.8, 68.2, 82.3), 4.7
  ),
  'BERT large': (
    ('large', 'none', 1024), (4, 128, 128, 0.06, 2e-3), (334, 92.2, 85.0, 86.6, 93.0, 73.9, 85.2), 1.0
  ),
  'ALBERT base': (
    ('base', 'all', 128), (2, 128, 21, 0.06, 2e-3), (12, 89.3, 80.0, 81.6, 90.3, 64.0, 80.1), 5.6
  ),
  'ALBERT large': (
    ('large', 'all', 128), (4, 128, 21, 0.06, 2e-3), (18, 90.6, 82.3, 83.5, 91.7, 68.5, 82.4), 1.7
  ),
  'ALBERT xlarge': (
    ('xlarge', 'all', 128), (4, 192, 21, 0.05, 1.5e-3), (60, 92.5, 86.1, 86.4, 92.4, 74.8, 85.5), 0.6
  ),
  'ALBERT xxlarge': (
    ('xxlarge', 'all', 128), (2, 256, 21, 0.042, 1e-3), (235, 94.1, 88.1, 88.0, 95.2, 82.3, 88.7), 0.3
  ),
}  # fmt: skip


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, ((size, sharing, embed_dim), sizes, published, speed) in ROWS.items():
    layers, width, narrow, start, rate = sizes
    rows[name] = albert.row(
      scale, 'albert/pretrain.py', size, sharing=sharing, embed_dim=embed_dim, published=published,
      small=dict(num_layers=layers, hidden_dim=width, mlp_dim=4 * width, num_heads=width // 64, init_std=start,
                 embed_dim=narrow),
      **(dict(optim__rate=rate) if scale == 'small' else {}),
    )  # fmt: skip
    rows[name]['published']['speed'] = speed
  rows['BERT large']['marks'] = {'parameters, millions': 'D'}
  columns = albert.columns(scale)
  columns['speed'] = dict(empty="it is that of training on the paper's TPUs; a run says how fast it was in its log")
  return dict(
    title='ALBERT, Table 2: sizes',
    paper='Lan et al. 2019, §4.3; 125,000 steps of 4,096 rows; speed as a multiple of that of BERT large',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'albert', rows),
    claims=claims.claimed(
      columns,
      rows,
      ('ALBERT xxlarge', 'BERT large'),
      ('ALBERT xxlarge', 'ALBERT xlarge', ()),
      ('ALBERT xlarge', 'ALBERT large', ()),
      ('ALBERT large', 'ALBERT base', ()),
      ('BERT large', 'BERT base', ()),
      ('BERT base', 'ALBERT base', ()),
      asked=albert.COLUMNS,
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='BERT base',
    note=scales.masked(scale),
  )
