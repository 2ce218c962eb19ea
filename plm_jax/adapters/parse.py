"""Dependency parsing: the head of each word and its relation (Clark et al. 2018, §3).

    data = dict(name='labelled', kind='arcs', fields=('tokens', 'head'), label='deprel', ...)

A word is represented by the state of its first piece. `layers/arcs.py` scores its arcs to every word of its text with
every relation, and the loss is the cross-entropy of the right one. The head of a root is the root itself. Each word is
predicted independently, so the result need not be a tree.

Metrics: `uas`, the share of words with the right head, and `las`, with the right head and relation, including
punctuation (Buchholz and Marsi 2006, §3.2). Words whose head was truncated are neither trained nor counted.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from plm_jax.adapters.texts import Inputs, check_names, inputs_of, read_text, segments_of, trained
from plm_jax.core.keywords import Count, LayerNumber, PartRate, Std
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, PyTree, Supervised, Task, Vocab
from plm_jax.layers.arcs import ArcScores, over_arcs
from plm_jax.layers.dropout import Dropout
from plm_jax.layers.linear import normal
from plm_jax.layers.losses import cross_entropy
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.layers.scalar_mix import read_layers
from plm_jax.scores import attachment

PAPER = Supervised(year=2018, title='Clark et al., Cross-View Training §3')
READS = ('tokens', 'segment_ids', 'heads', 'labels')
QUICK = dict(relations=('O', 'B-name', 'I-name', 'B-type', 'I-type'), layers=(-1,), width=16)  # for `file.py:quick`


class Model(nn.Module):
  """A trunk and the scores of arcs between words.

  Attributes are keywords of `make`; `relations` is the number of relations.
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
    """Compute the scores f32[b, l, l * r] of arcs, see `over_arcs`."""
    out = self.trunk(**inputs, train=train and not self.frozen)
    states = read_layers(out, self.layers)
    if self.frozen:
      states = jax.lax.stop_gradient(states)
    joined = self.arc_dropout(jnp.concatenate(states, axis=-1), train=train)  # [b, l, d * layers]
    return over_arcs(self.arcs(joined, joined), may_be_head, segments_of(inputs))


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
  """Predict heads and relations of words.

  Args:
    vocab: vocabulary of the data, from `data/labelled.py` with kind='arcs'.
    relations: names of the relations by id. (): a run finds them in its training data.
    layers: layers whose states are concatenated; -1 is the trunk's output, 0 its embeddings.
    width: width of the compared vectors of heads and words.
    dropout: rate on the states.
    frozen: feature extraction: the trunk runs without dropout and does not train, whatever `optim` says.
    init_std: standard deviation of all matrices of the head.

  Raises:
    ValueError: fewer than two relations, a relation twice, or no layer.
  """
  check_names('relations', relations)
  if not layers:
    raise ValueError('adapter.layers=() is empty: give one or more, such as -1 for the output of the trunk')
  model = Model(trunk, len(relations), width, tuple(layers), dropout, frozen, init_std)
  return Task(
    model=model,
    prepare=partial(prepare, inputs_of(trunk), len(relations)),
    loss=partial(loss, len(relations)),
    predict=partial(predict, len(relations)),
    in_words=in_words,
    classes=len(relations),
    class_names=tuple(relations),
    trains=trained(frozen, trunk),
  )


def prepare(inputs: Inputs, relations: int, root: Array, batch: Batch) -> Example:
  """Prepare texts, first pieces of words, and the right arcs."""
  words = (batch['heads'] != -1) & (batch['segment_ids'] > 0)
  row_weight = batch['row_weight'][:, None]
  labelled = words & (batch['heads'] >= 0) & (batch['labels'] >= 0)
  weights = labelled * row_weight
  targets = {
    'arcs': jnp.where(labelled, batch['heads'] * relations + batch['labels'], 0),  # int[b, l], see `over_arcs`
    'words': words & (batch['labels'] >= 0) & (row_weight > 0),
    'weights': weights,
    'scale': batch_scale(weights),
  }
  return Example(read_text(batch, inputs) | {'may_be_head': words}, targets)


def loss(relations: int, forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute the cross-entropy of the right arc of each word."""
  targets, weights = example.targets, example.targets['weights']
  scores = forward(**example.inputs)
  nats = cross_entropy(scores, targets['arcs'])  # [b, l]
  predicted, right = scores.argmax(axis=-1), targets['arcs']
  same_head = predicted // relations == right // relations
  return Loss(
    scaled_sum(nats, weights, targets['scale']),
    {'loss': metric(nats, weights), 'uas': metric(same_head, weights), 'las': metric(predicted == right, weights)},
  )


def predict(relations: int, forward: Forward, example: Example) -> dict[str, Array]:
  """Predict words' heads, relations, probabilities [b, l]; else -1, -1, 0."""
  words = example.targets['words']
  probabilities = jax.nn.softmax(forward(**example.inputs), axis=-1)
  arcs = probabilities.argmax(axis=-1)
  return {
    'heads': jnp.where(words, arcs // relations, -1).astype(jnp.int32),
    'labels': jnp.where(words, arcs % relations, -1).astype(jnp.int32),
    'probability': jnp.where(words, probabilities.max(axis=-1), 0.0),
  }


def in_words(prediction: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
  """Render arcs in CoNLL-U numbering, such as '3:case'."""
  return {'arcs': attachment.written(prediction, record)}
