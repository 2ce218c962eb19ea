"""ELMo, Table 3: where the mix is put (Peters et al. 2018, §5.2).

plm-jax tables experiments/tables/elmo_3.py --scale=small --workdir=runs/tables --data=../shared/data \\
    --corpus=../shared/data/classic_books

Small: as elmo_2.py, whose pre-training and last row are `input` here.
"""

from experiments.tables.shared import claims, elmo

ROWS = {  # side, layers, lambda: SQuAD, SNLI, SRL
  'input': ('input', (), 0.001, (85.1, 88.9, 84.7)),
  'input and output': ('both', (), 0.001, (85.6, 89.5, 84.3)),
  'output': ('output', (), 0.001, (84.8, 88.7, 80.9)),
}


def get_table(scale):
  """Takes a scale."""
  rows = elmo.rows(scale, 'elmo/pretrain.py', ROWS)
  below, both, above = rows
  columns = elmo.columns(scale)
  return dict(
    title='ELMo, Table 3: where the mix is put',
    paper='Peters et al. 2018, §5.2; dev; F1 of SQuAD and SRL, accuracy of SNLI',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claims(claims.measured(columns), (both, below), (below, above)),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference=below,
    note='' if scale == 'paper' else 'Here a trunk of a fortieth of the parameters has read little text.',
  )
