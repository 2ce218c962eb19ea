"""Columns and rows of MiniLM, a BERT of 22.7 M parameters with published weights."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from experiments import common
from experiments.tables.shared import scales


class Task(NamedTuple):
  """A task set.

  Attributes:
    config: file of experiments/finetune/.
    folder: of the data.
    fields: texts.
    label: field of the label.
    classes: their number; 0 if the config finds them.
    split: of the evaluation at the small scale; that of the paper has no slice.
    metric: of that evaluation.
    trivial: scores without a network at the small scale, by benchmarks/bag_of_words.py.
  """

  config: str
  folder: str
  fields: tuple[str, ...]
  label: str
  classes: int
  split: str
  metric: str
  trivial: Mapping[str, float]


WEIGHTS = 'runs/released/minilm'
CLASS, VALUE, BAG, TAG = 'most frequent class', 'one value for all', 'bag of words', 'most frequent tag of a word'
ONE, TWO, NLI = ('text',), ('sentence1', 'sentence2'), ('premise', 'hypothesis')
TEST, VALIDATION = 'test', 'validation'
TASKS = {
  'TREC': Task('classify', 'trec', ONE, 'label-coarse', 6, TEST, 'accuracy', {CLASS: 13.0, BAG: 83.2}),
  'MRPC': Task('pair', 'glue_mrpc', TWO, 'label', 2, TEST, 'accuracy', {CLASS: 66.5, BAG: 72.5}),
  'RTE': Task('pair', 'glue_rte', TWO, 'label', 2, VALIDATION, 'accuracy', {CLASS: 52.7, BAG: 57.0}),
  'STS-B': Task('regress', 'glue_stsb', TWO, 'label', 1, TEST, 'spearman', {VALUE: 0.0, BAG: 64.2}),
  'CoLA': Task('classify', 'glue_cola', ('sentence',), 'label', 2, VALIDATION, 'matthews', {CLASS: 0.0, BAG: 14.4}),
  'SST-2': Task('classify', 'glue_sst2', ('sentence',), 'label', 2, TEST, 'accuracy', {CLASS: 49.9, BAG: 70.4}),
  'SNLI': Task('pair', 'snli', NLI, 'label', 3, 'test[:2000]', 'accuracy', {CLASS: 32.5, BAG: 52.8}),
  'MNLI': Task('pair', 'glue_mnli', NLI, 'label', 3, 'validation_matched[:2000]', 'accuracy', {CLASS: 34.4, BAG: 51.7}),
  'IMDb': Task('classify', 'imdb_reviews', ONE, 'label', 2, TEST, 'accuracy', {CLASS: 50.2, BAG: 86.5}),
  'EWT': Task('tag', 'universal_dependencies_en_ewt', ('tokens',), 'upos', 0, TEST, 'accuracy', {TAG: 81.9}),
  'WNUT-17': Task('tag', 'wnut_17', ('tokens',), 'ner_tags', 0, TEST, 'f1', {TAG: 6.0}),
  'SQuAD F1': Task('qa', 'squad', ('question', 'context'), 'answers', 0, 'validation[:1000]', 'f1', {'no answer': 0.0}),
}
# updates of 16 rows at the small scale; the other tasks read 2,000 examples once
UPDATES = {
  'MRPC': 460,
  'RTE': 155,
  'STS-B': 360,
  'CoLA': 500,
  'SNLI': 500,
  'MNLI': 500,
  'WNUT-17': 425,
  'SQuAD F1': 400,
}
PATHS = {'wnut_17': 'data/wnut_17', 'universal_dependencies_en_ewt': 'tfds:universal_dependencies/en_ewt'}
SHAPES = {  # changes of the rows
  'pair': dict(data__length=128, data__buckets=(32, 64)),
  'tag': dict(data__length=128, data__buckets=(32, 64)),
  'qa': dict(data__length=256, data__buckets=(128, 192), data__stride=96),
}
SHORT = dict(data__length=128, data__buckets=(16, 32, 64))
SMALL = dict(data__batch_size=16, optim__rate=5e-5, epochs=None)

# multiplier of the rate that trains the head and, where there is one, the pooler; those of the trunk follow
HEAD = (('(?!trunk/(?!pooler/)).*', 1.0),)
HEAD_ALONE = (*HEAD, ('.*', None))
# kind of task: its columns in tables of wrappers, which have one inner task for all columns
STUDIED = {'classify': ('TREC', 'SST-2'), 'tag': ('EWT',)}
INNER = {
  'classify': dict(name='classify', classes=None, dropout=0.1),
  'tag': dict(name='tag', tags=(), dropout=0.1, crf=False),
}


def word(arg: str, choices: Iterable[str]) -> str:
  """Return the word of a table's argument, the first one by default; ValueError names others."""
  known = tuple(choices)
  common.check_words(arg, known, complaint='this table takes no word')
  return common.chosen(arg, known)


def columns(scale: str, *names: str, found: bool = False) -> dict[str, dict[str, Any]]:
  """Return columns of `TASKS`; with `found`, a run counts its classes, so that an adapter may be wrapped."""
  made = {name: TASKS[name]._replace(classes=0) if found else TASKS[name] for name in names}
  return {name: _column(scale, task, UPDATES.get(name)) for name, task in made.items()}


def _column(scale: str, task: Task, updates: int | None) -> dict[str, Any]:
  config, folder, fields, label, classes, split, metric, trivial = task
  target = scales.target(scale, f'finetune/{config}.py', small='')
  if scale == 'tiny':
    return dict(metric='validation/loss', better='min', configs={'bert': target})
  name = split.partition('_')[0].partition('[')[0]
  # the paper's scale has whole splits
  test = split if scale == 'small' else split.partition('[')[0]
  path = PATHS.get(folder, f'tfds:{folder.replace("glue_", "glue/")}')
  keys: dict[str, Any] = dict(data__path=path, data__fields=fields, data__label=label, data__layout='bert')
  # IMDb has fewer than 2,000 labelled reviews here
  is_part = scale == 'small' and not updates and folder != 'imdb_reviews'
  keys['data__split'] = 'train[:2000shuffled]' if is_part else 'train'
  keys['eval'] = {name: dict(data=dict(split=test)) | (dict(scores=(metric,)) if metric == 'matthews' else {})}
  keys |= dict(adapter__classes=classes) if classes else {}
  if scale == 'small':
    keys |= SHAPES.get(config, SHORT) | SMALL | scales.every(updates or 125)
  return dict(
    metric=f'{name}/{metric}',
    configs={'bert': target},
    keys=scales.ON_A_LAPTOP | scales.dotted(keys),
    folder=folder,
    times=1 if config == 'qa' else 100,
    trivial=trivial if scale == 'small' else {},
    note='' if split == test and '[' not in split else f'of {split}',
  )


def trunk(scale: str, **changes: Any) -> dict[str, Any]:
  """Return a row that starts from the weights; a small pre-training at the scale `tiny`."""
  if scale == 'tiny':
    return dict(config=scales.target(scale, 'small/pretrain.py', 'bert', small=''), **changes)
  return dict(weights=WEIGHTS, **changes)


def beside(scale: str) -> dict[str, Any]:
  """Return the rate of what trains beside a frozen trunk, 20 times that of fine-tuning."""
  return {'optim.rate': 1e-3} if scale == 'small' else {}


def tuned(scale: str) -> dict[str, dict[str, Any]]:
  """Return the rows that tables of wrappers compare with: all parameters, and the head alone."""
  head = trunk(scale, tuning=beside(scale) | {'optim.scale': HEAD_ALONE})
  return {'fine-tuned': trunk(scale), 'head alone': head}


def wrapped(scale: str, adapter: str, *, task: str, **settings: Any) -> dict[str, Any]:
  """Return a row whose classifier or tagger is trained beside a frozen trunk by an adapter."""
  return trunk(scale, tuning={**beside(scale), 'adapter': dict(name=adapter, inner=INNER[task], **settings)})


def between(scale: str, name: str) -> dict[str, Any]:
  """Return fields of a column whose rows are fine-tuned on one of `TASKS` first."""
  first = columns(scale, name)[name]
  return dict(between=first['configs'], between_keys=first.get('keys', {}), between_folder=first.get('folder', ''))
