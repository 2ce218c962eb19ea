"""What is pre-training worth to a BERT of 5 M parameters? Twelve tasks, from what it learned and from fresh parameters.

plm-jax tables experiments/tables/small_bert.py --scale=small --workdir=runs/tables --data=../shared/data

`small_bert.py:medium` asks a BERT of 30 M parameters, on a GPU. The network is that of
experiments/small/pretrain.py:bert, whose head says which text and vocabulary it needs.
"""

from experiments.tables.shared import downstream, scales

CLASS = 'most frequent class'
# where a trunk would learn the frequent class in place of the words, the head learns faster: see `downstream.task`
SKEWED = dict(head=10.0)
LARGE = SKEWED | scales.IN_CACHE
# task: words of its GLUE config, folder, metric, updates, what the most frequent class gives, settings
GLUE = {
  'SST-2': ('sst2', 'glue_sst2', 'validation/accuracy', 500, 50.9, {}),
  'CoLA': ('cola', 'glue_cola', 'validation/matthews', 400, 0.0, SKEWED),
  'MRPC': ('mrpc', 'glue_mrpc', 'validation/accuracy', 230, 68.4, LARGE),
  'RTE': ('rte', 'glue_rte', 'validation/accuracy', 160, 52.7, LARGE),
  'STS-B': ('stsb', 'glue_stsb', 'validation/spearman', 360, 0.0, {}),
}
SENTENCES = dict(data__length=128, data__buckets=(32, 64), data__batch_size=16)
# task: word of the config, folder, metric, updates, what needs no network, settings
TAGS = {
  'WNUT-17': ('wnut17', 'wnut_17', 'test/f1', 640, {CLASS: 0.0}, SKEWED | SENTENCES),
  'EWT': ('ewt', 'universal_dependencies_en_ewt', 'test/accuracy', 400, {'most frequent tag of a word': 86.2}, {}),
}
# task: word of the config, folder, updates, share of the most frequent class, settings
CHOICES = {
  'COPA': ('copa', 'super_glue_copa', 200, 45.0, {}),
  'HellaSwag': ('hellaswag', 'hellaswag', 250, 25.7, LARGE),
}
OWN = dict(data__split='train', data__layout='bert', adapter__pool='mean', eval={'test': dict(data=dict(split='test'))})
OPTIONS = dict(data__length=96, data__buckets=(32, 64), data__batch_size=8, adapter__pool='mean')
SPANS = dict(LARGE, data__length=256, data__buckets=(128, 192), data__stride=96, data__batch_size=16)


def get_table(scale, arg=''):
  """Takes a scale and `medium`."""

  def task(config, *words, folder, metric, steps, **rest):
    return downstream.task(scale, 'bert', config, *words, folder=folder, metric=metric, steps=steps, **rest)

  columns = {}
  for name, (word, folder, metric, steps, share, settings) in GLUE.items():
    bag = {'bag of words': 79.7} if name == 'SST-2' else {}
    rest = dict(steps=steps, trivial={CLASS: share} | bag) | settings
    columns[name] = task('bert/glue.py', word, 'mean', folder=folder, metric=metric, **rest)
  columns['TREC'] = downstream.trec(scale, 'bert', steps=400)
  columns['SNLI'] = task(
    'finetune/pair.py',
    folder='snli',
    metric='test/accuracy',
    steps=600,
    trivial={CLASS: 32.9},
    **LARGE,
    **OWN,
    data__path='tfds:snli',
    data__fields=('premise', 'hypothesis'),
    data__label='label',
    adapter__classes=3,
  )
  for name, (word, folder, metric, steps, trivial, settings) in TAGS.items():
    rest = dict(steps=steps, trivial=trivial) | settings
    columns[name] = task('tagging/fine_tune.py', word, 'bert', folder=folder, metric=metric, **rest)
  for name, (word, folder, steps, share, settings) in CHOICES.items():
    rest = dict(steps=steps, trivial={CLASS: share}) | OPTIONS | settings
    columns[name] = task('bert/choose.py', word, folder=folder, metric='validation/accuracy', **rest)
  for name, metric in {'SQuAD EM': 'exact_match', 'SQuAD F1': 'f1'}.items():
    columns[name] = task(
      'bert/squad.py',
      folder='squad',
      metric=f'validation/{metric}',
      steps=400,
      times=1,
      trivial={'no answer': 0.0},
      **SPANS,
    )
  return downstream.table(scale, 'small/pretrain.py', 'bert', columns, medium=downstream.is_medium(arg))
