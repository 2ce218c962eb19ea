"""BERT, Table 6: sizes (Devlin et al. 2018, §5.2).

python -m plm_jax.tables experiments/tables/bert_6.py --scale=small --workdir=runs/tables --data=../shared/data

Small: a third of the layers, widths of 128 and 256; the largest row has 7 million parameters and takes hours. Kernels
of the wider networks start from .06 / sqrt(2), and their rate is half as high. With the start and the rate of the other
rows four layers of 256 stay on the plateau of word frequencies, 6.7 nats, for all of 800 steps; with the smaller start
alone they were there after 240, when they were ended; with both they are at 6.2 then.
"""

from experiments.tables import common

ROWS = {  # layers, width, heads: perplexity, MNLI, MRPC, SST-2; and the sizes when small
  '3 x 768, 12 heads': ((3, 768, 12), (5.84, 77.9, 79.8, 88.4), (1, 128, 4)),
  '6 x 768, 3 heads': ((6, 768, 3), (5.24, 80.6, 82.2, 90.7), (2, 128, 1)),
  '6 x 768, 12 heads': ((6, 768, 12), (4.68, 81.9, 84.8, 91.3), (2, 128, 4)),
  '12 x 768, 12 heads': ((12, 768, 12), (3.99, 84.4, 86.7, 92.9), (4, 128, 4)),
  '12 x 1024, 16 heads': ((12, 1024, 16), (3.54, 85.7, 86.9, 93.3), (4, 256, 4)),
  '24 x 1024, 16 heads': ((24, 1024, 16), (3.23, 86.6, 87.8, 93.7), (8, 256, 4)),
}
COLUMNS = ('MNLI', 'MRPC', 'SST-2')


def sized(layers, width, heads):
  """Sizes of a trunk as its overrides."""
  return dict(num_layers=layers, hidden_dim=width, num_heads=heads, mlp_dim=4 * width)


def get_table(scale):
  """Takes a scale."""
  rows = {}
  rate = common.masks(scale, lifted=True)
  for name, (paper, published, small) in ROWS.items():
    sizes, keys = common.SIZES | sized(*small), {}
    if scale == 'paper':
      keys = dict(model__overrides=sized(*paper))
    elif scale == 'small' and small[1] == 256:
      sizes, keys = sizes | dict(init_std=0.042), dict(optim__rate=1e-3)
    rows[name] = common.pretraining(scale, 'bert/base.py', 'mlm', small=sizes, **keys, **rate)
    rows[name] |= dict(published=common.by_column(('perplexity', *COLUMNS), published))
  perplexity = dict(metric='validation/perplexity', of='pretraining', better='min')
  return dict(
    title='BERT, Table 6: sizes',
    paper='Devlin et al. 2018, §5.2; perplexity of masked tokens of held-out text',
    mark='C',
    columns={'perplexity': perplexity, **common.columns(scale, *COLUMNS)},
    rows=rows,
    claims=common.claims(
      ('perplexity', *COLUMNS),
      ('12 x 768, 12 heads', '3 x 768, 12 heads'),
      ('24 x 1024, 16 heads', '12 x 768, 12 heads'),
      ('6 x 768, 12 heads', '6 x 768, 3 heads'),
    ),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference='24 x 1024, 16 heads',
    note=''
    if scale == 'paper'
    else 'Here a third of the layers, widths of 128 for 768 and 256 for 1024, half the rate for the latter; 40 % of '
    'the tokens are masked.',
  )
