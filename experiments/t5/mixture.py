"""T5 on all GLUE tasks at once, as text to text: multi-task learning, Raffel et al. 2020, §3.5.2 and Table 11.

plm-jax train --config=experiments/t5/mixture.py --workdir=runs/t5/mixture
plm-jax train --config=experiments/t5/mixture.py:temperature --workdir=runs/t5/mixture_t2
plm-jax train --config=experiments/t5/mixture.py:cola,rte --workdir=runs/t5/cola_rte \
    --config.data.parts.cola.path=../shared/data/glue_cola --config.data.parts.rte.path=../shared/data/glue_rte \
    --config.eval.cola.data.parts.cola.path=../shared/data/glue_cola \
    --config.eval.rte.data.parts.rte.path=../shared/data/glue_rte
plm-jax train --config=experiments/t5/mixture.py:text --workdir=runs/t5/multitask_pretrain
plm-jax train --config=experiments/t5/tasks.py:rte --config.init_from.0.source=runs/t5/multitask_pretrain \
    --workdir=runs/t5/rte_after_both
plm-jax predict --workdir=runs/t5/mixture --part=cola --file=sentences.jsonl --out=predicted.jsonl

The rows of a batch are of all tasks. A task with N rows has the rate min(N, K) ** (1 / T), divided by the sum of all:
`proportional` has K = 2**17 and T = 1, `temperature` K = 2**21 and T = 2; with `equal` all rates are the same. The
paper tries K from 2**16 to 2**21 (--config.data.limit), and T of 2, 4 and 8 (--config.data.temperature).

`text` trains from scratch on text and tasks together, for 2^19 steps: a step has rows of text or of tasks, with the
share of `TEXT` for text. Fine-tuning on one task follows (§3.5.3, Table 12).

Hardware: a slice of Cloud TPU pods; 2^18 steps of 128 rows of 512 tokens.
Expect (base, Table 11, GLUE on validation, after 2^19 + 2^18 steps of all tasks and text without labels): equal 76.13,
K = 2^19 81.42, T = 2 81.90; each task alone after pre-training 83.28.
Expect of `text`, then fine-tuned (Table 12): GLUE 83.11, CNN/DM 19.12, SQuAD 80.26, SuperGLUE 71.03, WMT en-de 27.08.

Arguments: rates (proportional, equal, temperature), tasks (all of GLUE but WNLI where none is named), `text`, `quick`.
Differs from the paper: GLUE alone, where the paper mixes in its other tasks and text without labels; it begins with a
pre-trained network; one step is the best for all tasks; MNLI is scored on matched rows; a byte-level vocabulary, and
one row a text, as in tasks.py. With `text` the share of text is set, where the paper's follows from its number of rows.
"""

from experiments import common

RATES = dict(proportional=dict(limit=2**17), equal=dict(rates='equal'), temperature=dict(limit=2**21, temperature=2.0))
TASKS = tuple(task for task in common.GLUE if task != 'wnli')  # the paper has its rows in those of WSC
SCORES = {**common.GLUE_SCORES, 'stsb': ('correlation',)}  # what GLUE reports beside 'match'
TEXT = 0.5  # share of the steps that train on text
# Of a smoke test: a task without options and one with two
SMALL = {'summarise': common.TEXTS['sequence'], 'pair': common.TEXTS['classify']}


def get_config(arg=''):
  """Takes rates, tasks and `quick`."""
  rates, tasks = common.chosen(arg, tuple(RATES)), [task for task in TASKS if task in common.words(arg)] or TASKS
  both = 'text' in common.words(arg)
  c = common.run(arg, choices=(*RATES, *TASKS, 'text'), steps=2**19 if both else 2**18)
  c.vocab = dict(name='byte_bpe', path=common.vocab('t5'), extra=common.SENTINELS)
  c.model = dict(name='t5', variant='t5-base')
  c.adapter = dict(name='sequence')
  sets = {task: (f'tfds:glue/{task}', dict(name='t5', task=task)) for task in tasks}
  splits = {task: common.GLUE[task][2][0] for task in tasks}
  if 'quick' in common.words(arg):
    sets, splits = SMALL, dict.fromkeys(SMALL, 'validation[:64]')
  about = dict(name='text_to_text', layout='text', target_length=8)
  parts = {task: dict(about, path=path, form=form) for task, (path, form) in sets.items()}
  c.data = dict(name='mixture', length=512, batch_size=128, parts=parts, **RATES[rates])
  c.optim = dict(name='adafactor', rate=1e-3, schedule='constant')
  c.init_from = (dict(source='runs/t5/pretrain', from_='trunk', to='trunk'),)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.log_every, c.eval_every, c.save_every = 100, 5_000, 5_000
  c = common.quick(c, arg)
  c.eval = {
    task: dict(data=dict(parts={task: dict(parts[task], split=split)}), scores=('match', *SCORES.get(task, ())))
    for task, split in splits.items()
  }
  c.best = (f'{"mnli" if "mnli" in splits else next(iter(splits))}/exact_match', 'max')
  return _with_text(c) if both else c


def _with_text(c):
  """The run from scratch, with a part of text; one evaluation has the rows of all tasks."""
  text = dict(name='denoise_seq2seq', packing='stream', where=dict(name='exact_spans', rate=0.15, mean=3.0))
  rows = dict(name='stream', path=common.corpus('web'), layout='stream', end='')
  if c.steps == 20:  # `quick`
    rows = dict(rows, path='pydocs')
  task_rows = {key: c.data[key] for key in c.data if key not in ('length', 'batch_size')}
  with c.unlocked():
    tasks = dict(text=text, tasks=dict(name='sequence'))
    c.adapter = dict(name='multitask', parts=tasks, scores=dict(tasks=('match',)))
    parts, rates = dict(text=rows, tasks=task_rows), dict(text=TEXT, tasks=1 - TEXT)
    # 568 tokens are 512 after the noise
    c.data = dict(name='mixture', per='step', length=568, batch_size=c.data.batch_size, parts=parts, rates=rates)
    judged = {name: dict(block.data.parts[name]) for name, block in c.eval.items()}
    held_out = dict(text=dict(rows, split='validation[:64]'), tasks=dict(task_rows, parts=judged))
    c.eval = dict(validation=dict(data=dict(parts=held_out)))
    c.best = ('validation/tasks/exact_match', 'max')
    c.init_from = ()
  return c
