"""RoBERTa, Table 1: static against dynamic masking (Liu et al. 2019, §4.1).

python -m plm_jax.tables experiments/tables/roberta_1.py --scale=small --workdir=runs/tables --data=../shared/data

Small: three pre-trainings a row. Static masks are drawn once for each of ten copies of a row; 2,000 steps read each row
twice at most, so that static and dynamic masks can hardly differ: the paper's reads each of its ten copies four times.
"""

from experiments.tables import common


def get_table(scale):
  """Takes a scale."""
  rate = {} if scale == 'paper' else dict(objective__where__rate=0.4)
  mlm = ('roberta/formats.py', 'full')
  return dict(
    title='RoBERTa, Table 1: static against dynamic masking',
    paper='Liu et al. 2019, §4.1; BERT base, SQuAD 2.0 in F1, MNLI-m and SST-2 in accuracy, medians of five',
    mark='B',
    columns=common.columns(scale, 'SQuAD 2.0', 'MNLI', 'SST-2'),
    rows={
      'reference': dict(
        empty="the numbers of BERT's authors", published={'SQuAD 2.0': 76.3, 'MNLI': 84.3, 'SST-2': 92.8}
      ),
      'static': common.pretraining(scale, *mlm, objective__masking='static', objective__copies=10, **rate)
      | dict(published={'SQuAD 2.0': 78.3, 'MNLI': 84.3, 'SST-2': 92.5}),
      'dynamic': common.pretraining(scale, *mlm, **rate)
      | dict(published={'SQuAD 2.0': 78.7, 'MNLI': 84.0, 'SST-2': 92.9}),
    },
    claims=common.claims(('SST-2', 'MNLI'), ('dynamic', 'static')),
    pretraining_seeds=3 if scale == 'small' else 1,
    tuning_seeds=dict(tiny=2, small=1, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='dynamic',
    note='' if scale == 'paper' else 'Here 40 % of the tokens are masked, so that little text teaches more.',
  )
