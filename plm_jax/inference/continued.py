"""Text generated for prompts: a continuation, an answer, or the content of a blank."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.generate import constraints, conventions, decode, reader
from plm_jax.generate.settings import OF_METHOD
from plm_jax.inference import batches
from plm_jax.inference.opened import Opened
from plm_jax.text.spec import BLANKS


class Written(NamedTuple):
  """A text generated for a prompt."""

  prompt: list[int]  # ids of the prompt
  ids: list[int]  # generated ids
  score: float  # sum of their log-probabilities; of a beam search, divided by length ** length_penalty
  before: str  # the text before the generated one: the prompt, or the part before its blank
  new: str  # the generated text
  after: str  # the text after a blank


def write(
  opened: Opened, prompts: Sequence[str], settings: Mapping[str, Any], *, rows: int = batches.ROWS, dash: str = ''
) -> list[list[Written]]:
  """Generate texts for prompts: continue them, or fill their blanks.

  Args:
    opened: a generating model; `translating.writer` of a run.
    settings: all of `generate.settings.DEFAULTS`, checked.
    dash: prefix of the name of a setting in messages.

  Returns:
    Per prompt one text per sample.

  Raises:
    ConfigError: the model does not support a setting, or a prompt lacks the blank that it needs.
  """
  if settings['start'] is not None and opened.kind == 'causal':
    raise ConfigError(
      f'{dash}start={settings["start"]} is for encoder-decoders; a decoder-only model continues its prompt: write the '
      'token into the prompt'
    )
  special = opened.special_with(**{name: settings[name] for name in ('start', 'first', 'last')})
  with errors.stage('generate'):
    prompt_ids = [_encode(text, opened, special) for text in prompts]
  blanks = _blanks(prompt_ids, prompts, opened, special, dash=dash)
  num_samples = settings['num_samples'] or 1
  # 1. one row per sample of a prompt; rows with and without a forced first token are generated separately
  owners = [prompt for prompt in range(len(prompt_ids)) for _ in range(num_samples)]
  # transformers forces the second token of a sequence: the first generated one only after a one-token prompt
  always = opened.kind != 'causal' or settings['first'] is not None
  forced = [special.first is not None and (always or len(prompt_ids[owner]) == 1) for owner in owners]
  generated: dict[int, tuple[list[int], float]] = {}
  for force in dict.fromkeys(forced):
    indices = [row for row, is_forced in enumerate(forced) if is_forced == force]
    results = _run(
      opened,
      [prompt_ids[owners[row]] for row in indices],
      None if blanks is None else [blanks[owners[row]] for row in indices],
      settings,
      special if force else special._replace(first=None),
      row_indices=indices,
      rows=rows,
      dash=dash,
    )
    generated |= dict(zip(indices, results, strict=True))
  # 2. decoded texts by prompt
  written: list[list[Written]] = [[] for _ in prompts]
  for row, owner in enumerate(owners):
    new_ids, score = generated[row]
    blank = None if blanks is None else blanks[owner]
    before, new, after = _around(opened, prompts[owner], prompt_ids[owner], new_ids, blank)
    written[owner].append(
      Written(prompt=prompt_ids[owner], ids=new_ids, score=score, before=before, new=new, after=after)
    )
  return written


def _run(
  opened: Opened,
  prompts: Sequence[Sequence[int]],
  blanks: Sequence[int] | None,
  settings: Mapping[str, Any],
  special: conventions.Tokens,
  *,
  row_indices: Sequence[int],
  rows: int,
  dash: str,
) -> list[tuple[list[int], float]]:
  """Generate ids and a score for prompts; ConfigError for unsupported settings.

  `blanks` are the positions of masks to fill. Indices of rows among all give each batch a different random key.
  """
  (trunk, params), max_new, pad_id = opened.network, settings['max_new'], opened.vocab.pad_id
  options = {name: settings[name] for name in OF_METHOD.get(settings['method'], ()) if name != 'num_samples'}
  options = {name: value for name, value in options.items() if value is not None}
  key, sizes = jax.random.key(settings['seed']), list(map(len, prompts))

  def compute(members: np.ndarray, width: int) -> constraints.Generated:
    tokens, segments = batches.padded([prompts[row] for row in members], width, filler=opened.prompts[0].pad_id)
    first = row_indices[members[0]]
    try:
      return decode.generate(
        trunk,
        params,
        jnp.asarray(tokens),
        segment_ids=jnp.asarray(segments),
        max_new=max_new,
        method=settings['method'],
        start_id=None if trunk.ATTENTION == 'causal' else special.start,
        blank=None if blanks is None else jnp.array([blanks[row] for row in members], jnp.int32),
        rng=jax.random.fold_in(key, first) if first else key,
        eos_id=special.ends or None,
        pad_id=pad_id,
        vocab_size=opened.vocab.size,
        min_new=settings['min_new'],
        no_repeat=settings['no_repeat'],
        first_id=special.first,
        last_id=special.last or None,
        **options,
      )
    except ValueError as error:
      sizes_given = f'the longest prompt has {max(sizes)} tokens, and {dash}max_new is {max_new}'
      raise ConfigError(f'generate: {error} ({sizes_given})') from error

  results = batches.run(
    compute,
    sizes,
    limit=_widest(trunk, sizes, max_new=max_new),
    rows=rows,
    by_length=settings['method'] != 'sample',  # samples depend on the row of the batch
    doing='generate',
  )
  return [(result.tokens[: result.lengths].tolist(), float(result.scores)) for result in results]


def _widest(trunk: Any, sizes: Sequence[int], *, max_new: int) -> int | None:
  """Compute the maximum prompt tokens per batch; None for no bound."""
  tables = list(trunk.position_rows.values())
  if (encoder := getattr(trunk, 'source', None)) is not None:  # of `translate_bart`
    tables += encoder.position_rows.values()
  if not tables:
    return None
  taken = max_new - 1 if trunk.ATTENTION == 'causal' else 0  # a decoder continues the sequence of its prompt
  return max(min(map(len, tables)) - taken, *sizes)


def _encode(text: str, opened: Opened, special: conventions.Tokens) -> list[int]:
  """Encode a prompt, with the vocabulary's mask in its blanks."""
  if opened.kind != 'causal' and special.mask is not None and opened.prompts[0] is opened.vocab:
    for blank in BLANKS:
      text = text.replace(blank, opened.vocab.token(special.mask))
  return conventions.prompt(text, opened.encoder)


def _blanks(
  rows: Sequence[Sequence[int]], prompts: Sequence[str], opened: Opened, special: conventions.Tokens, *, dash: str
) -> list[int] | None:
  """Find each prompt's one mask; None without blanks; ConfigError for other counts."""
  if not reader.fills_blanks(opened.trunk):
    return None
  if special.mask is None:
    raise ConfigError('generate: the vocabulary has no mask token, so no prompt can have a blank')
  for ids, text in zip(rows, prompts, strict=True):
    if (count := list(ids).count(special.mask)) != 1:
      raise ConfigError(
        f'{dash}prompt={text!r}: has {count} blanks; write exactly one {opened.vocab.token(special.mask)}'
      )
  return [list(ids).index(special.mask) for ids in rows]


def _around(
  opened: Opened, text: str, prompt: Sequence[int], new: Sequence[int], blank: int | None
) -> tuple[str, str, str]:
  """Return the text before the generated one, itself, and the text after."""
  vocab: Any = opened.vocab
  decoded = conventions.decode(new, vocab)
  if blank is not None:
    return vocab.decode(prompt[:blank]), decoded, vocab.decode(prompt[blank + 1 :])
  if opened.kind == 'causal':  # keeps the leading space or word fragment
    whole, start = conventions.decode([*prompt, *new], vocab), conventions.decode(prompt, vocab)
    decoded = whole.removeprefix(start) if whole.startswith(start) else decoded
  return text, decoded, ''
