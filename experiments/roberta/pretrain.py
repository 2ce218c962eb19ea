"""RoBERTa: masked language modelling of full sentences with masks drawn anew: Liu et al. 2019, §5; Table 9.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=byte_bpe --specials=roberta --size=50265 \\
    --out=runs/vocab/roberta
plm-jax train --config=experiments/roberta/pretrain.py --workdir=runs/roberta/base

Hardware: the paper took about a day on 1,024 V100 GPUs for 100,000 steps of the large model. Slices, cycles unknown:
`base` v5e:16x16, 17 hours at 40 % of peak; `large` v5e:16x16, 2.4 days at 40 % of peak. A lost chip costs at most 16
minutes.
Expect, fine-tuned (dev), base after 500,000 steps on 160 GB of text: MNLI 87.6, QNLI 92.8, QQP 91.9, RTE 78.7, SST-2
94.8, MRPC 90.2, CoLA 63.6, STS-B 91.2.

Arguments: `quick`; a size, `base` or `large`.
Differs from the paper: English Wikipedia in place of 160 GB of text (--config.data.path=FOLDER takes other), and a
vocabulary trained on it. Counts, random tokens, masked special tokens and the decay of all parameters are fairseq's.
"""

from experiments import common

SIZES = {'base': (6e-4, 24_000), 'large': (4e-4, 30_000)}


def get_config(arg=''):
  """Takes `quick` and a size."""
  size = common.chosen(arg, tuple(SIZES))
  rate, warmup = SIZES[size]
  c = common.run(arg, choices=tuple(SIZES), steps=500_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bert', variant=f'roberta-{size}')
  c.objective = dict(
    name='mlm',
    where=dict(name='fixed_count', rate=0.15, count='roberta', candidates='all'),  # fairseq: floor(.15 n + U), <s> too
    edit=dict(name='bert_80_10_10', random_ids='ordinary'),
    masking='dynamic',
  )
  c.data = dict(
    name='stream',
    layout='full',
    whole_sentences=True,
    sentences='both',
    path=common.corpus('wiki'),
    length=512,
    batch_size=8192,
  )
  c.optim = dict(
    name='adamw',
    rate=rate,
    schedule='linear',
    warmup=warmup,
    decay=0.01,  # of all parameters, as in fairseq
    b1=0.9,
    b2=0.98,
    eps=1e-6,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
