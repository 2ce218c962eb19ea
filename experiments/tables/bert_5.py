"""BERT, Table 5: what its two tasks are worth (Devlin et al. 2018, §5.1).

plm-jax tables experiments/tables/bert_5.py --scale=small --workdir=runs/tables --data=../shared/data

Scales 1m, 5m and 30m have the columns of shared/ladder.py; SST-2 is then in runs/data/sst2_sentences, which
  python launch/sst2_sentences.py ../shared/data/glue_sst2 runs/data/sst2_sentences
makes. The text is that of `plm-jax corpus english ../shared/data runs/data/english`.
"""

from experiments.tables.shared import claims, ladder, scales
from experiments.tables.shared.scales import SCALES as SCALES

ROWS = {  # config, words, family, MNLI, QNLI, MRPC, SST-2, SQuAD F1
  'BERT base': ('bert/base.py', (), 'bert', (84.4, 88.4, 86.7, 92.7, 88.5)),
  'No NSP': ('bert/base.py', ('mlm',), 'bert', (83.9, 84.9, 86.5, 92.6, 87.9)),
  'LTR & No NSP': ('bert/ltr.py', (), 'bert', (82.1, 84.3, 77.5, 92.1, 77.8)),
  '+ BiLSTM': ('bert/ltr.py', (), 'bert', (82.1, 84.1, 75.7, 91.6, 84.9)),  # a new one on the row above
}
COLUMNS = ('MNLI', 'QNLI', 'MRPC', 'SST-2', 'SQuAD F1')
NAMED = ('QNLI', 'MNLI', 'SQuAD F1')  # where the text finds that next sentences help
GLUE = ('MNLI', 'QNLI', 'MRPC', 'SST-2')  # where it finds that the BiLSTM hurts
ANSWERS = (('+ BiLSTM', 'LTR & No NSP'), ('No NSP', '+ BiLSTM'))  # and what it finds for answers to questions


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (config, words, family, published) in ROWS.items():
    rate = scales.masks(scale, lifted=True) if config.endswith('base.py') else {}
    label = scales.LABEL if name == 'BERT base' and scale in scales.RUNGS else {}
    rows[name] = scales.pretraining(scale, config, *words, **rate, **label)
    family = 'ltr' if scale in scales.RUNGS and config == 'bert/ltr.py' else family
    rows[name] |= dict(family=family, published=claims.by_column(COLUMNS, published))
  columns = ladder.columns(scale, *COLUMNS)
  compared = [name for name in ladder.asked(scale, 'MRPC', 'SST-2') if name != 'loss']  # that of other tokens
  rows['+ BiLSTM']['tuning'] = {'adapter.lstm_layers': 1}
  if scale in scales.RUNGS:
    same = [name for name, column in columns.items() if column.get('of') == 'evaluation' or name == 'EWT probe']
    rows['+ BiLSTM']['without'] = dict.fromkeys(same, 'without fine-tuning it is the row above')
  return dict(
    title='BERT, Table 5: what the two tasks are worth',
    paper='Devlin et al. 2018, §5.1; base, dev sets',
    mark='C',
    columns=columns,
    rows=rows,
    claims=[
      *claims.claimed(columns, rows, ('BERT base', 'No NSP', NAMED), asked=ladder.asked(scale, 'MRPC', 'SST-2')),
      *claims.claimed(columns, rows, ('No NSP', 'LTR & No NSP'), asked=compared),
      *claims.claimed(
        columns, rows, ('LTR & No NSP', '+ BiLSTM', GLUE), asked=('TREC',) if scale in scales.RUNGS else ()
      ),
      *claims.claimed(columns, rows, *((better, than, ('SQuAD F1',)) for better, than in ANSWERS)),
    ],
    **scales.seeds(scale),
    summary='best point on dev' if scale in scales.RUNGS else 'mean',
    reference='No NSP',
    note=scales.masked(scale) + scales.labelled(scale),
  )
