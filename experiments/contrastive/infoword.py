"""Masked language modelling and n-grams against the rows they come from: Kong et al. 2020, InfoWord, §4.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/contrastive/infoword.py --workdir=runs/contrastive/infoword

Hardware: that of experiments/bert/base.py, with about twice the work a row: one pass for each of the two terms. Slice,
at 40 % of peak: v5e:4x4, 7.9 hours.
Expect: MLM as in experiments/bert/base.py, and a rising accuracy of telling a row's own n-gram from those of the batch.
No published figure is reproduced here.

Arguments: `quick`; `pairwise` sets each row against one other instead of all (Arora et al. 2019).
Differs from the paper: a pass of its own for each term; one n-gram of 1 to 5 tokens a row; no BooksCorpus, and a
vocabulary trained on Wikipedia; both terms weigh 1, and batch, rate and steps are BERT's at a length of 128.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick` and `pairwise`."""
  c = common.run(arg, choices=('pairwise',), steps=1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-base')
  c.objective = dict(
    name='contrastive',
    partners='ngram',
    similarity_of='dot',
    temperature=1.0,
    negatives=1 if 'pairwise' in common.words(arg) else None,
    pool='trunk',
    longest=5,
    mlm_weight=1.0,
    where=dict(name='fixed_count', rate=0.15, max_count=20),
  )
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='rows', length=128, batch_size=256)
  c.optim = common.bert_adam(1e-4, warmup=10_000)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
