"""BERT, Table 8: what stands in place of a chosen token (Devlin et al. 2018, appendix C.2).

plm-jax tables experiments/tables/bert_8.py --scale=small --workdir=runs/tables --data=../shared/data
"""

from experiments.tables.shared import bert, claims, scales, tasks

ROWS = {  # shares of [MASK] and of random tokens: MNLI, NER by fine-tuning, NER by features
  '80 / 10 / 10': ((0.8, 0.1), (84.2, 95.4, 94.9)),
  '100 / 0 / 0': ((1.0, 0.0), (84.3, 94.9, 94.0)),
  '80 / 0 / 20': ((0.8, 0.2), (84.1, 95.2, 94.6)),
  '80 / 20 / 0': ((0.8, 0.0), (84.4, 95.2, 94.7)),
  '0 / 20 / 80': ((0.0, 0.8), (83.7, 94.8, 94.6)),
  '0 / 0 / 100': ((0.0, 1.0), (83.6, 94.9, 94.6)),
}
PUBLISHED = ('MNLI', 'NER', 'NER by features')


def get_table(scale):
  """Takes a scale."""
  rate = scales.masks(scale, lifted=True)
  rows = {}
  for name, ((mask, random), published) in ROWS.items():
    edit = dict(name='bert_80_10_10', mask=mask, random=random)
    rows[name] = bert.bert(scale, 'bert/base.py', objective__edit=edit, **rate)
    rows[name] |= dict(published=claims.by_column(PUBLISHED, published))
  columns = tasks.columns(scale, *PUBLISHED[:2], 'SST-2', 'WNUT-17')
  read = tasks.features(scale, layers=range(-4, 0), join='concat')
  of_words = dict(columns['NER'], keys=read) if scale == 'paper' else columns['NER']
  columns['NER by features'] = of_words
  columns = {name: columns[name] for name in (*PUBLISHED, 'SST-2', 'WNUT-17')}
  return dict(
    title='BERT, Table 8: [MASK], the same token, a random one',
    paper='Devlin et al. 2018, appendix C.2; base, dev sets; NER is CoNLL-2003',
    mark='D',
    columns=columns,
    rows=rows,
    claims=claims.claimed(
      columns,
      rows,
      ('80 / 10 / 10', '0 / 0 / 100'),
      ('80 / 10 / 10', '100 / 0 / 0', ('NER by features',)),  # fine-tuning is robust, says the text
      asked=('SST-2', 'WNUT-17'),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference='80 / 10 / 10',
    note=scales.masked(scale, done='chosen')
    or 'A row has one pre-training: names are read with the uncased vocabulary, where the paper has a cased one.',
  )
