"""Word vectors by ranking windows: Collobert and Weston 2008, "A Unified Architecture for Natural Language Processing:
Deep Neural Networks with Multitask Learning", §5; sizes of Collobert et al. 2011, "Natural Language Processing (Almost)
from Scratch", §4: vectors of 50, windows of 11 words, 100 hidden units.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=words --lowercase --size=100000 \\
    --out=runs/vocab/words_100k
plm-jax train --config=experiments/cw/ranking.py --workdir=runs/cw/ranking
plm-jax vectors neighbours --workdir=runs/cw/ranking --words=king

Hardware: two cores of a CPU.
Expect: neighbours that mean the like. Measured, 600 steps of 8 rows of docstrings: the hinge falls from 1 to 0.20 on
held-out text, and 93 % of its windows stand above those with a wrong word; vectors after a whole run: not yet.
Arguments: `quick`.
Differs from the paper: the text is Wikipedia of today; the windows of BATCH rows move the vectors at once, by their
mean and AdaGrad, where the papers move them one by one by plain gradients; vectors begin as small as in word2vec.
"""

from experiments import common

LENGTH, BATCH = 128, 8


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=1)
  c.vocab = dict(name='words', path=common.vocab('words_100k'))
  c.model = dict(name='static', variant='glove-50')
  c.objective = dict(name='ranking', window=11, hidden=100, reduction='mean', update='rows')
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='stream', length=LENGTH, batch_size=BATCH)
  c.optim = dict(name='adagrad', rate=0.05, schedule='constant', warmup=0)
  c.eval, c.best = common.validation(), ('validation/loss', 'min')
  c.eval_every, c.save_every = 20_000, 20_000
  return common.quick(c, arg)
