"""A model as the lm-evaluation-harness of EleutherAI asks for one (Gao et al. 2021; its `lm_eval.api.model`).

A decoder, or an encoder-decoder whose encoder reads the context. What a text is split into follows the harness: spaces
at the end of a context belong to the continuation, a decoder's tokens are those of both texts together, special tokens
are those of the folder's tokenizer, what is too long loses its beginning, and a text without a context begins with the
token that begins texts, or ends them. So log-likelihoods are those of the harness's own `hf` models.

Rows of similar lengths make a batch, and lengths are rounded up, so that a task needs few compilations.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from lm_eval import evaluator, tasks, utils
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM

from plm_jax.adapters import answers
from plm_jax.cli import signals
from plm_jax.core.errors import ConfigError, suggest
from plm_jax.core.trunk import longest_row
from plm_jax.core.types import Array, PyTree
from plm_jax.generate import conventions, decode
from plm_jax.inference.opened import Opened
from plm_jax.layers.losses import cross_entropy, in_chunks, most_likely

MAX_NEW = 256  # tokens to make where a task does not say, as in the harness
LOGIT_ROWS = 8  # rows whose logits are in memory at a time

Backend = Literal['causal', 'seq2seq']
BACKENDS: Mapping[str, Backend] = {'causal': 'causal', 'encoder-decoder': 'seq2seq'}
# tokens of a row where neither a table nor the config bounds them: as in the harness, and of T5's training
UNBOUNDED: Mapping[Backend, int] = {'causal': 2_048, 'seq2seq': 512}
LENGTH_NAMES = ('max_gen_toks', 'max_new_tokens', 'max_tokens', 'max_completion_tokens')  # one thing, the first counts
INERT = ('use_cache',)


class Request(NamedTuple):
  """What is scored, in tokens.

  Attributes:
    context: what is read.
    continuation: what is scored behind it, at least one token.
  """

  context: list[int]
  continuation: list[int]


class Likelihood(NamedTuple):
  """Of a continuation: the sum of the log-probabilities of its tokens, and whether each is the likeliest one."""

  total: float
  is_greedy: bool


class Model(TemplateLM):
  """A folder's model for the harness.

  Attributes:
    max_length: most tokens of a row: what a decoder reads, or either stack of an encoder-decoder.
    batch_size: rows that are computed together.
  """

  def __init__(self, opened: Opened, *, batch_size: int, max_length: int | None = None):
    """Binds a model.

    Args:
      opened: the model, with its tokenizer.
      batch_size: see `Model`.
      max_length: see `Model`; None is what the position table allows, else what the model was trained with.

    Raises:
      ConfigError: a trunk of another kind, no token that a text without context can begin with, or longer rows than
        the position table has.
    """
    super().__init__()
    kind, vocab = opened.trunk.ATTENTION, opened.vocab
    if kind not in BACKENDS:
      raise ConfigError(
        f'lm_eval: the {opened.trunk.NAME} has {kind} attention, and the harness asks for the likelihood of one text '
        'behind another: name the folder of a decoder or an encoder-decoder'
      )
    if vocab.bos_id is None and vocab.eos_id is None:
      raise ConfigError('lm_eval: this vocabulary has no token that begins or ends texts, which begins a text alone')
    table = longest_row(opened.trunk)
    self.max_length = max_length or table or _trained_length(opened.trunk) or UNBOUNDED[BACKENDS[kind]]
    if table is not None and self.max_length > table:
      raise ConfigError(f'--max_length={max_length}: the model has learned positions for {table} tokens')
    self.backend = BACKENDS[kind]
    self.batch_size = batch_size
    self._opened = opened
    self._encode = opened.encoder
    self._params = {'trunk': opened.params}
    self._score = jax.jit(functools.partial(_score, answers.Model(opened.trunk), opened.special.start))

  @property
  def eot_token_id(self) -> int:
    """The token that ends texts, else the one that begins them."""
    vocab = self._opened.vocab
    return vocab.bos_id if vocab.eos_id is None else vocab.eos_id  # type: ignore[return-value]  # `__init__` checks

  @property
  def prefix_token_id(self) -> int:
    """What stands before a text without context: the token that begins texts, else the one that ends them."""
    return self.eot_token_id if self._opened.vocab.bos_id is None else self._opened.vocab.bos_id

  def tok_encode(self, string: str, add_special_tokens: bool | None = None, **rest: Any) -> list[int]:
    """Ids of a text; with None, special tokens are added unless it begins with the name of the first of them."""
    del rest
    if add_special_tokens is None:
      add_special_tokens = not string.startswith(self._opened.vocab.token(self.prefix_token_id))
    return self._encode(string, specials=add_special_tokens)

  def _loglikelihood_tokens(self, requests: Sequence[Any], **rest: Any) -> list[tuple[float, bool]]:
    """Of (what was asked, ids of the context, ids of the continuation), in their order."""
    del rest
    found = self._likelihoods([Request(list(context), list(continuation)) for _, context, continuation in requests])
    for (asked, _, _), likelihood in zip(requests, found, strict=True):
      self.cache_hook.add_partial('loglikelihood', asked, tuple(likelihood))
    return [(likelihood.total, likelihood.is_greedy) for likelihood in found]

  def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
    """Of whole texts, in windows of `max_length` tokens: each token is scored once, with as much before it as fits."""
    del disable_tqdm
    windows = [
      [
        Request(*utils.make_disjoint_window(pair))
        for pair in utils.get_rolling_token_windows(
          self.tok_encode(request.args[0]), self.prefix_token_id, self.max_length, context_len=1
        )
      ]
      for request in requests
    ]
    found = iter(self._likelihoods([window for each in windows for window in each]))
    totals = [sum(next(found).total for _ in each) for each in windows]
    for request, total in zip(requests, totals, strict=True):
      self.cache_hook.add_partial('loglikelihood_rolling', request.args, total)
    return totals

  def _likelihoods(self, requests: Sequence[Request]) -> list[Likelihood]:
    """Of each request, computed from the longest on."""
    found: dict[int, Likelihood] = {}
    order = sorted(range(len(requests)), key=lambda number: -sum(map(len, requests[number])))
    for batch in _batches(order, self.batch_size):
      signals.check()
      rows = [requests[number] for number in batch]
      if longest := next((one for one in rows if len(one.continuation) > self.max_length), None):
        raise ConfigError(
          f'lm_eval: a continuation has {len(longest.continuation)} tokens, and the model reads {self.max_length}'
        )
      total, greedy = self._score(self._params, **self._padded(rows))
      values = zip(batch, np.asarray(total).tolist(), np.asarray(greedy).tolist(), strict=False)  # without copied rows
      found |= {number: Likelihood(value, right) for number, value, right in values}
    return [found[number] for number in range(len(requests))]

  def _padded(self, rows: Sequence[Request]) -> dict[str, np.ndarray]:
    """Keywords of `_score`: int32[b, l] tokens, int32[b, t] answers; the last row fills the batch up."""
    # context a b c, continuation x y   ->   a decoder reads a b c x, the state of c predicts x
    last = self.max_length
    if self.backend == 'causal':
      read = [[*row.context, *row.continuation][-last - 1 : -1] for row in rows]
      start = [len(ids) - len(row.continuation) for ids, row in zip(read, rows, strict=True)]
    else:
      read, start = [row.context[-last:] for row in rows], [0] * len(rows)
    tokens, segment_ids = self._filled(read)
    answer, answer_segments = self._filled([row.continuation for row in rows])
    starts = np.array([*start, *[start[-1]] * (self.batch_size - len(rows))], np.int32)
    return dict(tokens=tokens, segment_ids=segment_ids, answer=answer, answer_segments=answer_segments, start=starts)

  def _filled(self, rows: Sequence[Sequence[int]], *, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Ids int32[batch_size, l] and 1 at each of them; l is rounded up, to `most` or `max_length` at most."""
    rows = [*rows, *[rows[-1]] * (self.batch_size - len(rows))]
    width = rounded(max(map(len, rows)), most or self.max_length)
    pad = self._opened.vocab.pad_id
    ids = np.array([[*row, *[pad] * (width - len(row))] for row in rows], np.int32)
    real = np.arange(width) < np.array([len(row) for row in rows])[:, None]
    return ids, real.astype(np.int32)

  def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
    """The text behind each context up to the first of its stops, which is left out; greedy unless a task samples."""
    del disable_tqdm
    asked = [Asked.read(request.args[1], max_length=self.max_length, backend=self.backend) for request in requests]
    contexts = [self.tok_encode(request.args[0]) or [self.prefix_token_id] for request in requests]
    found: dict[int, str] = {}
    for alike in dict.fromkeys(asked):
      these = [number for number, one in enumerate(asked) if one == alike]
      order = sorted(these, key=lambda number: -len(contexts[number]))
      for count, batch in enumerate(_batches(order, self.batch_size)):
        signals.check()
        made = self._write([contexts[number] for number in batch], alike, key=count)
        found |= dict(zip(batch, made, strict=True))
    texts = [found[number] for number in range(len(requests))]
    for request, text in zip(requests, texts, strict=True):
      self.cache_hook.add_partial('generate_until', request.args, text)
    return texts

  def _write(self, contexts: Sequence[list[int]], asked: 'Asked', *, key: int) -> list[str]:
    """What is written behind some contexts, without what comes from the first stop on."""
    special, vocab = self._opened.special, self._opened.vocab
    causal = self.backend == 'causal'
    most = self.max_length - asked.max_new if causal else self.max_length
    tokens, segment_ids = self._filled([context[-most:] for context in contexts], most=most)
    settings = dict(asked.settings)
    ends = special.ends if settings.get('min_new') else (*special.ends, *self._ending(asked.stops))
    if not causal:
      settings |= {'start_id': special.start, 'first_id': special.first, 'last_id': special.last or None}
    made = decode.generate(
      self._opened.trunk,
      self._opened.params,
      jnp.asarray(tokens),
      segment_ids=jnp.asarray(segment_ids),
      max_new=asked.max_new,
      method=asked.method,
      rng=jax.random.key(key),
      eos_id=ends or None,
      pad_id=vocab.pad_id,
      **settings,
    )
    rows = zip(made.tokens.tolist(), made.lengths.tolist(), strict=True)
    texts = [vocab.decode(ids[:length]) for ids, length in rows][: len(contexts)]
    return [_before(text, asked.stops) for text in texts]

  @functools.cache  # noqa: B019  # one model a process
  def _ending(self, stops: tuple[str, ...]) -> tuple[int, ...]:
    """Ordinary tokens with a stop in them, at which a text may end; not for stops with spaces, which decoders move."""
    stopping = [stop.encode() for stop in stops if ' ' not in stop]
    vocab = self._opened.vocab
    special = set(vocab.special_ids)
    plain = [token for token in range(vocab.size) if token not in special] if stopping else []
    return tuple(token for token in plain if any(stop in vocab.token_bytes(token) for stop in stopping))


class Asked(NamedTuple):
  """How a task wants texts made: what `Model` and `generate` take.

  Attributes:
    stops: texts that end one.
    max_new: most tokens.
    method: of `generate`.
    settings: its other keywords, in pairs.
  """

  stops: tuple[str, ...]
  max_new: int
  method: Literal['greedy', 'sample', 'beam']
  settings: tuple[tuple[str, Any], ...]

  @classmethod
  def read(cls, given: Mapping[str, Any], *, max_length: int, backend: Backend) -> 'Asked':
    """The keywords that a task has, by the names of transformers.

    Raises:
      ConfigError: one that is not followed here, or more tokens than the model can read.
    """
    rest = {name: value for name, value in given.items() if value is not None and name not in INERT}
    until = rest.pop('until', ())
    lengths = [rest.pop(name) for name in LENGTH_NAMES if name in rest]
    max_new = int(lengths[0]) if lengths else min(MAX_NEW, max_length // 2)
    if max_new > max_length - (backend == 'causal'):
      raise ConfigError(
        f'lm_eval: a task makes {max_new} tokens (max_gen_toks), and the model has {max_length} for a row: lower it in '
        'the yaml file of the task, or leave the task out'
      )
    warm = float(rest.pop('temperature', 0))
    draws = bool(rest.pop('do_sample', warm > 0)) and warm != 0
    method: Any = 'sample' if draws else 'beam' if rest.get('num_beams', 1) > 1 else 'greedy'
    names = {theirs: ours for theirs, ours in conventions.FLAGS.items() if ours not in ('max_new', 'num_samples')}
    if odd := sorted(rest.keys() - names.keys()):
      known = ', '.join(['until', 'max_gen_toks', 'do_sample', *names])
      raise ConfigError(f'lm_eval: a task asks for {odd[0]}={rest[odd[0]]!r} in generation; followed are {known}')
    settings = {names[name]: value for name, value in rest.items()} | ({'temperature': warm} if draws else {})
    stops = (until,) if isinstance(until, str) else tuple(until)
    return cls(tuple(filter(None, stops)), max_new, method, tuple(settings.items()))


def _trained_length(trunk: Any) -> int | None:
  """The longest row in training, of trunks without a table that say so."""
  fields = vars(trunk.config)
  return fields.get('max_length')


def rounded(length: int, most: int) -> int:
  """The least of 8, 12, 16, 24, 32, 48, ... that is not below a length, or `most`."""
  width = 8
  while width < length:
    width = width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3
  return min(width, most)


def _batches(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
  return (order[start : start + size] for start in range(0, len(order), size))


def _before(text: str, stops: Sequence[str]) -> str:
  """A text up to the first stop in it."""
  for stop in stops:
    text = text.partition(stop)[0]
  return text


def _score(
  model: answers.Model,
  start_id: int | None,
  params: PyTree,
  *,
  tokens: Array,
  segment_ids: Array,
  answer: Array,
  answer_segments: Array,
  start: Array,
) -> tuple[Array, Array]:
  """Log-probability f32[b] of each answer, and whether each of its tokens is the likeliest, bool[b].

  Args:
    model: a trunk that writes.
    start_id: what the decoder of an encoder-decoder reads first.
    params: of the model.
    tokens: int32[b, l], what a decoder reads, its answer but for the last token included, or what an encoder reads.
    segment_ids: int32[b, l], 1 at each token.
    answer: int32[b, t].
    answer_segments: int32[b, t].
    start: int32[b], place of the state that predicts the first token of the answer.
  """
  apply: Callable[..., Any] = functools.partial(model.apply, {'params': params})
  if model.trunk.ATTENTION == 'causal':
    hidden = apply(tokens=tokens, segment_ids=segment_ids)
    places = jnp.minimum(start[:, None] + jnp.arange(answer.shape[1]), tokens.shape[1] - 1)
    features = jnp.take_along_axis(hidden, places[..., None], axis=1)
  else:
    before = jnp.pad(answer[:, :-1], ((0, 0), (1, 0)), constant_values=start_id or 0)
    sides = {'encoder_tokens': tokens, 'encoder_segment_ids': segment_ids}
    features = apply(**sides, decoder_tokens=before, decoder_segment_ids=answer_segments)

  def one(chunk: tuple[Array, Array]) -> tuple[Array, Array]:
    logits = apply(chunk[0], method='attend')
    return cross_entropy(logits, chunk[1]), most_likely(logits, chunk[1])

  nats, right = in_chunks(one, (features, answer), rows=LOGIT_ROWS)
  real = answer_segments > 0
  return -jnp.where(real, nats, 0.0).sum(axis=1), (right | ~real).all(axis=1)


def run(
  model: Model,
  names: Sequence[str],
  *,
  include_path: str | None = None,
  num_fewshot: int | None = None,
  limit: int | None = None,
  seed: int = 1234,
) -> dict[str, Any]:
  """Scores a model on tasks of the harness: its 'results', 'configs', 'samples' and versions.

  Args:
    model: what is scored.
    names: of tasks, tags or groups.
    include_path: folder with yaml files of more tasks, which may name Python functions that stand beside them.
    num_fewshot: examples before each row; None is what the task says.
    limit: rows of each task; None for all.
    seed: of the draws of examples.

  Raises:
    ConfigError: no such task, or data that cannot be read.
  """
  os.environ.setdefault('DISABLE_MULTIPROC', '1')  # the harness would fork to estimate errors, and jax has threads
  manager = tasks.TaskManager(include_path=include_path)
  for name in names:
    if not manager.match_tasks([name]):
      raise ConfigError(
        f'--tasks: there is no task {name!r} among the {len(manager.all_tasks)} of the harness and of '
        f'--include_path.{suggest(name, manager.all_tasks)} A * stands for any letters.'
      )
  try:
    return evaluator.simple_evaluate(
      model,
      tasks=manager.match_tasks(list(names)),
      num_fewshot=num_fewshot,
      limit=limit,
      task_manager=manager,
      fewshot_random_seed=seed,
      bootstrap_iters=1_000,
    )
  except (ConnectionError, FileNotFoundError) as error:
    raise ConfigError(f'lm_eval: the data of a task cannot be read: {error}') from error


def table(found: dict[str, Any]) -> str:
  """The scores of `run` as the harness prints them."""
  return utils.make_table(found)
