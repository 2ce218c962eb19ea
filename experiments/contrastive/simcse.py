"""Sentence vectors by dropout alone, from a pre-trained BERT: Gao et al. 2021, SimCSE, §3.

plm-jax train --config=experiments/bert/base.py --workdir=runs/bert/base
plm-jax train --config=experiments/contrastive/simcse.py --workdir=runs/contrastive/simcse

Hardware: any one accelerator; an epoch has rows of 32 tokens.
Expect: held-out accuracy of telling a row's own vector from those of 63 others; without dropout, at evaluation, the two
views are one, so the loss measures how far apart other rows are. No published figure is reproduced here.

Arguments: `quick`; `mlm` adds masked language modelling with weight .1.
Differs from the paper: pieces of Wikipedia of up to 32 tokens for single sentences; parameters come from our own BERT.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick` and `mlm`."""
  c = common.run(arg, choices=('mlm',), steps=15_625)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-base')
  c.objective = dict(
    name='contrastive',
    partners='dropout',
    similarity_of='cosine',
    temperature=0.05,
    pool='trunk',
    mlm_weight=0.1 if 'mlm' in common.words(arg) else 0.0,
  )
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='rows', length=32, batch_size=64)
  c.optim = dict(name='adamw', rate=3e-5, schedule='linear')
  c.init_from = (dict(source='runs/bert/base'),)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
