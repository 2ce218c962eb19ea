"""ELMo, two language models that read words by their characters: Peters et al. 2018, §3.1 and §3.4.

plm-jax vocab train --source=tfds:lm1b --name=words --size=793471 --min_frequency=3 --boundaries=spaces \
  --specials=elmo --out=runs/vocab/elmo
plm-jax train --config=experiments/elmo/pretrain.py --workdir=runs/elmo/original

A config of a folder of texts, one sentence a line: --config.data.path=FOLDER --config.data.documents=line. The size
`cut` reads such a folder on a CPU:

plm-jax vocab train --source=../shared/data/classic_books --name=words --size=8000 --min_frequency=3 \
  --specials=elmo --out=runs/vocab/elmo_8k
plm-jax train --config=experiments/elmo/pretrain.py:cut --workdir=runs/elmo/cut

Hardware: the released code took three GTX 1080 and two weeks for 10 epochs. An epoch has about 0.77 billion tokens.
Slice: v5e:4x4, 9.2 hours by cycles.
Expect (1B Word, test): perplexity 39.7, the mean of both directions, of original (§3.4). Our own figure of `cut`,
one seed, 25 minutes on two CPU cores that other programs shared, 1.3 million words: 97.5 on validation, of 8,000 words.

Arguments: a size (original, medium, small, cut), `quick`.
Differs from the paper: states are zeros where an epoch begins; a hundredth of the text is held out; `cut` has a
fortieth of the parameters, a full softmax and AdamW.
"""

from experiments import common

SIZES = ('original', 'medium', 'small', 'cut')
WINDOW = 20


def get_config(arg=''):
  """Takes one of `SIZES` and `quick`."""
  size = common.chosen(arg, SIZES)
  c = common.run(arg, choices=SIZES, epochs=10)
  c.vocab = dict(name='words', path=common.vocab('elmo'))
  c.model = dict(name='elmo', variant=f'elmo-{size}')
  c.objective = dict(name='bidirectional_lm', factor=float(WINDOW), negatives=8192, update='rows')
  c.data = dict(name='bptt', path='tfds:lm1b', length=WINDOW, batch_size=3 * 128, both_directions=True)
  c.optim = dict(name='adagrad', rate=0.2, schedule='constant', warmup=0, clip=10.0, accumulator=1.0)
  # its test set, which is read once, at the end, chooses no step
  c.data['split'], held_out = 'train[:99%]', dict(data=dict(split='train[99%:]'))
  c.eval = dict(validation=held_out, test=dict(data=dict(split='test'), every=1_000_000_000))
  c.best = ('validation/loss', 'min')
  if size == 'cut':
    c.epochs, c.steps = None, 2_000
    c.objective = dict(name='bidirectional_lm', factor=float(WINDOW))
    c.vocab.path = common.vocab('elmo_8k')
    c.model = dict(name='elmo', variant='elmo-small', overrides=common.ELMO_CUT)
    c.data.update(path='../shared/data/classic_books', split='train', documents='line', batch_size=32)
    c.optim = dict(name='adamw', rate=3e-3, schedule='linear', warmup=0.05, clip=10.0)
    c.eval = common.validation()
    c.log_every, c.eval_every, c.save_every = 50, 500, 250
  return common.quick(c, arg)
