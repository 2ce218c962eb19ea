"""The tiny BERT of the quickstart learns what a text is about: a part of a row has to find its row among 32.

plm-jax train --config=experiments/quickstart/contrast.py --workdir=runs/quickstart/contrast

Paper: Kong et al. 2020, InfoWord, §4, as a run of its own that goes on from masked language modelling (`pretrain.py`).
Hardware: two CPU cores, 1 minute (a row costs .86 of the operations of one of `pretrain.py`).
Expect (measured, one run): accuracy on validation .54, 1.31 nats. What it is worth: `classify.py`.
Differs from the paper: parts of 1 to 32 tokens in place of 1 to 5, about as long as those of the inverse cloze task
(Lee et al. 2019), so that the subject and not a neighbouring word tells rows apart; means of states compared by cosine,
at the temperature of SimCSE; no masked language modelling in the same step.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=500)
  c.vocab = dict(name='byte_bpe', path=common.QUICK_VOCAB)
  sizes = dict(init_std=0.06, position_init='sinusoids', dropout=0.0, attention_dropout=0.0)
  c.model = dict(name='bert', variant='tiny', overrides=sizes)
  c.objective = dict(
    name='contrastive', partners='ngram', similarity_of='cosine', temperature=0.05, pool='mean', longest=32
  )
  c.data = dict(name='stream', path=common.corpus('pydocs'), length=64, batch_size=32)
  c.optim = dict(name='adamw', rate=2e-3, schedule='linear', warmup=0.1, decay=common.NO_DECAY_ON_NORMS, clip=1.0)
  c.execution = dict(layers='loop')
  c.init_from = (dict(source='runs/quickstart/pretrain', from_='trunk', to='trunk'),)
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 40, 250, 250
  return common.quick(c, arg)
