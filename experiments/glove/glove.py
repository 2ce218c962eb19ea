"""Word vectors from counts: Pennington et al. 2014, "GloVe: Global Vectors for Word Representation", §3 and §4.2;
defaults of the released glove.c.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=words --lowercase --size=400000 \
    --out=runs/vocab/words
plm-jax train --config=experiments/glove/glove.py --workdir=runs/glove/glove
plm-jax vectors save --workdir=runs/glove/glove --out=glove.txt --form=glove

Hardware: two cores of a CPU.
Expect: the vectors of the released code on the same text. Not measured yet: no run of this config was compared with it.
The vectors are w + w~, which the third command writes; the trunk of the run is w alone.
Arguments: `quick`.
Differs from the paper: the text is Wikipedia of one language edition; the pairs of BATCH rows move the vectors at once,
by the sum of their gradients, where glove.c moves them one by one; AdaGrad divides by what it has gathered with the
present gradient, and glove.c without it; the gradient of a batch is cut at 100, where later releases of glove.c cut
that of a pair, and the first ones nothing; biases move at the rate, as in the first releases, where later ones leave it
out.
"""

from experiments import common

LENGTH, BATCH = 128, 32


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=25)
  c.vocab = dict(name='words', path=common.vocab('words'))
  c.model = dict(name='static', variant='glove-50')
  c.objective = dict(name='glove', x_max=100.0, alpha=0.75, update='rows')
  c.data = dict(name='cooccurrence', path=common.corpus('wiki'), length=LENGTH, batch_size=BATCH, window=15)
  c.optim = dict(name='adagrad', rate=0.05, schedule='constant', accumulator=1.0, gathers='update')
  c.optim.update(clip=100.0, clip_by='element')
  # no validation set: counts of a smaller text are smaller, so its loss grows as vectors learn those of this one
  c.save_every = 20_000
  return common.quick(c, arg)
