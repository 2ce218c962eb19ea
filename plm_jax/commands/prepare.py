"""Build the vocabulary and token stores of a run ahead.

plm-jax prepare --config=experiments/bert/base.py
plm-jax prepare --config=experiments/bert/base.py --shared=gs://bucket/stores --vocab_size=30522

`train` builds missing token stores itself, once per host unless hosts share a disk. This command builds the same ones
in `data.cache`, on a machine without a TPU. It prints their locations, and the checksums that `data.json` of the run
will have. A second call finds everything done. Two calls at once take turns, and a killed one resumes.

--shared=DIR copies missing files, the vocabulary included, from a shared folder or bucket and stores new ones there.
Call it once on any machine, then on each host, where it only copies; interrupted downloads resume. If all hosts see the
folder `data.cache`, call the command once without --shared.

With --in_place tokens stay in --shared, and training reads them there, in blocks that are held in at most 1 GiB of
memory a text: only the machine that makes them holds a copy. Rows are mixed in windows (`data.shuffle_window`).

--vocab_size=N trains a vocabulary of N ids on the text of the config if vocab.path has none. Without it, the vocabulary
is trained by the command in the config's header. Text from TensorFlow Datasets is downloaded.

--shard=I/N tokenises part I (from 0) of N of each text, for N workers at once, such as the tasks of a job array. Any
worker may make any part, and a killed one resumes. Then one call without --shard joins the parts. Workers share
`data.cache` or --shared.
"""

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plm_jax.cli import command, logs, signals
from plm_jax.commands import vocab
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.text import recipe
from plm_jax.training.before.model_from import expand

if TYPE_CHECKING:
  from plm_jax.data.made import Made
  from plm_jax.training.before.prepare import Prepared


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax prepare`."""
  parser = command.command('prepare', __doc__)
  add = parser.add_argument
  add('--vocab_size', type=command.COUNT, metavar='N', help='size of the vocabulary to train if vocab.path has none')
  add('--shared', metavar='DIR', help='folder or bucket to copy missing files from and new files to')
  add('--in_place', action='store_true', help='leave tokens in --shared, where training reads them in blocks')
  add('--shard', type=_part, metavar='I/N', help='tokenise only part I (from 0) of N of each text')
  add('--json', action='store_true', help='print JSON')
  os.environ['JAX_PLATFORMS'] = 'cpu'  # nothing is computed; a TPU of this machine may be in use
  arguments, settings = command.parse(parser, argv, workdir=False, expand=expand)
  if settings is None:
    return 0
  if arguments.in_place and arguments.shared is None:
    raise ConfigError('--in_place needs the folder or bucket to read from: add --shared=DIR')
  if arguments.shared is not None:
    files.path(arguments.shared)  # raises for an unsupported URL before text is read
  signals.check()
  from plm_jax.training.before import prepare  # loads jax

  logs.start()
  with contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext():
    prepare.share_vocab(settings, arguments.shared)
    _make_vocab(settings, config=arguments.config or '', size=arguments.vocab_size)
    prepare.share_vocab(settings, arguments.shared)
  prepared = prepare.prepare(settings, shared=arguments.shared, part=arguments.shard, reads_in_place=arguments.in_place)
  if arguments.json:
    command.show(json.dumps(_plain(prepared), indent=2))
  else:
    _show(prepared)
  return 0


def _part(text: str) -> tuple[int, int]:
  index, _, count = text.partition('/')
  if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
    raise argparse.ArgumentTypeError(f'{text!r} is not I/N with I from 0 to N - 1, such as 0/8')
  return int(index), int(count)


def _make_vocab(settings: Mapping[str, Any], *, config: str, size: int | None) -> None:
  """Train a missing vocabulary, in one of several processes."""
  from plm_jax.text import tokenizer

  path = files.path(settings['vocab']['path'])
  if tokenizer.exists(path):
    return
  words = _flags_of_text(settings, size) if size is not None else _flags_of_header(settings, config)
  with files.locked(path.parent / f'.{path.name}.lock', doing='training the vocabulary'):
    if not tokenizer.exists(path):
      print(f'plm-jax vocab {shlex.join(words)}', flush=True)
      vocab.main(words)


def _flags_of_text(settings: Mapping[str, Any], size: int) -> list[str]:
  data, kind = settings['data'], settings['vocab']['name']
  if kind not in recipe.TRAINED:
    raise ConfigError(f'--vocab_size={size}: a vocabulary {kind!r} cannot be trained; copy one to vocab.path')
  if not data.get('path'):
    raise ConfigError(
      f'--vocab_size={size}: data {data["name"]!r} is not a single text; train the vocabulary with: '
      f'plm-jax vocab train --source=TEXT --name={kind} --size={size} --out={settings["vocab"]["path"]}'
    )
  flags = {'source': data['path'], 'split': data.get('split') or 'train', 'text': data.get('text'), 'name': kind}
  flags |= {'size': size, 'max_bytes': data.get('max_bytes'), 'cache': data.get('cache')}
  flags['out'] = settings['vocab']['path']
  return ['train', *(f'--{flag}={value}' for flag, value in flags.items() if value is not None)]


def _flags_of_header(settings: Mapping[str, Any], config: str) -> list[str]:
  """Read the flags of `vocab train` in the config's header, or raise."""
  path = settings['vocab']['path']
  flags = recipe.in_header(recipe.header_of(config), path)
  if flags is None:
    hint = '--vocab_size=N trains one of N ids on the text of the config. ' if settings['data'].get('path') else ''
    fix = recipe.fix_of(settings, heads=[config])
    raise ConfigError(f'vocab.path: there is no vocabulary in {path}. {hint}{fix}')
  return ['train', *shlex.split(flags)]


def _plain(prepared: 'Prepared') -> dict[str, Any]:
  lines = [
    {
      'place': key,
      'state': state,
      'what': item.what,
      'digest': item.digest,
      'size': item.size,
      'where': None if item.folder is None else str(item.folder),
      'ids': _ids_elsewhere(item),
    }
    for key, state, item in prepared.lines
  ]
  return {'lines': lines, **prepared.facts}


def _ids_elsewhere(item: 'Made') -> str | None:
  """Return the file of token ids that training reads in place."""
  from plm_jax.data.rows import in_place

  if item.what != 'tokens' or item.folder is None or (ids := in_place.location(item.folder)) is None:
    return None
  return str(ids)


def _show(prepared: 'Prepared') -> None:
  from rich.table import Table

  from plm_jax.cli import tables

  table = Table('', 'what', 'state', 'checksum', 'size', 'location')
  for key, state, item in prepared.lines:
    table.add_row(key, item.what, state, item.digest[:12], item.size, str(item.folder or ''))
    if (ids := _ids_elsewhere(item)) is not None:
      table.add_row('', '', 'read in place', '', '', ids)
  tables.show(table)
  for name, digest in prepared.facts.items():
    print(f'{name:<20}{digest}')
