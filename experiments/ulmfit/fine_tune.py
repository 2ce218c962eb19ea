"""ULMFiT, stage 2: the language model goes on with the text of a task, Howard and Ruder 2018, §3.2.

plm-jax train --config=experiments/ulmfit/fine_tune.py:imdb --workdir=runs/ulmfit/imdb-lm

Rates fall by 2.6 a layer from the last one down, along the slanted triangle of eq. 3. A vocabulary of the task's own
(--config.vocab.path) takes the rows of its tokens by their text, and new ones start from the mean of the others.

Hardware: one accelerator, minutes; `small` two CPU cores, minutes.
Expect: no published figure for the language model. Without this stage the classifier's validation error rises from 5.00
to 6.99 (IMDb) and from 5.69 to 6.38 (TREC-6); with it, at one rate for all layers and all steps, it is 5.86 and 6.54
(Table 6, rows `none` and `full`).
Arguments: a set (imdb, trec, ag), a size (full, small), a direction (forward, backward), rates (paper, released),
`quick`. `paper` divides the rate of the tied table by 2.6^3 = 17.6, as the group below the first layer. `released` has
the groups of the released code: rate / 6, / 3 and / 1 from the first layer to the last, and rate / 2 for the table.
Both have nearly the same errors on TREC-6 (14.9 and 14.7 %, three seeds, small; tables/ulmfit_4.py).
Differs from the paper: the labelled texts alone, where the paper has IMDb's unlabelled ones too; subwords, so that
hardly a word is new.
"""

from experiments import common

# set: path, field of the text, epochs
SETS = {
  'imdb': ('tfds:imdb_reviews', 'text', 15),
  'trec': ('tfds:trec', 'text', 15),
  'ag': ('tfds:ag_news_subset', 'description', 15),
}


def get_config(arg=''):
  """Takes a set, a size, a direction, rates and `quick`."""
  name, size = common.chosen(arg, tuple(SETS)), common.chosen(arg, ('full', 'small'))
  path, text, epochs = SETS[name]
  c = common.run(arg, choices=(*SETS, 'full', 'small', 'forward', 'backward', 'paper', 'released'), epochs=epochs)
  c.vocab = dict(name='byte_bpe', path=common.vocab('ulmfit' if size == 'full' else 'small'))
  c.model = dict(name='awd_lstm', variant='ulmfit', overrides=common.AWD_LSTM[size])
  c.objective = dict(name='causal_lm', memory=True, activation=2.0, temporal=1.0)
  c.data = dict(name='bptt', path=path, text=text, split='train[:90%]', length=70, batch_size=64)
  c.data['reverse'] = common.chosen(arg, ('forward', 'backward')) == 'backward'
  c.optim = dict(name='adam', rate=4e-3, schedule='stlr', b1=0.8, b2=0.99, decay=1e-7, clip=0.3)
  rates = common.chosen(arg, ('paper', 'released'))
  c.optim['scale'] = common.AWD_RELEASED if rates == 'released' else common.awd_groups(2.6)
  source = 'runs/ulmfit/pretrain-backward' if c.data.reverse else 'runs/ulmfit/pretrain'
  c.init_from = (dict(source=source, from_='trunk', to='trunk', resize='same_tokens'),)
  c.eval = {'validation': dict(data=dict(split='train[90%:]'))}
  c.best = ('validation/loss', 'min')
  c.log_every, c.eval_every, c.save_every = 20, 100, 100
  return common.quick(c, arg)
