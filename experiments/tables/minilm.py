"""What is fine-tuning worth to a trunk that knows English? MiniLM, 22.7 M parameters, on twelve tasks.

bash launch/released.sh
plm-jax tables experiments/tables/minilm.py --scale=small --workdir=runs/tables --data=../shared/data
python -m benchmarks.bag_of_words experiments/tables/minilm.py --scale=small --data=../shared/data

The first makes runs/released/minilm, which is sentence-transformers/all-MiniLM-L6-v2: BERT of six layers of 384. Its
own pooler is fine-tuned, not the mean that sentence vectors take. The last prints the scores without a network.
Small: 2,000 labelled examples, read once in 125 steps of 16, minutes of a core; 2,000 test pairs of SNLI and MNLI.
Paper: all examples, three epochs.
"""

from experiments.tables.shared import claims, scales

WEIGHTS = 'runs/released/minilm'
CLASS, BAG, TAG = 'most frequent class', 'bag of words', 'most frequent tag of a word'
ONE, TWO, NLI = ('text',), ('sentence1', 'sentence2'), ('premise', 'hypothesis')
TEST, VALIDATION = 'test', 'validation'
# task: config and its word, folder, fields, label, classes, split of the evaluation, metric, scores without a network
# at the small scale
TASKS = {
  'TREC': ('classify', 'trec', ONE, 'label-coarse', 6, TEST, 'accuracy', {CLASS: 18.8}),
  'MRPC': ('pair', 'glue_mrpc', TWO, 'label', 2, TEST, 'accuracy', {CLASS: 66.5}),
  'RTE': ('pair', 'glue_rte', TWO, 'label', 2, VALIDATION, 'accuracy', {CLASS: 52.7}),
  'STS-B': ('regress', 'glue_stsb', TWO, 'label', 1, TEST, 'spearman', {CLASS: 0.0}),
  'CoLA': ('classify', 'glue_cola', ('sentence',), 'label', 2, VALIDATION, 'matthews', {CLASS: 0.0}),
  'SST-2': ('classify', 'glue_sst2', ('sentence',), 'label', 2, TEST, 'accuracy', {CLASS: 49.9}),
  'SNLI': ('pair', 'snli', NLI, 'label', 3, 'test[:2000]', 'accuracy', {CLASS: 32.5}),
  'MNLI': ('pair', 'glue_mnli', NLI, 'label', 3, 'validation_matched[:2000]', 'accuracy', {CLASS: 34.4}),
  'IMDb': ('classify', 'imdb_reviews', ONE, 'label', 2, TEST, 'accuracy', {CLASS: 50.2}),
  'EWT': ('tag', 'universal_dependencies_en_ewt', ('tokens',), 'upos', 0, TEST, 'accuracy', {TAG: 0.0}),
  'WNUT-17': ('tag', 'wnut_17', ('tokens',), 'ner_tags', 0, TEST, 'f1', {TAG: 0.0}),
  'SQuAD F1': ('qa', 'squad', ('question', 'context'), 'answers', 0, 'validation[:1000]', 'f1', {'no answer': 0.0}),
}
PATHS = {'wnut_17': 'data/wnut_17', 'universal_dependencies_en_ewt': 'tfds:universal_dependencies/en_ewt'}
SHAPES = {  # changes of the rows
  'pair': dict(data__length=128, data__buckets=(32, 64)),
  'tag': dict(data__length=128, data__buckets=(32, 64)),
  'qa': dict(data__length=256, data__buckets=(128, 192), data__stride=96),
}
SHORT = dict(data__length=128, data__buckets=(16, 32, 64))
SMALL = dict(data__batch_size=16, optim__rate=5e-5, epochs=None) | scales.every(125)


def column(scale, config, folder, fields, label, classes, split, metric, trivial):
  """Return the column of a task of `TASKS`."""
  target = scales.target(scale, f'finetune/{config}.py', small='')
  if scale == 'tiny':
    return dict(metric='validation/loss', better='min', configs={'bert': target})
  name = split.partition('_')[0].partition('[')[0]
  # the paper's scale has whole splits
  test = split if scale == 'small' else split.partition('[')[0]
  path = PATHS.get(folder, f'tfds:{folder.replace("glue_", "glue/")}')
  keys = dict(data__path=path, data__fields=fields, data__label=label, data__layout='bert')
  keys['data__split'] = 'train[:2000shuffled]' if scale == 'small' else 'train'
  keys['eval'] = {name: dict(data=dict(split=test))}
  keys |= dict(adapter__classes=classes) if classes else {}
  if scale == 'small':
    keys |= SHAPES.get(config, SHORT) | SMALL
  return dict(
    metric=f'{name}/{metric}',
    configs={'bert': target},
    keys=scales.ON_A_LAPTOP | scales.dotted(keys),
    folder=folder,
    times=1 if config == 'qa' else 100,
    trivial=trivial if scale == 'small' else {},
    note='' if split == test and '[' not in split else f'of {split}',
  )


def get_table(scale):
  """Takes a scale."""
  columns = {name: column(scale, *task) for name, task in TASKS.items()}
  trunk = dict(weights=WEIGHTS)
  if scale == 'tiny':
    trunk = dict(config=scales.target(scale, 'small/pretrain.py', 'bert', small=''))
  return dict(
    title='MiniLM on twelve tasks, pre-trained and from scratch',
    paper='No table of a paper: Wang et al. 2020 distilled the trunk, Reimers and Gurevych 2019 taught it sentences',
    mark='none',
    rows={'fine-tuned': trunk, 'from scratch': dict(trunk, start='scratch')},
    columns=columns,
    claims=claims.claims(list(columns), ('fine-tuned', 'from scratch'))
    + [
      dict(column=name, better='fine-tuned', than=than) for name in columns for than in columns[name].get('trivial', {})
    ],
    tuning_seeds=1 if scale == 'tiny' else 3,
    note='2,000 labelled examples, read once in 125 steps.' if scale == 'small' else '',
  )
