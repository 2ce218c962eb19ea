"""DistilBERT from BERT base: Sanh et al. 2019, §3; Tables 1 and 4.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/bert/base.py --workdir=runs/bert/base
plm-jax train --config=experiments/distilbert/base.py --workdir=runs/distilbert/base

Hardware: the paper took 90 hours on 8 V100. An epoch has about 2.2 billion tokens (10 GB of text). Slice, cycles
unknown: v5e:4x4, 1.7 hours at 40 % of peak.
Expect, fine-tuned (GLUE dev average, Table 1): 77.0, against 79.5 of BERT base.
Table 4 has what is lost without a term: no_kl -2.96, no_cosine -1.46, no_mlm -.31, random_init -3.69.

Arguments: `quick`, or one of `no_kl`, `no_cosine`, `no_mlm`, `random_init`.
Differs from the paper: English Wikipedia without BooksCorpus, and a vocabulary trained on it; pieces of documents
packed side by side with attention kept inside them; the share of corrupted tokens is that of a row, not of the batch.
"""

from experiments import common

ABLATIONS = ('whole', 'no_kl', 'no_cosine', 'no_mlm', 'random_init')
TEACHER = 'runs/bert/base'


def get_config(arg=''):
  """Takes `quick` and one of `ABLATIONS`."""
  ablation = common.chosen(arg, ABLATIONS)
  c = common.run(arg, choices=ABLATIONS, epochs=3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='distilbert-base')
  c.objective = dict(
    name='distill',
    teacher=dict(name='bert', variant='bert-base'),
    where=dict(name='frequency', rate=0.15, smoothing=0.7),
    edit=dict(name='bert_80_10_10'),
    temperature=2.0,
    kl_weight=0.0 if ablation == 'no_kl' else 5.0,
    mlm_weight=0.0 if ablation == 'no_mlm' else 2.0,
    cosine_weight=0.0 if ablation == 'no_cosine' else 1.0,
  )
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=4096)
  c.accumulate = 16
  c.optim = dict(
    name='adamw',
    rate=5e-4,
    schedule='linear',
    warmup=0.05,
    clip=5.0,
    b1=0.9,
    b2=0.98,
    eps=1e-6,
    scale=(('teacher/.*', None), ('.*', 1.0)),
  )
  c.init_from = (dict(source=TEACHER, from_='', to='teacher'),)
  if ablation != 'random_init':  # every other layer, and all that is no layer
    student = (dict(source=TEACHER, layers=(0, 2, 4, 7, 9, 11)), dict(source=TEACHER, from_='mlm', to='mlm'))
    c.init_from = (*c.init_from, *student)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
