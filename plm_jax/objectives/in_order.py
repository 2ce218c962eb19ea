"""Updates of word vectors by one pair after another, as in word2vec.c, by a loop that numba compiles for a CPU.

A gradient of a batch sums its pairs: XLA reads, adds and writes arrays of them, and frequent words move by many sums of
old vectors. The loop reads and writes the tables in place. The vectors of both sides move after each pair or bag. The
pairs of an input position follow one another, so its row is read and written once; in word2vec.c those of a centre do.
The batch, its pairs and its negatives are those of the other updates, and one thread walks through them, so the result
is reproducible.

XLA calls the loop through its foreign function interface, whose structs `_handler` reads (xla/ffi/api/c_api.h).
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.core.param_paths import flat, nested
from plm_jax.core.types import Array, Example, PyTree, Task

INPUTS, OUTPUTS, NGRAMS = 'trunk/token_embed/table', 'output/table', 'ngrams/table'
_AHEAD = 2  # pairs and words whose rows are fetched in advance


def with_update(task: Task, update: str, read_rows: Callable[..., Any], *, bags: bool, reduction: str) -> Task:
  """Set the update of a task, a choice of `PairUpdate`."""
  if update != 'in_order':
    return task._replace(rows=read_rows) if update == 'rows' else task
  if reduction != 'sum':
    raise ValueError(
      f"objective.reduction={reduction!r} divides by the pairs of a batch, and objective.update='in_order' moves the "
      "vectors after each pair: set objective.reduction='sum', or objective.update='rows'"
    )
  return task._replace(rows=read_rows, update=functools.partial(update_tables, bags=bags))


def update_tables(
  example: Example, params: PyTree, rates: Mapping[str, Array], *, bags: bool
) -> tuple[PyTree, dict[str, Any], Array]:
  """Update the tables by the pairs of a batch, in order.

  Returns the parameters; the metrics of the objective, in which a pair has the loss before its update, and the norm of
  all moves divided by their rates; False if a product was not finite. Such a product changes nothing. Raises
  ConfigError: numba is missing, or the device is no CPU.

  Args:
    example: of objective 'skipgram' or 'fasttext'.
    params: all parameters.
    rates: path of a table -> learning rate f32[]; other tables keep their values.
    bags: the pairs are bags of words.
  """
  leaves, inputs = flat(params), example.inputs
  letters = 'grams' in inputs
  paths = (INPUTS, OUTPUTS, NGRAMS)[: 2 + letters]
  tables = [leaves[path] for path in paths]
  rate = jnp.stack([jnp.asarray(rates.get(path, 0.0), jnp.float32) for path in paths])
  clipped = lambda ids, table: jnp.clip(ids, -1 if table is tables[-1] and letters else 0, len(table) - 1)  # noqa: E731
  arguments = [rate, clipped(inputs['tokens'], tables[0]), inputs['pairs'], clipped(inputs['words'], tables[1])]
  arguments += [inputs['number'], example.targets['weights'].max(axis=1)]
  arguments += [clipped(inputs['grams'], tables[2])] if letters else []
  shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in (*tables, jax.ShapeDtypeStruct((5,), jnp.float32))]
  call = jax.ffi.ffi_call(
    _registered(tables[0].shape[1], bags, letters)[0],
    shapes,
    input_output_aliases={len(arguments) + index: index for index in range(len(tables))},
  )
  *tables, sums = call(*arguments, *tables)
  nats, right, weight, wrong, squares = sums
  metrics = {'loss': (nats, weight), 'accuracy': (right, weight), 'gradient_norm': (jnp.sqrt(squares), jnp.ones(()))}
  return nested(leaves | dict(zip(paths, tables, strict=True))), metrics, wrong == 0


@functools.cache
def _registered(width: int, bags: bool, letters: bool) -> tuple[str, Any]:
  """Compile the loop for vectors of this width.

  Returns its name in XLA, and the function, whose code must not be freed.
  """
  if jax.default_backend() != 'cpu':
    raise ConfigError("objective.update='in_order' needs a CPU: set objective.update='rows', or JAX_PLATFORMS=cpu")
  try:
    import numba
  except ImportError:
    raise ConfigError(
      "objective.update='in_order' needs the package numba, which is not installed: bash launch/setup.sh numba"
    ) from None
  name = f'plm_jax_in_order_{width}_{bags}_{letters}'
  handler = _handler(numba, _loop(numba, width, bags), bags, letters)
  jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.ctypes), platform='cpu')
  return name, handler


def _moves(jit: Any, width: int) -> tuple[Any, Any, Any, Any]:
  """Build functions that read and move inputs and outputs."""

  @jit
  def number_of(letters):  # type: ignore[no-untyped-def]
    """Count the n-grams of a word, which precede -1."""
    count = 0
    while count < len(letters) and letters[count] >= 0:
      count += 1
    return count

  @jit
  def add_word(vector, token, letters, words, ngrams):  # type: ignore[no-untyped-def]
    """Add the mean of a word and its n-grams to a vector."""
    count = number_of(letters)
    by, row = np.float32(1 / (1 + count)), words[token]
    for j in range(width):
      vector[j] += by * row[j]
    for gram in letters[:count]:
      row = ngrams[gram]
      for j in range(width):
        vector[j] += by * row[j]

  @jit
  def rate_of(letters, rates):  # type: ignore[no-untyped-def]
    """Compute the rate at which the mean of an input moves."""
    count = number_of(letters)
    moves = count  # an n-gram that stands m times in its word moves m times, and with it m parts of the mean
    for a in range(count):
      for b in range(a):
        moves += 2 * (letters[a] == letters[b])
    return np.float32((rates[0] + moves * rates[-1]) / (1 + count))

  @jit
  def move_word(error, token, letters, words, ngrams, rates):  # type: ignore[no-untyped-def]
    """Add the error of a mean to each of its parts."""
    rate, row = rates[0], words[token]
    for j in range(width):
      row[j] += rate * error[j]
    for gram in letters:
      if gram < 0:
        break
      rate, row = rates[2], ngrams[gram]
      for j in range(width):
        row[j] += rate * error[j]

  @jit
  def product(vector, row):  # type: ignore[no-untyped-def]
    total = np.float32(0)
    for j in range(width):
      total += vector[j] * row[j]
    return total

  @jit
  def predict(vector, error, targets, output, rate, logits):  # type: ignore[no-untyped-def]
    """Move the rows of a true word and its negatives."""
    chance, first, best, squares = 1.0, np.float32(0), np.float32(-np.inf), np.float32(0)
    for k in range(len(targets)):  # none waits for another
      logits[k] = product(vector, output[targets[k]])
    for k in range(len(targets)):
      if k and targets[k] == targets[0]:
        continue
      row, logit = output[targets[k]], logits[k]
      for i in range(1, k):
        if targets[i] == targets[k]:  # its row has moved
          logit = product(vector, row)
          break
      if not abs(logit) < np.inf:
        return 1.0, False, 1, np.float32(0)
      # 1. the chance of the right answer, s(logit) or s(-logit), and its slope
      small = max(np.exp(-abs(logit)), np.float32(1e-30))
      likely = np.float32(1) / (np.float32(1) + small)
      right = (logit > 0) == (k == 0)
      chance *= likely if right else small * likely
      slope = small * likely if right else likely
      if k:
        best, slope = max(best, logit), -slope
      else:
        first = logit
      squares += slope * slope
      # 2. both sides move
      by = rate * slope
      for j in range(width):
        old = row[j]
        error[j] += slope * old
        row[j] = old + by * vector[j]
    return chance, first > best, 0, squares

  return add_word, rate_of, move_word, predict


def _loop(numba: Any, width: int, bags: bool) -> Any:
  """Build the loop over the pairs of a batch."""
  fast = {'reassoc', 'contract', 'nsz', 'arcp', 'afn'}  # sums in any order; NaN and infinity are respected
  jit = functools.partial(numba.njit, fastmath=fast, error_model='numpy')
  prefetch = _prefetch(numba, width)
  add_word, rate_of, move_word, predict = _moves(jit, width)

  @jit
  def loop(rates, tokens, pairs, targets, number, weights, letters, words, output, ngrams, sums):  # type: ignore[no-untyped-def]
    vector, error, near = np.empty(width, np.float32), np.empty(width, np.float32), np.empty(pairs.shape[2], np.intp)
    start, logits = np.empty(width, np.float32), np.empty(targets.shape[2], np.float32)
    length, half = tokens.shape[1], pairs.shape[2] // 2
    nats, right, total, wrong, squares = 0.0, 0.0, 0.0, 0, np.float64(0)
    for r in range(len(tokens)):
      n, row_rates, chances = 0, rates * weights[r], 1.0
      while weights[r] > 0 and n < number[r]:
        # 1. the positions of the input, one word or a bag, and its pairs n to end
        size, end = 0, n + 1
        if bags:
          for o in range(2 * half):
            near[size] = n + o - half + (o >= half)
            size += pairs[r, n, o]
        else:
          near[0], size = pairs[r, n, 0], 1
          while end < number[r] and pairs[r, end, 0] == near[0]:
            end += 1
        far = min((n + half if bags else near[0]) + _AHEAD, length - 1)
        prefetch(words, np.intp(tokens[r, far]))
        for gram in letters[r, far]:
          if gram < 0:
            break
          prefetch(ngrams, np.intp(gram))
        # 2. the mean of the input
        vector[:] = 0
        error[:] = 0
        for i in range(size):
          add_word(vector, tokens[r, near[i]], letters[r, near[i]], words, ngrams)
        square, moved = np.float32(0), np.float32(0)
        for j in range(width):
          vector[j] /= max(size, 1)
          square += vector[j] * vector[j]
        if not bags:  # a bag has one pair
          start[:], by = vector, rate_of(letters[r, near[0]], row_rates)
        # 3. its predictions, after each of which both sides move; rows of the input are written at the end
        for m in range(n, end):
          for k in range(targets.shape[2]):
            prefetch(output, np.intp(targets[r, min(m + _AHEAD, number[r] - 1), k]))
          if size:
            chance, is_right, not_finite, slopes = predict(vector, error, targets[r, m], output, row_rates[1], logits)
            chances *= max(chance, 1e-200)
            if chances < 1e-100:  # one logarithm for many pairs
              nats -= weights[r] * np.log(chances)
              chances = 1.0
            right += weights[r] * is_right
            total += weights[r]
            wrong += not_finite
            squares += slopes * square
            if not bags:
              square = np.float32(0)
              for j in range(width):
                vector[j] = start[j] + by * error[j]
                square += vector[j] * vector[j]
        for j in range(width):
          moved += error[j] * error[j]
        squares += size * moved
        for i in range(size):
          move_word(error, tokens[r, near[i]], letters[r, near[i]], words, ngrams, row_rates)
        n = end
      nats -= weights[r] * np.log(chances)
    sums[0], sums[1], sums[2], sums[3], sums[4] = nats, right, total, wrong, squares

  return loop


def _prefetch(numba: Any, width: int) -> Any:
  """Build a function (table, row) that fetches a row into the cache."""
  from numba.core import cgutils

  ir = cgutils.ir

  @numba.extending.intrinsic
  def prefetch(context, table, row):  # type: ignore[no-untyped-def]
    def emit(target, builder, signature, arguments):  # type: ignore[no-untyped-def]
      integer, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
      kind = ir.FunctionType(ir.VoidType(), [pointer, integer, integer, integer])
      function = cgutils.get_or_insert_function(builder.module, kind, 'llvm.prefetch.p0')
      table, row = arguments
      start = builder.bitcast(target.make_array(signature.args[0])(target, builder, table).data, pointer)
      start = builder.gep(start, [builder.mul(row, ir.Constant(row.type, 4 * width))])
      flags = [ir.Constant(integer, flag) for flag in (1, 3, 1)]  # for writing, into the nearest cache, of data
      for byte in range(0, 4 * width, 64):  # lines of the cache
        builder.call(function, [builder.gep(start, [ir.Constant(row.type, byte)]), *flags])
      return target.get_dummy_value()

    return numba.types.void(table, row), emit

  return prefetch


def _handler(numba: Any, loop: Any, bags: bool, letters: bool) -> Any:
  """Build the C function that XLA calls with a frame."""

  @numba.extending.intrinsic
  def pointer(context, address):  # type: ignore[no-untyped-def]
    from numba.core import cgutils

    emit = lambda target, builder, signature, arguments: builder.inttoptr(arguments[0], cgutils.voidptr_t)  # noqa: E731
    return numba.types.voidptr(address), emit

  jit, carray, pair = numba.njit, numba.carray, numba.types.boolean if bags else numba.types.int32

  @jit
  def at(address, size):  # type: ignore[no-untyped-def]
    return carray(pointer(address), size, np.intp)

  @jit
  def data(buffers, index):  # type: ignore[no-untyped-def]
    return pointer(at(buffers[index], 6)[3])

  @jit
  def shape(buffers, index):  # type: ignore[no-untyped-def]
    return at(at(buffers[index], 6)[5], at(buffers[index], 6)[4])

  @numba.cfunc(numba.types.intp(numba.types.CPointer(numba.types.intp)))
  def handler(words):  # type: ignore[no-untyped-def]
    frame = carray(words, 22)
    # 1. a question for the version of the interface, an extension of type 1
    if frame[1] != 0 and at(frame[1], 4)[1] & 0xFF == 1:
      metadata = at(at(frame[1], 4)[3], 6)
      metadata[3], metadata[4], metadata[5] = at(frame[2], 5)[4], 0, 0
      return 0
    if frame[4] & 0xFF != 3:  # not the stage of execution
      return 0
    # 2. the arrays
    given, made = at(frame[9], frame[7]), at(frame[14], frame[12])
    tokens, pairs, targets = shape(given, 1), shape(given, 2), shape(given, 3)
    size, width = (tokens[0], tokens[1]), shape(made, 0)[1]
    loop(
      carray(data(given, 0), 2 + letters, np.float32),
      carray(data(given, 1), size, np.int32),
      carray(data(given, 2), (pairs[0], pairs[1], pairs[2]), pair),
      carray(data(given, 3), (targets[0], targets[1], targets[2]), np.int32),
      carray(data(given, 4), tokens[0], np.int32),
      carray(data(given, 5), tokens[0], np.float32),
      carray(data(given, 6), (size[0], size[1], shape(given, 6)[2] if letters else 0), np.int32),
      carray(data(made, 0), (shape(made, 0)[0], width), np.float32),
      carray(data(made, 1), (shape(made, 1)[0], width), np.float32),
      carray(data(made, 1 + letters), (shape(made, 1 + letters)[0], width), np.float32),
      carray(data(made, 2 + letters), 5, np.float32),
    )
    return 0

  return handler
