"""GPT-3, Table H.1: zero, one and few demonstrations by size (Brown et al. 2020, §3 and appendix H).

plm-jax tables experiments/tables/gpt_shots.py --scale=small --workdir=runs/tables --data=../shared/data

Small: three networks of .5 to 4.7 M parameters that read rows of 256 tokens, and as many demonstrations as these hold.
"""

from experiments.tables.shared import claims, downstream, scales

SHOTS = ('zero', 'one', 'few')
SIZES = ('gpt3-small', 'gpt3-medium', 'gpt3-large', 'gpt3-xl', 'gpt3-2.7b', 'gpt3-6.7b', 'gpt3-13b', 'gpt3-175b')
# set: its word, folder and metric; then accuracy by size, zero-, one- and few-shot
PUBLISHED = {
  'COPA': (
    ('copa', 'super_glue_copa', 'validation/accuracy'),
    (66.0, 68.0, 73.0, 77.0, 76.0, 80.0, 84.0, 91.0),
    (62.0, 64.0, 66.0, 74.0, 76.0, 82.0, 86.0, 87.0),
    (67.0, 64.0, 72.0, 77.0, 83.0, 83.0, 86.0, 92.0),
  ),
  'HellaSwag': (
    ('hellaswag', 'hellaswag', 'validation/accuracy'),
    (33.7, 43.6, 51.0, 54.7, 62.8, 67.4, 70.9, 78.9),
    (33.0, 42.9, 50.5, 53.5, 61.9, 66.5, 70.0, 78.1),
    (33.5, 43.1, 51.3, 54.9, 62.9, 67.3, 71.3, 79.3),
  ),
  'LAMBADA': (
    ('lambada', 'lambada', 'test/answer_accuracy'),
    (42.7, 54.3, 60.4, 63.6, 67.1, 70.3, 72.5, 76.2),
    (22.0, 47.1, 52.6, 58.3, 61.1, 65.4, 69.0, 72.5),
    (22.0, 40.4, 63.2, 57.0, 78.1, 79.1, 81.3, 86.4),
  ),
}
CHANCE = {'COPA': {'chance': 50.0}, 'HellaSwag': {'chance': 25.0}, 'LAMBADA': {}}
# when small: sizes of the trunk by row, and how many demonstrations fit into 256 tokens
SMALL = {
  'gpt3-small': dict(scales.SIZES, hidden_dim=64, mlp_dim=256, num_heads=1),
  'gpt3-medium': dict(scales.SIZES),
  'gpt3-large': dict(scales.SIZES, num_layers=4, hidden_dim=256, mlp_dim=1024, num_heads=4),
}
ROWS = dict(data__length=256, data__batch_size=16)
FEW = {'COPA': 6}
LONG = 'a row of 256 tokens holds one demonstration'
ASKED = dict(data__length=240, data__target_length=16, data__batch_size=16)


def get_table(scale):
  """Takes a scale."""
  sizes = SIZES if scale == 'paper' else tuple(SMALL)
  rows = {
    size: scales.pretraining(scale, 'gpt/gpt3.py', size, small=SMALL.get(size), **(ROWS if scale == 'small' else {}))
    | dict(family='gpt', published={})
    for size in sizes
  }
  columns = {}
  for task, ((word, folder, metric), *by_shots) in PUBLISHED.items():
    for shots, numbers in zip(SHOTS, by_shots, strict=True):
      name = f'{task}, {shots}-shot'
      columns[name] = _column(scale, task, word, shots, folder=folder, metric=metric)
      for size, number in zip(SIZES, numbers, strict=True):
        if size in rows and scale != 'tiny':  # which prints losses
          rows[size]['published'][name] = number
  return dict(
    title='GPT-3, Table H.1: demonstrations by size',
    paper='Brown et al. 2020, appendix H; accuracy',
    mark='D',
    rows=rows,
    columns=columns,
    claims=claims.claims(claims.measured(columns), (sizes[-1], sizes[0])),
    tuning_seeds=1,
    reference=sizes[-1],
    note='' if scale == 'paper' else 'Here the networks are hundreds of times smaller than those of the rows.',
  )


def _column(scale, task, word, shots, *, folder, metric):
  """One set with a number of demonstrations; empty where rows of the scale cannot hold them."""
  split = metric.partition('/')[0]
  keys = {}
  if scale == 'small':
    if shots == 'few' and task not in FEW:
      return dict(empty=LONG)
    keys = dict(ASKED)
    if task == 'HellaSwag':
      keys[f'eval__{split}__data__split'] = f'{split}[:1000]'
    if shots == 'few':
      keys[f'eval__{split}__data__shots__count'] = FEW[task]
  words = (word,) if shots == 'zero' else (word, shots)
  return downstream.asked(
    scale, 'gpt', 'gpt/prompt.py', *words, folder=folder, metric=metric, trivial=CHANCE[task], **keys
  )
