"""Asks word vectors for nearest words, analogies and similarities, and saves them for other libraries.

plm-jax vectors neighbours --workdir=runs/word2vec/skipgram --words=king
plm-jax vectors analogy --file=glove.6B.50d.txt --words=man,king,woman
plm-jax vectors analogy --workdir=runs/word2vec/skipgram --questions=questions-words.txt
plm-jax vectors similarity --workdir=runs/word2vec/skipgram --pairs=wordsim353.tsv
plm-jax vectors save --workdir=runs/word2vec/skipgram --out=vectors.bin
plm-jax vectors project --workdir=runs/word2vec/skipgram --words=king,queen,bread,butter --out=map.png
plm-jax vectors polysemy --workdir=runs/bert/base --word=bank --text="We sat on the bank of the river." \\
  --text="The bank lent him money." --beside=runs/word2vec/skipgram

The vectors are those of a run with model.name='static', or of a file in the form of word2vec or GloVe, .gz or not.
A run of fastText, which has a vector for every word, reads a word as its vocabulary writes it, in small letters for
example. Questions and pairs with a word that has no vector are left out of scores, and counted. `polysemy` asks any
folder whose network reads text for the vectors of one word in several texts, at each of its layers.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plm_jax.cli import command, pictures
from plm_jax.core.errors import ConfigError, counted, stage
from plm_jax.io import files, run_paths

if TYPE_CHECKING:
  from plm_jax.inference.nearest import Table
  from plm_jax.weights.word_vectors import WordVectors

WORDS = {'neighbours': 1, 'analogy': 3, 'similarity': 2}  # words of a question
FILES = {'analogy': 'questions', 'similarity': 'pairs'}  # flag of a file of questions
PICTURES = ('project', 'polysemy')


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line and answers."""
  arguments = _parser().parse_args(argv)
  if arguments.command in PICTURES:
    pictures.check_place(arguments.out, name='--out')
  if arguments.command == 'polysemy':
    _polysemy(arguments)
    return 0
  if (arguments.workdir is None) == (arguments.file is None):
    raise ConfigError('vectors: name either --workdir, a run, or --file, a file of vectors.')
  if arguments.file is not None and arguments.step != 'auto':
    raise ConfigError(f'--step={arguments.step}: a file of vectors has no steps, which a run has: leave it out.')
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
  form = argparse.RawDescriptionHelpFormatter
  parser = command.Parser(prog='plm-jax vectors', description=__doc__, formatter_class=form, allow_abbrev=False)
  helps = {
    'neighbours': 'the words nearest to a word',
    'analogy': 'A,B,C: what is to C as B is to A; or the share of a file of questions that is answered right',
    'similarity': 'the cosine of A,B; or the correlation with a file of pairs that people have judged',
    'save': 'write the vectors of a run, or those of a file in another form',
    'project': 'draw a map of words, by the principal components of their vectors',
    'polysemy': 'how alike the vectors of one word in several texts are at each layer of a network',
  }
  commands = parser.add_subparsers(dest='command', required=True, metavar='|'.join(helps))
  for name, text in helps.items():
    one = commands.add_parser(name, help=text, allow_abbrev=False)
    one.add_argument('--workdir', required=name == 'polysemy', metavar='DIR', help='the run')
    command.add_step(one)
    if name != 'polysemy':
      one.add_argument('--file', help='a file of vectors in the form of word2vec (.bin: binary) or GloVe')
    if name in WORDS:
      count = WORDS[name]
      one.add_argument('--words', metavar='WORD,...', help='one' if count == 1 else f'{count}, separated by commas')
    if name in ('neighbours', 'analogy'):
      one.add_argument('--top', type=command.COUNT, default=10, help='words to show (default 10)')
    if name in FILES:
      one.add_argument(f'--{FILES[name]}', metavar='FILE', help='a file of them, in place of --words')
    if name == 'save':
      one.add_argument('--out', required=True, help='the file to write; zipped where it ends in .gz')
      help_ = 'default: binary where the file ends in .bin or .bin.gz, else word2vec'
      one.add_argument('--form', choices=('word2vec', 'binary', 'glove'), help=help_)
    if name in PICTURES:
      one.add_argument('--out', type=Path, default=f'{name}.png', help=f'the picture (default: {name}.png)')
    if name == 'project':
      one.add_argument('--words', required=True, metavar='WORD,...', help='three or more, separated by commas')
    if name == 'polysemy':
      command.add_part(one)
      one.add_argument('--word', required=True, help='the word')
      one.add_argument('--text', action='append', required=True, help='a text with the word; give two or more')
      one.add_argument('--beside', metavar='DIR|FILE', help='a run or a file of vectors without context, to compare')
  return parser


def _words(arguments: argparse.Namespace) -> list[str]:
  """The words of a question, or none where a file has the questions; a ConfigError where neither is right."""
  words = [word for part in (vars(arguments).get('words') or '').split(',') if (word := part.strip())]
  if arguments.command not in WORDS:
    return words
  count, file = WORDS[arguments.command], FILES.get(arguments.command, '')
  if count == 1 and len(words) != 1 and (one := (arguments.words or '').strip()):
    return [one]  # a word with a comma in it, such as 1,000
  if file and (vars(arguments)[file] is None) == (not words):
    raise ConfigError(f'vectors {arguments.command}: name either --words or --{file}.')
  if len(words) != count and not (file and not words):
    raise ConfigError(f'vectors {arguments.command}: --words has {len(words)} words, and takes {count}.')
  return words


def _check_read(arguments: argparse.Namespace) -> None:
  """ConfigError for a file to be read that is none, before another one is read."""
  for flag in ('file', *FILES.values()):
    if (file := vars(arguments).get(flag)) is None:
      continue
    if files.is_folder(file):
      raise ConfigError(f'--{flag}={file} is a folder, and no file.' + ' A run is --workdir.' * (flag == 'file'))
    if not files.exists(file):
      raise ConfigError(f'--{flag}={file}: there is no such file.')


def _vectors(arguments: argparse.Namespace) -> 'WordVectors':
  _check_read(arguments)
  if arguments.file is not None:
    from plm_jax.weights import word_vectors

    return word_vectors.read(arguments.file)
  from plm_jax.checkpoint import step_named
  from plm_jax.inference import nearest, opened

  return nearest.of_run(opened.open(arguments.workdir, step=step_named(arguments.step)))


def _save(arguments: argparse.Namespace) -> None:
  """Writes a file of vectors, whose form is checked before they are read."""
  from plm_jax.weights import word_vectors

  form = word_vectors.form_of(arguments.out, arguments.form)
  vectors = _vectors(arguments)
  count = word_vectors.write(arguments.out, vectors, form=form)
  print(f'{count:,} vectors of {vectors.vectors.shape[1]} in {arguments.out}')


def _project(arguments: argparse.Namespace, vectors: 'WordVectors', words: list[str]) -> None:
  """Draws the map, and prints where the words are."""
  from plm_jax.inference import nearest, projection

  found = projection.project(nearest.Table(vectors), words)
  projection.draw(found, arguments.out)
  for word, (across, up) in zip(found.words, found.places, strict=True):
    print(f'{across:7.3f} {up:7.3f}  {word}')
  print(f'{sum(found.share):.1%} of the variance; the picture is in {arguments.out}')


def _polysemy(arguments: argparse.Namespace) -> None:
  """Prints and draws the cosines of a word in several texts."""
  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs
  from plm_jax.inference import opened, polysemy

  logs.start()
  with stage('vectors'):
    network = opened.open(arguments.workdir, step=step_named(arguments.step), part=arguments.part)
    table = None if arguments.beside is None else _beside(arguments.beside)
    uses = polysemy.look(network, arguments.word, arguments.text, table=table)
    for number, text in enumerate(arguments.text, start=1):
      print(f'{number}  {text}')
    polysemy.show(uses)
    polysemy.draw(uses, arguments.out)
  print(f'The picture is in {arguments.out}')


def _beside(where: str) -> 'Table':
  """The vectors without context of a run or a file."""
  from plm_jax.inference import nearest, opened
  from plm_jax.weights import word_vectors

  if word_vectors.is_vectors(where):
    return nearest.Table(word_vectors.read(where))
  return nearest.Table(nearest.of_run(opened.open(where)))


def _ask(arguments: argparse.Namespace, vectors: 'WordVectors', asked: list[str]) -> None:
  """Prints the answer."""
  from plm_jax.inference import nearest

  table = nearest.Table(vectors)
  if arguments.command == 'similarity':
    if asked:
      print(f'{table.similarity(*asked):.4f}')
    else:
      agreed = nearest.agree(table, arguments.pairs)
      over = f'over {agreed.known} of {agreed.all} pairs'
      if agreed.spearman is None:
        print(f'no correlation {over}: it takes two that are known, with other cosines and other judgements')
      else:
        print(f'Spearman {agreed.spearman:.4f} {over}')
  elif asked:
    near = table.neighbours if arguments.command == 'neighbours' else table.analogy
    found = near(*asked, top=arguments.top)
    for word, cosine in found:
      print(f'{cosine:7.4f}  {word}')
    if not found:
      print(f'no other word: the table has {counted(len(table.words), "vector")}')
  else:
    shares = nearest.answer(table, arguments.questions)
    total = nearest.Share(*(sum(column) for column in zip(*shares.values(), strict=True)))
    for name, share in {**shares, 'in all': total}.items():
      print(f'{name:28} {share.right / max(share.known, 1):7.2%}  {share.right} of {share.known} known of {share.all}')
