"""BERT on options by fine-tuning: SWAG (Devlin et al. 2018, §4.4; Table 4), HellaSwag, RACE, COPA, ReCoRD.

plm-jax train --config=experiments/bert/choose.py:hellaswag --workdir=runs/bert/hellaswag

Hardware: one accelerator, hours; a row is as many sequences as it has options.
Expect: SWAG (dev) base 81.6, large 86.6; HellaSwag (dev; Zellers et al. 2019, Table 1) base 39.5, large 46.7; RACE
(test; Liu et al. 2019, Table 7) large 72.0; COPA (test; Wang et al. 2019, SuperGLUE) large 70.6, ReCoRD F1 72.0 and
exact match 71.3.

SWAG is read from the files of its authors, train.csv and val.csv in data/swag (--config.data.path=FOLDER); RACE is its
harder half, whose rows are articles with several questions (--config.data.path=tfds:race/middle is the other); its
release is a file of JSON for each article, which `jq -c . RACE/train/high/*.txt > FOLDER/train.jsonl` puts into one.

Arguments: a task (swag, hellaswag, race, copa, record), a trunk (base, large), `quick`.
Differs from the paper: settings are those of SWAG for every set; the question of COPA is "What was the cause of this?"
or "What was the effect of this?", before the option; an entity of ReCoRD stands behind the query, not in its blank.
"""

from experiments import common

TASKS = ('swag', 'hellaswag', 'race', 'copa', 'record')
TRUNKS = ('base', 'large')


def get_config(arg=''):
  """Takes a task, a trunk and `quick`."""
  task, trunk = common.chosen(arg, TASKS), common.chosen(arg, TRUNKS)
  c = common.run(arg, choices=(*TASKS, *TRUNKS), epochs=3)
  c.vocab = dict(name='wordpiece', path=common.vocab('bert-uncased'))
  c.model = dict(name='bert', variant=f'bert-{trunk}')
  c.data = common.options(task, length=common.OPTION_LENGTHS[task], batch_size=16, layout='bert')
  c.adapter = dict(name='choose', dropout=0.1)
  c.optim = common.bert_adam(2e-5, warmup=0.1)
  c.init_from = (dict(source=f'runs/bert/{trunk}', from_='trunk', to='trunk'),)
  c.execution = dict(dtype='bfloat16')
  common.score_options(c, task)
  return common.quick(c, arg)
