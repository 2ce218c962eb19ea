"""A person's own questions on texts, by fine-tuning: the recipe of Devlin et al. 2018, §4.2 and §4.3, for SQuAD.

plm-jax train --config=experiments/finetune/qa.py --workdir=runs/answers \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax predict --workdir=runs/answers --file=new.jsonl --out=predicted.jsonl

FOLDER as in `classify.py`, also SQuAD's .json, with question, context and answers in each row: {"text": ["at noon"],
"answer_start": [17]}, or answer and answer_start in columns of a table. A long text is read in windows. Rows without
answers are predicted.

Hardware: one accelerator, minutes to an hour.
Expect: SQuAD 1.1 of BERT-base exact match 80.8, F1 88.5 (dev; the paper's Table 2). One's own are not in the paper.
Arguments: `v2` (texts may hold no answer), `quick`.
Differs from the paper: three epochs for all data.
"""

from experiments import common


def get_config(arg=''):
  """Takes `v2` and `quick`."""
  c = common.run(arg, choices=('v2',), epochs=3)
  c.adapter = dict(name='span', no_answer='v2' in common.words(arg))
  common.own_data(c, kind='spans', best=('f1', 'max'), length=384, stride=128, question_length=64)
  return common.quick(c, arg)
