"""RoBERTa as a word in a blank, from few labels: Schick and Schütze 2020 (PET), §3.1 and §4, Table 1.

plm-jax train --config=experiments/roberta/cloze.py --workdir=runs/roberta/cloze
plm-jax train --config=experiments/roberta/cloze.py:mnli --workdir=runs/roberta/cloze-mnli \
    --config.data.path=../shared/data/glue_mnli
plm-jax evaluate --config=experiments/roberta/cloze.py --weights=FOLDER

`evaluate` with a release of RoBERTa compares the words without an update.
Hardware: one accelerator, minutes.
Expect (accuracy of PET without unlabelled data, 100 rows): MNLI 74.5 with RoBERTa large and several patterns; the paper
has Yelp, AG's News and Yahoo in place of SST-2.

Arguments: a task (sst2, mnli), `quick`.
Differs from the paper: one pattern, one model, no distillation from an ensemble, no auxiliary language model; the
number of labels is that of the data: `--config.data.split='train[:100]'` takes 100.
"""

from experiments import common

WORDS = {'sst2': (' terrible', ' great'), 'mnli': ('Yes', 'Maybe', 'No')}


def get_config(arg=''):
  """Takes a task and `quick`."""
  task = common.chosen(arg, tuple(WORDS))
  c = common.run(arg, choices=tuple(WORDS), steps=250)
  c.vocab = dict(name='byte_bpe', path=common.vocab('roberta'))
  c.model = dict(name='bert', variant='roberta-base')
  words = WORDS[task] if task == 'sst2' else tuple(f' {word}' for word in WORDS[task])
  c.adapter = dict(name='cloze', words=words)
  c.data = dict(
    name='text_to_text',
    path=f'tfds:glue/{task}',
    form=dict(name='patterns', task=task),
    layout='roberta',
    target_layout='bare',
    gap=' ',
    length=256,
    target_length=8,
    batch_size=16,
  )
  c.optim = dict(name='adamw', rate=1e-5, schedule='linear', warmup=0, decay=0.01, clip=1.0)
  c.init_from = (dict(source='runs/roberta/pretrain', from_='', to=''),)
  c.execution = dict(dtype='bfloat16')
  splits = common.GLUE[task][2]
  c.eval = common.validation(*splits)
  c.best = (f'{splits[0]}/accuracy', 'max')
  c.log_every, c.eval_every, c.save_every = 10, 50, 50
  quick = common.quick(c, arg)
  if 'quick' in common.words(arg):
    quick.adapter['words'] = ('a', 'b')
  return quick
