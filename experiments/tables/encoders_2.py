"""Convolution, recurrence and attention at one size, with all of the text and with little (Qiu et al. 2020, §2.2).

plm-jax tables experiments/tables/encoders_2.py --scale=small --workdir=runs/tables
plm-jax tables experiments/tables/encoders_2.py --scale=small --workdir=runs/tables --commands

The configs are small by themselves: `paper` has three seeds of 4,000 steps, `small` two of 1,000. `seen` is the loss on
text that was trained on; what it is below `held out` is learnt by heart. `table.png` is the picture; the curves of the
runs, by `plm-jax compare` with their folders, have each encoder's seeds as a mean and a band.
"""

from experiments.tables.shared import claims, scales

ENCODERS = {'transformer': 'attention', 'cnn': 'convolution', 'lstm': 'recurrence'}
TEXTS = {'': 'all of the text', 'small': '1 % of the text'}
STEPS = dict(paper=4_000, small=1_000)


def get_table(scale):
  """Takes a scale."""
  rows = {}
  for word, text in TEXTS.items():
    for encoder, name in ENCODERS.items():
      first = 'train[:1%]' if word else 'train'
      held_out = dict(validation=dict(data=dict(split='validation[:200]')), seen=dict(data=dict(split='train[:1%]')))
      keys = dict(data__split=first, eval=held_out, best=None)
      if scale != 'tiny':
        keys |= dict(steps=STEPS[scale], optim__warmup=STEPS[scale] // 10, eval_every=STEPS[scale] // 4)
        keys |= dict(save_every=STEPS[scale] // 4, sharding={})
      rows[f'{name}, {text}'] = dict(
        config=scales.target(scale, 'encoders/compare.py', encoder, *((word,) if word else ()), small=''),
        keys=scales.dotted(keys),
      )
  loss = dict(of='pretraining', better='min')
  attention, *others = (f'{name}, {TEXTS["small"]}' for name in ENCODERS.values())
  return dict(
    title='Three kinds of encoders at one size',
    paper='Qiu et al. 2020, §2.2, which reports no experiment; masked words of docstrings',
    mark='none',
    columns={
      'held out': dict(metric='validation/loss', **loss),
      'seen': dict(metric='seen/loss', **loss, note='1 % of the text, all of which a row of little text has read'),
      'parameters': dict(of='parameters', better='min'),
    },
    rows=rows,
    claims=claims.claims(('held out',), *((other, attention) for other in others)),
    pretraining_seeds=dict(tiny=1, small=2, paper=3)[scale],
    tuning_seeds=1,
    note='The survey says that attention needs the most text and overfits a small one.',
  )
