"""Shows what a pre-training objective makes of a text: before, after, and what is predicted.

    python -m plm_jax.noise --text="Thank you for inviting me to your party last week ." --objective=t5
    python -m plm_jax.noise --all                   # every objective on one text
    python -m plm_jax.noise --objective=bart --draws=5 --vocab=FOLDER

Without --vocab each word and each punctuation mark of the text is a token, and a token such as ##ful continues a word.
Red tokens are corrupted, green ones are predicted, blue ones are special.
"""

import argparse
import functools
import random
import re
import statistics
import sys
import textwrap
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from plm_jax import errors
from plm_jax.cli import command
from plm_jax.errors import ConfigError
from plm_jax.noise.gallery import GALLERY, Show

TEXT = (
  'Thank you for invit ##ing me to your par ##ty last week . The cake was won ##der ##ful , and so were the songs . '
  'We should meet a ##gain soon .'
)
OTHER = 'A transformer reads all words of a sentence at once .'
SPECIALS = ('[PAD]', '[UNK]', '[CLS]', '[SEP]', '[MASK]', '<s>', '</s>', '[R]', '[S]', '[X]')
SENTINELS = tuple(f'<extra_id_{number}>' for number in range(50))
LONGEST = 120  # tokens shown
CHARACTER = '[\u3040-\u30ff\u3400-\u9fff]'  # Chinese and Japanese


class WordVocab:
  """A `types.Vocab` with each word and each punctuation mark of some texts as a token."""

  pad_id, unk_id, cls_id, sep_id, mask_id, bos_id, eos_id = range(7)
  digest = 'words'

  def __init__(self, *texts: str):
    words = [word for text in texts for word in self.split(text)]
    self._tokens = (*SPECIALS, *dict.fromkeys(words), *reversed(SENTINELS))  # T5 numbers its sentinels downwards
    self._ids = {token: number for number, token in enumerate(self._tokens)}
    self.size = len(self._tokens)
    self.special_ids = tuple(self._ids[token] for token in (*SPECIALS, *SENTINELS))
    self.starts_word = np.array([not token.startswith('##') for token in self._tokens])
    self.num_bytes = np.array([len(token.encode()) for token in self._tokens])
    self.counts = np.array([words.count(token) for token in self._tokens])

  @staticmethod
  def split(text: str) -> list[str]:
    """Words, pieces that continue a word and begin with ##, marks, and characters of scripts without spaces."""
    return re.findall(rf"##\w+|{CHARACTER}|(?:(?!{CHARACTER})\w)+(?:['’]\w+)?|[^\w\s]", text)

  def encode(self, text: str, *, specials: bool = False) -> list[int]:
    """Ids of a text."""
    del specials
    return [self._ids.get(word, self.unk_id) for word in self.split(text)]

  def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts."""
    return [self.encode(text) for text in texts]

  def decode(self, ids: Sequence[int]) -> str:
    """The text of some ids."""
    return ' '.join(self._tokens[i] for i in ids)

  def token(self, token_id: int) -> str:
    """The token of an id."""
    return self._tokens[token_id]

  def id(self, token: str) -> int:
    """The id of a token."""
    return self._ids[token]

  def save(self, folder: str) -> None:
    """Raises ValueError: this vocabulary is made from its texts and has no file."""
    raise ValueError(f'a vocabulary of one text cannot be saved to {folder}')


def main(argv: Sequence[str] | None = None) -> int:
  """Shows one objective, or all."""
  names = [show.name for show in GALLERY]
  parser = command.Parser('python -m plm_jax.noise', allow_abbrev=False, description=__doc__,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
  parser.add_argument('--text', default=TEXT)
  parser.add_argument('--objective', help=f'one of {", ".join(names)}')
  parser.add_argument('--all', action='store_true', help='every objective')
  parser.add_argument('--vocab', help='a vocabulary folder, or a published tokenizer.json')
  parser.add_argument('--seed', type=command.SEED, default=0)
  parser.add_argument('--draws', type=command.COUNT, default=1, help='how many different corruptions to show')
  parser.add_argument('--rows', type=command.COUNT, default=400, help='rows from which rates are measured')
  arguments = parser.parse_args(argv)
  if arguments.objective and arguments.objective not in names:
    from plm_jax.errors import suggest

    raise ConfigError(
      f'--objective={arguments.objective}: the gallery does not show it.{suggest(arguments.objective, names)} '
      f'Choices: {", ".join(names)}; a row of GALLERY in plm_jax/noise/gallery.py adds one'
    )
  if not arguments.objective and not arguments.all:
    arguments.objective = 'bert'
  from rich.console import Console

  # some more words, so that random tokens are not all of the text: the docstrings of some modules
  filler = [module.__doc__ or '' for module in (argparse, functools, random, re, statistics, textwrap)]
  vocab: Any = WordVocab(arguments.text, OTHER, TEXT, *filler)
  if arguments.vocab:
    from plm_jax.text import tokenizer

    with errors.stage('vocab'):
      vocab = tokenizer.load(arguments.vocab, extra=SENTINELS[::-1])
  console = Console(highlight=False)
  shown = [show for show in GALLERY if arguments.all or show.name == arguments.objective]
  words = vocab.encode(arguments.text)
  if len(words) < 4:
    raise ConfigError(f'--text has {len(words)} tokens; at least 4 are needed')
  if len(words) > LONGEST:
    console.print(f'The first {LONGEST} of {len(words):,} tokens:')
    words = words[:LONGEST]
  _table(console, [('text', _line(words, vocab))])
  console.print()
  for show in shown:
    try:
      _show(console, show, words, vocab, seed=arguments.seed, draws=arguments.draws, rows=arguments.rows)
    except ConfigError as error:
      if not arguments.all:
        raise
      _table(console, [('not here', str(error))])
  return 0


def _show(console: Any, show: Show, words: list[int], vocab: Any, *, seed: int, draws: int, rows: int) -> None:
  """Prints some corruptions of one row by an objective, and rates measured over many copies of it."""
  import jax

  from plm_jax.noise.keys import noise_root, with_step
  from plm_jax.plugins import build

  with errors.stage('model'):
    trunk = build.make('models', {'name': show.model, 'variant': 'tiny'}, vocab_size=vocab.size)
  with errors.stage('objective'):
    task = build.make('objectives', show.objective, trunk=trunk, vocab=vocab)
  # without optimisation, since compiling takes longer than running
  options = {'xla_backend_optimization_level': 0} if jax.default_backend() == 'cpu' else None
  prepare = jax.jit(lambda root, batch, step: task.prepare(root, with_step(batch, step)), compiler_options=options)
  root = noise_root(jax.random.key(seed))
  batch = _batch(show.rows, words, vocab, rows=rows)  # the first row is shown
  before = batch.get('tokens')
  console.rule(f'[bold]{show.name}[/]  {show.what}', align='left')
  with errors.stage('objective'):  # which may refuse a text that is too short
    examples = [jax.device_get(prepare(root, batch, step)) for step in range(draws + 1)]
  for example in examples[:-1]:
    _table(console, _lines(example, before, vocab))
  _table(console, [('measured', _rates(examples[-1], before))])
  console.print()


def _table(console: Any, lines: Sequence[tuple[str, str]]) -> None:
  """Prints lines of (label, text)."""
  from rich.table import Table

  table = Table.grid(padding=(0, 2, 0, 0))
  table.add_column(style='dim', justify='right', width=16)
  table.add_column(overflow='fold')
  for label, line in lines:
    table.add_row(label, line)
  console.print(table)


def _batch(kind: str, words: list[int], vocab: Any, *, rows: int) -> dict[str, np.ndarray]:
  """`rows` copies of one row; they differ in `row_id`, so each is corrupted in its own way."""
  batch = {
    'row_id': np.arange(rows, dtype=np.int32),
    'epoch': np.zeros(rows, np.int32),
    'row_weight': np.ones(rows, np.float32),
  }
  if kind == 'pair':
    half = len(words) // 2
    length = len(words) + 3  # [CLS] A [SEP] B [SEP]
    for name, ids in {'first': words[:half], 'next': words[half:], 'other': vocab.encode(OTHER)[:length]}.items():
      batch[name] = np.tile(np.array(ids + [vocab.pad_id] * (length - len(ids)), np.int32), (rows, 1))
      batch[f'{name}_length'] = np.full(rows, len(ids), np.int32)
    return batch
  row = list(words)
  if kind == 'text' and vocab.cls_id is not None and vocab.sep_id is not None:
    row = [vocab.cls_id, *words, vocab.sep_id]
  tokens = np.tile(np.array(row, np.int32), (rows, 1))
  types = (np.arange(len(row)) > len(row) // 2).astype(np.int32)
  return batch | {
    'tokens': tokens,
    'segment_ids': np.ones_like(tokens),
    'type_ids': np.tile(types, (rows, 1)),
  }


def _lines(example: Any, before: np.ndarray | None, vocab: Any) -> list[tuple[str, str]]:
  """(label, coloured text) of the parts of an example that a reader can interpret."""
  inputs, targets = example.inputs, example.targets
  out = []
  line = functools.partial(_line, vocab=vocab)
  wanted: set[int] = set()
  if 'predict' in inputs and 'weights' in targets:
    wanted = {int(p) for p, w in zip(inputs['predict'][0], targets['weights'][0], strict=True) if w > 0}
  for name, label in (('tokens', 'reads'), ('encoder_tokens', 'encoder reads'), ('decoder_tokens', 'decoder reads')):
    if name not in inputs:
      continue
    ids = inputs[name][0]
    real = int((inputs[name.replace('tokens', 'segment_ids')][0] > 0).sum())
    changed = set()
    if before is not None and name == 'tokens' and len(ids) == before.shape[1]:
      changed = set(np.flatnonzero(ids[:real] != before[0, :real]).tolist())
    out.append((label, line(ids[:real], wanted=wanted, changed=changed)))
  for name in ('positions', 'block_positions'):
    if name in inputs:
      real = int((inputs['segment_ids'][0] > 0).sum())
      out.append((name.replace('_', ' '), ' '.join(map(str, inputs[name][0][:real]))))
  if 'ids' in targets and 'weights' in targets:
    chosen = targets['weights'][0] > 0
    ids = targets['ids'][0][chosen]
    where = inputs.get('predict', inputs.get('target_positions'))
    if where is not None:
      items = sorted(zip(where[0][chosen].tolist(), ids.tolist(), strict=True))
      out.append(('predicts', '  '.join(f'[dim]{place}[/] {line([token], wanted={0})}' for place, token in items)))
    else:
      out.append(('predicts', line(ids, wanted=set(range(len(ids))))))
  for name in ('label', 'labels', 'pair_label'):
    if name in targets and targets[name].ndim == 1:
      out.append(('label', str(targets[name][0])))
  for name in ('allowed', 'permutation_mask'):
    if name in inputs and inputs[name].ndim == 3 and inputs[name].shape[-1] <= 48:
      # XLNet's mask is set where a key is hidden, UniLM's where it is seen
      seen = inputs[name][0].astype(bool)
      out.append((name.replace('_', ' '), 'one line a token, ■ where the mask is set'))
      out += [('', ''.join('■' if cell else '·' for cell in row)) for row in seen]
  return out


def _rates(example: Any, before: np.ndarray | None) -> str:
  """Shares of changed tokens and of targets, and mean lengths, over many rows, as one line."""
  inputs, targets = example.inputs, example.targets
  if before is None:  # a pair: the length of the joined row
    length, rows = (inputs['segment_ids'] > 0).sum(axis=1).mean(), len(inputs['segment_ids'])
  else:
    length, rows = before.shape[1], before.shape[0]
  parts = []
  if before is not None and 'tokens' in inputs and inputs['tokens'].shape == before.shape:
    parts.append(f'{(inputs["tokens"] != before).mean():.1%} of the tokens changed')
  if 'weights' in targets and 'ids' in targets:
    parts.append(f'{(targets["weights"] > 0).sum(axis=1).mean() / length:.1%} as many targets as tokens')
  for side in ('encoder', 'decoder'):
    if f'{side}_segment_ids' in inputs:
      parts.append(f'{side} reads {(inputs[f"{side}_segment_ids"] > 0).sum(axis=1).mean():.1f} of {length} tokens')
  return f'{", ".join(parts) or "nothing to count"} (mean of {rows} rows)'


def _line(
  ids: Sequence[int] | np.ndarray,
  vocab: Any,
  *,
  wanted: Set[int] = frozenset(),
  changed: Set[int] = frozenset(),
) -> str:
  """Tokens in colour: those at the places in `wanted` green, those in `changed` red, special ones blue."""
  from rich.markup import escape

  special = set(vocab.special_ids)
  out = []
  for place, token_id in enumerate(np.asarray(ids).tolist()):
    token = escape(vocab.token(token_id).replace('Ġ', ' ').strip() or '␣')
    style = 'red' if place in changed else 'green' if place in wanted else 'blue' if token_id in special else ''
    underline = ' underline' if place in changed & wanted else ''
    out.append(f'[{style}{underline}]{token}[/]' if style else token)
  return ' '.join(out)


if __name__ == '__main__':
  sys.exit(command.run(main))
