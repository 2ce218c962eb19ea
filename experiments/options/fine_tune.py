"""Options to choose from by fine-tuning: SWAG (Zellers et al. 2018), HellaSwag (Zellers et al. 2019), RACE (Lai et al.
2017), COPA and ReCoRD (Wang et al. 2019, SuperGLUE), for trunks of nine papers.

plm-jax train --config=experiments/options/fine_tune.py:hellaswag,roberta --workdir=runs/options/hellaswag
plm-jax train --config=experiments/options/fine_tune.py:copa,deberta --workdir=runs/options/copa \
    --config.data.path=../shared/data/super_glue_copa

Every option is a sequence of its own, and one layer scores what the trunk pools of it. Where a paper has its own form
or settings, its file is the one to take: bert/choose.py, gpt/choose.py, roberta/reading.py, albert/fine_tune.py,
xlnet/fine_tune.py, deberta/reading.py, deberta/superglue.py. SWAG is train.csv and val.csv of its authors in data/swag.

Hardware: one accelerator, hours; a row is as many sequences as it has options.
Expect: SWAG (dev) 81.6 and HellaSwag (dev) 39.5 with BERT-base (Devlin et al. 2018, Table 4; Zellers et al. 2019, Table
1), HellaSwag 41.9 with GPT (ibid.); RACE (test) 64.0 with ALBERT-base, 66.7 with XLNet-base (their Tables 2 and 6). By
chance 25, COPA 50. A trunk pre-trained on our text alone stays below.

Arguments: a set (swag, hellaswag, race, copa, record), a trunk (bert, roberta, albert, electra, deberta, xlnet, gpt,
bart, t5), `quick`.
Differs from the paper: rates, epochs and decay are those that each paper gives for its other classifications; the
question of COPA is "What was the cause of this?" or "What was the effect of this?", before the option; an entity of
ReCoRD stands behind the query, not in its blank; ELECTRA, BART and T5 have no published figures on these sets here.
"""

from experiments import common


def get_config(arg=''):
  """Takes a set, a trunk and `quick`."""
  name, trunk = common.chosen(arg, tuple(common.OPTIONS)), common.chosen(arg, tuple(common.TRUNKS))
  c = common.fine_tuned(arg, trunk, choices=tuple(common.OPTIONS))
  c.adapter = dict(name='choose', dropout=0.1)
  layout = common.TRUNKS[trunk].layout
  c.data = common.options(name, layout=layout, length=common.OPTION_LENGTHS[name], batch_size=16)
  common.score_options(c, name)
  return common.quick(c, arg)
