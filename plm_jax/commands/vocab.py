"""Train or inspect a vocabulary.

plm-jax vocab train --source=pydocs --name=wordpiece --size=6000 --out=runs/vocab
plm-jax vocab train --source=books.txt.gz --name=byte_bpe --size=16000 --specials=gpt2 --out=runs/books_vocab
plm-jax vocab train --source=TEXT --name=sentencepiece --specials=t5 --size=8000 --out=runs/t5_vocab
plm-jax vocab train --source=TEXT --name=words --lowercase --size=50000 --out=runs/words
plm-jax vocab show runs/vocab --text="The encoder reads the whole sentence."

If --out already holds the result of the same flags, nothing is trained; a note says if the text has changed since. A
folder with another vocabulary is an error.
"""

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from plm_jax.cli import command, logs, signals
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.io import run_paths
from plm_jax.text import recipe

if TYPE_CHECKING:
  from plm_jax.data.corpora.records import Texts
  from plm_jax.text.tokenizer import Vocab

DEFAULTS: dict[str, dict[str, Any]] = {  # of each kind of vocabulary
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
  """Run `plm-jax vocab train` or `plm-jax vocab show`."""
  arguments = _parser().parse_args(argv)
  return show(arguments) if arguments.command == 'show' else train(arguments)


def train(arguments: argparse.Namespace) -> int:
  """Train a vocabulary, unless `--out` holds the same request."""
  request = _request(arguments)
  from plm_jax.text import tokenizer

  logs.start()
  with errors.stage('vocab'):
    if tokenizer.exists(arguments.out):
      vocab = tokenizer.load(arguments.out)
      _check_same(vocab, request, out=arguments.out)
      print(f'Nothing to do: {arguments.out} was trained with the same flags.')
      if _documents(request, arguments).digest != vocab.record['source_digest']:
        print('The text has changed since then; remove that folder to train on the new text.')
    else:
      run_paths.check_new_folder(arguments.out, name='--out')
      began = time.monotonic()
      with signals.raising():
        vocab = _train(request, arguments)
      vocab.save(arguments.out, template=_maker(request).template(vocab))
      print(f'Trained in {time.monotonic() - began:.1f} s and saved in {arguments.out}.')
  _describe(vocab)
  return 0


def show(arguments: argparse.Namespace) -> int:
  """Print facts about a vocabulary, and how it splits `--text`."""
  from plm_jax.text import tokenizer

  with errors.stage('vocab'):
    vocab = tokenizer.load(arguments.path)
  _describe(vocab)
  if arguments.text is None:
    return 0
  ids = vocab.encode(arguments.text, specials=arguments.parse_specials)
  words = len(arguments.text.split())
  print(f'\n{len(ids)} tokens, {words} words, {len(arguments.text.encode())} bytes; {_unknown(vocab, arguments.text)}')
  for token_id in ids:
    token = vocab.token(token_id)
    spelled = vocab.kind not in ('wordpiece', 'words') and token_id not in vocab.special_ids
    print(f'{token_id:>8}  {token:<20}{vocab.token_bytes(token_id).hex(" ").upper() if spelled else ""}'.rstrip())
  print(f'decoded: {vocab.decode(ids, specials=True)}')
  return 0


def _unknown(vocab: 'Vocab', text: str) -> str:
  """Count the words with a part that the vocabulary lacks."""
  if vocab.unk_id is None:
    return 'no word can be unknown'
  words = text.split()
  counts = Counter(word for word in words if vocab.unk_id in vocab.encode(word))
  shown = ', '.join(f'{word} ({count})' for word, count in counts.most_common(SHOWN))
  more = ', ...' if len(counts) > SHOWN else ''
  return f'{counts.total()} of {len(words)} words unknown or in part{": " if shown else ""}{shown}{more}'


def _parser() -> argparse.ArgumentParser:
  parser = command.Parser('plm-jax vocab', __doc__)
  commands = parser.add_subparsers(dest='command', required=True, metavar='train|show')
  _add_train_flags(commands.add_parser('train', help='train a vocabulary'))
  show_parser = commands.add_parser('show', help='show a vocabulary and how it splits a text')
  show_parser.add_argument('path', metavar='DIR', help='vocabulary folder, or a published tokenizer.json')
  show_parser.add_argument('--text', help='text to split')
  show_parser.add_argument(
    '--parse_specials', action='store_true', help="parse special tokens in --text, such as '[MASK]', as tokens"
  )
  return parser


def _add_train_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    '--source',
    required=True,
    help="'pydocs', tfds:NAME, or a text file, folder or pattern, also at hf://, gs:// or s3://",
  )
  add('--name', required=True, choices=recipe.TRAINED, help='kind of vocabulary')
  add('--size', required=True, type=command.COUNT, help='number of ids, including special tokens')
  add('--out', required=True, metavar='DIR', help='folder to write')
  add('--split', default='train', help="split of the source, such as 'train[:90%%]' (default: train)")
  add('--text', metavar='FIELD', help='text field of the source, if there are several')
  add(
    '--min_frequency', type=command.COUNT, help='minimum count of a pair of pieces, or of a word (default: 2; words: 5)'
  )
  add('--limit', type=command.COUNT, metavar='N', help='read only the first N documents')
  help_ = 'maximum bytes of a document (default: 1,073,741,824)'
  add('--max_bytes', type=command.COUNT, metavar='N', help=help_)
  add('--cache', default='~/.cache/plm_jax', help='cache folder (default: ~/.cache/plm_jax)')
  case = parser.add_mutually_exclusive_group()
  case.add_argument(
    '--lowercase', action='store_true', default=None, help='remove case and accents (default of wordpiece)'
  )
  case.add_argument(
    '--cased', dest='lowercase', action='store_false', help='keep case (default of sentencepiece and words)'
  )
  help_ = 'wordpiece: number of characters to keep (default: half of --size)'
  add('--alphabet', type=command.COUNT, metavar='N', help=help_)
  help_ = (
    'published set of special tokens; byte_bpe: all (default), gpt2, roberta; sentencepiece: all (default), t5, '
    'llama, albert, xlnet; words: all (default), elmo'
  )
  add('--specials', metavar='NAME', help=help_)
  add(
    '--boundaries', choices=('punctuation', 'spaces'), help='words: where words end (default: punctuation and spaces)'
  )
  add('--algorithm', choices=('unigram', 'bpe'), help='sentencepiece: algorithm (default: unigram)')
  help_ = 'sentencepiece: number of <extra_id_k> tokens (default: 100 with --specials=t5)'
  add('--sentinels', type=int, metavar='N', help=help_)
  add('--byte_fallback', action='store_true', default=None, help='sentencepiece: encode unknown characters as bytes')


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
  """Collect everything that the vocabulary depends on."""
  given = vars(arguments)
  own = DEFAULTS[arguments.name]
  for flag in (flag for flags in DEFAULTS.values() for flag in flags if flag not in own):
    if given[flag] is not None:
      raise ConfigError(f'vocab train: --name={arguments.name} does not use {FLAGS.get(flag, f"--{flag}")}: remove it.')
  common = {name: given[name] for name in ('source', 'split', 'text', 'limit', 'name', 'size')}
  chosen = {flag: default if given[flag] is None else given[flag] for flag, default in own.items()}
  return {name: value for name, value in (common | chosen).items() if value is not None}


def _check_same(vocab: 'Vocab', request: dict[str, Any], *, out: str) -> None:
  before = vocab.record.get('request', {})
  changed = [name for name in {**request, **before} if before.get(name) != request.get(name)]
  if changed:
    values = ', '.join(f'{name} is {before.get(name)}, not {request.get(name)}' for name in changed)
    raise ConfigError(
      f'vocab train: {out} holds another vocabulary of {vocab.size} tokens '
      f'({values if before else "not made by this command"}). Choose another --out, or remove that folder.'
    )


def _documents(request: dict[str, Any], arguments: argparse.Namespace) -> 'Texts':
  from plm_jax.data.corpora import local, sources

  try:
    options = {'cache': arguments.cache, 'max_bytes': arguments.max_bytes or local.MAX_BYTES}
    return sources.documents(request['source'], split=request['split'], text=request.get('text'), **options)
  except ModuleNotFoundError as error:
    raise ConfigError(f'vocab train: {error}') from error


def _maker(request: dict[str, Any]) -> Any:
  """Import the module of `text/` that trains this kind of vocabulary."""
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
  """The first documents of a source, counted during the first iteration.

  Attributes:
    words: number of words separated by white space.
    bytes: number of UTF-8 bytes.
    sample: the first words of the first non-empty document, in at most 8 letters each.
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
        self.sample = self.sample or ' '.join(text.split()[:SAMPLE_WORDS])[: 8 * SAMPLE_WORDS]
      self._advance()
      yield text


def _describe(vocab: 'Vocab') -> None:
  """Print size, checksum, special tokens and training statistics."""
  record = vocab.record
  requested = record.get('request', {}).get('size', vocab.size)
  size = f'{vocab.size:,}' + (f' ({requested:,} requested; the text has no more)' if requested > vocab.size else '')
  lines = {'kind': vocab.kind, 'size': size, 'digest': vocab.digest}
  special = [f'{vocab.token(i)} {i}' for i in vocab.special_ids]
  shown = special if len(special) <= SHOWN else [*special[: SHOWN - 1], '...', special[-1]]
  lines['special tokens'] = ', '.join(shown) + (f' ({len(special)})' if shown != special else '')
  lines['roles'] = ', '.join(f'{role} {token}' for role, token in vocab.roles.items())
  if vocab.counts is not None and record:
    tokens = int(vocab.counts.sum())
    source = f'{record["request"]["source"]} {record["request"]["split"]}'
    counts = f'{record["documents"]:,} documents, {record["words"]:,} words, {record["bytes"]:,} bytes'
    lines['trained on'] = f'{source}: {counts}'
    lines['tokens per word'] = f'{tokens / max(record["words"], 1):.3f}'
    lines['bytes per token'] = f'{record["bytes"] / max(tokens, 1):.3f}'
    if vocab.unk_id is not None:
      lines['unknown'] = f'{vocab.counts[vocab.unk_id] / max(tokens, 1):.3%} of tokens'
    lines['sample'] = ' '.join(map(vocab.token, vocab.encode(record['sample'])))
  for name, value in lines.items():
    print(f'{name:<16}{value}')
