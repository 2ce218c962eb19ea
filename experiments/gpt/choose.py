"""GPT on questions with several answers by fine-tuning: Radford et al. 2018, §3.2, §3.3 and §4.1; Table 2.

plm-jax train --config=experiments/gpt/choose.py:race --workdir=runs/gpt/race

Hardware: one accelerator, hours; a row is as many sequences as it has options.
Expect: RACE-h 57.4, RACE-m 62.9 (test); HellaSwag 41.9 (dev; Zellers et al. 2019, Table 1).

Every option is a sequence of its own, <s> passage $ question $ option <e>; `joined` has one $ only, before the option,
as the text of the paper's §3.3 joins passage and question. RACE is its harder half
(--config.data.path=tfds:race/middle is the other).

Arguments: a task (race, hellaswag, copa), `joined`, `quick`.
Differs from the paper: the trunk is that of gpt.py, with its data; Story Cloze is not distributed freely.
"""

from experiments import common

# the fields one by one, and with what stands before the option in one
FIELDS = {
  'race': (('article', 'questions', 'options'), ('{article} {questions}', 'options')),
  'hellaswag': (('context', 'endings'), ('context', 'endings')),
  'copa': (('premise', 'question', 'choice1|choice2'), ('{premise} {question}', 'choice1|choice2')),
}
LENGTHS = {'race': 512, 'hellaswag': 128, 'copa': 64}


def get_config(arg=''):
  """Takes a task, `joined` and `quick`."""
  task, joined = common.chosen(arg, tuple(FIELDS)), 'joined' in common.words(arg)
  c = common.run(arg, choices=(*FIELDS, 'joined'), epochs=3)
  c.vocab = dict(name='byte_bpe', path=common.vocab('gpt'), extra=('_start_', '_delimiter_', '_classify_'))
  c.model = dict(name='gpt', variant='gpt')
  c.adapter = dict(name='choose', dropout=0.1, same_dropout=True, lm_weight=0.5)
  c.data = common.options(task, fields=FIELDS[task][joined], layout='gpt', length=LENGTHS[task], batch_size=32)
  c.optim = common.gpt_adam()
  c.init_from = (dict(source='runs/gpt/gpt', from_='trunk', to='trunk', resize='new_rows'),)
  c.execution = dict(dtype='bfloat16')
  common.score_options(c, task)
  return common.quick(c, arg)
