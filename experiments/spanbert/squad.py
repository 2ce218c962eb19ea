"""SpanBERT on SQuAD by fine-tuning: Joshi et al. 2019, §4.1 and appendix B; Table 1; settings of the released code.

plm-jax train --config=experiments/spanbert/squad.py:v2 --workdir=runs/spanbert/squad2

Hardware: one accelerator, hours.
Expect, large (exact match and F1): SQuAD 1.1 88.8, 94.6, SQuAD 2 85.7, 88.7, both on test. A trunk pre-trained on
Wikipedia alone stays a little below.

Arguments: `v2` (SQuAD 2, whose texts may hold no answer), a trunk (large, base), `quick`.
Differs from the paper: one point of its grid, the rate and the rows of a batch that the released commands have; whether
a text holds an answer is read off the scores of its edges, as BERT does it.
"""

from experiments import common

TRUNKS = ('large', 'base')


def get_config(arg=''):
  """Takes `v2`, a trunk and `quick`."""
  trunk, second = common.chosen(arg, TRUNKS), 'v2' in common.words(arg)
  c = common.run(arg, choices=('v2', *TRUNKS), epochs=4)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-cased'))
  c.model = dict(name='bert', variant=f'spanbert-{trunk}')
  c.data = common.squad('v2.0' if second else 'v1.1', batch_size=32, layout='bert', length=512)
  c.adapter = dict(name='span', no_answer=second)
  c.optim = common.bert_adam(2e-5, warmup=0.1)
  c.init_from = (dict(source=f'runs/spanbert/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_spans(c)
  return common.quick(c, arg)
