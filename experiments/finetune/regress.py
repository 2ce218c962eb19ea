"""A person's own scores of texts or pairs, by fine-tuning: the recipe of Devlin et al. 2018, §4.1 and A.3, for STS-B.

plm-jax train --config=experiments/finetune/regress.py --workdir=runs/scores \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax predict --workdir=runs/scores --file=new.csv --out=predicted.csv

FOLDER as in `classify.py`, with a number in each row: a field named label, score, value, rating, similarity or target.
-1 is a number as any other; where it stands for none, as in the test sets of benchmarks: --config.data.missing=-1.

Hardware: one accelerator, minutes; two CPU cores for a small MODEL. Needs `bash launch/setup.sh scores`.
Expect: STS-B of BERT-base 85.8 (Spearman, test; the paper's Table 1). Rows of one's own are not in the paper.
Differs from the paper: one rate, one batch size and three epochs for all data.
"""

from experiments import common

NEVER = -1e30  # no number of a row


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=3)
  c.adapter = dict(name='classify', kind='regression', classes=1, dropout=0.1)
  common.own_data(c, kind='regression', best=('spearman', 'max'), length=128, buckets=(32, 64), missing=NEVER)
  return common.quick(c, arg)
