"""A tiny BERT pre-trained on docstrings: masked language modelling in minutes on a laptop, no download.

plm-jax vocab train --source=pydocs --name=byte_bpe --size=6000 --out=runs/quickstart/vocab
plm-jax train --config=experiments/quickstart/pretrain.py --workdir=runs/quickstart/pretrain

Paper: Devlin et al. 2018, the network of "BERT-Tiny" (2 layers, 128 wide; Turc et al. 2019).
Hardware: two CPU cores, 2 minutes.
Expect (measured, one run): the validation loss leaves the plateau near 6.1 nats a masked token, where only frequencies
of words are known, after some 300 steps and ends at 4.79, with 28 % guessed right; "Returns the [MASK] of the array."
is filled with array, input, shape, number, tuple. 1,600 steps end at 4.47 and 30 %, and at 4.56 with positions from
random vectors; rows of 128, 16 a step, at 4.61. The remaining time is worth more in `contrast.py`, which goes on here.
Differs from the paper: no next-sentence prediction, masks drawn anew at each step, byte-level BPE, rate 2e-3, 40 % of
the tokens chosen instead of 15 % and rows of 64 (a small network learns more from as many tokens), a wider start, that
of positions from sinusoids, and no dropout.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=1100)
  c.vocab = dict(name='byte_bpe', path=common.QUICK_VOCAB)
  sizes = dict(init_std=0.06, position_init='sinusoids', dropout=0.0, attention_dropout=0.0)
  c.model = dict(name='bert', variant='tiny', overrides=sizes)
  c.objective = dict(name='mlm', where=dict(name='fixed_count', rate=0.4), edit=dict(name='bert_80_10_10'))
  c.data = dict(name='stream', path=common.corpus('pydocs'), length=64, batch_size=32)
  c.optim = dict(name='adamw', rate=2e-3, schedule='linear', warmup=0.1, decay=common.NO_DECAY_ON_NORMS, clip=1.0)
  c.execution = dict(layers='loop')  # two layers: unrolled, a CPU runs them faster
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 40, 400, 400
  return common.quick(c, arg)
