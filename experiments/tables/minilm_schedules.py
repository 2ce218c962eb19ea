"""ULMFiT, Table 7, of a Transformer: rates by layer, unfreezing and schedules (Howard and Ruder 2018, §5).

bash launch/released.sh
plm-jax tables experiments/tables/minilm_schedules.py --scale=small --workdir=runs/tables --data=../shared/data

discr divides the rate by 2.6 a layer, freez lets one more layer join every tenth of the run, and the embeddings last;
stlr is the slanted triangle, cos a cosine, the others have a constant rate. Chain-thaw trains the head, the embeddings
and the layers in turn, then all. Small: as minilm.py. TREC and SST-2 were not run yet.
"""

from experiments.tables.shared import claims, minilm

LAYERS = 'trunk/layers/.*'
DISCR = (*minilm.HEAD, (LAYERS, dict(layerwise=1 / 2.6)), ('.*', dict(layerwise=1 / 2.6, below=1)))
TURNS = {LAYERS: (0.4, 0.6), '.*': (0.2, 0.4)}


def frozen(layerwise=1.0, *, layers=6):
  """Multipliers of gradual unfreezing: the head at once, one layer more every tenth of the run, then the embeddings."""
  below = dict(unfreeze=0.1 * (layers + 1), scale=layerwise ** (layers + 1))
  return (*minilm.HEAD, (LAYERS, dict(gradual=0.1, layerwise=layerwise)), ('.*', below))


def thawed():
  """Multipliers of chain-thaw: each group in its turn, all in the last two fifths of the run."""
  turns = [(pattern, dict(during=(turn, (0.6, 1.0)))) for pattern, turn in TURNS.items()]
  head = [(pattern, dict(during=((0.0, 0.2), (0.6, 1.0)))) for pattern, _ in minilm.HEAD]
  return (*head, *turns)


BEST = 'freez + discr + stlr'
ROWS = {  # schedule, multipliers of the rate
  'full': ('constant', ()),
  'full + discr': ('constant', DISCR),
  'last': ('constant', minilm.HEAD_ALONE),
  'freez': ('constant', frozen()),
  'freez + discr': ('constant', frozen(1 / 2.6)),
  'freez + stlr': ('stlr', frozen()),
  'freez + cos': ('cosine', frozen()),
  BEST: ('stlr', frozen(1 / 2.6)),
  'chain-thaw': ('constant', thawed()),
}


def get_table(scale):
  """Takes a scale."""
  rows = {'as BERT': minilm.trunk(scale)}
  for name, (schedule, scales) in ROWS.items():
    changes = {'optim.schedule': schedule} | ({'optim.scale': scales} if scales else {})
    changes |= {'optim.warmup': 0} if schedule == 'stlr' else {}  # it has its own
    rows[name] = minilm.trunk(scale, tuning=changes)
  columns = minilm.columns(scale, 'TREC', 'SST-2', 'EWT')
  return dict(
    title='ULMFiT, Table 7, of a Transformer: how MiniLM is fine-tuned',
    paper='Howard and Ruder 2018, §5, of an LSTM',
    mark='none',
    rows=rows,
    columns=columns,
    claims=claims.claims(list(columns), *((BEST, other) for other in ROWS if other != BEST)),
    tuning_seeds=1 if scale == 'tiny' else 3,
    note='"as BERT" is the recipe of minilm.py: the same rate for all, a warmup of a tenth and a linear decay.',
  )
