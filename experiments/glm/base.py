"""GLM base: Du et al. 2021, "General Language Model Pretraining with Autoregressive Blank Infilling", §3.1; 110M.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/glm/base.py --workdir=runs/glm/base

Token level only: blanks of 3.2 tokens on average that hold 15 % of a text.

Hardware: not published. Slice, cycles unknown: v5e:4x4, 16 hours at 40 % of peak. A lost chip costs at most 16 minutes.
Expect: a validation loss above that of BERT base, whose masked tokens see both sides; the paper prints no loss, and no
score of this size is at hand.

Arguments: `quick`.
Differs from the paper: Wikipedia alone (BooksCorpus is not distributed), its own vocabulary, rows of one document; a
document's special tokens stay out of blanks. The batch of 1,024 rows is what 16 rows a GPU make on 64 GPUs.
"""

from experiments import common

# behind BERT's 30,522; the table is padded to 30,592 rows
EXTRA = ('<|startofpiece|>', '<|endofpiece|>')


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=150_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'), extra=EXTRA)
  c.model = dict(name='glm', variant='glm-base', overrides=dict(vocab_multiple=128))
  c.objective = dict(name='blank_infilling', start=EXTRA[0], end=EXTRA[1], slots=64)
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='rows', length=512, batch_size=1024)
  c.accumulate = 4  # what fits its slice
  c.optim = dict(
    name='adamw',
    rate=4e-4,
    schedule='cosine',
    warmup=0.04,  # .05 of the 120,000 steps of decay
    floor=0.05,
    until=0.8,
    decay=common.no_decay_on_norms(0.1),
    clip=1.0,
    b1=0.9,
    b2=0.98,
    eps=1e-6,
  )
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
