"""Cross-view training of a translator, Clark et al. 2018, §3.4: few pairs of texts, many texts without a translation.

The vocabularies are those of experiments/cove/translate.py, whose encoder and decoder these are as well.

plm-jax train --config=experiments/cvt/translation.py:small --workdir=runs/cvt/translation
plm-jax train --config=experiments/cvt/translation.py:small,supervised --workdir=runs/cvt/pairs_alone
plm-jax evaluate --workdir=runs/cvt/translation --evaluation=test

`small` reads a tenth of Multi30k's pairs and the English of the others; `full` reads all pairs and English of 1B Word.

Hardware: `small` took 30 minutes on a core that others used too, the translator alone 9; the paper does not say.
Expect (test, BLEU of sacrebleu, and perplexity per piece; `small`, --config.seed=0, our own figures): 3.0 and 96, the
translator alone 3.5 and 81 after as many steps with pairs, 600. What 2,900 pairs teach in 600 steps is too little for
its translations to teach the views; more pairs and more steps were not tried. The paper's table was not looked up.
Arguments: a size (full, small), `supervised` for the translator alone, `quick`.
Differs from the paper: another pair of languages and of sets; two layers that read and two that write, with CoVe's
equations but for input feeding; Adam; the share of dropped attention, one half, is ours.
"""

from experiments import common

PATH = '../shared/data/multi30k_en_de'
LABELLED = '10%shuffled'  # of the pairs, in `small`
# size: (file of word vectors, their width, width of the encoder, of the vectors that are written, steps with pairs)
SIZES = {
  'full': ('runs/data/glove.840B.300d.txt', 300, 600, 300, 20_000),
  'small': ('../shared/data/glove/glove.6B.50d.5k.txt.gz', 50, 128, 64, 600),
}


def get_config(arg=''):
  """Takes a size, `supervised` and `quick`."""
  size = common.chosen(arg, tuple(SIZES))
  vectors, width, hidden, written, steps = SIZES[size]
  alone = 'supervised' in common.words(arg)
  c = common.run(arg, choices=(*SIZES, 'supervised'), steps=steps if alone else 2 * steps)
  c.vocab = dict(name='words', path=common.vocab('multi30k_en'))
  c.second_vocab = dict(name='byte_bpe', path=common.vocab('multi30k_de'))
  c.model = dict(name='cove', variant='cove', overrides=dict(word_dim=width, hidden_dim=hidden))

  def rows(split):
    return dict(common.TRANSLATION, path=PATH, split=split)

  pairs, text, held_out = rows('train'), rows('train'), {name: rows(name) for name in ('validation', 'test')}
  if size == 'small':
    pairs, text = rows(f'train[:{LABELLED}]'), rows(f'train[{LABELLED}:]')
  elif 'quick' not in common.words(arg):
    text = dict(name='stream', layout='rows', begin='', end='', path='tfds:lm1b', documents='line')
  if 'quick' in common.words(arg):
    path, form = common.TEXTS['translate']
    pairs, text = (dict(part, path=path, form=form, split='train') for part in (pairs, text))
  batch = dict(length=26, batch_size=64)
  network = dict(word_dim=written, label_smoothing=0.1, logit_rows=64)
  network.update(decoding=dict(method='beam', beams=5, length_penalty=1.0))
  if alone:
    c.objective = dict(name='translate', feeding=False, **network)
    c.data = dict(pairs, **batch)
    c.eval = dict(
      validation=dict(data=dict(held_out['validation'], **batch), scores=()),
      test=dict(data=dict(held_out['test'], **batch), scores=('bleu',), every=steps),
    )
    c.best = ('validation/loss', 'min')
  else:
    c.objective = dict(
      name='translate_views', search=dict(method='beam', beams=4), scores=dict(pairs=('bleu',)), **network
    )
    c.data = dict(name='mixture', per='step', alternate='text', parts=dict(pairs=pairs, text=text), **batch)
    parts = {name: dict(data=dict(parts=dict(pairs=own, text=own))) for name, own in held_out.items()}
    c.eval = dict(validation=dict(parts['validation'], scores=()), test=dict(parts['test'], every=2 * steps))
    c.best = ('validation/pairs/loss', 'min')
  c.optim = dict(name='adamw', schedule='linear', rate=4e-3, warmup=0.02, clip=5.0, ema=0.99)
  c.init_from = (dict(source=vectors, from_='', to='trunk/token_embed'),)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.log_every, c.eval_every, c.save_every = 50, steps // 10, steps // 10
  return common.quick(c, arg)
