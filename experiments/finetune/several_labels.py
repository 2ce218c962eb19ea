"""A person's own texts with several labels each, by fine-tuning: the recipe of Devlin et al. 2018, §4.1 and A.3.

plm-jax train --config=experiments/finetune/several_labels.py --workdir=runs/labels \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax predict --workdir=runs/labels --file=new.csv --out=predicted.csv

FOLDER as in `classify.py`, with a list in each row of .jsonl, {"text": "...", "labels": ["joy", "surprise"]}, or a
table with a column of 0 and 1 for each label: "text,joy,fear,surprise". Labels in one cell, "joy; surprise", need
--config.data.separator=";". A label is predicted where its probability is above --config.adapter.threshold.

Hardware: one accelerator, minutes; two CPU cores for a small MODEL. Needs `bash launch/setup.sh scores`.
Expect: macro F1 .46 of BERT-base on the 28 emotions of GoEmotions (Demszky et al. 2020, Table 4). Rows of one's own are
not in the paper.
Differs from the paper: a sigmoid and binary cross-entropy for each label instead of one softmax; one rate for all data.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=3)
  c.adapter = dict(name='classify', several=True, classes=None, threshold=0.5, dropout=0.1)
  common.own_data(c, kind='multilabel', best=('micro_f1', 'max'), length=128, buckets=(32, 64))
  return common.quick(c, arg)
