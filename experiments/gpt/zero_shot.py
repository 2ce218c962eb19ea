"""GPT-2's language modelling without training: Radford et al. 2019, "Language Models are Unsupervised Multitask
Learners", §3.1 to §3.3 and Table 3. Perplexity on text that the model was not trained for.

plm-jax evaluate --config=experiments/gpt/zero_shot.py --weights=FOLDER
plm-jax evaluate --config=experiments/gpt/zero_shot.py:windows --weights=FOLDER --evaluation=wikitext2
plm-jax evaluate --config=experiments/gpt/zero_shot.py:lambada --weights=FOLDER
plm-jax evaluate --config=experiments/gpt/zero_shot.py:lambada --weights=FOLDER \
    --config.eval.lambada.data.path=../shared/data/lambada
plm-jax evaluate --config=experiments/gpt/zero_shot.py --weights=FOLDER --evaluation=wikitext2 \
    --config.eval.wikitext2.data.path=ANOTHER_FOLDER
plm-jax train --config=experiments/gpt/zero_shot.py:quick --workdir=runs/gpt/zero_shot

FOLDER is one of Hugging Face's gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a run of experiments/gpt/gpt2.py; it says the
size and the vocabulary. Sets that TensorFlow Datasets lacks are files: runs/data/wikitext2/test.txt and so on.
Hardware: any; the smallest model reads WikiText-2 on a laptop.
Expect (Table 3; 117M, 345M, 762M, 1542M):
  wikitext2    perplexity a word   29.41  22.76  19.93  18.34    unit_perplexity
  ptb          perplexity a word   65.85  47.33  40.31  35.76    unit_perplexity
  wikitext103  perplexity a word   37.50  26.37  22.05  17.48    unit_perplexity
  lm1b         perplexity a word   75.20  55.72  44.575 42.16    2 ** (bits_per_byte * bytes / words) of your test files
  enwik8       bits a byte         1.16   1.01   0.97   0.93     bits_per_byte
  text8        bits a character    1.17   1.06   1.02   0.98     bits_per_byte
  lambada      perplexity          35.13  15.60  10.87  8.63     word_perplexity
  lambada      accuracy            45.99  55.48  60.12  63.24    word_accuracy, in per cent

Arguments: `lambada`, the last word of each passage; `windows`, in which every token but the first is scored once, after
512 others at least (data.stride), as on the page of transformers; `quick`, which trains a tiny model.
Differs from the paper: no de-tokenizers, which the paper found worth 2.5 to 5 points of perplexity, no filter of stop
words for LAMBADA's accuracy, and without `windows` rows cut every 1024 tokens, whose first tokens are not scored.
"""

from experiments import common

FOLDERS = 'runs/data'
FILES = {  # name: words of its test part as published figures count them, with an end for each line
  'wikitext2': 245_569,
  'wikitext103': 245_569,  # the same articles
  'ptb': 82_430,
  'enwik8': None,
  'text8': None,
}


def get_config(arg=''):
  """Takes `lambada`, `windows` and `quick`."""
  c = common.run(arg, choices=('lambada', 'windows'), steps=100_000)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt2'))
  c.model = dict(name='gpt', variant='gpt2')
  form = common.either(arg, ('lambada', 'windows'))
  last_word = form == 'lambada'
  c.objective = dict(name='causal_lm', packing='stream', predict='last_word' if last_word else 'all', logit_rows=1)
  c.data = dict(name='stream', path=common.corpus('web'), layout='stream', length=1024, batch_size=8)
  if last_word:
    c.data = dict(c.data, layout='rows', begin='', end='', length=512)
    c.eval = dict(lambada=dict(data=dict(path='tfds:lambada', split='test')))
  else:
    whole = dict(split='test', documents='file', end='')
    if form == 'windows':
      whole['stride'] = 512
    files = {name: dict(units=units, data=dict(whole, path=f'{FOLDERS}/{name}')) for name, units in FILES.items()}
    c.eval = dict(files, lm1b=dict(data=dict(path='tfds:lm1b', split='test')))
  c.optim = dict(name='adamw', rate=6e-4, schedule='cosine', warmup=715, floor=0.1, decay=0.1, clip=1.0)
  c.best = ('lambada/word_perplexity' if last_word else 'wikitext2/loss', 'min')
  return common.quick(c, arg)
