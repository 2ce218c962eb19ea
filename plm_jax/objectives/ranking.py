"""Word vectors by ranking windows (Collobert and Weston 2008, §5): a text above the same text with a wrong word.

A window of words has a score: their vectors concatenated, a linear layer, hard tanh, a linear layer with one output.
s is the score of a window of the text, and s^w that of the same window with a uniformly sampled word w in its middle.
The loss is max(0, 1 - s + s^w). Beyond its document a window has padding, which has a vector like a word.

  # row the cat sat   window 3, w mat   s of . the cat, the cat sat, cat sat .   s^w of the second the mat sat
"""

from functools import partial
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.keywords import Count
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.linear import Dense, uniform
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.noise.keys import row_keys
from plm_jax.objectives.context_windows import Reduction, Update, around, words_of

PAPER = Paper(
  year=2008,
  title='Collobert and Weston, A Unified Architecture for Natural Language Processing',
  architecture='static',
  objective_family='contrastive',
)
READS = ('tokens', 'segment_ids')


class Model(nn.Module):
  """The trunk and the two layers that score a window; kernels start from U(-1, 1) / sqrt(inputs)."""

  trunk: nn.Module
  window: int
  hidden: int

  def setup(self) -> None:
    inputs = self.window * self.trunk.hidden_dim
    self.first = Dense(self.hidden, (None, 'embed', None), uniform(inputs**-0.5), num_inputs=2)
    # no bias: it would cancel in the difference of two scores
    self.second = Dense(1, (None, None), uniform(self.hidden**-0.5), use_bias=False)

  def __call__(self, windows: Array, drawn: Array, train: bool = False) -> tuple[Array, Array]:
    """Score windows int[b, l, w] and corrupted ones: f32[b, l] twice.

    These are the same windows with the words `drawn` int[b, l] in their middle.
    """
    rows, length, width = windows.shape
    flat = self.trunk(windows.reshape(rows, length * width), train=train)['hidden']
    true = flat.reshape(rows, length, width, -1)  # [b, l, w, d]
    false = true.at[:, :, width // 2].set(self.trunk(drawn, train=train)['hidden'])
    return self.score(true), self.score(false)

  def score(self, vectors: Array) -> Array:
    """Score windows of vectors: [b, l, w, d] -> f32[b, l]."""
    return self.second(nn.hard_tanh(self.first(vectors)))[..., 0].astype(jnp.float32)


class RankingSettings(NamedTuple):
  """Settings of windows; those without a comment are explained in `make`."""

  words: np.ndarray  # int32[n], the ids allowed in the middle and sampled there: all except special tokens
  pad_id: int  # fills a window beyond its document
  window: int
  reduction: Reduction


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  window: Annotated[int, '1 <= x <= 201'] = 11,
  hidden: Count = 100,
  reduction: Reduction = 'sum',
  update: Update = 'tables',
) -> Task:
  """Build word vectors by ranking texts above texts with a wrong word.

  Args:
    trunk: a trunk whose vectors do not depend on neighbours: 'static'.
    vocab: of the rows. Special tokens, including unknown words, may be in windows but never in their middle.
    window: words of a window, an odd number.
    hidden: units of the hidden layer.
    reduction: of the training loss: 'sum' adds the windows of a batch, 'mean' divides by their number.
    update: 'tables' differentiates the whole table, for any rule of `optim`; 'rows' only the rows that a batch reads,
      which needs optim.name sgd or adagrad. The result is the same.

  Raises:
    ValueError: an even window, or a vocabulary of fewer than two words.
  """
  user = "objective 'ranking'"
  require(trunk, user=user, attention=('none',), inputs=('tokens',))
  errors.one_of('objective.reduction', reduction, Reduction)
  errors.one_of('objective.update', update, Update)
  if window % 2 == 0:
    raise ValueError(f'objective.window={window} must be odd: set {window - 1} or {window + 1}')
  s = RankingSettings(words=words_of(vocab, user=user), pad_id=vocab.pad_id, window=window, reduction=reduction)
  task = Task(Model(trunk, window, hidden), partial(prepare, s), loss)
  return task._replace(rows=read_rows) if update == 'rows' else task


def windows_of(tokens: Array, segment_ids: Array, *, window: int, pad_id: int) -> Array:
  """Gather each word's window, padded: int[b, l] twice -> int[b, l, w]."""
  reach = window // 2
  if not reach:
    return tokens[..., None]
  inside = around(segment_ids, reach=reach) == segment_ids[..., None]  # [b, l, w - 1]
  near = jnp.where(inside, around(tokens, reach=reach), pad_id)
  return jnp.concatenate([near[..., :reach], tokens[..., None], near[..., reach:]], axis=-1)


def prepare(s: RankingSettings, root: Array, batch: Batch) -> Example:
  """Build each word's window; sample its wrong word by the row's key."""
  tokens, segments = batch['tokens'], batch['segment_ids']
  length, words = tokens.shape[1], jnp.asarray(s.words)
  word_indices = jax.vmap(lambda key: jax.random.randint(key, (length,), 0, len(s.words)))(
    row_keys(root, batch, every='step')
  )
  weights = (jnp.isin(tokens, words) & (segments > 0)) * batch['row_weight'][:, None]
  scale = batch_scale(weights) if s.reduction == 'mean' else jnp.ones(len(weights))
  return Example(
    {'windows': windows_of(tokens, segments, window=s.window, pad_id=s.pad_id), 'drawn': words[word_indices]},
    {'weights': weights, 'scale': scale},
  )


def read_rows(example: Example) -> dict[str, Array]:
  """List the words whose vectors a batch reads."""
  windows, drawn = (example.inputs[name].reshape(-1) for name in ('windows', 'drawn'))
  return {'trunk/token_embed/table': jnp.concatenate([windows, drawn])}


def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute hinge losses of windows; 'accuracy' is the share with higher scores."""
  true, false = forward(**example.inputs)
  weights, costs = example.targets['weights'], nn.relu(1 - true + false)
  above = (true > false).astype(jnp.float32)
  value = scaled_sum(costs, weights, example.targets['scale'])
  return Loss(value, {'loss': metric(costs, weights), 'accuracy': metric(above, weights)})
