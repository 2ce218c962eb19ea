"""Bottleneck adapters on GLUE: Houlsby et al. 2019, "Parameter-Efficient Transfer Learning for NLP", §3.2; Table 1.

plm-jax train --config=experiments/houlsby/glue.py:mrpc --workdir=runs/houlsby/mrpc

Hardware: one accelerator. BERT-base trains 2.4M of 110M numbers; the paper's BERT-large with 64 units 2.1 % of its own.
Expect (test, large, the best of 8, 64, 256 units): CoLA 59.5 (Matthews), SST-2 94.0, MRPC 89.5 (F1), STS-B 86.9, QQP
71.8 (F1), MNLI-m 84.9, QNLI 90.7, RTE 71.5; all of BERT trained: 60.5, 94.9, 89.3, 87.6, 72.1, 86.7, 91.1, 70.1.

The grid of the paper: --config.adapter.width 8, 64, 256; --config.optim.rate 3e-5, 3e-4, 3e-3; --config.epochs 3, 20;
re-runs with other seeds, of which the best on dev counts.

Arguments: a task (mrpc, sst2, cola, stsb, qqp, mnli, qnli, rte), a trunk (base, large), `quick`.
Differs from the paper: `up` begins at zero (--config.adapter.up_std=1e-3 is the released code's); dropout of a sublayer
follows the bottleneck; rate and epochs are those of the released example for MRPC with BERT-base.
"""

from experiments import common

TASKS = ('mrpc', 'sst2', 'cola', 'stsb', 'qqp', 'mnli', 'qnli', 'rte')
TRUNKS = ('base', 'large')


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, TASKS), common.chosen(arg, TRUNKS)
  c = common.run(arg, choices=(*TASKS, *TRUNKS), epochs=5)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant=f'bert-{trunk}')
  c.data = common.glue(task, length=128, batch_size=32, layout='bert')
  head = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'])
  c.adapter = dict(name='bottleneck', width=64, inner=head)
  c.optim = common.bert_adam(3e-4, warmup=0.1)
  c.init_from = (dict(source=f'runs/bert/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
