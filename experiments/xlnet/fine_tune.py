"""XLNet on RACE and GLUE by fine-tuning: Yang et al. 2019, §3.4 and A.4; Tables 2, 5 and 8.

plm-jax train --config=experiments/xlnet/fine_tune.py:race --workdir=runs/xlnet/race
plm-jax train --config=experiments/xlnet/fine_tune.py:mnli --workdir=runs/xlnet/mnli

Hardware: the released scripts ask for a TPU v3-8 for MNLI and a larger slice for RACE; hours.
Expect, large: RACE (test) 85.4, of which middle 88.6 and high 84.0; GLUE (dev) MNLI 90.8, QNLI 94.9, QQP 92.3, RTE
85.9, SST-2 97.0, MRPC 90.8, CoLA 69.0, STS-B 92.5; base RACE 66.7, MNLI-m 85.6, SST-2 93.4 (Table 6). A trunk
pre-trained on Wikipedia alone stays below.

RACE is its harder half (--config.data.path=tfds:race/middle is the other). Two layers score <cls>, the last token: the
trunk's pooler with tanh, and one of the adapter.

Arguments: a task (race, mnli, qnli, qqp, rte, sst2, mrpc, cola, stsb, wnli), a trunk (large, base), `quick`.
Differs from the paper: tasks of GLUE other than MNLI, whose settings it does not print, have MNLI's rate and weight
decay, batches of 32 and three epochs; base takes the settings of large; WNLI is a pair like the others, where the paper
ranks the nouns of its texts; Yelp-5 (rate 1e-5, 128 rows, 10,000 steps) is left out, since TensorFlow Datasets has the
reviews of Yelp with two classes alone.
"""

from experiments import common

TASKS = ('race', 'mnli', 'qnli', 'qqp', 'rte', 'sst2', 'mrpc', 'cola', 'stsb', 'wnli')
STEPS = {'race': (12_000, 1_000, 32), 'mnli': (10_000, 1_000, 128)}  # steps, updates of warmup, rows of a batch
TRUNKS = ('large', 'base')


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, TASKS), common.chosen(arg, TRUNKS)
  steps, warmup, rows = STEPS.get(task, (None, 0.1, 32))
  c = common.run(arg, choices=(*TASKS, *TRUNKS), steps=steps, epochs=None if steps else 3)
  c.vocab = dict(name='wordpiece', path=common.vocab('xlnet'))
  c.model = dict(name='xlnet', variant=f'xlnet-{trunk}')
  if task == 'race':
    c.data = common.options('race', length=512, batch_size=rows, layout='xlnet')
    c.adapter = dict(name='choose', dropout=0.1)
    common.score_options(c, task)
  else:
    c.data = common.glue(task, length=128, batch_size=rows, layout='xlnet')
    c.adapter = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], dropout=0.1)
    common.score_glue(c, task)
  c.optim = common.bert_adam(2e-5, warmup=warmup, schedule='linear')
  c.init_from = (dict(source=f'runs/xlnet/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16', remat='full')
  return common.quick(c, arg)
