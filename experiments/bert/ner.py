"""BERT on names in text, CoNLL-2003, by fine-tuning or as features: Devlin et al. 2018, §5.3 and A.3; Table 7.

python -m plm_jax.vocab train --source=tfds:wiki40b/en --name=wordpiece --size=28996 --cased --out=runs/vocab/bert-cased
python -m plm_jax.train --config=experiments/bert/base.py --config.vocab.path=runs/vocab/bert-cased \
    --workdir=runs/bert/base-cased
python -m plm_jax.train --config=experiments/bert/ner.py --workdir=runs/bert/ner

Hardware: one accelerator, minutes.
Expect (dev F1): base 96.4, large 96.6, `features` (the last four layers side by side) 96.1. A trunk pre-trained on
Wikipedia alone stays a little below, and so does a sentence without those around it.

The paper's grid, of which the best on dev counts: --config.data.batch_size 16, 32; --config.epochs 2, 3, 4;
--config.optim.rate 5e-5, 4e-5, 3e-5, 2e-5.

Arguments: a trunk (base, large), `features`, `quick`.
Differs from the paper: a vocabulary of our own; rows are single sentences, not documents; features are read by one
linear layer at a rate of ours, not by two layers of LSTM; F1 is that of the words that fit into a row.
"""

from experiments import common

TRUNKS = ('base', 'large')
TAGS = ('O', 'B-PER', 'I-PER', 'B-ORG', 'I-ORG', 'B-LOC', 'I-LOC', 'B-MISC', 'I-MISC')


def get_config(arg=''):
  """Takes a trunk, `features` and `quick`."""
  trunk, features = common.chosen(arg, TRUNKS), 'features' in common.words(arg)
  c = common.run(arg, choices=(*TRUNKS, 'features'), epochs=3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-cased'))
  c.model = dict(name='bert', variant=f'bert-{trunk}')
  c.adapter = dict(name='tag', tags=TAGS, dropout=0.1)
  c.data = dict(
    name='labelled',
    kind='words',
    path='tfds:conll2003',
    fields=('tokens',),
    label='ner',
    layout='bert',
    length=256,
    buckets=(64, 128),
    batch_size=32,
  )
  c.optim = dict(
    name='bert_adam',
    rate=5e-5,
    schedule='linear_bert',
    warmup=0.1,
    decay=common.NO_DECAY_ON_NORMS,
    clip=1.0,
    b1=0.9,
    b2=0.999,
    eps=1e-6,
  )
  if features:
    c.adapter = dict(c.adapter, frozen=True, layers=(-4, -3, -2, -1))
    c.optim = dict(c.optim, rate=1e-3, decay=0.0, scale=(('trunk/.*', None), ('.*', 1.0)))
  c.init_from = (dict(source=f'runs/bert/{trunk}-cased', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  c.eval = common.validation('validation', 'test')
  c.best = ('validation/f1', 'max')
  c.log_every, c.eval_every, c.save_every = 50, 200, 200
  return common.quick(c, arg)
