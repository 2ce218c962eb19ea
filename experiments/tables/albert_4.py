"""ALBERT, Table 4: what the layers share (Lan et al. 2019, §4.5).

plm-jax tables experiments/tables/albert_4.py --scale=small --workdir=runs/tables --data=../shared/data

Small: two layers of 128, embeddings of 128 and of 21 in place of 768 and 128.
"""

from experiments.tables.shared import albert, claims, scales, tasks

# width of the embeddings in the paper and here, what is shared: parameters in millions, F1 on SQuAD 1.1 and 2.0, MNLI,
# SST-2, RACE, average
ROWS = {
  'E 768, all': (768, 128, 'all', (31, 88.6, 79.2, 82.0, 90.6, 63.3, 79.8)),
  'E 768, attention': (768, 128, 'attention', (83, 89.9, 80.0, 84.0, 91.4, 67.7, 81.6)),
  'E 768, FFN': (768, 128, 'ffn', (57, 89.2, 78.2, 81.5, 90.8, 62.6, 79.5)),
  'E 768, none': (768, 128, 'none', (108, 90.4, 80.4, 84.5, 92.8, 68.2, 82.3)),
  'E 128, all': (128, 21, 'all', (12, 89.3, 80.0, 82.0, 90.3, 64.0, 80.1)),
  'E 128, attention': (128, 21, 'attention', (64, 89.9, 80.7, 83.4, 91.9, 67.6, 81.7)),
  'E 128, FFN': (128, 21, 'ffn', (38, 88.9, 78.6, 82.3, 91.7, 64.4, 80.2)),
  'E 128, none': (128, 21, 'none', (89, 89.9, 80.3, 83.2, 91.5, 67.9, 81.6)),
}
HERE = 'E 768 stands for embeddings as wide as the layers, E 128 for narrower ones.'


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (paper, here, shared, published) in ROWS.items():
    rows[name] = albert.row(
      scale, 'albert/pretrain.py', sharing=shared, embed_dim=paper, small=dict(embed_dim=here), published=published
    )
  columns = albert.columns(scale)
  return dict(
    title='ALBERT, Table 4: what the layers share',
    paper='Lan et al. 2019, §4.5; base, 125,000 steps of 4,096 rows; its Table 3 has another MNLI of E 128: all 81.6, '
    'none 83.7',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'albert', rows),
    claims=claims.claimed(
      columns,
      rows,
      ('E 768, none', 'E 768, all'),
      ('E 768, attention', 'E 768, FFN'),
      ('E 128, none', 'E 128, all'),
      ('E 128, attention', 'E 128, FFN'),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='E 768, none',
    note=f'{HERE} {scales.masked(scale)}' if scale != 'paper' else '',
  )
