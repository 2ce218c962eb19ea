"""ELECTRA, Table 1: how far a part of the training goes (Clark et al. 2020, §3.3; its curve of efficiency).

plm-jax tables experiments/tables/electra_1.py --scale=small --workdir=runs/tables --data=../shared/data

Every row is a training of its own, whose rate falls to zero at its own last step. Small: 1,600 steps are all of it, a
generator half as wide as the trunk, rows of 64 tokens.
"""

from experiments.tables.shared import bert, claims, scales, tasks

STEPS = dict(paper=1_000_000, small=1_600, tiny=64)
ROWS = {  # share of the steps: average of GLUE
  'ELECTRA-small': (1, 79.9),
  'ELECTRA-small, 50 %': (1 / 2, 79.0),
  'ELECTRA-small, 25 %': (1 / 4, 77.7),
  'ELECTRA-small, 12.5 %': (1 / 8, 76.0),
  'ELECTRA-small, 6.25 %': (1 / 16, 74.1),
}
OTHERS = {'ELMo': 71.2, 'GPT': 78.8, 'BERT-base': 82.2, 'ELECTRA-base': 85.1}
EVERY = ('steps', 'eval_every', 'save_every')  # keys of a config
TASKS = ('SST-2', 'MRPC', 'CoLA')


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (share, published) in ROWS.items():
    often = dict.fromkeys(EVERY, round(share * STEPS[scale]))
    rows[name] = bert.electra(scale, 'electra/small.py', **often)
    rows[name] |= dict(published={'GLUE': published}, mark=None if share == 1 else 'D')
  # the paper's BERT-small is a BERT of this size; its optimiser and its rows stay those of ELECTRA here
  masks = dict(name='mlm', where=dict(name='fixed_count', rate=0.15), edit=dict(name='bert_80_10_10'))
  often = dict.fromkeys(EVERY, STEPS[scale])
  small = dict(scales.SIZES, embed_dim=128)
  rows['BERT-small'] = scales.pretraining(scale, 'electra/small.py', small=small, objective=masks, **often)
  rows['BERT-small'] |= dict(published={'GLUE': 75.1})
  rows |= {name: dict(empty='it is another model', published={'GLUE': number}) for name, number in OTHERS.items()}
  whole, half, quarter, eighth, sixteenth = ROWS
  return dict(
    title='ELECTRA, Table 1: what a part of the training is worth',
    paper='Clark et al. 2020, §3.3; small and base, average of GLUE on dev',
    mark='C',
    columns=tasks.glue(scale, *TASKS),
    rows=tasks.tuned_as(scale, 'electra', rows),
    claims=claims.claims(
      ('GLUE',) if scale == 'paper' else TASKS,
      (whole, 'BERT-small'),
      (whole, half),
      (half, quarter),
      (quarter, eighth),
      (eighth, sixteenth),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=10)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='BERT-small',
  )
