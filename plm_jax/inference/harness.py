"""Models for EleutherAI's lm-evaluation-harness (Gao et al. 2021; its `lm_eval.api.model`).

A model is a decoder, or an encoder-decoder whose encoder reads the context. Tokenisation follows the harness: trailing
spaces of a context belong to the continuation; a decoder's tokens are those of both texts together, except for a
continuation that merges with its context and would have none; special tokens are those of the folder's tokenizer; a
long text loses its beginning; a text without a context begins with the token that begins texts, else the one that ends
them. So log-likelihoods equal those of the harness's own `hf` models.

Rows of similar lengths form a batch, and lengths are rounded up, so that a task needs few compilations.
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
from plm_jax.layers.losses import chunked_cross_entropy

MAX_NEW = 256  # tokens to generate by default, as in the harness
LOGIT_ROWS = 8  # rows whose logits are in memory at once

Backend = Literal['causal', 'seq2seq']
BACKENDS: Mapping[str, Backend] = {'causal': 'causal', 'encoder-decoder': 'seq2seq'}
# tokens per sequence without a bound in the model: the default of the harness, and the length of T5's training
UNBOUNDED: Mapping[Backend, int] = {'causal': 2_048, 'seq2seq': 512}
# synonyms, the first given one counts
LENGTH_NAMES = ('max_gen_toks', 'max_new_tokens', 'max_tokens', 'max_completion_tokens')
INERT = ('use_cache',)


class Request(NamedTuple):
  """Tokens of a context, and those of the continuation to score after it, at least one."""

  context: list[int]
  continuation: list[int]


class Likelihood(NamedTuple):
  """The sum of a continuation's log-probabilities, and whether each of its tokens is the most likely one."""

  total: float
  is_greedy: bool


class Model(TemplateLM):
  """A folder's model for the harness.

  Attributes:
    max_length: maximum tokens per sequence: of a decoder, or of either stack of an encoder-decoder.
    batch_size: rows per batch.
  """

  def __init__(self, opened: Opened, *, batch_size: int, max_length: int | None = None):
    """Wrap an open model.

    Args:
      max_length: see `Model`; None takes the size of the position table, else the length in training.

    Raises:
      ConfigError: a trunk of another kind, no token to begin a text without context, or a `max_length` beyond the
        position table.
    """
    super().__init__()
    kind, vocab = opened.trunk.ATTENTION, opened.vocab
    if kind not in BACKENDS:
      raise ConfigError(
        f'lm_eval: the {opened.trunk.NAME} has {kind} attention, but the harness scores continuations: '
        'name the folder of a decoder or an encoder-decoder'
      )
    if vocab.bos_id is None and vocab.eos_id is None:
      raise ConfigError(
        'lm_eval: the vocabulary has no token that begins or ends texts; a text without context needs one'
      )
    table = longest_row(opened.trunk)
    self.max_length = max_length or table or vars(opened.trunk.config).get('max_length') or UNBOUNDED[BACKENDS[kind]]
    if table is not None and self.max_length > table:
      raise ConfigError(
        f'--max_length={max_length}: the model has learned positions for {table} tokens; use at most {table}'
      )
    self.backend = BACKENDS[kind]
    self.batch_size = batch_size
    self._opened = opened
    self._encode = opened.encoder
    self._params = {'trunk': opened.params}
    self._score = jax.jit(functools.partial(_score, answers.Model(opened.trunk), opened.special.start))

  @property
  def eot_token_id(self) -> int:
    """Return the token that ends texts, else the one that begins them."""
    vocab = self._opened.vocab
    return vocab.bos_id if vocab.eos_id is None else vocab.eos_id  # type: ignore[return-value]  # `__init__` checks

  @property
  def prefix_token_id(self) -> int:
    return self.eot_token_id if self._opened.vocab.bos_id is None else self._opened.vocab.bos_id

  def tok_encode(self, string: str, add_special_tokens: bool | None = None, **rest: Any) -> list[int]:
    """Encode a text.

    With None, special tokens are added unless the text begins with the name of the first of them.
    """
    if add_special_tokens is None:
      add_special_tokens = not string.startswith(self._opened.vocab.token(self.prefix_token_id))
    return self._encode(string, specials=add_special_tokens)

  def loglikelihood(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
    """Score the continuation of each context."""
    del disable_tqdm
    return self._loglikelihood_tokens([(request.args, *self._encode_pair(*request.args)) for request in requests])

  def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """Encode context and continuation, at least one token each, or raise ConfigError.

    A continuation without a separate token, since it merges with the context ('Ans', 'wer'), is encoded alone.
    """
    alone = self.tok_encode(continuation, add_special_tokens=False)
    if not alone:
      raise ConfigError(
        f'lm_eval: the continuation {continuation!r} has no token, and without one it would always win: correct the '
        'choices or targets of the task'
      )
    start = [self.prefix_token_id]
    if not context:
      return start, alone[1:] or alone if alone[:1] == start else alone
    before, after = super()._encode_pair(context, continuation)
    return before or start, after or alone

  def _loglikelihood_tokens(self, requests: Sequence[Any], **rest: Any) -> list[tuple[float, bool]]:
    """Score (texts, context ids, continuation ids) in their order."""
    likelihoods = self._likelihoods(
      [Request(list(context), list(continuation)) for _, context, continuation in requests]
    )
    for (texts, _, _), likelihood in zip(requests, likelihoods, strict=True):
      self.cache_hook.add_partial('loglikelihood', texts, tuple(likelihood))
    return [(likelihood.total, likelihood.is_greedy) for likelihood in likelihoods]

  def loglikelihood_rolling(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[float]:
    """Score whole texts in windows of `max_length` tokens.

    Each token is scored once, with the longest context that fits.
    """
    windows = []
    for request in requests:
      ids = self.tok_encode(request.args[0])
      rolling = utils.get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1)
      windows.append([Request(*utils.make_disjoint_window(each)) for each in rolling])
    likelihoods = iter(self._likelihoods([window for each in windows for window in each]))
    totals = [sum(next(likelihoods).total for _ in each) for each in windows]
    for request, total in zip(requests, totals, strict=True):
      self.cache_hook.add_partial('loglikelihood_rolling', request.args, total)
    return totals

  def _likelihoods(self, requests: Sequence[Request]) -> list[Likelihood]:
    """Score requests, the longest first."""
    likelihoods: dict[int, Likelihood] = {}
    order = sorted(range(len(requests)), key=lambda index: -sum(map(len, requests[index])))
    for batch in _batches(order, self.batch_size):
      signals.check()
      rows = [requests[index] for index in batch]
      if longest := next((row for row in rows if len(row.continuation) > self.max_length), None):
        raise ConfigError(
          f'lm_eval: a continuation has {len(longest.continuation)} tokens, but the model reads {self.max_length}'
        )
      total, greedy = self._score(self._params, **self._padded(rows))
      # not strict: the rows that fill the batch up are dropped
      values = zip(batch, np.asarray(total).tolist(), np.asarray(greedy).tolist(), strict=False)
      likelihoods |= {index: Likelihood(value, is_greedy) for index, value, is_greedy in values}
    return [likelihoods[index] for index in range(len(requests))]

  def _padded(self, rows: Sequence[Request]) -> dict[str, np.ndarray]:
    """Build `_score`'s int32[b, l] tokens and int32[b, t] answers, filled by repetition."""
    # context a b c, continuation x y   ->   a decoder reads a b c x, the state of c predicts x
    last = self.max_length
    if self.backend == 'causal':
      inputs = [[*row.context, *row.continuation][-last - 1 : -1] for row in rows]
      start = [len(ids) - len(row.continuation) for ids, row in zip(inputs, rows, strict=True)]
    else:
      inputs, start = [row.context[-last:] for row in rows], [0] * len(rows)
    tokens, segment_ids = self._filled(inputs)
    answer, answer_segments = self._filled([row.continuation for row in rows])
    starts = np.array([*start, *[start[-1]] * (self.batch_size - len(rows))], np.int32)
    return dict(tokens=tokens, segment_ids=segment_ids, answer=answer, answer_segments=answer_segments, start=starts)

  def _filled(self, rows: Sequence[Sequence[int]], *, most: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Pad to int32[batch_size, l], 1 at tokens; l rounded to the maximum."""
    rows = [*rows, *[rows[-1]] * (self.batch_size - len(rows))]
    width = rounded(max(map(len, rows)), most or self.max_length)
    pad = self._opened.vocab.pad_id
    ids = np.array([[*row, *[pad] * (width - len(row))] for row in rows], np.int32)
    real = np.arange(width) < np.array([len(row) for row in rows])[:, None]
    return ids, real.astype(np.int32)

  def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
    """Generate texts up to a stop, greedily unless a task samples."""
    options = [
      GenerationOptions.read(request.args[1], max_length=self.max_length, backend=self.backend) for request in requests
    ]
    contexts = [self.tok_encode(request.args[0]) or [self.prefix_token_id] for request in requests]
    generated: dict[int, str] = {}
    for shared in dict.fromkeys(options):
      indices = [index for index, option in enumerate(options) if option == shared]
      order = sorted(indices, key=lambda index: -len(contexts[index]))
      for count, batch in enumerate(_batches(order, self.batch_size)):
        signals.check()
        batch_texts = self._write([contexts[index] for index in batch], shared, key=count)
        generated |= dict(zip(batch, batch_texts, strict=True))
    texts = [generated[index] for index in range(len(requests))]
    for request, text in zip(requests, texts, strict=True):
      self.cache_hook.add_partial('generate_until', request.args, text)
    return texts

  def _write(self, contexts: Sequence[list[int]], options: 'GenerationOptions', *, key: int) -> list[str]:
    """Generate the texts after some contexts, up to their first stop."""
    special, vocab = self._opened.special, self._opened.vocab
    causal = self.backend == 'causal'
    most = self.max_length - options.max_new if causal else self.max_length
    tokens, segment_ids = self._filled([context[-most:] for context in contexts], most=most)
    settings = dict(options.settings)
    ends = special.ends if settings.get('min_new') else (*special.ends, *self._ending(options.stops))
    if not causal:
      settings |= {'start_id': special.start, 'first_id': special.first, 'last_id': special.last or None}
    outputs = decode.generate(
      self._opened.trunk,
      self._opened.params,
      jnp.asarray(tokens),
      segment_ids=jnp.asarray(segment_ids),
      max_new=options.max_new,
      method=options.method,
      rng=jax.random.key(key),
      eos_id=ends or None,
      pad_id=vocab.pad_id,
      vocab_size=vocab.size,
      **settings,
    )
    rows = zip(outputs.tokens.tolist(), outputs.lengths.tolist(), strict=True)
    texts = [vocab.decode(ids[:length]) for ids, length in rows][: len(contexts)]
    return [_before(text, options.stops) for text in texts]

  @functools.cache  # noqa: B019  # one model a process
  def _ending(self, stops: tuple[str, ...]) -> tuple[int, ...]:
    """List the ordinary tokens that contain a stop without spaces."""
    stopping = [stop.encode() for stop in stops if ' ' not in stop]
    vocab = self._opened.vocab
    special = set(vocab.special_ids)
    plain = [token for token in range(vocab.size) if token not in special] if stopping else []
    return tuple(token for token in plain if any(stop in vocab.token_bytes(token) for stop in stopping))


class GenerationOptions(NamedTuple):
  """The generation options of a task, as `Model` and `generate` take them."""

  stops: tuple[str, ...]  # texts that end a generated text
  max_new: int  # maximum tokens
  method: Literal['greedy', 'sample', 'beam']  # of `generate`
  settings: tuple[tuple[str, Any], ...]  # its other keywords, in pairs

  @classmethod
  def read(cls, given: Mapping[str, Any], *, max_length: int, backend: Backend) -> 'GenerationOptions':
    """Read the options of a task; raise ConfigError for unsupported ones."""
    rest = {name: value for name, value in given.items() if value is not None and name not in INERT}
    until = rest.pop('until', ())
    lengths = [rest.pop(name) for name in LENGTH_NAMES if name in rest]
    max_new = int(lengths[0]) if lengths else min(MAX_NEW, max_length // 2)
    if max_new > max_length - (backend == 'causal'):
      raise ConfigError(
        f'lm_eval: a task generates {max_new} tokens (max_gen_toks), but a sequence of the model has {max_length}: '
        'lower it in the yaml file of the task, or leave the task out'
      )
    temperature = float(rest.pop('temperature', 0))
    is_sampled = bool(rest.pop('do_sample', temperature > 0)) and temperature != 0
    method: Any = 'sample' if is_sampled else 'beam' if rest.get('num_beams', 1) > 1 else 'greedy'
    names = {theirs: ours for theirs, ours in conventions.FLAGS.items() if ours not in ('max_new', 'num_samples')}
    if unsupported := sorted(rest.keys() - names.keys()):
      supported = ', '.join(['until', 'max_gen_toks', 'do_sample', *names])
      raise ConfigError(
        f'lm_eval: unsupported generation option {unsupported[0]}={rest[unsupported[0]]!r}; supported: {supported}'
      )
    settings = {names[name]: value for name, value in rest.items()}
    settings |= {'temperature': temperature} if is_sampled else {}
    stops = (until,) if isinstance(until, str) else tuple(until)
    return cls(stops=tuple(filter(None, stops)), max_new=max_new, method=method, settings=tuple(settings.items()))


def rounded(length: int, most: int) -> int:
  """Round a length up to 8, 12, 16, 24 ... or `most`."""
  width = 8
  while width < length:
    width = width * 3 // 2 if width & (width - 1) == 0 else width * 4 // 3
  return min(width, most)


def _batches(order: Sequence[int], size: int) -> Iterator[Sequence[int]]:
  return (order[start : start + size] for start in range(0, len(order), size))


def _before(text: str, stops: Sequence[str]) -> str:
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
  """Compute log-probabilities f32[b] of answers int32[b, t], and greedy bool[b].

  `tokens` int32[b, l] are the input of a decoder, including the answer without its last token, or of an encoder;
  `start_id` is then the first token of the decoder. Segments are 1 at each token. `start` int32[b] is the position of
  the state that predicts the first token of the answer. The second result: each of its tokens is the most likely one.
  """
  apply: Callable[..., Any] = functools.partial(model.apply, {'params': params})
  if model.trunk.ATTENTION == 'causal':
    hidden = apply(tokens=tokens, segment_ids=segment_ids)
    positions = jnp.minimum(start[:, None] + jnp.arange(answer.shape[1]), tokens.shape[1] - 1)
    features = jnp.take_along_axis(hidden, positions[..., None], axis=1)
  else:
    before = jnp.pad(answer[:, :-1], ((0, 0), (1, 0)), constant_values=start_id or 0)
    sides = {'encoder_tokens': tokens, 'encoder_segment_ids': segment_ids}
    features = apply(**sides, decoder_tokens=before, decoder_segment_ids=answer_segments)
  nats, is_best = chunked_cross_entropy(functools.partial(apply, method='attend'), features, answer, rows=LOGIT_ROWS)
  real = answer_segments > 0
  return -jnp.where(real, nats, 0.0).sum(axis=1), ((is_best > 0) | ~real).all(axis=1)


def run(
  model: Model,
  names: Sequence[str],
  *,
  include_path: str | None = None,
  num_fewshot: int | None = None,
  limit: int | None = None,
  seed: int = 1234,
) -> dict[str, Any]:
  """Score a model on tasks, tags or groups of the harness.

  Args:
    include_path: folder with yaml files of more tasks, which may name Python functions in the same folder.
    num_fewshot: demonstrations before each example, chosen by `seed`; None is the number of the task.

  Returns:
    The 'results', 'configs', 'samples' and versions of the harness.

  Raises:
    ConfigError: no such task, or data that cannot be read.
  """
  os.environ.setdefault('DISABLE_MULTIPROC', '1')  # the harness forks to estimate errors, unsafe with threads of jax
  manager = tasks.TaskManager(include_path=include_path)
  for name in names:
    if not manager.match_tasks([name]):
      raise ConfigError(
        f'--tasks: no task {name!r} among the {len(manager.all_tasks)} of the harness and of '
        f'--include_path.{suggest(name, manager.all_tasks)} Use * for any letters.'
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


def table(results: dict[str, Any]) -> str:
  """Render the scores of `run` as the harness prints them."""
  return utils.make_table(results)
