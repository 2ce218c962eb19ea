"""A decoder that writes summaries behind a prompt: Radford et al. 2019, §3.6 and Table 4, by 'TL;DR:'.

plm-jax evaluate --config=experiments/gpt/summarise.py --weights=FOLDER --evaluation=test
plm-jax train --config=experiments/gpt/summarise.py --workdir=runs/gpt/summarise
plm-jax train --config=experiments/gpt/summarise.py:scitldr --workdir=runs/gpt/scitldr \
    --config.data.path=../shared/data/scitldr_abstract

`evaluate` with a release of GPT-2 is the paper's experiment, without an update; `train` fine-tunes on the summaries.
Hardware: one accelerator.
Expect (GPT-2 of 1.5 B without an update, ROUGE 1 / 2 / L): CNN/DailyMail 29.34 / 8.27 / 26.58, and 21.58 / 4.03 / 19.47
without the hint; the paper fine-tunes none.

Arguments: a set (cnn_dailymail, xsum, scitldr), `quick`.
Differs from the paper: a summary is all that is written up to the end token or 100 tokens, where the paper takes the
first three sentences; draws from the two best tokens come from one seed.
"""

from experiments import common

SETS = {
  'cnn_dailymail': ('tfds:cnn_dailymail', '{article}', '{highlights}'),
  'xsum': ('tfds:xsum', '{document}', '{summary}'),
  'scitldr': ('runs/data/scitldr_abstract', '{source}', '{target}'),
}


def get_config(arg=''):
  """Takes a set and `quick`."""
  name = common.chosen(arg, tuple(SETS))
  path, source, summary = SETS[name]
  c = common.run(arg, choices=tuple(SETS), epochs=3)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt2'))
  c.model = dict(name='gpt', variant='gpt2')
  c.adapter = dict(name='sequence', decoding=dict(method='sample', top_k=2, max_new=100))
  c.data = dict(
    name='text_to_text',
    path=path,
    form=dict(name='template', inputs=f'{source}\nTL;DR:', target=summary, keep='fields'),
    layout='bare',
    target_layout='text',
    gap=' ',
    length=896,
    target_length=128,
    batch_size=32,
  )
  c.optim = dict(name='adamw', rate=5e-5, schedule='linear', warmup=0.1, decay=0.01, clip=1.0)
  c.init_from = (dict(source='runs/gpt/gpt2', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  c.eval = dict(
    validation=dict(data=dict(split='validation'), scores=()),
    test=dict(data=dict(split='test'), scores=('rouge',), every=1_000_000),  # writes all summaries, once
  )
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 50, 1_000, 1_000
  return common.quick(c, arg)
