"""What tables share: three scales, the task sets, and how a pre-training becomes small.

paper   the configs as they are
small   about a million parameters, 800 steps of 64 rows of 64 tokens on the text in runs/data/english, or in --corpus,
        ten minutes of one core a pre-training; with the vocabulary that
        plm-jax vocab train --source=runs/data/english --name=byte_bpe --size=4000 \\
          --out=runs/vocab/small_4000
        makes; task sets as TFDS has them, or in --data
tiny    `quick` configs: it shows that a table works, and nothing else
"""

from collections.abc import Mapping, Sequence
from typing import Any

from experiments import common

ULMFIT = ('IMDb', 'TREC-6', 'AG')  # the columns of its tables
ELMO = ('SQuAD', 'SNLI', 'SRL', 'POS', 'WNUT-17')
ALBERT = ('SQuAD F1', 'SQuAD 2.0', 'MNLI', 'SST-2', 'RACE', 'average')  # the last columns of its tables
LABELS = {  # numbers of labelled texts, by task
  'paper': {
    'IMDb': (100, 500, 1_000, 5_000, 20_000),
    'TREC-6': (100, 500, 1_000, 4_000),
    'AG': (100, 500, 1_000, 5_000, 20_000, 100_000),
  },
  'small': {'IMDb': (100, 500, 1_500), 'TREC-6': (100, 500, 4_000)},
  'tiny': {'IMDb': (100,), 'TREC-6': (100,)},
}
# kernels that start from .02, which fits a width of 768, leave a GPT at the frequencies of words: 6.7 nats a token
# after 600 steps; from .06, 5.5 after 160
SIZES = dict(num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=512, dropout=0.0, attention_dropout=0.0, init_std=0.06)
T5 = dict(num_layers=2, num_decoder_layers=2, num_heads=2, head_dim=64, hidden_dim=128, mlp_dim=512, dropout=0.0)
SPANBERT_STEPS = 1_200_000  # of the rows of its tables; the paper's final models have twice as many
# what else of BERT's config is not that of spanbert/pretrain.py
LIKE_SPANBERT = dict(
  steps=SPANBERT_STEPS,
  vocab__path='runs/vocab/bert-cased',
  model__variant='spanbert-large',
  optim=dict(
    name='adamw', rate=1e-4, schedule='linear', warmup=10_000, decay=0.1, clip=1.0, b1=0.9, b2=0.999, eps=1e-8
  ),
)  # fmt: skip
SENTINELS = tuple(f'<extra_id_{k}>' for k in range(100))
_ON_A_LAPTOP = {'sharding': {}, 'execution': dict(layers='loop'), 'accumulate': 1, 'best': None}
_PRETRAINING = _ON_A_LAPTOP | {
  'vocab': dict(name='byte_bpe', path='runs/vocab/small_4000'),
  'data.path': 'runs/data/english',
  'data.length': 64,
  'data.batch_size': 64,
  'optim': dict(name='adamw', rate=2e-3, schedule='linear', warmup=0.05, decay=0.01, clip=1.0),
  'steps': 800,
  'log_every': 40,
  'eval_every': 800,
  'save_every': 400,
}
_TUNING = _ON_A_LAPTOP | {
  'optim.rate': 5e-4,
  'epochs': None,
}
# a quarter of a batch at a time stays in the cache of a core, which then does more tokens a second
IN_CACHE = dict(accumulate=4)
_ROWS = {'data.length': 128, 'data.buckets': (16, 32, 64), 'data.batch_size': 32}
_WINDOWS = {'data.length': 256, 'data.stride': 96, 'data.batch_size': 16}
# Families of fine-tuning configs: file, with the words of a trunk. Those of encoders with a recipe of their own are of
# the paper's scale alone (`tuned_as`), as that of BERT is what smaller scales change.
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
# name: folder, configs by family, the word of the task, the metric that is printed, times which it is printed, steps
# when small
_TASKS = {
  'SST-2': ('glue_sst2', _GLUE, 'sst2', 'validation/accuracy', 100, 400),
  'CoLA': ('glue_cola', _GLUE, 'cola', 'validation/matthews', 100, 400),
  'MRPC': ('glue_mrpc', _PAIRS, 'mrpc', 'validation/accuracy', 100, 350),
  'RTE': ('glue_rte', _GLUE, 'rte', 'validation/accuracy', 100, 250),
  'STS-B': ('glue_stsb', _PAIRS, 'stsb', 'validation/spearman', 100, 400),
  'MNLI': ('glue_mnli', _GLUE, 'mnli', 'validation_matched/accuracy', 100, 400),
  'WNUT-17': ('wnut_17', {'bert': 'tagging/fine_tune.py:{},bert'}, 'wnut17', 'validation/f1', 100, 400),
  'POS': (
    'universal_dependencies_en_ewt',
    {'bert': 'tagging/fine_tune.py:{},bert'},
    'ewt',
    'validation/accuracy',
    100,
    400,
  ),
  'IMDb': ('imdb_reviews', {'bert': 'finetune/classify.py'}, '', 'validation/accuracy', 100, 600),
  'SQuAD F1': ('squad', _SQUAD, '', 'validation/f1', 1, 1_500),  # a score between 0 and 100 already
}
# what a config for a person's own rows is told of a set
_SAID = {
  'IMDb': {
    'data.path': 'tfds:imdb_reviews',
    'data.split': 'train',
    'data.fields': ('text',),
    'data.label': 'label',
    'data.layout': 'bert',
    'data.length': 512,
    'adapter.classes': 2,
    'eval': {'validation': dict(data=dict(split='test'))},
  },
}
# tasks of the paper's scale alone, which read sets of TFDS: configs by family, the word of the task, the metric,
# times which it is printed
_LARGE = {
  'SQuAD 2.0': (_SQUAD_2, '', 'validation/f1', 1),
  'SQuAD 2.0 EM': (_SQUAD_2, '', 'validation/exact_match', 1),
  'RACE': (_RACE, '', 'dev/accuracy', 100),
  'NER': ({'bert': 'tagging/fine_tune.py:{},bert'}, 'conll2003', 'validation/f1', 100),
  'QNLI': (_GLUE, 'qnli', 'validation/accuracy', 100),
  'QQP': (_PAIRS, 'qqp', 'validation/f1', 100),
  'MNLI-mm': (_GLUE, 'mnli', 'validation_mismatched/accuracy', 100),
  'QQP accuracy': (_PAIRS, 'qqp', 'validation/accuracy', 100),
  'WNLI': (_GLUE, 'wnli', 'validation/accuracy', 100),
}
_NOT_IN_SMALL = {
  'SQuAD 2.0': 'its training set is not among the small data',
  'SQuAD 2.0 EM': 'its training set is not among the small data',
  'RACE': 'its licence forbids a copy among the small data',
  'NER': 'the data of CoNLL-2003 are not among the small data',
  'QNLI': 'it is not among the small data',
  'QQP': 'it is not among the small data',
  'QQP accuracy': 'it is not among the small data',
  'WNLI': 'it is not among the small data',
  'MNLI-mm': 'it is not among the small data',
  'AG': 'it is not among the small data',
  'SQuAD F1': 'at this scale one fine-tuning with its evaluation would take as long as a pre-training',
  'MNLI': 'networks of this scale stay at chance',
}
# what no scale measures
_ABSENT = {
  'ELI5': 'no config reads it',
  'ConvAI2': 'no config reads it',
  'NewsQA': 'no config reads it',
  'TriviaQA': 'no config reads it',
  'coreference': 'nothing here resolves it',
  'GLUE': 'it is an average over tasks, of which those that are measured have columns of their own',
  'average': 'it is an average over tasks, of which those that are measured have columns of their own',
}
# the average of GLUE without WNLI: accuracies but for CoLA (Matthews) and STS-B (Spearman), as ELECTRA has it
GLUE = ('CoLA', 'SST-2', 'MRPC', 'STS-B', 'QQP accuracy', 'MNLI', 'QNLI', 'RTE')
# a biLSTM on layers of a frozen trunk, by scale how wide it is
_FROZEN = {
  'adapter.frozen': True,
  'adapter.lstm_layers': 2,
  'optim.rate': 1e-3,
  'optim.decay': 0.0,
  'optim.scale': (('trunk/.*', None), ('.*', 1.0)),
}
_LSTM_DIM = dict(paper=768, small=128, tiny=16)
# metrics of T5 at the paper's scale, in one run of t5/mixture.py
_T5_GLUE = {
  'CoLA': 'cola/matthews',
  'SST-2': 'sst2/exact_match',
  'MRPC': 'mrpc/exact_match',
  'STS-B': 'stsb/spearman',
  'QQP': 'qqp/exact_match',
  'MNLI': 'mnli/exact_match',
  'QNLI': 'qnli/exact_match',
  'RTE': 'rte/exact_match',
}
# and of runs of t5/tasks.py. name: its word, metric on validation, times which it is printed
_T5_SUPER_GLUE = {
  'BoolQ': ('boolq', 'exact_match', 100),
  'CB': ('cb', 'exact_match', 100),
  'COPA': ('copa', 'exact_match', 100),
  'MultiRC': ('multirc', 'f1a', 1),
  'ReCoRD': ('record', 'f1', 1),
  'RTE, SuperGLUE': ('super_glue_rte', 'exact_match', 100),
  'WiC': ('wic', 'exact_match', 100),
  'WSC': ('wsc', 'wsc_accuracy', 100),
}
_T5_OTHERS = {
  'CNN/DM': ('cnn_dailymail', 'rouge2', 1),
  'SQuAD': ('squad', 'exact_match', 1),
  'WMT en-de': ('wmt_en_de', 'bleu_intl', 1),
  'WMT en-fr': ('wmt_en_fr', 'bleu_intl', 1),
  'WMT en-ro': ('wmt_en_ro', 'bleu_intl', 1),
}
T5_COLUMNS = ('GLUE', 'CNN/DM', 'SQuAD', 'SuperGLUE', 'WMT en-de', 'WMT en-fr', 'WMT en-ro')  # of its tables


def dotted(keys: Mapping[str, Any]) -> dict[str, Any]:
  """Changes of a config that were given as keywords, with two underscores for a dot."""
  return {key.replace('__', '.'): value for key, value in keys.items()}


def columns(scale: str, *names: str) -> dict[str, dict[str, Any]]:
  """Columns by name: tasks that are measured, and others that stay empty with the reason."""
  absent = (
    _ABSENT | {'paper': {}, 'small': _NOT_IN_SMALL, 'tiny': {name: _NOT_IN_SMALL[name] for name in _LARGE}}[scale]
  )
  return {name: dict(empty=absent[name]) if name in absent else _column(scale, name) for name in names}


def albert_row(
  scale: str,
  config: str,
  *words: str,
  sharing: str,
  embed_dim: int,
  small: Mapping[str, Any],
  published: Sequence[Any],
  **keys: Any,
) -> dict[str, Any]:
  """A row of ALBERT's tables, which differ in what layers share and in the width of embeddings.

  Args:
    scale: of the table.
    config: of the pre-training.
    *words: of that config.
    sharing: what the layers share.
    embed_dim: width of embeddings at the scale of the paper.
    small: sizes where the table is small, beside `SIZES`.
    published: millions of parameters, then the numbers of `ALBERT`.
    **keys: changes of the pre-training, as of `pretraining`.
  """
  own = {} if scale == 'small' else dict(model__overrides__sharing=sharing)
  own |= dict(model__overrides__embed_dim=embed_dim) if scale == 'paper' else {}
  sizes = {**SIZES, 'sharing': sharing, **small}
  made = pretraining(scale, config, *words, small=sizes, **own, **keys, **masks(scale))
  return made | dict(published=by_column(('parameters, millions', *ALBERT), published))


def albert_columns(scale: str) -> dict[str, dict[str, Any]]:
  """The columns of ALBERT's tables of sizes: parameters, and `ALBERT`."""
  millions = dict(
    of='parameters', times=1e-6, better='min', note='parameters are those of pre-training, heads included'
  )
  return {'parameters, millions': millions, **columns(scale, *ALBERT)}


def _column(scale: str, name: str) -> dict[str, Any]:
  if name in _LARGE:
    by_family, word, metric, times = _LARGE[name]
    return dict(metric=metric, configs=_configs(scale, by_family, word), times=times)
  folder, by_family, word, metric, times, steps = _TASKS[name]
  configs = _configs(scale, by_family, word)
  if scale == 'tiny':
    configs = {family: f'{target}{"," if ":" in target else ":"}quick' for family, target in configs.items()}
    scored = (
      metric if name == 'SQuAD F1' else f'{metric.partition("/")[0]}/accuracy'
    )  # of other rows, that have classes
    return dict(metric=scored, configs=configs, times=times)
  column = dict(metric=metric, configs=configs, folder=folder, times=times, keys=dict(_SAID.get(name, {})))
  if scale == 'small':
    if by_family.get('bert') == _GLUE['bert']:
      configs['bert'] += ',mean'
    shape = _WINDOWS if name == 'SQuAD F1' else _ROWS
    often = {'steps': steps, 'log_every': steps // 5, 'eval_every': steps, 'save_every': steps}
    column['keys'] |= _TUNING | shape | often
  return column


def _configs(scale: str, by_family: Mapping[str, str], word: str) -> dict[str, str]:
  configs = {family: f'experiments/{target.format(word)}' for family, target in by_family.items()}
  if scale == 'paper' and by_family.get('bart') == _GLUE['bart']:
    configs['bart'] += ',base'  # whose head is as wide as the trunk
  return configs


def tuned_as(scale: str, family: str, rows: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
  """The rows with a family of fine-tuning configs: the paper's own at its scale, and BERT's at smaller ones."""
  return {name: row | dict(family=family) for name, row in rows.items()} if scale == 'paper' else dict(rows)


def written(scale: str, name: str) -> dict[str, dict[str, Any]]:
  """A task of GLUE for T5, which writes the label as text."""
  folder, _, word, _, times, steps = _TASKS[name]
  target = f'experiments/t5/tasks.py:{word}{",quick" if scale == "tiny" else ""}'
  column = dict(metric='validation/exact_match', configs={'t5': target}, folder=folder, times=times)
  if scale == 'tiny':
    column |= dict(metric='validation/loss', better='min', times=1, folder='')
  if scale == 'small':
    often = {'steps': steps, 'log_every': steps // 5, 'eval_every': steps, 'save_every': steps}
    optim = {'optim': dict(name='adamw', rate=5e-4, schedule='linear', warmup=0.1)}
    rows = {'data.length': 128, 'data.batch_size': 32}
    column['keys'] = _ON_A_LAPTOP | rows | optim | often
  return {name: column}


def t5_columns(scale: str) -> dict[str, dict[str, Any]]:
  """The columns of T5's tables; below the paper's scale they stay empty, and SST-2 stands beside them."""
  if scale != 'paper':
    why = 'below the scale of the paper SST-2 alone is written as text'
    return {name: dict(empty=why) for name in T5_COLUMNS} | written(scale, 'SST-2')
  together = dict(configs={'t5': 'experiments/t5/mixture.py'}, times=100)
  tasks = {name: dict(together, metric=metric) for name, metric in _T5_GLUE.items()}
  for name, (word, metric, times) in (_T5_SUPER_GLUE | _T5_OTHERS).items():
    configs = {'t5': f'experiments/t5/tasks.py:{word}'}
    tasks[name] = dict(metric=f'validation/{metric}', configs=configs, times=times)
  alone = 'each task is fine-tuned alone, where the paper fine-tunes on all of the benchmark at once'
  means = {
    'GLUE': dict(over=tuple(_T5_GLUE), note='one metric a task, without WNLI'),
    'SuperGLUE': dict(over=tuple(_T5_SUPER_GLUE), note=f'{alone}; one metric a task'),
  }
  return {name: (means | tasks)[name] for name in (*T5_COLUMNS, *_T5_GLUE, *_T5_SUPER_GLUE)}


def glue(scale: str, *others: str) -> dict[str, dict[str, Any]]:
  """The average of GLUE behind the columns of its tasks; below the paper's scale it stays empty beside `others`."""
  if scale == 'paper':
    return {'GLUE': dict(over=GLUE, note='the mean of eight tasks, without WNLI'), **columns(scale, *GLUE)}
  return {'GLUE': dict(empty=_ABSENT['GLUE']), **columns(scale, *others)}


def features(scale: str, *, layers: Sequence[int], join: str) -> dict[str, Any]:
  """Changes of a tagger: two layers of LSTM read layers of a frozen trunk."""
  return _FROZEN | {'adapter.layers': tuple(layers), 'adapter.join': join, 'adapter.lstm_dim': _LSTM_DIM[scale]}


def pretraining(
  scale: str, config: str, *words: str, small: Mapping[str, Any] | None = None, **keys: Any
) -> dict[str, Any]:
  """The config and the keys of a row.

  Args:
    scale: of the table.
    config: below experiments/.
    words: of the config.
    small: sizes of the trunk at the small scale; None for `SIZES`.
    **keys: changes at every scale, with two underscores for a dot: `objective__masking='static'`.
  """
  own = dotted(keys)
  words = (*words, 'quick') if scale == 'tiny' else words
  target = f'experiments/{config}{":" if words else ""}{",".join(words)}'
  if scale == 'small':
    own = _PRETRAINING | {'model.overrides': dict(SIZES if small is None else small)} | own
  return dict(config=target, keys=own)


def bert(scale: str, config: str, **keys: Any) -> dict[str, Any]:
  """The config and the keys of a row of BERT, which learns next sentences at the paper's scale alone; see
  `pretraining`."""
  return pretraining(scale, config, *(() if scale == 'paper' else ('mlm',)), **keys)


def electra(scale: str, config: str, **keys: Any) -> dict[str, Any]:
  """The config and the keys of a row of ELECTRA, when small with a generator half as wide as the trunk; see
  `pretraining`."""
  small = dict(SIZES, embed_dim=128)
  generator = dict(small, hidden_dim=64, mlp_dim=256, num_heads=1)
  keys |= dict(objective__generator__overrides=generator) if scale == 'small' else {}
  return pretraining(scale, config, small=small, **keys)


def distilled(
  scale: str, teacher_config: str, config: str, *, objective: Mapping[str, Any] | None = None, fresh: bool = False
) -> list[dict[str, Any]]:
  """BERT as a teacher, and DistilBERT as the row behind it.

  Args:
    scale: of the table.
    teacher_config: below experiments/.
    config: of the student.
    objective: changes of the student's objective.
    fresh: the student begins with parameters of its own.
  """
  rate = masks(scale, lifted=True)
  deep = dict(SIZES, num_layers=4)
  teacher = bert(scale, teacher_config, small=deep, **rate)
  before = '{before}'  # the run of the teacher
  begin = [dict(source=before, from_='', to='teacher')]
  if not fresh:
    layers = dict(paper=(0, 2, 4, 7, 9, 11), small=(0, 2), tiny=(0, 1))[scale]
    begin += [dict(source=before, layers=layers), dict(source=before, from_='mlm', to='mlm')]
  keys = {f'objective.{key}': value for key, value in (objective or {}).items()}
  if scale == 'small':
    keys |= {'objective.teacher': dict(name='bert', variant='bert-base', overrides=deep)}
    keys |= {'objective.where.rate': 0.4, 'optim.scale': (('teacher/.*', None), ('.*', 1.0)), 'epochs': None}
  student = pretraining(scale, config, small=SIZES)
  return [teacher, dict(student, keys=student['keys'] | keys | {'init_from': tuple(begin)})]


def target(scale: str, config: str, *words: str, small: str = 'small') -> str:
  """A config below experiments/ with its words; `small` is the word of its own small size, '' where it has none."""
  more = dict(paper='', small=small, tiny='quick')[scale]
  words = (*words, more) if more else words
  return f'experiments/{config}{":" if words else ""}{",".join(words)}'


def staged(scale: str, config: str, *words: str, small: str = 'small', **keys: Any) -> dict[str, Any]:
  """As `pretraining`, of a config that has a small size of its own, which the word `small` names."""
  own = dotted(keys)
  return dict(config=target(scale, config, *words, small=small), keys=on_a_laptop(scale) | own)


def on_a_laptop(scale: str) -> dict[str, Any]:
  """Changes of a config that has the sizes of a scale already: one device, and no step is chosen by a score."""
  return {} if scale == 'paper' else dict(_ON_A_LAPTOP)


def elmo_rows(scale: str, config: str, rows: Mapping[str, tuple[Any, ...]]) -> dict[str, dict[str, Any]]:
  """Rows of ELMo's tables over one trunk.

  Args:
    scale: of the table.
    config: of the pre-training, below experiments/.
    rows: name -> (side, layers, lambda, published numbers of the first columns of `ELMO`).
  """
  made = {}
  for name, (side, layers, penalty, published) in rows.items():
    tuning = {'adapter.side': side, 'adapter.layers': layers, 'adapter.penalty': penalty}
    made[name] = staged(scale, config, small='cut')
    made[name] |= dict(family='elmo', tuning=tuning, published=by_column(ELMO[:3], published))
  return made


def elmo_columns(scale: str) -> dict[str, dict[str, Any]]:
  """Those of the paper, of which one stays empty, and two sets whose words are labelled here."""
  # column: (config, its word, folder, metric, times which it is printed)
  sets = {
    'SQuAD': ('elmo/pairs.py', 'squad', 'squad', 'f1', 1),
    'SNLI': ('elmo/pairs.py', 'snli', 'snli', 'accuracy', 100),
    'POS': ('elmo/tagging.py', 'ewt', 'universal_dependencies_en_ewt', 'accuracy', 100),
    'WNUT-17': ('elmo/tagging.py', 'wnut17', 'wnut_17', 'accuracy' if scale == 'tiny' else 'f1', 100),
  }
  columns: dict[str, dict[str, Any]] = {name: dict(empty='its data are not free') for name in ELMO}
  for name, (config, word, folder, metric, times) in sets.items():
    columns[name] = dict(
      metric=f'validation/{metric}',
      configs={'elmo': target(scale, config, word, small='')},
      keys=on_a_laptop(scale),
      folder='' if scale == 'tiny' else folder,
      times=times,
    )
  if scale == 'small':
    columns['SQuAD'] = dict(empty=_NOT_IN_SMALL['SQuAD F1'])
    # per cent of validation: 34 to 36 after 600 updates, without ELMo 38 after 2,000; a linear model of words 37 to 42
    columns['SNLI'] = dict(empty='the few rows among the small data leave these networks near chance')
  return columns


def ulmfit(scale: str, *rows: str, labels: int | None = None) -> dict[str, dict[str, Any]]:
  """The columns of ULMFiT by task: error rates of a classifier behind a language model of the text of the task.

  Args:
    scale: of the table.
    *rows: words of experiments/ulmfit/classify.py, which are families of the table's rows.
    labels: number of labelled texts, drawn; None for nine tenths of them all, in small for 500 of IMDb's.

  Returns:
    The columns; those that report the test set in place of the paper's validation rows have a note that says so.
  """
  columns = {}
  sets = {'IMDb': ('imdb', 'imdb_reviews'), 'TREC-6': ('trec', 'trec')}
  sets |= {'AG': ('ag', '')} if scale == 'paper' else {}
  for task, (word, folder) in sets.items():
    dropout = {'model.overrides.dropout': 1.0}
    rates = {f'model.overrides.{name}': rate for name, rate in common.AWD_DROPOUT.items()}
    keys, between = on_a_laptop(scale) | dropout | rates, on_a_laptop(scale) | dropout
    if scale == 'small' or (labels and scale == 'paper'):  # a tenth of little is too little to score
      keys |= {'eval': {'test': dict(data=dict(split='test'))}, 'best': None}
    is_long = task == 'IMDb' and scale == 'small'  # a review has 200 tokens, a question 12
    drawn = labels or (500 if is_long else None)
    if drawn and scale != 'tiny':
      keys |= {'data.split': f'train[:{drawn}shuffled]', 'data.batch_size': 16 if is_long else 32}
      keys |= {'epochs': 50} if scale == 'paper' else {'epochs': None, 'steps': 300}
    if labels and scale != 'tiny':
      between |= {'data.split': keys['data.split'], 'data.batch_size': 8}
    cut = ''
    if is_long:
      keys |= {'data.length': 140, 'data.buckets': (70,)}
      between |= {'epochs': 3}
      cut = f'of {"" if labels else "500 "}reviews cut at 140 tokens, which the language model reads three times; '
    elif scale == 'small':
      keys |= {'adapter.norms': True}  # its runs have a LayerNorm where the paper has a batch norm
      cut = 'with a LayerNorm in the place of each batch norm; '
    columns[task] = dict(
      metric='test/accuracy' if 'eval' in keys else 'validation/accuracy',
      better='min',
      configs={row: target(scale, 'ulmfit/classify.py', word, row) for row in rows},
      keys=keys,
      between=dict.fromkeys(rows, target(scale, 'ulmfit/fine_tune.py', word)),
      between_keys=between,
      folder='' if scale == 'tiny' else folder,
      times=-100,
      plus=100,
    )
    if 'eval' in keys:
      columns[task]['note'] = (
        f'{cut}errors of the test set, where the paper has those of rows held out of the training set'
      )
  return columns if scale == 'paper' else columns | {'AG': dict(empty=_NOT_IN_SMALL['AG'])}


def is_medium(arg: str) -> bool:
  """Whether the words of a table name its medium size, the only word that it takes."""
  common.check_words(arg, ('medium',), complaint='this table takes no word')
  return bool(common.words(arg))


def downstream(
  scale: str, config: str, model: str, columns: Mapping[str, Mapping[str, Any]], *, medium: bool = False
) -> dict[str, Any]:
  """The table of a network of 5 M parameters on tasks: pre-trained, and begun with fresh parameters.

  Args:
    scale: of the table; the networks are the same at small and paper, which has the task sets of TFDS.
    config: of the pre-training, below experiments/.
    model: a word of it, and the family of the columns' configs.
    columns: from `task`, `trec` and `asked`.
    medium: the networks have 30 M parameters, and learn each task for three times as many updates.
  """
  words = (model, 'medium') if medium else (model,)
  row = dict(config=target(scale, config, *words, small=''), family=model)
  if medium and scale != 'tiny':
    columns = {name: column | dict(keys=_on_a_gpu(column['keys'])) for name, column in columns.items()}
  zero_shot = [name for name, column in columns.items() if column.get('of') == 'evaluation']
  scratch = dict(row, start='scratch', without=dict.fromkeys(zero_shot, 'without any update it knows nothing'))
  trivial = [
    dict(column=name, better='pretrained', than=than) for name, column in columns.items() for than in column['trivial']
  ]
  return dict(
    title=f'A {model.upper()} of {30 if medium else 5} M parameters on tasks, pre-trained and from scratch',
    paper='No table of a paper: the question of all of them, asked of networks that '
    + ('a GPU pre-trains in minutes' if medium else 'a laptop pre-trains in an hour'),
    mark='none',
    rows={'pretrained': row, 'from scratch': scratch},
    columns=columns,
    claims=claims([name for name in columns if name not in zero_shot], ('pretrained', 'from scratch')) + trivial,
    tuning_seeds=1 if scale == 'tiny' else 3,
    reference='' if model == 'bart' else 'pretrained',  # a BART writes what it reads: its losses are not of plain text
  )


def _on_a_gpu(keys: Mapping[str, Any]) -> dict[str, Any]:
  """The keys of a column for networks twice as wide: half the rate, three times the updates, whole batches."""
  updates = {key: 3 * keys[key] for key in ('steps', 'log_every', 'eval_every', 'save_every') if key in keys}
  rate = {'optim.rate': keys['optim.rate'] / 2} if 'optim.rate' in keys else {}
  return keys | updates | rate | {'accumulate': 1, 'execution': dict(dtype='bfloat16')}


def task(
  scale: str,
  model: str,
  config: str,
  *words: str,
  folder: str,
  metric: str,
  steps: int,
  times: float = 100,
  trivial: Mapping[str, float] | None = None,
  head: float = 1.0,
  **keys: Any,
) -> dict[str, Any]:
  """A column of `downstream`.

  Args:
    scale: of the table.
    model: as there.
    config: of the fine-tuning, below experiments/.
    *words: of the config.
    folder: of the data, below the folder that `--data` names.
    metric: as `result.json` names it.
    steps: number of updates.
    times: what it is multiplied by.
    trivial: scores that need no network.
    head: how many times as fast as the trunk the head learns. Where one class is frequent, a trunk that learns as fast
      as the head learns the class in place of the words: behind 320 updates of WNUT-17 the vectors of all words were
      one (cosines of 1.000), and no name was found. Ten times as fast, the bias of the head takes the class over.
    **keys: changes of the config, with two underscores for a dot.
  """
  column = dict(metric=metric, configs={model: target(scale, config, *words, small='')}, trivial=trivial or {})
  if scale == 'tiny':
    return column | dict(metric=f'{metric.partition("/")[0]}/loss', better='min', trivial={})
  often = {'steps': steps, 'log_every': steps // 5, 'eval_every': steps, 'save_every': steps}
  own = dotted(keys)
  shape = {} if 'data.length' in own else _ROWS
  # at 5e-4, the rate of networks half as wide, SST-2 stays at chance in training; 2e-4 learns it, 3e-5 more slowly
  rate = {'optim.rate': 2e-4 * head}
  if head != 1.0:
    rate['optim.scale'] = (('trunk/.*', 1 / head), ('.*', 1.0))
  return column | dict(keys=_TUNING | rate | shape | often | own, folder=folder, times=times)


def asked(
  scale: str,
  model: str,
  config: str,
  *words: str,
  folder: str,
  metric: str,
  trivial: Mapping[str, float] | None = None,
  **keys: Any,
) -> dict[str, Any]:
  """A column of `downstream` that asks the pre-trained network as it is, without an update; arguments as of `task`."""
  column = dict(of='evaluation', metric=metric, configs={model: target(scale, config, *words, small='')}, times=100)
  if scale == 'tiny':
    return column | dict(metric=f'{metric.partition("/")[0]}/loss', better='min', times=1, trivial={})
  own = dotted(keys)
  return column | dict(folder=folder, trivial=trivial or {}, keys=_ON_A_LAPTOP | own)


def trec(scale: str, model: str, *, steps: int, **keys: Any) -> dict[str, Any]:
  """The column of TREC, six classes of questions, of `downstream`.

  Args:
    scale: of the table.
    model: as there.
    steps: number of updates.
    **keys: changes of the config, as of `task`.
  """
  own = dict(data__path='tfds:trec', data__split='train', data__layout='bert') | keys
  own |= dict(data__fields=('text',), data__label='label-coarse', adapter__classes=6, adapter__pool='mean')
  own |= dict(eval={'test': dict(data=dict(split='test'))})
  return task(
    scale, model, 'finetune/classify.py', folder='trec', metric='test/accuracy', steps=steps,
    trivial={'most frequent class': 18.8}, **own,
  )  # fmt: skip


def masks(scale: str, *, lifted: bool = False) -> dict[str, Any]:
  """Changes of a pre-training, keywords of `pretraining`, below the scale of the paper: 40 % of the tokens are masked.

  Args:
    scale: of the table.
    lifted: rows may have more masks than the bound of the config.
  """
  if scale == 'paper':
    return {}
  return dict(objective__where__rate=0.4) | (dict(objective__where__max_count=None) if lifted else {})


def masked(scale: str, then: str = 'so that little text teaches more', *, done: str = 'masked') -> str:
  """The note of a table whose rows take `masks`."""
  return '' if scale == 'paper' else f'Here 40 % of the tokens are {done}, {then}.'


def by_column(columns: Sequence[str], published: Sequence[float]) -> dict[str, float]:
  """The published numbers of a row, one for each of these columns."""
  return dict(zip(columns, published, strict=True))


def measured(columns: Mapping[str, Mapping[str, Any]]) -> list[str]:
  """The columns that do not stay empty."""
  return [name for name, column in columns.items() if 'empty' not in column]


def claims(columns: Sequence[str], *pairs: tuple[str, str]) -> list[dict[str, str]]:
  """A claim for each pair (better row, than row) and column."""
  return [dict(column=column, better=better, than=than) for better, than in pairs for column in columns]


def claimed(
  columns: Mapping[str, Mapping[str, Any]],
  rows: Mapping[str, Mapping[str, Any]],
  *pairs: tuple[str, str],
  asked: Sequence[str] = (),
) -> list[dict[str, str]]:
  """A claim for each pair (better row, than row) and each column in which the paper's numbers say so.

  A column that stays empty at this scale has no claim: the table says below why it is empty.

  Args:
    columns: of the table.
    rows: of the table.
    *pairs: what the paper concludes.
    asked: columns in which it is asked here as well, where the paper has not both numbers.
  """

  def says(column: str, better: str, than: str) -> bool:
    first, second = (rows[row].get('published', {}).get(column) for row in (better, than))
    if first is None or second is None:
      return column in asked
    return first < second if columns[column].get('better') == 'min' else first > second

  def is_measured(column: str, *both: str) -> bool:
    return not any(rows[row].get('empty') or column in rows[row].get('without', {}) for row in both)

  return [
    dict(column=column, better=better, than=than)
    for better, than in pairs
    for column in measured(columns)
    if is_measured(column, better, than) and says(column, better, than)
  ]
