"""MPNet's network, with absolute positions and biases of distances: Song et al. 2020, §2 and §3.1.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30527 --out=runs/vocab/mpnet
plm-jax train --config=experiments/mpnet/pretrain.py --workdir=runs/mpnet/base

The published checkpoints (mpnet-base, all-mpnet-base-v2) are read by --config.model.from=FOLDER of any fine-tuning.

Hardware: the paper used 32 V100 GPUs.
Expect, fine-tuned (dev, Table 2): MNLI 88.5, QNLI 93.3, SST-2 95.4, CoLA 65.0.

Argument: `quick`.
Differs from the paper: masked tokens without the permutation, so the network does not see the positions of the tokens
that it predicts later; whole words by WordPiece; English Wikipedia in place of 160 GB of text, and a vocabulary
trained on it.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=500_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('mpnet'))
  c.model = dict(name='bert', variant='mpnet-base')
  c.objective = dict(name='mlm', where=dict(name='whole_word', rate=0.15), edit=dict(name='bert_80_10_10'))
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=8192)
  c.optim = dict(name='adamw', rate=6e-4, schedule='linear', warmup=24_000, decay=0.01, b1=0.9, b2=0.98, eps=1e-6)
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
