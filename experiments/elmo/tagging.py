"""A frozen trunk as features, as ELMo is used for names: Peters et al. 2018, §3.2, §3.3 and §4.

python -m plm_jax.train --config=experiments/elmo/tagging.py --workdir=runs/elmo/conll2003

Each word reads [x; gamma sum_j softmax(w)_j h_j], a vector of its own and a learned mix of all layers of the trunk, by
two layers of LSTM under a CRF. The penalty on w is 0.1.

Hardware: one accelerator, minutes.
Expect (CoNLL-2003, test F1): 92.22 with ELMo, 90.15 without (Table 1); our trunk is another one.

Arguments: a set (conll2003, wnut17, ewt), `quick`.
Differs from the paper: the trunk is BERT-base, as rows of labelled words do not have their characters yet; x is a
vector for each piece of a word, and not GloVe's with a network over characters; rates and widths are those of
AllenNLP's config, as remembered; 25 epochs, of which the best on validation counts.
"""

from experiments import common


def get_config(arg=''):
  """Takes a set and `quick`."""
  name = common.chosen(arg, tuple(common.TAGGING))
  c = common.run(arg, choices=tuple(common.TAGGING), epochs=25)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-cased'))
  c.model = dict(name='bert', variant='bert-base')
  c.adapter = dict(
    name='scalar_mix',
    vectors=50,
    dropout=0.5,
    penalty=0.1,
    inner=dict(name='tag', tags=common.TAGGING[name][2], dropout=0.5, lstm_layers=2, lstm_dim=200, crf=True),
  )
  c.data = common.tagging(name, layout='bert', batch_size=64)
  c.optim = dict(
    name='adam',
    rate=1e-3,
    schedule='constant',
    clip=5.0,
    scale=(('trunk/(scalar_mix|vectors)/.*', 1.0), ('trunk/.*', None), ('.*', 1.0)),
  )
  c.init_from = (dict(source='runs/bert/base-cased', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_tagging(c, name)
  return common.quick(c, arg)
