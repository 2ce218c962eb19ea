"""Bottleneck adapters of MiniLM by size (Houlsby et al. 2019, §3.2 to §3.4; Table 1, Figures 1 and 3).

bash launch/released.sh
plm-jax tables experiments/tables/minilm_bottlenecks.py:tag --scale=small --workdir=runs/tables --data=../shared/data

Rows beside adapters are those of the paper: all parameters, the topmost layers alone, norms alone. `classify` reads
TREC and SST-2, `tag` the parts of speech of EWT. Small: as minilm.py; what trains beside a frozen trunk has 20 times
its rate.
`classify` was not run yet.
"""

from experiments.tables.shared import claims, minilm

WIDTHS = (2, 8, 64, 256)


def get_table(scale, arg='classify'):
  """Takes a scale, and `classify` or `tag`."""
  task = minilm.word(arg, minilm.STUDIED)
  top = (*minilm.HEAD, ('trunk/layers/.*', dict(layerwise=0.0)), ('.*', None))
  rate = minilm.beside(scale)
  rows = minilm.tuned(scale) | {
    'norms': minilm.trunk(scale, tuning=rate | {'optim.scale': (*minilm.HEAD, ('.*norm/.*', 1.0), ('.*', None))}),
    'topmost layer': minilm.trunk(scale, tuning=rate | {'optim.scale': top}),
  }
  for width in WIDTHS:
    rows[f'adapters of {width}'] = minilm.wrapped(scale, 'bottleneck', task=task, width=width)
  columns = minilm.columns(scale, *minilm.STUDIED[task], found=True)
  best = 'adapters of 64'
  return dict(
    title='Bottleneck adapters of MiniLM by size',
    paper='Houlsby et al. 2019, of BERT-large: 80.0 on GLUE, with all parameters 80.4',
    mark='none',
    rows=rows,
    columns=columns,
    claims=claims.claims(
      list(columns), ('fine-tuned', best), *((best, other) for other in ('topmost layer', 'norms', 'head alone'))
    ),
    tuning_seeds=1 if scale == 'tiny' else 3,
  )
