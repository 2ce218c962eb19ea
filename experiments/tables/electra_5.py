"""ELECTRA, Table 5: what makes it efficient (Clark et al. 2020, §3.4).

plm-jax tables experiments/tables/electra_5.py --scale=small --workdir=runs/tables --data=../shared/data

Small: a generator half as wide as the trunk; rows of 64 tokens. On the rungs all networks have relative positions as
well (`bert.RELATIVE`), and the loss of discriminators a tenth of the weight.

Scales 1m, 5m and 30m have the columns of shared/ladder.py; SST-2 is then in runs/data/sst2_sentences, which
  python launch/sst2_sentences.py ../shared/data/glue_sst2 runs/data/sst2_sentences
makes. The text is that of `plm-jax corpus english ../shared/data runs/data/english`.
"""

from experiments.tables.shared import bert, claims, ladder, scales, tasks
from experiments.tables.shared.scales import SCALES as SCALES

ROWS = {  # what the trunk predicts, weight of its loss: average of GLUE
  'ELECTRA': ('all', 50.0, 85.0),
  'all-tokens MLM': ('all_tokens_mlm', 1.0, 84.3),
  'replace MLM': ('replace_mlm', 1.0, 82.4),
  'ELECTRA 15 %': ('masked', 50.0, 82.4),
}
TASKS = ('SST-2', 'MRPC', 'CoLA')
LADDER = ('SST-2', 'TREC', 'EWT probe')
NOTE = (
  'All networks have relative positions as well as learned ones, 40 % of the tokens are masked, and the loss of '
  'discriminators has a tenth of its weight. The last two rows have half of the updates each.'
)
HALF, AFTER = 'BERT, half of the updates', 'ELECTRA after it'


def _in_stages(scale, first):
  """Return rows of a masked LM and of a discriminator that starts from it; each has half of the updates."""
  half = scales.every(scales.RUNGS[scale][1]['steps'] // 2)
  second = bert.electra(scale, 'electra/base.py', init_from=(dict(source='{before}', from_='trunk', to='trunk'),))
  made = [dict(row, keys=row['keys'] | half, published={}) for row in (first, second)]
  return {HALF: made[0], AFTER: made[1] | dict(after=HALF)}


def get_table(scale):
  """Takes a scale."""
  rows = {}
  is_rung = scale in scales.RUNGS
  for name, (predict, weight, published) in ROWS.items():
    weight = bert.WEIGHT if is_rung and weight > 1 else weight
    rows[name] = bert.electra(scale, 'electra/base.py', objective__predict=predict, objective__weight=weight)
    rows[name] |= dict(published={'GLUE': published})
  own = scales.masks(scale, lifted=True) | dict(small=scales.SIZES | bert.RELATIVE) if is_rung else {}
  rows['BERT'] = scales.pretraining(scale, 'bert/base.py', 'mlm', **own) | dict(published={'GLUE': 82.2})
  columns, asked = tasks.glue(scale, *TASKS), []
  if is_rung:  # discriminators have no head that tells words
    rows |= _in_stages(scale, rows['BERT'])
    asked = [
      dict(column=name, better=AFTER, than=than, asked=True) for than in ('BERT', HALF, 'ELECTRA') for name in LADDER
    ]
    made = ladder.columns(scale, 'SST-2')
    columns = {'GLUE': dict(empty=tasks.ABSENT['GLUE'])} | {name: made[name] for name in LADDER}
  return dict(
    title='ELECTRA, Table 5: what makes it efficient',
    paper='Clark et al. 2020, §3.4; base, average of GLUE on dev',
    mark='C',
    columns=columns,
    rows=tasks.tuned_as(scale, 'electra-base', rows),
    claims=[
      *claims.claims(
        ('GLUE',) if scale == 'paper' else LADDER if is_rung else TASKS,
        ('ELECTRA', 'BERT'),
        ('ELECTRA', 'ELECTRA 15 %'),
        ('replace MLM', 'BERT'),
        ('all-tokens MLM', 'replace MLM'),
      ),
      *asked,
    ],
    **scales.seeds(scale, paper=10),
    summary='median' if scale == 'paper' else 'best point on dev' if is_rung else 'mean',
    reference='BERT',
    note=NOTE if is_rung else '',
  )
