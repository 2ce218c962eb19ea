"""ALBERT, Table 3: width of the embeddings (Lan et al. 2019, §4.4).

plm-jax tables experiments/tables/albert_3.py --scale=small --workdir=runs/tables --data=../shared/data

Small: layers of 128, embeddings of a sixth of the paper's widths; the widest is as wide as the layers.
"""

from experiments.tables.shared import albert, claims, scales, tasks

# what is shared, width in the paper and here: parameters in millions, F1 on SQuAD 1.1 and 2.0, MNLI, SST-2, RACE,
# average
ROWS = {
  'not shared, E 64': ('none', 64, 11, (87, 89.9, 80.1, 82.9, 91.5, 66.7, 81.3)),
  'not shared, E 128': ('none', 128, 21, (89, 89.9, 80.3, 83.7, 91.5, 67.9, 81.7)),
  'not shared, E 256': ('none', 256, 43, (93, 90.2, 80.3, 84.1, 91.9, 67.3, 81.8)),
  'not shared, E 768': ('none', 768, 128, (108, 90.4, 80.4, 84.5, 92.8, 68.2, 82.3)),
  'all shared, E 64': ('all', 64, 11, (10, 88.7, 77.5, 80.8, 89.4, 63.5, 79.0)),
  'all shared, E 128': ('all', 128, 21, (12, 89.3, 80.0, 81.6, 90.3, 64.0, 80.1)),
  'all shared, E 256': ('all', 256, 43, (16, 88.8, 79.1, 81.5, 90.3, 63.4, 79.6)),
  'all shared, E 768': ('all', 768, 128, (31, 88.6, 79.2, 82.0, 90.6, 63.3, 79.8)),
}


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (shared, paper, here, published) in ROWS.items():
    own = dict(model__overrides__embed_dim=here) if scale == 'tiny' else {}
    rows[name] = albert.row(
      scale,
      'albert/pretrain.py',
      sharing=shared,
      embed_dim=paper,
      small=dict(embed_dim=here),
      published=published,
      **own,
    )
  columns = albert.columns(scale)
  return dict(
    title='ALBERT, Table 3: width of the embeddings',
    paper='Lan et al. 2019, §4.4; base, 125,000 steps of 4,096 rows',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'albert', rows),
    claims=claims.claimed(
      columns,
      rows,
      ('not shared, E 768', 'not shared, E 64'),
      *(('all shared, E 128', f'all shared, E {other}') for other in (64, 256, 768)),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='not shared, E 768',
    note=scales.masked(scale),
  )
