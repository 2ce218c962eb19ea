"""Prepares a corpus for pre-training: leaves out what is no text, copies, and evaluation sets.

plm-jax corpus stats SOURCE                                       what is in it
plm-jax corpus filter SOURCE OUT --rules=gopher --against=../data/squad:validation
plm-jax corpus dedup SOURCE OUT [--exact] [--threshold=0.8]
plm-jax corpus split SOURCE OUT --validation=0.01 --test=0.01

SOURCE is anything that a config may name as `data.path`: tfds:NAME, a file or a folder. OUT becomes a folder that a
config names in turn: `train.jsonl`, `left_out.jsonl` with the row and the reason of all that is missing, and
`corpus.json` with what was asked, counts and digests. Each pass reads the corpus once with bounded memory. A pass that
was stopped or killed goes on with the same command, to the same bytes. Once it is done, the same command compares the
files of OUT with their digests and does nothing; other flags, another content of SOURCE or of an evaluation set, and
a file that is missing or damaged are refused by name. `stats` writes nothing, so it begins again; it spills what it
measures, 32 bytes a document, to a temporary folder, and its quantiles are exact. Rows whose text is null are left out
as `no_text`; of the others the text alone goes into OUT, no other field.

--against leaves out documents that hold 13 words in a row of an evaluation set, or a whole text of it of 8 to 12 words.
It counts the rows of that set that were found, in documents that a rule drops as well, and those of fewer than 8 words,
which are not looked for. Letters of Chinese, Japanese, Thai, Lao, Khmer and Burmese count as words, one by one; the
runs of words that `dedup` compares are made of the same. `split` draws by the text, so that copies of a document stay
on one side.
"""

import argparse
import hashlib
import logging
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from plm_jax.cli import command, logs, progress, signals, tables
from plm_jax.core.errors import STOPPED, ConfigError, Interrupted, stage
from plm_jax.io import files

if TYPE_CHECKING:
  from plm_jax.data.corpora.records import Texts

log = logging.getLogger(__name__)

SHARE = command.number("Annotated[float, '0 <= x < 1']")
ALIKE = command.number("Annotated[float, '0.1 <= x <= 0.99']")
THRESHOLD = 0.8
DOCUMENTS = ('blank_line', 'line', 'every_line', 'file')
BOUNDS = ('min_chars', 'max_chars', 'min_alpha', 'min_english')


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line and runs one pass."""
  arguments = _parsed(argv)
  from plm_jax.data.corpora import sources
  from plm_jax.data.corpora.cleaning import passes

  logs.start()
  if arguments.command != 'stats':
    passes.check_out(arguments.out)  # before hours of reading
  with stage('corpus'), signals.raising():
    texts = sources.documents(
      arguments.source, split=arguments.split, text=arguments.text, documents=arguments.documents
    )
  if arguments.command == 'stats':
    with stage('corpus'):  # a row without a text
      _stats(texts)
    return 0
  with stage('corpus'), signals.raising():
    make_judge, asked, more = PASSES[arguments.command](arguments)
  splits = ('train', 'validation', 'test') if arguments.command == 'split' else ('train',)
  done = 0

  with progress.Waiting(len(texts), 'documents') as bar:

    def tell(count: int) -> None:
      nonlocal done
      done += count
      bar.advance(count)
      if signals.asked() and done < len(texts):
        raise Interrupted(f'stopped at row {done:,} of {len(texts):,}; the same command goes on from here', STOPPED)

    given = {'command': arguments.command, 'source': arguments.source, 'split': arguments.split, 'text': texts.field}
    if arguments.documents != DOCUMENTS[0]:  # older folders do not have the usual one
      given['documents'] = arguments.documents
    with stage('corpus'):
      report = passes.run(
        texts,
        arguments.out,
        make_judge,
        splits=splits,
        asked={**given, **asked},
        more=more,
        tell=tell,
        stops=signals.asked,
      )
  _show(report, arguments.out)
  return 0


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
  """The flags; ConfigError for those that do not exist, contradict each other or ask for nothing."""
  words = list(sys.argv[1:] if argv is None else argv)
  try:
    arguments = _parser().parse_args(words)
  except ConfigError as error:
    if '--against' not in words or 'are required' not in str(error):
      raise
    raise ConfigError(
      f'{error} SOURCE and OUT stand before --against, which takes every word behind it; or write '
      '--against=PATH:SPLIT, once for each set.'
    ) from None
  if arguments.command in CHECKS:
    CHECKS[arguments.command](arguments)
  return arguments


def _check_filter(arguments: argparse.Namespace) -> None:
  least, most = arguments.min_chars, arguments.max_chars
  if most is not None and least > most:
    raise ConfigError(f'--min_chars={least} and --max_chars={most} leave no document')
  if not any(vars(arguments)[name] for name in (*BOUNDS, 'rules', 'against')):
    raise ConfigError(
      'filter has no rule: give at least one of --rules=gopher or c4, --min_chars, --max_chars, --min_alpha, '
      '--min_english, --against'
    )


def _check_dedup(arguments: argparse.Namespace) -> None:
  if arguments.exact and arguments.threshold is not None:
    raise ConfigError(
      f'--exact looks for equal texts only, and --threshold={arguments.threshold} for near copies as well: leave one '
      'of them out'
    )


def _check_split(arguments: argparse.Namespace) -> None:
  asked = f'--validation={arguments.validation} and --test={arguments.test}'
  if arguments.validation + arguments.test >= 1:
    raise ConfigError(f'{asked} leave nothing to train on')
  if not arguments.validation + arguments.test:
    raise ConfigError(f'{asked} draw nothing: give one of them a share above 0')


CHECKS = {'filter': _check_filter, 'dedup': _check_dedup, 'split': _check_split}


def _parser() -> argparse.ArgumentParser:
  form = argparse.RawDescriptionHelpFormatter
  parser = command.Parser(prog='plm-jax corpus', description=__doc__, formatter_class=form, allow_abbrev=False)
  commands = parser.add_subparsers(dest='command', required=True, metavar='stats|filter|dedup|split')
  made = {}
  for name, what in (
    ('stats', 'lengths, letters, scripts'),
    ('filter', 'leave out what is not good text, and evaluation sets'),
    ('dedup', 'leave out copies'),
    ('split', 'draw validation and test documents'),
  ):
    one = made[name] = commands.add_parser(name, help=what, allow_abbrev=False)
    one.add_argument('source', metavar='SOURCE', help='what a config names as data.path')
    if name != 'stats':
      one.add_argument('out', metavar='OUT', help='folder of the new corpus')
    one.add_argument('--split', default='train', help="such as 'train' or 'train[:10%%]' (default: train)")
    one.add_argument('--text', metavar='FIELD', help='the field that holds the text, if there are several')
    one.add_argument(
      '--documents',
      choices=DOCUMENTS,
      default=DOCUMENTS[0],
      help=f'what ends a document of a .txt file (default: {DOCUMENTS[0]}), as data.documents of a config',
    )
  one = made['filter']
  one.add_argument(
    '--rules', choices=('gopher', 'c4'), action='append', default=[], help='published rules; may be repeated'
  )
  one.add_argument('--min_chars', type=command.WHOLE, default=0, help='shortest document')
  one.add_argument('--max_chars', type=command.COUNT, help='longest document')
  one.add_argument('--min_alpha', type=SHARE, default=0.0, help='share of letters among what is no space')
  one.add_argument('--min_english', type=SHARE, default=0.0, help='share of English function words among words')
  one.add_argument(
    '--against',
    metavar='PATH:SPLIT',
    nargs='+',
    action='extend',
    default=[],
    help="evaluation sets to keep out, such as '../data/squad:validation[:10%%]'; behind SOURCE and OUT, or written "
    'with =; may be repeated. Rows of fewer than 8 words are not looked for, and are counted',
  )
  one = made['dedup']
  one.add_argument('--exact', action='store_true', help='only equal texts, apart from case, spaces and punctuation')
  one.add_argument(
    '--threshold', type=ALIKE, help=f'share of common runs of 5 words of near duplicates (default: {THRESHOLD})'
  )
  one = made['split']
  one.add_argument('--validation', type=SHARE, default=0.01, help='share of the documents')
  one.add_argument('--test', type=SHARE, default=0.01, help='share of the documents')
  one.add_argument('--seed', type=command.SEED, default=0, help='another one draws others')
  return parser


Connection = sqlite3.Connection
Pass = tuple[Callable[[Connection], Any], dict[str, Any], Callable[[Connection], Mapping[str, Any]]]


def _filter(arguments: argparse.Namespace) -> Pass:
  from plm_jax.data.corpora.cleaning import contamination, quality
  from plm_jax.data.corpora.cleaning.passes import SET_DIGESTS, Verdict

  bounds = {key: vars(arguments)[key] for key in BOUNDS}
  bounded = quality.plain(**bounds)
  rules = [bounded, *(quality.RULES[name] for name in arguments.rules)]
  sets = contamination.Sets(arguments.against)

  def make(database: Connection) -> Callable[[int, str], Verdict]:
    database.execute('create table if not exists found (name text, row integer, primary key (name, row))')

    def judge(number: int, document: str) -> Verdict:
      found, text = sets.inside(document), document
      database.executemany('insert or ignore into found values (?, ?)', found)
      for rule in rules:
        text, reason = rule(text)
        if reason:
          return Verdict('', text, reason)
      if text != document:  # a rule left lines out
        text, reason = bounded(text)
        if reason:
          return Verdict('', text, reason)
        found = sets.inside(text)
      return Verdict('', text, 'evaluation_set', found[0][0]) if found else Verdict('train', text)

    return judge

  def more(database: Connection) -> dict[str, Any]:
    counts = dict(database.execute('select name, count(*) from found group by name').fetchall())
    rows = {
      name: {'rows': count, 'found': counts.get(name, 0), 'too_short': sets.too_short[name]}
      for name, count in sets.rows.items()
    }
    return {'evaluation_rows': rows}

  digests = {SET_DIGESTS: sets.digests} if sets.digests else {}
  return make, {**bounds, 'rules': arguments.rules, 'against': arguments.against, **digests}, more


def _dedup(arguments: argparse.Namespace) -> Pass:
  from plm_jax.data.corpora.cleaning.copies import Copies
  from plm_jax.data.corpora.cleaning.passes import Verdict

  threshold = None if arguments.exact else arguments.threshold or THRESHOLD

  def make(database: Connection) -> Callable[[int, str], Verdict]:
    copies = Copies(database, threshold=threshold)

    def judge(number: int, text: str) -> Verdict:
      copy = copies.seen(number, text)
      return Verdict('train', text) if copy is None else Verdict('', text, copy.reason, copy.row)

    return judge

  return make, {'threshold': threshold}, lambda database: {}


def _split(arguments: argparse.Namespace) -> Pass:
  from plm_jax.data.corpora.cleaning.passes import Verdict
  from plm_jax.data.corpora.cleaning.word_sequences import key_of

  shares = {'validation': arguments.validation, 'test': arguments.test}

  def judge(number: int, text: str) -> Verdict:
    digest = hashlib.blake2b(f'{arguments.seed}/{key_of(text)}'.encode(), digest_size=8).digest()
    place = int.from_bytes(digest, 'little') / 2**64
    for name, share in shares.items():
      if place < share:
        return Verdict(name, text)
      place -= share
    return Verdict('train', text)

  return lambda database: judge, {**shares, 'seed': arguments.seed}, lambda database: {}


PASSES: dict[str, Callable[[argparse.Namespace], Pass]] = {'filter': _filter, 'dedup': _dedup, 'split': _split}


def _show(report: Mapping[str, Any], out: str) -> None:
  """Prints what a pass kept and left out."""
  table = Table(title=f'{report["read"]:,} documents read, {out}')
  for column in ('what', 'documents', 'share', 'characters'):
    table.add_column(column, justify='left' if column == 'what' else 'right')
  for name, count in report['kept'].items():
    share = count / max(report['read'], 1)
    table.add_row(f'kept: {name}', f'{count:,}', f'{share:.2%}', f'{report["kept_chars"][name]:,}')
  for name, count in sorted(report['dropped'].items(), key=lambda item: -item[1]):
    table.add_row(f'left out: {name}', f'{count:,}', f'{count / report["read"]:.2%}', '')
  tables.show(table)
  asked = report['asked']
  if empty := [name for name, count in report['kept'].items() if not count and asked.get(name) != 0]:
    cure = 'raise its share' if asked.get('command') == 'split' else 'leave less out'
    log.warning(f'{" and ".join(empty)} got no document of {report["read"]:,}: {cure}')
  for name, count in report.get('evaluation_rows', {}).items():
    rows, are = ('row', 'is') if count['too_short'] == 1 else ('rows', 'are')
    short = f'; {count["too_short"]:,} {rows} of fewer than 8 words {are} not looked for' if count['too_short'] else ''
    print(f'{name}: {count["found"]:,} of {count["rows"]:,} rows found in the corpus{short}')


def _stats(texts: 'Texts') -> None:
  """Prints lengths, shares and scripts. What is measured of each document lies in a temporary folder, 32 bytes."""
  from plm_jax.data.corpora.cleaning import passes, quality, quantiles

  chars, english, empty, scripts = 0, 0, 0, Counter[str]()
  with files.temporary_folder() as folder, progress.Waiting(len(texts), 'documents') as bar:
    columns = {name: quantiles.Spilled(folder / name) for name in NAMES}
    for start in range(0, len(texts), quantiles.AT_ONCE):
      measured = []
      for number in range(start, min(start + quantiles.AT_ONCE, len(texts))):
        signals.check()
        bar.advance(1)
        if (text := passes.text_of(texts, number)) is None:
          empty += 1
        else:
          measured.append(quality.measure(text))
      chars += sum(one.chars for one in measured)
      english += sum(one.english >= 0.15 for one in measured)
      scripts.update(one.script or 'none' for one in measured)
      for name, column in columns.items():
        column.append([one._asdict()[name] for one in measured])
    found = {name: column.quantiles([0.01, 0.25, 0.5, 0.75, 0.99]) for name, column in columns.items()}
  if empty == len(texts):
    raise ConfigError(f'all of the {empty:,} rows hold null for a text')
  without = f', {empty:,} further rows that hold null for a text' if empty else ''
  count = len(texts) - empty
  table = Table(title=f'{count:,} documents, {chars:,} characters{without}')
  for heading in ('of a document', '1 %', '25 %', 'median', '75 %', '99 %'):
    table.add_column(heading, justify='left' if heading == 'of a document' else 'right')
  for name, values in found.items():
    whole = name in ('chars', 'words')
    table.add_row(NAMES[name], *(f'{value:,.0f}' if whole else f'{value:.3f}' for value in values))
  tables.show(table)
  shares = ', '.join(f'{name.lower()} {of_it / count:.1%}' for name, of_it in scripts.most_common(6))
  print(f'scripts: {shares}; English by its function words (15 % of all): {english / count:.1%}')


NAMES = {
  'chars': 'characters',
  'words': 'words',
  'letters': 'share of letters',
  'english': 'share of English function words',
}

if __name__ == '__main__':
  sys.exit(command.run(main))
