"""Continue prompts, or fill the blank in them: greedily, by sampling, or by beam search.

plm-jax generate --workdir=runs/gpt --prompt="In the morning" --method=sample --top_p=0.9 --num_samples=3
plm-jax generate --weights=FOLDER --prompt="translate English to German: Thank you." --method=beam
plm-jax generate --workdir=runs/gpt --prompt="今天天气" --max_new=4 --trace=5

The folder is that of a run, a model in Hugging Face's form with its tokenizer.json, or a converted checkpoint. The
prompt of a GLM has one [MASK], which is filled. A run that translates reads prompts in its source language. For a
run of several tasks, --part names one that generates text.
"""

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plm_jax.cli import command, logs
from plm_jax.core.errors import ConfigError
from plm_jax.generate import conventions, settings
from plm_jax.io import files, other_forms

if TYPE_CHECKING:
  import argparse

  import rich.table

  from plm_jax.inference.opened import Opened

EARLY = {'true': True, 'false': False, 'never': 'never'}


def main(argv: Sequence[str] | None = None) -> int:
  """Parse the command line; load jax only if the flags are valid."""
  parser = _parser()
  arguments = parser.parse_args(argv)
  given = settings.rename_old(vars(arguments), dash='--') | {'early_stop': EARLY.get(arguments.early_stop)}
  arguments = type(arguments)(**given)
  if (arguments.workdir is None) == (arguments.weights is None):
    raise ConfigError(f'{parser.prog}: give --workdir=DIR or --weights=FOLDER, not both')
  settings.check(vars(arguments), arguments.prompt, dash='--')
  flag = 'weights' if arguments.workdir is None else 'workdir'
  where = arguments.workdir or arguments.weights
  if not files.is_folder(files.path(where)):
    raise ConfigError(f'--{flag}: {other_forms.explain(where)}')
  return _generate(files.path(where), arguments)


def _parser() -> command.Parser:
  import argparse

  parser = command.Parser('plm-jax generate', __doc__)
  parser.table = 'generate'
  add = parser.add_argument
  add('--workdir', metavar='DIR', help='a run folder')
  add('--weights', metavar='FOLDER', help="a folder in Hugging Face's form, or a converted checkpoint")
  add('--prompt', action='append', required=True, help='the beginning of a text; can be repeated')
  add('--method', choices=('greedy', 'sample', 'beam'), default='greedy')
  add('--max_new', type=int, default=40, help='most tokens to generate (default %(default)s)')
  add('--min_new', type=int, default=0, help='fewest tokens before the end token')
  add('--temperature', type=float, help='divisor of the logits (default 1)')
  add('--top_k', type=int, help='sample from the K best tokens', metavar='K')
  add('--top_p', type=float, help='sample from the best tokens whose probabilities reach this sum')
  add('--beams', type=int, help='beam width (default 4)')
  add('--length_penalty', type=float, help='exponent of the length that divides log-probabilities (default 1)')
  help_ = 'true: stop once there are as many finished texts as beams (default false)'
  add('--early_stop', choices=tuple(EARLY), help=help_)
  add('--no_repeat', type=int, default=0, metavar='N', help='no N-gram occurs twice')
  add('--start', metavar='TOKEN', help='first token that the decoder of a model with an encoder or a prefix reads')
  add('--first', metavar='TOKEN', help='first token of every text')
  add('--last', metavar='TOKEN', help='last token of a text of --max_new tokens')
  add('--num_samples', type=int, metavar='N', help='texts per prompt, with --method=sample (default 1)')
  add('--draws', type=int, help=argparse.SUPPRESS)  # the old name, for one release
  add('--trace', type=int, metavar='K', help='show the K most likely tokens at each step')
  add('--seed', type=int, default=0, help='seed of sampling')
  command.add_step(parser)
  command.add_part(parser)
  return parser


def _generate(folder: pathlib.Path, arguments: 'argparse.Namespace') -> int:
  """Print each prompt with its continuations and their scores."""
  from rich.console import Console

  from plm_jax.cli import tables
  from plm_jax.inference import continued, opened, tasks, translating

  logs.start()
  saved = opened.open(folder, step=arguments.step, part=arguments.part)
  tasks.check(saved, 'generate', part='--part=NAME')
  model = translating.writer(saved)
  if arguments.trace is not None and model.kind == 'prefix':
    raise ConfigError(f'--trace={arguments.trace} needs a causal model or an encoder-decoder; this model has a prefix')
  conventions.warn(model.generation, vars(arguments))
  console = Console(highlight=False)
  causal = model.kind == 'causal'
  gap, start = ('', None) if causal else (' ', model.special_with(start=arguments.start).start)
  texts_by_prompt = continued.write(model, arguments.prompt, vars(arguments), dash='--')
  for written in (text for texts in texts_by_prompt for text in texts):
    parts = written.before, written.new, written.after
    _print(console, parts, gap=gap, note=f'{len(written.ids)} tokens, score {written.score:.3f}')
    if arguments.trace is not None and written.ids:
      tables.show(_steps(model, written.prompt, written.ids, top=arguments.trace, start=start))
  return 0


def _print(console: Any, parts: tuple[str, str, str], *, gap: str, note: str) -> None:
  """Print the text with its new part, and a note.

  If the output is a file, characters are printed unchanged.
  """
  from rich.text import Text

  before, new, after = parts
  if not console.is_terminal:  # rich replaces tabs by spaces and drops control characters
    print(f'{before}{gap}{new}' + f'{gap}{after}'.rstrip())
    print(f'  {note}')
    return
  line = Text.assemble((f'{before}{gap}', 'blue'), (new, 'bold green'), (f'{gap}{after}'.rstrip(), 'blue'))
  console.print(line, soft_wrap=True)
  console.print(Text(f'  {note}', 'dim'))


def _steps(
  model: 'Opened', prompt: Sequence[int], new_ids: Sequence[int], *, top: int, start: int | None
) -> 'rich.table.Table':
  """Build a table with one row per generated token.

  Columns: the text before it, the token with its probability, and the most likely tokens.
  """
  from rich.table import Table

  from plm_jax.generate import trace

  vocab: Any = model.vocab
  causal = model.kind == 'causal'
  ids, best, taken = (part.tolist() for part in trace.likeliest(*model.network, prompt, new_ids, top=top, start=start))
  table = Table('step', 'after', 'taken', *map(str, range(1, len(ids[0]) + 1)))

  def bytes_of(token: int) -> bytes:
    return vocab.token_bytes(token) if token < vocab.size else f'<{token}>'.encode()

  begun = b''
  for index, token in enumerate(new_ids):
    show = lambda token, p, begun=begun: f'{trace.readable(begun, bytes_of(token))[0]} {p:.3f}'  # noqa: E731
    read = [*(prompt if causal else ()), *new_ids[:index]]
    before = conventions.decode(read, vocab).rstrip('\ufffd')[-16:]
    likeliest = [show(other, p) for other, p in zip(ids[index], best[index], strict=True)]
    table.add_row(str(index + 1), before, show(token, taken[index]), *likeliest)
    begun = trace.readable(begun, bytes_of(token))[1]
  return table
