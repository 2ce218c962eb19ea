"""ELECTRA base: Clark et al. 2020, §2 and appendix A; Table 1, last row.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/electra/base.py --workdir=runs/electra/base

Hardware: the paper took 4 days on 16 TPU v3 chips. Slice: v5e:4x4, 15 hours at 40 % of peak. A lost chip costs at most
12 minutes.
Expect, fine-tuned (GLUE dev average): 85.1, against 82.2 of BERT base; on the test set 82.7.

Arguments: `quick`.
Differs from the paper: English Wikipedia without BooksCorpus, and a vocabulary trained on it; pieces of documents
packed side by side with attention kept inside them; a position that is drawn twice counts once.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=766_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='electra-base')
  c.objective = dict(
    name='rtd',
    generator=dict(name='bert', variant='electra-base-generator'),
    where=dict(name='with_replacement', rate=0.15, max_count=79),
    weight=50.0,
  )
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=256)
  c.optim = common.bert_adam(2e-4, warmup=10_000, schedule='gpt')  # warmup scales the decayed rate, as released
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16', layers='auto')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
