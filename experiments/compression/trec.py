"""A small BERT on TREC's six classes of questions, and four ways to make it smaller.

plm-jax vocab train --source=../shared/data/trec --name=byte_bpe --size=4000 --text=text \\
    --out=runs/vocab/trec
plm-jax train --config=experiments/compression/trec.py --workdir=runs/compression/base
plm-jax train --config=experiments/compression/trec.py:prune --workdir=runs/compression/prune
plm-jax train --config=experiments/compression/trec.py:quantise --workdir=runs/compression/quantise
plm-jax train --config=experiments/compression/trec.py:distil --workdir=runs/compression/distil
plm-jax train --config=experiments/compression/trec.py:share --workdir=runs/compression/share
plm-jax compress --workdir=runs/compression/base --methods=int8,prune:0.5,prune:0.9,heads:0.25,layers:0.5 \\
    --beside=runs/compression/prune,runs/compression/distil,runs/compression/share --out=runs/compression/small
plm-jax compress --workdir=runs/compression/quantise --methods=int8 --out=runs/compression/small-quantise

Papers: Zhu & Gupta 2017 (prune), Jacob et al. 2017 (quantise), Turc et al. 2019 (distil), Lan et al. 2019 (share).
Hardware: two CPU cores, a few minutes each.
Expect (measured, one seed, best of four or eight checkpoints by the same 545 validation rows, 1.06 M parameters):
  base 82.9 %; int8 82.9 at .27 of the memory and of the disk; half of the weights 0 at once 82.9, nine tenths 61.8, and
  82.9 when trained with the schedule (prune); a quarter of the heads 0 82.8; every other layer 80.4 in .62 of the time
  (.17 of the memory as int8). Zeros saved no time: 1.00 to 1.02.
Measured in a short form (300 steps of base, then 100 each of prune and quantise, 150 each of distil and share):
  base 81.3 %; int8 81.3; half of the weights 0 at once 80.2, nine tenths 56.0, and 78.7 with the schedule; a quarter of
  the heads 0 79.8; every other layer 75.6 in .68 of the time; quantise 81.7; distil, two layers, 81.7 in .58 of the
  time; share 73.9 with .44 of the parameters. int8 of quantise has its accuracy and its loss to the last digit, at .27
  of its memory.
Expect (papers, larger networks): int8 within a point (Zafrir et al. 2019, Table 1); nine tenths of an LSTM or a CNN
  pruned with a schedule within a few points (Zhu & Gupta 2017).
Differs from the paper: nothing is pre-trained, one small set, weights alone are in 8 bits.
"""

from experiments import common

WAYS = ('base', 'prune', 'quantise', 'distil', 'share')
BASE = 'runs/compression/base'
SIZES = dict(hidden_dim=128, num_heads=4, mlp_dim=512, max_length=64, embed_dim=64)


def get_config(arg=''):
  """Takes `quick` and one of `WAYS`."""
  way = common.chosen(arg, WAYS)
  c = common.run(arg, choices=WAYS, steps=400 if way in ('prune', 'quantise') else 800)
  c.vocab = dict(name='byte_bpe', path=common.vocab('trec'))
  whole = dict(name='bert', variant='tiny', overrides=dict(SIZES, num_layers=4))
  c.model = whole
  head = dict(name='classify', classes=6, pool='mean')
  c.adapter = head
  c.data = dict(
    name='labelled', path='../shared/data/trec', split='train[:90%]', fields=('text',), label='label-coarse', length=64,
    buckets=(16, 32), batch_size=32, layout='bert',
  )  # fmt: skip
  c.optim = dict(name='adamw', rate=1e-3, schedule='linear', warmup=0.1, decay=common.NO_DECAY_ON_NORMS, clip=1.0)
  if way == 'prune':
    c.adapter = dict(name='prune', sparsity=0.9, begin=0, end=250, every=25, inner=head)
  elif way == 'quantise':
    c.adapter = dict(name='quantise', inner=head)
  elif way == 'distil':
    c.model = dict(whole, overrides=dict(SIZES, num_layers=2))
    c.adapter = dict(name='distil', teacher=whole, inner=head)
    own = (dict(source=BASE, layers=(0, 2)), dict(source=BASE, from_='head', to='head'))
    c.init_from = (dict(source=BASE, from_='', to='distil'), *own)
  elif way == 'share':
    c.model = dict(name='albert', variant='tiny', overrides=dict(SIZES, num_layers=4))
  if way in ('prune', 'quantise'):
    c.init_from = (dict(source=BASE, from_='', to=''),)
    c.optim.rate = 3e-4
  c.execution = dict(layers='loop')
  c.eval = dict(
    validation=dict(data=dict(split='train[90%:]', batch_size=64)), test=dict(data=dict(split='test', batch_size=64))
  )
  c.best = ('validation/accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 100, 100
  return common.quick(c, arg)
