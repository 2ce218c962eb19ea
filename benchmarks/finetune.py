"""Measure fine-tuning on rows of mixed lengths, compared with Hugging Face, in CPU time.

    python -m benchmarks.finetune [--variant=bert-base] [--weights=FOLDER] [--buckets=SETS] [--layers=scan,loop]
        [--equal=0] [--data=FOLDER] [--rows=4096] [--batch=32] [--steps=8] [--threads=1]

Our side reads examples as a run does (`data/labelled.py`): padded to 128, or in buckets (`data.buckets`), where a batch
has examples of similar length in the shortest bucket that holds them. Each set of `--buckets` has a line; an empty one
is padding to 128. Hugging Face's side is the loop of its Trainer in PyTorch: each batch is padded to its longest
example, in random order or sorted in large groups (`group_by_length`). All have the same weights, examples, AdamW,
rate, clipping and dropout, and update every parameter. `--variant` is a size of BERT or GPT, with random weights;
`--weights` fine-tunes those of a folder.

The generated examples have gamma-distributed lengths, of shape 5 and scale 5 tokens, cut to 3 to 66, like the sentences
of SST-2: 25 tokens on average and at most 66, including [CLS] and [SEP]. With `--equal` all have that length. `--data`
reads examples of a folder instead. Tokenizing is not timed.

For each line, `--steps` batches of one epoch are timed, evenly spaced after sorting by length, so that a few represent
all. "of the epoch" is the number of tokens per example in the timed steps divided by that of the whole epoch. Steps of
all lines alternate, so that other load slows all equally; rates are by CPU time of the process, the last column but one
by clock. "products" is the CPU time of a step divided by that of its matrix products alone, at the peak that one of
2048 x 2048 reaches here. XLA compiles a program for each length before timing; "first s" are the CPU seconds of that,
with one step each, unless an earlier line has compiled the same program. Without torch and transformers only our lines
are printed. Idle threads of PyTorch spin while other load holds a core, so that only --threads=1 is fair on a machine
that is not free.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import train_step
from plm_jax import optim, weights
from plm_jax.adapters import classify
from plm_jax.cli import malloc
from plm_jax.core import sharding
from plm_jax.core.types import Execution, Source, Task, Vocab
from plm_jax.data import labelled
from plm_jax.data.corpora import sources
from plm_jax.models import bert, gpt
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.text import wordpiece
from plm_jax.training import step as steps
from plm_jax.training.cost import flops

Batch = Mapping[str, np.ndarray]
RATE, DECAY, CLIP = 2e-5, 0.01, 1.0
HORIZON = 1000  # steps of the schedule, linear to 0
PEER, PEER_GROUPED = 'Hugging Face', 'Hugging Face, grouped'


class Numbers:
  """A vocabulary whose texts are the numbers of their tokens, so that examples have given lengths."""

  size, digest = train_step.VOCAB, 'numbers'
  pad_id, unk_id, cls_id, sep_id, mask_id = 0, 100, 101, 102, 103

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    return [list(map(int, text.split())) for text in texts]


class Way(NamedTuple):
  """A way to serve and to train on an epoch of rows.

  Attributes:
    epoch: its batches, the shortest first.
    train: one step on a batch.
    compiles: it compiles a program for each length.
    work: a batch -> operations of the matrix products of a step; None for Hugging Face.
  """

  epoch: Sequence[Batch]
  train: Callable[[Batch], None]
  compiles: bool
  work: Callable[[Batch], float] | None

  def timed(self, steps: int) -> list[Batch]:
    """Select N evenly spaced batches, or all if there are fewer."""
    steps = min(steps, len(self.epoch))
    return [self.epoch[(2 * turn + 1) * len(self.epoch) // (2 * steps)] for turn in range(steps)]


# Rows ----------------------------------------------------------------------------------------------------------------


def write_rows(folder: Path, *, rows: int, equal: int, specials: int) -> None:
  """Write examples of the lengths described above, including special tokens."""
  draw = np.random.default_rng(0)
  lengths = np.clip(np.rint(draw.gamma(5.0, 5.0, rows)), 3, 66).astype(int) - specials
  lengths = np.full_like(lengths, equal - specials) if equal else lengths
  with (folder / 'train.jsonl').open('w') as file:
    for length in lengths:
      text = ' '.join(map(str, draw.integers(1000, train_step.VOCAB, length)))
      file.write(json.dumps({'text': text, 'label': int(draw.integers(2))}) + '\n')


def vocabulary(arguments: argparse.Namespace) -> Vocab | Numbers:
  """Build the vocabulary of the examples."""
  if arguments.data is None:
    return Numbers()
  if arguments.vocab:
    return wordpiece.make(path=arguments.vocab)
  records = sources.open_source(arguments.data, split=f'train[:{arguments.rows}]', cache='~/.cache/plm_jax')
  texts = (value for index in range(len(records)) for value in records[index].values() if isinstance(value, str))
  return wordpiece.train(list(texts), size=8000)


def width(batch: Batch) -> int:
  """Count the tokens of a batch's sequences, including padding."""
  return batch['tokens'].shape[1]


def our_epoch(source: Source) -> list[Batch]:
  """Return the first epoch of a run."""
  return list(itertools.islice(source.read(0), source.steps_per_epoch))


def hugging_face_epoch(source: Source, *, batch: int, grouped: bool) -> list[Batch]:
  """Batch examples like the Trainer's data loader.

  Each batch is padded to its longest example.
  """
  import torch
  from transformers.trainer_pt_utils import get_length_grouped_indices

  every: list[Batch] = list(source.once())
  rows = {key: np.concatenate([one[key] for one in every]) for key in every[0]}
  rows = {key: value[rows['row_weight'] > 0] for key, value in rows.items()}
  sizes = (rows['segment_ids'] > 0).sum(axis=1)
  generator = torch.Generator().manual_seed(0)
  order = (
    np.array(get_length_grouped_indices(sizes.tolist(), batch, generator=generator))
    if grouped
    else torch.randperm(len(sizes), generator=generator).numpy()
  )
  parts = [order[start : start + batch] for start in range(0, len(order), batch)]
  return [
    {key: value[part][:, : sizes[part].max()] if value.ndim == 2 else value[part] for key, value in rows.items()}
    for part in parts
  ]


# Steps ---------------------------------------------------------------------------------------------------------------


class Ours(NamedTuple):
  """Our side: one step on a batch, its operations, the resulting parameters, and the task."""

  train: Callable[[Batch], None]
  work: Callable[[Batch], float]
  params: Callable[[], Any]
  task: Task


def ours(task: Task, source: Source, *, random: str, own: Mapping[str, Any]) -> Ours:
  """Build a step on one device, which keeps its state; `own` are weights of a folder."""
  spec = source.spec
  tx = optim.make(
    params=steps.abstract_params(task, spec), steps=HORIZON, name='adamw', rate=RATE, decay=DECAY, clip=CLIP
  )
  layout = sharding.make_layout(sharding.make_mesh({'data': -1}), 'data')
  key = jax.random.key(0)
  with sharding.use(layout):
    state = steps.state_maker(task, tx, spec, layout=layout).fresh(key)
  # placed as the state is, since other places would be another program
  fresh = state.params['trunk']
  places = jax.tree.map(lambda leaf: leaf.sharding, fresh)
  trunk = {name: jax.device_put(own.get(name, leaf), places[name]) for name, leaf in fresh.items()}
  state = dataclasses.replace(state, params={**state.params, 'trunk': trunk})
  compiled = jax.jit(functools.partial(steps.train_step, task=task, tx=tx, random=random), donate_argnums=0)
  box = [state]

  def train(batch: Batch) -> None:
    box[0], metrics = compiled(box[0], jax.device_put(dict(batch)), key)
    jax.block_until_ready(metrics)

  @functools.lru_cache
  def products(rows: int, width: int) -> float:
    shapes = {name: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype) for name, leaf in spec.items()}
    shapes |= {
      name: jax.ShapeDtypeStruct((rows, width), leaf.dtype) for name, leaf in spec.items() if len(leaf.shape) == 2
    }

    def loss(params: Any, batch: Batch) -> Any:
      forward = steps.bind(task, params, train=False, rng=key)
      return task.loss(forward, task.prepare(noise_root(key), with_step(batch, 0)), (), key).value

    return 3.0 * flops.count(loss, box[0].params, shapes)

  return Ours(train, lambda batch: products(*batch['tokens'].shape), lambda: box[0].params, task)


def hugging_face(folder: Path, dtype: str, *, device: str) -> tuple[Callable[[Batch], None], Any]:
  """Build a step of the Trainer's loop, and its model.

  The weights are those of a folder.
  """
  import torch
  import transformers

  model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder).to(device)
  model.config.pad_token_id = Numbers.pad_id  # a decoder reads the last token before the padding
  optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY, fused=True)
  schedule = transformers.get_linear_schedule_with_warmup(optimiser, 0, HORIZON)

  def train(batch: Batch) -> None:
    model.train()
    with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == 'bfloat16'):
      loss = model(**torch_inputs(batch, device), labels=torch.from_numpy(batch['label']).long().to(device)).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    optimiser.step()
    schedule.step()
    optimiser.zero_grad(set_to_none=True)
    if device == 'cuda':
      torch.cuda.synchronize()

  return train, model


def torch_inputs(batch: Batch, device: str) -> dict[str, Any]:
  """Convert a batch to the inputs of Hugging Face's model."""
  import torch

  segments = batch['segment_ids']
  named: dict[str, np.ndarray] = {'input_ids': batch['tokens'], 'attention_mask': segments > 0}
  named |= {'token_type_ids': batch['type_ids']} if 'type_ids' in batch else {}
  return {name: torch.from_numpy(np.ascontiguousarray(value)).long().to(device) for name, value in named.items()}


def difference(side: Ours, model: Any, batch: Batch, *, device: str) -> float:
  """Compute the largest difference between the probabilities of both sides.

  It is over the examples of a batch, without dropout.
  """
  import torch

  model.eval()
  with torch.no_grad():
    theirs = model(**torch_inputs(batch, device)).logits.softmax(dim=-1).cpu().numpy()
  predict = jax.jit(functools.partial(steps.predict_step, task=side.task))
  found = predict(side.params(), dict(batch), jax.random.key(0))
  return float(np.abs(np.asarray(found['probability']) - theirs).max())


# The table -----------------------------------------------------------------------------------------------------------


def warmed(ways: Mapping[str, Way]) -> dict[str, float]:
  """Run a step of each compiled length, else of the longest.

  Returns the seconds of these steps.
  """
  spent = {}
  for name, way in ways.items():
    began = time.process_time()
    by_length = {width(batch): batch for batch in way.epoch}
    for batch in by_length.values() if way.compiles else way.epoch[-1:]:
      way.train(batch)
    spent[name] = time.process_time() - began
  return spent


def seconds(ways: Mapping[str, Way], steps: int) -> dict[str, list[tuple[float, float]]]:
  """Measure the timed steps of each variant, alternating: CPU seconds, and those by clock."""
  times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
  batches = {name: way.timed(steps) for name, way in ways.items()}
  for turn in range(steps):
    for name, way in ways.items():
      if turn < len(batches[name]):
        cpu, clock = time.process_time(), time.perf_counter()
        way.train(batches[name][turn])
        times[name].append((time.process_time() - cpu, time.perf_counter() - clock))
  return times


def rows_of(batches: Sequence[Batch]) -> int:
  return sum(int((batch['row_weight'] > 0).sum()) for batch in batches)


def table(
  ways: Mapping[str, Way], times: Mapping[str, Sequence[tuple[float, float]]], first: Mapping[str, float], peak: float
) -> Table:
  """Build a line for each way; `peak` is operations per CPU second of a matrix product."""
  timed = {name: way.timed(len(times[name])) for name, way in ways.items()}
  cpu, clock = ({name: sum(pair[at] for pair in pairs) for name, pairs in times.items()} for at in (0, 1))
  rates = {name: rows_of(timed[name]) / cpu[name] for name in ways}
  peer, peer_clock = (one.get(PEER_GROUPED) for one in (rates, clock))
  shown = Table()
  shown.add_column('step', no_wrap=True)
  figures = ('lengths', 'tokens a row', 'of the epoch', 'programs', 'first s', 'ms a token', 'products', 'rows/CPU s')
  for column in (*figures, 'times by clock', 'times Hugging Face grouped'):
    shown.add_column(column, justify='right')
  for name, way in ways.items():
    lengths = sorted({width(batch) for batch in way.epoch})
    tokens = statistics.fmean(map(width, timed[name]))
    by_clock = rows_of(timed[name]) / clock[name]
    shown.add_row(
      name,
      f'{lengths[0]} to {lengths[-1]}' if lengths[1:] else str(lengths[0]),
      f'{tokens:.1f}',
      f'{tokens / statistics.fmean(map(width, way.epoch)):.2f}',
      str(len(lengths)) if way.compiles else '',
      f'{first[name]:.0f}',
      f'{1e3 * cpu[name] / sum(batch["tokens"].size for batch in timed[name]):.2f}',
      f'{cpu[name] * peak / sum(map(way.work, timed[name])):.2f}' if way.work else '',
      f'{rates[name]:.2f}',
      f'{by_clock * peer_clock / rows_of(timed[PEER_GROUPED]):.2f}' if peer_clock else '',
      f'{rates[name] / peer:.2f}' if peer else '',
    )
  return shown


def sources_of(arguments: argparse.Namespace, vocab: Any, temporary: Path, *, layout: str) -> dict[str, Source]:
  """Read the examples padded to the maximum length (''), and in each set of buckets."""
  if arguments.data is None:
    write_rows(temporary, rows=arguments.rows, equal=arguments.equal, specials=2 if layout == 'bert' else 0)
  block: dict[str, Any] = {
    'path': arguments.data or str(temporary),
    'split': f'train[:{arguments.rows}]',
    'cache': str(temporary),
    'layout': layout,
  }
  block |= {'vocab': vocab, 'length': arguments.length, 'batch_size': arguments.batch, 'seed': 0}
  sets = {text: tuple(int(length) for length in text.split(',') if length) for text in arguments.buckets.split(';')}
  return {text: labelled.make(**block, buckets=widths) for text, widths in {'': (), **sets}.items()}


def measure(arguments: argparse.Namespace, temporary: Path) -> None:
  try:
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    if arguments.threads:
      torch.set_num_threads(arguments.threads)
    peer = True
  except ImportError:
    peer = False
  vocab: Any = vocabulary(arguments)
  decoder = not arguments.weights and arguments.variant in gpt.CONFIGS
  sources_by_set = sources_of(arguments, vocab, temporary, layout='bare' if decoder else 'bert')
  padded = sources_by_set['']
  size = max(train_step.VOCAB, vocab.size)  # BERT's, however few ids the rows need
  sides, epochs, trains, works = [], {}, {}, {}
  for layers in arguments.layers.split(','):
    execution, own = Execution(dtype=arguments.dtype, layers=layers), {}
    if arguments.weights:
      trunk, own = weights.load(arguments.weights, execution=execution)
    else:
      make = gpt.make if decoder else bert.make
      trunk = make(vocab_size=size, variant=arguments.variant, execution=execution)
    # the head of a decoder in transformers has no bias
    task = classify.make(trunk=trunk, vocab=vocab, classes=padded.classes, bias=not decoder)
    sides.append(ours(task, padded, random=arguments.random, own=own))
    for text in arguments.buckets.split(';'):
      name = f'plm_jax, {layers}, {text or f"padded to {arguments.length}"}'
      epochs[name], trains[name], works[name] = our_epoch(sources_by_set[text]), sides[-1].train, sides[-1].work
  if peer:
    device = 'cuda' if jax.default_backend() == 'gpu' else 'cpu'
    weights.save(temporary / 'model', trunk, jax.device_get(sides[-1].params()), adapter='classify')
    theirs, model = hugging_face(temporary / 'model', arguments.dtype, device=device)
    for name, grouped in ((PEER, False), (PEER_GROUPED, True)):
      epochs[name], trains[name] = hugging_face_epoch(padded, batch=arguments.batch, grouped=grouped), theirs
    found = difference(sides[-1], model, epochs[PEER][0], device=device)
    print(f'the same weights: probabilities of {arguments.batch} rows differ by {found:.0e} at most')
  ways = {
    name: Way(sorted(batches, key=width), trains[name], name in works, works.get(name))
    for name, batches in epochs.items()
  }
  first = warmed(ways)
  times = seconds(ways, arguments.steps)
  shown = table(ways, times, first, train_step.matmul_peak(arguments.dtype, clock=time.process_time))
  real = sum(int((batch['segment_ids'] > 0).sum()) for batch in padded.once()) / padded.rows
  named = arguments.weights or arguments.variant
  shown.title = f'{named}, {padded.rows:,} rows of {real:.1f} tokens, {arguments.batch} a step'
  Console(width=150).print(shown)
  print(f'{jax.devices()[0].device_kind}, {arguments.dtype}, vector instructions: {train_step.vector_flags()}')
  print(f'{len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='bert-base')
  parser.add_argument('--weights', help='a folder in the form of transformers, for its weights and sizes')
  parser.add_argument('--data', help='a folder of labelled rows, as data.path takes it; generated rows otherwise')
  parser.add_argument('--vocab', help='a WordPiece vocabulary for --data; otherwise one of 8,000 pieces is trained')
  parser.add_argument('--rows', type=int, default=4096, help='of the epoch, the first ones of --data')
  parser.add_argument('--batch', type=int, default=32, help='rows a step')
  parser.add_argument('--length', type=int, default=128)
  parser.add_argument('--buckets', default=';32,64;16,24,32,48,64', help='sets of shorter lengths')
  parser.add_argument('--equal', type=int, default=0, help='tokens of every row; 0 for rows of mixed lengths')
  parser.add_argument('--threads', type=int, default=0, help='cores of the process; 0 for all')
  parser.add_argument('--steps', type=int, default=8, help='timed steps of each way')
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--layers', default='scan', help='of execution, separated by commas')
  parser.add_argument('--random', default='threefry2x32')
  arguments = parser.parse_args()
  if arguments.threads:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-arguments.threads :])  # before jax starts its threads
  malloc.reuse()  # serves both sides
  with tempfile.TemporaryDirectory() as temporary:
    measure(arguments, Path(temporary))


if __name__ == '__main__':
  main()
