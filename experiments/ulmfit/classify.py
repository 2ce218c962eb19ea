"""ULMFiT, stage 3: a classifier on the fine-tuned language model, Howard and Ruder 2018, §3.3; Table 7.

plm-jax train --config=experiments/ulmfit/classify.py:trec --workdir=runs/ulmfit/trec
plm-jax evaluate --workdir=runs/ulmfit/trec --evaluation=test --predictions=runs/ulmfit/trec.jsonl
plm-jax evaluate --score runs/ulmfit/trec.jsonl runs/ulmfit/trec-backward.jsonl

The last state, the largest values and the mean are read together by two layers. A row of Table 7 says which of three
things is done: `freez` joins a group of layers from the top every tenth of the run, `discr` divides rates by 2.6 a
group, `stlr` follows the slanted triangle. `ulmfit` does all of them, `full` none, `last` trains the head alone, `thaw`
one group after another and then all (chain-thaw). IMDb is read in windows of 70 tokens (BPT3C). `backward` reads rows
from their end, on the other two stages' `backward`; the last command averages the predictions of both (§5), those of
the second written like those of the first.

Hardware: one accelerator, minutes; `small` two CPU cores, minutes.
Expect (Table 7, validation error, IMDb and TREC-6): scratch 9.93, 13.36; full 6.87, 6.86; full_discr 5.57, 6.21; last
6.49, 16.09; freez 6.37, 6.86; freez_discr 5.39, 5.86; freez_stlr 5.04, 6.02; freez_cos 5.70, 6.38; ulmfit 5.00, 5.69;
thaw 5.39, 6.71. AG's errors stand in tables/ulmfit_7.py. On test, with both directions (Tables 2 and 3): IMDb 4.6,
TREC-6 3.6, AG 5.01; of IMDb 5.30 with one direction and 4.58 with both.
Arguments: a set (imdb, trec, ag), a row of Table 7, `small`, a direction (forward, backward), `quick`.
Differs from the paper: AG's rows are descriptions without titles; one triangle for the run, where the released code has
one for each stage of unfreezing; rows are cut at 1,400 tokens, where the released code reads on and pools the last
1,400 (`adapter.last`); ten epochs.
"""

from experiments import common

# set: path, fields of the text and the label, classes, lengths of rows, window
SETS = {
  'imdb': ('tfds:imdb_reviews', 'text', 'label', 2, (140, 280, 560, 1400), 70),
  'trec': ('tfds:trec', 'text', 'label-coarse', 6, (16, 32, 64), None),
  'ag': ('tfds:ag_news_subset', 'description', 'label', 4, (64, 128, 256), None),
}
LAST = (('trunk/.*', None), ('.*', 1.0))
# row: schedule, multipliers of the rate
ROWS = {
  'ulmfit': ('stlr', common.awd_groups(2.6, period=0.1, first=1)),
  'full': ('constant', common.awd_groups(1.0)),
  'full_discr': ('constant', common.awd_groups(2.6, first=1)),
  'last': ('constant', LAST),
  'freez': ('constant', common.awd_groups(1.0, period=0.1, first=1)),
  'freez_discr': ('constant', common.awd_groups(2.6, period=0.1, first=1)),
  'freez_stlr': ('stlr', common.awd_groups(1.0, period=0.1, first=1)),
  'freez_cos': ('cosine', common.awd_groups(1.0, period=0.1, first=1)),
  'thaw': ('constant', common.chain_thaw(0.1)),
  'scratch': ('stlr', common.awd_groups(1.0)),
}


def get_config(arg=''):
  """Takes a set, a row, `small`, a direction and `quick`."""
  name, row = common.chosen(arg, tuple(SETS)), common.chosen(arg, tuple(ROWS))
  size = 'small' if 'small' in common.words(arg) else 'full'  # the word `full` is a row
  path, text, label, classes, (*buckets, length), window = SETS[name]
  schedule, scale = ROWS[row]
  c = common.run(arg, choices=(*SETS, *ROWS, 'small', 'forward', 'backward'), epochs=10)
  backward = common.chosen(arg, ('forward', 'backward')) == 'backward'
  c.vocab = dict(name='byte_bpe', path=common.vocab('ulmfit' if size == 'full' else 'small'))
  c.model = dict(name='awd_lstm', variant='ulmfit', overrides=dict(common.AWD_LSTM[size], **common.AWD_DROPOUT))
  c.adapter = dict(
    name='classify', classes=classes, pool='concat', hidden=50, activation='relu', norms='batch', dropout=0.1,
    input_dropout=0.4, window=window, backward=backward,
  )  # fmt: skip
  c.data = dict(
    name='labelled', path=path, split='train[:90%]', fields=(text,), label=label, layout='text', length=length,
    buckets=tuple(buckets), batch_size=64,
  )  # fmt: skip
  c.optim = dict(name='adam', rate=0.01, schedule=schedule, b1=0.8, b2=0.99, decay=1e-6, clip=25.0, scale=scale)
  if row != 'scratch':
    c.init_from = (dict(source=f'runs/ulmfit/{name}-lm{"-backward" if backward else ""}', from_='trunk', to='trunk'),)
  c.eval = {'validation': dict(data=dict(split='train[90%:]')), 'test': dict(data=dict(split='test'))}
  c.best = ('validation/accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 20, 100, 100
  return common.quick(c, arg)
