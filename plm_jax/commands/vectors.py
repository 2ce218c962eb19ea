"""Query, evaluate, plot and export word vectors.

plm-jax vectors neighbours --workdir=runs/word2vec/skipgram --words=king
plm-jax vectors analogy --file=glove.6B.50d.txt --words=man,king,woman
plm-jax vectors analogy --workdir=runs/word2vec/skipgram --questions=questions-words.txt
plm-jax vectors similarity --workdir=runs/word2vec/skipgram --pairs=wordsim353.tsv
plm-jax vectors save --workdir=runs/word2vec/skipgram --out=vectors.bin
plm-jax vectors project --workdir=runs/word2vec/skipgram --words=king,queen,bread,butter --out=map.png
plm-jax vectors polysemy --workdir=runs/bert/base --word=bank --text="We sat on the bank of the river." \\
  --text="The bank lent him money." --beside=runs/word2vec/skipgram

--workdir is a run with model.name='static'; --file is a file in word2vec's or GloVe's format, also as .gz. A fastText
run has a vector for every word, normalized as its vocabulary does (for example to lower case). Questions and pairs with
a word without a vector are counted and left out of the score.

`polysemy` works with the run of any text encoder: it compares the vectors of one word in several texts, at each layer.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plm_jax.cli import command, logs, pictures
from plm_jax.core.errors import ConfigError, counted, stage
from plm_jax.io import files, run_paths

if TYPE_CHECKING:
  from plm_jax.inference.nearest import Table
  from plm_jax.weights.word_vectors import WordVectors

WORDS = {'neighbours': 1, 'analogy': 3, 'similarity': 2}  # words of a question
FILES = {'analogy': 'questions', 'similarity': 'pairs'}  # flag of a file of questions
PICTURES = ('project', 'polysemy')


def main(argv: Sequence[str] | None = None) -> int:
  """Run `plm-jax vectors`."""
  arguments = _parser().parse_args(argv)
  if arguments.command in PICTURES:
    pictures.check_place(arguments.out, name='--out')
  if arguments.command == 'polysemy':
    _polysemy(arguments)
    return 0
  if (arguments.workdir is None) == (arguments.file is None):
    raise ConfigError('vectors: give either --workdir=DIR, a run, or --file=FILE, a file of vectors.')
  if arguments.file is not None and arguments.step is not None:
    raise ConfigError(f'--step={arguments.step}: a file of vectors has no steps: remove --step.')
  words = _words(arguments)
  if arguments.command == 'save':
    run_paths.check_place(arguments.out, name='--out')
  with stage('vectors'):
    if arguments.command == 'save':
      _save(arguments)
    elif arguments.command == 'project':
      _project(arguments, _vectors(arguments), words)
    else:
      _ask(arguments, _vectors(arguments), words)
  return 0


def _parser() -> argparse.ArgumentParser:
  parser = command.Parser('plm-jax vectors', __doc__)
  helps = {
    'neighbours': 'nearest words of a word',
    'analogy': 'A is to B as C is to which word; or the accuracy on a file of questions',
    'similarity': 'cosine of two words; or the correlation with human judgements of pairs',
    'save': 'export vectors, or convert a file of vectors',
    'project': 'plot words by the principal components of their vectors',
    'polysemy': 'similarity of one word across texts, at each layer',
  }
  commands = parser.add_subparsers(dest='command', required=True, metavar='|'.join(helps))
  for name, text in helps.items():
    subparser = commands.add_parser(name, help=text)
    add = subparser.add_argument
    add('--workdir', required=name == 'polysemy', metavar='DIR', help='run folder')
    command.add_step(subparser)
    if name != 'polysemy':
      add('--file', help="file of vectors in word2vec's (.bin: binary) or GloVe's format")
    if name in WORDS:
      count = WORDS[name]
      add('--words', metavar='WORD,...', help='one word' if count == 1 else f'{count} words, separated by commas')
    if name in ('neighbours', 'analogy'):
      add('--top', type=command.COUNT, default=10, help='number of words to show (default 10)')
    if name in FILES:
      add(f'--{FILES[name]}', metavar='FILE', help=f'file of {FILES[name]}, instead of --words')
    if name == 'save':
      add('--out', required=True, help='file to write; a name ending in .gz is compressed')
      help_ = 'format (default: binary if --out ends in .bin or .bin.gz, else word2vec)'
      add('--form', choices=('word2vec', 'binary', 'glove', 'fasttext'), help=help_)
    if name in PICTURES:
      add('--out', type=Path, default=f'{name}.png', help=f'picture to write (default: {name}.png)')
    if name == 'project':
      add('--words', required=True, metavar='WORD,...', help='three or more words, separated by commas')
    if name == 'polysemy':
      command.add_part(subparser)
      add('--word', required=True, help='word to compare')
      add('--text', action='append', required=True, help='text with the word; give two or more')
      add('--beside', metavar='DIR|FILE', help='run or file of static word vectors to compare with')
  return parser


def _words(arguments: argparse.Namespace) -> list[str]:
  """Parse --words; [] if a file has the questions."""
  words = [word for part in (vars(arguments).get('words') or '').split(',') if (word := part.strip())]
  if arguments.command not in WORDS:
    return words
  count, file = WORDS[arguments.command], FILES.get(arguments.command, '')
  if count == 1 and len(words) != 1 and (word := (arguments.words or '').strip()):
    return [word]  # a word that contains a comma, such as 1,000
  if file and (vars(arguments)[file] is None) == (not words):
    raise ConfigError(f'vectors {arguments.command}: give either --words or --{file}.')
  if len(words) != count and not (file and not words):
    raise ConfigError(f'vectors {arguments.command}: --words has {len(words)} words; expected {count}.')
  return words


def _check_read(arguments: argparse.Namespace) -> None:
  for flag in ('file', *FILES.values()):
    if (file := vars(arguments).get(flag)) is None:
      continue
    if files.is_folder(file):
      raise ConfigError(
        f'--{flag}={file} is a folder, not a file.' + ' Name a run by --workdir=DIR.' * (flag == 'file')
      )
    if not files.exists(file):
      raise ConfigError(f'--{flag}={file}: there is no such file.')


def _vectors(arguments: argparse.Namespace) -> 'WordVectors':
  _check_read(arguments)
  if arguments.file is not None:
    from plm_jax.weights import word_vectors

    return word_vectors.read(arguments.file)
  from plm_jax.inference import nearest, opened

  return nearest.of_run(opened.open(arguments.workdir, step=arguments.step))


def _save(arguments: argparse.Namespace) -> None:
  """Write a file of vectors; check its format before reading them."""
  from plm_jax.weights import word_vectors

  form = word_vectors.form_of(arguments.out, arguments.form)
  vectors = _vectors(arguments)
  count = word_vectors.write(arguments.out, vectors, form=form)
  print(f'{count:,} vectors of {vectors.vectors.shape[1]} in {arguments.out}')


def _project(arguments: argparse.Namespace, vectors: 'WordVectors', words: list[str]) -> None:
  """Plot the words, and print their coordinates."""
  from plm_jax.inference import nearest, projection

  plane = projection.project(nearest.Table(vectors), words)
  projection.draw(plane, arguments.out)
  for word, (x, y) in zip(plane.words, plane.places, strict=True):
    print(f'{x:7.3f} {y:7.3f}  {word}')
  print(f'{sum(plane.share):.1%} of the variance; picture: {arguments.out}')


def _polysemy(arguments: argparse.Namespace) -> None:
  """Print and plot the cosines of a word in several texts."""
  from plm_jax.inference import opened, polysemy

  logs.start()
  with stage('vectors'):
    network = opened.open(arguments.workdir, step=arguments.step, part=arguments.part)
    table = None if arguments.beside is None else _static_vectors(arguments.beside)
    uses = polysemy.look(network, arguments.word, arguments.text, table=table)
    for index, text in enumerate(arguments.text, start=1):
      print(f'{index}  {text}')
    polysemy.show(uses)
    polysemy.draw(uses, arguments.out)
  print(f'Picture: {arguments.out}')


def _static_vectors(where: str) -> 'Table':
  from plm_jax.inference import nearest, opened
  from plm_jax.weights import word_vectors

  if word_vectors.is_vectors(where):
    return nearest.Table(word_vectors.read(where))
  return nearest.Table(nearest.of_run(opened.open(where)))


def _ask(arguments: argparse.Namespace, vectors: 'WordVectors', words: list[str]) -> None:
  """Print the answer to a question, or the scores of a file."""
  from plm_jax.inference import nearest

  table = nearest.Table(vectors)
  if arguments.command == 'similarity':
    if words:
      print(f'{table.similarity(*words):.4f}')
    else:
      agreement = nearest.agree(table, arguments.pairs)
      over = f'over {agreement.known} of {agreement.all} pairs'
      if agreement.spearman is None:
        print(f'no correlation {over}: it needs two known pairs that differ in cosine and judgement')
      else:
        print(f'Spearman {agreement.spearman:.4f} {over}')
  elif words:
    search = table.neighbours if arguments.command == 'neighbours' else table.analogy
    for word, cosine in (nearest_words := search(*words, top=arguments.top)):
      print(f'{cosine:7.4f}  {word}')
    if not nearest_words:
      print(f'no other word: the table has {counted(len(table.words), "vector")}')
  else:
    shares = nearest.answer(table, arguments.questions)
    total = nearest.Share._make(map(sum, zip(*shares.values(), strict=True)))
    for name, share in {**shares, 'total': total}.items():
      print(f'{name:28} {share.right / max(share.known, 1):7.2%}  {share.right} of {share.known} known of {share.all}')
