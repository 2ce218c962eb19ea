"""A person's own labels of words, by fine-tuning: the recipe of Devlin et al. 2018, §5.3 and A.3.

plm-jax train --config=experiments/finetune/tag.py --workdir=runs/tags \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax predict --workdir=runs/tags --file=new.txt --out=predicted.jsonl

FOLDER as in `classify.py`, or .conll: a word and its tag a line, a blank line behind each sentence. Rows of .jsonl
have tokens and tags as lists, those of a table as lists or as texts with spaces between the words. Tags are found in
the training rows; where all are O, B-... and I-..., the F1 of spans is measured beside accuracy. Lines of a .txt file
are predicted word by word.

Hardware: one accelerator, minutes; two CPU cores for a small MODEL.
Expect: CoNLL-2003 of BERT-base F1 92.4 (test; the paper's Table 7). Rows of one's own are not in the paper.
Arguments: `crf` (a CRF at the end, which the paper does without), `quick`.
Differs from the paper: one rate, one batch size and three epochs for all data; rows are single sentences.
"""

from experiments import common


def get_config(arg=''):
  """Takes `crf` and `quick`."""
  c = common.run(arg, choices=('crf',), epochs=3)
  c.adapter = dict(name='tag', tags=(), dropout=0.1, crf='crf' in common.words(arg))
  common.own_data(c, kind='words', best=('accuracy', 'max'), length=256, buckets=(64, 128))
  return common.quick(c, arg)
