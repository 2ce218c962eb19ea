"""RoBERTa on GLUE by fine-tuning: Liu et al. 2019, §5.1, appendix C; Tables 5 and 10; settings of fairseq's README.

plm-jax train --config=experiments/roberta/glue.py:mnli --workdir=runs/roberta/mnli

Hardware: one accelerator, minutes to hours.
Expect (dev): large MNLI-m 90.2, QNLI 94.7, QQP 92.2, RTE 86.6, SST-2 96.4, MRPC 90.9, CoLA 68.0, STS-B 92.4; base
MNLI-m 87.6, QNLI 92.8, QQP 91.9, RTE 78.7, SST-2 94.8, MRPC 90.2, CoLA 63.6, STS-B 91.2; medians of 5 --config.seed.

<s> is classified by two layers. The paper's grid: --config.optim.rate 1e-5, 2e-5, 3e-5; --config.data.batch_size 16,
32.

Arguments: a task (mnli, qnli, qqp, rte, wnli, sst2, mrpc, cola, stsb), a trunk (large, base), `quick`.
Differs from the paper: base takes the settings of large; RTE, MRPC and STS-B do not begin with what MNLI learnt
(--config.init_from.0.source=runs/roberta/mnli does); the best step counts, where the paper stops early; WNLI
is a pair with the settings of RTE, where the paper ranks the nouns of its texts (91.3 on dev, large).
"""

from experiments import common

# task: (rate, rows of a batch)
TASKS = {
  'mnli': (1e-5, 32),
  'qnli': (1e-5, 32),
  'qqp': (1e-5, 32),
  'rte': (2e-5, 16),
  'wnli': (2e-5, 16),
  'sst2': (1e-5, 32),
  'mrpc': (1e-5, 16),
  'cola': (1e-5, 16),
  'stsb': (2e-5, 16),
}
TRUNKS = {'large': 1024, 'base': 768}


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, tuple(TASKS)), common.chosen(arg, tuple(TRUNKS))
  rate, rows = TASKS[task]
  c = common.run(arg, choices=(*TASKS, *TRUNKS), epochs=10)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bert', variant=f'roberta-{trunk}', overrides=dict(pooler='first'))
  c.data = common.glue(task, length=512, buckets=(64, 128), batch_size=rows, layout='roberta')
  c.adapter = dict(
    name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], dropout=0.1, hidden=TRUNKS[trunk]
  )
  c.optim = dict(
    name='adamw',
    rate=rate,
    schedule='linear',
    warmup=0.06,
    decay=0.1,  # of all parameters, as in fairseq
    b1=0.9,
    b2=0.98,
    eps=1e-6,
  )
  c.init_from = (dict(source=f'runs/roberta/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
