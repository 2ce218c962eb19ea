"""ELECTRA large: Clark et al. 2020, §2 and appendix A; Tables 2 and 3.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/electra/large.py --workdir=runs/electra/large

Hardware: not measured; parameters are spread over the devices. Slice, cycles unknown: v5e:16x16, 12 hours at 40 % of
peak. A lost chip costs at most 15 minutes.
Expect, fine-tuned (GLUE dev average): 89.0 after 400k steps, 89.5 after 1.75M, against 88.9 of RoBERTa with 500k.

Arguments: `quick`.
Differs from the paper: English Wikipedia for the data of XLNet, and a vocabulary trained on it; pieces of documents
packed side by side with attention kept inside them; a position that is drawn twice counts once.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=400_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='electra-large')
  c.objective = dict(
    name='rtd',
    generator=dict(name='bert', variant='electra-large-generator'),
    where=dict(name='with_replacement', rate=0.25, max_count=130),
    weight=50.0,
  )
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=2048)
  c.optim = common.bert_adam(2e-4, warmup=10_000, schedule='gpt')  # warmup scales the decayed rate, as released
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
