"""BERT on the classification tasks of SuperGLUE by fine-tuning: Wang et al. 2019, §4 and Table 3.

plm-jax train --config=experiments/bert/superglue.py:cb --workdir=runs/bert/cb
plm-jax evaluate --workdir=runs/bert/cb --evaluation=validation --predictions=runs/CB.jsonl \
    --format=superglue --config.eval.validation.data.split=test --config.eval.validation.data.keep_unlabelled=True

Hardware: one accelerator, minutes.
Expect (test, large): BoolQ 77.4, CB F1 75.7 and accuracy 83.6, RTE 71.6, WiC 69.5, MultiRC F1a 70.0 and exact match
24.1. A trunk pre-trained on Wikipedia alone stays a little below.

CB is scored by the mean of F1 over its three classes beside accuracy, MultiRC by question, the others by accuracy. COPA
and ReCoRD are in choose.py. WSC has the noun and the pronoun between marks, as `* Tom * told Bob that # he # had won`;
--config.data.path=superglue:FOLDER --config.eval.validation.data.split=val read the published files, and
plm_jax.load(RUN).classify('* Tom * told Bob that # he # had won.') asks a run in Python.

Arguments: a task (cb, boolq, rte, wic, multirc, wsc), a trunk (large, base), `quick`.
Differs from the paper: WiC reads the word as a field of its own and classifies [CLS], where the paper also reads the
state of the word; WSC classifies [CLS] of the marked text, where the paper joins the states of the two spans; rows of
256 tokens.
"""

from experiments import common

TASKS = tuple(common.SUPER_GLUE)


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, TASKS), common.chosen(arg, ('large', 'base'))
  c = common.run(arg, choices=(*TASKS, 'large', 'base'), epochs=10)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant=f'bert-{trunk}')
  c.data = common.super_glue(task, layout='bert', length=256, batch_size=16)
  c.adapter = dict(name='classify', classes=common.SUPER_GLUE[task][1], dropout=0.1)
  c.optim = common.bert_adam(1e-5, warmup=0.1)
  c.init_from = (dict(source=f'runs/bert/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_super_glue(c, task)
  return common.quick(c, arg)
