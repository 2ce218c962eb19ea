"""Solved rows before the one that is asked for: few-shot prompts (Brown et al. 2020, §2 and §3)."""

import dataclasses
from collections.abc import Collection, Sequence

import numpy as np

from plm_jax.core.types import Count, Seed, NonNegativeInt
from plm_jax.data.corpora.records import Records
from plm_jax.data.rows.written import MARK, Form, Written


@dataclasses.dataclass(frozen=True)
class Shots:
  """The block `shots` of a source.

  Attributes:
    count: K, demonstrations before each row; those that find no room are left out, the first ones first.
    split: where they are drawn from. A row is never its own demonstration.
    seed: of the draws; each row has demonstrations of its own.
    draws: each row comes so often, with other demonstrations each time.
    separator: between demonstrations, and before the row.
    instruction: before all of them.
  """

  count: NonNegativeInt = 0
  split: str = 'train'
  seed: Seed = 0
  draws: Count = 1
  separator: str = '\n\n'
  instruction: str = ''


def solved(text: Written, *, gap: str) -> str:
  """A text with its first right answer: in its blank, where it has one, and else behind it."""
  target = text.targets[0]
  return text.inputs.replace(MARK, target) if MARK in text.inputs else f'{text.inputs}{gap}{target}'


class Drawer:
  """Draws demonstrations for rows."""

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
    """Draws nothing yet.

    Args:
      shots: how many, of which seed.
      form: how rows are written.
      records: to draw from.
      gap: what stands between the inputs and the target of a demonstration.
      same_split: the rows that are asked for are those of `records`.
      asked: those rows, where they are others but may be among `records`: slices of one split.
      left_out: places of rows that cannot be written, and are not drawn.

    Raises:
      ValueError: fewer rows than demonstrations.
    """
    usable = len(records) - len(left_out)
    if usable < shots.count + same_split:
      raise ValueError(f'shots.count={shots.count}: {records.where} has {usable} rows')
    self.shots, self.form, self.records = shots, form, records
    self.gap, self.same_split, self.asked, self.left_out = gap, same_split, asked, frozenset(left_out)

  def draw(self, index: int, draw: int) -> list[str]:
    """The instruction, where there is one, and the demonstrations of row `index`, as texts.

    Raises:
      ValueError: too few rows with a target.
    """
    shots = self.shots
    found = [shots.instruction] if shots.instruction else []
    tried = {*self.left_out, index} if self.same_split else {*self.left_out}
    own = None if self.asked is None else self.asked[index]
    raw = np.random.Philox(np.random.SeedSequence((shots.seed, draw, index)))  # numpy promises its bits for good
    wanted = len(found) + shots.count
    while len(found) < wanted:
      if len(tried) == len(self.records):
        raise ValueError(f'shots.count={shots.count}: too few rows of {self.records.where} have a target')
      place = int(raw.random_raw()) % len(self.records)
      if place not in tried:
        tried.add(place)
        row = self.records[place]
        text = None if row == own else self.form.write(row)
        if text is not None and text.targets:
          found.append(solved(text, gap=self.gap))
    return found

  def without_first(self, before: list[str]) -> list[str]:
    """What `draw` gave without its first demonstration; the instruction goes last."""
    kept = int(bool(self.shots.instruction) and len(before) > 1)
    return [*before[:kept], *before[kept + 1 :]]

  def join(self, before: Sequence[str], inputs: str) -> str:
    """Demonstrations and the text that is asked for."""
    return self.shots.separator.join([*before, inputs])
