"""A frozen ELMo as features of a network that reads two texts: Peters et al. 2018, §4 and Tables 1 to 3, textual
entailment (SNLI) and answers in a text (SQuAD).

plm-jax train --config=experiments/elmo/pairs.py:snli,input --workdir=runs/elmo/snli_input
plm-jax train --config=experiments/elmo/pairs.py:squad,both --workdir=runs/elmo/squad_both

A word is x, a vector of GloVe that does not train, and a learned mix of all layers of the trunk, which reads each text
as a sentence of its own. Layers of LSTM read both texts one behind the other (`fields='joined'`), so that each word of
the second is read knowing the first. Of SNLI the largest values over the row are classified; of SQuAD each word of the
text is scored as the first and the last of the answer. The trunk is the run that `cut` of pretrain.py makes; a side, or
`none` for the network without ELMo, as in tagging.py.

Hardware: two CPU cores; at first 1,500 to 5,000 tokens a second beside other programs.
Expect (with ELMo; without): SNLI, test accuracy 88.7; 88.0. SQuAD, test F1 85.8; 81.1 (Table 1). Our own figures,
`snli` from 8,330 rows, where the largest class has 33.8 % of validation: none 38.5 % after 2,000 steps, one seed; with
or without ELMo 33 to 36 after 600. `squad` was tried for some steps.

Arguments: a set (snli, squad), a side, `quick`.
Differs from the paper: one network of LSTM in place of ESIM and of the network of Clark and Gardner, whose attention
between the texts nothing here has, so that both fall far short of the table; a far smaller trunk; dropout of .2 on
ELMo, where the paper has .5; 2,000 steps.
"""

from experiments import common

SIDES = ('input', 'both', 'output', 'none')
STEPS = 2_000


def get_config(arg=''):
  """Takes a set, a side and `quick`."""
  name, side = common.chosen(arg, ('snli', 'squad')), common.chosen(arg, SIDES)
  c = common.run(arg, choices=('snli', 'squad', *SIDES), steps=STEPS)
  inner = dict(name='classify', classes=3) if name == 'snli' else dict(name='span')
  common.over_elmo(c, side, fields='joined', inner=inner)
  if name == 'snli':
    texts = dict(fields=('premise', 'hypothesis'), label='label', length=128, buckets=(32, 64))
    c.data = dict(name='labelled', path='../shared/data/snli', layout='elmo', batch_size=32, **texts)
    c.eval, c.best = common.validation('validation', 'test'), ('validation/accuracy', 'max')
  else:
    c.data = common.squad('v1.1', layout='elmo', batch_size=16) | dict(path='../shared/data/squad')
    common.score_spans(c)
  c.eval_every = c.save_every = STEPS
  return common.quick(c, arg)
