"""GPT on the similarity of two sentences by fine-tuning, both orders read: Radford et al. 2018, §3.3; Tables 4 and 5.

plm-jax train --config=experiments/gpt/similarity.py:stsb --workdir=runs/gpt/stsb

Hardware: one accelerator, minutes to hours.
Expect (test; Table 5), MRPC (F1), STS-B (Pearson), QQP (F1): full 82.3, 82.0, 70.3; `no_lm` (no auxiliary language
model) 84.9, 83.2, 69.8; `scratch` (no pre-training) 79.4, 30.9, 65.5.

Arguments: a task (stsb, mrpc, qqp), a row of Table 5 (full, no_lm, scratch), `quick`.
Differs from the paper: the trunk is that of gpt.py, with its data.
"""

from experiments import common

TASKS = ('stsb', 'mrpc', 'qqp')
ROWS = ('full', 'no_lm', 'scratch')


def get_config(arg=''):
  """Takes a task, a row and `quick`."""
  task, row = common.chosen(arg, TASKS), common.chosen(arg, ROWS)
  c = common.run(arg, choices=(*TASKS, *ROWS), epochs=3)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt'), extra=('_start_', '_delimiter_', '_classify_'))
  c.model = dict(name='gpt', variant='gpt')
  c.data = common.glue(task, layout='gpt', both_orders=True, length=512, buckets=(64, 128), batch_size=32)
  c.adapter = dict(
    name='similarity',
    classes=common.GLUE[task][1],
    kind=c.data['kind'],
    dropout=0.1,
    lm_weight=0.0 if row == 'no_lm' else 0.5,
  )
  c.optim = common.gpt_adam()
  if row != 'scratch':
    c.init_from = (dict(source='runs/gpt/gpt', from_='trunk', to='trunk', resize='new_rows'),)
  c.execution = dict(dtype='bfloat16')
  common.score_glue(c, task)
  return common.quick(c, arg)
