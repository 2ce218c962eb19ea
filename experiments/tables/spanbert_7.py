"""SpanBERT, Table 7: next sentences, one segment, the boundary of spans (Joshi et al. 2019, §6.2).

plm-jax tables experiments/tables/spanbert_7.py --scale=small --workdir=runs/tables --data=../shared/data

All rows hide the same spans, and differ in nothing else: steps, optimiser and vocabulary are SpanBERT's. Small: rows of
64 tokens, so that a pair has two segments of 30.
"""

from experiments.tables.shared import bert, claims, scales, tasks

COLUMNS = ('SQuAD 2.0', 'NewsQA', 'TriviaQA', 'coreference', 'MNLI', 'QNLI', 'GLUE')
ROWS = {  # config and words: the columns above
  'two segments, NSP': ('bert/large.py', (), (85.4, 73.0, 78.8, 76.4, 87.0, 93.3, 83.4)),
  'one segment': ('spanbert/pretrain.py', ('mlm',), (86.7, 73.4, 80.0, 76.3, 87.3, 93.8, 83.8)),
  'one segment, SBO': ('spanbert/pretrain.py', (), (86.8, 74.1, 80.3, 79.0, 87.6, 93.9, 84.0)),
}


def get_table(scale):
  """Takes a scale."""
  rate = 0.15 if scale == 'paper' else 0.4
  spans = {
    'objective.where': dict(name='geometric_spans', rate=rate, probability=0.2, max_words=10),
    'objective.edit': dict(name='bert_80_10_10', per='span'),
  }
  rows = {}
  for name, (config, words, published) in ROWS.items():
    like = dict(steps=bert.SPANBERT_STEPS) if config.startswith('spanbert/') else bert.LIKE_SPANBERT
    own = like if scale == 'paper' else {}
    rows[name] = scales.pretraining(scale, config, *words, **own)
    rows[name]['keys'] = rows[name]['keys'] | spans | {'objective.masking': 'dynamic'}
    rows[name]['published'] = claims.by_column(COLUMNS, published)
  two, one, boundary = ROWS
  columns = tasks.columns(scale, *COLUMNS[:-2], 'SST-2', 'MRPC', *COLUMNS[-2:])
  return dict(
    title='SpanBERT, Table 7: objectives beside masked spans',
    paper='Joshi et al. 2019, §6.2; large, 1.2 million steps, SQuAD 2.0 in F1',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'spanbert', rows),
    claims=claims.claimed(columns, rows, (one, two), (boundary, one), asked=('SST-2', 'MRPC')),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference=one,
    note=scales.masked(scale),
  )
