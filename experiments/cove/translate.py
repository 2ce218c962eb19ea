"""CoVe: an encoder pre-trained by translation, McCann et al. 2017, §3 (MT-Small: Multi30k, English to German).

plm-jax vocab train --source=../shared/data/multi30k_en_de --text=en --name=words --lowercase \
    --min_frequency=2 --size=50000 --out=runs/vocab/multi30k_en
plm-jax vocab train --source=../shared/data/multi30k_en_de --text=de --name=byte_bpe --specials=roberta \
    --size=2000 --out=runs/vocab/multi30k_de
plm-jax train --config=experiments/cove/translate.py:small --workdir=runs/cove/small \
    --config.data.path=../shared/data/multi30k_en_de \
    --config.init_from.0.source=../shared/data/glove/glove.6B.50d.5k.txt.gz
plm-jax evaluate --workdir=runs/cove/small --evaluation=test --predictions=translations.jsonl

An English word is its GloVe vector, which does not train, or zeros where the file lacks it. The size `full` reads the
300 numbers of glove.840B.300d.txt and has the encoder of the paper, 3,609,600 parameters.

Hardware: not published; `small` took 28 minutes on two CPU cores that other programs shared.
Expect (test, BLEU of sacrebleu): our own figure, `small`, one seed, 5.3 passes: 21.2, perplexity 16.7 per piece;
English copied as it is has 0.5. The paper's BLEU was not looked up.

Arguments: a size (full, small), `quick`.
Differs from the paper: German is written in 2,000 pieces of bytes, so that text comes back as it was, and not in whole
words; Adam in place of gradient descent whose rate falls where the loss rises; texts are cut to 26 tokens.
"""

from experiments import common

# size: (file of word vectors, their width, width of the encoder, of the vectors that are written, steps)
SIZES = {
  'full': ('runs/data/glove.840B.300d.txt', 300, 600, 300, 20_000),
  'small': ('runs/data/glove.6B.50d.txt', 50, 128, 64, 2_400),
}


def get_config(arg=''):
  """Takes a size and `quick`."""
  vectors, width, hidden, written, steps = SIZES[common.chosen(arg, tuple(SIZES))]
  c = common.run(arg, choices=tuple(SIZES), steps=steps)
  c.vocab = dict(name='words', path=common.vocab('multi30k_en'))
  c.second_vocab = dict(name='byte_bpe', path=common.vocab('multi30k_de'))
  c.model = dict(name='cove', variant='cove', overrides=dict(word_dim=width, hidden_dim=hidden))
  c.objective = dict(
    name='translate', word_dim=written, logit_rows=64, decoding=dict(method='beam', beams=5, length_penalty=1.0)
  )
  c.data = dict(common.TRANSLATION, path='runs/data/multi30k_en_de', length=26, batch_size=64)
  c.optim = dict(name='adamw', schedule='linear', rate=4e-3, warmup=0.02, clip=5.0)
  c.init_from = (dict(source=vectors, from_='', to='trunk/token_embed'),)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.eval = dict(
    validation=dict(data=dict(split='validation'), scores=()),
    test=dict(data=dict(split='test'), scores=('bleu',), every=steps),  # writes all translations, once
  )
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 50, steps // 20, steps // 20
  return common.quick(c, arg)
