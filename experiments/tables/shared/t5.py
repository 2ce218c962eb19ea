"""Columns of T5's tables."""

from typing import Any

from experiments.tables.shared import scales, tasks

SIZES = dict(num_layers=2, num_decoder_layers=2, num_heads=2, head_dim=64, hidden_dim=128, mlp_dim=512, dropout=0.0)
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
COLUMNS = ('GLUE', 'CNN/DM', 'SQuAD', 'SuperGLUE', 'WMT en-de', 'WMT en-fr', 'WMT en-ro')  # of its tables


def written(scale: str, name: str) -> dict[str, dict[str, Any]]:
  """Return a GLUE task for T5, which writes the label as text."""
  task = tasks.TASKS[name]
  target = f'experiments/t5/tasks.py:{task.word}{",quick" if scale == "tiny" else ""}'
  column = dict(metric='validation/exact_match', configs={'t5': target}, folder=task.folder, times=task.times)
  if scale == 'tiny':
    column |= dict(metric='validation/loss', better='min', times=1, folder='')
  if scale == 'small':
    optim = {'optim': dict(name='adamw', rate=5e-4, schedule='linear', warmup=0.1)}
    rows = {'data.length': 128, 'data.batch_size': 32}
    column |= tasks.frequent(name, scale)
    column['keys'] = scales.ON_A_LAPTOP | rows | optim | scales.every(task.steps)
  return {name: column}


def columns(scale: str) -> dict[str, dict[str, Any]]:
  """Return the columns of T5's tables.

  Below the paper's scale they are empty, and SST-2 follows them.
  """
  if scale != 'paper':
    why = 'below the scale of the paper SST-2 alone is written as text'
    return {name: dict(empty=why) for name in COLUMNS} | written(scale, 'SST-2')
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
  return {name: (means | tasks)[name] for name in (*COLUMNS, *_T5_GLUE, *_T5_SUPER_GLUE)}
