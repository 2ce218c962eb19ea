"""A frozen ELMo as features of a network that labels words: Peters et al. 2018, §3.2, §3.3, §4 and Tables 2 and 3.

plm-jax train --config=experiments/elmo/tagging.py:ewt,both --workdir=runs/elmo/ewt_both \\
    --config.data.path=../shared/data/universal_dependencies_en_ewt

A word is x, a vector of GloVe that does not train, and a learned mix of all layers of the trunk. Layers of LSTM read
them under a CRF, on the side that an argument names: `input`, `output`, `both`, or `none` for the network without ELMo.
`last` mixes nothing and takes the last layer; `even` keeps the mix near a plain average (lambda 1, else 0.001). The
trunk is the run that `cut` of pretrain.py makes.

The published trunk (*options.json, *.hdf5; the extra `hdf5` reads it), with --config.model.from=runs/elmo/import
beside the flags above:

plm-jax convert import FOLDER runs/elmo/import

Hardware: two CPU cores, minutes.
Expect (CoNLL-2003, test F1): 92.22 with ELMo, 90.15 without (Table 1). SQuAD in Table 3: 85.1 at the input, 84.8 at
the output, 85.6 at both; in Table 2: 84.7 last layer, 85.0 lambda 1, 85.2 lambda 0.001. Our own figures, one seed,
test: `ewt`, accuracy, none 67.2, input 86.8; three seeds of each in experiments/results/elmo. The file of vectors has
5,000 words, and x of the others is zeros.

Arguments: a set (ewt, wnut17, conll2003), a side, `last`, `even`, `quick`. pairs.py has the tasks of two texts.
Differs from the paper: other sets and a far smaller trunk; dropout of .2 on ELMo, where the paper has .5; x has no
network over characters beside it; one layer of LSTM of 100 per direction, 300 steps for parts of speech and 1,200 for
names.
"""

from experiments import common

SETS, SIDES = ('ewt', 'wnut17', 'conll2003'), ('both', 'input', 'output', 'none')
STEPS = {'ewt': 300, 'wnut17': 1_200, 'conll2003': 1_200}  # of WNUT-17, hardly a word is a name after 300


def get_config(arg=''):
  """Takes a set, a side, `last`, `even` and `quick`."""
  name, side = common.chosen(arg, SETS), common.chosen(arg, SIDES)
  c = common.run(arg, choices=(*SETS, *SIDES, 'last', 'even'), steps=STEPS[name])
  common.over_elmo(
    c,
    side,
    layers=(-1,) if 'last' in common.words(arg) else (),
    penalty=1.0 if 'even' in common.words(arg) else 0.001,
    inner=dict(name='tag', tags=common.TAGGING[name][2], dropout=0.2, crf=name != 'ewt'),
  )
  c.data = common.tagging(name, layout='elmo', batch_size=32)
  if name != 'ewt':
    c.data.buckets = (32, 64, 128)  # 99 of 100 texts of WNUT-17 have no more than 33 words
  common.score_tagging(c, name)
  c.eval_every = c.save_every = STEPS[name]
  return common.quick(c, arg)
