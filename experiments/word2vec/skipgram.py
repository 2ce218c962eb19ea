"""Word vectors by skip-gram or continuous bag of words with negative sampling: Mikolov et al. 2013, "Distributed
Representations of Words and Phrases and their Compositionality", §2; defaults of the released word2vec.c.

python -m plm_jax.vocab train --source=tfds:wiki40b/en --name=words --lowercase --size=400000 --out=runs/vocab/words
python -m plm_jax.train --config=experiments/word2vec/skipgram.py --workdir=runs/word2vec/skipgram
python -m plm_jax.vectors neighbours --workdir=runs/word2vec/skipgram --words=king

Hardware: two cores of a CPU; 5 to 14 thousand words a second beside other work.
Expect: neighbours that mean the like. Measured, one epoch of a quarter of 76 old novels, 3.0 M words, 30,000 of them in
the vocabulary: the loss of a pair falls from 4.16 (6 log 2) to 2.46, and `good` is nearest to natured, bad, clever and
pleasant. That is too little text for WordSim-353: gensim's word2vec with the same settings and text has -0.11 on it.

Arguments: `cbow`, the continuous bag of words at its rate, `quick`.
Differs from the paper: the text is Wikipedia; the pairs of BATCH rows move the vectors at once, by the sum of their
gradients, where word2vec.c moves them one by one; windows end at the ends of rows.
"""

from experiments import common

LENGTH, BATCH = 128, 8
RATES = {'skipgram': 0.025, 'cbow': 0.05}


def get_config(arg=''):
  """Takes `cbow` and `quick`."""
  architecture = common.chosen(arg, ('skipgram', 'cbow'))
  c = common.run(arg, choices=('skipgram', 'cbow'), epochs=5)
  c.vocab = dict(name='words', path=common.vocab('words'))
  c.model = dict(name='static', variant='word2vec')
  c.objective = dict(name='skipgram', architecture=architecture, window=5, negatives=5, subsample=1e-3, update='rows')
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='stream', length=LENGTH, batch_size=BATCH)
  c.optim = dict(name='sgd', rate=RATES[architecture], schedule='linear', warmup=0, floor=1e-4)
  c.eval, c.best = common.validation(), ('validation/loss', 'min')
  c.eval_every, c.save_every = 20_000, 20_000
  return common.quick(c, arg)
