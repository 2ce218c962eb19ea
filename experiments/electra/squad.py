"""ELECTRA on SQuAD by fine-tuning: Clark et al. 2020, §3.1 and appendix B; Table 4; settings of the released code.

plm-jax train --config=experiments/electra/squad.py --workdir=runs/electra/squad

Where the answer ends depends on where it starts, and a classifier on both and on [CLS] tells whether there is one.

Hardware: one accelerator, an hour.
Expect (dev, exact match and F1): base SQuAD 1.1 84.5, 90.8, SQuAD 2 80.5, 83.3; large 89.7, 94.9 and 88.0, 90.6. A
trunk pre-trained on Wikipedia alone stays a little below.

Arguments: a set (v2, v1), a trunk (base, large, small), `quick`.
Differs from the paper: the heads are those of XLNet (tanh, as wide as the trunk, a norm), where the released code has
layers of 512 with gelu; pairs come from the 5 likeliest starts, not from 20.
"""

from experiments import common

VERSIONS = {'v2': 'v2.0', 'v1': 'v1.1'}
# trunk: (rate, factor from a layer to that below it, layers)
TRUNKS = {'base': (1e-4, 0.8, 12), 'large': (5e-5, 0.9, 24), 'small': (3e-4, 0.8, 12)}


def get_config(arg=''):
  """Takes a set, a trunk and `quick`."""
  version, trunk = common.chosen(arg, tuple(VERSIONS)), common.chosen(arg, tuple(TRUNKS))
  rate, factor, layers = TRUNKS[trunk]
  c = common.run(arg, choices=(*VERSIONS, *TRUNKS), epochs=2)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant=f'electra-{trunk}')
  c.data = common.squad(VERSIONS[version], batch_size=32, layout='bert', length=512)
  c.adapter = dict(name='span', end='conditional', no_answer=version == 'v2')
  c.optim = common.bert_adam(
    rate,
    warmup=0.1,
    schedule='gpt',  # warmup scales the decayed rate, as released
    scale=(
      ('trunk/layers/.*', dict(layerwise=factor, scale=factor**2)),
      ('trunk/.*', factor ** (layers + 2)),
      ('.*', 1.0),
    ),
  )
  c.init_from = (dict(source=f'runs/electra/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_spans(c)
  return common.quick(c, arg)
