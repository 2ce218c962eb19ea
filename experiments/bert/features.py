"""BERT as a source of features, frozen under one trained layer: Devlin et al. 2018, §5.3; Table 7 does it for NER.

plm-jax train --config=experiments/bert/features.py --workdir=runs/bert/features

Hardware: one accelerator, minutes.
Expect: SST-2 (dev) well below the 92.7 of fine-tuning, as one linear layer reads one vector; the paper has no such row.
--config.adapter.layer=-2 takes the layer below the last, which Table 7 finds better than the last (95.6, 94.9 F1).

CoLA is scored by MCC, STS-B by Pearson's and Spearman's correlation, MRPC and QQP by F1 beside accuracy.
Arguments: a task (sst2, cola, mrpc, stsb, qqp, mnli, qnli, rte), `quick`.
Differs from the paper: [CLS] through the pre-trained pooler and one linear layer, where the paper has two LSTM layers
over all tokens; the grid of rates is ours: 1e-2, 1e-3, 1e-4.
"""

from experiments import common

TASKS = ('sst2', 'cola', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte')


def get_config(arg=''):
  """Takes a task and `quick`."""
  task = common.chosen(arg, TASKS)
  c = common.run(arg, choices=TASKS, epochs=3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant='bert-base')
  c.data = common.glue(task, length=128, batch_size=32, layout='bert')
  c.adapter = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], frozen=True, layer=-1)
  c.optim = dict(
    name='adamw', rate=1e-3, schedule='linear', warmup=0.1, decay=0.0, scale=(('trunk/.*', None), ('.*', 1.0))
  )
  c.init_from = (dict(source='runs/bert/base', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
