"""ERNIE: masks of phrases, and a table of tasks: Sun et al. 2019, ERNIE (§3) and ERNIE 2.0 (§3.2 and 4.1).

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/ernie/pretrain.py --workdir=runs/ernie/base

The published checkpoints (ernie-1.0, ernie-2.0-base-en, ernie-3.0) are read by --config.model.from=FOLDER of any
fine-tuning; their task table is used as transformers does by default, with task 0 for every token.

Hardware: ERNIE 2.0 used 48 V100 GPUs for the base size.
Expect, fine-tuned (GLUE test, ERNIE 2.0, Table 6): base 80.6 on average.

Argument: `quick`.
Differs from the paper: n-grams of words in place of phrases and entities that a chunker finds, and only this task of
the seven of ERNIE 2.0; English Wikipedia, and a vocabulary trained on it.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='ernie-2.0-base-en')
  c.objective = dict(name='mlm', where=dict(name='ngram', rate=0.15), edit=dict(name='bert_80_10_10'))
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=256)
  c.optim = dict(
    name='adamw', rate=5e-5, schedule='linear', warmup=4_000, decay=common.NO_DECAY_ON_NORMS, b1=0.9, b2=0.98
  )
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
