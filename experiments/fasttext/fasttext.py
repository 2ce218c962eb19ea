"""Word vectors made of letters: Bojanowski et al. 2017, "Enriching Word Vectors with Subword Information", §3; defaults
of the released code (`fasttext skipgram`).

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=words --lowercase --size=400000 \
    --out=runs/vocab/words
plm-jax train --config=experiments/fasttext/fasttext.py --workdir=runs/fasttext/fasttext
plm-jax vectors neighbours --workdir=runs/fasttext/fasttext --words=unforeseeably

Hardware: two cores of a CPU, 2 GB for the vectors of words and n-grams.
Expect: vectors of words that were never seen, near to words of the same stem. Not measured yet: no run of this config
was compared with the released code. The trunk alone has no n-grams; `vectors save` writes whole vectors.

Arguments: `in_order`, vectors that move after each pair, as in the released code (needs `bash launch/setup.sh numba`);
`quick`.
Differs from the paper: the text is Wikipedia of one language edition; without `in_order` the pairs of eight rows move
the vectors at once, by the sum of their gradients; the vectors of words begin as U(-.5, .5) / d, there as U(-1, 1) / d.
"""

from experiments import common

LENGTH, BATCHES = 128, {'rows': 8, 'in_order': 128}


def get_config(arg=''):
  """Takes `in_order` and `quick`."""
  c = common.run(arg, choices=('rows', 'in_order'), epochs=5)
  c.vocab = dict(name='words', path=common.vocab('words'))
  c.model = dict(name='static', variant='word2vec')
  c.objective = dict(name='fasttext', window=5, negatives=5, shortest=3, longest=6, buckets=2_000_000)
  update = c.objective.update = common.chosen(arg, ('rows', 'in_order'))
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='stream', length=LENGTH, batch_size=BATCHES[update])
  c.optim = dict(name='sgd', rate=0.05, schedule='linear', warmup=0)
  c.eval, c.best = common.validation(), ('validation/loss', 'min')
  c.eval_every = c.save_every = 160_000 // BATCHES[update]
  return common.quick(c, arg)
