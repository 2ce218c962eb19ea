"""Parameters and operations of models, counted from shapes without computing.

The engine of `plm-jax params`, and of the counts in the log and the result of a run.
"""

import dataclasses
import functools
import math
from collections.abc import Collection, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from plm_jax import optim
from plm_jax.config import build, signatures
from plm_jax.core.batch import BATCH, SLOTS, axes_of
from plm_jax.core.errors import lacking
from plm_jax.core.trunk import Attends
from plm_jax.core.types import PyTree, Task, Vocab
from plm_jax.io.run_paths import RunFolder
from plm_jax.noise.keys import noise_root, with_step
from plm_jax.training.cost import flops
from plm_jax.training.parts import Settings, make_parts, make_vocab
from plm_jax.training.step import TrainState, abstract_params, bind, step_rng

UNBOUNDED = 512  # tokens of the row that is counted for a trunk whose rows may have any length
OPTIONS = 4  # to choose from, of the row that is counted for a task with such rows
ALWAYS = ('row_id', 'epoch', 'row_weight')  # keys of every batch
CARRIED = ('reset',)  # keys that an objective reads if rows continue each other


def parameter_counts(state: TrainState, tx: optim.Optimiser) -> dict[str, int]:
  """Count the parameters, those that train, and those outside the trunk."""
  return {
    'parameters': _count(state.params),
    'trained': tx.count(state.params),
    'outside_trunk': _count({name: tree for name, tree in state.params.items() if name != 'trunk'}),
  }


def training_flops(task: Task, spec: Mapping[str, jax.ShapeDtypeStruct], params: PyTree) -> float:
  """Count matrix-product operations of training per row, without recomputation."""
  return 3 * _forward_flops(task, spec, params) / spec['row_id'].shape[0]


def _forward_flops(task: Task, spec: Mapping[str, jax.ShapeDtypeStruct], params: PyTree) -> int:
  """Count matrix-product operations of one loss on a batch of `spec`."""
  key = jax.random.key(0)

  def forward(params: Any, batch: Any) -> Any:
    example = task.prepare(noise_root(key), with_step(batch, 0))
    rng = step_rng(key, jnp.zeros((), jnp.int32))
    carry = task.init_carry(spec['row_id'].shape[0])
    return task.loss(bind(task, params, train=False, rng=rng), example, carry, rng).value

  return flops.count(forward, params, dict(spec))


def _count(tree: PyTree) -> int:
  return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def of_config(settings: Settings, vocab: Vocab | None = None, folder: RunFolder | None = None) -> dict[str, Any]:
  """Build the model of a config with its head, without reading data.

  `vocab` and the vocabularies of a run `folder` replace those that the config names.
  """
  vocab = vocab or make_vocab(settings, folder)
  parts = make_parts(settings, vocab, folder)
  task, length = parts.task, settings['data']['length']
  gives = signatures.literal(f'data.{settings["data"]["name"]}', 'GIVES') or ()
  reads = (*parts.reads, *(key for key in CARRIED if key in gives))
  spec = batch_spec(reads, rows=1, length=length, targets=settings['data'].get('target_length'))
  params = abstract_params(task, spec)
  return {
    'family': settings['model']['name'],
    'variant': settings['model']['variant'],
    'parameters': _count(params),
    'trunk': _count(params['trunk']),
    'head': _count(params) - _count(params['trunk']),
    'vocab_size': vocab.size,
    'length': length,
    'gflop_per_row': round(_forward_flops(task, spec, params) / 1e9, 3),
  }


def batch_spec(
  reads: Collection[str], *, rows: int, length: int, targets: int | None = None, windows: int = 1
) -> dict[str, jax.ShapeDtypeStruct]:
  """Return the shapes and dtypes of a batch with given keys.

  Rows have `length` tokens, `targets` tokens to write (None for as many) and `windows` of a text.
  """
  sizes = {'b': rows, 'k': OPTIONS, 'l': length, 't': targets or length, 'c': SLOTS, 'n': 1, 'w': windows}
  return {
    name: jax.ShapeDtypeStruct(tuple(sizes[axis] for axis in axes), jnp.dtype(BATCH[name].dtype))
    for name, axes in map(axes_of, dict.fromkeys((*reads, *ALWAYS)))
  }


def published() -> list[dict[str, Any]]:
  """Return a row per published size: counted and published numbers."""
  rows = []
  for family in signatures.names('models'):
    module = build.import_file(f'models.{family}')
    for variant, known in module.PUBLISHED.items():
      trunk = module.make(vocab_size=known.vocab_size, variant=variant)
      sizes = dataclasses.asdict(module.CONFIGS[variant])
      length = sizes.get('max_length', UNBOUNDED)
      parts, cost = _of_trunk(trunk, length)
      left_out = ['heads of pre-training']
      if 'output' not in parts:
        left_out.append('the output matrix, which is the token table')
      year, title = known.source or (module.PAPER.year, module.PAPER.title)
      rows.append(
        {
          'family': family,
          'variant': variant,
          'year': year,
          'title': title,
          'parameters': sum(parts.values()),
          'paper': known.paper,
          'vocab_size': known.vocab_size,
          'length': length,
          'gflop_per_row': round(cost / 1e9, 3),
          'counted': parts,
          'not_counted': left_out,
          'also': dict(known.also),
          'note': known.note,
          'architecture': module.PAPER.architecture,
          'objective_family': module.PAPER.objective_family,
          'adapters': list(module.PAPER.adapters),
        }
      )
  return rows


def _of_trunk(trunk: Any, length: int) -> tuple[dict[str, int], int]:
  """Count parameters of the parts of a trunk, and operations.

  The row is read, pooled, and scored against the vocabulary at every position if the trunk can do so.
  """
  ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
  row = batch_spec([name for name in ('tokens', 'characters') if name in trunk.INPUTS], rows=1, length=length)
  row = {name: leaf for name, leaf in row.items() if name not in ALWAYS} | {'segment_ids': ids}
  if 'encoder_tokens' in trunk.INPUTS:  # a row of this length on each side
    row = {f'{side}_{name}': ids for side in ('encoder', 'decoder') for name in ('tokens', 'segment_ids')}
  init = functools.partial(trunk.init, method='init_all')
  tree = nn.unbox(jax.eval_shape(lambda key: init(key)['params'], jax.random.key(0)))

  def forward(tree: PyTree, row: Mapping[str, jax.Array]) -> Any:
    apply = functools.partial(trunk.apply, {'params': tree})
    segment_ids = row.get('segment_ids', row.get('decoder_segment_ids'))
    pooled = apply(apply(**row)['hidden'], segment_ids, method='pool')
    if lacking(trunk, Attends):
      return pooled
    return pooled, apply(jnp.zeros((1, length, trunk.token_dim)), method='attend')

  return {name: _count(part) for name, part in tree.items()}, flops.count(forward, tree, row)


def show(rows: list[dict[str, Any]]) -> None:
  """Print rows of `published` or `of_config` as a table."""
  table = Table(title='Parameters, exact; operations of one forward row of the longest length')
  hidden = 'title', 'counted', 'not_counted', 'also', 'architecture', 'objective_family', 'adapters'
  columns = [column for column in rows[0] if column not in hidden]
  for column in columns:
    number = isinstance(rows[0][column], int | float)
    table.add_column(column.replace('_', ' '), justify='right' if number else 'left', no_wrap=column != 'note')
  for row in rows:
    cells = [
      f'{row[column]:,}' if isinstance(row[column], int | float) and column != 'year' else str(row[column])
      for column in columns
    ]
    if row.get('also'):
      also = [f'{what} {number:,}' for what, number in row['also'].items()]
      cells[-1] = '; '.join(filter(None, [cells[-1], *also]))
    table.add_row(*cells)
  Console(width=max(Console().width, 160)).print(table)  # numbers are never cut
  if 'counted' in rows[0]:
    print(
      'Counted: the trunk with its pooling and, where it is not the token table, its output matrix. Not counted: heads '
      'of pre-training; sizes with them are in the notes. --json has the count of each part,\n'
      'the paper, the architecture, the kind of objective and the adapters of each row.'
    )
