"""DeBERTa version 3, replaced token detection with gradient-disentangled embeddings: He et al. 2021, arXiv 2111.09543.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --size=128100 --out=runs/vocab/deberta-v2
plm-jax train --config=experiments/deberta/v3.py --workdir=runs/deberta/v3-base

Hardware: several accelerators for 256 rows of 512; the generator is half as deep as the discriminator. Slices, cycles
unknown: `base` v5e:8x8, 8 hours at 40 % of peak; `large` v5e:16x16, 7.8 hours by links. A lost chip costs at most 5
minutes.
Expect: no figures of this paper are at hand; the discriminator's loss falls below that of calling nothing replaced.

Arguments: a size (base, xsmall, small, large); `shared` lets both networks train one table of tokens, what §3.2
compares with; `quick`. Rates and batches are those of the released scripts (rtd.sh), but for small, of which they have
the sizes alone (rtd_small.json): it takes those of base. The weight of 50 is the paper's; the scripts' default is 10.

Differs from the paper: English Wikipedia alone, of a larger corpus; a vocabulary of our own, byte-level BPE in place of
SentencePiece; the generator predicts by the usual head and not by the enhanced mask decoder, and the table of
absolute positions that goes with it is not there to be shared; pieces of documents packed side by side. Moments without
bias correction and the warm-up that replaces the decayed rate are those of the released code.
"""

from experiments import common

# size: (layers of the generator, batch, rate)
SIZES = {'base': (6, 256, 1e-4), 'xsmall': (6, 64, 3e-4), 'small': (3, 256, 1e-4), 'large': (12, 256, 1e-4)}


def get_config(arg=''):
  """Takes a size, `shared` and `quick`."""
  c = common.run(arg, choices=(*SIZES, 'shared'), steps=1_000_000)
  size = common.chosen(arg, tuple(SIZES))
  layers, batch, rate = SIZES[size]
  variant = f'deberta-v3-{size}'
  c.vocab = dict(name='byte_bpe', path=common.vocab('deberta-v2'))
  c.model = dict(name='deberta', variant=variant)
  c.objective = dict(
    name='rtd',
    generator=dict(name='deberta', variant=variant, overrides=dict(num_layers=layers)),
    sharing='tokens' if 'shared' in common.words(arg) else 'gradient_disentangled',
    where=dict(name='fixed_count', rate=0.15, max_count=80),
    keep=0.0,  # every chosen token is hidden from the generator
    weight=50.0,
  )
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=batch)
  c.optim = common.bert_adam(rate, warmup=10_000)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
