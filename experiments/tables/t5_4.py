"""T5, Tables 4 to 7: what is corrupted, how much of it, and in how long spans (Raffel et al. 2020, §3.3).

plm-jax tables experiments/tables/t5_4.py --scale=small --workdir=runs/tables --data=../shared/data

Small: two stacks of 2 layers, rows of 64 tokens, AdamW; SST-2 written as text and scored by exact match.
"""

from experiments import common
from experiments.tables.shared import claims, scales, t5

ROWS = {  # word of the config: name, GLUE, CNN/DM, SQuAD, SuperGLUE, WMT's English to German, French, Romanian
  'prefix_lm': ('prefix LM', (80.69, 18.94, 77.99, 65.27, 26.86, 39.73, 27.49)),
  'bert': ('BERT-style', (82.96, 19.17, 80.65, 69.85, 26.78, 40.03, 27.41)),
  'deshuffle': ('deshuffling', (73.17, 18.59, 67.61, 58.47, 26.11, 39.30, 25.62)),
  'mass': ('MASS-style', (82.32, 19.16, 80.10, 69.28, 26.79, 39.89, 27.55)),
  'iid': ('replace spans', (83.28, 19.24, 80.88, 71.36, 26.98, 39.82, 27.65)),
  'drop': ('drop tokens', (84.44, 19.31, 80.52, 68.67, 27.07, 39.76, 27.82)),
  'iid10': ('10 % corrupted', (82.82, 19.00, 80.38, 69.55, 26.87, 39.28, 27.44)),
  'iid25': ('25 % corrupted', (83.00, 19.54, 80.96, 70.48, 27.04, 39.83, 27.47)),
  'iid50': ('50 % corrupted', (81.27, 19.32, 79.80, 70.33, 27.01, 39.90, 27.49)),
  'span2': ('spans of 2', (83.54, 19.39, 82.09, 72.20, 26.76, 39.99, 27.63)),
  'span3': ('spans of 3', (83.49, 19.62, 81.84, 72.53, 26.86, 39.65, 27.62)),
  'span5': ('spans of 5', (83.40, 19.24, 82.05, 72.23, 26.88, 39.40, 27.53)),
  'span10': ('spans of 10', (82.85, 19.33, 81.84, 70.44, 26.79, 39.49, 27.69)),
}


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for word, (name, published) in ROWS.items():
    keys = dict(vocab__extra=common.SENTINELS) if scale == 'small' else {}
    rows[name] = scales.pretraining(scale, 't5/pretrain.py', word, small=t5.SIZES, **keys)
    rows[name] |= dict(family='t5', published=claims.by_column(t5.COLUMNS, published))
  columns = t5.columns(scale)
  return dict(
    title='T5, Tables 4 to 7: objectives, rates, lengths of spans',
    paper='Raffel et al. 2020, §3.3; base, 2^19 steps, fine-tuned on each benchmark',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claimed(
      columns,
      rows,
      ('BERT-style', 'prefix LM'),
      ('BERT-style', 'deshuffling'),
      ('replace spans', 'deshuffling', ()),
      ('replace spans', '50 % corrupted', ('GLUE', 'SQuAD')),
      ('spans of 3', 'replace spans'),
      ('spans of 3', 'spans of 10'),
      asked=('SST-2',),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=1)[scale],
    reference='prefix LM',  # of the rows the one that predicts plain text alone, without sentinels and copies
  )
