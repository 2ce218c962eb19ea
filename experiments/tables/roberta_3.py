"""RoBERTa, Table 3: size of the batch at an equal number of rows (Liu et al. 2019, §4.3).

plm-jax tables experiments/tables/roberta_3.py --scale=small --workdir=runs/tables --data=../shared/data

Rows are full sentences, as the paper says of everything behind its Table 2. Small: 800 steps of 64 rows, 200 of 256, 50
of 1,024, with rates that grow as the paper's do.
"""

from experiments.tables.shared import claims, scales, tasks

ROWS = {  # rows, steps, rate of the paper; the same when small; perplexity, MNLI, SST-2
  '256 rows, 1M steps': ((256, 1_000_000, 1e-4), (64, 800, 2e-3), (3.99, 84.7, 92.7)),
  '2K rows, 125K steps': ((2_048, 125_000, 7e-4), (256, 200, 4e-3), (3.68, 85.2, 92.9)),
  '8K rows, 31K steps': ((8_192, 31_250, 1e-3), (1_024, 50, 6e-3), (3.77, 84.6, 92.8)),
}
COLUMNS = ('MNLI', 'SST-2')
FORMAT = (
  'Rows are full sentences, as the text of the paper says; its row of 256 has the numbers of DOC-SENTENCES in Table 2 '
  '(84.7 and 92.7), where FULL-SENTENCES have 84.7 and 92.5.'
)


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for name, (paper, small, published) in ROWS.items():
    batch, steps, rate = small if scale == 'small' else paper
    keys = {} if scale == 'tiny' else dict(data__batch_size=batch, steps=steps, optim__rate=rate)
    keys |= dict(optim__warmup=0.05, eval_every=steps, save_every=steps) if scale == 'small' else {}
    masked = scales.masks(scale)
    rows[name] = scales.pretraining(scale, 'roberta/formats.py', 'full', **keys, **masked)
    rows[name] |= dict(published=claims.by_column(('perplexity', *COLUMNS), published))
  perplexity = dict(metric='validation/perplexity', of='pretraining', better='min')
  columns = {'perplexity': perplexity, **tasks.columns(scale, *COLUMNS)}
  return dict(
    title='RoBERTa, Table 3: size of the batch',
    paper='Liu et al. 2019, §4.3; base, held-out perplexity, dev sets',
    mark='B',
    columns=columns,
    rows=tasks.tuned_as(scale, 'roberta', rows),
    claims=claims.claimed(
      columns, rows, ('2K rows, 125K steps', '256 rows, 1M steps'), ('2K rows, 125K steps', '8K rows, 31K steps')
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference='256 rows, 1M steps',
    note=f'{FORMAT} {scales.masked(scale, "and all numbers of steps are small")}'.strip(),
  )
