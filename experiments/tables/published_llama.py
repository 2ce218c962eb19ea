"""LLaMA's common sense without training and with demonstrations, as GPT-3 has it (Touvron et al. 2023, Table 3).

plm-jax tables experiments/tables/published_llama.py --scale=published --weights=DIR --workdir=runs/tables --print
plm-jax tables experiments/tables/published_llama.py:llama-7b --scale=published --weights=DIR --workdir=runs/tables

Words after the colon: rows. Options are compared by likelihood over characters, as in LLaMA's paper. Demonstrations are
drawn from the training set. HellaSwag here has 1,007 of the 10,042 examples of the validation set, so that a number is
compared with the set of TensorFlow Datasets alone. Sources: the paper's numbers could not be checked against its text.
"""

from experiments.tables.shared import published
from experiments.tables.shared.published import SCALES as SCALES

FAMILY = 'gpt/prompt.py'
# row: HellaSwag, PIQA; zero-shot
PAPER = {'llama-7b': (76.1, 79.8), 'llama-13b': (79.2, 80.1)}
FEW = {'eval.validation.data.split': 'validation[:20]'}  # on a CPU that others use too


def options(task, folder, shots, whole):
  """Return a column of options, with a number of demonstrations."""
  asked = dict(split='validation', **({'shots': dict(count=shots, split='train', draws=1)} if shots else {}))
  keys = {'eval': {'validation': dict(data=asked)}, 'best': None, 'execution': dict(layers='loop')}
  keys |= {'data.path': f'tfds:{task}', 'adapter.choose': 'characters', 'adapter.logit_rows': 1}
  keys |= {'data.batch_size': 1, 'data.length': 960 if shots else 256}
  column = published.column('validation/accuracy_characters', [f'gpt/prompt.py:{task}'], of='evaluation', keys=keys)
  return column | dict(folder=folder, times=100, whole=whole, configs={FAMILY: next(iter(column['configs'].values()))})


def get_table(scale, arg=''):
  """Takes the scale; `arg` rows."""
  columns = {
    'HellaSwag, 0-shot': options('hellaswag', 'hellaswag', 0, 10_042),
    'PIQA, 0-shot': options('piqa', '', 0, 1_838),
    'HellaSwag, 5-shot': options('hellaswag', 'hellaswag', 5, 10_042),
  }
  rows = {name: dict(published=dict(zip(columns, numbers, strict=False))) for name, numbers in PAPER.items()}
  rows['SmolLM2-135M-Instruct'] = {}
  few = dict.fromkeys((name for name in columns if name.startswith('HellaSwag')), FEW)
  rows['SmolLM2-135M-Instruct-4bit'] = dict(limits=few)
  return dict(
    title='Common sense without training, from published weights',
    paper='Touvron et al. 2023, Table 3',
    mark='D',
    rows=published.rows(rows, arg, family=FAMILY),
    columns=columns,
    tuning_seeds=1,
  )
