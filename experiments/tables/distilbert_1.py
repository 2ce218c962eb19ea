"""DistilBERT, Tables 1 to 3: half of the layers, and what is left (Sanh et al. 2019, §4).

plm-jax tables experiments/tables/distilbert_1.py --scale=small --workdir=runs/tables --data=../shared/data

Small: a student of two layers and a teacher of four, both 128 wide.
"""

from experiments.tables.shared import bert, claims, scales, tasks

CONFIGS = 'bert/base.py', 'distilbert/base.py'  # of the teacher and the student
GLUE = ('GLUE', 'CoLA', 'MNLI', 'MRPC', 'QNLI', 'QQP', 'RTE', 'SST-2', 'STS-B', 'WNLI')
AGAIN = 'DistilBERT, distilled again on SQuAD'
PUBLISHED = {  # as GLUE above; IMDb; SQuAD EM and F1; millions of parameters, seconds of a pass over STS-B
  'ELMo': ((68.7, 44.1, 68.6, 76.6, 71.1, 86.2, 53.4, 91.5, 70.4, 56.3), (None, None, None), (180, 895)),
  'BERT base': ((79.5, 56.3, 86.7, 88.6, 91.8, 89.6, 69.3, 92.7, 89.0, 53.5), (93.46, 81.2, 88.5), (110, 668)),
  'DistilBERT': ((77.0, 51.3, 82.2, 87.5, 89.2, 88.5, 59.9, 91.3, 86.9, 56.3), (92.82, 77.7, 85.8), (66, 410)),
  AGAIN: ((None,) * 10, (None, 79.1, 86.9), (None, None)),
}
IN_THE_CODE = dict.fromkeys(('CoLA', 'MRPC', 'QNLI', 'QQP', 'RTE', 'SST-2', 'STS-B', 'WNLI'), 'A')  # its README
OTHERS = ('IMDb', 'SQuAD EM', 'SQuAD F1', 'parameters', 'seconds')
MEASURED = ('CoLA', 'MNLI', 'MRPC', 'RTE', 'SST-2', 'STS-B', 'IMDb', 'SQuAD F1')
EMPTY = {
  'SQuAD EM': 'SQuAD F1 says the same of these runs',
  'parameters': '`plm-jax params` counts them: 109,482,240 of BERT base, 66,362,880 of DistilBERT',
  'seconds': 'they are of a CPU of 2019; the operations of a row are in `plm-jax params`',
}


def get_table(scale):
  """Takes a scale."""
  teacher, whole = bert.distilled(scale, *CONFIGS)
  rows = {'ELMo': dict(empty='ELMo has no task of GLUE here'), 'BERT base': teacher}
  rows['DistilBERT'] = whole | dict(after='BERT base')
  rows[AGAIN] = dict(empty='no config distils SQuAD while it is fine-tuned', mark='D')
  for name, numbers in PUBLISHED.items():
    flat = zip((*GLUE, *OTHERS), (one for group in numbers for one in group), strict=True)
    rows[name] = rows[name] | dict(published={column: value for column, value in flat if value is not None})
  for name in ('BERT base', 'DistilBERT'):
    rows[name]['marks'] = IN_THE_CODE
  empty = {name: dict(empty=why) for name, why in EMPTY.items()}
  found = empty | tasks.columns(scale, *MEASURED, 'QNLI', 'QQP', 'WNLI')
  mean = dict(over=GLUE[1:], note='F1 of QQP and accuracy of MRPC')
  found['GLUE'] = mean if scale == 'paper' else dict(empty='QNLI, QQP and WNLI are not among the small data')
  found['MNLI']['note'] = 'the README of the code has 84.7 and 82.1'
  columns = {name: found[name] for name in (*GLUE, *OTHERS)}
  return dict(
    title='DistilBERT, Tables 1 to 3: half of the layers',
    paper='Sanh et al. 2019, §4; dev sets, medians of five; parameters in millions',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claimed(columns, rows, ('BERT base', 'DistilBERT')),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='BERT base',
    note=scales.masked(scale),
  )
