"""RoBERTa on SQuAD and RACE by fine-tuning: Liu et al. 2019, §5.2 and §5.3, appendix C; Tables 6, 7 and 10.

plm-jax train --config=experiments/roberta/reading.py:squad1 --workdir=runs/roberta/squad1

Hardware: one accelerator, hours.
Expect, large: SQuAD 1.1 (dev, exact match and F1) 88.9, 94.6; SQuAD 2 (dev) 86.5, 89.4; RACE (test) 83.2, of which
middle 86.5 and high 81.3.

RACE is its harder half, whose rows are articles with several questions (--config.data.path=tfds:race/middle is the
other). A row of it is four sequences, <s> article </s> </s> question option </s>, scored by two layers on <s>.

Arguments: a task (squad1, squad2, race), a trunk (large, base), `quick`.
Differs from the paper: whether a text holds an answer is read off the scores of its edges, as BERT does it, and not
learnt by a classifier of its own; base takes the settings of large.
"""

from experiments import common

# task: (rate, rows of a batch, epochs, decay)
TASKS = {'squad1': (1.5e-5, 48, 2, 0.01), 'squad2': (1.5e-5, 48, 2, 0.01), 'race': (1e-5, 16, 4, 0.1)}
TRUNKS = ('large', 'base')


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, tuple(TASKS)), common.chosen(arg, TRUNKS)
  rate, rows, epochs, decay = TASKS[task]
  c = common.run(arg, choices=(*TASKS, *TRUNKS), epochs=epochs)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bert', variant=f'roberta-{trunk}')
  c.optim = dict(name='adamw', rate=rate, schedule='linear', warmup=0.06, decay=decay, b1=0.9, b2=0.98, eps=1e-6)
  c.init_from = (dict(source=f'runs/roberta/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  if task == 'race':
    c.data = common.options('race', length=512, batch_size=rows, layout='roberta')
    c.adapter = dict(name='choose', dropout=0.1)
    common.score_options(c, task)
  else:
    c.data = common.squad('v2.0' if task == 'squad2' else 'v1.1', batch_size=rows, layout='roberta', length=512)
    c.adapter = dict(name='span', no_answer=task == 'squad2')
    common.score_spans(c)
  return common.quick(c, arg)
