"""Counts parameters and operations of every published size, or of a config, from shapes alone.

python -m plm_jax.params                                           every published size, beside the paper's figure
python -m plm_jax.params --config=experiments/bert/base.py         the model of a config, with its head
python -m plm_jax.params --json                                    the same for a program
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

from plm_jax.cli import command
from plm_jax.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the counts; nothing is allocated."""
  parser = command.command('params', __doc__)
  parser.add_argument('--all', action='store_true', help='every published size; so it is without --config')
  parser.add_argument('--json', action='store_true', help='print JSON')
  words = list(sys.argv[1:] if argv is None else argv)
  if any(word.startswith('--config') or word == '--list' for word in words):
    arguments, settings = command.parse(parser, words, workdir=False)
    if settings is None:
      return 0
    rows = [_of_config(settings)]
  else:
    arguments = _plain(parser, words)
    rows = published()
  if arguments.json:
    print(json.dumps(rows, indent=2))
  else:
    _print(rows)
  return 0


def _plain(parser: command.Parser, words: list[str]) -> argparse.Namespace:
  arguments, unknown = parser.parse_known_args(words)
  if unknown:
    raise ConfigError(f'{parser.prog}: there is no flag {unknown[0]}; --help shows every flag')
  return arguments


def published() -> list[dict[str, Any]]:
  """Every published size of every family: counted by shape, beside what `PUBLISHED` of its file says."""
  import jax
  import jax.numpy as jnp

  from plm_jax.plugins import build, signatures
  from plm_jax.training import flops

  rows = []
  for family in signatures.names('models'):
    module = build.import_file(f'models.{family}')
    for variant, known in module.PUBLISHED.items():
      trunk = module.make(vocab_size=known.vocab_size, variant=variant)
      sizes = {field.name for field in dataclasses.fields(trunk.config)}
      length = trunk.config.max_length if 'max_length' in sizes else 512  # no table bounds relative positions
      tokens = jax.ShapeDtypeStruct((1, length), jnp.int32)
      whole, row = _whole(trunk), {'tokens': tokens, 'segment_ids': tokens}
      tree = flops.parameters(whole, row)['trunk']
      cost = flops.count(lambda tree, row, whole=whole: whole.apply({'params': {'trunk': tree}}, **row), tree, row)
      parts = {name: _count(part) for name, part in tree.items()}
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


def _count(tree: Any) -> int:
  import jax

  return sum(leaf.size for leaf in jax.tree.leaves(tree))


def _of_config(settings: dict[str, Any]) -> dict[str, Any]:
  import jax
  import jax.numpy as jnp

  from plm_jax.noise.keys import noise_root, with_step
  from plm_jax.training import flops
  from plm_jax.training.parts import make_parts, make_vocab
  from plm_jax.training.step import abstract_params, bind

  vocab = make_vocab(settings)
  task = make_parts(settings, vocab).task
  rows, length = 1, settings['data']['length']
  ids, number = jax.ShapeDtypeStruct((rows, length), jnp.int32), jax.ShapeDtypeStruct((rows,), jnp.int32)
  spec = {'tokens': ids, 'segment_ids': ids, 'row_id': number, 'epoch': number, 'label': number}
  spec['row_weight'] = jax.ShapeDtypeStruct((rows,), jnp.float32)
  for part in ('first', 'next', 'other'):  # of pairs
    spec |= {part: ids, f'{part}_length': number}
  params = abstract_params(task, spec)
  key = jax.random.key(0)

  def loss(params: Any, batch: Any) -> Any:
    example = task.prepare(noise_root(key), with_step(batch, 0))
    return task.loss(bind(task, params, train=False, rng=key), example, task.init_carry(rows), key).value

  return {
    'family': settings['model']['name'],
    'variant': settings['model']['variant'],
    'parameters': _count(params),
    'trunk': _count(params['trunk']),
    'head': _count(params) - _count(params['trunk']),
    'vocab_size': vocab.size,
    'length': length,
    'gflop_per_row': round(flops.count(loss, params, spec) / 1e9, 3),
  }


def _print(rows: list[dict[str, Any]]) -> None:
  from rich.console import Console
  from rich.table import Table

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
      'of pre-training; sizes with them stand in the notes. --json has the count of each part,\n'
      'the paper, the architecture, the kind of objective and the adapters of each row.'
    )


def _whole(trunk: Any) -> Any:
  """A module that runs all of a trunk, so that all its parameters exist."""
  import flax.linen as nn
  import jax.numpy as jnp

  class Whole(nn.Module):
    trunk: nn.Module

    def __call__(self, tokens: Any, segment_ids: Any) -> Any:
      row = {'tokens': tokens, 'segment_ids': segment_ids}
      if 'encoder_tokens' in self.trunk.INPUTS:  # as long a row on each side
        row = {f'{side}_{name}': value for side in ('encoder', 'decoder') for name, value in row.items()}
      out = self.trunk(**row)
      features = jnp.zeros((*tokens.shape, self.trunk.token_embed.features))  # as wide as the table
      return self.trunk.pool(out['hidden'], segment_ids), self.trunk.attend(features)

  return Whole(trunk)


if __name__ == '__main__':
  sys.exit(command.run(main))
