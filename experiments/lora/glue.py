"""LoRA on GLUE: RoBERTa with small trained updates of its queries and values: Hu et al. 2021, §5.2; Tables 2 and 9.

plm-jax train --config=experiments/lora/glue.py:sst2 --workdir=runs/lora/sst2

Hardware: one accelerator. RoBERTa-base trains 0.3M of its 125M numbers, and a head of 0.6M.
Expect (dev, base): MNLI 87.5, SST-2 95.1, MRPC 89.7, CoLA 63.4 (Matthews), QNLI 93.3, QQP 90.8, RTE 86.6, STS-B 91.5.

The updates alone, for PEFT; the whole model with them merged, for anything else:
  plm-jax convert export runs/lora/sst2 DST --form=peft
  plm-jax convert export runs/lora/sst2 DST

Arguments: a task (sst2, mnli, mrpc, cola, qnli, qqp, rte, stsb), `quick`.
Differs from the paper: MRPC, RTE and STS-B begin from the trunk as it is and not from one tuned on MNLI; rows of 128
tokens where the paper has 512 (--config.data.length=512); dropout of updates is not used, as in the paper's table.
"""

from experiments import common

# batch, epochs, rate of each task: Table 9, RoBERTa base
TASKS = {
  'sst2': (16, 60, 5e-4),
  'mnli': (16, 30, 5e-4),
  'mrpc': (16, 30, 4e-4),
  'cola': (32, 80, 4e-4),
  'qnli': (32, 25, 4e-4),
  'qqp': (16, 25, 5e-4),
  'rte': (32, 80, 5e-4),
  'stsb': (16, 40, 4e-4),
}


def get_config(arg=''):
  """Takes a task and `quick`."""
  task = common.chosen(arg, tuple(TASKS))
  rows, epochs, rate = TASKS[task]
  c = common.run(arg, choices=tuple(TASKS), epochs=epochs)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bert', variant='roberta-base', overrides=dict(pooler='first'))
  c.data = common.glue(task, length=128, batch_size=rows, layout='roberta')
  head = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], hidden=768)
  c.adapter = dict(name='lora', targets=('query', 'value'), rank=8, alpha=8.0, inner=head)
  c.optim = dict(name='adamw', rate=rate, schedule='linear', warmup=0.06, decay=0.1, b1=0.9, b2=0.98, eps=1e-6)
  c.init_from = (dict(source='runs/roberta/base', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
