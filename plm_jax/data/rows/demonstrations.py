"""Demonstrations before an example: few-shot prompts (Brown et al. 2020, §2 and §3)."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from plm_jax.core.keywords import Count, NonNegativeInt, Seed
from plm_jax.data.corpora.records import Records
from plm_jax.data.rows.written import MARK, Form, Written


@dataclasses.dataclass(frozen=True)
class Shots:
  """Settings of the block `shots` of a source.

  Attributes:
    count: K, demonstrations before each example; those that do not fit are dropped, the first ones first.
    split: split that they are sampled from. A row is never its own demonstration.
    seed: seed of the samples; each example has its own demonstrations.
    draws: number of samples: each example occurs this many times, with other demonstrations each time.
    separator: text between demonstrations, and before the example.
    instruction: text before all of them.
  """

  count: NonNegativeInt = 0
  split: str = 'train'
  seed: Seed = 0
  draws: Count = 1
  separator: str = '\n\n'
  instruction: str = ''


def solved(text: Written, *, gap: str) -> str:
  """Write the first right answer into the blank, or after the inputs."""
  target = text.targets[0]
  return text.inputs.replace(MARK, target) if MARK in text.inputs else f'{text.inputs}{gap}{target}'


class Sampler:
  """Sampler of demonstrations from `records`; raises ValueError for fewer rows than demonstrations.

  `gap` is the text between the inputs and the target of a demonstration. The examples are rows of `records`
  (`same_split`), or of `asked` if that split may share rows with it. The rows `left_out` cannot be written.
  """

  def __init__(
    self,
    shots: Shots,
    form: Form,
    records: Records,
    *,
    gap: str,
    same_split: bool,
    asked: Records | None = None,
    left_out: Collection[int] = (),
  ):
    usable = len(records) - len(left_out)
    if usable < shots.count + same_split:
      raise ValueError(f'shots.count={shots.count}: {records.where} has only {usable} rows, reduce it')
    self.shots, self.form, self.records = shots, form, records
    self.gap, self.same_split, self.asked, self.left_out = gap, same_split, asked, frozenset(left_out)

  def sample(self, index: int, draw: int) -> list[str]:
    """Return any instruction and the demonstrations of row `index`.

    Raises ValueError for too few rows with a target.
    """
    shots = self.shots
    texts = [shots.instruction] if shots.instruction else []
    tried = {*self.left_out, index} if self.same_split else {*self.left_out}
    own = None if self.asked is None else self.asked[index]
    bits = np.random.Philox(np.random.SeedSequence((shots.seed, draw, index)))  # stable across numpy versions
    needed = len(texts) + shots.count
    while len(texts) < needed:
      if len(tried) == len(self.records):
        raise ValueError(f'shots.count={shots.count}: too few rows of {self.records.where} have a target, reduce it')
      candidate = int(bits.random_raw()) % len(self.records)
      if candidate not in tried:
        tried.add(candidate)
        row = self.records[candidate]
        text = None if row == own else self.form.write(row)
        if text is not None and text.targets:
          texts.append(solved(text, gap=self.gap))
    return texts

  def without_first(self, before: list[str]) -> list[str]:
    """Remove the first demonstration; the instruction is removed last."""
    instructions = int(bool(self.shots.instruction) and len(before) > 1)
    return [*before[:instructions], *before[instructions + 1 :]]

  def join(self, before: Sequence[str], inputs: str) -> str:
    """Join the demonstrations and the inputs."""
    return self.shots.separator.join([*before, inputs])
