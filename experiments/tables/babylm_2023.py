"""The baselines of the BabyLM challenge of 2023, at 10 and 100 million words.

mkdir -p data/babylm_10m data/babylm_100m
cat babylm_10M/*.train > data/babylm_10m/train.txt; cat babylm_dev/*.dev > data/babylm_10m/validation.txt
cat babylm_100M/*.train > data/babylm_100m/train.txt; cat babylm_dev/*.dev > data/babylm_100m/validation.txt
python launch/blimp_filtered.py ../shared/data/blimp data/blimp_filtered data/babylm_10m/train.txt
plm-jax tables experiments/tables/babylm_2023.py --scale=paper --workdir=runs/tables --data=data
plm-jax tables experiments/tables/babylm_2023.py --scale=1m --workdir=runs/tables --data=../shared/data

Published numbers: README of babylm/evaluation-pipeline at 17b3806. The challenge scores the pairs of BLiMP whose words
are all twice in its small text. At the scale of the paper these are blimp_filtered in the folder --data; babylm_10M,
babylm_100M and babylm_dev are folders of the challenge, and the head of babylm/pretrain.py trains the vocabularies.
Other scales read a tenth of all pairs on another text, so their numbers are printed and not compared.
"""

from experiments import common
from experiments.tables.shared import ladder, scales
from experiments.tables.shared.scales import SCALES as SCALES

PHENOMENA = (
  'anaphor agreement', 'argument structure', 'binding', 'control and raising', 'determiner and noun', 'ellipsis',
  'filler and gap', 'irregular forms', 'islands', 'NPI licensing', 'quantifiers', 'subject and verb',
)  # fmt: skip
SUPPLEMENT = ('hypernym', 'QA congruence, easy', 'QA congruence, tricky', 'subject-auxiliary inversion', 'turn taking')
GLUE = ('CoLA', 'SST-2', 'MRPC F1', 'QQP F1', 'MNLI', 'MNLI-mm', 'QNLI', 'RTE', 'BoolQ', 'MultiRC', 'WSC')
MSGS = ('CR', 'LC', 'MV', 'RP', 'SC', 'CR_LC', 'CR_RTP', 'MV_LC', 'MV_RTP', 'SC_LC', 'SC_RP')  # the first five: control
OPT, ROBERTA, T5 = 'OPT-125M', 'RoBERTa-base', 'T5-base'
PUBLISHED = {  # words of the config: name; BLiMP, its supplement, GLUE and SuperGLUE, MSGS (Matthews)
  ('opt', '10m'): (
    OPT,
    (63.8, 70.6, 67.1, 66.5, 78.5, 62.0, 63.8, 67.5, 48.6, 46.7, 59.6, 56.9),
    (50.0, 54.7, 31.5, 80.3, 57.1),
    (15.2, 81.9, 72.5, 60.4, 57.6, 60.0, 61.5, 60.0, 63.3, 55.2, 60.2),
    (50.8, 53.6, 99.5, 99.9, 77.2, 0.4, -70.3, -72.1, -77.6, 13.8, -68.9),
  ),
  ('roberta', '10m'): (
    ROBERTA,
    (81.5, 67.1, 67.3, 67.9, 90.8, 76.4, 63.5, 87.4, 39.9, 55.9, 70.5, 65.4),
    (49.4, 31.3, 32.1, 71.7, 53.2),
    (25.8, 87.0, 79.2, 73.7, 73.2, 74.0, 77.0, 61.6, 66.3, 61.4, 61.4),
    (43.1, 100.0, 97.7, 76.7, 86.2, -28.3, -77.7, -99.3, -79.4, 16.3, -45.0),
  ),
  ('t5', '10m'): (
    T5,
    (68.9, 63.8, 60.4, 60.9, 72.2, 34.4, 48.2, 77.6, 45.6, 47.8, 61.2, 65.0),
    (48.0, 40.6, 21.2, 64.9, 45.0),
    (11.3, 78.1, 80.5, 66.2, 48.0, 50.3, 62.0, 49.4, 66.0, 47.1, 61.4),
    (21.1, 100.0, 33.4, 82.5, 77.6, -78.3, -62.0, -100.0, -79.7, -25.3, -39.4),
  ),
  ('opt', '100m'): (
    OPT,
    (94.9, 73.8, 73.8, 72.2, 93.1, 80.5, 73.6, 80.8, 57.8, 51.6, 74.5, 77.3),
    (46.3, 76.5, 47.9, 85.3, 82.9),
    (36.2, 86.6, 82.1, 77.8, 70.1, 71.9, 80.1, 67.7, 66.0, 61.1, 59.0),
    (89.1, 42.3, 99.9, 99.1, 52.1, 35.5, -70.3, -76.2, -99.5, 34.7, -60.5),
  ),
  ('roberta', '100m'): (
    ROBERTA,
    (89.5, 71.3, 71.0, 67.1, 93.1, 83.8, 68.0, 89.6, 54.5, 66.3, 70.3, 76.2),
    (50.8, 34.4, 34.5, 45.6, 46.8),
    (45.3, 88.6, 80.5, 78.5, 68.7, 78.0, 82.3, 51.5, 59.9, 61.3, 61.4),
    (74.7, 100.0, 99.9, 100.0, 59.2, -89.0, -91.2, -99.8, -15.3, -57.7, -39.2),
  ),
  ('t5', '100m'): (
    T5,
    (66.7, 61.2, 59.4, 59.8, 53.8, 49.1, 70.0, 75.5, 43.6, 45.6, 34.2, 53.2),
    (51.1, 45.3, 25.5, 69.2, 48.9),
    (37.5, 88.0, 85.9, 79.7, 71.5, 74.0, 83.1, 60.6, 69.0, 62.4, 60.2),
    (81.0, 100.0, 100.0, 99.4, 56.2, -1.0, -71.2, -97.5, -94.0, -32.2, -64.9),
  ),
}
FAMILIES = {'opt': 'gpt', 'roberta': 'bert', 't5': 't5'}
OWN_FILES = "its pairs are the challenge's own; plm-jax evaluate with blimp/pairs.py scores a file of them"
FILTERED = "its examples are filtered by the challenge's text, and are in its archive alone"
NO_100M = 'there are no 100 million words here'
OTHER_PAIRS = 'all pairs, where the challenge scores those whose words its text has: not compared'


def _blimp(scale):
  """Return a column for each phenomenon, and their mean."""
  keys, folder = {'eval': {'test': dict(data=dict(split='test'))}}, 'blimp_filtered'
  if scale in (*scales.RUNGS, 'small'):
    keys = scales.ON_A_LAPTOP | {'eval': {'test': dict(data=dict(split='test[:10%shuffled]'))}, 'data.batch_size': 64}
    folder = 'blimp'
  configs = {family: ladder.PAIRS[family].replace('word_l2r', '').removesuffix(':') for family in FAMILIES.values()}
  common = dict(of='evaluation', times=100, trivial={'chance': 50.0}, note='' if scale == 'paper' else OTHER_PAIRS)
  if scale == 'tiny':
    configs = {family: f'{config}:quick' for family, config in configs.items()}
    common |= dict(metric='test/accuracy', configs=configs)
    return dict.fromkeys(PHENOMENA, common) | {'BLiMP': dict(over=PHENOMENA)}
  common |= dict(configs=configs, keys=keys, folder=folder)
  terms = [f'test/linguistics_term/{term}' for term in ladder.PHENOMENA]
  columns = {name: common | dict(metric=term) for name, term in zip(PHENOMENA, terms, strict=True)}
  return columns | {'BLiMP': dict(over=PHENOMENA, note='the mean of the twelve phenomena')}


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for (model, track), (name, blimp, *others) in PUBLISHED.items():
    family = FAMILIES[model]
    named = (*PHENOMENA, 'BLiMP', *SUPPLEMENT, *GLUE, *(f'MSGS {part}' for part in MSGS))
    numbers = dict(zip(named, (*blimp, round(sum(blimp) / 12, 1), *sum(others, ())), strict=True))
    label = f'{name}, {track.removesuffix("m")} M words'
    if track == '100m' and scale != 'paper':
      rows[label] = dict(empty=NO_100M, published=numbers)
      continue
    small = scale in (*scales.RUNGS, 'small')
    keys = {'epochs': None, 'data__documents': 'blank_line'} if small else {}
    keys |= {'vocab__extra': common.SENTINELS} if small and model == 't5' else {}
    row = scales.pretraining('1m' if scale == 'small' else scale, 'babylm/pretrain.py', model, track, **keys)
    if small:
      row['keys']['model.overrides'] = ladder.sizes('1m' if scale == 'small' else scale, family)
    rows[label] = row | dict(family=family, published=numbers)
  columns = _blimp(scale)
  columns |= {name: dict(empty=OWN_FILES) for name in SUPPLEMENT}
  columns |= {name: dict(empty=FILTERED) for name in (*GLUE, *(f'MSGS {part}' for part in MSGS))}
  return dict(
    title='BabyLM 2023: the baselines',
    paper='Warstadt et al. 2023; README of babylm/evaluation-pipeline, one training a row',
    mark='A',
    columns=columns,
    rows=rows,
    claims=[],  # its text claims no order of the baselines
    tuning_seeds=1,
    note='' if scale == 'paper' else f'BLiMP is {OTHER_PAIRS}.',
  )
