"""GPT, Table 5: pre-training and the auxiliary objective (Radford et al. 2018, §5).

plm-jax tables experiments/tables/gpt_5.py --scale=small --workdir=runs/tables --data=../shared/data

Scales 1m, 5m and 30m have the columns of shared/ladder.py; SST-2 is then in runs/data/sst2_sentences, which
  python launch/sst2_sentences.py ../shared/data/glue_sst2 runs/data/sst2_sentences
makes. The text is that of `plm-jax corpus english ../shared/data runs/data/english`.
"""

from experiments.tables.shared import claims, ladder, scales
from experiments.tables.shared.scales import SCALES as SCALES

COLUMNS = ('CoLA', 'SST-2', 'MRPC', 'STS-B', 'QQP', 'MNLI', 'QNLI', 'RTE', 'average')
ROWS = {
  'full': (45.4, 91.3, 82.3, 82.0, 70.3, 81.8, 88.1, 56.0, 74.7),
  'no pre-training': (18.9, 84.0, 79.4, 30.9, 65.5, 75.7, 71.2, 53.8, 59.9),
  'no aux LM': (47.9, 92.0, 84.9, 83.2, 69.8, 81.1, 86.9, 54.4, 75.0),
}
# sets that the text finds to gain from the auxiliary objective, and those too small for it
LARGE, SMALL = ('MNLI', 'QNLI', 'RTE', 'QQP'), ('CoLA', 'MRPC', 'STS-B')
LONG = 'a fine-tuning on both orders, with the language model, takes as long as a pre-training'
NOT_IN_SMALL = {'MRPC': LONG, 'STS-B': LONG, 'RTE': 'networks of this scale stay at chance'}
# of the LSTM: the paper's 2,048 units, and as many parameters as the transformer of a rung
WIDTHS = {'tiny': 32, 'paper': 2_048, '1m': 168, '5m': 512, '30m': 1_600}


def _lstm(scale, keys):
  """Return the row of one LSTM layer."""
  if scale not in WIDTHS:
    return dict(empty='it is made on the rungs, 1m and above')
  row = scales.pretraining(scale, 'gpt/gpt.py', **keys)
  row['keys'] |= {
    'model.name': 'awd_lstm',
    'model.variant': 'tiny' if scale == 'tiny' else 'ulmfit',
    'model.overrides': dict(num_layers=1, hidden_dim=WIDTHS[scale], dropout=0.0),
  }
  return row | dict(family='gpt')


def get_table(scale):
  """Takes a scale."""
  keys = dict(epochs=None, data__text='text') if scale == 'small' or scale in scales.RUNGS else {}
  keys |= dict(steps=800) if scale == 'small' else {}
  rows = {}
  for name, published in ROWS.items():
    rows[name] = scales.pretraining(scale, 'gpt/gpt.py', **keys)
    rows[name] |= dict(family='gpt', published=claims.by_column(COLUMNS, published))
  rows['no pre-training']['start'] = 'scratch'
  rows['no aux LM']['tuning'] = {'adapter.lm_weight': 0.0}
  columns = ladder.columns(scale, *COLUMNS)
  if scale in scales.RUNGS:
    asked = [name for name, column in columns.items() if column.get('of') == 'evaluation']
    rows['no pre-training']['without'] = dict.fromkeys(asked, 'without any update it knows nothing')
    rows['no aux LM']['without'] = dict.fromkeys([*asked, 'TREC', 'EWT probe'], 'only its fine-tuning of SST-2 differs')
  if scale == 'small':
    columns |= {name: dict(empty=reason) for name, reason in NOT_IN_SMALL.items()}
  lstm = (30.3, 90.5, 83.2, 71.8, 68.1, 73.7, 81.1, 54.6, 69.1)
  rows['LSTM w/ aux'] = _lstm(scale, keys) | dict(published=claims.by_column(COLUMNS, lstm))
  return dict(
    title='GPT, Table 5: pre-training and the auxiliary objective',
    paper='Radford et al. 2018, §5; STS-B in the Pearson correlation, MRPC and QQP in F1 there',
    mark='B',
    columns=columns,
    rows=rows,
    claims=claims.claimed(
      columns,
      rows,
      ('full', 'no pre-training'),
      ('full', 'no aux LM', LARGE),
      ('no aux LM', 'full', SMALL),
      ('full', 'LSTM w/ aux', tuple(name for name in COLUMNS if name != 'MRPC')),
      asked=ladder.asked(scale, 'SST-2'),
    ),
    **scales.seeds(scale, paper=1),
    summary='best point on dev' if scale in scales.RUNGS else 'mean',
    reference='full',
    note='Here MRPC is scored by accuracy and STS-B by the rank correlation.',
  )
