"""Prefix tuning of an encoder: Liu et al. 2021, "P-Tuning v2", Table 2; after Li and Liang 2021, "Prefix-Tuning".

plm-jax train --config=experiments/prefix/rte.py --workdir=runs/prefix/rte

Hardware: one accelerator. RoBERTa-large trains 6.3M of 355M numbers, and its head.
Expect (dev, RoBERTa-large): 89.5 accuracy; 86.6 where all parameters train.

The two dense layers of Li and Liang, which make the vectors in training: --config.adapter.mlp_dim=512.

Arguments: `quick`.
Differs from the paper: rate, epochs and length are those of the released script as remembered, not of the paper, which
prints none; its head is one layer on the pooler, here RoBERTa's two layers on <s>.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=100)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bert', variant='roberta-large', overrides=dict(pooler='first'))
  c.data = common.glue('rte', length=128, batch_size=32, layout='roberta')
  c.adapter = dict(name='prefix', length=128, mlp_dim=0, inner=dict(name='classify', classes=2, hidden=1024))
  c.optim = dict(name='adamw', rate=5e-3, schedule='linear', warmup=0.0, decay=0.0, clip=1.0)
  c.init_from = (dict(source='runs/roberta/large', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, 'rte')
  return common.quick(c, arg)
