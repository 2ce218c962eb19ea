"""DeBERTa, masked language modelling with the enhanced mask decoder: He et al. 2021, §3 and A.2; version 2 as released.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --size=50265 --out=runs/vocab/deberta
plm-jax train --config=experiments/deberta/base.py --workdir=runs/deberta/base

Hardware: a pod of accelerators for a batch of 2048 rows of 512, in two parts; where memory ends, in more
(--config.accumulate=8). Slice, cycles unknown: `base` v5e:8x8, 48 hours at 40 % of peak. A lost chip costs at most 16
minutes.
Expect: the large network, fine-tuned (dev): MNLI 91.3/91.1 (m/mm), SQuAD 1.1 95.5/90.1, SQuAD 2.0 90.7/88.0 (F1/EM).

Arguments: a size (base, large, xlarge, xxlarge; the last two are version 2); `script` takes the released script's
batch of 256 rows at a rate of 1e-4; `printed` reads equation 4 as it is printed instead of as it was coded; `quick`.

Differs from the paper: English Wikipedia alone, of 78 GB of text; a vocabulary of our own, trained on it, and for
version 2 byte-level BPE in place of SentencePiece; pieces of documents packed side by side, with attention inside them;
xlarge and xxlarge take the settings of large, whose scripts are for batches of 32. Moments without bias correction and
the warm-up that replaces the decayed rate are those of the released code.
"""

from experiments import common

SIZES = {
  'base': 'deberta-base',
  'large': 'deberta-large',
  'xlarge': 'deberta-v2-xlarge',
  'xxlarge': 'deberta-v2-xxlarge',
}


def get_config(arg=''):
  """Takes a size, `script`, `printed` and `quick`."""
  c = common.run(arg, choices=(*SIZES, 'script', 'printed'), steps=1_000_000)
  size = common.chosen(arg, tuple(SIZES))
  script = 'script' in common.words(arg)
  c.vocab = dict(name='byte_bpe', path=common.vocab('deberta-v2' if 'xlarge' in size else 'deberta'))
  c.model = dict(name='deberta', variant=SIZES[size])
  c.objective = dict(
    name='emd_mlm',
    where=dict(name='ngram_windows', rate=0.15, max_count=80, max_words=3),
    edit=dict(name='bert_80_10_10'),
    masking='dynamic',
  )
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=256 if script else 2048)
  c.accumulate = 1 if script else 2  # what fits the slice of base
  c.optim = common.bert_adam(1e-4 if script else 2e-4, warmup=10_000)
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp' if 'xlarge' in size else 'data')
  c.execution = dict(dtype='bfloat16', remat='dots' if 'xlarge' in size else 'none')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  c = common.quick(c, arg)
  if 'printed' in common.words(arg):
    c.model = dict(c.model, overrides=dict(reading='paper'))
  return c
