"""GLM on SuperGLUE as words in a blank: Du et al. 2021, §2.3, §3.2 and Table 1; patterns of the released code.

plm-jax train --config=experiments/glm/superglue.py:copa --workdir=runs/glm/copa
plm-jax train --config=experiments/glm/superglue.py:copa --workdir=runs/glm/copa \
    --config.data.path=../shared/data/super_glue_copa
plm-jax train --config=experiments/glm/superglue.py:boolq --workdir=runs/glm/boolq

The patterns and the words of labels are those of `plm_jax/data/rows/forms/patterns.py`.

Hardware: one accelerator.
Expect (dev, base / large): ReCoRD F1 73.5 / 86.8, COPA 71.0 / 82.0, RTE 72.1 / 84.5, BoolQ 77.0 / 82.4, CB accuracy
89.3 / 98.2, MultiRC F1a 73.1 / 77.1. ReCoRD has EM, CB macro F1 and MultiRC EM per question beside these.

WSC is written into the blank: rows whose noun is right are trained on, and the noun that is written is judged by
`plm_jax/scores/wsc.py`. --config.data.path=superglue:FOLDER --config.eval.validation.data.split=val read the published
files.

Arguments: a task (copa, rte, cb, boolq, multirc, record, wic, wsc), `quick`.
Differs from the paper: WSC chooses among all texts, where the released code compares the noun with other nouns of the
text that a parser found; one rate and one number of epochs for all tasks, where the paper searches; the trunk is that
of base.py; rows of 256 tokens, and longer passages lose their ends.
"""

from experiments import common

TASKS = ('copa', 'rte', 'cb', 'boolq', 'multirc', 'record', 'wic', 'wsc')
SCORES = {'record': ('record',), 'multirc': ('multirc',), 'cb': ('macro_f1',)}  # what is reported beside accuracy
BEST = {'record': 'f1', 'multirc': 'f1a'}
ROLES = dict(bos='<|startofpiece|>', eos='<|endofpiece|>')


def get_config(arg=''):
  """Takes a task and `quick`."""
  task = common.chosen(arg, TASKS)
  c = common.run(arg, choices=TASKS, epochs=20)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'), extra=tuple(ROLES.values()), roles=ROLES)
  c.model = dict(name='glm', variant='glm-base', overrides=dict(vocab_multiple=128))
  c.adapter = dict(name='sequence' if task == 'wsc' else 'cloze')
  c.data = dict(
    name='text_to_text',
    path='tfds:super_glue/wsc.fixed' if task == 'wsc' else f'tfds:super_glue/{task}',
    form=dict(name='patterns', task='super_glue_rte' if task == 'rte' else task),
    layout='bert',
    target_layout='text' if task in ('copa', 'record', 'wsc') else 'bare',  # an end behind words of several tokens
    gap=' ',
    length=256,
    target_length=32,
    batch_size=16,
  )
  c.optim = dict(name='adamw', rate=1e-5, schedule='linear', warmup=0.06, decay=common.no_decay_on_norms(0.1), clip=1.0)
  c.init_from = (dict(source='runs/glm/base', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  c.eval = dict(validation=dict(data=dict(split='validation'), scores=SCORES.get(task)))
  c.best = (f'validation/{BEST.get(task, "accuracy")}', 'max')
  if task == 'wsc':  # nouns that are not meant are judged, not trained on
    c.eval = dict(validation=dict(data=dict(split='validation', keep_unlabelled=True), scores=('wsc',)))
    c.best = ('validation/wsc_accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 500, 500
  return common.quick(c, arg)
