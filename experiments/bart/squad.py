"""BART on SQuAD by fine-tuning: Lewis et al. 2019, §3.2 and §5.2, Table 2.

plm-jax train --config=experiments/bart/squad.py --workdir=runs/bart/squad

Question and text go to both sides, and the top states of the decoder stand for the tokens.

Hardware: one accelerator, hours.
Expect (dev, exact match and F1), large: SQuAD 1.1 88.8, 94.6; SQuAD 2.0 86.1, 89.2; base SQuAD 1.1 F1 90.8 (Table 1).

Arguments: a set (v1, v2), a trunk (large, base), `quick`.
Differs from the paper: its settings for SQuAD are not published: here those of RoBERTa (Liu et al. 2019, appendix C),
whose data and sizes it shares; rows of up to 512 tokens.
"""

from experiments import common

VERSIONS = {'v1': 'v1.1', 'v2': 'v2.0'}
TRUNKS = ('large', 'base')


def get_config(arg=''):
  """Takes a set, a trunk and `quick`."""
  version, trunk = common.chosen(arg, tuple(VERSIONS)), common.chosen(arg, TRUNKS)
  c = common.run(arg, choices=(*VERSIONS, *TRUNKS), epochs=2)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bart', variant=f'bart-{trunk}', overrides=dict(attention_dropout=0.1))
  c.data = common.squad(VERSIONS[version], batch_size=48, layout='roberta', length=512)
  c.adapter = dict(name='span', no_answer=version == 'v2')
  c.optim = dict(name='adamw', rate=1.5e-5, schedule='linear', warmup=0.06, decay=0.01, b1=0.9, b2=0.98, eps=1e-6)
  c.init_from = (dict(source=f'runs/bart/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_spans(c)
  return common.quick(c, arg)
