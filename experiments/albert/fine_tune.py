"""ALBERT on GLUE, SQuAD and RACE by fine-tuning: Lan et al. 2019, §4.2 and appendix A.4; Tables 2, 9 and 14.

plm-jax train --config=experiments/albert/fine_tune.py:mnli --workdir=runs/albert/mnli
plm-jax train --config=experiments/albert/fine_tune.py:squad2,xxlarge --workdir=runs/albert/squad2

Hardware: one accelerator, minutes to hours.
Expect (dev: SQuAD 1.1 F1/EM, SQuAD 2.0 F1/EM, MNLI, SST-2; test: RACE), trunks of 125,000 steps:
  base     89.3/82.3  80.0/77.1  81.6  90.3  64.0
  large    90.6/83.9  82.3/79.4  83.5  91.7  68.5
  xlarge   92.5/86.1  86.1/83.1  86.4  92.4  74.8
  xxlarge  94.1/88.3  88.1/85.1  88.0  95.2  82.3

RACE is its harder half (--config.data.path=tfds:race/middle is the other).

Arguments: a task (`TASKS`), a trunk (base, large, xlarge, xxlarge), `quick`.
Differs from the paper: the settings are those of its largest trunk for every size; RTE, MRPC and STS-B do not begin
with what MNLI learnt; the vocabulary is that of pretrain.py.
"""

from experiments import common

# Table 14. task: (rate, rows of a batch, steps, updates of warmup, tokens of a row, dropout of the trunk)
TASKS = {
  'mnli': (3e-5, 128, 10_000, 1_000, 512, 0.0),
  'sst2': (1e-5, 32, 20_935, 1_256, 512, 0.0),
  'cola': (1e-5, 16, 5_336, 320, 512, 0.0),
  'stsb': (2e-5, 16, 3_598, 214, 512, 0.0),
  'qnli': (1e-5, 32, 33_112, 1_986, 512, 0.0),
  'qqp': (5e-5, 128, 14_000, 1_000, 512, 0.1),
  'rte': (3e-5, 32, 800, 200, 512, 0.1),
  'wnli': (2e-5, 16, 2_000, 250, 512, 0.1),
  'mrpc': (2e-5, 32, 800, 200, 512, 0.0),
  'squad1': (5e-5, 48, 3_649, 365, 384, 0.0),
  'squad2': (3e-5, 48, 8_144, 814, 512, 0.0),
  'race': (2e-5, 32, 12_000, 1_000, 512, 0.1),
}
TRUNKS = ('base', 'large', 'xlarge', 'xxlarge')


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, tuple(TASKS)), common.chosen(arg, TRUNKS)
  rate, rows, steps, warmup, length, dropout = TASKS[task]
  c = common.run(arg, choices=(*TASKS, *TRUNKS), steps=steps)
  c.vocab = dict(name='wordpiece', path=common.vocab('albert'))
  overrides = dict(dropout=dropout, attention_dropout=dropout)
  c.model = dict(name='albert', variant=f'albert-{trunk}-v1', overrides=overrides)
  shape = dict(length=length, batch_size=rows, layout='bert')
  if task == 'race':
    c.data, c.adapter = common.options('race', **shape), dict(name='choose', dropout=0.1)
    common.score_options(c, task)
  elif task.startswith('squad'):
    c.data = common.squad('v2.0' if task == 'squad2' else 'v1.1', **shape)
    c.adapter = dict(name='span', no_answer=task == 'squad2')
    common.score_spans(c)
  else:
    c.data = common.glue(task, buckets=(64, 128), **shape)
    c.adapter = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], dropout=0.1)
    common.score_glue(c, task)
  c.optim = common.bert_adam(rate, warmup=warmup)
  c.init_from = (dict(source=f'runs/albert/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  return common.quick(c, arg)
