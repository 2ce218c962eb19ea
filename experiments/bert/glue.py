"""BERT on GLUE by fine-tuning: Devlin et al. 2018, §4.1 and A.3; Tables 1, 5 and 6.

plm-jax train --config=experiments/bert/glue.py:sst2 --workdir=runs/bert/sst2

Hardware: one accelerator; the paper says an hour at most on a Cloud TPU, a few hours on a GPU.
Expect (dev): base MNLI-m 84.4, QNLI 88.4, MRPC 86.7, SST-2 92.7; large MNLI-m 86.6, MRPC 87.8, SST-2 93.7; ltr MNLI-m
82.1, QNLI 84.3, MRPC 77.5, SST-2 92.1 (Table 5). A trunk pre-trained on Wikipedia alone stays a little below.

The paper's grid, of which the best on dev counts, is SPACE below; its table has the median of the seeds:
  plm-jax sweep --config=experiments/bert/glue.py:sst2 --space=experiments/bert/glue.py --workdir=runs/grid
Large is unstable on small sets, where the paper takes the best of several seeds.

Arguments: a task (sst2, cola, mrpc, stsb, qqp, mnli, qnli, rte, wnli), a trunk (base, large, ltr), `quick`; `mean`
pools the mean of the states, which a small network that was pre-trained without a second task learns from sooner, and
no class of transformers does. ltr classifies by a matrix without a bias, as decoders in transformers do.
CoLA is scored by MCC, STS-B by Pearson's and Spearman's correlation, MRPC and QQP by F1 beside accuracy.
Differs from the paper: it leaves WNLI out, where nothing beats the larger class (accuracy 56.3 on dev).
"""

from experiments import common

TASKS = ('sst2', 'cola', 'mrpc', 'stsb', 'qqp', 'mnli', 'qnli', 'rte', 'wnli')
SPACE = {
  'data.batch_size': [16, 32],
  'epochs': [2, 3, 4],
  'optim.rate': [5e-5, 4e-5, 3e-5, 2e-5],
  'seed': [0, 1, 2, 3, 4],
}
TRUNKS = {'base': ('bert', 'bert-base'), 'large': ('bert', 'bert-large'), 'ltr': ('gpt', 'gpt')}


def get_config(arg=''):
  """Takes a task, a trunk, `mean` and `quick`."""
  task, trunk = common.chosen(arg, TASKS), common.chosen(arg, tuple(TRUNKS))
  c = common.run(arg, choices=(*TASKS, *TRUNKS, 'mean'), epochs=3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name=TRUNKS[trunk][0], variant=TRUNKS[trunk][1])
  c.data = common.glue(task, length=128, batch_size=32, layout='bert')
  c.adapter = dict(name='classify', classes=common.GLUE[task][1], kind=c.data['kind'], dropout=0.1)
  if trunk == 'ltr':
    c.adapter.bias = False  # as decoders in transformers have it
  if 'mean' in common.words(arg):
    c.adapter.pool = 'mean'
  c.optim = common.bert_adam(2e-5, warmup=0.1)
  c.init_from = (dict(source=f'runs/bert/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
