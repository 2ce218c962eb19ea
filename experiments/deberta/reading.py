"""DeBERTa on SQuAD, RACE and SWAG by fine-tuning: He et al. 2021, §5.1 and appendix; Tables 2 and 3.

plm-jax train --config=experiments/deberta/reading.py:squad2 --workdir=runs/deberta/squad2

Hardware: one accelerator, hours.
Expect (dev), large: SQuAD 1.1 F1/EM 95.5/90.1, SQuAD 2.0 90.7/88.0, RACE 86.8, SWAG 90.8; base: SQuAD 1.1 93.1/87.2,
SQuAD 2.0 86.2/83.1. A trunk pre-trained on Wikipedia alone stays below.

The paper's grid: --config.optim.rate 5e-6, 8e-6, 9e-6, 1e-5 (base 1.5e-5, 2e-5, 3e-5, 4e-5); --config.data.batch_size
16, 32, 48, 64; --config.optim.warmup 50, 100, 500, 1000; up to 10 epochs, the best step on dev counts.

RACE is its harder half (--config.data.path=tfds:race/middle is the other); SWAG is read from the files of its authors.

Arguments: a task (squad1, squad2, race, swag), a trunk (large, base), `quick`.
Differs from the paper: one point of its grid for all tasks; three epochs.
"""

from experiments import common

TASKS = ('squad1', 'squad2', 'race', 'swag')
TRUNKS = {'large': 1e-5, 'base': 3e-5}


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, TASKS), common.chosen(arg, tuple(TRUNKS))
  c = common.run(arg, choices=(*TASKS, *TRUNKS), epochs=3)
  c.vocab = dict(name='byte_bpe', path=common.vocab('deberta'))
  c.model = dict(name='deberta', variant=f'deberta-{trunk}')
  if task.startswith('squad'):
    c.data = common.squad('v2.0' if task == 'squad2' else 'v1.1', batch_size=32, layout='bert')
    c.adapter = dict(name='span', no_answer=task == 'squad2')
    common.score_spans(c)
  else:
    c.data = common.options(task, length=512 if task == 'race' else 128, batch_size=32, layout='bert')
    c.adapter = dict(name='choose', dropout=0.15)
    common.score_options(c, task)
  c.optim = common.bert_adam(TRUNKS[trunk], warmup=500)
  c.init_from = (dict(source=f'runs/deberta/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  return common.quick(c, arg)
