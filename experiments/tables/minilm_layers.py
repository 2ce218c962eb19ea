"""BERT, Table 7, of MiniLM: which layers are worth reading as features (Devlin et al. 2018, §5.3).

bash launch/released.sh
plm-jax tables experiments/tables/minilm_layers.py:linear --scale=small --workdir=runs/tables --data=../shared/data

`lstm` reads features by two layers of a biLSTM, as the paper does; the trunk has six layers, so "the last four" leaves
out two and the embeddings. `linear` is the probe of each layer of Peters et al. 2018 (1808.08949, §4) and Tenney et al.
2019 (1905.05950): parts of speech are known in the middle, and a mix of all layers knows most. Small: as minilm.py,
with a biLSTM of 128 at a rate of 3e-3, and a linear layer at 5e-3.
`lstm` on WNUT-17 was not run yet.
"""

from experiments.tables.shared import claims, minilm, tasks

LAYERS, LAST_FOUR = 6, 'last four side by side'
FEATURES = {  # layers, how they are joined
  'embeddings': ((0,), 'concat'),
  'second-to-last layer': ((-2,), 'concat'),
  'last layer': ((-1,), 'concat'),
  'weighted sum of the last four': (range(-4, 0), 'mix'),
  LAST_FOUR: (range(-4, 0), 'concat'),
  'weighted sum of all layers': (range(-LAYERS, 0), 'mix'),
}
PROBED = {
  'embeddings': ((0,), 'concat'),
  **{f'layer {number}': ((number,), 'concat') for number in range(1, LAYERS + 1)},
  'weighted sum of all': (range(LAYERS + 1), 'mix'),
}
WAYS = {  # fields of each table; `pairs` are the rows of its claims
  'lstm': dict(
    title='BERT, Table 7, of MiniLM: layers as features',
    paper='Devlin et al. 2018, §5.3, whose numbers are of another network (96.1 of F1 at best on CoNLL-2003, dev)',
    rows=FEATURES,
    columns=('EWT', 'WNUT-17'),
    rate=3e-3,
    pairs=(
      ('fine-tuned', LAST_FOUR),
      (LAST_FOUR, 'embeddings'),
      (LAST_FOUR, 'second-to-last layer'),
      (LAST_FOUR, 'last layer'),
      (LAST_FOUR, 'weighted sum of all layers'),
    ),
  ),
  'linear': dict(
    title='Which layers of MiniLM know parts of speech: a linear probe',
    paper='Peters et al. 2018 (1808.08949) and Tenney et al. 2019, of other networks',
    rows=PROBED,
    columns=('EWT',),
    rate=5e-3,
    pairs=(
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
  word = minilm.word(arg, WAYS)
  way = WAYS[word]
  rows = {'fine-tuned': minilm.trunk(scale)}
  for name, (layers, join) in way['rows'].items():
    if scale == 'tiny':  # a network of two layers
      layers = (-2, -1) if len(layers) > 1 else (-1,)
    tuning = tasks.features(scale, layers=layers, join=join)
    tuning |= {'adapter.lstm_layers': 0} if word == 'linear' else {}
    rows[name] = minilm.trunk(scale, tuning=tuning | ({'optim.rate': way['rate']} if scale == 'small' else {}))
  columns = minilm.columns(scale, *way['columns'])
  return dict(
    title=way['title'],
    paper=way['paper'],
    mark='none',
    rows=rows,
    columns=columns,
    claims=claims.claims(list(columns), *way['pairs']),
    tuning_seeds=1 if scale == 'tiny' else 3,
  )
