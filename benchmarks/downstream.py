"""What is pre-training worth? Small networks on many tasks, from pre-trained parameters and from scratch.

    python -m benchmarks.downstream --pretrained=runs/small --data=../shared/data --out=runs/downstream \
        [--models=bert,gpt,bart] [--tasks=sst2,trec] [--seeds=3] [--minutes=60]

`--pretrained` holds runs of experiments/small/pretrain.py, named after their models. Each run is one `train` with the
config of the model's paper and the flags of `TASKS`, which `--show` prints; the number that counts is that of its last
step, so nothing is chosen by it. Beside it stands what needs no network: the most frequent class, the first sentence,
the source itself. A run that is finished is not made again, and after `--minutes` no other begins.
"""

import argparse
import collections
import gzip
import itertools
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

STARTS = ('pretrained', 'scratch')
# what all runs share: the rate of a small network, no bfloat16 on a CPU, nothing saved or scored on the way
SHARED = ('optim.rate=5e-4', 'execution={"layers": "loop"}', 'sharding={}', 'accumulate=1', 'best=None', 'epochs=None')


class Task(NamedTuple):
  """A task of one model.

  Attributes:
    config: of `experiments/`, with its words.
    folder: of the data.
    metric: that counts, as `result.json` names it.
    steps: updates.
    flags: further changes of the config, without `--config.`.
    baseline: the metric without a network, from the folder.
  """

  config: str
  folder: str
  metric: str
  steps: int
  flags: tuple[str, ...]
  baseline: Callable[[pathlib.Path], float]


def rows(folder: pathlib.Path, split: str) -> Iterator[dict[str, Any]]:
  with gzip.open(folder / f'{split}.jsonl.gz', 'rt', encoding='utf-8') as file:
    yield from map(json.loads, file)


def majority(split: str, label: str = 'label') -> Callable[[pathlib.Path], float]:
  """The share of the most frequent label of the training rows."""

  def of(folder: pathlib.Path) -> float:
    most = collections.Counter(row[label] for row in rows(folder, 'train')).most_common(1)[0][0]
    return statistics.fmean(row[label] == most for row in rows(folder, split))

  return of


def majority_tag(folder: pathlib.Path) -> float:
  """The share of words right by the most frequent tag of each word in training, and of all for unseen words."""
  seen: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
  for row in rows(folder, 'train'):
    for word, tag in zip(row['tokens'], row['upos'], strict=True):
      seen[word][tag] += 1
      seen[''][tag] += 1
  pairs = itertools.chain.from_iterable(zip(row['tokens'], row['upos'], strict=True) for row in rows(folder, 'test'))
  return statistics.fmean(
    seen.get(word, seen[''])[tag] == max(seen.get(word, seen['']).values()) for word, tag in pairs
  )


def first_sentence(folder: pathlib.Path) -> float:
  """ROUGE-1 of the first sentence of an abstract."""
  from plm_jax.scores import rouge

  each = list(rows(folder, 'test'))
  return rouge.score(
    [{'text': row['source'][0]} for row in each], [{'references': row['target']} for row in each]
  )['rouge1']  # fmt: skip


def constant(value: float) -> Callable[[pathlib.Path], float]:
  return lambda folder: value


def copy(folder: pathlib.Path) -> float:
  """BLEU of the source as its own translation."""
  from plm_jax.scores import bleu

  each = list(rows(folder, 'test'))
  return bleu.score([{'text': row['de']} for row in each], [{'references': [row['en']]} for row in each])['bleu']


TEXT = ('data.length=128', 'data.buckets=(16, 32, 64)', 'data.batch_size=32')
TEST = 'eval={"test": {"data": {"split": "test"}}}'
SPANS = ('data.length=256', 'data.stride=96', 'data.batch_size=16')
OPTIONS = ('data.length=96', 'data.buckets=(32, 64)', 'data.batch_size=8')
SUMMARY = ('data.length=320', 'data.target_length=48', 'data.batch_size=16', 'eval.test.every=1_000_000')
# all parameters train from the first step: both stages of the paper at once, for the network from scratch too
SENTENCE = (
  'data.length=48', 'data.target_length=48', 'data.batch_size=64', 'eval.test.every=1_000_000', 'adapter.stage=second',
  'adapter.source.overrides={"num_layers": 2, "num_heads": 4, "hidden_dim": 256, "mlp_dim": 1024}',
)  # fmt: skip
TASKS: dict[str, dict[str, Task]] = {
  'bert': {
    'sst2': Task('bert/glue.py:sst2', 'glue_sst2', 'validation/accuracy', 3000, TEXT, majority('validation')),
    'cola': Task('bert/glue.py:cola', 'glue_cola', 'validation/matthews', 1000, TEXT, constant(0)),
    'trec': Task(
      'finetune/classify.py', 'trec', 'test/accuracy', 850, (*TEXT, 'data.label=label-coarse', TEST),
      majority('test', 'label-coarse'),
    ),
    'mrpc': Task('bert/glue.py:mrpc', 'glue_mrpc', 'validation/accuracy', 350, TEXT, majority('validation')),
    'rte': Task('bert/glue.py:rte', 'glue_rte', 'validation/accuracy', 250, TEXT, majority('validation')),
    'stsb': Task('bert/glue.py:stsb', 'glue_stsb', 'validation/spearman', 720, TEXT, constant(0)),
    'snli': Task('finetune/pair.py', 'snli', 'test/accuracy', 1000, (*TEXT, TEST), majority('test')),
    'wnut17': Task('tagging/fine_tune.py:wnut17,bert', 'wnut_17', 'test/f1', 600, TEXT, constant(0)),
    'ewt': Task(
      'tagging/fine_tune.py:ewt,bert', 'universal_dependencies_en_ewt', 'test/accuracy', 1200, TEXT, majority_tag
    ),
    'squad': Task('bert/squad.py', 'squad', 'validation/f1', 3000, SPANS, constant(0)),
    'hellaswag': Task('bert/choose.py:hellaswag', 'hellaswag', 'validation/accuracy', 2000, OPTIONS, constant(0.25)),
    'copa': Task('bert/choose.py:copa', 'super_glue_copa', 'validation/accuracy', 250, OPTIONS, majority('validation')),
  },
  'gpt': {
    'sst2': Task('gpt/classify.py:sst2', 'glue_sst2', 'validation/accuracy', 3000, TEXT, majority('validation')),
    'cola': Task('gpt/classify.py:cola', 'glue_cola', 'validation/matthews', 1000, TEXT, constant(0)),
    'rte': Task('gpt/classify.py:rte', 'glue_rte', 'validation/accuracy', 250, TEXT, majority('validation')),
    'mrpc': Task('gpt/similarity.py:mrpc', 'glue_mrpc', 'validation/accuracy', 350, TEXT, majority('validation')),
    'stsb': Task('gpt/similarity.py:stsb', 'glue_stsb', 'validation/spearman', 720, TEXT, constant(0)),
    'hellaswag': Task('gpt/choose.py:hellaswag', 'hellaswag', 'validation/accuracy', 2000, OPTIONS, constant(0.25)),
    'copa': Task('gpt/choose.py:copa', 'super_glue_copa', 'validation/accuracy', 250, OPTIONS, majority('validation')),
    'scitldr': Task('gpt/summarise.py:scitldr', 'scitldr_abstract', 'test/rouge1', 1000, SUMMARY, first_sentence),
  },
  'bart': {
    'sst2': Task('bart/glue.py:sst2', 'glue_sst2', 'validation/accuracy', 3000, TEXT, majority('validation')),
    'mrpc': Task('bart/glue.py:mrpc', 'glue_mrpc', 'validation/accuracy', 350, TEXT, majority('validation')),
    'scitldr': Task('bart/summarise.py:scitldr', 'scitldr_abstract', 'test/rouge1', 1000, SUMMARY, first_sentence),
    'multi30k': Task('bart/translate.py:multi30k,base', 'multi30k_en_de', 'test/bleu', 6000, SENTENCE, copy),
  },
}  # fmt: skip


def command(
  model: str, task: Task, arguments: argparse.Namespace, start: str, seed: int, workdir: pathlib.Path
) -> list[str]:
  """The words of one run."""
  changes = [f'model.from={arguments.pretrained / model}', f'data.path={arguments.data / task.folder}', f'seed={seed}']
  changes += [*SHARED, f'steps={task.steps}', f'log_every={max(1, task.steps // 10)}']
  changes += [f'eval_every={task.steps}', f'save_every={task.steps}', *task.flags]
  changes += ['init_from=[]'] if start == 'scratch' else []
  named = [f'--config=experiments/{task.config}', f'--workdir={workdir}']
  return [sys.executable, '-m', 'plm_jax.train', *named, *(f'--config.{change}' for change in changes)]


def run(words: Sequence[str], workdir: pathlib.Path, metric: str) -> float | None:
  """The metric of a run, made now if it is not there; None where it ended without one."""
  result = workdir / 'result.json'
  if not result.exists():
    workdir.mkdir(parents=True, exist_ok=True)
    with (workdir.parent / f'{workdir.name}.out').open('w') as out:
      subprocess.run(words, stdout=out, stderr=subprocess.STDOUT, check=False)
  return json.loads(result.read_text())['metrics'].get(metric) if result.exists() else None


def said(numbers: Sequence[float]) -> str:
  spread = f' ± {statistics.stdev(numbers):.3f}' if len(numbers) > 1 else ''
  return f'{statistics.fmean(numbers):.3f}{spread}' if numbers else 'none'


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--pretrained', type=pathlib.Path, default=pathlib.Path('runs/small'))
  parser.add_argument('--data', type=pathlib.Path, default=pathlib.Path('../shared/data'))
  parser.add_argument('--out', type=pathlib.Path, default=pathlib.Path('runs/downstream'))
  parser.add_argument('--models', default='bert,gpt,bart')
  parser.add_argument('--tasks', help='default: all of a model')
  parser.add_argument('--seeds', type=int, default=3)
  parser.add_argument('--minutes', type=float, default=float('inf'), help='no run begins after so many')
  parser.add_argument('--show', action='store_true', help='print the commands, and exit')
  arguments = parser.parse_args()
  table = Table(title='Mean and standard deviation over seeds')
  for column in ('model', 'task', 'metric', 'updates', 'no network', 'scratch', 'pretrained', 'gain'):
    table.add_column(column, justify='left' if column in ('model', 'task', 'metric') else 'right')
  began = time.monotonic()
  for model in arguments.models.split(','):
    for name, task in TASKS[model].items():
      if arguments.tasks and name not in arguments.tasks.split(','):
        continue
      found: dict[str, list[float]] = {start: [] for start in STARTS}
      for seed, start in itertools.product(range(arguments.seeds), STARTS):
        workdir = arguments.out / model / name / f'{start}{seed}'
        words = command(model, task, arguments, start, seed, workdir)
        if arguments.show:
          print(shlex.join(words))
        elif time.monotonic() - began < 60 * arguments.minutes or (workdir / 'result.json').exists():
          number = run(words, workdir, task.metric)
          print(f'{model} {name} {start} {seed}: {task.metric} {number}', flush=True)
          found[start] += [] if number is None else [number]
      if not arguments.show:
        gain = (
          statistics.fmean(found['pretrained']) - statistics.fmean(found['scratch']) if all(found.values()) else None
        )
        numbers = (said(found['scratch']), said(found['pretrained']), '' if gain is None else f'{gain:+.3f}')
        table.add_row(
          model, name, task.metric, str(task.steps), f'{task.baseline(arguments.data / task.folder):.3f}', *numbers
        )
  if not arguments.show:
    Console(width=120).print(table)


if __name__ == '__main__':
  main()
