"""GPT on classification and entailment by fine-tuning: Radford et al. 2018, §3.2, §3.3 and §4.1; Tables 4 and 5.

plm-jax train --config=experiments/gpt/classify.py:sst2 --workdir=runs/gpt/sst2

Hardware: one accelerator, minutes to hours.
Expect (Table 5), CoLA, SST-2, MNLI, QNLI, RTE: full 45.4, 91.3, 81.8, 88.1, 56.0; `no_lm` (no auxiliary language model)
47.9, 92.0, 81.1, 86.9, 54.4; `scratch` (no pre-training) 18.9, 84.0, 75.7, 71.2, 53.8.

Arguments: a task (sst2, cola, mnli, qnli, rte, wnli), a row of Table 5 (full, no_lm, scratch), `quick`.
CoLA is scored by its correlation (MCC), the others by accuracy. The similarity tasks (MRPC, STS-B, QQP), which read a
pair in both orders, are in similarity.py.
The classifier is a matrix without a bias, as in the paper's formula and in transformers; the released code adds a bias.
Differs from the paper: the trunk is that of gpt.py, with its data; the paper leaves WNLI out.
"""

from experiments import common

TASKS = ('sst2', 'cola', 'mnli', 'qnli', 'rte', 'wnli')
ROWS = ('full', 'no_lm', 'scratch')


def get_config(arg=''):
  """Takes a task, a row and `quick`."""
  task, row = common.chosen(arg, TASKS), common.chosen(arg, ROWS)
  classes = common.GLUE[task][1]
  c = common.run(arg, choices=(*TASKS, *ROWS), epochs=3)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt'), extra=('_start_', '_delimiter_', '_classify_'))
  c.model = dict(name='gpt', variant='gpt')
  c.adapter = dict(name='classify', classes=classes, dropout=0.1, bias=False, lm_weight=0.0 if row == 'no_lm' else 0.5)
  c.data = common.glue(task, layout='gpt', length=512, buckets=(64, 128), batch_size=32)
  c.optim = common.gpt_adam()
  if row != 'scratch':
    c.init_from = (dict(source='runs/gpt/gpt', from_='trunk', to='trunk', resize='new_rows'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
