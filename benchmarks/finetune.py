"""Measure the cost of padding in fine-tuning BERT-base, compared with Hugging Face.

    python -m benchmarks.finetune [--variant=bert-base] [--data=FOLDER] [--rows=4096] [--batch=32] [--steps=8]

Our side reads examples as a run does (`data/labelled.py`): padded to 128, or in buckets (`data.buckets`), where a batch
has examples of similar length in the shortest bucket that holds them. Hugging Face's side is the loop of its Trainer in
PyTorch: each batch is padded to its longest example, in random order or sorted in large groups (`group_by_length`). All
have the same weights, examples, AdamW, rate, clipping and dropout, and update every parameter.

The generated examples have gamma-distributed lengths, of shape 5 and scale 5 tokens, cut to 3 to 66, like the sentences
of SST-2: 25 tokens on average and at most 66, including [CLS] and [SEP]. `--data` reads examples of a folder instead.
Tokenizing is not timed.

For each variant, `--steps` batches of one epoch are timed, evenly spaced after sorting by length, so that a few
represent all. "of the epoch" is the number of tokens per example in the timed steps divided by that in all. Steps of
all variants alternate, so that other load slows all equally. XLA compiles a program for each length before timing;
"first s" are the seconds of that, with one step each, unless an earlier row has compiled the same program. Without
torch and transformers only our rows are printed.
"""

import argparse
import functools
import itertools
import json
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
from plm_jax.models import bert
from plm_jax.text import wordpiece
from plm_jax.training import step as steps

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
  """

  epoch: Sequence[Batch]
  train: Callable[[Batch], None]
  compiles: bool

  def timed(self, steps: int) -> list[Batch]:
    """Select N evenly spaced batches, or all if there are fewer."""
    steps = min(steps, len(self.epoch))
    return [self.epoch[(2 * turn + 1) * len(self.epoch) // (2 * steps)] for turn in range(steps)]


# Rows ----------------------------------------------------------------------------------------------------------------


def write_rows(folder: Path, *, rows: int) -> None:
  """Write examples of the lengths described above, including [CLS] and [SEP]."""
  draw = np.random.default_rng(0)
  lengths = np.clip(np.rint(draw.gamma(5.0, 5.0, rows)), 3, 66).astype(int) - 2
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
  """Our side: one step on a batch, the resulting parameters, and the task."""

  train: Callable[[Batch], None]
  params: Callable[[], Any]
  task: Task


def ours(task: Task, source: Source, *, random: str) -> Ours:
  """Build a step on one device, which keeps its state."""
  spec = source.spec
  tx = optim.make(
    params=steps.abstract_params(task, spec), steps=HORIZON, name='adamw', rate=RATE, decay=DECAY, clip=CLIP
  )
  layout = sharding.make_layout(sharding.make_mesh({'data': -1}), 'data')
  key = jax.random.key(0)
  state, _ = steps.init_state(task, tx, spec, key, layout=layout)
  compiled = jax.jit(functools.partial(steps.train_step, task=task, tx=tx, random=random), donate_argnums=0)
  box = [state]

  def train(batch: Batch) -> None:
    box[0], metrics = compiled(box[0], jax.device_put(dict(batch)), key)
    jax.block_until_ready(metrics)

  return Ours(train, lambda: box[0].params, task)


def hugging_face(folder: Path, dtype: str, *, device: str) -> tuple[Callable[[Batch], None], Any]:
  """Build a step of the Trainer's loop, and its model.

  The weights are those of a folder.
  """
  import torch
  import transformers

  model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(folder).to(device)
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
  named = {
    'input_ids': batch['tokens'],
    'attention_mask': segments > 0,
    'token_type_ids': batch.get('type_ids', np.zeros_like(segments)),
  }
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
    began = time.perf_counter()
    by_length = {width(batch): batch for batch in way.epoch}
    for batch in by_length.values() if way.compiles else way.epoch[-1:]:
      way.train(batch)
    spent[name] = time.perf_counter() - began
  return spent


def seconds(ways: Mapping[str, Way], steps: int) -> dict[str, list[float]]:
  """Measure the timed steps of each variant, alternating."""
  times: dict[str, list[float]] = {name: [] for name in ways}
  batches = {name: way.timed(steps) for name, way in ways.items()}
  for turn in range(steps):
    for name, way in ways.items():
      if turn < len(batches[name]):
        began = time.perf_counter()
        way.train(batches[name][turn])
        times[name].append(time.perf_counter() - began)
  return times


def rows_of(batches: Sequence[Batch]) -> int:
  return sum(int((batch['row_weight'] > 0).sum()) for batch in batches)


def table(ways: Mapping[str, Way], times: Mapping[str, Sequence[float]], first: Mapping[str, float]) -> Table:
  """Build a row for each variant; the first one is padded."""
  timed = {name: way.timed(len(times[name])) for name, way in ways.items()}
  rates = {name: rows_of(timed[name]) / sum(times[name]) for name in ways}
  padded, peer = rates[next(iter(ways))], rates.get(PEER)
  shown = Table()
  shown.add_column('step', no_wrap=True)
  figures = ('lengths', 'tokens a row', 'of the epoch', 'programs', 'first s', 'ms a step', 'rows/s')
  for column in (*figures, 'times padded', 'times Hugging Face'):
    shown.add_column(column, justify='right')
  for name, way in ways.items():
    lengths = sorted({width(batch) for batch in way.epoch})
    tokens = statistics.fmean(map(width, timed[name]))
    shown.add_row(
      name,
      f'{lengths[0]} to {lengths[-1]}' if lengths[1:] else str(lengths[0]),
      f'{tokens:.1f}',
      f'{tokens / statistics.fmean(map(width, way.epoch)):.2f}',
      str(len(lengths)) if way.compiles else '',
      f'{first[name]:.1f}',
      f'{1e3 * statistics.fmean(times[name]):,.0f}',
      f'{rates[name]:.2f}',
      f'{rates[name] / padded:.2f}',
      f'{rates[name] / peer:.2f}' if peer else '',
    )
  return shown


def sources_of(arguments: argparse.Namespace, vocab: Any, temporary: Path) -> tuple[Source, Source]:
  """Read the examples padded to the maximum length, and in buckets."""
  if arguments.data is None:
    write_rows(temporary, rows=arguments.rows)
  block: dict[str, Any] = {
    'path': arguments.data or str(temporary),
    'split': f'train[:{arguments.rows}]',
    'cache': str(temporary),
  }
  block |= {'vocab': vocab, 'length': arguments.length, 'batch_size': arguments.batch, 'seed': 0}
  buckets = tuple(int(length) for length in arguments.buckets.split(',') if length)
  return labelled.make(**block), labelled.make(**block, buckets=buckets)


def measure(arguments: argparse.Namespace, temporary: Path) -> None:
  try:
    import torch  # noqa: F401
    import transformers

    transformers.utils.logging.disable_progress_bar()
    peer = True
  except ImportError:
    peer = False
  vocab: Any = vocabulary(arguments)
  padded, bucketed = sources_of(arguments, vocab, temporary)
  execution = Execution(dtype=arguments.dtype, layers=arguments.layers)
  size = max(train_step.VOCAB, vocab.size)  # BERT's, however few ids the rows need
  trunk = bert.make(vocab_size=size, variant=arguments.variant, execution=execution)
  side = ours(classify.make(trunk=trunk, vocab=vocab, classes=padded.classes), padded, random=arguments.random)
  epochs = {f'plm_jax, padded to {arguments.length}': our_epoch(padded), 'plm_jax, buckets': our_epoch(bucketed)}
  trains = dict.fromkeys(epochs, side.train)
  if peer:
    device = 'cuda' if jax.default_backend() == 'gpu' else 'cpu'
    weights.save(temporary / 'model', trunk, jax.device_get(side.params()), adapter='classify')
    theirs, model = hugging_face(temporary / 'model', arguments.dtype, device=device)
    for name, grouped in ((PEER, False), (PEER_GROUPED, True)):
      epochs[name], trains[name] = hugging_face_epoch(padded, batch=arguments.batch, grouped=grouped), theirs
    found = difference(side, model, epochs[PEER][0], device=device)
    print(f'the same weights: probabilities of {arguments.batch} rows differ by {found:.0e} at most')
  ways = {
    name: Way(sorted(batches, key=width), trains[name], trains[name] is side.train) for name, batches in epochs.items()
  }
  first = warmed(ways)
  shown = table(ways, seconds(ways, arguments.steps), first)
  real = sum(int((batch['segment_ids'] > 0).sum()) for batch in padded.once()) / padded.rows
  shown.title = f'{arguments.variant}, {padded.rows:,} rows of {real:.1f} tokens, {arguments.batch} a step'
  Console(width=140).print(shown)
  print(f'{jax.devices()[0].device_kind}, {arguments.dtype}, vector instructions: {train_step.vector_flags()}')


def main() -> None:
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--variant', default='bert-base')
  parser.add_argument('--data', help='a folder of labelled rows, as data.path takes it; generated rows otherwise')
  parser.add_argument('--vocab', help='a WordPiece vocabulary for --data; otherwise one of 8,000 pieces is trained')
  parser.add_argument('--rows', type=int, default=4096, help='of the epoch, the first ones of --data')
  parser.add_argument('--batch', type=int, default=32, help='rows a step')
  parser.add_argument('--length', type=int, default=128)
  parser.add_argument('--buckets', default='32,64', help='shorter lengths')
  parser.add_argument('--steps', type=int, default=8, help='timed steps of each way')
  parser.add_argument('--dtype', default='float32')
  parser.add_argument('--layers', default='scan')
  parser.add_argument('--random', default='threefry2x32')
  arguments = parser.parse_args()
  malloc.reuse()  # serves both sides
  with tempfile.TemporaryDirectory() as temporary:
    measure(arguments, Path(temporary))


if __name__ == '__main__':
  main()
