"""Sentence vectors by dropout alone or from inference pairs: Gao et al. 2021, SimCSE, §3 and §4.

plm-jax train --config=experiments/bert/base.py --workdir=runs/bert/base
plm-jax train --config=experiments/contrastive/simcse.py --workdir=runs/contrastive/simcse
plm-jax evaluate --config=experiments/sts/similarity.py --workdir=runs/contrastive/simcse
python launch/nli_triples.py snli_folder runs/data/nli_triples
plm-jax train --config=experiments/contrastive/simcse.py:supervised --workdir=runs/contrastive/simcse_sup

--config.model.from=FOLDER begins with a published BERT, as the paper does.
Hardware: any one accelerator; an epoch has rows of 32 tokens.
Expect (Table 5, BERT-base, Spearman x 100; the step is the best on STS-B's validation part):
              sts12  sts13  sts14  sts15  sts16  stsb   sickr_test  average
  without     68.40  82.41  74.38  80.91  78.56  76.85  72.23       76.25
  supervised  75.30  84.67  80.19  85.40  80.82  84.25  80.39       81.57

Arguments: `supervised`, an anchor, an entailed text and a contradiction as hard negative; `mlm` adds masked language
modelling with weight .1; `quick`.
Differs from the paper: pieces of Wikipedia of up to 32 tokens for single sentences; parameters come from our own BERT;
vectors are those of the trunk's pooler after training too, which the unsupervised paper uses in training only.
"""

from experiments import common


def get_config(arg=''):
  """Takes `supervised`, `mlm` and `quick`."""
  supervised = 'supervised' in common.words(arg)
  length = dict(epochs=3) if supervised else dict(steps=15_625)
  c = common.run(arg, choices=('supervised', 'mlm'), **length)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-base')
  c.objective = dict(
    name='contrastive',
    partners='fields' if supervised else 'dropout',
    hard_negatives=supervised,
    similarity_of='cosine',
    temperature=0.05,
    pool='trunk',
    mlm_weight=0.1 if 'mlm' in common.words(arg) else 0.0,
  )
  pairs = dict(common.glue('stsb', layout='bert', length=128, batch_size=64), split='validation')
  if supervised:
    triples = dict(path='runs/data/nli_triples', fields=('anchor', 'entailment', 'contradiction'))
    c.data = dict(name='labelled', layout='bert', kind='class', length=96, batch_size=512, **triples)
  else:
    c.data = dict(name='stream', path=common.corpus('wiki'), layout='rows', length=32, batch_size=64)
  c.optim = dict(name='adamw', rate=5e-5 if supervised else 3e-5, schedule='linear')
  c.init_from = (dict(source='runs/bert/base'),)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.eval = dict(stsb=dict(data=pairs, scores=('correlation',)))
  c.best = ('stsb/spearman', 'max')
  c.eval_every, c.save_every = 250, 250
  return common.quick(c, arg)
