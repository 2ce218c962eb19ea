"""The left-to-right twin of BERT base: Devlin et al. 2018, §5.1; Table 5, row "LTR & No NSP".

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/bert/ltr.py --workdir=runs/bert/ltr

Same data, rows, size, steps and optimiser as base.py; only the attention is causal and the objective is a language
model. Fine-tune it with `experiments/bert/glue.py:TASK,ltr`.

Hardware: as base.py. Slice, at 40 % of peak: v5e:4x4, 20 hours.
Expect, fine-tuned (dev): MNLI-m 82.1, QNLI 84.3, MRPC 77.5, SST-2 92.1, against 83.9, 84.9, 86.5, 92.6 of "No NSP".

Arguments: `quick`.
Differs from the paper: as base.py says; the causal trunk is GPT's, which has no sentence types and no norm after the
embeddings.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='gpt', variant='gpt')
  c.objective = dict(name='causal_lm', packing='segments')
  c.data = dict(name='stream', path=common.corpus('wiki'), length=512, batch_size=256)
  c.optim = common.bert_adam(1e-4, warmup=10_000)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
