"""Tables of pre-trained networks of 5 M or 30 M parameters on tasks."""

from collections.abc import Mapping
from typing import Any

from experiments import common
from experiments.tables.shared import claims, scales


def is_medium(arg: str) -> bool:
  """Return whether the argument of a table is its medium size."""
  common.check_words(arg, ('medium',), complaint='this table takes no word')
  return bool(common.words(arg))


def table(
  scale: str, config: str, model: str, columns: Mapping[str, Mapping[str, Any]], *, medium: bool = False
) -> dict[str, Any]:
  """Return the table of a network on tasks, pre-trained and from scratch.

  Args:
    scale: of the table; the networks are the same at small and paper, which has the task sets of TFDS.
    config: of the pre-training, below experiments/.
    model: a word of it, and the family of the columns' configs.
    columns: from `task`, `trec` and `asked`.
    medium: the networks have 30 M parameters, and learn each task for three times as many updates.
  """
  words = (model, 'medium') if medium else (model,)
  row = dict(config=scales.target(scale, config, *words, small=''), family=model)
  if medium and scale != 'tiny':
    columns = {name: column | dict(keys=_on_a_gpu(column['keys'])) for name, column in columns.items()}
  zero_shot = [name for name, column in columns.items() if column.get('of') == 'evaluation']
  scratch = dict(row, start='scratch', without=dict.fromkeys(zero_shot, 'without any update it knows nothing'))
  trivial = [
    dict(column=name, better='pretrained', than=than)
    for name, column in columns.items()
    for than in column['trivial']
    if than != 'bag of words'
  ]
  return dict(
    title=f'A {model.upper()} of {30 if medium else 5} M parameters on tasks, pre-trained and from scratch',
    paper='No table of a paper: the question of all of them, asked of networks that '
    + ('a GPU pre-trains in minutes' if medium else 'a laptop pre-trains in an hour'),
    mark='none',
    rows={'pretrained': row, 'from scratch': scratch},
    columns=columns,
    claims=claims.claims([name for name in columns if name not in zero_shot], ('pretrained', 'from scratch')) + trivial,
    tuning_seeds=1 if scale == 'tiny' else 3,
    reference='' if model == 'bart' else 'pretrained',  # a BART writes what it reads: its losses are not of plain text
  )


def _on_a_gpu(keys: Mapping[str, Any]) -> dict[str, Any]:
  """Return keys for a network twice as wide.

  It has half the rate, three times the updates, and whole batches.
  """
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
  """Return a column of `table`.

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
  column = dict(metric=metric, configs={model: scales.target(scale, config, *words, small='')}, trivial=trivial or {})
  if scale == 'tiny':
    return column | dict(metric=f'{metric.partition("/")[0]}/loss', better='min', trivial={})
  own = scales.dotted(keys)
  shape = {} if 'data.length' in own else scales.ROWS
  # at 5e-4, the rate of networks half as wide, SST-2 stays at chance in training; 2e-4 learns it, 3e-5 more slowly
  rate = {'optim.rate': 2e-4 * head}
  if head != 1.0:
    rate['optim.scale'] = (('trunk/.*', 1 / head), ('.*', 1.0))
  return column | dict(keys=scales.TUNING | rate | shape | scales.every(steps) | own, folder=folder, times=times)


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
  """Return a column that evaluates the pre-trained network without an update.

  Arguments are those of `task`.
  """
  column = dict(
    of='evaluation', metric=metric, configs={model: scales.target(scale, config, *words, small='')}, times=100
  )
  if scale == 'tiny':
    return column | dict(metric=f'{metric.partition("/")[0]}/loss', better='min', times=1, trivial={})
  own = scales.dotted(keys)
  return column | dict(folder=folder, trivial=trivial or {}, keys=scales.ON_A_LAPTOP | own)


def blimp(scale: str, model: str, **keys: Any) -> dict[str, Any]:
  """Return the column of BLiMP, minimal pairs without an update."""
  chance = {'chance': 50.0}
  return asked(scale, model, 'blimp/pairs.py', folder='blimp', metric='test/accuracy', trivial=chance, **keys)


def trec(scale: str, model: str, *, steps: int, **keys: Any) -> dict[str, Any]:
  """Return the column of TREC, six classes of questions.

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
    **(dict(trivial={'most frequent class': 18.8, 'bag of words': 90.8}) | own),
  )  # fmt: skip
