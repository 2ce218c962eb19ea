"""Prefixes of MiniLM by length (Li and Liang 2021, §7.1 and §7.4; Figure 4).

bash launch/released.sh
plm-jax tables experiments/tables/minilm_prefix.py:tag --scale=small --workdir=runs/tables --data=../shared/data

The paper generates text by GPT-2 and BART; here its claims are asked about a small encoder. `classify` reads TREC and
SST-2, `tag` the parts of speech of EWT. Small: as minilm.py; what trains beside a frozen trunk has 20 times its rate.
`classify` was not run yet.
"""

from experiments.tables.shared import claims, minilm

LENGTHS = (1, 8, 32)


def get_table(scale, arg='classify'):
  """Takes a scale, and `classify` or `tag`."""
  task = minilm.word(arg, minilm.STUDIED)
  rows = minilm.tuned(scale)
  for length in LENGTHS:
    rows[f'prefix of {length}'] = minilm.wrapped(scale, 'prefix', task=task, length=length, mlp_dim=0)
  rows['prefix of 8 by two layers'] = minilm.wrapped(scale, 'prefix', task=task, length=8, mlp_dim=384)
  columns = minilm.columns(scale, *minilm.STUDIED[task], found=True)
  return dict(
    title='Prefixes of MiniLM by length',
    paper='Li and Liang 2021, of GPT-2 and BART',
    mark='none',
    rows=rows,
    columns=columns,
    claims=claims.claims(
      list(columns),
      ('fine-tuned', 'prefix of 32'),
      ('prefix of 32', 'prefix of 1'),
      ('prefix of 8 by two layers', 'prefix of 8'),
      ('prefix of 32', 'prefix of 8'),
      ('prefix of 32', 'head alone'),
    ),
    tuning_seeds=1 if scale == 'tiny' else 3,
  )
