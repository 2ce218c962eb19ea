"""ULMFiT, stage 1: an AWD-LSTM language model of general text, Howard and Ruder 2018, §3.1.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --size=30000 --out=runs/vocab/ulmfit
plm-jax train --config=experiments/ulmfit/pretrain.py --workdir=runs/ulmfit/pretrain

`small` has layers of 256, 256 and 128 and the vocabulary and text of experiments/small/pretrain.py. `asgd` has the
optimiser of Merity et al. 2018 in place of Adam: the mean of the parameters is evaluated, from the evaluation on at
which the loss was worse than the best one of those before the last five (NT-ASGD). `backward` reads
the text from its end, for the second of two classifiers whose predictions are averaged.

Hardware: not published; `small` takes two CPU cores an hour. An epoch has about 2.2 billion tokens (10 GB of text).
Slice: v5e:2x2, 23 hours by cycles.
Expect: no published figure for the language model; Merity et al. have a perplexity of 65.8 on WikiText-2 (test, words,
33 M parameters, asgd).
Arguments: a size (full, small), an optimiser (adam, asgd), a direction (forward, backward), `quick`.
Differs from the paper: English Wikipedia for WikiText-103 and subwords for words; windows of 70 tokens, where the paper
draws their lengths; 10 epochs; Adam's rate rises and falls by the slanted triangle, where the released code has cycles,
and is the same for all layers, where that code divides it by 6 for the first group of layers and by 3 for the second.
"""

from experiments import common

ADAM = dict(name='adam', rate=3e-4, schedule='stlr', b1=0.8, b2=0.99, decay=1e-7, clip=0.3)
ASGD = dict(name='asgd', rate=30.0, schedule='constant', nonmonotone=5, decay=1.2e-6, clip=0.25)


def get_config(arg=''):
  """Takes a size, an optimiser, a direction and `quick`."""
  size, optimiser = common.chosen(arg, ('full', 'small')), common.chosen(arg, ('adam', 'asgd'))
  c = common.run(arg, choices=('full', 'small', 'adam', 'asgd', 'forward', 'backward'), epochs=10)
  c.vocab = dict(name='byte_bpe', path=common.vocab('ulmfit'))
  c.model = dict(name='awd_lstm', variant='ulmfit', overrides=dict(common.AWD_LSTM[size], dropout=0.5))
  c.objective = dict(name='causal_lm', memory=True, activation=2.0, temporal=1.0)
  c.data = dict(name='bptt', path=common.corpus('wiki'), length=70, batch_size=64)
  c.data['reverse'] = common.chosen(arg, ('forward', 'backward')) == 'backward'
  c.optim = dict(ADAM if optimiser == 'adam' else ASGD)
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  c.eval_every, c.save_every = 1_000, 1_000
  if size == 'small':
    c.vocab.path, c.model.overrides.dropout = common.vocab('small'), 0.25
    c.data.path, c.data.batch_size, c.epochs, c.steps = 'runs/data/english', 32, None, 4_000
    if optimiser == 'adam':
      c.optim.rate = 3e-3
    else:
      c.eval_every = 200  # the mean cannot begin before the seventh evaluation
  return common.quick(c, arg)
