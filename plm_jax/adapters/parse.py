"""Dependency trees: the head of each word and the relation to it (Clark et al. 2018, §3).

    data = dict(name='labelled', kind='arcs', fields=('tokens', 'head'), label='deprel', ...)

A word is read by the state of its first piece. Its arcs, to every word of its text and with every relation, are scored
by `layers/arcs.py`, and the right one is learned by cross-entropy. A root hangs on itself. Each word takes the
likeliest arc by itself, so that what is found need not be a tree.

Metrics: `uas`, the share of words whose head is right, and `las`, of those whose relation is right as well, punctuation
counted (Buchholz and Marsi 2006, §3.2). Words whose head was cut off the row are neither trained nor counted.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters.texts import check_names, inputs_of, read_text, segments_of, trained
from plm_jax.core.types import (
  Array,
  Batch,
  Count,
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
from plm_jax.layers.arcs import ArcScores, over_arcs
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import normal
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.scalar_mix import read_layers
from plm_jax.scores import attachment

PAPER = Paper(
  year=2018,
  title='Clark et al., Cross-View Training §3',
  architecture='any',
  objective_family='supervised',
  supervision='supervised',
)
READS = ('tokens', 'segment_ids', 'heads', 'labels')
QUICK = dict(relations=('O', 'B-name', 'I-name', 'B-type', 'I-type'), layers=(-1,), width=16)  # (`file.py:quick`)


class Model(nn.Module):
  """A trunk, and the scores of the arcs between its words.

  Attributes:
    trunk: any trunk.
    relations: how many there are.
    width: of what is compared.
    layers: whose states are read side by side; -1 is the trunk's output, 0 the embeddings.
    dropout: rate on these states.
    frozen: the trunk runs without dropout and gets no gradient.
    init_std: of all matrices.
  """

  trunk: nn.Module
  relations: int
  width: int
  layers: tuple[int, ...]
  dropout: float
  frozen: bool
  init_std: float

  def setup(self) -> None:
    self.arcs = ArcScores(self.relations, self.width, normal(self.init_std))
    self.arc_dropout = Dropout(self.dropout)

  def __call__(self, may_be_head: Array, train: bool = False, **inputs: Array) -> Array:
    """Scores f32[b, l, l * r] of the arcs of each word, as `over_arcs` has them.

    Args:
      may_be_head: bool[b, l], a word begins here.
      train: drops out.
      **inputs: of the trunk.
    """
    out = self.trunk(**inputs, train=train and not self.frozen)
    states = read_layers(out, self.layers)
    if self.frozen:
      states = jax.lax.stop_gradient(states)
    side_by_side = self.arc_dropout(jnp.concatenate(states, axis=-1), train=train)  # [b, l, d * layers]
    return over_arcs(self.arcs(side_by_side, side_by_side), may_be_head, segments_of(inputs))


class Setup(NamedTuple):
  """What is read and scored.

  Attributes:
    inputs: what the trunk reads.
    relations: how many there are.
  """

  inputs: tuple[str, ...]
  relations: int


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  relations: tuple[str, ...] = (),
  layers: tuple[LayerNumber, ...] = (-1,),
  width: Count = 128,
  dropout: PartRate = 0.1,
  frozen: bool = False,
  init_std: Std = 0.02,
) -> Task:
  """Heads and relations of words.

  Args:
    trunk: any trunk.
    vocab: of the rows, as `data/labelled.py` makes them with kind='arcs'.
    relations: their names in the order of their numbers. (): a run finds them in its training data.
    layers: whose states are read side by side; -1 is the trunk's output, 0 its embeddings.
    width: of what is compared of a head and of a word.
    dropout: rate on the states.
    frozen: feature extraction: the trunk runs without dropout and keeps its values, whatever `optim` says.
    init_std: of all matrices of the head.

  Raises:
    ValueError: fewer than two relations, a relation twice, or no layer.
  """
  del vocab
  check_names('relations', relations)
  if not layers:
    raise ValueError('adapter.layers=(): name one or more, as -1 for the output of the trunk')
  s = Setup(inputs_of(trunk), len(relations))
  model = Model(trunk, len(relations), width, tuple(layers), dropout, frozen, init_std)
  task = Task(model, partial(prepare, s), partial(loss, s), partial(predict, s), in_words=in_words)
  return task._replace(classes=len(relations), class_names=tuple(relations), trains=trained(frozen, trunk))


def prepare(s: Setup, root: Array, batch: Batch) -> Example:
  """The text, where its words begin, and the right arc of each word whose head is in the row."""
  del root
  words = (batch['heads'] != -1) & (batch['segment_ids'] > 0)
  row_weight = batch['row_weight'][:, None]
  known = words & (batch['heads'] >= 0) & (batch['labels'] >= 0)
  weights = known * row_weight
  targets = {
    'arcs': jnp.where(known, batch['heads'] * s.relations + batch['labels'], 0),  # int[b, l], see `over_arcs`
    'words': words & (batch['labels'] >= 0) & (row_weight > 0),
    'weights': weights,
    'scale': batch_scale(weights),
  }
  return Example(read_text(batch, s.inputs) | {'may_be_head': words}, targets)


def loss(s: Setup, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Cross-entropy of the right arc of each word among all of them."""
  del carry, rng
  targets, weights = example.targets, example.targets['weights']
  scores = forward(**example.inputs)
  nats = cross_entropy(scores, targets['arcs'])  # [b, l]
  found, right = scores.argmax(axis=-1), targets['arcs']
  same_head = found // s.relations == right // s.relations
  return Loss(
    scaled_sum(nats, weights, targets['scale']),
    {
      'loss': metric(nats, weights),
      'uas': metric(same_head, weights),
      'las': metric(found == right, weights),
    },
  )


def predict(s: Setup, forward: Forward, example: Example) -> dict[str, Array]:
  """The place of the head of each word, its relation and the probability of both; -1, -1 and 0 elsewhere."""
  words = example.targets['words']
  shares = jax.nn.softmax(forward(**example.inputs), axis=-1)
  found = shares.argmax(axis=-1)
  return {
    'heads': jnp.where(words, found // s.relations, -1).astype(jnp.int32),
    'labels': jnp.where(words, found % s.relations, -1).astype(jnp.int32),
    'probability': jnp.where(words, shares.max(axis=-1), 0.0),
  }


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """The arc of each word as CoNLL-U numbers its head, such as '3:case'; None for a word that has none."""
  return {'arcs': attachment.written(prediction, record)}
