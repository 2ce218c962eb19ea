"""ULMFiT, Figure 3: errors by the number of labelled texts (Howard and Ruder 2018, §5).

plm-jax tables experiments/tables/ulmfit_3.py --scale=small --workdir=runs/tables --data=../shared/data

`supervised` fine-tunes the language model on the labelled texts alone, `semi-supervised` on all texts of the task. The
figure has no numbers; its text says that 100 labels are worth as much as 10 times (IMDb) and 20 times (AG) as many from
scratch, and 50 and 100 times as many with all texts. Small: as ulmfit_4.py, with which it shares the first stage.
"""

from experiments.tables.shared import claims, scales, ulmfit

ROWS = ('from scratch', 'supervised', 'semi-supervised')


def get_table(scale):
  """Takes a scale."""
  rows = {name: scales.staged(scale, 'ulmfit/pretrain.py') | dict(family='ulmfit') for name in ROWS}
  rows['from scratch'] |= dict(direct=True, start='scratch', family='scratch')
  if scale != 'tiny':
    rows['semi-supervised'] |= dict(between={'data.split': 'train[:90%]'})
  columns = {}
  for task, labels in ulmfit.LABELS[scale].items():
    for count in labels:
      column = ulmfit.columns(scale, 'ulmfit', 'scratch', labels=count)[task]
      columns[f'{task}, {count} labels'] = column | dict(along=(f'labelled texts of {task}', count))
  if scale != 'paper':
    columns['AG'] = ulmfit.columns(scale, 'ulmfit')['AG']
  return dict(
    title='ULMFiT, Figure 3: the number of labelled texts',
    paper='Howard and Ruder 2018, §5; validation error rates in per cent, drawn and not printed',
    mark='none',
    columns=columns,
    rows=rows,
    claims=claims.claims(claims.measured(columns), ('supervised', 'from scratch'), ('semi-supervised', 'supervised')),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference='supervised',
  )
