"""A person's own classes of long texts, by fine-tuning: Sun et al. 2019, §5.3.1, "How to Fine-Tune BERT".

plm-jax train --config=experiments/finetune/long_texts.py:head_tail --workdir=runs/long \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax train --config=experiments/finetune/long_texts.py:windows,max --workdir=runs/long \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax predict --workdir=runs/long --file=new.csv --out=predicted.csv

FOLDER as in `classify.py`. Of a longer text `head_tail` reads the first 128 and the last 382 tokens. `windows` reads up
to four windows side by side and joins their logits by `mean` (default) or `max`, as the paper's hierarchical methods
join states. --config.data.windows=8 reads longer texts, and a step takes as much longer.

Hardware: one accelerator, under an hour; `windows` takes up to four times as long.
Expect: test error of BERT-base on IMDb 5.42 for `head_tail`, 5.63 for the beginning only, 5.44 for the end only (the
paper's Table 2). A BERT of a million parameters, 1,707 reviews and rows of 64 tokens: test accuracy on 488 reviews .660
with the beginning only, .699 `head_tail`, .748 `windows` (one seed; command in docs/guide/finetune.md).
Differs from the paper: logits are joined instead of the states of [CLS]; a rate of 3e-5 and three epochs for all data,
where the paper has 2e-5 and four.
"""

from experiments import common


def get_config(arg=''):
  """Takes `head_tail` or `windows`, `mean` or `max`, and `quick`."""
  c = common.run(arg, choices=('head_tail', 'windows', 'mean', 'max'), epochs=3)
  long = common.chosen(arg, ('head_tail', 'windows'))
  pool = common.chosen(arg, ('mean', 'max'))
  reads = dict(windows=4) if long == 'windows' else dict(head_tokens=128)
  c.adapter = dict(name='classify', classes=None, dropout=0.1)
  if long == 'windows':
    c.adapter.pool_windows = pool
  common.own_data(c, kind='class', best=('accuracy', 'max'), length=512, buckets=(128, 256), batch_size=24, **reads)
  return common.quick(c, arg)
