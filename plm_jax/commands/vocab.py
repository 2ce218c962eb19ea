"""Trains a vocabulary and shows one.

plm-jax vocab train --source=pydocs --name=wordpiece --size=6000 --out=runs/vocab
plm-jax vocab train --source=books.txt.gz --name=byte_bpe --size=16000 --specials=gpt2 --out=runs/books_vocab
plm-jax vocab train --source=TEXT --name=sentencepiece --specials=t5 --size=8000 --out=runs/t5_vocab
plm-jax vocab train --source=TEXT --name=words --lowercase --size=50000 --out=runs/words
plm-jax vocab show runs/vocab --text="The encoder reads the whole sentence."

If the folder holds the answer to the same request, nothing is trained; a note says if the text has changed since. A
folder with another vocabulary is refused.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from plm_jax.cli import command, signals
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import run_paths
from plm_jax.text import recipe

if TYPE_CHECKING:
  from plm_jax.data.corpora.records import Texts
  from plm_jax.text.tokenizer import Vocab

DEFAULTS: dict[str, dict[str, Any]] = {  # settings of each kind
  'wordpiece': {'min_frequency': 2, 'lowercase': True, 'alphabet': None},
  'byte_bpe': {'min_frequency': 2, 'specials': 'all'},
  'sentencepiece': {
    'algorithm': 'unigram', 'specials': 'all', 'sentinels': None, 'byte_fallback': False, 'lowercase': False,
  },
  'words': {'min_frequency': 5, 'lowercase': False, 'boundaries': 'punctuation', 'specials': 'all'},
}  # fmt: skip
FLAGS = {'lowercase': '--lowercase or --cased'}
SAMPLE_WORDS = 24
SHOWN = 12  # special tokens


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line and runs `train` or `show`."""
  arguments = _parser().parse_args(argv)
  if arguments.command == 'show':
    return show(arguments)
  return train(arguments)


def train(arguments: argparse.Namespace) -> int:
  """Trains a vocabulary into `--out`, unless the same request has already filled it."""
  request = _request(arguments)
  from plm_jax.cli import logs
  from plm_jax.text import tokenizer

  logs.start()
  with errors.stage('vocab'):
    if tokenizer.exists(arguments.out):
      vocab = tokenizer.load(arguments.out)
      _refuse_another(vocab, request, out=arguments.out)
      print(f'Nothing to do: {arguments.out} was made by the same request.')
      if _documents(request, arguments).digest != vocab.record['source_digest']:
        print('The text has changed since; remove that folder to train on it as it is now.')
    else:
      run_paths.check_new_folder(arguments.out, name='--out')
      began = time.monotonic()
      with signals.raising():
        vocab = _train(request, arguments)
      vocab.save(arguments.out, template=_maker(request).template(vocab))
      print(f'Made in {time.monotonic() - began:.1f} s and saved in {arguments.out}.')
  _describe(vocab)
  return 0


def show(arguments: argparse.Namespace) -> int:
  """Prints what a vocabulary is and how it splits `--text`."""
  from plm_jax.text import tokenizer

  with errors.stage('vocab'):
    vocab = tokenizer.load(arguments.path)
  _describe(vocab)
  if arguments.text is None:
    return 0
  ids = vocab.encode(arguments.text, specials=arguments.parse_specials)
  words = len(arguments.text.split())
  print(f'\n{len(ids)} tokens, {words} words, {len(arguments.text.encode())} bytes')
  for token_id in ids:
    token = vocab.token(token_id)
    spelled = vocab.kind not in ('wordpiece', 'words') and token_id not in vocab.special_ids
    print(f'{token_id:>8}  {token:<20}{vocab.token_bytes(token_id).hex(" ").upper() if spelled else ""}'.rstrip())
  print(f'decoded: {vocab.decode(ids, specials=True)}')
  return 0


def _parser() -> argparse.ArgumentParser:
  form = argparse.RawDescriptionHelpFormatter
  parser = command.Parser(prog='plm-jax vocab', description=__doc__, formatter_class=form, allow_abbrev=False)
  commands = parser.add_subparsers(dest='command', required=True, metavar='train|show')
  one = commands.add_parser('train', help='train a vocabulary', allow_abbrev=False)
  one.add_argument(
    '--source', required=True, help="'pydocs', tfds:NAME, or a file or folder in any format of data/corpora/formats"
  )
  one.add_argument('--name', required=True, choices=recipe.TRAINED, help='the kind of vocabulary')
  one.add_argument('--size', required=True, type=command.COUNT, help='number of ids, special tokens included')
  one.add_argument('--out', required=True, metavar='DIR', help='the folder to write')
  one.add_argument('--split', default='train', help="such as 'train' or 'train[:90%%]' (default: train)")
  one.add_argument('--text', metavar='FIELD', help='the field of the source that holds the text, if there are several')
  one.add_argument(
    '--min_frequency', type=command.COUNT, help='rarer pairs of pieces, and words, get no id (default: 2; words: 5)'
  )
  one.add_argument('--limit', type=command.COUNT, metavar='N', help='read the first N documents only')
  one.add_argument(
    '--max_bytes',
    type=command.COUNT,
    metavar='N',
    help='most bytes of a document of a file, and of a .gz file unzipped (default: 1,073,741,824)',
  )
  one.add_argument('--cache', default='~/.cache/plm_jax', help='where the source is cached (default: ~/.cache/plm_jax)')
  case = one.add_mutually_exclusive_group()
  case.add_argument(
    '--lowercase', action='store_true', default=None, help='wordpiece: without case and accents (default)'
  )
  case.add_argument(
    '--cased', dest='lowercase', action='store_false', help='with case (default of sentencepiece and words)'
  )
  one.add_argument(
    '--alphabet', type=command.COUNT, metavar='N', help='wordpiece: letters to keep (default: half of --size)'
  )
  one.add_argument(
    '--specials',
    metavar='NAME',
    help='names and ids of the special tokens, as published; byte_bpe: all (default), gpt2, roberta; '
    'sentencepiece: all (default), t5, llama, albert, xlnet; words: all (default), elmo',
  )
  one.add_argument(
    '--boundaries', choices=('punctuation', 'spaces'), help='words: where they end (default: punctuation and spaces)'
  )
  one.add_argument('--algorithm', choices=('unigram', 'bpe'), help='sentencepiece: what is trained (default: unigram)')
  one.add_argument(
    '--sentinels', type=int, metavar='N', help='sentencepiece: tokens <extra_id_k> (default: 100 with --specials=t5)'
  )
  one.add_argument(
    '--byte_fallback', action='store_true', default=None, help='sentencepiece: unknown characters become bytes'
  )
  other = commands.add_parser('show', help='what a vocabulary is and how it splits a text', allow_abbrev=False)
  other.add_argument('path', metavar='DIR', help='a vocabulary folder, or a published tokenizer.json')
  other.add_argument('--text', help='the text to split')
  other.add_argument(
    '--parse_specials',
    action='store_true',
    help="read names of special tokens in --text, such as '[MASK]', as those tokens",
  )
  return parser


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
  """Everything that the vocabulary depends on, as plain data; settings without a value are absent."""
  given = vars(arguments)
  own = DEFAULTS[arguments.name]
  for flag in (flag for flags in DEFAULTS.values() for flag in flags if flag not in own):
    if given[flag] is not None:
      raise ConfigError(f'vocab train: --name={arguments.name} has no choice of {FLAGS.get(flag, f"--{flag}")}.')
  common = {name: given[name] for name in ('source', 'split', 'text', 'limit', 'name', 'size')}
  chosen = {flag: default if given[flag] is None else given[flag] for flag, default in own.items()}
  return {name: value for name, value in (common | chosen).items() if value is not None}


def _refuse_another(vocab: 'Vocab', request: dict[str, Any], *, out: str) -> None:
  made = vocab.record.get('request', {})
  changed = [name for name in {**request, **made} if made.get(name) != request.get(name)]
  if changed:
    how = ', '.join(f'{name} {made.get(name)} (asked: {request.get(name)})' for name in changed)
    raise ConfigError(
      f'vocab train: {out} holds another vocabulary, of {vocab.size} tokens and digest {vocab.digest[:12]}, '
      f'{f"made with {how}" if made else "not made by this command"}. Name another --out, or remove that folder.'
    )


def _documents(request: dict[str, Any], arguments: argparse.Namespace) -> 'Texts':
  from plm_jax.data.corpora import local, sources

  try:
    return sources.documents(
      request['source'],
      split=request['split'],
      cache=arguments.cache,
      text=request.get('text'),
      max_bytes=arguments.max_bytes or local.MAX_BYTES,
    )
  except ModuleNotFoundError as error:
    raise ConfigError(f'vocab train: {error}') from error


def _maker(request: dict[str, Any]) -> Any:
  """The file of `text/` that trains the kind of vocabulary."""
  from plm_jax.config import build

  return build.import_file(f'text.{request["name"]}')


def _train(request: dict[str, Any], arguments: argparse.Namespace) -> 'Vocab':
  import dataclasses

  from rich.console import Console
  from rich.progress import Progress

  texts, maker = _documents(request, arguments), _maker(request)
  own = {flag: request[flag] for flag in DEFAULTS[request['name']] if flag in request}
  console = Console(stderr=True)
  with Progress(console=console, disable=not console.is_terminal) as bar:
    total = min(len(texts), request.get('limit', len(texts)))
    task = bar.add_task('Training', total=maker.PASSES * total)
    documents = Documents(texts, total=total, advance=lambda: bar.advance(task))
    try:
      vocab = signals.waiting(lambda: maker.train(documents, size=request['size'], **own))
    except ModuleNotFoundError as error:
      raise ConfigError(f'vocab train: {error}') from error
  facts = {'documents': total, 'words': documents.words, 'bytes': documents.bytes, 'sample': documents.sample}
  return dataclasses.replace(vocab, record={'request': request, 'source_digest': texts.digest, **facts})


class Documents:
  """The first documents of a source, which may be iterated several times; the first time they are counted.

  Attributes:
    words: number of words, split at white space.
    bytes: number of bytes of UTF-8.
    sample: the first words of the first document with any.
  """

  def __init__(self, texts: Sequence[str], *, total: int, advance: Callable[[], None]):
    self._texts, self._total, self._advance = texts, total, advance
    self._measured = 0
    self.words = self.bytes = 0
    self.sample = ''

  def __iter__(self) -> Iterator[str]:
    for index in range(self._total):
      text = self._texts[index]
      if index == self._measured:
        self._measured += 1
        self.words += len(text.split())
        self.bytes += len(text.encode())
        self.sample = self.sample or ' '.join(text.split()[:SAMPLE_WORDS])
      self._advance()
      yield text


def _describe(vocab: 'Vocab') -> None:
  """Prints what a vocabulary is."""
  record = vocab.record
  asked = record.get('request', {}).get('size', vocab.size)
  lines = {
    'kind': vocab.kind,
    'size': f'{vocab.size:,}' + (f' (asked {asked:,}; the text has no more)' if asked > vocab.size else ''),
  }
  lines['digest'] = vocab.digest
  special = [f'{vocab.token(i)} {i}' for i in vocab.special_ids]
  few = special if len(special) <= SHOWN else [*special[: SHOWN - 1], '...', special[-1]]
  lines['special tokens'] = ', '.join(few) + (f' ({len(special)})' if few != special else '')
  lines['roles'] = ', '.join(f'{role} {token}' for role, token in vocab.roles.items())
  if vocab.counts is not None and record:
    tokens = int(vocab.counts.sum())
    source = f'{record["request"]["source"]} {record["request"]["split"]}'
    lines['trained on'] = (
      f'{source}: {record["documents"]:,} documents, {record["words"]:,} words, {record["bytes"]:,} bytes'
    )
    lines['tokens per word'] = f'{tokens / max(record["words"], 1):.3f}'
    lines['bytes per token'] = f'{record["bytes"] / max(tokens, 1):.3f}'
    if vocab.unk_id is not None:
      lines['unknown'] = f'{vocab.counts[vocab.unk_id] / max(tokens, 1):.3%} of tokens'
    lines['sample'] = ' '.join(map(vocab.token, vocab.encode(record['sample'])))
  for name, value in lines.items():
    print(f'{name:<16}{value}')
