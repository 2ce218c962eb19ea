"""How long must one train from scratch to reach a pre-trained network? The question of He et al. 2018, for text.

plm-jax tables experiments/tables/from_scratch.py --scale=1m --workdir=runs/tables --data=../shared/data

The trunk is that of BERT's Table 5 without next sentences, whose pre-trainings are shared. TREC, SST-2 and parts of
speech are learnt for four numbers of updates, each with a schedule that ends there and a rate chosen on dev, by the
pre-trained trunk and by one from scratch. The head of shared/scales.py has the commands that make the text and the
vocabulary, that of shared/ladder.py the one that makes SST-2. Scale small is 1m; paper has BERT base and lower rates.

Expect: on COCO a detector from scratch reaches the pre-trained one (He et al. 2018, Figure 1) after about three times
the updates. With a tenth of the images it does so too, with fewer it does not (their §5).
"""

from experiments.tables.shared import claims, ladder, scales
from experiments.tables.shared.scales import SCALES as SCALES

UPDATES = (100, 400, 1_600, 4_800)
TASKS = {'TREC': 'questions of TREC', 'SST-2': 'phrases of SST-2', 'EWT': 'sentences of EWT'}
RATES = {'paper': (2e-5, 1e-4)} | dict.fromkeys(scales.RUNGS, (2e-4, 1e-3))  # of the trunk


def _columns(scale):
  """Return columns of `ladder` for each number of updates, in which the whole trunk is trained."""
  if scale == 'tiny':
    config = 'experiments/bert/glue.py:sst2,quick'
    return {'SST-2': dict(metric='validation/loss', better='min', configs={'bert': config})}
  made = ladder.columns(scale if scale in scales.RUNGS else '1m', 'SST-2')
  grid = tuple({'optim.rate': ladder.HEAD * rate} for rate in RATES[scale])
  made['EWT'] = made['EWT probe'] | {key: made['TREC'][key] for key in ('chosen_by', 'times')}
  made['EWT']['keys'] = made['EWT probe']['keys'] | {'adapter.frozen': False, 'adapter.dropout': 0.1}
  columns = {}
  for name, kind in TASKS.items():
    for count in UPDATES:
      own = dict(keys=made[name]['keys'] | ladder.tuned(count), grid=grid, along=(f'updates of 32 {kind}', count))
      columns[f'{name}, {count:,} updates'] = made[name] | own
  return columns


def get_table(scale):
  """Takes a scale."""
  scale = '1m' if scale == 'small' else scale
  columns = _columns(scale)
  row = scales.pretraining(scale, 'bert/base.py', 'mlm', **scales.masks(scale, lifted=True)) | dict(family='bert')
  return dict(
    title='Training from scratch against pre-training, by the number of updates',
    paper='No table of a paper; the question of He et al. 2018, "Rethinking ImageNet pre-training"',
    mark='none',
    rows={'pre-trained': row, 'from scratch': row | dict(start='scratch')},
    columns=columns,
    claims=claims.claims(list(columns), ('pre-trained', 'from scratch')),
    **scales.seeds(scale),
    summary='mean' if scale == 'tiny' else 'best point on dev',
    note=scales.masked(scale),
  )
