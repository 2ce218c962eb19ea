"""BERT on all GLUE tasks at once, each with a head of its own: MT-DNN, Liu et al. 2019, §3 and §4.2.

plm-jax train --config=experiments/bert/multitask.py --workdir=runs/bert/multitask
plm-jax train --config=experiments/bert/multitask.py:temperature --workdir=runs/bert/multitask_t2
plm-jax predict --workdir=runs/bert/multitask --part=cola --file=sentences.txt --out=predicted.jsonl

Hardware: one accelerator; large needs 16 GB.
Expect (test, Table 2): MT-DNN on large CoLA 62.5, SST-2 95.6, MRPC 88.2, STS-B 88.8, QQP 89.6, MNLI 86.7, QNLI 93.1,
RTE 81.4; the same trunk task by task (BERT) 60.5, 94.9, 85.4, 86.5, 89.3, 86.7, 92.7, 70.1. Small sets gain.

A step is of one task, drawn by T5's rules (Raffel et al. 2019, §3.5.2): in proportion to its rows (proportional), of
which at most 2**17 a task count (limit), by a temperature of 2 (temperature), or all the same (equal).
--config.data.parts.NAME.path=FOLDER takes a task from a folder, and
--config.eval.validation.data.parts.NAME.path=FOLDER its evaluation.

Arguments: rates (proportional, limit, temperature, equal), a trunk (large, base), `quick`.
Differs from the paper: linear heads for pairs too (no SAN), and one on the pair for QNLI, where the paper ranks; Adam
in place of Adamax; steps are drawn, where the paper shuffles the batches of an epoch.
"""

from experiments import common

RATES = dict(proportional={}, limit=dict(limit=2**17), temperature=dict(temperature=2.0), equal=dict(rates='equal'))
TRUNKS = dict(large='bert-large', base='bert-base')
DROPOUT = dict(mnli=0.3, cola=0.05)
TASKS = tuple(task for task in common.GLUE if task != 'wnli')  # as in the paper
SMALL = dict(package=common.SINGLES, summary_pair=common.PAIRS)  # of a smoke test


def get_config(arg=''):
  """Takes rates, a trunk and `quick`."""
  rates, trunk = common.chosen(arg, tuple(RATES)), common.chosen(arg, tuple(TRUNKS))
  c = common.run(arg, choices=(*RATES, *TRUNKS), epochs=5)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant=TRUNKS[trunk])
  parts = {task: common.glue(task, layout='bert') for task in TASKS}
  heads = {task: (common.GLUE[task][1], parts[task]['kind']) for task in parts}
  c.eval = dict(
    validation=dict(data=dict(parts={task: dict(parts[task], split=common.GLUE[task][2][0]) for task in parts}))
  )
  if 'quick' in common.words(arg):
    parts = {task: dict(rows, name='labelled', layout='bert') for task, (rows, _) in SMALL.items()}
    heads = {task: (classes, 'class') for task, (_, classes) in SMALL.items()}
  c.data = dict(name='mixture', per='step', length=128, batch_size=32, parts=parts, **RATES[rates])
  c.adapter = dict(
    name='multitask',
    scores={task: common.GLUE_SCORES[task] for task in heads if task in common.GLUE_SCORES},
    parts={
      task: dict(name='classify', classes=classes, kind=kind, dropout=DROPOUT.get(task, 0.1))
      for task, (classes, kind) in heads.items()
    },
  )
  c.optim = dict(name='adamw', rate=5e-5, schedule='linear', warmup=0.1, decay=common.NO_DECAY_ON_NORMS, clip=1.0)
  c.init_from = (dict(source=f'runs/bert/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 50, 2000, 2000
  return common.quick(c, arg)
