"""A frozen CoVe beside GloVe, [GloVe(x); CoVe(x)], for classes of questions or labels of words: McCann et al. 2017, §4.

plm-jax train --config=experiments/cove/features.py:trec --workdir=runs/cove/trec \\
    --config.data.path=../shared/data/trec
plm-jax train --config=experiments/cove/features.py:trec,glove --workdir=runs/cove/trec_glove \\
    --config.data.path=../shared/data/trec

The trunk is the run that `small` of translate.py makes, whose word vectors stand beside its states. `glove` leaves CoVe
out. A layer of LSTM reads the words; the largest value of each component over a question is classified.

Hardware: two CPU cores, minutes.
Expect: the tables of the paper were not looked up.

Arguments: a set (trec, ewt, wnut17), `glove`, `quick`.
Differs from the paper: a tenth of TREC's training set is held out; a layer of LSTM and a pooling in place of the
biattentive classification network; a learned factor on CoVe; a far smaller encoder.
"""

from experiments import common

SETS = ('trec', 'ewt', 'wnut17')
STEPS = 300


def get_config(arg=''):
  """Takes a set, `glove` and `quick`."""
  name = common.chosen(arg, SETS)
  c = common.run(arg, choices=(*SETS, 'glove'), steps=STEPS)
  c.vocab = dict(name='words', path=common.vocab('multi30k_en'))
  c.model = dict(name='cove', variant='cove', overrides=dict(word_dim=50, hidden_dim=128))
  tags = None if name == 'trec' else common.TAGGING[name][2]
  c.adapter = dict(
    name='scalar_mix',
    vectors=50,
    dropout=0.2,
    side='none' if 'glove' in common.words(arg) else 'input',
    layers=(-1,),
    lstm_layers=1,
    lstm_dim=100,
    inner=dict(name='classify', classes=6) if tags is None else dict(name='tag', tags=tags, crf=name != 'ewt'),
  )
  if tags is None:
    c.data = dict(
      name='labelled',
      path='tfds:trec',
      split='train[:90%]',
      fields=('text',),
      label='label-coarse',
      layout='bare',
      length=40,
      batch_size=32,
    )
    c.eval = {'validation': dict(data=dict(split='train[90%:]')), 'test': dict(data=dict(split='test'))}
    c.best = ('validation/accuracy', 'max')
  else:
    c.data = common.tagging(name, layout='bare', batch_size=32)
    common.score_tagging(c, name)
  c.optim = common.features_adam()
  c.init_from = (
    dict(source='runs/cove/small', from_='trunk', to='trunk'),
    dict(source='runs/cove/small', from_='trunk/token_embed', to='trunk/vectors'),
  )
  c.eval_every = c.save_every = STEPS
  return common.quick(c, arg)
