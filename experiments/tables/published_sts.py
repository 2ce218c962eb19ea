"""Similarity of sentences without training, from published sentence models: MTEB and SimCSE (Gao et al. 2021, Table 5).

plm-jax tables experiments/tables/published_sts.py --scale=published --weights=DIR --workdir=runs/tables --print
plm-jax tables experiments/tables/published_sts.py:all-MiniLM-L6-v2 --scale=published --weights=runs/released \
    --workdir=runs/tables --data=../shared/data

Words after the colon: rows. Spearman's correlation x 100 of cosines; a minute of a CPU for MiniLM. STS12 without MSRvid
has 2,358 of its 3,108 pairs and is not compared. MTEB reads all of SICK, SimCSE its test set.
Sources: SimCSE's numbers as repositories that repeat it quote them; STS-B, SICK-R and STS12 of MiniLM from MTEB; its
STS13 to 16 could not be checked.
"""

from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

FAMILY = 'sts/similarity.py'
COLUMNS = {  # evaluation, folder, split, pairs
  'STS12': ('sts12', 'sts12', 'test', 3_108),
  'STS13': ('sts13', 'sts13', 'test', 1_500),
  'STS14': ('sts14', 'sts14', 'test', 3_750),
  'STS15': ('sts15', 'sts15', 'test', 3_000),
  'STS16': ('sts16', 'sts16', 'test', 1_186),
  'STS-B': ('stsb', 'glue_stsb', 'test', 1_379),
  'SICK-R test': ('sickr_test', 'sick_r', 'test', 4_927),
  'SICK-R': ('sickr', 'sick_r', 'train+validation+test', 9_927),
}
FETCH = (
  "python -c \"import datasets; datasets.load_dataset('mteb/{name}-sts', split='test').rename_column('score', 'label')."
  "to_json('{{data}}/{name}/test.jsonl')\""
)
_ = None
ROWS = {
  'all-MiniLM-L6-v2': (72.37, 80.60, 75.59, 85.39, 78.99, 82.03, _, 77.58),
  'unsup-simcse-bert-base-uncased': (68.40, 82.41, 74.38, 80.91, 78.56, 76.85, 72.23, _),
  'sup-simcse-bert-base-uncased': (75.30, 84.67, 80.19, 85.40, 80.82, 84.25, 80.39, _),
}


def get_table(scale, arg=''):
  """Takes the scale; `arg` rows."""
  columns = {}
  for name, (evaluation, folder, split, whole) in COLUMNS.items():
    scored = {evaluation: dict(data=dict(split=split), scores=('correlation',))}
    keys = {'eval': scored, 'best': None, 'data.split': split.partition('+')[0], 'data.path': f'runs/data/{folder}'}
    columns[name] = published.column(
      f'{evaluation}/spearman', [FAMILY], of='evaluation', folder=folder, whole=whole, times=100,
      fetch=FETCH.format(name=folder) if folder.startswith('sts1') else '', keys=keys,
    )  # fmt: skip
  rows = {}
  for name, numbers in ROWS.items():
    given = {column: number for column, number in zip(columns, numbers, strict=True) if number is not None}
    unchecked = dict.fromkeys(('STS13', 'STS14', 'STS15', 'STS16'), 'D') if name.startswith('all-MiniLM') else {}
    rows[name] = dict(published=given, marks=unchecked)
  return dict(
    title='Similarity of sentences without training, from published weights',
    paper='MTEB (all-MiniLM-L6-v2) and Gao et al. 2021, Table 5 (SimCSE)',
    mark='C',
    rows=published.rows(rows, arg, family=FAMILY),
    columns=columns,
    tuning_seeds=1,
  )
