"""LoRA of MiniLM: which matrices, and which rank (Hu et al. 2021, §7.1 and §7.2; Tables 5 and 6).

bash launch/released.sh
plm-jax tables experiments/tables/minilm_lora.py:tag --scale=small --workdir=runs/tables --data=../shared/data

`classify` reads TREC and SST-2, `tag` the parts of speech of EWT, whose 25,000 words decide smaller differences.
As in the paper, rows of Table 5 have equally many parameters: one matrix of rank 8, two of rank 4, four of rank 2. The
paper's networks are GPT-3 on WikiSQL and MNLI, so its numbers are no measure here; its claims are. Updates are scaled
by alpha = 16 and learn at 20 times the rate of fine-tuning, as the paper's table of rates has it.
`classify` was not run yet.
"""

from experiments.tables.shared import claims, minilm

ALL = ('query', 'key', 'value', 'out')
UPDATES = {  # matrices, rank
  'queries, rank 8': (('query',), 8),
  'keys, rank 8': (('key',), 8),
  'values, rank 8': (('value',), 8),
  'outputs, rank 8': (('out',), 8),
  'queries and keys, rank 4': (('query', 'key'), 4),
  'queries and values, rank 4': (('query', 'value'), 4),
  'all four, rank 2': (ALL, 2),
  'queries and values, rank 1': (('query', 'value'), 1),
  'queries and values, rank 64': (('query', 'value'), 64),
}


def get_table(scale, arg='classify'):
  """Takes a scale, and `classify` or `tag`."""
  task = minilm.word(arg, minilm.STUDIED)
  rows = minilm.tuned(scale)
  for name, (targets, rank) in UPDATES.items():
    rows[name] = minilm.wrapped(scale, 'lora', task=task, targets=targets, rank=rank, alpha=16.0)
  columns = minilm.columns(scale, *minilm.STUDIED[task], found=True)
  best = 'queries and values, rank 4'
  return dict(
    title='LoRA of MiniLM: matrices and ranks',
    paper='Hu et al. 2021, Tables 5 and 6, of GPT-3',
    mark='none',
    rows=rows,
    columns=columns,
    claims=claims.claims(
      list(columns),
      (best, 'queries, rank 8'),
      (best, 'keys, rank 8'),
      ('all four, rank 2', 'queries, rank 8'),
      (best, 'queries and keys, rank 4'),
      (best, 'head alone'),
    ),
    tuning_seeds=1 if scale == 'tiny' else 3,
    note='The paper finds rank 1 about as good as 64: no claim of a difference, so it is only measured.',
  )
