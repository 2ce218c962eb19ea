"""A convolutional encoder as large as BERT-base, by BERT's masked language modelling: what attention adds at one size.

After Qiu et al. 2020, "Pre-trained Models for Natural Language Processing: A Survey", §2.2, which names convolutional,
recurrent and fully connected encoders; the settings are those of Devlin et al. 2018, as in experiments/bert/base.py.

plm-jax vocab train --source=hf://datasets/google/wiki40b/en --name=wordpiece --size=30522 --out=runs/vocab/bert-uncased
plm-jax train --config=experiments/cnn/pretrain.py --workdir=runs/cnn/pretrain

Hardware: as experiments/bert/base.py at a length of 128, with as many parameters in the layers and no attention. Slice,
at 40 % of peak: v5e:4x4, 3.8 hours.
Expect: no published figure; a loss above BERT-base's, since a state has seen 12 tokens on either side only.

Arguments: `quick`.
Differs from the paper: there is none of this model. Rows of 128 throughout, which its filters cannot span either.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, steps=1_000_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='cnn', variant='cnn-base')
  c.objective = dict(name='mlm', where=dict(name='fixed_count', rate=0.15), edit=dict(name='bert_80_10_10'))
  c.data = dict(name='stream', path=common.corpus('wiki'), layout='rows', length=128, batch_size=256)
  c.optim = common.bert_adam(1e-4, warmup=10_000)
  c.sharding = dict(mesh=dict(data=-1), rules='data')
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation()
  c.best = ('validation/loss', 'min')
  return common.quick(c, arg)
