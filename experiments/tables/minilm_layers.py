"""BERT, Table 7, of MiniLM: which layers are worth reading as features (Devlin et al. 2018, §5.3).

bash launch/released.sh
plm-jax tables experiments/tables/minilm_layers.py --scale=small --workdir=runs/tables --data=../shared/data

The trunk has six layers, so "the last four" leaves out two and the embeddings. Features go through two layers of a
biLSTM, as in the paper. Small: as minilm.py, with a biLSTM of 128 at a rate of 3e-3.
Not run yet.
"""

from experiments.tables.shared import claims, minilm, tasks

LAYERS = 6
FEATURES = {  # layers, how they are joined
  'embeddings': ((0,), 'concat'),
  'second-to-last layer': ((-2,), 'concat'),
  'last layer': ((-1,), 'concat'),
  'weighted sum of the last four': (range(-4, 0), 'mix'),
  'last four side by side': (range(-4, 0), 'concat'),
  'weighted sum of all layers': (range(-LAYERS, 0), 'mix'),
}


def get_table(scale):
  """Takes a scale."""
  rows = {'fine-tuned': minilm.trunk(scale)}
  for name, (layers, join) in FEATURES.items():
    # a network of `tiny` has two layers
    read = [max(layer, -2) for layer in layers] if scale == 'tiny' and len(layers) == 1 else layers
    read = read if scale != 'tiny' or len(layers) == 1 else range(-2, 0)
    rate = {'optim.rate': 3e-3} if scale == 'small' else {}
    rows[name] = minilm.trunk(scale, tuning=tasks.features(scale, layers=read, join=join) | rate)
  features = list(FEATURES)
  return dict(
    title='BERT, Table 7, of MiniLM: layers as features',
    paper='Devlin et al. 2018, §5.3, whose numbers are of another network (96.1 of F1 at best on CoNLL-2003, dev)',
    mark='none',
    rows=rows,
    columns=(columns := minilm.columns(scale, 'EWT', 'WNUT-17')),
    claims=claims.claims(
      list(columns), ('fine-tuned', features[4]), *((features[4], features[place]) for place in (0, 1, 2, 5))
    ),
    tuning_seeds=1 if scale == 'tiny' else 3,
  )
