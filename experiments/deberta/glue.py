"""DeBERTa on GLUE by fine-tuning: He et al. 2021, §5.1; settings of the released scripts for MNLI.

plm-jax train --config=experiments/deberta/glue.py:mnli,large --workdir=runs/deberta/mnli

Hardware: one accelerator.
Expect (dev): large MNLI-m 91.3, MNLI-mm 91.1.

Arguments: a task (mnli, sst2, cola, mrpc, stsb, qqp, qnli, rte, wnli), a trunk (base, large, xlarge, xxlarge, v3-small,
v3-base, v3-large), `quick`.
Differs from the paper: the other tasks take the script of MNLI too, WNLI among them, which the paper
leaves out; no adversarial training (SiFT); trunks pre-trained
on Wikipedia alone stay below the published ones.
"""

from experiments import common

TASKS = ('mnli', 'sst2', 'cola', 'mrpc', 'stsb', 'qqp', 'qnli', 'rte', 'wnli')
# trunk: (variant, rate, epochs, dropout of the head, warm-up)
TRUNKS = {
  'base': ('deberta-base', 3e-5, 3, 0.1, 1000),
  'large': ('deberta-large', 1e-5, 3, 0.2, 1000),
  'xlarge': ('deberta-v2-xlarge', 4e-6, 3, 0.25, 1000),
  'xxlarge': ('deberta-v2-xxlarge', 3e-6, 3, 0.3, 1000),
  'v3-small': ('deberta-v3-small', 4.5e-5, 3, 0.2, 1500),
  'v3-base': ('deberta-v3-base', 1.5e-5, 3, 0.1, 1000),
  'v3-large': ('deberta-v3-large', 7e-6, 2, 0.3, 500),
}


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, TASKS), common.chosen(arg, tuple(TRUNKS))
  variant, rate, epochs, dropout, warmup = TRUNKS[trunk]
  c = common.run(arg, choices=(*TASKS, *TRUNKS), epochs=epochs)
  second = trunk.startswith(('x', 'v3'))
  c.vocab = dict(name='byte_bpe', path=common.vocab('deberta-v2' if second else 'deberta'))
  c.model = dict(name='deberta', variant=variant)
  c.data = common.glue(task, length=256, batch_size=64, layout='bert')
  c.adapter = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], dropout=dropout)
  c.optim = common.bert_adam(rate, warmup=warmup)
  c.init_from = (dict(source=f'runs/deberta/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
