"""Goes on with prompts, or fills the blank in them: greedy, by drawing, or by beam search.

python -m plm_jax.generate --workdir=runs/gpt --prompt="In the morning" --method=sample --top_p=0.9 --draws=3
python -m plm_jax.generate --weights=FOLDER --prompt="translate English to German: Thank you." --method=beam

The folder is that of a run, of a model in Hugging Face's form with its tokenizer.json, or an import. A GLM wants one
[MASK] in the prompt, and fills it.
"""

import json
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plm_jax import config
from plm_jax.fill import BLANKS

if TYPE_CHECKING:
  import argparse

  from plm_jax.types import Vocab

EARLY = {'true': True, 'false': False, 'never': 'never'}


def main(argv: Sequence[str] | None = None) -> int:
  """Parses the command line; jax is loaded only after the flags are found to be sound."""
  parser = _parser()
  arguments = parser.parse_args(argv)
  if (arguments.workdir is None) == (arguments.weights is None):
    raise config.ConfigError(f'{parser.prog}: give --workdir=DIR or --weights=FOLDER, and not both')
  if arguments.draws < 1 or (arguments.draws > 1 and arguments.method != 'sample'):
    raise config.ConfigError(f'--draws={arguments.draws}: is positive, and above 1 with --method=sample alone')
  flag = 'weights' if arguments.workdir is None else 'workdir'
  folder = pathlib.Path(arguments.workdir or arguments.weights).expanduser()
  if not folder.is_dir():
    raise config.ConfigError(f'--{flag}={folder}: there is no such folder')
  return _generate(folder, arguments)


def _parser() -> config.Parser:
  import argparse

  parser = config.Parser(
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
  add('--temperature', type=float, default=1.0, help='of drawing; below 1 is bolder on likely tokens')
  add('--top_k', type=int, help='draw among that many tokens')
  add('--top_p', type=float, help='draw among the likeliest tokens that sum to this')
  add('--beams', type=int, default=4, help='texts that beam search goes on with')
  add('--length_penalty', type=float, default=1.0, help='beams are compared by log-probability / length ** this')
  add('--early_stop', choices=tuple(EARLY), default='false', help='true: as many finished texts as beams are enough')
  add('--no_repeat', type=int, default=0, metavar='N', help='no N tokens in a row come twice')
  add('--start', metavar='TOKEN', help='what a decoder begins with; by default what it was trained with')
  add('--draws', type=int, default=1, help='texts for each prompt, with --method=sample')
  add('--seed', type=int, default=0, help='of drawing')
  add('--step', default='auto', help="of a run: a number, 'newest' or 'best'; by default the best there is")
  return parser


def _generate(folder: pathlib.Path, arguments: 'argparse.Namespace') -> int:
  """Prints each prompt with what follows, and its score."""
  import jax
  import numpy as np
  from rich.console import Console
  from rich.text import Text

  from plm_jax import logs, param_files, scoring, weights
  from plm_jax.generate import decode
  from plm_jax.text import tokenizer

  logs.start()
  is_run = (folder / 'vocab').is_dir()
  with config.stage('vocab'):
    vocab = tokenizer.load(folder / 'vocab' if is_run else folder)
  about = json.loads((folder / 'config.json').read_text()) if (folder / 'config.json').is_file() else {}
  step = scoring.step_named(arguments.step)
  try:
    trunk, params = weights.load(folder, step='best' if step is None else step)
  except param_files.CheckpointError as error:
    raise config.ConfigError(f'generate: {error}') from error
  special = _specials(vocab, about, kind=trunk.ATTENTION, start=arguments.start)
  with config.stage('generate'):
    prompts = [_encode(text, vocab, special, kind=trunk.ATTENTION) for text in arguments.prompt]
  blanks = None
  if decode.fills_blanks(trunk):
    blanks = [_blank(ids, text, special['mask'], vocab) for ids, text in zip(prompts, arguments.prompt, strict=True)]
  longest = max(map(len, prompts))
  rows = [ids for ids in prompts for _ in range(arguments.draws)]
  tokens = np.array([ids + [vocab.pad_id] * (longest - len(ids)) for ids in rows], np.int32)
  segment_ids = np.array([[1] * len(ids) + [0] * (longest - len(ids)) for ids in rows], np.int32)
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
      temperature=arguments.temperature,
      top_k=arguments.top_k,
      top_p=arguments.top_p,
      beams=arguments.beams,
      length_penalty=arguments.length_penalty,
      early_stop=EARLY[arguments.early_stop],  # type: ignore[arg-type]
      start_id=None if trunk.ATTENTION == 'causal' else special['start'],
      blank=None if blanks is None else np.repeat(np.array(blanks, np.int32), arguments.draws),
      rng=jax.random.key(arguments.seed),
    )
  except ValueError as error:
    sizes = f'the longest prompt has {longest} tokens, and --max_new is {arguments.max_new}'
    raise config.ConfigError(f'generate: {error} ({sizes})') from error
  console = Console(highlight=False)
  for row, (ids, length, score) in enumerate(
    zip(made.tokens.tolist(), made.lengths.tolist(), made.scores.tolist(), strict=True)
  ):
    ids, number = ids[:length], row // arguments.draws
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
  return 0


def _specials(vocab: 'Vocab', about: Mapping[str, Any], *, kind: str, start: str | None) -> dict[str, int | None]:
  """Ids of what begins and ends a text and of what is filled, as the model was trained or as its folder says.

  Args:
    vocab: of the model.
    about: config.json of the folder.
    kind: of the trunk's attention.
    start: the user's choice of the first.
  """
  roles = {'pad': vocab.pad_id, 'bos': vocab.bos_id, 'eos': vocab.eos_id}
  objective = about.get('objective') or {}
  named = {name: objective.get(name) for name in ('start', 'end', 'mask')}
  theirs = about.get('decoder_start_token_id')
  end = about.get('eos_token_id')
  with config.stage('generate'):
    if start is not None:
      first: int | None = vocab.id(start)
    elif kind == 'encoder-decoder':
      first = roles[named['start']] if named['start'] in roles else vocab.pad_id if theirs is None else int(theirs)
    else:
      first = vocab.id(named['start']) if named['start'] else vocab.bos_id
    if kind == 'prefix' and first is None:
      raise ValueError('this vocabulary has no token that begins a text: name one, --start=TOKEN')
    last = vocab.id(named['end']) if named['end'] else end if isinstance(end, int) else vocab.eos_id
    return {'start': first, 'end': last, 'mask': vocab.id(named['mask']) if named['mask'] else vocab.mask_id}


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
    raise config.ConfigError('generate: this vocabulary has no mask token, so no prompt can hold a blank')
  if (count := list(ids).count(mask_id)) != 1:
    raise config.ConfigError(f'--prompt={text!r}: has {count} blanks; write one {vocab.token(mask_id)}')
  return list(ids).index(mask_id)


def _continuation(prompt: list[int], ids: list[int], vocab: 'Vocab', *, kind: str) -> str:
  """The text of what was made, with the space or the half word that it begins with."""
  if kind != 'causal':
    return vocab.decode(ids)
  whole, start = vocab.decode(prompt + ids), vocab.decode(prompt)
  return whole.removeprefix(start) if whole.startswith(start) else vocab.decode(ids)


if __name__ == '__main__':
  sys.exit(config.run(main))
