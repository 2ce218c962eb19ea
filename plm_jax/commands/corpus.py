"""Filter, deduplicate and split a text corpus, or make that of the small tables.

plm-jax corpus stats SOURCE                                       lengths, letters and scripts
plm-jax corpus filter SOURCE OUT --rules=gopher --against=../data/squad:validation
plm-jax corpus dedup SOURCE OUT --threshold=0.8
plm-jax corpus dedup SOURCE OUT --exact
plm-jax corpus split SOURCE OUT --validation=0.01 --test=0.01
plm-jax corpus english DATA OUT                                   text of the small tables

SOURCE is any value of `data.path` in a config: tfds:NAME, a file or a folder. OUT becomes a folder that a config can
name: `train.jsonl`, `left_out.jsonl` with the row and reason of every removed document, and `corpus.json` with the
flags, counts and checksums. Only the text field is copied. Rows whose text is null are removed as `no_text`.

Each pass reads the corpus once with bounded memory. A stopped or killed pass resumes with the same command, to the same
bytes. If OUT is complete, the same command only verifies its checksums. Other flags, a changed SOURCE or evaluation
set, and a missing or damaged file are errors. `stats` writes nothing and starts again; it stores 32 bytes a document in
a temporary folder, and its quantiles are exact.

--against=PATH:SPLIT removes documents that contain 13 consecutive words of an evaluation set, or one of its texts of 8
to 12 words. It reports how many examples of the set were found, also in documents removed by another rule. Examples of
fewer than 8 words are not searched, only counted. Characters of Chinese, Japanese, Thai, Lao, Khmer and Burmese count
as one word each, here and in the word sequences that `dedup` compares.

`split` samples by a hash of the text, so copies of a document are in the same split.

`english` joins classic_books and english_wiki of the folder DATA to OUT/train.txt and OUT/validation.txt. The tables
read it in runs/data/english.
"""

import argparse
import hashlib
import logging
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any

from plm_jax.cli import command, logs, progress, signals, tables
from plm_jax.core.errors import STOPPED, ConfigError, Interrupted, stage
from plm_jax.io import files, run_paths

if TYPE_CHECKING:
  from plm_jax.data.corpora.records import Texts

log = logging.getLogger(__name__)

SHARE = command.number("Annotated[float, '0 <= x < 1']")
SIMILARITY = command.number("Annotated[float, '0.1 <= x <= 0.99']")
THRESHOLD = 0.8
DOCUMENTS = ('blank_line', 'line', 'every_line', 'file', 'exact_file')
BOUNDS = ('min_chars', 'max_chars', 'min_alpha', 'min_english')


@signals.caught()
def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax corpus`: one pass over a corpus."""
  arguments = _parsed(argv)
  from plm_jax.data.corpora import sources
  from plm_jax.data.corpora.cleaning import passes

  logs.start()
  if arguments.command == 'english':
    from plm_jax.data.corpora import english

    run_paths.check_new_folder(arguments.out, name='OUT')
    for name, digest in english.make(arguments.data, arguments.out).items():
      print(f'{files.path(arguments.out) / name}  sha256 {digest}')
    return 0
  if arguments.command != 'stats':
    passes.check_out(arguments.out)  # before hours of reading
  with stage('corpus'), signals.raising():
    texts = sources.documents(
      arguments.source, split=arguments.split, text=arguments.text, documents=arguments.documents
    )
  if arguments.command == 'stats':
    with stage('corpus'):  # for a row without a text
      _stats(texts)
    return 0
  with stage('corpus'), signals.raising():
    make_judge, options, more = PASSES[arguments.command](arguments)
  splits = ('train', 'validation', 'test') if arguments.command == 'split' else ('train',)
  done = 0

  with progress.Waiting(len(texts), 'documents') as bar:

    def tell(count: int) -> None:
      nonlocal done
      done += count
      bar.advance(count)
      if signals.asked() and done < len(texts):
        raise Interrupted(f'stopped at row {done:,} of {len(texts):,}; the same command resumes here', STOPPED)

    request = {'command': arguments.command, 'source': arguments.source, 'split': arguments.split, 'text': texts.field}
    if arguments.documents != DOCUMENTS[0]:  # folders of older versions do not record the default
      request['documents'] = arguments.documents
    request |= options
    with stage('corpus'):
      report = passes.run(
        texts, arguments.out, make_judge, splits=splits, asked=request, more=more, tell=tell, stops=signals.asked
      )
  _show(report, arguments.out)
  return 0


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
  """Parse the flags; raise ConfigError if they exclude each other."""
  words = list(sys.argv[1:] if argv is None else argv)
  try:
    arguments = _parser().parse_args(words)
  except ConfigError as error:
    if '--against' not in words or 'are required' not in str(error):
      raise
    raise ConfigError(
      f'{error} Write SOURCE and OUT before --against, or use --against=PATH:SPLIT once for each set.'
    ) from None
  if arguments.command in CHECKS:
    CHECKS[arguments.command](arguments)
  return arguments


def _check_filter(arguments: argparse.Namespace) -> None:
  low, high = arguments.min_chars, arguments.max_chars
  if high is not None and low > high:
    raise ConfigError(f'--min_chars={low} is more than --max_chars={high}: lower it')
  if not any(vars(arguments)[name] for name in (*BOUNDS, 'rules', 'against')):
    raise ConfigError(
      'filter needs a rule: --rules=gopher, --rules=c4, --min_chars, --max_chars, --min_alpha, '
      '--min_english, or --against'
    )


def _check_dedup(arguments: argparse.Namespace) -> None:
  if arguments.exact and arguments.threshold is not None:
    raise ConfigError(
      f'--exact removes equal texts only, --threshold={arguments.threshold} near duplicates too: remove one of them'
    )


def _check_split(arguments: argparse.Namespace) -> None:
  flags = f'--validation={arguments.validation} and --test={arguments.test}'
  if arguments.validation + arguments.test >= 1:
    raise ConfigError(f'{flags} leave no training text: their sum must be below 1')
  if not arguments.validation + arguments.test:
    raise ConfigError(f'{flags} split nothing: set one of them above 0')


CHECKS = {'filter': _check_filter, 'dedup': _check_dedup, 'split': _check_split}


def _parser() -> argparse.ArgumentParser:
  parser = command.Parser('plm-jax corpus', __doc__)
  commands = parser.add_subparsers(dest='command', required=True, metavar='stats|filter|dedup|split|english')
  parsers = {}
  for name, purpose in (
    ('stats', 'print lengths, letters and scripts'),
    ('filter', 'remove low-quality text and evaluation data'),
    ('dedup', 'remove duplicates'),
    ('split', 'sample validation and test documents'),
  ):
    parsers[name] = commands.add_parser(name, help=purpose)
    add = parsers[name].add_argument
    add('source', metavar='SOURCE', help='corpus, as in data.path of a config')
    if name != 'stats':
      add('out', metavar='OUT', help='folder of the new corpus')
    add('--split', default='train', help="split of SOURCE, such as 'train[:10%%]' (default: train)")
    add('--text', metavar='FIELD', help='text field of SOURCE, if there are several')
    help_ = f'document boundary in a .txt file, as data.documents of a config (default: {DOCUMENTS[0]})'
    add('--documents', choices=DOCUMENTS, default=DOCUMENTS[0], help=help_)
  add = commands.add_parser('english', help='make the text of the small tables').add_argument
  add('data', metavar='DATA', help='folder that holds classic_books and english_wiki')
  add('out', metavar='OUT', help='folder of the text')
  _add_filter_flags(parsers['filter'])
  add = parsers['dedup'].add_argument
  add('--exact', action='store_true', help='remove only equal texts, ignoring case, spaces and punctuation')
  help_ = f'minimum share of common 5-word sequences of near duplicates (default: {THRESHOLD})'
  add('--threshold', type=SIMILARITY, help=help_)
  add = parsers['split'].add_argument
  add('--validation', type=SHARE, default=0.01, help='share of documents for validation (default: 0.01)')
  add('--test', type=SHARE, default=0.01, help='share of documents for testing (default: 0.01)')
  add('--seed', type=command.SEED, default=0, help='random seed of the split (default: 0)')
  return parser


def _add_filter_flags(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add('--rules', choices=('gopher', 'c4'), action='append', default=[], help='published rules; may be repeated')
  add('--min_chars', type=command.WHOLE, default=0, help='minimum characters of a document')
  add('--max_chars', type=command.COUNT, help='maximum characters of a document')
  add('--min_alpha', type=SHARE, default=0.0, help='minimum share of letters among non-space characters')
  add('--min_english', type=SHARE, default=0.0, help='minimum share of English function words among words')
  help_ = (
    "evaluation sets to remove, such as '../data/squad:validation[:10%%]'; after SOURCE and OUT, or with =; may be "
    'repeated. Examples of fewer than 8 words are only counted'
  )
  add('--against', metavar='PATH:SPLIT', nargs='+', action='extend', default=[], help=help_)


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

    def judge(index: int, document: str) -> Verdict:
      matches, text = sets.inside(document), document
      database.executemany('insert or ignore into found values (?, ?)', matches)
      for rule in rules:
        text, reason = rule(text)
        if reason:
          return Verdict('', text, reason)
      if text != document:  # a rule removed lines
        text, reason = bounded(text)
        if reason:
          return Verdict('', text, reason)
        matches = sets.inside(text)
      return Verdict('', text, 'evaluation_set', matches[0][0]) if matches else Verdict('train', text)

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

    def judge(index: int, text: str) -> Verdict:
      copy = copies.seen(index, text)
      return Verdict('train', text) if copy is None else Verdict('', text, copy.reason, copy.row)

    return judge

  return make, {'threshold': threshold}, lambda database: {}


def _split(arguments: argparse.Namespace) -> Pass:
  from plm_jax.data.corpora.cleaning.passes import Verdict
  from plm_jax.data.corpora.cleaning.word_sequences import key_of

  shares = {'validation': arguments.validation, 'test': arguments.test}

  def judge(index: int, text: str) -> Verdict:
    digest = hashlib.blake2b(f'{arguments.seed}/{key_of(text)}'.encode(), digest_size=8).digest()
    remainder = int.from_bytes(digest, 'little') / 2**64  # uniform in [0, 1)
    for name, share in shares.items():
      if remainder < share:
        return Verdict(name, text)
      remainder -= share
    return Verdict('train', text)

  return lambda database: judge, {**shares, 'seed': arguments.seed}, lambda database: {}


PASSES: dict[str, Callable[[argparse.Namespace], Pass]] = {'filter': _filter, 'dedup': _dedup, 'split': _split}


def _show(report: Mapping[str, Any], out: str) -> None:
  """Print the numbers of retained and removed documents."""
  columns = ('result', 'documents', 'share', 'characters')
  table = tables.new(columns, title=f'{report["read"]:,} documents read, {out}', left=('result',))
  for name, count in report['kept'].items():
    share = count / max(report['read'], 1)
    table.add_row(f'kept: {name}', f'{count:,}', f'{share:.2%}', f'{report["kept_chars"][name]:,}')
  for name, count in sorted(report['dropped'].items(), key=lambda item: -item[1]):
    table.add_row(f'left out: {name}', f'{count:,}', f'{count / report["read"]:.2%}', '')
  tables.show(table)
  request = report['asked']
  if empty := [name for name, count in report['kept'].items() if not count and request.get(name) != 0]:
    fix = 'increase its share' if request.get('command') == 'split' else 'use weaker rules'
    log.warning(f'{" and ".join(empty)} got none of {report["read"]:,} documents: {fix}')
  for name, count in report.get('evaluation_rows', {}).items():
    short = f'; {count["too_short"]:,} with fewer than 8 words not searched' if count['too_short'] else ''
    print(f'{name}: {count["found"]:,} of {count["rows"]:,} examples found in the corpus{short}')


def _stats(texts: 'Texts') -> None:
  """Print lengths, shares and scripts of a corpus."""
  from plm_jax.data.corpora.cleaning import passes, quality, quantiles

  total_chars, num_english, num_empty, scripts = 0, 0, 0, Counter[str]()
  with files.temporary_folder() as folder, progress.Waiting(len(texts), 'documents') as bar:
    columns = {name: quantiles.Spilled(folder / name) for name in NAMES}
    for start in range(0, len(texts), quantiles.AT_ONCE):
      measured = []
      for index in range(start, min(start + quantiles.AT_ONCE, len(texts))):
        signals.check()
        bar.advance(1)
        if (text := passes.text_of(texts, index)) is None:
          num_empty += 1
        else:
          measured.append(quality.measure(text))
      total_chars += sum(document.chars for document in measured)
      num_english += sum(document.english >= 0.15 for document in measured)
      scripts.update(document.script or 'none' for document in measured)
      for name, column in columns.items():
        column.append([document._asdict()[name] for document in measured])
    levels = {name: column.quantiles([0.01, 0.25, 0.5, 0.75, 0.99]) for name, column in columns.items()}
  if num_empty == len(texts):
    raise ConfigError(f'SOURCE: all of the {num_empty:,} rows hold null as text: choose another --text=FIELD')
  without = f', {num_empty:,} further rows that hold null as text' if num_empty else ''
  count = len(texts) - num_empty
  headings = ('per document', '1 %', '25 %', 'median', '75 %', '99 %')
  title = f'{count:,} documents, {total_chars:,} characters{without}'
  table = tables.new(headings, title=title, left=('per document',))
  for name, values in levels.items():
    is_count = name in ('chars', 'words')
    table.add_row(NAMES[name], *(f'{value:,.0f}' if is_count else f'{value:.3f}' for value in values))
  tables.show(table)
  shares = ', '.join(f'{name.lower()} {documents / count:.1%}' for name, documents in scripts.most_common(6))
  print(f'scripts: {shares}; English (15 % function words): {num_english / count:.1%}')


NAMES = {
  'chars': 'characters',
  'words': 'words',
  'letters': 'share of letters',
  'english': 'share of English function words',
}
