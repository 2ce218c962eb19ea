"""Which package a docstring is from, learnt from 8 labels a class: fine-tuning the tiny BERT of the quickstart.

plm-jax train --config=experiments/quickstart/classify.py --workdir=runs/quickstart/classify

Paper: the recipe of Devlin et al. 2018, §4.1; the task is ours (8 packages, their names masked in the text).
Hardware: two CPU cores, half a minute.
Expect (measured on test, three seeds, the better of two rates on validation): 54 % with 8 labels a class and 60 % with
32; from scratch (--config.init_from="[]") 31 % and 39 %; each seed gains 19 to 26 points. On validation 49 % against
32 % and 55 % against 37 %; chance is 12.5 %. From 1,600 steps of `pretrain.py` alone 44 % and 50 % on validation:
`contrast.py` teaches the subject. A linear classifier on TF-IDF of as many tokens has 48 % and 66 % on test, one on 128
factors of TF-IDF of the corpus 54 % and 63 %. With more steps of fine-tuning, scratch gains more with 32 labels.
`plm-jax sample_efficiency` with this config compares the two over seeds and sizes.
Differs from the paper: states pooled by the mean; rate 1e-3, as the network is small and new; 8 labels a class
(--config.data.per_class=32).
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=60)
  c.vocab = dict(name='byte_bpe', path=common.QUICK_VOCAB)
  c.model = dict(name='bert', variant='tiny', overrides=dict(init_std=0.06, position_init='sinusoids'))
  c.adapter = dict(name='classify', classes=8, pool='mean')
  c.data = dict(
    name='labelled', path='pydocs/package', fields=('text',), per_class=8, length=64, batch_size=16, layout='bert'
  )
  c.optim = dict(name='adamw', rate=1e-3, schedule='linear', warmup=0.1, decay=common.NO_DECAY_ON_NORMS, clip=1.0)
  c.execution = dict(layers='loop')
  c.init_from = (dict(source='runs/quickstart/contrast', from_='trunk', to='trunk'),)
  c.eval = {split: dict(data=dict(split=split, batch_size=64)) for split in ('validation', 'test')}
  c.best = ('validation/accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 20, 50, 50
  return common.quick(c, arg)
