"""ChnSentiCorp, positive and negative reviews, by a Chinese BERT: Cui et al. 2019.

plm-jax train --config=experiments/chinese/classify.py --workdir=runs/chinese/chnsenticorp

data/chnsenticorp is a folder with train, validation and test, a text and a label 0 or 1 in each row.

Hardware: one GPU, half an hour; the small network of `pretrain.py:small` takes minutes of two CPU cores.
Expect, accuracy, best and mean of ten runs (tables of the authors' repositories, github.com/ymcui): BERT dev 94.7
(94.3), test 95.0 (94.7); BERT-wwm 95.1 (94.5), 95.4 (95.0); RoBERTa-wwm-ext 95.0 (94.6), 95.6 (94.8). A linear model of
counts of characters has 87.3 on test (our own figure; scikit-learn, as it comes).
Argument: `quick`.
Differs from the paper: one rate, where the paper chooses one for each network.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=3)
  c.vocab = dict(name='wordpiece', path=common.vocab('chinese'))
  c.model = dict(name='bert', variant='bert-base')
  c.adapter = dict(name='classify', classes=2, dropout=0.1)
  c.data = dict(
    name='labelled', path='data/chnsenticorp', fields=('text',), length=256, batch_size=64, buckets=(64, 128)
  )
  c.optim = common.bert_adam(2e-5, warmup=0.1)
  c.init_from = (dict(source='runs/chinese/base', from_='trunk', to='trunk'),)
  c.eval = common.validation('validation', 'test')
  c.best = ('validation/accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 150, 150
  return common.quick(c, arg)
