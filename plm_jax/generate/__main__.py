"""Continues prompts, or fills the blank in them: greedily, by sampling, or by beam search.

python -m plm_jax.generate --workdir=runs/gpt --prompt="In the morning" --method=sample --top_p=0.9 --draws=3
python -m plm_jax.generate --weights=FOLDER --prompt="translate English to German: Thank you." --method=beam
python -m plm_jax.generate --workdir=runs/gpt --prompt="今天天气" --max_new=4 --trace=5

The folder is that of a run, a model in Hugging Face's form with its tokenizer.json, or an import. The prompt of a GLM
has one [MASK], which is filled.
"""

import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plm_jax import errors, files
from plm_jax.cli import command
from plm_jax.errors import ConfigError
from plm_jax.generate import conventions
from plm_jax.text.spec import BLANKS

if TYPE_CHECKING:
  import argparse

  import rich.table

  from plm_jax.inference.opened import Opened
  from plm_jax.text.tokenizer import Vocab

EARLY = {'true': True, 'false': False, 'never': 'never'}
SETTINGS = {'sample': ('temperature', 'top_k', 'top_p'), 'beam': ('beams', 'length_penalty', 'early_stop')}
OF_METHOD = {**SETTINGS, 'sample': (*SETTINGS['sample'], 'draws')}


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the flags are found to be sound."""
  parser = _parser()
  arguments = parser.parse_args(argv)
  if (arguments.workdir is None) == (arguments.weights is None):
    raise ConfigError(f'{parser.prog}: give --workdir=DIR or --weights=FOLDER, and not both')
  _check(arguments)
  flag = 'weights' if arguments.workdir is None else 'workdir'
  folder = files.path(arguments.workdir or arguments.weights)
  if not files.is_folder(folder):
    raise ConfigError(f'--{flag}={folder}: there is no such folder')
  return _generate(folder, arguments)


def _parser() -> command.Parser:
  import argparse

  parser = command.Parser(
    prog='python -m plm_jax.generate',
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
  add('--start', metavar='TOKEN', help='token that a decoder begins with (default: as in training)')
  add('--first', metavar='TOKEN', help='token that every text begins with')
  add('--last', metavar='TOKEN', help='token that a text of --max_new tokens ends with')
  add('--draws', type=int, help='texts per prompt, with --method=sample (default 1)')
  add('--trace', type=int, metavar='K', help='show the K likeliest tokens at each step')
  add('--seed', type=int, default=0, help='seed of sampling')
  add('--step', default='auto', help="step of a run: a number, 'newest' or 'best' (default: the best if there is one)")
  return parser


def _check(arguments: 'argparse.Namespace') -> None:
  """Raises ConfigError for mistakes that the flags alone show, before anything is loaded."""
  given = vars(arguments)
  for method, names in OF_METHOD.items():
    if arguments.method != method and (odd := [name for name in names if given[name] is not None]):
      raise ConfigError(
        f'--{odd[0]}={given[odd[0]]}: belongs to --method={method}, and the method is {arguments.method}'
      )
  for name in ('max_new', 'temperature', 'top_k', 'beams', 'draws', 'trace'):
    if given[name] is not None and given[name] <= 0:
      raise ConfigError(f'--{name}={given[name]}: must be above 0')
  if arguments.top_p is not None and not 0 < arguments.top_p <= 1:
    raise ConfigError(f'--top_p={arguments.top_p}: must be above 0 and at most 1')
  if not 0 <= arguments.min_new <= arguments.max_new:
    raise ConfigError(f'--min_new={arguments.min_new}: must be from 0 to --max_new, {arguments.max_new}')
  if arguments.no_repeat < 0:
    raise ConfigError(f'--no_repeat={arguments.no_repeat}: must not be below 0')
  if not all(text.strip() for text in arguments.prompt):
    raise ConfigError('--prompt: is empty; give a text to begin with')


def _generate(folder: pathlib.Path, arguments: 'argparse.Namespace') -> int:
  """Prints each prompt with its continuations and their scores."""
  from rich.console import Console

  from plm_jax.checkpoint import step_named
  from plm_jax.cli import logs, tables
  from plm_jax.inference import opened as opened_folder

  logs.start()
  step = step_named(arguments.step)
  opened = opened_folder.open(folder, step=step, flags=vars(arguments), user='generate')
  if arguments.trace is not None and opened.trunk.ATTENTION == 'prefix':
    raise ConfigError(f'--trace={arguments.trace}: needs a decoder with or without an encoder; this model has a prefix')
  kind, vocab = opened.trunk.ATTENTION, opened.vocab
  with errors.stage('generate'):
    prompts = [_encode(text, opened) for text in arguments.prompt]
  blanks = _blanks(prompts, opened, arguments)
  draws = arguments.draws or 1
  made = _run(opened, [ids for ids in prompts for _ in range(draws)], blanks, arguments)
  console = Console(highlight=False)
  for row, (ids, score) in enumerate(made):
    prompt = prompts[row // draws]
    if blanks is None:
      text = arguments.prompt[row // draws]
      parts = (text, _continuation(prompt, ids, vocab, kind=kind), '')
    else:
      place = blanks[row // draws]
      parts = (vocab.decode(prompt[:place]), conventions.decode(ids, vocab), vocab.decode(prompt[place + 1 :]))
    _print(console, parts, gap='' if kind == 'causal' else ' ', note=f'{len(ids)} tokens, score {score:.3f}')
    if arguments.trace is not None and ids:
      tables.show(_steps(opened, prompt, ids, top=arguments.trace))
  return 0


def _run(
  opened: 'Opened', rows: Sequence[Sequence[int]], blanks: Sequence[int] | None, arguments: 'argparse.Namespace'
) -> list[tuple[list[int], float]]:
  """The ids made for each row, and their score.

  Args:
    opened: the model.
    rows: ids of the prompts, each as often as it has draws.
    blanks: by prompt, the place of the mask to fill; None for models without blanks.
    arguments: the flags.

  Raises:
    ConfigError: flags that the model cannot meet.
  """
  import jax
  import jax.numpy as jnp

  from plm_jax.generate import decode

  trunk, special, pad_id = opened.trunk, opened.special, opened.vocab.pad_id
  longest = max(map(len, rows))
  # transformers forces the second token of a decoder's row, which is that of the text for a prompt of one token
  forces_first = trunk.ATTENTION != 'causal' or longest == 1 or arguments.first is not None
  given = {name: vars(arguments)[name] for name in SETTINGS.get(arguments.method, ())}
  try:
    made = decode.generate(
      trunk,
      opened.params,
      jnp.array([[*ids, *[pad_id] * (longest - len(ids))] for ids in rows], jnp.int32),
      segment_ids=jnp.array([[1] * len(ids) + [0] * (longest - len(ids)) for ids in rows], jnp.int32),
      max_new=arguments.max_new,
      method=arguments.method,
      start_id=None if trunk.ATTENTION == 'causal' else special.start,
      blank=None if blanks is None else jnp.repeat(jnp.array(blanks, jnp.int32), arguments.draws or 1),
      rng=jax.random.key(arguments.seed),
      eos_id=special.ends or None,
      pad_id=pad_id,
      min_new=arguments.min_new,
      no_repeat=arguments.no_repeat,
      first_id=special.first if forces_first else None,
      last_id=special.last or None,
      **{name: EARLY.get(value, value) for name, value in given.items() if value is not None},
    )
  except ValueError as error:
    sizes = f'the longest prompt has {longest} tokens, and --max_new is {arguments.max_new}'
    raise ConfigError(f'generate: {error} ({sizes})') from error
  texts = zip(made.tokens.tolist(), made.lengths.tolist(), made.scores.tolist(), strict=True)
  return [(ids[:length], score) for ids, length, score in texts]


def _print(console: Any, parts: tuple[str, str, str], *, gap: str, note: str) -> None:
  """Prints what precedes a new text, the text, what follows it, and a note below."""
  from rich.text import Text

  before, new, after = parts
  line = Text.assemble((f'{before}{gap}', 'blue'), (new, 'bold green'), (f'{gap}{after}'.rstrip(), 'blue'))
  console.print(line, soft_wrap=True)
  console.print(Text(f'  {note}', 'dim'))


def _steps(opened: 'Opened', prompt: Sequence[int], made: Sequence[int], *, top: int) -> 'rich.table.Table':
  """One row per token: the text before it, the token with its probability, and the likeliest tokens."""
  from rich.markup import escape
  from rich.table import Table

  from plm_jax.generate import trace

  vocab, causal = opened.vocab, opened.trunk.ATTENTION == 'causal'
  start = None if causal else opened.special.start
  table = Table('step', 'after', 'taken', *map(str, range(1, min(top, vocab.size) + 1)))
  ids, best, taken = (
    part.tolist() for part in trace.likeliest(opened.trunk, opened.params, prompt, made, top=top, start=start)
  )
  begun = b''
  for number, token in enumerate(made):
    show = lambda token, p, begun=begun: (  # noqa: E731
      escape(f'{trace.readable(begun, vocab.token_bytes(token))[0]} {p:.3f}')
    )
    read = [*(prompt if causal else ()), *made[:number]]
    before = conventions.decode(read, vocab).rstrip('\ufffd')[-16:]
    likeliest = [show(other, p) for other, p in zip(ids[number], best[number], strict=True)]
    table.add_row(str(number + 1), escape(before), show(token, taken[number]), *likeliest)
    begun = trace.readable(begun, vocab.token_bytes(token))[1]
  return table


def _encode(text: str, opened: 'Opened') -> list[int]:
  """Ids of a prompt; however a user writes the blank of a prompt, it becomes the mask of the vocabulary."""
  vocab, special, kind = opened.vocab, opened.special, opened.trunk.ATTENTION
  if kind != 'causal' and special.mask is not None:
    for blank in BLANKS:
      text = text.replace(blank, vocab.token(special.mask))
  return conventions.encode(text, vocab, opened.tokenizer, special, kind=kind, published=opened.published)


def _blanks(prompts: Sequence[Sequence[int]], opened: 'Opened', arguments: 'argparse.Namespace') -> list[int] | None:
  """The place of the mask in each prompt; None for a model that fills no blanks.

  Raises:
    ConfigError: a prompt with no mask or with several, or a vocabulary without a mask token.
  """
  from plm_jax.generate import reader

  if not reader.fills_blanks(opened.trunk):
    return None
  mask = opened.special.mask
  if mask is None:
    raise ConfigError('generate: this vocabulary has no mask token, so no prompt can have a blank')
  for ids, text in zip(prompts, arguments.prompt, strict=True):
    if (count := list(ids).count(mask)) != 1:
      raise ConfigError(f'--prompt={text!r}: has {count} blanks; write one {opened.vocab.token(mask)}')
  return [list(ids).index(mask) for ids in prompts]


def _continuation(prompt: list[int], ids: list[int], vocab: 'Vocab', *, kind: str) -> str:
  """The new text, with the space or the rest of a word that it begins with."""
  alone = conventions.decode(ids, vocab)
  if kind != 'causal':
    return alone
  whole, start = conventions.decode([*prompt, *ids], vocab), conventions.decode(prompt, vocab)
  return whole.removeprefix(start) if whole.startswith(start) else alone


if __name__ == '__main__':
  sys.exit(command.run(main))
