"""What is pre-training worth to a BERT of 5 M parameters? Twelve tasks, from what it learned and from fresh parameters.

python -m plm_jax.tables experiments/tables/small_bert.py --scale=small --workdir=runs/tables --data=../shared/data

The network is that of experiments/small/pretrain.py:bert, whose head says which text and vocabulary it needs.
"""

from experiments.tables import common

CLASS = 'most frequent class'
FAST = 10.0  # times the rate of the trunk: the head where a trunk would learn the frequent class in place of words
IN_CACHE = dict(accumulate=4)  # a quarter of a batch at a time stays in the cache of a core: 1.2 times as many tokens
# task: words of its GLUE config, folder, metric, updates, head, what needs no network
GLUE = {
  'SST-2': ('sst2', 'glue_sst2', 'validation/accuracy', 500, 1.0, {CLASS: 50.9}),
  'CoLA': ('cola', 'glue_cola', 'validation/matthews', 400, FAST, {CLASS: 0.0}),
  'MRPC': ('mrpc', 'glue_mrpc', 'validation/accuracy', 230, FAST, {CLASS: 68.4}),
  'RTE': ('rte', 'glue_rte', 'validation/accuracy', 160, FAST, {CLASS: 52.7}),
  'STS-B': ('stsb', 'glue_stsb', 'validation/spearman', 360, 1.0, {CLASS: 0.0}),
}
# task: word of the config, folder, updates, head, share of the most frequent class
CHOICES = {
  'COPA': ('copa', 'super_glue_copa', 200, 1.0, 45.0),
  'HellaSwag': ('hellaswag', 'hellaswag', 250, FAST, 25.0),
}
OWN = dict(data__split='train', data__layout='bert', adapter__pool='mean', eval={'test': dict(data=dict(split='test'))})
ROWS = dict(data__length=128, data__buckets=(32, 64), data__batch_size=16)
OPTIONS = dict(data__length=96, data__buckets=(32, 64), data__batch_size=8, adapter__pool='mean')
SPANS = dict(IN_CACHE, data__length=256, data__buckets=(128, 192), data__stride=96, data__batch_size=16)


def get_table(scale):
  """Takes a scale."""

  def task(config, *words, folder, metric, steps, **rest):
    return common.task(scale, 'bert', config, *words, folder=folder, metric=metric, steps=steps, **rest)

  columns = {}
  for name, (word, folder, metric, steps, head, trivial) in GLUE.items():
    rest = dict(steps=steps, head=head, trivial=trivial) | (IN_CACHE if name in ('MRPC', 'RTE') else {})
    columns[name] = task('bert/glue.py', word, 'mean', folder=folder, metric=metric, **rest)
  columns['TREC'] = common.trec(scale, 'bert', steps=400)
  columns['SNLI'] = task(
    'finetune/pair.py',
    folder='snli',
    metric='test/accuracy',
    steps=600,
    head=FAST,
    trivial={CLASS: 32.9},
    **IN_CACHE,
    **OWN,
    data__path='tfds:snli',
    data__fields=('premise', 'hypothesis'),
    data__label='label',
    adapter__classes=3,
  )
  columns['WNUT-17'] = task(
    'tagging/fine_tune.py',
    'wnut17',
    'bert',
    folder='wnut_17',
    metric='test/f1',
    steps=640,
    head=FAST,
    trivial={CLASS: 0.0},
    **ROWS,
  )
  columns['EWT'] = task(
    'tagging/fine_tune.py',
    'ewt',
    'bert',
    folder='universal_dependencies_en_ewt',
    metric='test/accuracy',
    steps=400,
    trivial={'most frequent tag of a word': 86.2},
  )
  for name, (word, folder, steps, head, share) in CHOICES.items():
    own = dict(head=head, metric='validation/accuracy', trivial={CLASS: share}, **OPTIONS)
    own |= IN_CACHE if name == 'HellaSwag' else {}
    columns[name] = task('bert/choose.py', word, folder=folder, steps=steps, **own)
  for name, metric in {'SQuAD EM': 'exact_match', 'SQuAD F1': 'f1'}.items():
    columns[name] = task(
      'bert/squad.py',
      folder='squad',
      metric=f'validation/{metric}',
      steps=400,
      head=FAST,
      times=1,
      trivial={'no answer': 0.0},
      **SPANS,
    )
  return common.downstream(scale, 'small/pretrain.py', 'bert', columns)
