"""BERT on SQuAD by fine-tuning: Devlin et al. 2018, §4.2, §4.3 and A.3; Tables 2 and 3.

plm-jax train --config=experiments/bert/squad.py --workdir=runs/bert/squad

Hardware: one accelerator; half an hour on a Cloud TPU.
Expect (dev, exact match and F1): 1.1 base 80.8, 88.5, large 84.1, 90.9; 2.0 large 78.7, 81.9. A trunk pre-trained on
Wikipedia alone stays a little below.

Files as they are published are read too: --config.data.path=FOLDER with train-v1.1.json and dev-v1.1.json in it,
--config.data.split=train-v1.1 --config.eval.validation.data.split=dev-v1.1.

Arguments: `v2` (SQuAD 2, whose texts may hold no answer), a trunk (base, large), `quick`.
Differs from the paper: no training on TriviaQA before. An answer is cut out of the text by the characters of its
tokens, where the released code puts words together again.
"""

from experiments import common

TRUNKS = ('base', 'large')


def get_config(arg=''):
  """Takes `v2`, a trunk and `quick`."""
  trunk, second = common.chosen(arg, TRUNKS), 'v2' in common.words(arg)
  c = common.run(arg, choices=('v2', *TRUNKS), epochs=2 if second else 3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant=f'bert-{trunk}')
  c.data = common.squad('v2.0' if second else 'v1.1', batch_size=48 if second else 32, layout='bert')
  c.adapter = dict(name='span', no_answer=second)
  c.optim = common.bert_adam(5e-5, warmup=0.1)
  c.init_from = (dict(source=f'runs/bert/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_spans(c)
  return common.quick(c, arg)
