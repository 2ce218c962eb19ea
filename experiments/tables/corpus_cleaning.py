"""What a corpus gains from rules of quality and without copies: `plm-jax corpus`, at equal numbers of steps.

plm-jax corpus filter runs/data/english runs/data/english_filtered --rules=gopher
plm-jax corpus dedup runs/data/english runs/data/english_unique
plm-jax corpus dedup runs/data/english_filtered runs/data/english_clean
plm-jax tables experiments/tables/corpus_cleaning.py --scale=small --workdir=runs/tables --data=../shared/data

With --corpus=TEXT the copies are TEXT_filtered, TEXT_unique and TEXT_clean; held-out text is that of TEXT for all rows.
The last row has a twentieth of the text again and again, which is what copies cost at their worst. T5's Tables 8 and 9
compare the like; their numbers stand for a corpus of 750 GB and are not repeated here.
"""

from experiments.tables.shared import claims, scales, tasks

ROWS = {  # what stands behind the path of the text, split
  'as it is': ('', 'train'),
  'rules of quality': ('_filtered', 'train'),
  'without copies': ('_unique', 'train'),
  'both': ('_clean', 'train'),
  'a twentieth, repeated': ('', 'train[:5%]'),
}
TASKS = ('SST-2', 'MRPC', 'CoLA')


def get_table(scale):
  """Takes a scale."""
  masked = scales.masks(scale)
  rows = {}
  for name, (corpus, split) in ROWS.items():
    keys = {} if scale == 'tiny' else dict(data__split=split)
    rows[name] = scales.pretraining(scale, 'roberta/formats.py', 'full', **keys, **masked)
    rows[name] |= dict(corpus='' if scale == 'tiny' else corpus)
  if scale == 'paper':
    for row in rows.values():
      row['keys'].update({'data.path': 'runs/data/web'})
  perplexity = dict(metric='validation/perplexity', of='pretraining', better='min')
  plain, filtered, unique, both, repeated = ROWS
  return dict(
    title='Quality and copies of the text',
    paper='RoBERTa base as in its Table 2, full sentences',
    mark='none',
    columns={'tokens': dict(of='tokens'), 'perplexity': perplexity, **tasks.columns(scale, *TASKS)},
    rows=rows,
    claims=claims.claims(('perplexity', *TASKS), (filtered, plain), (unique, plain), (both, plain), (plain, repeated)),
    tuning_seeds=dict(tiny=1, small=3, paper=5)[scale],
    reference=plain,
    note=scales.masked(scale),
  )
