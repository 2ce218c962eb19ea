"""ELECTRA, Table 5: what makes it efficient (Clark et al. 2020, §3.4).

plm-jax tables experiments/tables/electra_5.py --scale=small --workdir=runs/tables --data=../shared/data

Small: a generator half as wide as the trunk; rows of 64 tokens.
"""

from experiments.tables.shared import bert, claims, scales, tasks

ROWS = {  # what the trunk predicts, weight of its loss: average of GLUE
  'ELECTRA': ('all', 50.0, 85.0),
  'all-tokens MLM': ('all_tokens_mlm', 1.0, 84.3),
  'replace MLM': ('replace_mlm', 1.0, 82.4),
  'ELECTRA 15 %': ('masked', 50.0, 82.4),
}
TASKS = ('SST-2', 'MRPC', 'CoLA')


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (predict, weight, published) in ROWS.items():
    rows[name] = bert.electra(scale, 'electra/base.py', objective__predict=predict, objective__weight=weight)
    rows[name] |= dict(published={'GLUE': published})
  rows['BERT'] = scales.pretraining(scale, 'bert/base.py', 'mlm') | dict(published={'GLUE': 82.2})
  return dict(
    title='ELECTRA, Table 5: what makes it efficient',
    paper='Clark et al. 2020, §3.4; base, average of GLUE on dev',
    mark='C',
    columns=tasks.glue(scale, *TASKS),
    rows=tasks.tuned_as(scale, 'electra-base', rows),
    claims=claims.claims(
      ('GLUE',) if scale == 'paper' else TASKS,
      ('ELECTRA', 'BERT'),
      ('ELECTRA', 'ELECTRA 15 %'),
      ('replace MLM', 'BERT'),
      ('all-tokens MLM', 'replace MLM'),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=10)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='BERT',
  )
