"""BERT, Table 7, of MiniLM: which layers are worth reading as features (Devlin et al. 2018, §5.3).

bash launch/released.sh
plm-jax tables experiments/tables/minilm_layers.py:linear --scale=small --workdir=runs/tables --data=../shared/data

`lstm` reads features by two layers of a biLSTM, as the paper does; the trunk has six layers, so "the last four" leaves
out two and the embeddings. `linear` is the probe of each layer of Peters et al. 2018 (1808.08949, §4) and Tenney et al.
2019 (1905.05950): parts of speech are known in the middle, and a mix of all layers knows most. Small: as minilm.py,
with a biLSTM of 128 at a rate of 3e-3, and a linear layer at 5e-3.
Of `lstm` features on WNUT-17 were not run yet.
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
PROBED = {
  'embeddings': ((0,), 'concat'),
  **{f'layer {number}': ((number,), 'concat') for number in range(1, LAYERS + 1)},
  'weighted sum of all': (range(LAYERS + 1), 'mix'),
}
WAYS = {  # title, paper, rows, rate; pairs of rows of the claims
  'lstm': (
    'BERT, Table 7, of MiniLM: layers as features',
    'Devlin et al. 2018, §5.3, whose numbers are of another network (96.1 of F1 at best on CoNLL-2003, dev)',
    FEATURES,
    3e-3,
    (
      ('fine-tuned', 'last four side by side'),
      ('last four side by side', 'embeddings'),
      ('last four side by side', 'second-to-last layer'),
      ('last four side by side', 'last layer'),
      ('last four side by side', 'weighted sum of all layers'),
    ),
  ),
  'linear': (
    'Which layers of MiniLM know parts of speech: a linear probe',
    'Peters et al. 2018 (1808.08949) and Tenney et al. 2019, of other networks',
    PROBED,
    5e-3,
    (
      ('layer 1', 'embeddings'),
      ('layer 3', 'layer 1'),
      ('layer 3', 'layer 6'),
      ('weighted sum of all', 'layer 3'),
      ('weighted sum of all', 'layer 6'),
    ),
  ),
}


def get_table(scale, arg='lstm'):
  """Takes a scale, and `lstm` or `linear`."""
  way = minilm.word(arg, WAYS)
  title, paper, features, rate, pairs = WAYS[way]
  rows = {'fine-tuned': minilm.trunk(scale)}
  for name, (layers, join) in features.items():
    # a network of `tiny` has two layers
    read = tuple(layers) if scale != 'tiny' else tuple(layers)[-2:] if join == 'mix' else (min(0, max(layers)),)
    tuning = tasks.features(scale, layers=read, join=join)
    tuning |= {'adapter.lstm_layers': 0} if way == 'linear' else {}
    rows[name] = minilm.trunk(scale, tuning=tuning | ({'optim.rate': rate} if scale == 'small' else {}))
  columns = minilm.columns(scale, *(('EWT',) if way == 'linear' else ('EWT', 'WNUT-17')))
  return dict(
    title=title,
    paper=paper,
    mark='none',
    rows=rows,
    columns=columns,
    claims=claims.claims(list(columns), *pairs),
    tuning_seeds=1 if scale == 'tiny' else 3,
  )
