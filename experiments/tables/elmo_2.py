"""ELMo, Table 2: which layers are mixed (Peters et al. 2018, §5.1).

plm-jax tables experiments/tables/elmo_2.py --scale=small --workdir=runs/tables --data=../shared/data \\
    --corpus=../shared/data/classic_books

Small: the size `cut` of experiments/elmo/pretrain.py, with the vocabulary that its head makes; 25 minutes of two cores.
Each of the other runs takes two to six minutes of a core.
"""

from experiments.tables.shared import claims, elmo

ROWS = {  # side, layers, lambda: SQuAD, SNLI, SRL
  'baseline': ('none', (), 0.001, (80.8, 88.1, 81.6)),
  'last layer only': ('input', (-1,), 0.001, (84.7, 89.1, 84.1)),
  'all layers, lambda 1': ('input', (), 1.0, (85.0, 89.3, 84.6)),
  'all layers, lambda 0.001': ('input', (), 0.001, (85.2, 89.5, 84.8)),
}


def get_table(scale):
  """Takes a scale."""
  rows = elmo.rows(scale, 'elmo/pretrain.py', ROWS)
  baseline, last, even, free = rows
  columns = elmo.columns(scale)
  return dict(
    title='ELMo, Table 2: which layers are mixed',
    paper='Peters et al. 2018, §5.1; dev; F1 of SQuAD and SRL, accuracy of SNLI',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claims(claims.measured(columns), (free, even), (even, last), (last, baseline)),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference=baseline,
    note='' if scale == 'paper' else 'Here a trunk of a fortieth of the parameters has read little text.',
  )
