"""BART on summaries by fine-tuning: Lewis et al. 2019, §5.3, Table 3; settings of fairseq's README.summarization.md.

plm-jax train --config=experiments/bart/summarise.py:cnn_dailymail --workdir=runs/bart/cnn_dailymail
plm-jax train --config=experiments/bart/summarise.py:scitldr --workdir=runs/bart/scitldr \
    --config.data.path=../shared/data/scitldr_abstract
plm-jax evaluate --workdir=runs/bart/cnn_dailymail --evaluation=test --predictions=summaries.jsonl

SciTLDR is not in TensorFlow Datasets: its path is a folder with train.jsonl, validation.jsonl and test.jsonl (fields
source, a list of sentences, and target, a list of summaries), as its authors publish it.

Hardware: 8 GPUs of 16 GB in the paper; one accelerator with accumulate=8 of these batches.
Expect (test, ROUGE 1 / 2 / L): CNN/DailyMail 44.16 / 21.28 / 40.90, XSum 45.14 / 22.27 / 37.25; SciTLDR (Cachola et al.
2020, Table 3, abstracts alone) 43.3 / 20.8 / 35.0.

Arguments: a set (cnn_dailymail, xsum, scitldr), a trunk (large, base), `quick`.
Differs from the paper: batches are a number of rows and not of tokens, of which the scripts take 2,048 on each of 8
GPUs, 4 times for CNN/DailyMail (as many as 64 rows of 1,024 have) and 2 for XSum, whose articles are shorter; ROUGE is
that of the package rouge-score, whose ROUGE-Lsum is the paper's ROUGE-L, where the paper had files2rouge; the best step
is that of the lowest loss; SciTLDR has the settings of XSum.
"""

from experiments import common

# set: (path, what is read, what is written, steps, updates of warmup, rows of a batch, tokens of a summary)
SETS = {
  'cnn_dailymail': ('tfds:cnn_dailymail', '{article}', '{highlights}', 20_000, 500, 64, 142),
  'xsum': ('tfds:xsum', '{document}', '{summary}', 15_000, 500, 64, 64),
  'scitldr': ('runs/data/scitldr_abstract', '{source}', '{target}', 1_000, 100, 32, 64),
}
# fairseq's --max-len-b counts no end token, and `max_new` does: 140 and 60 there; its search ends with as many finished
# texts as beams
FAIRSEQ = dict(method='beam', early_stop=True, no_repeat=3)
DECODING = {
  'cnn_dailymail': dict(FAIRSEQ, beams=4, length_penalty=2.0, min_new=55, max_new=141),
  'xsum': dict(FAIRSEQ, beams=6, length_penalty=1.0, min_new=10, max_new=61),
}
TRUNKS = {'large': 'bart-large', 'base': 'bart-base'}


def get_config(arg=''):
  """Takes a set, a trunk and `quick`."""
  name, trunk = common.chosen(arg, tuple(SETS)), common.chosen(arg, tuple(TRUNKS))
  path, source, summary, steps, warmup, rows, room = SETS[name]
  c = common.run(arg, choices=(*SETS, *TRUNKS), steps=steps)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bart', variant=TRUNKS[trunk], overrides=dict(attention_dropout=0.1))
  c.adapter = dict(
    name='sequence', start='eos', label_smoothing=0.1, decoding=dict(DECODING.get(name, DECODING['xsum']), last='</s>')
  )
  c.data = dict(
    name='text_to_text',
    path=path,
    form=dict(name='template', inputs=source, target=summary),
    layout='roberta',
    length=1024,
    target_length=room,
    batch_size=rows,
  )
  c.optim = dict(
    name='adamw', rate=3e-5, schedule='linear', warmup=warmup, decay=0.01, b1=0.9, b2=0.999, eps=1e-8, clip=0.1
  )
  c.init_from = (dict(source=f'runs/bart/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16', remat='dots')
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.eval = dict(
    validation=dict(data=dict(split='validation'), scores=()),
    test=dict(data=dict(split='test'), scores=('rouge',), every=steps),  # writes all summaries, once
  )
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 50, 1_000, 1_000
  return common.quick(c, arg)
