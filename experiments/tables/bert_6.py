"""BERT, Table 6: sizes (Devlin et al. 2018, §5.2).

plm-jax tables experiments/tables/bert_6.py --scale=small --workdir=runs/tables --data=../shared/data

Small and 1m: a third of the layers, widths of 128 and 256; the largest row has 7 million parameters and takes hours on
a CPU. Layers of 256 start their kernels from .042 and .03. 1m has the columns of shared/ladder.py.
At scale small no network learns from context, and layers of 256 learn at lower rates. With the start and the rate of
128, .06 and 2e-3, four of them stay at the frequencies of words, 6.7 nats, for all of 800 steps; with the smaller start
alone they were there after 240, when they were ended; with both they are at 6.2 then. Eight layers stay there with
both, and leave it from .03 at a quarter of the rate.
"""

from experiments.tables.shared import bert, claims, ladder, scales

SCALES = ('tiny', 'small', '1m', 'paper')

ROWS = {  # layers, width, heads: perplexity, MNLI, MRPC, SST-2; and the sizes when small
  '3 x 768, 12 heads': ((3, 768, 12), (5.84, 77.9, 79.8, 88.4), (1, 128, 4)),
  '6 x 768, 3 heads': ((6, 768, 3), (5.24, 80.6, 82.2, 90.7), (2, 128, 1)),
  '6 x 768, 12 heads': ((6, 768, 12), (4.68, 81.9, 84.8, 91.3), (2, 128, 4)),
  '12 x 768, 12 heads': ((12, 768, 12), (3.99, 84.4, 86.7, 92.9), (4, 128, 4)),
  '12 x 1024, 16 heads': ((12, 1024, 16), (3.54, 85.7, 86.9, 93.3), (4, 256, 4)),
  '24 x 1024, 16 heads': ((24, 1024, 16), (3.23, 86.6, 87.8, 93.7), (8, 256, 4)),
}
WIDE = {4: (0.042, 1e-3), 8: (0.03, 5e-4)}  # layers of 256 when small: deviation of the kernels' start, rate
COLUMNS = ('MNLI', 'MRPC', 'SST-2')


def sized(layers, width, heads):
  """Sizes of a trunk as its overrides."""
  return dict(num_layers=layers, hidden_dim=width, num_heads=heads, mlp_dim=4 * width)


def get_table(scale):
  """Takes a scale."""
  rows = {}
  mask_rate = scales.masks(scale, lifted=True)
  for name, (paper, published, small) in ROWS.items():
    sizes, keys = scales.SIZES | sized(*small), {}
    if scale == 'paper':
      keys = dict(model__overrides=sized(*paper))
    elif scale != 'tiny' and small[1] == 256:
      start, rate = WIDE[small[0]]
      sizes, keys = sizes | dict(init_std=start), dict(optim__rate=rate) if scale == 'small' else {}
    rows[name] = bert.bert(scale, 'bert/base.py', small=sizes, **keys, **mask_rate)
    rows[name] |= dict(published=claims.by_column(('perplexity', *COLUMNS), published))
  perplexity = dict(metric='validation/perplexity', of='pretraining', better='min')
  columns = {'perplexity': perplexity, **ladder.columns(scale, *COLUMNS)}
  return dict(
    title='BERT, Table 6: sizes',
    paper='Devlin et al. 2018, §5.2; perplexity of masked tokens of held-out text',
    mark='C',
    columns=columns,
    rows=rows,
    claims=claims.claimed(
      columns,
      rows,
      ('12 x 768, 12 heads', '3 x 768, 12 heads'),
      ('24 x 1024, 16 heads', '12 x 768, 12 heads'),
      ('6 x 768, 12 heads', '6 x 768, 3 heads', ()),
      asked=('perplexity', *COLUMNS, *ladder.asked(scale)),
    ),
    **scales.seeds(scale),
    summary='best point on dev' if scale == '1m' else 'mean',
    reference='24 x 1024, 16 heads',
    note=''
    if scale == 'paper'
    else 'Here a third of the layers, widths of 128 for 768 and 256 for 1024. The two of 256 have smaller '
    f'starts{" and lower rates" if scale == "small" else ""}; 40 % of the tokens are masked.',
  )
