"""ELMo, two language models that read words by their characters: Peters et al. 2018, §3.1 and §3.4.

python -m plm_jax.vocab train --source=tfds:lm1b --name=words --size=793471 --min_frequency=3 --boundaries=spaces \
  --specials=elmo --out=runs/vocab/elmo
python -m plm_jax.train --config=experiments/elmo/pretrain.py --workdir=runs/elmo/original

A config of a folder of texts, one sentence a line: --config.data.path=FOLDER --config.data.documents=line.

Hardware: the released code took three GTX 1080 and two weeks for 10 epochs.
Expect (1B Word, test): perplexity 39.7, the mean of both directions, of original (§3.4).

Arguments: a size (original, medium, small), `quick`.
Differs from the paper: a full softmax in training, where the released code takes 8,192 negatives; words that are not
in the vocabulary are read as '<UNK>' and not by their characters; states are zeros where an epoch begins.
"""

from experiments import common

SIZES = ('original', 'medium', 'small')
WINDOW = 20


def get_config(arg=''):
  """Takes one of `SIZES` and `quick`."""
  size = common.chosen(arg, SIZES)
  c = common.run(arg, choices=SIZES, epochs=10)
  c.vocab = dict(name='words', path=common.vocab('elmo'))
  c.model = dict(name='elmo', variant=f'elmo-{size}')
  c.objective = dict(name='bidirectional_lm', factor=float(WINDOW))
  c.data = dict(name='bptt', path='tfds:lm1b', length=WINDOW, batch_size=3 * 128, both_directions=True)
  c.optim = dict(name='adagrad', rate=0.2, schedule='constant', warmup=0, clip=10.0, accumulator=1.0)
  c.eval = common.validation('test')
  c.best = ('test/loss', 'min')
  return common.quick(c, arg)
