"""GLM large: Du et al. 2021, §3.1; 335M.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/glm/large.py --workdir=runs/glm/large

Vocabulary, rows and blanks are those of base.py.

Hardware: not published. Slice, cycles unknown: v5e:4x4, 2.6 days at 40 % of peak. A lost chip costs at most 16 minutes.
Expect: as base.py.

Arguments: `quick`.
Differs from the paper: as base.py says.
"""

from experiments import common

# behind BERT's 30,522; the table is padded to 30,592 rows
EXTRA = ('<|startofpiece|>', '<|endofpiece|>')


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=200_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'), extra=EXTRA)
  c.model = dict(name='glm', variant='glm-large', overrides=dict(vocab_multiple=128))
  c.objective = dict(name='blank_infilling', start=EXTRA[0], end=EXTRA[1], slots=64)
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='rows', length=512, batch_size=1024)
  c.accumulate = 2  # what fits its slice
  c.optim = dict(
    name='adamw',
    rate=2e-4,
    schedule='cosine',
    warmup=0.04,  # .05 of the 160,000 steps of decay
    floor=0.05,
    until=0.8,
    decay=common.no_decay_on_norms(0.1),
    clip=1.0,
    b1=0.9,
    b2=0.98,
    eps=1e-6,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='fsdp')
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
