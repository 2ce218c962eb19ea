"""The exact distribution of a plain corruption, by enumerating all of its random choices.

A plain corruption draws from numpy's generator. `Tree` takes the generator's place, takes one branch of every draw, and
`distribution` runs the corruption until all branches are done.
"""

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

NEGLIGIBLE = 1e-8  # draws as unlikely as this, together, are left out


class NegligibleError(Exception):
  """What was drawn is too unlikely to follow."""


class Chance:
  """A uniform number in [0, 1), of which only a comparison is ever seen."""

  def __init__(self, tree: 'Tree'):
    self.tree = tree

  def __lt__(self, share: float) -> bool:
    return self.tree.pick([share, 1 - share]) == 0


class Tree:
  """The methods of `numpy.random.Generator` that plain corruptions use, as branches of a tree."""

  def __init__(self, longest: int) -> None:
    self.longest = longest
    self.path: list[list[int]] = []  # [branch taken, branches] of each draw
    self.restart()

  def restart(self) -> None:
    self.depth, self.probability = 0, 1.0

  def advance(self) -> bool:
    """Advance to the next leaf; False after the last."""
    del self.path[self.depth :]
    while self.path and self.path[-1][0] + 1 == self.path[-1][1]:
      self.path.pop()
    if self.path:
      self.path[-1][0] += 1
    return bool(self.path)

  def pick(self, weights: Sequence[float]) -> int:
    """Take one branch per weight; weights sum to 1."""
    if self.depth == len(self.path):
      self.path.append([0, len(weights)])
    taken = self.path[self.depth][0]
    self.depth += 1
    self.probability *= float(weights[taken])
    if self.probability < NEGLIGIBLE:
      raise NegligibleError
    return taken

  def random(self) -> Chance:
    return Chance(self)

  def integers(self, low: int, high: int | None = None, size: int | None = None, *, endpoint: bool = False) -> Any:
    low, high = (0, low) if high is None else (low, high)
    number = high - low + endpoint
    draw = lambda: low + self.pick([1 / number] * number)  # noqa: E731
    return draw() if size is None else np.array([draw() for _ in range(size)], int)

  def choice(self, items: Any, size: int | None = None, *, replace: bool = True, p: Any = None) -> Any:
    left = list(range(items)) if isinstance(items, int | np.integer) else list(items)
    if size is None:
      return left[self.pick([1 / len(left)] * len(left) if p is None else p)]
    assert not replace and p is None
    return np.array([left.pop(self.pick([1 / len(left)] * len(left))) for _ in range(size)], int)

  def permutation(self, number: int) -> np.ndarray:
    return self.choice(number, number, replace=False)

  def shuffle(self, items: list) -> None:
    items[:] = [items[place] for place in self.permutation(len(items))]

  def poisson(self, mean: float) -> int:
    shares = [math.exp(-mean) * mean**k / math.factorial(k) for k in range(self.longest)]
    return self.pick([*shares, 1 - sum(shares)])


def distribution(corruption: Callable[[Any], tuple[int, ...]], *, longest: int = 9) -> dict[tuple[int, ...], float]:
  """Compute the probability of each outcome of `corruption`.

  They sum to 1, except for negligible outcomes.

  Args:
    corruption: generator -> outcome.
    longest: Poisson numbers from here on make no difference.
  """
  tree, found = Tree(longest), collections.Counter[tuple[int, ...]]()
  while True:
    tree.restart()
    try:
      outcome = corruption(tree)
      found[outcome] += tree.probability  # type: ignore[assignment]
    except NegligibleError:
      pass
    if not tree.advance():
      return dict(found)
