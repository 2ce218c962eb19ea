"""Word vectors by skip-gram or continuous bag of words with negative sampling: Mikolov et al. 2013, "Distributed
Representations of Words and Phrases and their Compositionality", §2; defaults of the released word2vec.c.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=words --lowercase --size=400000 \
    --out=runs/vocab/words
plm-jax train --config=experiments/word2vec/skipgram.py --workdir=runs/word2vec/skipgram
plm-jax vectors neighbours --workdir=runs/word2vec/skipgram --words=king

Hardware: two cores of a CPU; 5 to 14 thousand words a second beside other work. An epoch has about 1.6 billion tokens
(10 GB of text). Slice: v5e:1x1, 11 hours by cycles.
Expect: neighbours that mean the like. Measured, one epoch of a quarter of 76 old novels, 3.0 M words, 30,000 of them in
the vocabulary: the loss of a pair falls from 4.16 (6 log 2) to 2.46, and `good` is nearest to natured, bad, clever and
pleasant. That is too little text for WordSim-353: gensim's word2vec with the same settings and text has -0.11 on it.

Arguments: `cbow`, the continuous bag of words at its rate; `hs`, a hierarchical softmax instead of negatives;
`in_order`, vectors that move after each pair, as in word2vec.c (needs `bash launch/setup.sh numba`); `quick`;
`vectors` trains on from a file in the form of word2vec or GloVe, whose width the model has to have:
  plm-jax train --config=experiments/word2vec/skipgram.py:vectors --workdir=runs/word2vec/further \\
    --config.init_from.0.source=vectors.txt --config.model.overrides.hidden_dim=50
Words that the file lacks begin as they would without it. No file has the output table, which begins with zeros.
Differs from the paper: the text is Wikipedia; without `in_order` the pairs of eight rows move the vectors at once, by
the sum of their gradients, where word2vec.c moves them one by one; windows end at the ends of rows. As there, `cbow`
moves each word of a bag by the whole error of their mean.
"""

from experiments import common

LENGTH, BATCHES = 128, {'rows': 8, 'in_order': 128}  # many pairs at once diverge, unless they are updated in order
RATES = {'skipgram': 0.025, 'cbow': 0.05}


def get_config(arg=''):
  """Takes `cbow`, `hs`, `in_order`, `vectors` and `quick`."""
  architecture = common.chosen(arg, ('skipgram', 'cbow'))
  c = common.run(arg, choices=('skipgram', 'cbow', 'negatives', 'hs', 'vectors', 'rows', 'in_order'), epochs=5)
  c.vocab = dict(name='words', path=common.vocab('words'))
  c.model = dict(name='static', variant='word2vec', overrides={})
  output = {'negatives': dict(name='skipgram', negatives=5), 'hs': dict(name='hierarchical_softmax')}
  update = common.chosen(arg, ('rows', 'in_order'))
  shared = dict(architecture=architecture, window=5, subsample=1e-3, update=update)
  c.objective = output[common.chosen(arg, ('negatives', 'hs'))] | shared
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='stream', length=LENGTH, batch_size=BATCHES[update])
  c.optim = dict(name='sgd', rate=RATES[architecture], schedule='linear', warmup=0, floor=1e-4)
  if 'vectors' in common.words(arg):
    c.init_from = (dict(source='vectors.txt', from_='', to='trunk/token_embed', fresh_zeros=True),)
  c.eval, c.best = common.validation(), ('validation/loss', 'min')
  c.eval_every = c.save_every = 160_000 // BATCHES[update]
  return common.quick(c, arg)
