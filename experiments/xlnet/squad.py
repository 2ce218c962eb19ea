"""XLNet on SQuAD by fine-tuning: Yang et al. 2019, §3.4 and A.4; Table 3; settings of the released run_squad.py.

plm-jax train --config=experiments/xlnet/squad.py --workdir=runs/xlnet/squad

Where the answer ends depends on where it starts, and a classifier on both and on <cls> tells whether there is one.

Hardware: the released script asks for a TPU v3-8; hours.
Expect, large (dev, exact match and F1): SQuAD 2 87.9, 90.6; 1.1 89.7, 95.1. A trunk pre-trained on Wikipedia alone
stays below.

Arguments: a set (v2, v1), a trunk (large, base), `quick`.
Differs from the paper: NewsQA is not added to the training data; base takes the settings of large; no dropout between
the two layers of the classifier.
"""

from experiments import common

VERSIONS = {'v2': 'v2.0', 'v1': 'v1.1'}
TRUNKS = ('large', 'base')


def get_config(arg=''):
  """Takes a set, a trunk and `quick`."""
  version, trunk = common.chosen(arg, tuple(VERSIONS)), common.chosen(arg, TRUNKS)
  c = common.run(arg, choices=(*VERSIONS, *TRUNKS), steps=8000)
  c.vocab = dict(name='wordpiece', path=common.vocab('xlnet'))
  c.model = dict(name='xlnet', variant=f'xlnet-{trunk}')
  c.data = common.squad(
    VERSIONS[version], batch_size=48, layout='xlnet', length=512, fields=('context', 'question'), question_length=64
  )
  c.adapter = dict(name='span', end='conditional', no_answer=version == 'v2', max_answer=64)
  c.optim = common.bert_adam(
    3e-5, warmup=1000, schedule='linear', scale=(('trunk/layers/.*', dict(layerwise=0.75)), ('.*', 1.0))
  )
  c.init_from = (dict(source=f'runs/xlnet/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16', remat='full')
  common.score_spans(c)
  return common.quick(c, arg)
