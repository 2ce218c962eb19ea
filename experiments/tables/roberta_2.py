"""RoBERTa, Table 2: four formats of the input (Liu et al. 2019, §4.2).

plm-jax tables experiments/tables/roberta_2.py --scale=small --workdir=runs/tables --data=../shared/data

Small: rows of 64 tokens in all formats, so that a pair has two segments of 30; the paper's have 512. Batches have as
many tokens as those of full sentences, padding left out: on the text of common.py, with 4,000 pieces, a row of segment
pairs has 63.4, of sentence pairs 56.1, of full sentences 48.4, of documents 56.6. The column `tokens` says what was
read.
"""

from experiments.tables.shared import claims, scales, tasks

FORMATS = {  # word of the config: name; F1 on SQuAD 1.1 and 2.0, MNLI, SST-2, RACE; rows of a batch when small
  'segment_pair': ('SEGMENT-PAIR+NSP', (90.4, 78.7, 84.0, 92.9, 64.2), 49),
  'sentence_pair': ('SENTENCE-PAIR+NSP', (88.7, 76.2, 82.9, 92.1, 63.0), 55),
  'full': ('FULL-SENTENCES', (90.4, 79.1, 84.7, 92.5, 64.8), 64),
  'doc': ('DOC-SENTENCES', (90.6, 79.7, 84.7, 92.7, 65.6), 55),
}
COLUMNS = ('SQuAD F1', 'SQuAD 2.0', 'MNLI', 'SST-2', 'RACE')
OTHERS = {  # rows of the table that others trained
  'BERT base': dict(zip(COLUMNS, (88.5, 76.3, 84.3, 92.8, 64.3), strict=True)),
  'XLNet base, K = 7': dict(zip(COLUMNS[1:], (81.3, 85.8, 92.7, 66.1), strict=True)),
  'XLNet base, K = 6': dict(zip(COLUMNS[1:], (81.0, 85.6, 93.4, 66.7), strict=True)),
}


def get_table(scale):
  """Takes a scale."""
  rate = scales.masks(scale)
  rows = {}
  for word, (name, published, batch) in FORMATS.items():
    keys = dict(data__batch_size=batch) if scale == 'small' else {}
    rows[name] = scales.pretraining(scale, 'roberta/formats.py', word, **rate, **keys)
    rows[name] |= dict(published=claims.by_column(COLUMNS, published))
  for name, published in OTHERS.items():
    rows[name] = dict(empty='others trained it', published=published, quoted='Yang et al. 2019, Table 6, rounded')
  rows['BERT base']['quoted'] += '; SQuAD F1 Devlin et al. 2018, Table 5'
  columns = {'tokens': dict(of='tokens'), **tasks.columns(scale, *COLUMNS)}
  return dict(
    title='RoBERTa, Table 2: formats of the input',
    paper='Liu et al. 2019, §4.2; base, a million steps of 256 rows, SQuAD 1.1, medians of five',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'roberta', rows),
    claims=claims.claimed(
      columns,
      rows,
      ('SEGMENT-PAIR+NSP', 'SENTENCE-PAIR+NSP'),
      ('DOC-SENTENCES', 'SEGMENT-PAIR+NSP'),  # it matches or slightly improves
      ('DOC-SENTENCES', 'FULL-SENTENCES'),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference='FULL-SENTENCES',
    note=scales.masked(scale),
  )
