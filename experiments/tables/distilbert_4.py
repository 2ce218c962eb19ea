"""DistilBERT, Table 4: what each term of the loss and the start are worth (Sanh et al. 2019, §4.2).

plm-jax tables experiments/tables/distilbert_4.py --scale=small --workdir=runs/tables --data=../shared/data

Small: a student of two layers and a teacher of four, both 128 wide.
"""

from experiments.tables.shared import bert, claims, scales, tasks

CONFIGS = 'bert/base.py', 'distilbert/base.py'  # of the teacher and the student
ROWS = {  # what is left out: changes of the objective, whether the start is fresh, difference of the average of GLUE
  'the whole loss': ({}, False, 0.0),
  'without the divergence from the teacher': (dict(kl_weight=0.0), False, -2.96),
  'without the cosine': (dict(cosine_weight=0.0), False, -1.46),
  'without the masked words': (dict(mlm_weight=0.0), False, -0.31),
  'with a fresh start': ({}, True, -3.69),
}
TASKS = ('SST-2', 'MRPC', 'CoLA')
GLUE = ('CoLA', 'MNLI', 'MRPC', 'QNLI', 'QQP', 'RTE', 'SST-2', 'STS-B', 'WNLI')  # whose average Table 1 prints
WHOLE = 77.0  # of the whole loss, in Table 1


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (objective, fresh, published) in ROWS.items():
    teacher, student = bert.distilled(scale, *CONFIGS, objective=objective, fresh=fresh)
    rows.setdefault('BERT base', teacher)
    rows[name] = student | dict(after='BERT base', published={'GLUE': round(WHOLE + published, 2)})
  whole, *others = ROWS
  columns = tasks.glue(scale, *TASKS)
  if scale == 'paper':
    columns = {'GLUE': dict(over=GLUE, note='F1 of QQP and accuracy of MRPC'), **tasks.columns(scale, *GLUE)}
  return dict(
    title='DistilBERT, Table 4: terms of the loss, and the start',
    paper='Sanh et al. 2019, §4.2; the text copy leaves the name of a removed term out',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claims(('GLUE',) if scale == 'paper' else TASKS, *((whole, other) for other in others)),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference='BERT base',
    note=f'The paper prints differences from the whole loss, {WHOLE} in Table 1. {scales.masked(scale)}'.strip(),
  )
