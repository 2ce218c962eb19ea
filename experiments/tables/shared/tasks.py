"""Task sets of tables: their configs, metrics and sizes, one `Task` each."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from experiments.tables.shared import scales

# Families of fine-tuning configs: file with the words of a trunk; {} is the word of the task. Encoders with their own
# recipe are used at the paper's scale alone (`tuned_as`); smaller scales change that of BERT.
_GLUE = {
  'bert': 'bert/glue.py:{}',
  'gpt': 'gpt/classify.py:{}',
  'bart': 'bart/glue.py:{}',
  'xlnet': 'xlnet/fine_tune.py:{}',
  'roberta': 'roberta/glue.py:{},base',
  'roberta-large': 'roberta/glue.py:{},large',
  'albert': 'albert/fine_tune.py:{}',
  'spanbert': 'bert/glue.py:{}',
  'electra': 'electra/glue.py:{},small',
  'electra-base': 'electra/glue.py:{},base',
}
_PAIRS = _GLUE | {'gpt': 'gpt/similarity.py:{}'}  # GPT reads both orders of a pair
_TAGGING = {'bert': 'tagging/fine_tune.py:{},bert'}
_SQUAD = {
  'bert': 'bert/squad.py',
  'gpt': 'bert/squad.py',
  'bart': 'bart/squad.py',
  'roberta': 'roberta/reading.py:squad1,base',
  'roberta-large': 'roberta/reading.py:squad1,large',
  'albert': 'albert/fine_tune.py:squad1',
}
_SQUAD_2 = {
  'bert': 'bert/squad.py:v2',
  'gpt': 'bert/squad.py:v2',
  'bart': 'bart/squad.py:v2',
  'xlnet': 'xlnet/squad.py:v2',
  'roberta': 'roberta/reading.py:squad2,base',
  'roberta-large': 'roberta/reading.py:squad2,large',
  'albert': 'albert/fine_tune.py:squad2',
  'spanbert': 'spanbert/squad.py:v2',
}
_RACE = {
  'bert': 'bert/choose.py:race',
  'xlnet': 'xlnet/fine_tune.py:race',
  'gpt': 'gpt/choose.py:race',
  'roberta': 'roberta/reading.py:race,base',
  'albert': 'albert/fine_tune.py:race',
}
NOT_AMONG = 'it is not among the small data'
_NO_TRAINING_SET = 'its training set is not among the small data'
_AVERAGE = 'it is an average over tasks, of which those that are measured have columns of their own'


@dataclasses.dataclass(frozen=True)
class Task:
  """A task set, and how a trunk is fine-tuned on it.

  Attributes:
    configs: family -> config below experiments/.
    word: of the task in the config.
    metric: as `result.json` names it.
    times: factor of the printed number.
    folder: of the data below --data; '' for a set that only the paper's scale reads, from TFDS.
    steps: updates at the small scale.
    keys: changes of a config for a user's own data.
    not_small: why the small scale does not measure it; '' if it does.
    frequent: score of the most frequent class on the validation examples; None if unknown.
    bag: score of a bag of words that learns as many examples as the small scale reads; None if unknown.
  """

  configs: Mapping[str, str]
  word: str = ''
  metric: str = 'validation/accuracy'
  times: float = 100
  folder: str = ''
  steps: int = 400
  keys: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  not_small: str = ''
  frequent: float | None = None
  bag: float | None = None


_IMDB = {
  'data.path': 'tfds:imdb_reviews',
  'data.split': 'train',
  'data.fields': ('text',),
  'data.label': 'label',
  'data.layout': 'bert',
  'data.length': 512,
  'adapter.classes': 2,
  'eval': {'validation': dict(data=dict(split='test'))},
}
TASKS = {
  'SST-2': Task(_GLUE, 'sst2', folder='glue_sst2', frequent=50.9, bag=78.9),
  'CoLA': Task(_GLUE, 'cola', 'validation/matthews', folder='glue_cola', frequent=0.0),
  'MRPC': Task(_PAIRS, 'mrpc', folder='glue_mrpc', steps=350, frequent=68.4),
  'RTE': Task(_GLUE, 'rte', folder='glue_rte', steps=250, frequent=52.7),
  'STS-B': Task(_PAIRS, 'stsb', 'validation/spearman', folder='glue_stsb'),
  'MNLI': Task(
    _GLUE, 'mnli', 'validation_matched/accuracy', folder='glue_mnli', not_small='networks of this scale stay at chance'
  ),
  'WNUT-17': Task(_TAGGING, 'wnut17', 'validation/f1', folder='wnut_17'),
  'POS': Task(_TAGGING, 'ewt', folder='universal_dependencies_en_ewt'),
  'IMDb': Task({'bert': 'finetune/classify.py'}, folder='imdb_reviews', steps=600, keys=_IMDB),
  'SQuAD F1': Task(
    _SQUAD,
    metric='validation/f1',
    times=1,  # a score between 0 and 100 already
    folder='squad',
    steps=1_500,
    not_small='at this scale one fine-tuning with its evaluation would take as long as a pre-training',
  ),
  'SQuAD 2.0': Task(_SQUAD_2, metric='validation/f1', times=1, not_small=_NO_TRAINING_SET),
  'SQuAD 2.0 EM': Task(_SQUAD_2, metric='validation/exact_match', times=1, not_small=_NO_TRAINING_SET),
  'RACE': Task(_RACE, metric='dev/accuracy', not_small='its licence forbids a copy among the small data'),
  'NER': Task(_TAGGING, 'conll2003', 'validation/f1', not_small='the data of CoNLL-2003 are not among the small data'),
  'QNLI': Task(_GLUE, 'qnli', not_small=NOT_AMONG),
  'QQP': Task(_PAIRS, 'qqp', 'validation/f1', not_small=NOT_AMONG),
  'MNLI-mm': Task(_GLUE, 'mnli', 'validation_mismatched/accuracy', not_small=NOT_AMONG),
  'QQP accuracy': Task(_PAIRS, 'qqp', not_small=NOT_AMONG),
  'WNLI': Task(_GLUE, 'wnli', not_small=NOT_AMONG),
}
# columns that no scale measures
ABSENT = {
  'ELI5': 'no config reads it',
  'ConvAI2': 'no config reads it',
  'NewsQA': 'no config reads it',
  'TriviaQA': 'no config reads it',
  'coreference': 'nothing here resolves it',
  'GLUE': _AVERAGE,
  'average': _AVERAGE,
}
# the average of GLUE without WNLI: accuracies except for CoLA (Matthews) and STS-B (Spearman), as ELECTRA has it
GLUE = ('CoLA', 'SST-2', 'MRPC', 'STS-B', 'QQP accuracy', 'MNLI', 'QNLI', 'RTE')
# a biLSTM on layers of a frozen trunk, and its width by scale
_FROZEN = {
  'adapter.frozen': True,
  'adapter.lstm_layers': 2,
  'optim.rate': 1e-3,
  'optim.decay': 0.0,
  'optim.scale': (('trunk/.*', None), ('.*', 1.0)),
}
_LSTM_DIM = dict(paper=768, small=128, tiny=16)
_WINDOWS = {'data.length': 256, 'data.stride': 96, 'data.batch_size': 16}


def columns(scale: str, *names: str) -> dict[str, dict[str, Any]]:
  """Return columns by name; those that are not measured have the reason."""
  return {name: dict(empty=reason) if (reason := absent(scale, name)) else _column(scale, name) for name in names}


def absent(scale: str, name: str) -> str:
  """Return why a scale does not measure a task, '' if it does."""
  if name in ABSENT:
    return ABSENT[name]
  task = TASKS[name]
  is_large = not task.folder
  return task.not_small if scale == 'small' or (scale == 'tiny' and is_large) else ''


def _column(scale: str, name: str) -> dict[str, Any]:
  """Return the column of a task that a scale measures."""
  task = TASKS[name]
  configs = {family: f'experiments/{target.format(task.word)}' for family, target in task.configs.items()}
  if scale == 'paper' and task.configs.get('bart') == _GLUE['bart']:
    configs['bart'] += ',base'  # whose head is as wide as the trunk
  if not task.folder:
    return dict(metric=task.metric, configs=configs, times=task.times)
  if scale == 'tiny':
    configs = {family: f'{target}{"," if ":" in target else ":"}quick' for family, target in configs.items()}
    # the quick config reads other examples, which have classes
    metric = task.metric if name == 'SQuAD F1' else f'{task.metric.partition("/")[0]}/accuracy'
    return dict(metric=metric, configs=configs, times=task.times)
  column = dict(metric=task.metric, configs=configs, folder=task.folder, times=task.times, keys=dict(task.keys))
  column |= frequent(name, scale)
  if scale == 'small':
    if task.configs.get('bert') == _GLUE['bert']:
      configs['bert'] += ',mean'
    shape = _WINDOWS if name == 'SQuAD F1' else scales.ROWS
    column['keys'] |= scales.TUNING | shape | scales.every(task.steps)
  return column


def frequent(name: str, scale: str) -> dict[str, Any]:
  """Return the baselines of a task's column that are known."""
  task = TASKS[name]
  scores = {'most frequent class': task.frequent, 'bag of words': task.bag if scale == 'small' else None}
  known = {baseline: score for baseline, score in scores.items() if score is not None}
  return dict(trivial=known) if known else {}


def tuned_as(scale: str, family: str, rows: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
  """Return the rows with a family of fine-tuning configs at the paper's scale; BERT's at smaller ones."""
  return {name: row | dict(family=family) for name, row in rows.items()} if scale == 'paper' else dict(rows)


def glue(scale: str, *others: str) -> dict[str, dict[str, Any]]:
  """Return the average of GLUE and its tasks; below the paper's scale it is empty, next to `others`."""
  if scale == 'paper':
    return {'GLUE': dict(over=GLUE, note='the mean of eight tasks, without WNLI'), **columns(scale, *GLUE)}
  return {'GLUE': dict(empty=ABSENT['GLUE']), **columns(scale, *others)}


def features(scale: str, *, layers: Sequence[int], join: str) -> dict[str, Any]:
  """Return changes of a tagger whose biLSTM reads layers of a frozen trunk."""
  return _FROZEN | {'adapter.layers': tuple(layers), 'adapter.join': join, 'adapter.lstm_dim': _LSTM_DIM[scale]}
