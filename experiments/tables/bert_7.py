"""BERT, Table 7: which layers are worth reading as features (Devlin et al. 2018, §5.3).

plm-jax tables experiments/tables/bert_7.py --scale=small --workdir=runs/tables --data=../shared/data

At the scale of the paper the vocabulary is cased, runs/vocab/bert-cased, which the head of bert/ner.py makes. Small:
four layers of 128, eight for the large one; the last two stand for the last four, so that all are more.
"""

from experiments.tables.shared import bert, claims, scales, tasks

LAST = dict(paper=4, small=2, tiny=2)
FEATURES = {  # layers by the number that counts as the last ones, how they are joined: F1 on CoNLL-2003, dev
  'embeddings': (lambda last, every: (0,), 'concat', 91.0),
  'second-to-last layer': (lambda last, every: (-2,), 'concat', 95.6),
  'last layer': (lambda last, every: (-1,), 'concat', 94.9),
  'weighted sum of the last four': (lambda last, every: tuple(range(-last, 0)), 'mix', 95.9),
  'last four side by side': (lambda last, every: tuple(range(-last, 0)), 'concat', 96.1),
  'weighted sum of all layers': (lambda last, every: tuple(range(-every, 0)), 'mix', 95.5),
}
LAYERS = dict(paper=12, small=4, tiny=2)


def get_table(scale):
  """Takes a scale."""
  rate = scales.masks(scale, lifted=True)
  deep = dict(scales.SIZES, num_layers=8)
  cased = dict(vocab__path='runs/vocab/bert-cased') if scale == 'paper' else {}
  base = bert.bert(scale, 'bert/base.py', small=dict(scales.SIZES, num_layers=4), **rate, **cased)
  rows = {
    'fine-tuned, large': bert.bert(scale, 'bert/large.py', small=deep, **rate, **cased) | dict(published={'NER': 96.6}),
    'fine-tuned, base': base | dict(published={'NER': 96.4}),
  }
  for name, (layers, join, published) in FEATURES.items():
    read = tasks.features(scale, layers=layers(LAST[scale], LAYERS[scale]), join=join)
    rows[name] = base | dict(tuning=read, published={'NER': published})
  features = tuple(FEATURES)
  columns = tasks.columns(scale, 'NER', 'WNUT-17', 'POS')
  return dict(
    title='BERT, Table 7: layers as features',
    paper='Devlin et al. 2018, §5.3; F1 on CoNLL-2003 (dev); features of base',
    mark='C',
    columns=columns,
    rows=rows,
    claims=claims.claimed(
      columns,
      rows,
      ('fine-tuned, base', features[4]),
      *((features[4], features[place]) for place in (0, 1, 2, 5)),
      asked=('WNUT-17', 'POS'),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference='fine-tuned, base',
    note=scales.masked(scale, 'and the last two layers stand for four'),
  )
