"""Goes on with prompts, or fills the blank in them: greedy, by drawing, or by beam search.

python -m plm_jax.generate --workdir=runs/gpt --prompt="In the morning" --method=sample --top_p=0.9 --draws=3
python -m plm_jax.generate --weights=FOLDER --prompt="translate English to German: Thank you." --method=beam
python -m plm_jax.generate --workdir=runs/gpt --prompt="今天天气" --max_new=4 --trace=5

The folder is that of a run, of a model in Hugging Face's form with its tokenizer.json, or an import. A GLM wants one
[MASK] in the prompt, and fills it.
"""

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plm_jax import errors
from plm_jax.cli import command
from plm_jax.errors import ConfigError
from plm_jax.text.spec import BLANKS

if TYPE_CHECKING:
  import argparse

  import rich.table

  from plm_jax.text.tokenizer import Vocab

EARLY = {'true': True, 'false': False, 'never': 'never'}
OF_METHOD = {'sample': ('temperature', 'top_k', 'top_p', 'draws'), 'beam': ('beams', 'length_penalty', 'early_stop')}


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the flags are found to be sound."""
  parser = _parser()
  arguments = parser.parse_args(argv)
  if (arguments.workdir is None) == (arguments.weights is None):
    raise ConfigError(f'{parser.prog}: give --workdir=DIR or --weights=FOLDER, and not both')
  _check(arguments)
  flag = 'weights' if arguments.workdir is None else 'workdir'
  folder = pathlib.Path(arguments.workdir or arguments.weights).expanduser()
  if not folder.is_dir():
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
  add = parser.add_argument
  add('--workdir', metavar='DIR', help='a run folder')
  add('--weights', metavar='FOLDER', help="a folder in Hugging Face's form, or an import")
  add('--prompt', action='append', required=True, help='a text to begin with; may be given several times')
  add('--method', choices=('greedy', 'sample', 'beam'), default='greedy')
  add('--max_new', type=int, default=40, help='most tokens to make')
  add('--min_new', type=int, default=0, help='tokens before the end token may come')
  add('--temperature', type=float, help='of drawing, 1 by default; below 1 is bolder on likely tokens')
  add('--top_k', type=int, help='draw among that many tokens')
  add('--top_p', type=float, help='draw among the likeliest tokens that sum to this')
  add('--beams', type=int, help='texts that beam search goes on with, 4 by default')
  add('--length_penalty', type=float, help='beams are compared by log-probability / length ** this, 1 by default')
  add('--early_stop', choices=tuple(EARLY), help='true: as many finished texts as beams are enough; false by default')
  add('--no_repeat', type=int, default=0, metavar='N', help='no N tokens in a row come twice')
  add('--start', metavar='TOKEN', help='what a decoder begins with; by default what it was trained with')
  add('--first', metavar='TOKEN', help='what a text must begin with')
  add('--last', metavar='TOKEN', help='what a text of --max_new tokens must end with')
  add('--draws', type=int, help='texts for each prompt, with --method=sample; 1 by default')
  add('--trace', type=int, metavar='K', help='show the K likeliest tokens at each step; of decoders')
  add('--seed', type=int, default=0, help='of drawing')
  add('--step', default='auto', help="of a run: a number, 'newest' or 'best'; by default the best there is")
  return parser


def _check(arguments: 'argparse.Namespace') -> None:
  """What can be said of the flags before anything is loaded."""
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
  """Prints each prompt with what follows, and its score."""
  import jax
  import jax.numpy as jnp
  from rich.console import Console
  from rich.text import Text

  from plm_jax import weights
  from plm_jax.checkpoint import CheckpointError, records
  from plm_jax.cli import logs
  from plm_jax.generate import decode, reader
  from plm_jax.text import tokenizer

  logs.start()
  step = records.step_named(arguments.step)
  is_run = (folder / 'vocab').is_dir()
  with errors.stage('vocab'):
    vocab = tokenizer.load(folder / 'vocab' if is_run else folder)
  about = json.loads((folder / 'config.json').read_text()) if (folder / 'config.json').is_file() else {}
  try:
    trunk, params = weights.load(folder, step=step)
  except CheckpointError as error:
    raise ConfigError(f'generate: {error}') from error
  if arguments.trace is not None and trunk.ATTENTION != 'causal':
    raise ConfigError(f'--trace={arguments.trace}: shows the steps of a decoder, and this is {trunk.ATTENTION}')
  special = _specials(vocab, about, arguments, kind=trunk.ATTENTION)
  with errors.stage('generate'):
    prompts = [_encode(text, vocab, special, kind=trunk.ATTENTION) for text in arguments.prompt]
  blanks = None
  if reader.fills_blanks(trunk):
    blanks = [_blank(ids, text, special['mask'], vocab) for ids, text in zip(prompts, arguments.prompt, strict=True)]
  longest = max(map(len, prompts))
  draws = arguments.draws or 1
  rows = [ids for ids in prompts for _ in range(draws)]
  tokens = jnp.array([ids + [vocab.pad_id] * (longest - len(ids)) for ids in rows], jnp.int32)
  segment_ids = jnp.array([[1] * len(ids) + [0] * (longest - len(ids)) for ids in rows], jnp.int32)
  try:
    made = decode.generate(
      trunk,
      params,
      tokens,
      segment_ids=segment_ids,
      max_new=arguments.max_new,
      method=arguments.method,
      eos_id=special['end'],
      pad_id=vocab.pad_id,
      min_new=arguments.min_new,
      no_repeat=arguments.no_repeat,
      first_id=special['first'],
      last_id=special['last'],
      temperature=1.0 if arguments.temperature is None else arguments.temperature,
      top_k=arguments.top_k,
      top_p=arguments.top_p,
      beams=arguments.beams or 4,
      length_penalty=1.0 if arguments.length_penalty is None else arguments.length_penalty,
      early_stop=EARLY[arguments.early_stop or 'false'],  # type: ignore[arg-type]
      start_id=None if trunk.ATTENTION == 'causal' else special['start'],
      blank=None if blanks is None else jnp.repeat(jnp.array(blanks, jnp.int32), draws),
      rng=jax.random.key(arguments.seed),
    )
  except ValueError as error:
    sizes = f'the longest prompt has {longest} tokens, and --max_new is {arguments.max_new}'
    raise ConfigError(f'generate: {error} ({sizes})') from error
  console = Console(highlight=False)
  for row, (ids, length, score) in enumerate(
    zip(made.tokens.tolist(), made.lengths.tolist(), made.scores.tolist(), strict=True)
  ):
    ids, number = ids[:length], row // draws
    prompt = rows[row]
    if blanks is not None:
      parts = (vocab.decode(prompt[: blanks[number]]), vocab.decode(ids), vocab.decode(prompt[blanks[number] + 1 :]))
    else:
      parts = (arguments.prompt[number], _continuation(prompt, ids, vocab, kind=trunk.ATTENTION), '')
    before, new, after = parts
    gap = '' if trunk.ATTENTION == 'causal' else ' '
    console.print(
      Text.assemble((f'{before}{gap}', 'blue'), (new, 'bold green'), (f'{gap}{after}'.rstrip(), 'blue')), soft_wrap=True
    )
    console.print(Text(f'  {length} tokens, score {score:.3f}', 'dim'))
    if arguments.trace is not None and ids:
      console.print(_steps(trunk, params, prompt, ids, vocab, top=arguments.trace))
  return 0


def _steps(
  trunk: Any, params: Any, prompt: Sequence[int], made: Sequence[int], vocab: 'Vocab', *, top: int
) -> 'rich.table.Table':
  """A row for each token: the text before it, the token with its probability, and the likeliest ones."""
  from rich.markup import escape
  from rich.table import Table

  from plm_jax.generate import trace

  table = Table('step', 'after', 'taken', *map(str, range(1, min(top, vocab.size) + 1)))
  ids, best, taken = (part.tolist() for part in trace.likeliest(trunk, params, prompt, made, top=top))
  begun = b''
  for number, token in enumerate(made):
    show = lambda token, p, begun=begun: (  # noqa: E731
      escape(f'{trace.readable(begun, vocab.token_bytes(token))[0]} {p:.3f}')
    )
    before = vocab.decode([*prompt, *made[:number]]).rstrip('\ufffd')[-16:]
    likeliest = [show(other, p) for other, p in zip(ids[number], best[number], strict=True)]
    table.add_row(str(number + 1), escape(before), show(token, taken[number]), *likeliest)
    begun = trace.readable(begun, vocab.token_bytes(token))[1]
  return table


def _specials(
  vocab: 'Vocab', about: Mapping[str, Any], arguments: 'argparse.Namespace', *, kind: str
) -> dict[str, int | None]:
  """Ids of what begins and ends a text and of what is filled, as the model was trained or as its folder says.

  Args:
    vocab: of the model.
    about: config.json of the folder.
    arguments: with what the user chose.
    kind: of the trunk's attention.
  """
  roles = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  objective = about.get('objective') or {}
  named = {name: objective.get(name) for name in ('start', 'end', 'mask')}
  theirs = about.get('decoder_start_token_id')
  end = about.get('eos_token_id')
  with errors.stage('generate'):
    forced = {
      name: None if text is None else vocab.id(text)
      for name, text in vars(arguments).items()
      if name in ('first', 'last')
    }
    if arguments.start is not None:
      first: int | None = vocab.id(arguments.start)
    elif kind == 'encoder-decoder':
      first = roles[named['start']] if named['start'] in roles else vocab.pad_id if theirs is None else int(theirs)
    else:
      first = vocab.id(named['start']) if named['start'] else vocab.bos_id
    if kind == 'prefix' and first is None:
      raise ValueError('this vocabulary has no token that begins a text: name one, --start=TOKEN')
    ends = vocab.id(named['end']) if named['end'] else end if isinstance(end, int) else vocab.eos_id
    mask = vocab.id(named['mask']) if named['mask'] else vocab.mask_id
    return {'start': first, 'end': ends, 'mask': mask, **forced}


def _encode(text: str, vocab: 'Vocab', special: Mapping[str, int | None], *, kind: str) -> list[int]:
  """Ids of a prompt, laid out as texts are in training: encoders' and prefixes' between a begin and an end."""
  if kind == 'prefix' and special['mask'] is not None:
    for blank in BLANKS:
      text = text.replace(blank, vocab.token(special['mask']))
  ids = vocab.encode(text, specials=True)
  if kind != 'causal':
    ids = [token for token in (vocab.bos_id, *ids, vocab.eos_id) if token is not None]
  elif not ids and vocab.bos_id is not None:
    ids = [vocab.bos_id]
  if not ids:
    raise ValueError('the prompt is empty, and this vocabulary has no token that begins a text')
  return ids


def _blank(ids: Sequence[int], text: str, mask_id: int | None, vocab: 'Vocab') -> int:
  """The place of the one mask in a prompt."""
  if mask_id is None:
    raise ConfigError('generate: this vocabulary has no mask token, so no prompt can hold a blank')
  if (count := list(ids).count(mask_id)) != 1:
    raise ConfigError(f'--prompt={text!r}: has {count} blanks; write one {vocab.token(mask_id)}')
  return list(ids).index(mask_id)


def _continuation(prompt: list[int], ids: list[int], vocab: 'Vocab', *, kind: str) -> str:
  """The text of what was made, with the space or the half word that it begins with."""
  if kind != 'causal':
    return vocab.decode(ids)
  whole, start = vocab.decode(prompt + ids), vocab.decode(prompt)
  return whole.removeprefix(start) if whole.startswith(start) else vocab.decode(ids)


if __name__ == '__main__':
  sys.exit(command.run(main))
