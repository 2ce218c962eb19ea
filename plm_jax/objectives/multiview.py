"""Cross-view training: views that see a part of a text learn what the whole model says of it (Clark et al. 2018, §2).

    objective = dict(name='multiview', tags=dict(pos=('NOUN', 'VERB', ...)), unlabelled='text', ...)
    data = dict(name='mixture', per='step', alternate='text', temperature=2.0,
                parts=dict(pos=dict(name='labelled', kind='words', ...), text=dict(...)), ...)

A step trains on the rows of one part of the data. On labelled rows of a task its primary head, that of `adapters/tag`
over both levels of the trunk side by side, learns the labels. On rows of `unlabelled` the primary head of every task
labels each word without dropout and without a gradient, and the views of every task learn what it says:

  forward   the state of the first layer that has read the words up to this one
  backward  the one that has read this word and those behind it
  future    the forward state of the word before, so that the word itself is hidden
  past      the backward state of the word behind
  full      all layers, as the primary head (the released code has this fifth view, without an activation)

The first word of a text has no future view, and the last one no past view. A view is a head of its own; the trunk is
shared, so that it learns from them, and evaluation reads the primary heads.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters import multitask
from plm_jax.adapters.texts import inputs_of, read_text
from plm_jax.errors import one_of, require
from plm_jax.layers.linear import normal
from plm_jax.layers.losses import divergence
from plm_jax.layers.means import batch_scale, metric, row_terms, scaled_sum, whole_loss
from plm_jax.layers.mlp import PredictionHead
from plm_jax.layers.scalar_mix import read_layers
from plm_jax.objectives import corrupt
from plm_jax.plugins import build
from plm_jax.types import (
  Array,
  Batch,
  Count,
  Directions,
  Example,
  Forward,
  LayerNumber,
  Loss,
  Paper,
  PartRate,
  PyTree,
  Std,
  Task,
  Vocab,
)

PAPER = Paper(
  year=2018,
  title='Clark et al., Cross-View Training',
  architecture='lstm',
  objective_family='supervised',
  supervision='supervised',
)
READS = ('part', 'tokens', 'segment_ids', 'labels')

View = Literal['forward', 'backward', 'future', 'past', 'full']
HIDDEN = {'future': -1, 'past': 1}  # views from which the word is hidden: where the word stands whose state they read


class Views(nn.Module):
  """A trunk and the heads of all views of all tasks.

  Attributes:
    trunk: a trunk of two directions.
    outputs: task -> number of its labels.
    views: whose heads there are.
    layers: that the view 'full' reads.
    width: of the layer of a head before the last one.
    init_std: of the kernels of the heads.
  """

  trunk: nn.Module
  outputs: Mapping[str, int]
  views: tuple[View, ...]
  layers: tuple[int, ...]
  width: int
  init_std: float

  def setup(self) -> None:
    init = normal(self.init_std)
    activations = {view: 'linear' if view == 'full' else 'relu' for view in self.views}
    self.heads = {
      task: {view: PredictionHead(self.width, count, activations[view], 0.0, init) for view in self.views}
      for task, count in self.outputs.items()
    }

  def __call__(self, segment_ids: Array, train: bool = False, **inputs: Array) -> dict[str, dict[str, Array]]:
    """Logits f32[b, l, c] by task and view."""
    out = self.trunk(**inputs, segment_ids=segment_ids, train=train)
    forward, backward = (states[0] for states in self.trunk.directions(out['layers'], segment_ids))  # [b, l, p]
    states = {
      'forward': forward,
      'backward': backward,
      'future': moved(forward, HIDDEN['future']),
      'past': moved(backward, HIDDEN['past']),
      'full': jnp.concatenate(read_layers(out, self.layers), axis=-1),
    }
    return {
      task: {view: head(states[view].astype(jnp.float32), train=train) for view, head in heads.items()}
      for task, heads in self.heads.items()
    }


def moved(x: Array, by: int) -> Array:
  """What stands `by` places on, -1 or 1, in a row [b, l, ...]; zeros where nothing does."""
  # x a b c   by -1: 0 a b   by 1: b c 0
  pad = [(0, 0)] * x.ndim
  pad[1] = (1, 0) if by < 0 else (0, 1)
  return jnp.pad(x, pad)[:, : x.shape[1]] if by < 0 else jnp.pad(x, pad)[:, 1:]


class Setup(NamedTuple):
  """What is read of unlabelled rows.

  Attributes:
    tasks: names.
    views: that learn.
    inputs: what the trunk reads.
    starts_word: bool[v], the token begins a word.
    marks: bool[v], special tokens but the unknown word.
  """

  tasks: tuple[str, ...]
  views: tuple[View, ...]
  inputs: tuple[str, ...]
  starts_word: np.ndarray
  marks: np.ndarray


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  tags: Mapping[str, tuple[str, ...]],
  unlabelled: str = 'text',
  views: tuple[View, ...] = ('forward', 'backward', 'future', 'past'),
  layers: tuple[LayerNumber, ...] = (-2, -1),
  hidden: Count = 512,
  label_smoothing: PartRate = 0.1,
  unlabelled_dropout: PartRate = 0.2,
  init_std: Std = 0.03,
) -> Task:
  """Tasks that label words, over one trunk, which learns from unlabelled rows as well.

  Args:
    trunk: a trunk of two directions; its own dropout is that of labelled rows.
    vocab: of the rows.
    tags: task -> names of its labels in the order of their numbers; tasks are named as parts of the data.
    unlabelled: name of the part whose rows need no labels.
    views: that learn from the primary heads.
    layers: of the trunk that primary heads, and the view 'full', read side by side.
    hidden: width of the layer of every head before its last one.
    label_smoothing: of the primary heads, see `adapters/tag`.
    unlabelled_dropout: rate of the trunk where views learn.
    init_std: of the kernels of all heads.

  Raises:
    ValueError: no task, a task with the name of `unlabelled` or one that is taken, a view twice or none.
  """
  require(trunk, user="objective 'multiview'", inputs=('segment_ids',), offers=(Directions,))
  if not tags or set(tags) & {unlabelled, *multitask.TAKEN} or unlabelled in multitask.TAKEN:
    raise ValueError(
      f'objective.tags names {", ".join(tags) or "nothing"}, and objective.unlabelled {unlabelled!r}: name tasks, each '
      f'with its labels, and another part of the data, none of them {" or ".join(multitask.TAKEN)}'
    )
  for view in views:
    one_of('objective.views', view, View)
  if not views or len(set(views)) < len(views):
    raise ValueError(f'objective.views={tuple(views)}: name one or more, each once')
  head = dict(hidden=hidden, layers=layers, label_smoothing=label_smoothing, init_std=init_std)
  primary = adapters_by_part({'tags': tags, **head})
  made = {name: build.make('adapters', block, trunk=trunk, vocab=vocab) for name, block in primary.items()}
  outputs = {name: len(own) for name, own in sorted(tags.items())}
  model = Views(trunk.with_dropout(unlabelled_dropout), outputs, tuple(views), tuple(layers), hidden, init_std)
  marks = corrupt.among([number for number in vocab.special_ids if number != vocab.unk_id], vocab.size)
  s = Setup(tuple(outputs), tuple(views), inputs_of(trunk), np.asarray(vocab.starts_word), marks)
  made[unlabelled] = Task(model, partial(prepare, s), partial(loss, s), lambda forward, example: {})
  return multitask.join({name: made[name] for name in sorted(made)})


def adapters_by_part(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Task -> the adapter of its primary head (`plugins/one_part.py`), from the block of this objective."""
  head = {key: settings[key] for key in ('hidden', 'layers', 'label_smoothing', 'init_std')}
  return {
    name: {'name': 'tag', 'tags': own, 'activation': 'relu', 'dropout': 0.0, **head}
    for name, own in settings['tags'].items()
  }


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """Unlabelled rows, and the words of which each view says something.

  A word that is hidden has to have a neighbour of its own text that is no mark: 'past' of the last word would read the
  state of what ends a text.
  """
  # tokens      <s> a  b  c </s>   words with a view 'future' b c, with a view 'past' a b
  del root
  tokens, segments = batch['tokens'], batch['segment_ids']
  text = ~jnp.asarray(s.marks)[tokens] & (segments > 0)
  words = text & jnp.asarray(s.starts_word)[tokens] & (batch['row_weight'][:, None] > 0)
  targets: dict[str, Array] = row_terms(batch['row_weight'])
  for view in s.views:
    seen = words
    if by := HIDDEN.get(view):
      seen = words & moved(text, by) & (moved(segments, by) == segments)
    targets[view] = seen.astype(jnp.float32)
    targets[f'{view}_scale'] = batch_scale(targets[view])
  return Example(read_text(batch, s.inputs), targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """sum over tasks and views of the mean of KL(primary || view), and how often both choose the same label.

  The entropy of what the primary head says has no gradient, so that cross-entropy trains alike.
  """
  del carry, rng
  targets = example.targets
  found = forward(**example.inputs)
  value, metrics = jnp.zeros(()), {}
  for task in s.tasks:
    primary = jax.lax.stop_gradient(forward(part=task, train=False, **example.inputs))  # f32[b, l, c]
    for view in s.views:
      weights = targets[view]
      nats = divergence(found[task][view], primary, temperature=1.0)
      value += scaled_sum(nats, weights, targets[f'{view}_scale'])
      metrics[f'{task}_{view}'] = metric(nats, weights)
      agrees = found[task][view].argmax(axis=-1) == primary.argmax(axis=-1)
      metrics[f'{task}_{view}_accuracy'] = metric(agrees, weights)
  return Loss(value, metrics | {'loss': whole_loss(value, targets)})
