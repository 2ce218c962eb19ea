"""A person's own questions with options, by fine-tuning: the recipe of Devlin et al. 2018, §4.4, for SWAG.

plm-jax train --config=experiments/finetune/choose.py --workdir=runs/options \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax predict --workdir=runs/options --file=new.jsonl --out=predicted.jsonl

FOLDER as in `classify.py`, with a text and a list of options in each row of .jsonl, or with fields as SWAG, RACE, COPA
and HellaSwag have them; of a table, --config.data.fields="('question', '{a|b|c}')" says where the options are. The
label is the number of the right one from 0, its letter, or its text.

Hardware: one accelerator, minutes to hours: a row is as many sequences as it has options.
Expect: SWAG of BERT-base 81.6 (dev; the paper's Table 4). Rows of one's own are not in the paper.
Differs from the paper: one rate for all data.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=3)
  c.adapter = dict(name='choose', dropout=0.1)
  common.own_data(c, kind='options', best=('accuracy', 'max'), length=128, batch_size=16)
  return common.quick(c, arg)
