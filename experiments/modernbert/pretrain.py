"""ModernBERT: masked language modelling at 1,024 tokens, then 8,192: Warner et al. 2024, §3; Table 3.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --size=50368 --out=runs/vocab/modernbert
plm-jax train --config=experiments/modernbert/pretrain.py --workdir=runs/modernbert/base
plm-jax train --config=experiments/modernbert/pretrain.py:long --workdir=runs/modernbert/long

Hardware: the paper used 8 H100 GPUs.
Expect, fine-tuned (GLUE dev average, Table 1): base 88.4, large 90.4.

Arguments: `quick`; a size, `base` or `large`; `long` continues a finished run with sequences of 8,192 tokens.
Differs from the paper: English Wikipedia in place of two trillion tokens, with a vocabulary trained on it; AdamW with
clipped gradients in place of StableAdamW; batches of one size; no decay of the rate at the end; large starts from
fresh parameters. `long` raises the base of the global angles; `pretrain.py` has the 10,000 of the first phase.
"""

from experiments import common

# rate, sequences of 1,024 tokens, updates
SIZES = {'base': (8e-4, 4608, 364_000), 'large': (5e-4, 4928, 341_000)}


def get_config(arg=''):
  """Takes `quick`, a size and `long`."""
  size, longer = common.chosen(arg, tuple(SIZES)), 'long' in common.words(arg)
  rate, batch_size, steps = SIZES[size]
  c = common.run(arg, choices=(*SIZES, 'long'), steps=53_000 if longer else steps)
  c.vocab = dict(name='byte_bpe', path=common.vocab('modernbert'))
  c.model = dict(name='modernbert', variant=f'modernbert-{size}')
  c.model.overrides = {} if longer else dict(global_base=10_000.0)
  c.objective = dict(name='mlm', where=dict(name='fixed_count', rate=0.3), edit=dict(name='bert_80_10_10'))
  c.data = dict(
    name='stream',
    path=common.corpus('wiki'),
    length=8192 if longer else 1024,
    batch_size=batch_size // 8 if longer else batch_size,
  )
  c.optim = dict(
    name='adamw',
    rate=3e-4 if longer and size == 'base' else 5e-5 if longer else rate,
    schedule='constant',
    warmup=0 if longer else 640,
    decay=(*common.NO_DECAY_ON_NORMS[:-1], ('.*', 1e-5)),
    clip=1.0,
    b1=0.9,
    b2=0.98,
    eps=1e-6,
  )
  if longer:
    c.init_from = (dict(source=f'runs/modernbert/{size}', from_='', to=''),)
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
