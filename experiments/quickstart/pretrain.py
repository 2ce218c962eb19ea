"""A tiny BERT pre-trained on docstrings: masked language modelling in minutes on a laptop, no download.

python -m plm_jax.vocab train --source=pydocs --name=byte_bpe --size=6000 --out=runs/quickstart/vocab
python -m plm_jax.train --config=experiments/quickstart/pretrain.py --workdir=runs/quickstart/pretrain

Paper: Devlin et al. 2018, the network of "BERT-Tiny" (2 layers, 128 wide; Turc et al. 2019).
Hardware: two CPU cores, 3 minutes.
Expect: the validation loss falls from ln(6000) = 8.7 to 5.97 nats a masked token, with 14 % of them guessed right; of
1,000 steps to 5.82, and of 1,200, in which the network learns to look at its neighbours, to 5.35 with 23 %.
Differs from the paper: no next-sentence prediction, masks drawn anew at each step, byte-level BPE, rate 2e-3, a wider
start and no dropout (measured: with dropout 900 steps end at 5.97).
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=3200)
  c.vocab = dict(name='byte_bpe', path=common.QUICK_VOCAB)
  c.model = dict(name='bert', variant='tiny', overrides=dict(init_std=0.06, dropout=0.0, attention_dropout=0.0))
  c.objective = dict(name='mlm', where=dict(name='fixed_count', rate=0.4), edit=dict(name='bert_80_10_10'))
  c.data = dict(name='stream', path=common.corpus('pydocs'), length=64, batch_size=16)
  c.optim = dict(name='adamw', rate=2e-3, schedule='linear', warmup=0.1, decay=common.NO_DECAY_ON_NORMS, clip=1.0)
  c.execution = dict(layers='loop')  # two layers: unrolled, a CPU runs them faster
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 80, 800, 800
  return common.quick(c, arg)
