"""Continues prompts, or fills the blank in them: greedily, by sampling, or by beam search.

plm-jax generate --workdir=runs/gpt --prompt="In the morning" --method=sample --top_p=0.9 --draws=3
plm-jax generate --weights=FOLDER --prompt="translate English to German: Thank you." --method=beam
plm-jax generate --workdir=runs/gpt --prompt="今天天气" --max_new=4 --trace=5

The folder is that of a run, a model in Hugging Face's form with its tokenizer.json, or an import. The prompt of a GLM
has one [MASK], which is filled. A run that translates reads a prompt in the vocabulary of what it read in training. Of
a run that learned several tasks, --part names one that writes texts.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plm_jax.cli import command
from plm_jax.core.errors import ConfigError
from plm_jax.generate import conventions, settings
from plm_jax.io import files

if TYPE_CHECKING:
  import argparse

  import rich.table

  from plm_jax.inference.opened import Opened

EARLY = {'true': True, 'false': False, 'never': 'never'}


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the flags are found to be sound."""
  parser = _parser()
  arguments = parser.parse_args(argv)
  if (arguments.workdir is None) == (arguments.weights is None):
    raise ConfigError(f'{parser.prog}: give --workdir=DIR or --weights=FOLDER, and not both')
  settings.check(vars(arguments), arguments.prompt, dash='--')
  flag = 'weights' if arguments.workdir is None else 'workdir'
  folder = files.path(arguments.workdir or arguments.weights)
  if not files.is_folder(folder):
    raise ConfigError(f'--{flag}={folder}: there is no such folder')
  return _generate(folder, arguments)


def _parser() -> command.Parser:
  import argparse

  parser = command.Parser(
    prog='plm-jax generate',
    description=__doc__,
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
  )
  parser.table = 'generate'
  add = parser.add_argument
  add('--workdir', metavar='DIR', help='a run folder')
  add('--weights', metavar='FOLDER', help="a folder in Hugging Face's form, or an import")
  add('--prompt', action='append', required=True, help='the beginning of a text; may be given several times')
  add('--method', choices=('greedy', 'sample', 'beam'), default='greedy')
  add('--max_new', type=int, default=40, help='most tokens to make (default %(default)s)')
  add('--min_new', type=int, default=0, help='tokens before the end token may come')
  add('--temperature', type=float, help='divisor of the logits (default 1)')
  add('--top_k', type=int, help='sample from this number of best tokens')
  add('--top_p', type=float, help='sample from the best tokens whose probabilities reach this sum')
  add('--beams', type=int, help='beam width (default 4)')
  add('--length_penalty', type=float, help='exponent of the length that divides log-probabilities (default 1)')
  add(
    '--early_stop',
    choices=tuple(EARLY),
    help='true: end with as many finished texts as beams (default false)',
  )
  add('--no_repeat', type=int, default=0, metavar='N', help='no N-gram comes twice')
  add('--start', metavar='TOKEN', help='token that the text of a model with an encoder or a prefix begins with')
  add('--first', metavar='TOKEN', help='token that every text begins with')
  add('--last', metavar='TOKEN', help='token that a text of --max_new tokens ends with')
  add('--draws', type=int, help='texts per prompt, with --method=sample (default 1)')
  add('--trace', type=int, metavar='K', help='show the K likeliest tokens at each step')
  add('--seed', type=int, default=0, help='seed of sampling')
  command.add_step(parser)
  command.add_part(parser)
  return parser


def _generate(folder: pathlib.Path, arguments: 'argparse.Namespace') -> int:
  """Prints each prompt with its continuations and their scores."""
  from rich.console import Console

  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs, tables
  from plm_jax.inference import continued, opened, tasks, translating

  logs.start()
  there = opened.open(folder, step=step_named(arguments.step), part=arguments.part)
  tasks.check(there, 'generate', part='--part=NAME')
  model = translating.writer(there)
  if arguments.trace is not None and model.kind == 'prefix':
    raise ConfigError(f'--trace={arguments.trace}: needs a decoder with or without an encoder; this model has a prefix')
  conventions.warn(model.generation, vars(arguments))
  asked = vars(arguments) | {'early_stop': EARLY.get(arguments.early_stop)}
  console = Console(highlight=False)
  causal = model.kind == 'causal'
  gap, start = ('', None) if causal else (' ', model.special_with(start=arguments.start).start)
  for written in (one for each in continued.write(model, arguments.prompt, asked, dash='--') for one in each):
    parts = written.before, written.new, written.after
    _print(console, parts, gap=gap, note=f'{len(written.ids)} tokens, score {written.score:.3f}')
    if arguments.trace is not None and written.ids:
      tables.show(_steps(model, written.prompt, written.ids, top=arguments.trace, start=start))
  return 0


def _print(console: Any, parts: tuple[str, str, str], *, gap: str, note: str) -> None:
  """Prints what precedes a new text, the text, what follows it, and a note below; into a file, letter by letter."""
  from rich.text import Text

  before, new, after = parts
  if not console.is_terminal:  # rich writes tabs as spaces, and leaves control characters out
    print(f'{before}{gap}{new}' + f'{gap}{after}'.rstrip())
    print(f'  {note}')
    return
  line = Text.assemble((f'{before}{gap}', 'blue'), (new, 'bold green'), (f'{gap}{after}'.rstrip(), 'blue'))
  console.print(line, soft_wrap=True)
  console.print(Text(f'  {note}', 'dim'))


def _steps(
  model: 'Opened', prompt: Sequence[int], made: Sequence[int], *, top: int, start: int | None
) -> 'rich.table.Table':
  """One row per token: the text before it, the token with its probability, and the likeliest tokens."""
  from rich.table import Table

  from plm_jax.generate import trace

  vocab: Any = model.vocab
  causal = model.kind == 'causal'
  ids, best, taken = (part.tolist() for part in trace.likeliest(*model.network, prompt, made, top=top, start=start))
  table = Table('step', 'after', 'taken', *map(str, range(1, len(ids[0]) + 1)))

  def bytes_of(token: int) -> bytes:
    """A published table may have more rows than the vocabulary has tokens."""
    return vocab.token_bytes(token) if token < vocab.size else f'<{token}>'.encode()

  begun = b''
  for number, token in enumerate(made):
    show = lambda token, p, begun=begun: f'{trace.readable(begun, bytes_of(token))[0]} {p:.3f}'  # noqa: E731
    read = [*(prompt if causal else ()), *made[:number]]
    before = conventions.decode(read, vocab).rstrip('\ufffd')[-16:]
    likeliest = [show(other, p) for other, p in zip(ids[number], best[number], strict=True)]
    table.add_row(str(number + 1), before, show(token, taken[number]), *likeliest)
    begun = trace.readable(begun, bytes_of(token))[1]
  return table
