"""Cross-view training: views of a part of a text learn to predict like the whole model (Clark et al. 2018, §2).

    objective = dict(name='multiview', tags=dict(pos=('NOUN', 'VERB', ...)), unlabelled='text', ...)
    data = dict(name='mixture', per='step', alternate='text', temperature=2.0,
                parts=dict(pos=dict(name='labelled', kind='words', ...), text=dict(...)), ...)

A step trains on the rows of one part of the data. On labelled rows of a task its primary head learns the labels; it is
that of `adapters/tag` over both levels of the trunk, concatenated. On rows of `unlabelled` the primary head of every
task labels each word without dropout or gradient, and the views of every task learn its predictions:

  forward   the state of the first layer that has read the words up to this one
  backward  the one that has read this word and those after it
  future    the forward state of the word before, so that the word itself is hidden
  past      the backward state of the word after
  full      all layers, as the primary head (the released code has this fifth view, without an activation)

The first word of a text has no future view, and the last one no past view. Each view has its own head. The trunk is
shared, so it learns from all views, and evaluation uses the primary heads.

A task of `relations` parses (`adapters/parse`). Each of its views scores arcs from one direction of the first layer
for heads and one for their dependents, such as 'forward_backward'. None of them sees all of the text around both.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from plm_jax.adapters import multitask
from plm_jax.adapters.texts import Inputs, inputs_of, read_text
from plm_jax.config import build
from plm_jax.core.errors import one_of, require
from plm_jax.core.keywords import Count, LayerNumber, PartRate, Std
from plm_jax.core.trunk import Directions
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.arcs import ArcScores, over_arcs
from plm_jax.layers.linear import normal
from plm_jax.layers.losses import divergence
from plm_jax.layers.means import batch_scale, exact_loss, metric, row_terms, scaled_sum, whole_loss
from plm_jax.layers.mlp import PredictionHead
from plm_jax.layers.scalar_mix import read_layers
from plm_jax.objectives import corrupt

PAPER = Supervised(year=2018, title='Clark et al., Cross-View Training', architecture='lstm')
READS = ('part', 'tokens', 'segment_ids', 'labels')
READS_WITH = {'relations': ('heads',)}

View = Literal['forward', 'backward', 'future', 'past', 'full']
ARC_VIEWS = tuple(f'{head}_{word}' for head in ('forward', 'backward') for word in ('forward', 'backward'))
HIDDEN = {'future': -1, 'past': 1}  # views that do not see the word -> offset of the word whose state they read


class Views(nn.Module):
  """A trunk and the heads of all views of all tasks."""

  trunk: nn.Module
  outputs: Mapping[str, int]  # task -> number of its labels
  relations: Mapping[str, int]  # task -> number of its relations, of tasks that parse
  views: tuple[View, ...]  # those with heads
  layers: tuple[int, ...]  # read by the view 'full'
  width: int  # of the last hidden layer of a head
  arc_width: int
  init_std: float

  def setup(self) -> None:
    init = normal(self.init_std)
    activations = {view: 'linear' if view == 'full' else 'relu' for view in self.views}
    self.heads = {
      task: {view: PredictionHead(self.width, count, activations[view], 0.0, init) for view in self.views}
      for task, count in self.outputs.items()
    }
    self.arcs = {
      task: {view: ArcScores(count, self.arc_width, init) for view in ARC_VIEWS}
      for task, count in self.relations.items()
    }

  def __call__(
    self, segment_ids: Array, may_be_head: Array | None = None, train: bool = False, **inputs: Array
  ) -> dict[str, dict[str, Array]]:
    """Compute logits by task and view.

    f32[b, l, c] of labels, and f32[b, l, l * r] of arcs as `over_arcs` arranges them. `may_be_head` is bool[b, l], True
    where a word begins; None if no task parses.
    """
    out = self.trunk(**inputs, segment_ids=segment_ids, train=train)
    forward, backward = (states[0] for states in self.trunk.directions(out['layers'], segment_ids))  # [b, l, p]
    states = {
      'forward': forward,
      'backward': backward,
      'future': moved(forward, HIDDEN['future']),
      'past': moved(backward, HIDDEN['past']),
      'full': jnp.concatenate(read_layers(out, self.layers), axis=-1),
    }
    labels: dict[str, dict[str, Array]] = {
      task: {str(view): head(states[view].astype(jnp.float32), train=train) for view, head in heads.items()}
      for task, heads in self.heads.items()
    }
    if may_be_head is None:
      return labels
    # the view 'forward_backward' reads heads from the states of 'forward', and words from those of 'backward'
    arcs = {
      task: {
        view: over_arcs(head(*(states[side] for side in view.split('_'))), may_be_head, segment_ids)
        for view, head in heads.items()
      }
      for task, heads in self.arcs.items()
    }
    return labels | arcs


def moved(x: Array, by: int) -> Array:
  """Shift rows [b, l, ...] by -1 or 1; zeros enter."""
  # x a b c   by -1: 0 a b   by 1: b c 0
  pad = [(0, 0)] * x.ndim
  pad[1] = (1, 0) if by < 0 else (0, 1)
  return jnp.pad(x, pad)[:, : x.shape[1]] if by < 0 else jnp.pad(x, pad)[:, 1:]


class MultiviewSettings(NamedTuple):
  """Settings of the views on unlabelled rows."""

  views: Mapping[str, tuple[str, ...]]  # task -> views that learn
  inputs: Inputs  # fields that the trunk reads
  starts_word: np.ndarray  # bool[v], the token begins a word
  marks: np.ndarray  # bool[v], special tokens except the unknown word


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  tags: Mapping[str, tuple[str, ...]] = {},
  relations: Mapping[str, tuple[str, ...]] = {},
  unlabelled: str = 'text',
  views: tuple[View, ...] = ('forward', 'backward', 'future', 'past'),
  layers: tuple[LayerNumber, ...] = (-2, -1),
  hidden: Count = 512,
  arc_width: Count = 128,
  label_smoothing: PartRate = 0.1,
  unlabelled_dropout: PartRate = 0.2,
  init_std: Std = 0.03,
) -> Task:
  """Build tasks of words, with cross-view training on unlabelled rows.

  Args:
    trunk: a trunk of two directions; its own dropout is that of labelled rows.
    tags: task -> names of its labels in the order of their ids; tasks are named as parts of the data.
    relations: task -> names of its relations, of tasks that parse.
    unlabelled: name of the part whose rows need no labels.
    views: that learn from the primary heads of tasks that label words.
    layers: of the trunk that primary heads and the view 'full' read, concatenated.
    hidden: width of the last hidden layer of every head.
    arc_width: of the compared vectors of heads and dependents.
    label_smoothing: of the primary heads of tasks that label words, see `adapters/tag`.
    unlabelled_dropout: rate of the trunk when views learn.
    init_std: of the kernels of all heads.

  Raises:
    ValueError: no task; a task named twice, as `unlabelled` or with a reserved name; a view named twice, or none.
  """
  require(trunk, user="objective 'multiview'", inputs=('segment_ids',), offers=(Directions,))
  names = [*tags, *relations]
  if not names or len({*names, unlabelled, *multitask.TAKEN}) < len(names) + 1 + len(multitask.TAKEN):
    also = f', objective.relations {", ".join(relations)}' if relations else ''
    raise ValueError(
      f'objective.tags names {", ".join(tags) or "nothing"}{also}, and objective.unlabelled {unlabelled!r}: name each '
      'task once, with labels or relations, and another part of the data; '
      f'{", ".join(multitask.TAKEN)} are reserved'
    )
  for view in views:
    one_of('objective.views', view, View)
  if not views or len(set(views)) < len(views):
    raise ValueError(f'objective.views={tuple(views)}: name at least one view, each once')
  head = dict(hidden=hidden, layers=layers, label_smoothing=label_smoothing, init_std=init_std, arc_width=arc_width)
  primary = adapters_by_part({'tags': tags, 'relations': relations, **head})
  by_part = {name: build.make('adapters', block, trunk=trunk, vocab=vocab) for name, block in primary.items()}
  labels, arcs = ({name: len(own) for name, own in sorted(named.items())} for named in (tags, relations))
  sizes = tuple(views), tuple(layers), hidden, arc_width, init_std
  model = Views(trunk.with_dropout(unlabelled_dropout), labels, arcs, *sizes)
  marks = corrupt.mark_table(vocab)
  learning = {**dict.fromkeys(labels, tuple(views)), **dict.fromkeys(arcs, ARC_VIEWS)}
  s = MultiviewSettings(views=learning, inputs=inputs_of(trunk), starts_word=np.asarray(vocab.starts_word), marks=marks)
  terms = {f'{task}_{view}': 1.0 for task, seen in learning.items() for view in seen}
  exact = partial(exact_loss, terms=terms)
  by_part[unlabelled] = Task(model, partial(prepare, s), partial(loss, s), lambda forward, example: {}, exact=exact)
  return multitask.join({name: by_part[name] for name in sorted(by_part)})


def adapters_by_part(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
  """Build the adapter block of each primary head (`config/one_part.py`)."""
  shared = {'dropout': 0.0, 'layers': settings['layers'], 'init_std': settings['init_std']}
  head = {key: settings[key] for key in ('hidden', 'label_smoothing')}
  taggers = {
    name: {'name': 'tag', 'tags': own, 'activation': 'relu', **head, **shared} for name, own in settings['tags'].items()
  }
  return taggers | {
    name: {'name': 'parse', 'relations': own, 'width': settings['arc_width'], **shared}
    for name, own in settings.get('relations', {}).items()
  }


def prepare(s: MultiviewSettings, root: Array, batch: Batch) -> Example:
  """Build unlabelled rows, and mark the words that each view predicts.

  A view that hides the word needs a neighbour of the same text that is not a special token: 'past' of the last word
  would read the state of the end token. 'past' also needs the neighbour to begin a word: after a word of several pieces
  the state is that of a piece.
  """
  # tokens      <s> a  b  c </s>   words with a view 'future' b c, with a view 'past' a b
  tokens, segments = batch['tokens'], batch['segment_ids']
  text = ~jnp.asarray(s.marks)[tokens] & (segments > 0)
  words = text & jnp.asarray(s.starts_word)[tokens] & (batch['row_weight'][:, None] > 0)
  targets: dict[str, Array] = row_terms(batch['row_weight'])
  for view in dict.fromkeys(view for views in s.views.values() for view in views):
    seen = words
    if by := HIDDEN.get(view):
      neighbours = words if by > 0 else text  # a word follows the last piece of another
      seen = words & moved(neighbours, by) & (moved(segments, by) == segments)
    targets[view] = seen.astype(jnp.float32)
    targets[f'{view}_scale'] = batch_scale(targets[view])
  parses = ARC_VIEWS in s.views.values()
  return Example(read_text(batch, s.inputs) | ({'may_be_head': words} if parses else {}), targets)


def loss(s: MultiviewSettings, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Sum over tasks and views the mean of KL(primary || view).

  Metrics also count how often both choose the same label. The entropy of the primary head has no gradient, so this
  trains the same as cross-entropy.
  """
  targets = example.targets
  logits = forward(**example.inputs)
  value, metrics = jnp.zeros(()), {}
  for task, views in s.views.items():
    read = {name: value for name, value in example.inputs.items() if name != 'may_be_head' or views == ARC_VIEWS}
    primary = jax.lax.stop_gradient(forward(part=task, train=False, **read))  # f32[b, l, c], or of arcs
    for view in views:
      weights = targets[view]
      nats = divergence(logits[task][view], primary, temperature=1.0)
      value += scaled_sum(nats, weights, targets[f'{view}_scale'])
      metrics[f'{task}_{view}'] = metric(nats, weights)
      agrees = logits[task][view].argmax(axis=-1) == primary.argmax(axis=-1)
      metrics[f'{task}_{view}_accuracy'] = metric(agrees, weights)
  return Loss(value, metrics | {'loss': whole_loss(value, targets)})
