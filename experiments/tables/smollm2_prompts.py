"""Prompts of SmolLM2 without training: 0 to 16 demonstrations, and how options are compared.

bash launch/released.sh
plm-jax tables experiments/tables/smollm2_prompts.py --scale=small --workdir=runs/tables --data=../shared/data

runs/released/smollm2 is SmolLM2-135M-Instruct, a LLaMA of 135 M parameters whose published file holds 4 bits of each
number. Every example has its own demonstrations, so that one run samples them 100 times. "Calibrated" subtracts the
log-likelihood of an option after a text without content (Zhao et al. 2021, §5): "Review: N/A" for SST-2, "because" for
COPA (Holtzman et al. 2021, §3, who take "so" for effects). Both have no demonstrations.
Small: 100 test examples, 20 minutes of a core; most are those of 16 demonstrations.
"""

from experiments.tables.shared import scales

WEIGHTS = 'runs/released/smollm2'
REVIEW = 'Review: {}\nSentiment:'
TASKS = {  # folder, split, split of demonstrations, form, text without content
  'SST-2': (
    'glue_sst2',
    'test',
    'train',
    dict(name='template', inputs=REVIEW.format('{sentence}'), options=('negative', 'positive')),
    REVIEW.format('N/A'),
  ),
  'COPA': ('super_glue_copa', 'validation', 'train', dict(name='prompts', task='copa'), 'because'),
}
CHANCE = {'SST-2': 50.0, 'COPA': 55.0}  # the most frequent class of the examples
LENGTHS = {  # demonstrations: tokens of a row, the last number is the limit
  'SST-2': {0: (32, 64), 1: (64, 96), 4: (128, 192), 16: (384, 480)},
  'COPA': {0: (16,), 1: (40,), 4: (96,), 16: (304,)},
}
ROWS = {  # demonstrations, comparison of options
  '0 demonstrations': (0, 'sum'),
  '0, calibrated': (0, 'against'),
  '0, mean of tokens': (0, 'mean'),
  '1 demonstration': (1, 'sum'),
  '4 demonstrations': (4, 'sum'),
  '16 demonstrations': (16, 'sum'),
}
PAIRS = (
  ('4 demonstrations', '0 demonstrations'),
  ('16 demonstrations', '0 demonstrations'),
  ('16 demonstrations', '1 demonstration'),
  ('0, calibrated', '0 demonstrations'),
  ('0, calibrated', '0, mean of tokens'),
)
ONE_TOKEN = 'its options are single tokens, whose mean is their sum'


def get_table(scale):
  """Takes a scale."""
  columns = {name: _column(scale, name) for name in TASKS}
  trunk = dict(weights=WEIGHTS)
  if scale == 'tiny':
    trunk = dict(config=scales.target(scale, 'small/pretrain.py', 'gpt', small=''))
  rows = {}
  for name, (count, choose) in ROWS.items():
    changes = {} if scale == 'tiny' else {task: _prompt(scale, task, count, choose) for task in TASKS}
    rows[name] = trunk | dict(family='gpt', limits=changes)
    rows[name]['without'] = {'SST-2': ONE_TOKEN} if choose == 'mean' else {}
  return dict(
    title='Prompts of SmolLM2: demonstrations and calibration',
    paper='Brown et al. 2020, §3; Zhao et al. 2021; Holtzman et al. 2021; of other networks',
    mark='none',
    rows=rows,
    columns=columns,
    claims=[
      dict(column=task, better=better, than=than)
      for better, than in PAIRS
      for task in TASKS
      if not any(task in rows[row]['without'] for row in (better, than))
    ],
    tuning_seeds=1,
    note='The published file holds 4 bits of each number.',
  )


def _column(scale, task):
  """Return the column of a task."""
  folder, split, _, form, bare = TASKS[task]
  configs = {'gpt': scales.target(scale, 'gpt/prompt.py', 'copa', small='')}
  if scale == 'tiny':
    return dict(of='evaluation', metric='validation/loss', better='min', configs=configs)
  path = f'tfds:{folder.replace("glue_", "glue/")}'
  keys = {'data.path': path, 'data.form': form, 'data.target_length': 16 if task == 'COPA' else 2}
  keys |= {'adapter.against': bare, 'adapter.logit_rows': 2, 'data.batch_size': 4}
  return dict(
    of='evaluation',
    metric=f'{split}/accuracy',
    configs=configs,
    keys=scales.ON_A_LAPTOP | keys,
    folder=folder,
    times=100,
    trivial={'most frequent class': CHANCE[task]} if scale == 'small' else {},
  )


def _prompt(scale, task, count, choose):
  """Return the changes of a row: demonstrations, and the comparison of options."""
  _, split, pool, *_ = TASKS[task]
  block = dict(split=f'{split}[:100]' if scale == 'small' else split)
  if count:
    block['shots'] = dict(count=count, split=pool)
  *buckets, length = LENGTHS[task][count]
  keys = {'adapter.choose': choose, 'data.buckets': tuple(buckets)}
  keys['data.length'] = length if scale == 'small' else 2 * length  # all examples have longer ones
  return keys | {'eval': {split: dict(data=block)}}
