"""A person's own classes of texts, by fine-tuning: the recipe of Devlin et al. 2018, §4.1 and A.3.

plm-jax train --config=experiments/finetune/classify.py --workdir=runs/mine \
    --config.data.path=FOLDER --config.model.from=MODEL
plm-jax predict --workdir=runs/mine --file=new.csv --out=predicted.csv

FOLDER is one file, or holds train and, where there are any, validation and test, as .csv, .tsv, .jsonl or .parquet with
a text and a class in each row: "text,label" and "it never came,complaint". Fields, classes and their names are found
there, and the log says which; --config.data.fields="('title', 'body')" and --config.data.label=category say it
otherwise, and labels.json, {"label": ["no", "yes"]}, gives classes their order. Without a validation file a tenth of
the rows is held out, the same ones as long as the file is the same. MODEL is a folder in Hugging Face's form, an
import or a run; rows stand as it was trained to read them.

The optimiser is that of BERT's release, Adam without bias correction. At step t its direction is (1 - .9^t) /
sqrt(1 - .999^t) times that of AdamW: 3.2 times at step 1, 6.6 at step 12, 3.2 at step 100, 1.3 at step 1,000. So the
first 100 steps at 3e-5 act like AdamW at about 1.4e-4. --config.optim.name=adamw corrects the bias; short runs then
need a higher rate. docs/benchmarks/transfer.md has both beside a loop over transformers.

Hardware: one accelerator, minutes; two CPU cores for a small MODEL.
Expect: SST-2 of BERT-base 93.5, large 94.9 (test; the paper's Table 1). Rows of one's own are not in the paper.
Differs from the paper: one rate, one batch size and three epochs for all data.
"""

from experiments import common


def get_config(arg=''):
  """Takes `quick`."""
  c = common.run(arg, epochs=3)
  c.adapter = dict(name='classify', classes=None, dropout=0.1)
  common.own_data(c, kind='class', best=('accuracy', 'max'), length=128, buckets=(32, 64))
  return common.quick(c, arg)
