"""Skip-gram and continuous bag of words with a hierarchical softmax (Mikolov et al. 2013a and 2013b, §2.1; word2vec.c).

Words are the leaves of a Huffman tree, and the output vectors belong to its inner nodes. The probability of a word is
that of the path from the root to it: at each inner node, s(v n) for bit 0 and s(-v n) for bit 1. These probabilities
sum to 1 over all words. Windows are those of `context_windows.py`.

  # counts a 5 b 2 c 1    nodes 0 = (c b), 1 = (node 0, a)   paths  a: 1 by bit 1   b: 1, 0 by 0 1   c: 1, 0 by 0 0
"""

from functools import partial
from typing import Annotated, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

from plm_jax.core import errors
from plm_jax.core.errors import require
from plm_jax.core.types import Array, Batch, Example, Forward, Loss, Paper, PyTree, Task, Vocab
from plm_jax.layers.linear import Embed
from plm_jax.layers.means import batch_scale, metric, scaled_sum
from plm_jax.noise.keys import row_keys
from plm_jax.objectives.context_windows import (
  Architecture,
  Reduction,
  Update,
  Windows,
  around,
  bags,
  counts_of,
  keep_rates,
  lay,
  pair_weights,
)

PAPER = Paper(
  year=2013,
  title='Mikolov et al., Efficient Estimation of Word Representations in Vector Space',
  architecture='static',
  objective_family='co-occurrence',
)
READS = ('tokens', 'segment_ids')


class Tree(NamedTuple):
  """The path from the root to each word, at most w long."""

  nodes: np.ndarray  # int32[v, w], the inner nodes of the path; 0 after its end
  bits: np.ndarray  # int32[v, w], the bit taken at each of them; -1 after its end


class Model(nn.Module):
  """A table of input vectors (the trunk) and one of the vectors of inner nodes, which starts from zeros.

  `whole_gradient` is that of `context_windows.bags`.
  """

  trunk: nn.Module
  inner_nodes: int
  architecture: Architecture
  whole_gradient: bool = False

  def setup(self) -> None:
    self.output = Embed(self.inner_nodes, self.trunk.hidden_dim, (None, 'embed'), nn.initializers.zeros)

  def __call__(self, tokens: Array, pairs: Array, nodes: Array, train: bool = False) -> Array:
    """Compute logits at the inner nodes on the path to each centre.

    Returns f32[b, l, o, w] of skip-gram, whose input is the word at l and whose centre is the neighbour o; f32[b, l, 1,
    w] of a bag of words, whose centre is the word at l.

    Args:
      tokens: int[b, l].
      pairs: bool[b, l, o], True where a word is paired with a neighbour.
      nodes: int[b, l, w], the nodes on the path to the word at l.
    """
    vectors, paths = self.trunk(tokens, train=train)['hidden'], self.output(nodes)  # [b, l, d], [b, l, w, d]
    if self.architecture == 'cbow':
      means = bags(vectors, pairs, whole_gradient=self.whole_gradient)
      return jnp.einsum('bld,blwd->blw', means, paths)[:, :, None]
    length, reach = tokens.shape[1], pairs.shape[2] // 2
    padded = jnp.pad(paths, ((0, 0), (reach, reach), (0, 0), (0, 0)))
    # one offset at a time: the vectors of all neighbours at once would take 2 `reach` times the memory
    starts = [start for start in range(2 * reach + 1) if start != reach]
    logits = [jnp.einsum('bld,blwd->blw', vectors, padded[:, start : start + length]) for start in starts]
    return jnp.stack(logits, axis=2)


class HierarchicalSoftmaxSettings(NamedTuple):
  """Settings of windows and scores, explained in `make`."""

  windows: Windows
  tree: Tree
  reduction: Reduction


def make(
  *,
  trunk: nn.Module,
  vocab: Vocab,
  architecture: Architecture = 'skipgram',
  window: Annotated[int, '1 <= x <= 100'] = 5,
  subsample: Annotated[float, '0 <= x <= 1'] = 1e-3,
  reduction: Reduction = 'sum',
  update: Update = 'tables',
) -> Task:
  """Build word vectors by predicting words from their neighbours, along a tree.

  Args:
    trunk: a trunk whose vectors do not depend on neighbours: 'static'.
    vocab: of the rows, with the counts of its tokens. Special tokens are left out, and are no leaves.
    architecture: 'skipgram' or 'cbow', the continuous bag of words.
    window: most words to each side of a centre; the reach of each is sampled from 1 to `window`.
    subsample: as in objective 'skipgram'.
    reduction: of the training loss, as in objective 'skipgram'.
    update: 'tables' or 'rows', as in objective 'skipgram'.

  Raises:
    ValueError: the vocabulary has no counts, or fewer than two words with one.
  """
  user = "objective 'hierarchical_softmax'"
  require(trunk, user=user, attention=('none',), inputs=('tokens',))
  errors.one_of('objective.architecture', architecture, Architecture)
  errors.one_of('objective.reduction', reduction, Reduction)
  errors.one_of('objective.update', update, Update)
  counts = counts_of(vocab, user=user)
  words = np.flatnonzero(counts > 0)
  of_words = huffman(counts[words])  # a tree over the counted words only
  tree = Tree(
    nodes=np.zeros((vocab.size, of_words.nodes.shape[1]), np.int32),
    bits=np.full((vocab.size, of_words.bits.shape[1]), -1, np.int32),
  )
  tree.nodes[words], tree.bits[words] = of_words
  windows = Windows(keep=keep_rates(counts, subsample), architecture=architecture, window=window)
  s = HierarchicalSoftmaxSettings(windows=windows, tree=tree, reduction=reduction)
  model = Model(trunk, len(words) - 1, architecture, whole_gradient=reduction == 'sum')
  task = Task(model, partial(prepare, s), loss)
  return task._replace(rows=read_rows) if update == 'rows' else task


def huffman(counts: np.ndarray) -> Tree:
  """Build the tree of word2vec.c (CreateBinaryTree) for at least two counts.

  The two nodes with the smallest counts become children of a new node, the smaller with bit 0. Among equal counts the
  last word comes first, and words come after inner nodes.
  """
  size = len(counts)
  order = np.argsort(-counts, kind='stable')  # most frequent word first, as in word2vec.c
  count = np.concatenate([counts[order], np.full(size - 1, np.inf)])
  parent, bit = np.zeros(2 * size - 1, np.int64), np.zeros(2 * size - 1, np.int32)
  word, inner = size - 1, size  # the next smallest of either kind: words downwards, inner nodes upwards

  def smallest() -> int:
    nonlocal word, inner
    if word >= 0 and count[word] < count[inner]:
      word -= 1
      return word + 1
    inner += 1
    return inner - 1

  for new in range(size, 2 * size - 1):
    first, second = smallest(), smallest()
    count[new] = count[first] + count[second]
    parent[first], parent[second], bit[second] = new, new, 1
  return _paths(parent, bit, order)


def _paths(parent: np.ndarray, bit: np.ndarray, order: np.ndarray) -> Tree:
  """List the paths of a tree whose leaves hold words by `order`."""
  size, root = len(order), len(parent) - 1
  upwards = []  # per word from itself to the root: (inner node, bit)
  for leaf in range(size):
    path, node = [], leaf
    while node != root:
      path.append((int(parent[node]) - size, int(bit[node])))
      node = int(parent[node])
    upwards.append(path)
  longest = max(map(len, upwards))
  nodes, bits = np.zeros((size, longest), np.int32), np.full((size, longest), -1, np.int32)
  for word, path in zip(order, upwards, strict=True):
    nodes[word, : len(path)], bits[word, : len(path)] = np.array(path[::-1]).T
  return Tree(nodes=nodes, bits=bits)


def prepare(s: HierarchicalSoftmaxSettings, root: Array, batch: Batch) -> Example:
  """Subsample rows, sample windows by the rows' keys and look up paths."""
  laid = lay(s.windows, row_keys(root, batch, every='step'), batch)
  nodes, bits = jnp.asarray(s.tree.nodes)[laid.tokens], jnp.asarray(s.tree.bits)[laid.tokens]  # [b, l, w]
  weights = pair_weights(s.windows, laid.pairs, batch['row_weight'])
  centres = around(bits, reach=s.windows.window) if s.windows.architecture == 'skipgram' else bits[:, :, None]
  flat_weights = weights.reshape(len(weights), -1)
  scale = batch_scale(flat_weights) if s.reduction == 'mean' else jnp.ones(len(weights))
  return Example(
    {'tokens': laid.tokens, 'pairs': laid.pairs, 'nodes': nodes},
    {'weights': flat_weights, 'scale': scale, 'bits': centres},
  )


def read_rows(example: Example) -> dict[str, Array]:
  """List the words and the inner nodes whose vectors a batch reads."""
  tokens, nodes = (example.inputs[name].reshape(-1) for name in ('tokens', 'nodes'))
  return {'trunk/token_embed/table': tokens, 'output/table': nodes}


def loss(forward: Forward, example: Example, carry: PyTree, rng: Array) -> Loss:
  """Compute nats of the centre of each pair."""
  bits, weights = example.targets['bits'], example.targets['weights']
  nats = nats_of(forward(**example.inputs), bits).reshape(weights.shape)
  return Loss(scaled_sum(nats, weights, example.targets['scale']), {'loss': metric(nats, weights)})


def nats_of(logits: Array, bits: Array) -> Array:
  """Compute -log p: f32[..., w], int[..., w], -1 for padding -> f32[...]."""
  signs = 1 - 2 * bits  # word2vec.c: the label is 1 - bit
  return jnp.where(bits >= 0, nn.softplus(-signs * logits), 0).sum(axis=-1)
