"""BERT base, masked language modelling and next-sentence prediction: Devlin et al. 2018, §3.1 and A.2; Table 5.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/bert/base.py --workdir=runs/bert/base

Hardware: the paper took 4 days on 4 Cloud TPUs (16 chips). Slice: v5e:4x4, 17 hours at 40 % of peak. A lost chip costs
at most 11 minutes.
Expect, fine-tuned (dev): MNLI-m 84.4, QNLI 88.4, MRPC 86.7, SST-2 92.7; with `mlm` 83.9, 84.9, 86.5, 92.6 ("No NSP").
Held-out perplexity of the masked tokens: 3.99 (Table 6, with BooksCorpus).

Arguments: `quick`; `128` is the paper's first 90 % of steps, in rows of 128, and `512` its last 10 %, from there:
  plm-jax train --config=experiments/bert/base.py:128 --workdir=runs/bert/base-128 --stop_at=900000
  plm-jax train --config=experiments/bert/base.py:512 --workdir=runs/bert/base
Without one, all 1M steps have rows of 512, which costs more and is no worse. `mlm` leaves next-sentence prediction out;
its rows are pieces of documents packed side by side with attention kept inside them.

Differs from the paper: English Wikipedia without BooksCorpus, with the marks that wiki40b puts before sections and
paragraphs (--config.data.path=FOLDER takes other text), and a vocabulary trained on it; a next segment that is not used
is not put back, and pairs are drawn anew in each of 10 epochs; `512` begins with fresh Adam moments.
"""

from experiments import common

PHASES = ('whole', '128', '512')


def get_config(arg=''):
  """Takes `quick`, `mlm` and one of `PHASES`."""
  phase = common.chosen(arg, PHASES)
  c = common.run(arg, choices=(*PHASES, 'mlm'), steps=100_000 if phase == '512' else 1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-base')
  c.objective = dict(
    name='sentence_pair',
    question='nsp',
    where=dict(name='fixed_count', rate=0.15, max_count=20 if phase == '128' else 77),
    edit=dict(name='bert_80_10_10'),
    masking='static',  # the released data holds 10 maskings of each row
    copies=10,
  )
  length = 128 if phase == '128' else 512
  c.data = dict(name='pairs', sentences='both', path=common.corpus('wiki'), length=length, batch_size=256, copies=10)
  if 'mlm' in common.words(arg):
    c.objective = {key: value for key, value in c.objective.items() if key != 'question'} | {'name': 'mlm'}
    c.data = dict(name='stream', path=common.corpus('wiki'), length=length, batch_size=256)
  c.optim = common.bert_adam(1e-4, warmup=10_000)
  if phase == '512':  # the rate that the first phase ends with, from there to 0
    c.init_from = (dict(source='runs/bert/base-128', from_='', to=''),)
    c.optim.rate, c.optim.warmup = 1e-5, 0
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16', layers='auto')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
