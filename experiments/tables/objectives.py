"""Every objective on the same text, with trunks of one size and equal numbers of tokens: no paper has this table.

plm-jax tables experiments/tables/objectives.py --scale=1m --workdir=runs/tables --data=../shared/data --seeds=1

The head of shared/scales.py has the commands that make the text and the vocabulary, that of shared/ladder.py the one
that makes SST-2. Scale small is 1m; paper trains the configs unchanged. `--seeds=5` makes five pre-trainings a row.
"""

from experiments import common
from experiments.tables.shared import bert, ladder, scales
from experiments.tables.shared.scales import SCALES as SCALES

ROWS = {  # objective: config, words, family, changes
  'causal LM': ('gpt/gpt.py', (), 'gpt', dict(epochs=None, data__text='text')),
  'masked LM': ('bert/base.py', ('mlm',), 'bert', dict(objective__where__max_count=None)),
  'masked LM, whole words': (
    'bert/base.py', ('mlm',), 'bert', dict(objective__where=dict(name='whole_word', rate=0.15))
  ),
  'masked spans and boundaries': ('spanbert/pretrain.py', ('base',), 'bert', {}),
  'masked LM, next sentence': ('bert/base.py', (), 'bert', dict(objective__where__max_count=None, **scales.LABEL)),
  'masked LM, sentence order': (
    'bert/base.py', (), 'bert', dict(objective__where__max_count=None, objective__question='sop', **scales.LABEL)
  ),
  'masked LM, n-grams by contrast': (
    'contrastive/infoword.py', (), 'bert',
    dict(objective__where__max_count=None, accumulate=1, objective__weight=0.01),  # it couples rows
  ),
  'replaced tokens': ('electra/base.py', (), 'electra', {}),
  'masked and causal LM': ('gpt_bert/pretrain.py', (), 'bert', {}),
  'permutation LM': ('xlnet/base.py', (), 'xlnet', {}),
  'blank infilling': (
    'glm/base.py', (), 'glm', dict(objective__start=None, objective__end=None, objective__slots=None)
  ),
  'text infilling': ('bart/base.py', (), 'bart', {}),
  'span corruption': ('t5/pretrain.py', (), 't5', dict(vocab__extra=common.SENTINELS)),
  'mixture of denoisers': (
    't5/ul2.py', (), 't5', dict(model__variant='t5-base', vocab__extra=(*common.SENTINELS, '[R]', '[S]', '[X]'))
  ),
}  # fmt: skip
MASKED = tuple(name for name in ROWS if name.startswith('masked'))  # of which 40 % of the tokens are chosen
OWN = ('objective__where', 'objective__question')  # changes at every scale
COLUMNS = ('BLiMP', 'EWT probe', 'SST-2')
REFERENCE = 'masked LM'
NOTE = (
  'The share of hidden tokens is that of each paper, except for masked LMs and replaced tokens: 40 %. Encoder-decoders '
  'have half of the layers in each stack. BLiMP is scored as each network was trained: causal LMs by log-likelihood, '
  'masked and permutation LMs by PLL-word-l2r, encoder-decoders and blanks by one token at a time, replaced tokens by '
  'the log-probability that no token was replaced. The mixture reads no mode token then. Tasks read the encoder alone '
  'of span corruption and of the mixture. Learned positions start from sinusoids. The networks of replaced tokens have '
  'relative positions as well, and their loss a tenth of the weight. The label of two sentences has a tenth, too, and '
  'the contrast a hundredth.'
)


def _row(scale, name, config, words, family, changes):
  """Return a row: config, keys and family."""
  read = dict(family=family, tuning=ladder.ENCODER if family == 't5' else {})
  if name == 'replaced tokens':
    return bert.electra(scale, config) | read
  if scale not in scales.RUNGS:
    own = {key: change for key, change in changes.items() if key in OWN}
    return scales.pretraining(scale, config, *words, **own) | read
  if 'objective__where' in changes:
    changes = changes | dict(objective__where=dict(changes['objective__where'], rate=0.4))
  elif name in MASKED:
    changes = changes | scales.masks(scale)
  row = scales.pretraining(scale, config, *words, **changes)
  row['keys']['model.overrides'] = ladder.sizes(scale, config.partition('/')[0])
  return row | read


def _columns(scale):
  """Return the columns: read tokens, BLiMP with its phenomena, the probe and SST-2."""
  columns = {'tokens': dict(of='tokens')}
  if scale in scales.RUNGS:
    made = ladder.columns(scale, 'SST-2')
    return columns | {name: made[name] for name in made if name not in ('TREC', 'loss')}
  parts = {'SST-2': ('validation', ladder.SST2, {}), 'EWT probe': ('test', ladder.PROBES, {})}
  parts['BLiMP'] = ('test', ladder.PAIRS, dict(of='evaluation'))
  for name, (split, configs, more) in parts.items():
    if scale == 'tiny':
      configs = {family: f'{config}{"," if ":" in config else ":"}quick' for family, config in configs.items()}
    columns[name] = dict(metric=f'{split}/accuracy', configs=configs, times=100, **more)
  return columns


def get_table(scale):
  """Takes a scale."""
  scale = '1m' if scale == 'small' else scale
  return dict(
    title='Objectives on the same text',
    paper='No table of a paper: objectives of eleven, by networks of one size that read the same text',
    mark='none',
    columns=_columns(scale),
    rows={name: _row(scale, name, *row) for name, row in ROWS.items()},
    claims=[
      dict(column=column, better=name, than=REFERENCE, asked=True)
      for name in ROWS
      if name != REFERENCE
      for column in COLUMNS
    ],
    **scales.seeds(scale),
    summary='best point on dev' if scale in scales.RUNGS else 'mean',
    reference=REFERENCE,
    note='' if scale == 'paper' else NOTE,
  )
