"""Show how pre-training objectives corrupt a text.

plm-jax noise --text="Thank you for inviting me to your party last week ." --objective=t5
plm-jax noise --all                   every objective on one text
plm-jax noise --objective=bart --num_samples=5 --vocab=FOLDER

Prints the text before and after, and the prediction targets. Red tokens are corrupted, green ones are predicted, blue
ones are special.

--vocab names a vocabulary. Without it, each word and punctuation mark of the text is a token, and a token such as ##ful
continues a word.
"""

import argparse
import functools
import random
import re
import statistics
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from plm_jax.cli import command
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.inference import noise_page
from plm_jax.inference.noise_examples import GALLERY, Show

TEXT = (
  'Thank you for invit ##ing me to your par ##ty last week . The cake was won ##der ##ful , and so were the songs . '
  'We should meet a ##gain soon .'
)
OTHER = 'A transformer reads all words of a sentence at once .'
SPECIALS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '<s>', '</s>', '[R]', '[S]', '[X]')
SENTINELS = tuple(f'<extra_id_{number}>' for number in range(50))
LONGEST = 120  # tokens shown
NUM_SAMPLES = command.number("Annotated[int, '1 <= x <= 10_000']")
STYLES = dict(special='blue', predicted='green', changed='red', place='dim') | {'changed predicted': 'red underline'}
CHARACTER = '[\u3040-\u30ff\u3400-\u9fff]'  # Chinese and Japanese


class WordVocab:
  """A `types.Vocab` whose tokens are the words and punctuation marks of some texts."""

  pad_id, unk_id, cls_id, sep_id, mask_id, bos_id, eos_id = range(7)
  digest = 'words'

  def __init__(self, *texts: str):
    words = [word for text in texts for word in self.split(text)]
    self._tokens = (*SPECIALS, *dict.fromkeys(words), *reversed(SENTINELS))  # T5 numbers its sentinels downwards
    self._ids = {token: i for i, token in enumerate(self._tokens)}
    self.size = len(self._tokens)
    self.special_ids = tuple(self._ids[token] for token in (*SPECIALS, *SENTINELS))
    self.starts_word = np.array([not token.startswith('##') for token in self._tokens])
    self.num_bytes = np.array([len(token.encode()) for token in self._tokens])
    self.counts = np.array([words.count(token) for token in self._tokens])

  @staticmethod
  def split(text: str) -> list[str]:
    """Split into words, ## pieces, marks, and characters of scripts without spaces."""
    return re.findall(rf"##\w+|{CHARACTER}|(?:(?!{CHARACTER})\w)+(?:['’]\w+)?|[^\w\s]", text)

  def encode(self, text: str, *, specials: bool = False) -> list[int]:
    """Encode a text as ids."""
    return [self._ids.get(word, self.unk_id) for word in self.split(text)]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Encode texts as ids."""
    return [self.encode(text) for text in texts]

  def decode(self, ids: Sequence[int]) -> str:
    """Decode ids to a text."""
    return ' '.join(self._tokens[i] for i in ids)

  def token(self, token_id: int) -> str:
    return self._tokens[token_id]

  def id(self, token: str) -> int:
    return self._ids[token]

  def save(self, folder: str) -> None:
    """Raise ValueError: this vocabulary has no file."""
    raise ValueError(f'a vocabulary of one text cannot be saved to {folder}')


def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax noise`."""
  names = [show.name for show in GALLERY]
  parser = command.Parser('plm-jax noise', __doc__)
  add = parser.add_argument
  add('--text', default=TEXT, help='text to corrupt (default: an example)')
  add('--objective', help=f'one of {", ".join(names)} (default: bert)')
  add('--all', action='store_true', help='show every objective')
  add('--vocab', help='vocabulary folder, or a published tokenizer.json')
  add('--seed', type=command.SEED, default=0, help='random seed (default 0)')
  add('--num_samples', '--draws', type=NUM_SAMPLES, default=1, help='number of samples to show (default 1)')
  add('--rows', type=command.COUNT, default=400, help='number of sequences to measure rates on (default 400)')
  arguments = parser.parse_args(argv)
  if arguments.objective and arguments.objective not in names:
    from plm_jax.core.errors import suggest

    raise ConfigError(
      f'--objective={arguments.objective}: no such example.{suggest(arguments.objective, names)} '
      f'Choices: {", ".join(names)}.'
    )
  if not arguments.objective and not arguments.all:
    arguments.objective = 'bert'
  from rich.console import Console

  # more words, so that random tokens do not all come from the text: the docstrings of some modules
  filler = [module.__doc__ or '' for module in (argparse, functools, random, re, statistics, textwrap)]
  vocab: Any = WordVocab(arguments.text, OTHER, TEXT, *filler)
  if arguments.vocab:
    from plm_jax.text import tokenizer

    with errors.stage('vocab'):
      vocab = tokenizer.load(arguments.vocab, extra=SENTINELS[::-1])
  console = Console(highlight=False)
  chosen = [show for show in GALLERY if arguments.all or show.name == arguments.objective]
  words = vocab.encode(arguments.text)
  if len(words) < 4:
    raise ConfigError(f'--text has {len(words)} tokens; at least 4 are needed')
  if len(words) > LONGEST:
    console.print(f'The first {LONGEST} of {len(words):,} tokens:')
    words = words[:LONGEST]
  _table(console, [('text', _markup(noise_page.Line('text', noise_page.marked(words, vocab))))])
  console.print()
  for example in chosen:
    try:
      _show(console, example, words, vocab, seed=arguments.seed, draws=arguments.num_samples, rows=arguments.rows)
    except ConfigError as error:
      if not arguments.all:
        raise
      _table(console, [('error', str(error))])
  return 0


def _show(console: Any, show: Show, words: list[int], vocab: Any, *, seed: int, draws: int, rows: int) -> None:
  """Print samples of one sequence, and rates over many copies."""
  from plm_jax.config import build

  with errors.stage('model'):
    trunk = build.make('models', {'name': show.model, 'variant': 'tiny'}, vocab_size=vocab.size)
  with errors.stage('objective'):
    task = build.make('objectives', show.objective, trunk=trunk, vocab=vocab)
  batch = noise_page.batch(show.rows, words, vocab, rows=rows, other=vocab.encode(OTHER))  # the first sequence is shown
  before = batch.get('tokens')
  console.rule(f'[bold]{show.name}[/]  {show.what}', align='left')
  with errors.stage('objective'):  # raises if the text is too short
    examples = noise_page.examples(task.prepare, batch, seed=seed, draws=draws + 1)
  for example in examples[:-1]:
    _table(console, [(line.label, _markup(line)) for line in noise_page.lines(example, before, vocab)])
  if show.labels:
    _table(console, [('labels mean', show.labels)])
  _table(console, [('measured', noise_page.rates(examples[-1], before))])
  console.print()


def _table(console: Any, lines: Sequence[tuple[str, str]]) -> None:
  """Print lines of (label, text)."""
  from rich.table import Table

  table = Table.grid(padding=(0, 2, 0, 0))
  table.add_column(style='dim', justify='right', width=16)
  table.add_column(overflow='fold')
  for label, line in lines:
    table.add_row(label, line)
  console.print(table)


def _markup(line: noise_page.Line) -> str:
  from rich.markup import escape

  def styled(word: noise_page.Word) -> str:
    style = STYLES.get(word.mark)
    return f'[{style}]{escape(word.text)}[/]' if style else escape(word.text)

  return line.gap.join(' '.join(map(styled, item)) for item in line.items)
