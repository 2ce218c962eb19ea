"""UL2's mixture of denoisers on T5.1.1: Tay et al. 2022, "UL2: Unifying Language Learning Paradigms", §3.1 and Table 1.

plm-jax vocab train --source=hf://datasets/allenai/c4/en --name=byte_bpe --size=32000 \
    --specials=roberta --out=runs/vocab/t5
plm-jax train --config=experiments/t5/ul2.py --workdir=runs/t5/ul2

Hardware: TPU v4 pods. Slice: v5e:4x4, 13 hours by cycles. A lost chip costs at most 16 minutes.
Expect: the loss of each mode (`loss/R`, `loss/S`, `loss/X`) falls through the run; no published figure is of this size.

Each row takes one of seven denoisers: R, short spans and few; X, long spans or many; S, a suffix. Its mode token goes
first. Argument: `quick`.
Differs from the paper: byte-level BPE with 100 sentinels behind it for SentencePiece, the size and the steps of T5's
baseline.
"""

from experiments import common

SPANS = (
  ('[R]', 3.0, 0.15),
  ('[R]', 8.0, 0.15),
  ('[X]', 3.0, 0.5),
  ('[X]', 8.0, 0.5),
  ('[X]', 64.0, 0.15),
  ('[X]', 64.0, 0.5),
)
SUFFIX = dict(mode='[S]', where=dict(name='prefix', rate=0.25))


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=2**19)
  extra = (*common.SENTINELS, '[R]', '[S]', '[X]')
  c.vocab = dict(name='byte_bpe', path=common.vocab('t5'), extra=extra)
  c.model = dict(name='t5', variant='t5-v1_1-base')
  spans = tuple(dict(mode=mode, where=dict(name='exact_spans', rate=rate, mean=mean)) for mode, mean, rate in SPANS)
  c.objective = dict(name='denoise_seq2seq', packing='stream', denoisers=(*spans, SUFFIX))
  c.data = dict(name='stream', path=common.corpus('web'), layout='stream', end='', length=512, batch_size=128)
  c.optim = dict(name='adafactor', rate=0.01, schedule='inverse_sqrt', hold=10_000)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16', layers='auto')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
