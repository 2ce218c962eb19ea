"""Which layer knows parts of speech, and which names? A linear probe on each layer of a frozen trunk: Peters et al.
2018, §5.3 and Tables 5 and 6; Tenney et al. 2019.

plm-jax probe --config=experiments/probe/words.py:ewt --workdir=runs/probe/pos --seeds=3 \
    --config.model.from=MODEL --config.data.path=../shared/data/universal_dependencies_en_ewt
plm-jax train --config=experiments/probe/words.py:ewt --workdir=runs/probe/last

MODEL is a folder in Hugging Face's form, an import or a run; with a run of ELMo, --config.data.layout=elmo. The second
command trains the probe of the last layer of BERT-base alone.

Hardware: two CPU cores, minutes for a small MODEL; one accelerator, minutes.
Expect (ELMo on Penn Treebank POS, accuracy in per cent): first layer 97.3, second 96.8; lower layers know more of
parts of speech than higher ones, of meanings less. Our own figures, ewt, `cut` of experiments/elmo/pretrain.py, rate
0.005, 400 steps, one seed, validation: words 75.8, first layer 83.1, second 83.1. wnut17, the `cut` of
tables/elmo_2.py, rate 0.005, 1,200 steps in rows of 32 or 64 words, one seed, validation, F1: words 2.8, first layer
5.9, second 5.3, mix 6.9; behind 300 steps hardly a name is found.

Arguments: a set (ewt, wnut17, conll2003), `quick`.
Differs from the paper: other treebanks and other trunks; the probe is one linear layer on the first piece of a word.
"""

from experiments import common


def get_config(arg=''):
  """Takes a set and `quick`."""
  name = common.chosen(arg, ('ewt', 'wnut17', 'conll2003'))
  c = common.run(arg, choices=tuple(common.TAGGING), steps=1_000)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-cased'))
  c.model = dict(name='bert', variant='bert-base')
  c.adapter = dict(name='tag', tags=common.TAGGING[name][2], dropout=0.0, frozen=True)
  c.data = common.tagging(name, layout='bert', batch_size=32)
  c.optim = dict(name='adam', rate=1e-3, schedule='linear', warmup=0.1)
  c.init_from = (dict(source='runs/bert/base-cased', from_='trunk', to='trunk'),)
  common.score_tagging(c, name)
  c.eval_every = c.save_every = 1_000
  return common.quick(c, arg)
