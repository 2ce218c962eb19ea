"""A person's own classes of pairs of texts, by fine-tuning: the recipe of Devlin et al. 2018, §4.1 and A.3.

plm-jax train --config=experiments/finetune/pair.py --workdir=runs/pair \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax predict --workdir=runs/pair --file=new.csv --out=predicted.csv

FOLDER as in `classify.py`, with two texts in each row: sentence1 and sentence2, premise and hypothesis, question1 and
question2, question and sentence, or the only two fields of text that there are. The second text stands as MODEL was
trained to read it: behind one [SEP] with type 1, or behind two </s>.

Hardware: one accelerator, minutes; two CPU cores for a small MODEL.
Expect: MNLI of BERT-base 84.6, MRPC F1 88.9 (test; the paper's Table 1). Rows of one's own are not in the paper.
Differs from the paper: one rate, one batch size and three epochs for all data.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=3)
  c.adapter = dict(name='classify', classes=None, dropout=0.1)
  common.own_data(c, kind='class', best=('accuracy', 'max'), length=128, buckets=(32, 64))
  return common.quick(c, arg)
