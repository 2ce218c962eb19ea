"""Word vectors by ranking windows (Collobert and Weston 2008, §5): a text above one with a wrong word.

A window of words has a score: their vectors side by side, a linear layer, hard tanh, a linear layer with one output.
With s the score of a window of the text and s^w that with the word w, drawn uniformly, in place of the middle one, the
loss is max(0, 1 - s + s^w). Beyond its document a window has padding, which has a vector as words have.

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
from plm_jax.core.types import Array, Batch, Count, Example, Forward, Loss, Paper, PyTree, Task, Vocab
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
  """The trunk and the two layers that score a window; kernels are drawn from U(-1, 1) / sqrt(inputs)."""

  trunk: nn.Module
  window: int
  hidden: int

  def setup(self) -> None:
    inputs = self.window * self.trunk.hidden_dim
    self.first = Dense(self.hidden, (None, 'embed', None), uniform(inputs**-0.5), num_inputs=2)
    # no bias: two scores are compared, from which it would fall out
    self.second = Dense(1, (None, None), uniform(self.hidden**-0.5), use_bias=False)

  def __call__(self, windows: Array, drawn: Array, train: bool = False) -> tuple[Array, Array]:
    """Scores of windows, and of the same with other words in their middle.

    Args:
      windows: int[b, l, w].
      drawn: int[b, l], the other words.
      train: drops out.

    Returns:
      f32[b, l] twice.
    """
    rows, length, width = windows.shape
    flat = self.trunk(windows.reshape(rows, length * width), train=train)['hidden']
    true = flat.reshape(rows, length, width, -1)  # [b, l, w, d]
    false = true.at[:, :, width // 2].set(self.trunk(drawn, train=train)['hidden'])
    return self.score(true), self.score(false)

  def score(self, vectors: Array) -> Array:
    """[b, l, w, d] -> f32[b, l]."""
    return self.second(nn.hard_tanh(self.first(vectors)))[..., 0].astype(jnp.float32)


class RankingSettings(NamedTuple):
  """What makes windows; settings are explained in `make`.

  Attributes:
    words: int32[n], the ids that may stand in the middle and are drawn: all but those of special tokens.
    pad_id: stands where a window reaches beyond its document.
  """

  words: np.ndarray
  pad_id: int
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
  """Word vectors by telling texts from those with a wrong word.

  Args:
    trunk: a trunk whose vectors do not depend on neighbours: 'static'.
    vocab: of the rows. Special tokens, unknown words among them, stand in windows but never in their middle.
    window: words of a window, an odd number.
    hidden: units of the hidden layer.
    reduction: of the loss that is trained on: 'sum' adds the windows of a batch, 'mean' divides by their number.
    update: 'tables' differentiates the whole table, for any rule of `optim`; 'rows' those rows that a batch reads,
      which asks for optim.name sgd or adagrad. The result is the same.

  Raises:
    ValueError: an even window, or a vocabulary of fewer than two words.
  """
  user = "objective 'ranking'"
  require(trunk, user=user, attention=('none',), inputs=('tokens',))
  errors.one_of('objective.reduction', reduction, Reduction)
  errors.one_of('objective.update', update, Update)
  if window % 2 == 0:
    raise ValueError(f'objective.window={window} has no middle: choose {window - 1} or {window + 1}')
  s = RankingSettings(words_of(vocab, user=user), vocab.pad_id, window, reduction)
  task = Task(Model(trunk, window, hidden), partial(prepare, s), loss)
  return task._replace(rows=read_rows) if update == 'rows' else task


def windows_of(tokens: Array, segment_ids: Array, *, window: int, pad_id: int) -> Array:
  """The window around each word, int[b, l] twice -> int[b, l, w]; `pad_id` beyond the document of the word."""
  reach = window // 2
  if not reach:
    return tokens[..., None]
  inside = around(segment_ids, reach=reach) == segment_ids[..., None]  # [b, l, w - 1]
  near = jnp.where(inside, around(tokens, reach=reach), pad_id)
  return jnp.concatenate([near[..., :reach], tokens[..., None], near[..., reach:]], axis=-1)


def prepare(s: RankingSettings, root: Array, batch: Batch) -> Example:
  """The window around each word, and the word that is put in its middle, drawn by the keys of the rows."""
  tokens, segments = batch['tokens'], batch['segment_ids']
  length, words = tokens.shape[1], jnp.asarray(s.words)
  numbers = jax.vmap(lambda key: jax.random.randint(key, (length,), 0, len(s.words)))(
    row_keys(root, batch, every='step')
  )
  weights = (jnp.isin(tokens, words) & (segments > 0)) * batch['row_weight'][:, None]
  scale = batch_scale(weights) if s.reduction == 'mean' else jnp.ones(len(weights))
  return Example(
    {'windows': windows_of(tokens, segments, window=s.window, pad_id=s.pad_id), 'drawn': words[numbers]},
    {'weights': weights, 'scale': scale},
  )


def read_rows(example: Example) -> dict[str, Array]:
  """The words whose vectors a batch reads."""
  windows, drawn = (example.inputs[name].reshape(-1) for name in ('windows', 'drawn'))
  return {'trunk/token_embed/table': jnp.concatenate([windows, drawn])}


def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """By how much each window fails to stand 1 above that with the wrong word; how often it stands above at all."""
  del carry, rng
  true, false = forward(**example.inputs)
  weights, costs = example.targets['weights'], nn.relu(1 - true + false)
  above = (true > false).astype(jnp.float32)
  value = scaled_sum(costs, weights, example.targets['scale'])
  return Loss(value, {'loss': metric(costs, weights), 'accuracy': metric(above, weights)})
