"""Makes the vocabulary and the token stores of a run ahead of it, on a machine without a TPU.

plm-jax prepare --config=experiments/bert/base.py [--shared=PLACE] [--vocab_size=30522]

`train` makes token stores where it finds none, on every host for itself if hosts share no disk. This command makes the
same in `data.cache`, and prints where things are, with the digests that `data.json` of the run will have. A second call
finds everything, two calls at once take turns, and one that was killed goes on.

Once for all hosts: let `data.cache` be a folder that all see; or give --shared=PLACE, such a folder or a bucket. What
is missing here is then taken from there, and what is made here is left there. So call it with --shared once on any
machine, and again on each host: there it only copies, from a bucket by downloads that go on where they were cut off.

Where vocab.path holds no vocabulary, one is trained: by the command in the head of the config that makes it there, or,
with --vocab_size=N, of N ids from the text of the config. The text is downloaded if it is a set of TensorFlow Datasets.
"""

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plm_jax.cli import command, signals
from plm_jax.commands import vocab
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.text import recipe
from plm_jax.training.before.model_from import expand

if TYPE_CHECKING:
  from plm_jax.training.before.prepare import Prepared


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Prints what there is for a run in the end."""
  parser = command.command('prepare', __doc__)
  parser.add_argument(
    '--vocab_size', type=command.COUNT, metavar='N', help='ids of the vocabulary, where vocab.path holds none yet'
  )
  parser.add_argument(
    '--shared', metavar='PLACE', help='take what is missing from this folder or bucket, and leave there what is made'
  )
  parser.add_argument('--json', action='store_true', help='print JSON')
  os.environ['JAX_PLATFORMS'] = 'cpu'  # nothing is computed, and a TPU that is there may be in use
  arguments, settings = command.parse(parser, argv, workdir=False, expand=expand)
  if settings is None:
    return 0
  if arguments.shared is not None:
    files.path(arguments.shared)  # an address without a client is refused before text is read
  signals.check()
  from plm_jax.cli import logs
  from plm_jax.training.before import prepare  # loads jax

  logs.start()
  with contextlib.redirect_stdout(sys.stderr) if arguments.json else contextlib.nullcontext():
    _make_vocab(settings, config=arguments.config or '', size=arguments.vocab_size)
  found = prepare.prepare(settings, shared=arguments.shared)
  if arguments.json:
    command.show(json.dumps(_plain(found), indent=2))
  else:
    _show(found)
  return 0


def _make_vocab(settings: Mapping[str, Any], *, config: str, size: int | None) -> None:
  """Trains the vocabulary of the settings where there is none; one process of several that ask for it does."""
  from plm_jax.text import tokenizer

  path = files.path(settings['vocab']['path'])
  if tokenizer.exists(path):
    return
  words = _of_text(settings, size) if size is not None else _of_header(settings, config)
  with files.locked(path.parent / f'.{path.name}.lock', doing='training the vocabulary'):
    if not tokenizer.exists(path):
      print(f'plm-jax vocab {shlex.join(words)}', flush=True)
      vocab.main(words)


def _of_text(settings: Mapping[str, Any], size: int) -> list[str]:
  """The words of a command that trains a vocabulary on the text that the run is trained on."""
  data, kind = settings['data'], settings['vocab']['name']
  if kind not in recipe.TRAINED:
    raise ConfigError(f'--vocab_size={size}: vocabularies {kind!r} are not trained here; put one into vocab.path')
  if not data.get('path'):
    raise ConfigError(
      f'--vocab_size={size}: data {data["name"]!r} has no one text to train a vocabulary on; make it with: '
      f'plm-jax vocab train --source=TEXT --name={kind} --size={size} --out={settings["vocab"]["path"]}'
    )
  flags = {
    'source': data['path'],
    'split': data.get('split') or 'train',
    'text': data.get('text'),
    'name': kind,
    'size': size,
    'max_bytes': data.get('max_bytes'),
    'cache': data.get('cache'),
    'out': settings['vocab']['path'],
  }
  return ['train', *(f'--{flag}={value}' for flag, value in flags.items() if value is not None)]


def _of_header(settings: Mapping[str, Any], config: str) -> list[str]:
  """The words of the command in the head of the config that makes its vocabulary; ConfigError where it has none."""
  path = settings['vocab']['path']
  made = recipe.in_header(recipe.header_of(config), path)
  if made is None:
    trains = '--vocab_size=N trains one of N ids on the text of the config. ' if settings['data'].get('path') else ''
    cure = recipe.cure_of(settings, heads=[config])
    raise ConfigError(f'vocab.path: there is no vocabulary in {path}. {trains}{cure}')
  return ['train', *shlex.split(made)]


def _plain(found: 'Prepared') -> dict[str, Any]:
  def line(place: str, state: str, one: Any) -> dict[str, Any]:
    where = None if one.folder is None else str(one.folder)
    return {'place': place, 'state': state, 'what': one.what, 'digest': one.digest, 'size': one.size, 'where': where}

  return {'lines': [line(*one) for one in found.lines], **found.facts}


def _show(found: 'Prepared') -> None:
  from rich.table import Table

  from plm_jax.cli import tables

  table = Table('', 'what', 'is', 'digest', 'size', 'where')
  for place, state, one in found.lines:
    table.add_row(place, one.what, state, one.digest[:12], one.size, str(one.folder or ''))
  tables.show(table)
  for name, digest in found.facts.items():
    print(f'{name:<20}{digest}')
