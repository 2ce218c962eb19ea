"""Fine-tune released weights here and by a loop of PyTorch over transformers, at equal settings.

    python -m benchmarks.transfer --weights=FOLDER --data=FOLDER [--tasks=sst2,mrpc,stsb] [--recipes=adamw,bert_adam]

FOLDER of --weights is a BERT in Hugging Face's form. That of --data has a folder for each task. Our side is the task,
step and evaluation of `plm-jax train --config=experiments/finetune/classify.py`. The other is
`AutoModelForSequenceClassification` with its own pooler, dropout and new head. Both see the same batches in the same
order, and both have the same rate, schedule, clipping, decay and optimiser:

adamw      Adam with bias correction: ours, and torch.optim.AdamW
bert_adam  Adam without it, as in BERT's released code: ours, and the ten lines of `BertAdam` below
usual      ours: the config unchanged, which is `bert_adam`. Theirs: `run_glue.py` as its page shows it, AdamW at 2e-5
           without warmup, and a linear decay. Epochs and batches are those of the other recipes.

Scores are those of the test split, or of the validation split of GLUE: the mean of the seeds, and the lowest and
highest. "CPU s" is processor time of all threads for the steps, without the first one of each length, which XLA
compiles. `--out` appends one JSON object a run, and runs that the file has are not repeated.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import finetune
from plm_jax import config, optim
from plm_jax.cli import malloc
from plm_jax.config import overrides
from plm_jax.core import sharding
from plm_jax.optim import schedules
from plm_jax.scores import correlation
from plm_jax.training import parts, step
from plm_jax.training.before import model_from
from plm_jax.training.init_sources import init_params_from

CONFIG = 'experiments/finetune/classify.py'
SIDES = ('plm_jax', 'transformers')


class Set(NamedTuple):
  """A data set: folder, fields, label, number of classes (0 for a regression), split of its test."""

  folder: str
  fields: tuple[str, ...]
  label: str = 'label'
  classes: int = 2
  tested: str = 'validation'


SETS = {
  'trec': Set('trec', ('text',), 'label-coarse', 6, 'test'),
  'sst2': Set('glue_sst2', ('sentence',)),
  'mrpc': Set('glue_mrpc', ('sentence1', 'sentence2')),
  'stsb': Set('glue_stsb', ('sentence1', 'sentence2'), classes=0),
  'rte': Set('glue_rte', ('sentence1', 'sentence2')),
  'cola': Set('glue_cola', ('sentence',)),
}
# what the recipes change of the config: on our side, and on the other
EQUAL = {name: dict(name=name) for name in ('adamw', 'bert_adam')}
RUN_GLUE = dict(name='adamw', rate=2e-5, schedule='linear', warmup=0, decay=0.0, eps=1e-8)
RECIPES = {name: (changes, changes) for name, changes in EQUAL.items()} | {'usual': ({}, RUN_GLUE)}


class Run(NamedTuple):
  """A fine-tuning: its task, recipe, side and seed."""

  task: str
  recipe: str
  side: str
  seed: int


class Trained(NamedTuple):
  """What a side made of the batches: outputs of the test rows [n, c], and CPU seconds of its timed steps."""

  outputs: np.ndarray
  seconds: float
  steps: int


def settings_of(arguments: argparse.Namespace, run: Run) -> dict[str, Any]:
  """Resolve the config of a run, with the optimiser of its side."""
  its = SETS[run.task]
  kind = 'class' if its.classes else 'regression'
  changes = {
    'model.from': arguments.weights, 'data.path': f'{arguments.data}/{its.folder}', 'data.fields': its.fields,
    'data.split': f'train[:{arguments.rows}]', 'data.label': its.label, 'data.kind': kind, 'data.layout': 'bert',
    'data.buckets': (16, 32, 64), 'data.batch_size': arguments.batch, 'adapter.kind': kind,
    'adapter.classes': its.classes or 1, 'eval.validation.data.split': f'{its.tested}[:{arguments.tested}]',
    'best': None, 'steps': arguments.steps, 'epochs': None, 'sharding': {}, 'seed': run.seed,
    'optim.rate': arguments.rate,
  }  # fmt: skip
  changes |= {f'optim.{key}': value for key, value in RECIPES[run.recipe][SIDES.index(run.side)].items()}
  words = [(key, value if isinstance(value, str) else repr(value)) for key, value in changes.items()]
  written, rest = model_from.expand(config.load(CONFIG), words, None)
  return config.resolve(overrides.apply(written, rest)[0])


# Our side ------------------------------------------------------------------------------------------------------------


@functools.cache
def compiled(key: str) -> tuple[Any, ...]:
  """Build what the seeds of a task and recipe share; `key` is their settings as JSON."""
  settings = json.loads(key)
  vocab = parts.make_vocab(settings)
  made = parts.make_parts(settings, vocab)
  layout = parts.make_layout(settings)
  spec = parts.make_source(settings['data'], vocab, seed=0, reader=made).spec
  shapes = step.abstract_params(made.task, spec)
  tx = optim.make(params=shapes, steps=settings['steps'], trains=made.task.trains, **settings['optim'])
  update = functools.partial(step.train_step, task=made.task, tx=tx, random=settings['execution']['random'])
  maker = step.state_maker(made.task, tx, spec, layout=layout)
  predict = jax.jit(functools.partial(step.predict_step, task=made.task))
  return made, layout, maker, jax.jit(update, donate_argnums=0), predict


def ours(settings: Mapping[str, Any], train: Sequence[finetune.Batch], test: Sequence[finetune.Batch]) -> Trained:
  """Train with our step, and predict."""
  made, layout, maker, update, predict = compiled(json.dumps({**settings, 'seed': 0}))
  with sharding.use(layout):
    key = jax.random.key(settings['seed'])
    state = maker.fresh(key)
    params, _ = init_params_from(settings, made, state.params, names=())
    box = [step.advance_first(dataclasses.replace(state, params=params), maker, task=made.task)]

    def one(batch: finetune.Batch) -> None:
      box[0], metrics = update(box[0], jax.device_put(dict(batch)), key)
      jax.block_until_ready(metrics)

    seconds, steps = timed(one, train)
    found = [predict(box[0].params, dict(batch), key) for batch in test]
  outputs = [np.asarray(one['value'])[:, None] if 'value' in one else np.asarray(one['probability']) for one in found]
  return Trained(np.concatenate(outputs), seconds, steps)


def timed(one: Callable[[finetune.Batch], None], batches: Sequence[finetune.Batch]) -> tuple[float, int]:
  """Run all steps; return CPU seconds and number of those whose length was seen before."""
  seen: set[int] = set()
  seconds, count = 0.0, 0
  for batch in batches:
    began = time.process_time()
    one(batch)
    if finetune.width(batch) in seen:
      seconds, count = seconds + time.process_time() - began, count + 1
    seen.add(finetune.width(batch))
  return seconds, count


# The other side ------------------------------------------------------------------------------------------------------


def bert_adam(torch: Any) -> Any:
  """Return BERT's Adam as a class of PyTorch's optimisers."""

  class BertAdam(torch.optim.Optimizer):
    """Adam without bias correction, with decoupled decay (google-research/bert, optimization.py)."""

    def __init__(self, groups: Any, **defaults: Any):
      super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self) -> None:
      for group in self.param_groups:
        b1, b2 = group['betas']
        for p in group['params']:
          m, v = (self.state[p].setdefault(name, torch.zeros_like(p)) for name in 'mv')
          m.lerp_(p.grad, 1 - b1)
          v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
          p.add_(m / (v.sqrt() + group['eps']) + group['weight_decay'] * p, alpha=-group['lr'])

  return BertAdam


def theirs(settings: Mapping[str, Any], train: Sequence[finetune.Batch], test: Sequence[finetune.Batch]) -> Trained:
  """Train by a loop of PyTorch over transformers, and predict."""
  import torch
  import transformers

  torch.manual_seed(settings['seed'])
  classes = settings['adapter']['classes']
  source = settings['init_from'][0]['source']
  model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(source, num_labels=classes)
  model.train()
  own = settings['optim']
  plain = [parameter for name, parameter in model.named_parameters() if name.endswith('bias') or 'LayerNorm' in name]
  others = [parameter for parameter in model.parameters() if all(parameter is not one for one in plain)]
  decay = own['decay'][-1][1] if own['decay'] else 0.0
  groups = [dict(params=others, weight_decay=decay), dict(params=plain, weight_decay=0.0)]
  rule = bert_adam(torch) if own['name'] == 'bert_adam' else torch.optim.AdamW
  optimiser = rule(groups, lr=own['rate'], betas=(own['b1'], own['b2']), eps=own['eps'])
  rate = schedules.make(name=own['schedule'], rate=own['rate'], steps=settings['steps'], warmup=own['warmup'])
  rates = iter([float(rate(np.int32(number))) for number in range(len(train))])

  def one(batch: finetune.Batch) -> None:
    longest = int((batch['segment_ids'] > 0).sum(axis=1).max())
    cut = {key: value[:, :longest] if value.ndim == 2 else value for key, value in batch.items()}
    labels = torch.from_numpy(batch['label'])
    labels = labels.long() if classes > 1 else labels.float()
    loss = model(**finetune.torch_inputs(cut, 'cpu'), labels=labels).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), own['clip'])
    now = next(rates)
    for group in optimiser.param_groups:
      group['lr'] = now
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)

  seconds, steps = timed(one, train)
  model.eval()
  with torch.no_grad():
    outputs = [model(**finetune.torch_inputs(batch, 'cpu')).logits.numpy() for batch in test]
  return Trained(np.concatenate(outputs), seconds, steps)


# The table -----------------------------------------------------------------------------------------------------------


def score(outputs: np.ndarray, labels: np.ndarray) -> float:
  """Compute accuracy, or Spearman's correlation of one number, in per cent."""
  if outputs.shape[1] > 1:
    return 100 * float((outputs.argmax(axis=1) == labels).mean())
  values = [dict(value=value) for value in outputs[:, 0]]
  return 100 * correlation.score(values, [dict(label=label) for label in labels])['spearman']


def measure(arguments: argparse.Namespace, run: Run) -> dict[str, Any]:
  """Make a run, and return its score and CPU seconds."""
  settings = settings_of(arguments, run)
  vocab = parts.make_vocab(settings)
  source = parts.make_source(settings['data'], vocab, seed=run.seed)
  test: list[finetune.Batch] = list(parts.make_source(settings['eval']['validation']['data'], vocab, seed=0).once())
  train = list(itertools.islice(source.read(0), arguments.steps))
  found = (ours if run.side == 'plm_jax' else theirs)(settings, train, test)
  real = np.concatenate([batch['row_weight'] for batch in test]) > 0
  labels = np.concatenate([batch['label'] for batch in test])[real]
  per_step = found.seconds / max(found.steps, 1)
  return dict(run._asdict(), score=score(found.outputs[real], labels), cpu_seconds=per_step, tested=len(labels))


def known(file: pathlib.Path | None, asked: Mapping[str, Any]) -> dict[Run, dict[str, Any]]:
  """Read the runs of a file that have the same flags."""
  if file is None or not file.is_file():
    return {}
  lines = [json.loads(line) for line in file.read_text().splitlines()]
  return {Run(*(line[key] for key in Run._fields)): line for line in lines if line['flags'] == asked}


def spread(values: Sequence[float]) -> str:
  return f'{statistics.fmean(values):.1f} ({min(values):.1f} to {max(values):.1f})'


def table(made: Mapping[Run, Mapping[str, Any]]) -> Table:
  """Build a row for each task and recipe."""
  shown = Table()
  for column in ('task', 'recipe', *SIDES, 'difference', 'CPU s a step', 'times theirs'):
    shown.add_column(column, justify='left' if column in ('task', 'recipe') else 'right')
  for task, recipe in dict.fromkeys((run.task, run.recipe) for run in made):
    runs = [{run.seed: one for run, one in made.items() if run[:3] == (task, recipe, side)} for side in SIDES]
    seeds = sorted(runs[0].keys() & runs[1].keys())
    if not seeds:
      continue
    scores, seconds = ([[side[seed][key] for seed in seeds] for side in runs] for key in ('score', 'cpu_seconds'))
    differences = [a - b for a, b in zip(*scores, strict=True)]
    both = [statistics.median(side) for side in seconds]
    time_of = (' / '.join(f'{one:.2f}' for one in both), f'{both[0] / both[1]:.2f}')
    shown.add_row(task, recipe, *map(spread, scores), spread(differences), *time_of)
  return shown


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--weights', default='runs/released/minilm', help='a folder in the form of Hugging Face')
  parser.add_argument('--data', default='../shared/data', help='a folder with a folder for each task')
  parser.add_argument('--tasks', default='sst2,mrpc,stsb', help=f'of {", ".join(SETS)}')
  parser.add_argument('--recipes', default='adamw,bert_adam,usual')
  parser.add_argument('--sides', default=','.join(SIDES))
  parser.add_argument('--rows', type=int, default=1000, help='the first ones of train')
  parser.add_argument('--tested', type=int, default=1000, help='rows of the test at most')
  parser.add_argument('--batch', type=int, default=32)
  parser.add_argument('--steps', type=int, default=96)
  parser.add_argument('--rate', type=float, default=3e-5)
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--out', type=pathlib.Path, help='a file of runs, one JSON object each')
  arguments = parser.parse_args()
  malloc.reuse()  # serves both sides
  flags = {key: vars(arguments)[key] for key in ('rows', 'tested', 'batch', 'steps', 'rate')}
  done = known(arguments.out, flags)
  tasks, recipes, sides = (text.split(',') for text in (arguments.tasks, arguments.recipes, arguments.sides))
  made = {}
  for task, seed, recipe, side in itertools.product(tasks, range(arguments.seeds), recipes, sides):
    run = Run(task, recipe, side, seed)
    made[run] = done.get(run) or dict(measure(arguments, run), flags=flags)
    print(f'{run.task}, {run.recipe}, {run.side}, seed {run.seed}: {made[run]["score"]:.1f}', flush=True)
    if arguments.out and run not in done:
      with arguments.out.open('a') as file:
        file.write(json.dumps(made[run]) + '\n')
  Console(width=140).print(table(done | made))


if __name__ == '__main__':
  main()
