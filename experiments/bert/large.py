"""BERT large, masked words and next sentences: Devlin et al. 2018, §3.1 and A.2; Tables 1 and 6, last row.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/bert/large.py --workdir=runs/bert/large

Hardware: the paper took 4 days on 16 Cloud TPUs (64 chips). Slice: v5e:8x8, 15 hours by cycles. A lost chip costs at
most 9 minutes.
Expect, fine-tuned (dev, Table 6): MNLI-m 86.6, MRPC 87.8, SST-2 93.7; held-out perplexity of masked tokens 3.23.
These are with BooksCorpus.

Arguments: `quick`; `mlm` leaves next-sentence prediction out.
Differs from the paper: as base.py says; all steps have rows of 512; parameters are spread over the devices.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick` and `mlm`."""
  c = common.run(arg, choices=('mlm',), steps=1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-large')
  c.objective = dict(
    name='sentence_pair',
    question='nsp',
    where=dict(name='fixed_count', rate=0.15, max_count=77),
    edit=dict(name='bert_80_10_10'),
    masking='static',
    copies=10,
  )
  c.data = dict(name='pairs', sentences='both', path=common.corpus('wiki'), length=512, batch_size=256, copies=10)
  if 'mlm' in common.words(arg):
    c.objective = {key: value for key, value in c.objective.items() if key != 'question'} | {'name': 'mlm'}
    c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=256)
  c.optim = common.bert_adam(1e-4, warmup=10_000)
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots', layers='auto')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
