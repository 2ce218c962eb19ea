"""RoBERTa, Table 4: more text, and more steps (Liu et al. 2019, §5).

plm-jax tables experiments/tables/roberta_4.py --scale=small --workdir=runs/tables --data=../shared/data

Small: a tenth of the text, then all of it, for 400 steps, and three and five times as many. `tokens` are those that
were read, padding left out. At the scale of the paper the text has to be named: --corpus, and a first row that reads a
tenth of it.
"""

from experiments.tables.shared import claims, scales, tasks

ROWS = {  # first rows of the text, steps of the paper; steps when small: SQuAD F1, SQuAD 2.0, MNLI, SST-2
  '16 GB, 100K steps': ('train[:10%]', 100_000, 400, (93.6, 87.3, 89.0, 95.3)),
  '160 GB, 100K steps': ('train', 100_000, 400, (94.0, 87.7, 89.3, 95.6)),
  '160 GB, 300K steps': ('train', 300_000, 1_200, (94.4, 88.7, 90.0, 96.1)),
  '160 GB, 500K steps': ('train', 500_000, 2_000, (94.6, 89.4, 90.2, 96.4)),
}
OTHERS = {  # rows of the table that are other models
  'BERT large, 13 GB, 1M steps': (90.9, 81.8, 86.6, 93.7),
  'XLNet large, 13 GB': (94.0, 87.8, 88.4, 94.4),
  'XLNet large, 126 GB': (94.5, 88.8, 89.8, 95.6),
}
COLUMNS = ('SQuAD F1', 'SQuAD 2.0', 'MNLI', 'SST-2')


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (split, paper, small, published) in ROWS.items():
    keys = {} if scale == 'tiny' else dict(data__split=split, steps=paper if scale == 'paper' else small)
    keys |= dict(eval_every=small, save_every=400) if scale == 'small' else {}
    masked = scales.masks(scale)
    rows[name] = scales.pretraining(scale, 'roberta/pretrain.py', 'large', **keys, **masked)
    rows[name] |= dict(published=claims.by_column(COLUMNS, published))
  for name, published in OTHERS.items():
    rows[name] = dict(empty='it is another model', published=claims.by_column(COLUMNS, published))
  less, more, longer, longest = ROWS
  perplexity = dict(metric='validation/perplexity', of='pretraining', better='min')
  columns = {'tokens': dict(of='tokens'), 'perplexity': perplexity, **tasks.columns(scale, *COLUMNS)}
  return dict(
    title='RoBERTa, Table 4: more text, more steps',
    paper='Liu et al. 2019, §5; large, batches of 8,192 rows, dev sets, medians of five',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'roberta-large', rows),
    claims=claims.claimed(columns, rows, (more, less), (longer, more), (longest, longer), asked=('perplexity',)),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    summary='median' if scale == 'paper' else 'mean',
    reference=longest,
    note=scales.masked(scale, 'and all numbers of steps are small'),
  )
