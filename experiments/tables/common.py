"""What tables share: three scales, the task sets, and how a pre-training becomes small.

paper   the configs as they are
small   5 M parameters or fewer, 2,000 steps of 64 rows of 64 tokens on the text in runs/data/english, or in --corpus,
        with the vocabulary that
        python -m plm_jax.vocab train --source=runs/data/english --name=byte_bpe --size=8000 \\
          --out=runs/vocab/small
        makes; task sets as TFDS has them, or in --data
tiny    `quick` configs: it shows that a table works, and nothing else
"""

from collections.abc import Mapping, Sequence
from typing import Any

SIZES = dict(num_layers=4, num_heads=4, hidden_dim=256, mlp_dim=1024, dropout=0.0, attention_dropout=0.0)
T5 = dict(num_layers=2, num_decoder_layers=2, num_heads=4, head_dim=64, hidden_dim=256, mlp_dim=1024, dropout=0.0)
SENTINELS = tuple(f'<extra_id_{k}>' for k in range(100))
_ON_A_LAPTOP = {'sharding': {}, 'execution': dict(layers='loop'), 'accumulate': 1, 'best': None}
_PRETRAINING = _ON_A_LAPTOP | {
  'vocab': dict(name='byte_bpe', path='runs/vocab/small'),
  'data.path': 'runs/data/english',
  'data.length': 64,
  'data.batch_size': 64,
  'optim': dict(name='adamw', rate=1e-3, schedule='linear', warmup=0.05, decay=0.01, clip=1.0),
  'steps': 2_000,
  'log_every': 100,
  'eval_every': 2_000,
  'save_every': 500,
}
_TUNING = _ON_A_LAPTOP | {
  'optim.rate': 5e-4,
  'epochs': None,
}
_ROWS = {'data.length': 128, 'data.buckets': (16, 32, 64), 'data.batch_size': 32}
_WINDOWS = {'data.length': 256, 'data.stride': 96, 'data.batch_size': 16}
_GLUE = {'bert': 'bert/glue.py', 'gpt': 'gpt/classify.py', 'bart': 'bart/glue.py', 'xlnet': 'xlnet/fine_tune.py'}
_PAIRS = _GLUE | {'gpt': 'gpt/similarity.py'}  # GPT reads both orders of a pair
_SQUAD = {'bert': 'bert/squad.py', 'gpt': 'bert/squad.py', 'bart': 'bart/squad.py'}
# name: folder, files by family, their word, the metric that is printed, times which it is printed, steps when small
_TASKS = {
  'SST-2': ('glue_sst2', _GLUE, ':sst2', 'validation/accuracy', 100, 1_000),
  'CoLA': ('glue_cola', _GLUE, ':cola', 'validation/matthews', 100, 600),
  'MRPC': ('glue_mrpc', _PAIRS, ':mrpc', 'validation/accuracy', 100, 350),
  'RTE': ('glue_rte', _GLUE, ':rte', 'validation/accuracy', 100, 250),
  'STS-B': ('glue_stsb', _PAIRS, ':stsb', 'validation/spearman', 100, 600),
  'MNLI': ('glue_mnli', _GLUE, ':mnli', 'validation_matched/accuracy', 100, 1_000),
  'WNUT-17': ('wnut_17', {'bert': 'tagging/fine_tune.py'}, ':wnut17,bert', 'validation/f1', 100, 600),
  'SQuAD F1': ('squad', _SQUAD, '', 'validation/f1', 1, 1_500),  # a score between 0 and 100 already
}
_ABSENT = {
  'SQuAD 2.0': 'its training set is not among the small data',
  'RACE': 'its licence forbids a copy among the small data',
  'NER': 'the data of CoNLL-2003 are not among the small data',
  'NER by features': 'the data of CoNLL-2003 are not among the small data',
  'QNLI': 'it is not among the small data',
  'XSum': 'it is not among the small data',
  'CNN/DM': 'it is not among the small data',
  'ELI5': 'it is not among the small data',
  'ConvAI2': 'it is not among the small data',
}


def columns(scale: str, *names: str) -> dict[str, dict[str, Any]]:
  """Columns by name: tasks that are measured, and others that stay empty with the reason."""
  return {name: dict(empty=_ABSENT[name]) if name in _ABSENT else _column(scale, name) for name in names}


def _column(scale: str, name: str) -> dict[str, Any]:
  folder, by_family, word, metric, times, steps = _TASKS[name]
  configs = {family: f'experiments/{file}{word}' for family, file in by_family.items()}
  if scale == 'tiny':
    configs = {family: f'{target}{"," if word else ":"}quick' for family, target in configs.items()}
    scored = (
      metric if name == 'SQuAD F1' else f'{metric.partition("/")[0]}/accuracy'
    )  # of other rows, that have classes
    return dict(metric=scored, configs=configs, times=times)
  column = dict(metric=metric, configs=configs, folder=folder, times=times)
  if scale == 'small':
    shape = _WINDOWS if name == 'SQuAD F1' else _ROWS
    often = {'steps': steps, 'log_every': steps // 5, 'eval_every': steps, 'save_every': steps}
    column['keys'] = _TUNING | shape | often
  return column


def written(scale: str, name: str) -> dict[str, dict[str, Any]]:
  """A task of GLUE for T5, which writes the label as text."""
  folder, _, word, _, times, steps = _TASKS[name]
  target = f'experiments/t5/tasks.py{word}{",quick" if scale == "tiny" else ""}'
  column = dict(metric='validation/exact_match', configs={'t5': target}, folder=folder, times=times)
  if scale == 'tiny':
    column |= dict(metric='validation/loss', better='min', times=1, folder='')
  if scale == 'small':
    often = {'steps': steps, 'log_every': steps // 5, 'eval_every': steps, 'save_every': steps}
    optim = {'optim': dict(name='adamw', rate=5e-4, schedule='linear', warmup=0.1)}
    rows = {'data.length': 128, 'data.batch_size': 32}
    column['keys'] = _ON_A_LAPTOP | rows | optim | often
  return {name: column}


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
  own = {key.replace('__', '.'): value for key, value in keys.items()}
  words = (*words, 'quick') if scale == 'tiny' else words
  target = f'experiments/{config}{":" if words else ""}{",".join(words)}'
  if scale == 'small':
    own = _PRETRAINING | {'model.overrides': dict(SIZES if small is None else small)} | own
  return dict(config=target, keys=own)


def claims(columns: Sequence[str], *pairs: tuple[str, str]) -> list[dict[str, str]]:
  """A claim for each pair (better row, than row) and column."""
  return [dict(column=column, better=better, than=than) for better, than in pairs for column in columns]
