"""What a compiled program computes and sends between devices, read from its text with the loops multiplied out."""

import collections
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

KINDS = ('all-gather', 'all-reduce', 'reduce-scatter', 'collective-permute', 'all-to-all')
BYTES = {
  'pred': 1, 's4': 0.5, 'u4': 0.5, 's8': 1, 'u8': 1, 's16': 2, 'u16': 2, 'bf16': 2, 'f16': 2,
  's32': 4, 'u32': 4, 'f32': 4, 's64': 8, 'u64': 8, 'f64': 8,
}  # fmt: skip

_HEAD = re.compile(r'(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\) -> .* \{')
# layouts hold parentheses, as {1,0:T(8,128)}: the operation is the first word with "(" behind the shape
_INSTRUCTION = re.compile(
  r'\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\([^=]*?\)|\S+) (?P<kind>[\w\-]+)\((?P<rest>.*)'
)
_CALLS = re.compile(r'(?:calls|to_apply|branch_computations|called_computations)=\{?(%?[\w.\-]+(?:, ?%?[\w.\-]+)*)\}?')
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\]')


class Instruction(NamedTuple):
  """A line of a computation: `name = shape kind(operands), attributes`."""

  name: str
  kind: str
  shape: str
  rest: str


class Program(NamedTuple):
  """The computations of a module by name, and which of them is run."""

  computations: dict[str, list[Instruction]]
  entry: str


class Collective(NamedTuple):
  """A transfer between devices.

  Attributes:
    kind: of `KINDS`, or such a kind with 'between slices': the part of it that goes over the slow network.
    bytes: on a device and in a run: of what goes in or of what comes out, whichever is more; between slices, of what
      the device hands over for the others.
    runs: in a call of the program.
    shape: of what comes out.
    source: the function in the program's source.
  """

  kind: str
  bytes: float
  runs: int
  shape: str
  source: str

  @property
  def total(self) -> float:
    """Bytes on a device in a call of the program."""
    return self.bytes * self.runs


def read(text: str) -> Program:
  """The computations of a module.

  Args:
    text: `compiled.as_text()`.

  Raises:
    ValueError: it has no entry.
  """
  computations: dict[str, list[Instruction]] = {}
  entry, inside = '', ''
  for line in re.sub(r'/\*.*?\*/', '', text).splitlines():
    if head := _HEAD.match(line):
      inside = head['name']
      computations[inside] = []
      entry = inside if head['entry'] else entry
    elif inside and (found := _INSTRUCTION.match(line)):
      computations[inside].append(Instruction(**found.groupdict()))
  if not entry:
    raise ValueError('the text of the program has no ENTRY computation')
  return Program(computations, entry)


def runs(program: Program) -> collections.Counter[str]:
  """How often each computation runs in a call of the program; a loop of unknown length counts as one round."""
  counted: collections.Counter[str] = collections.Counter()

  def visit(name: str, times: int) -> None:
    counted[name] += times
    for instruction in program.computations.get(name, ()):
      if instruction.kind == 'while':
        visit(_named('body', instruction), times * (_rounds(program, instruction) or 1))
      elif instruction.kind in ('call', 'fusion', 'async-start', 'conditional') or instruction.kind.endswith('-start'):
        for called in _called(instruction):
          visit(called, times)

  visit(program.entry, 1)
  return counted


def open_loops(text: str) -> int:
  """Loops of which the text does not say how many rounds they have; `runs` counts one round of each."""
  program = read(text)
  counted = runs(program)
  return sum(
    one.kind == 'while' and _rounds(program, one) is None
    for name, instructions in program.computations.items()
    if counted[name]
    for one in instructions
  )


def collectives(text: str) -> list[Collective]:
  """The transfers of a program, those with the most bytes first.

  One that overlaps a loop is written into its start, its rounds and its end, all with one channel: it counts as what
  runs least. Where sums of several arrays have one channel, as those of `shard_map`, each counts.

  Args:
    text: `compiled.as_text()`.

  Raises:
    ValueError: the text is not that of a program.
  """
  program = read(text)
  counted = runs(program)
  found: dict[tuple[bool, str], list[Collective]] = collections.defaultdict(list)  # (sent to a slice, channel) -> those
  for name, instructions in program.computations.items():
    shapes = {instruction.name: instruction.shape for instruction in instructions}
    for instruction in instructions:
      kind = _kind(instruction)
      if kind is None or not counted[name]:
        continue
      source = re.search(r'op_name="([^"]*)"', instruction.rest)
      one = Collective(
        kind, _size(instruction, shapes), counted[name], instruction.shape, source[1] if source else instruction.name
      )
      channel = re.search(r'channel_id=(\d+)', instruction.rest)
      found[instruction.kind == 'send', channel[1] if channel else instruction.name].append(one)
  kept: list[Collective] = []
  for same in found.values():
    least = min(one.runs for one in same)
    kept += {one.shape: one for one in same if one.runs == least}.values()
  return sorted(kept, key=lambda one: -one.total)


def _kind(instruction: Instruction) -> str | None:
  """The kind of a transfer; None of other instructions, and of those that only end or receive one.

  Slices send by way of their hosts, in steps of the collective that the program had: its name stands beside them.
  """
  if instruction.kind == 'send':
    between = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.rest)
    return f'{between[1].lower().replace("_", "-")} between slices' if between else None
  kind = instruction.kind.removesuffix('-start')
  return kind if kind in KINDS else None


def by_kind(found: Iterable[Collective]) -> dict[str, tuple[int, int, float]]:
  """Kind -> (operations, runs, bytes on a device) in a call of the program."""
  table: dict[str, tuple[int, int, float]] = {}
  for one in found:
    operations, times, size = table.get(one.kind, (0, 0, 0.0))
    table[one.kind] = operations + 1, times + one.runs, size + one.total
  return table


def cycles(text: str) -> int | None:
  """What the compiler for TPUs estimates that a call takes, loops multiplied out; None where it says nothing.

  A figure of its model, for comparisons of programs for one chip: no time. Gathers and scatters have no estimate and
  count nothing, and a loop of `open_loops` counts as one round.
  """
  program = read(text)
  counted = runs(program)
  found = [
    counted[name] * int(cost[1])
    for name, instructions in program.computations.items()
    for one in instructions
    if (cost := re.search(r'"estimated_cycles":"(\d+)"', one.rest))
  ]
  return sum(found) if found else None


def operations(text: str) -> tuple[float, int]:
  """Operations of the products in a call of the program on a device, and the runs of kernels that do not say theirs.

  A loop of `open_loops` counts as one round. `compiled.cost_analysis()` counts every loop so.
  """
  program = read(text)
  counted = runs(program)
  total, silent = 0.0, 0
  for name, instructions in program.computations.items():
    shapes = {one.name: one.shape for one in instructions}
    for one in instructions if counted[name] else ():
      if one.kind in ('dot', 'convolution'):
        total += counted[name] * 2 * _products(one, shapes)
      elif 'custom_call_target="tpu_custom_call"' in one.rest:
        said = re.search(r'"cost_estimate":\{"flops":"(\d+)"', one.rest)
        total += counted[name] * int(said[1]) if said else 0
        silent += 0 if said else counted[name]
  return total, silent


def _products(instruction: Instruction, shapes: Mapping[str, str]) -> int:
  """Products of two numbers in a dot or a convolution."""
  names = [name for name in _operands(instruction) if name in shapes]
  if len(names) < 2:
    raise ValueError(f'the text of the program does not say what {instruction.name} multiplies')
  left, right, out = _sizes(shapes[names[0]]), _sizes(shapes[names[1]]), _sizes(instruction.shape)
  if instruction.kind == 'dot':
    summed = re.search(r'lhs_contracting_dims=\{([\d,]+)\}', instruction.rest)
    return math.prod(out) * math.prod(left[int(axis)] for axis in (summed[1].split(',') if summed else ()))
  labels = re.search(r'dim_labels=(\w+)_(\w+)->(\w+)', instruction.rest)
  if labels is None:
    raise ValueError(f'the text of the program does not name the axes of {instruction.name}')
  named = zip(labels.groups(), (left, right, out), strict=True)
  of_left, of_right, of_out = (dict(zip(axes, sizes, strict=True)) for axes, sizes in named)
  window = re.search(r'window=\{([^}]*)\}', instruction.rest)
  words = dict(word.split('=') for word in window[1].split()) if window else {}
  places = [_pairs(of_left[axis], of_right[axis], of_out[axis], words, int(axis)) for axis in of_left if axis.isdigit()]
  return of_out['b'] * of_out['f'] * of_right['i'] * math.prod(places)


def _pairs(left: int, right: int, out: int, words: Mapping[str, str], axis: int) -> int:
  """How often a place of the window meets one of the input along an axis, and not what is put between or around.

  Products in batches are written as convolutions whose window meets one place of the input at each place of the output.
  """

  def of(name: str, default: str) -> str:
    return words[name].split('x')[axis] if name in words else default

  stride, between, apart = (int(of(name, '1')) for name in ('stride', 'lhs_dilate', 'rhs_dilate'))
  before = int(of('pad', '0_0').split('_')[0])
  places = (y * stride - before + k * apart for y in range(out) for k in range(right))
  return sum(place % between == 0 and 0 <= place // between < left for place in places)


def _rounds(program: Program, loop: Instruction) -> int | None:
  """What the compiler found, else the largest constant that the condition may compare its counter with, else None.

  A condition that reads arrays has no counter: it asks whether rows are done, which depends on what is in them.
  """
  if known := re.search(r'known_trip_count\D*(\d+)', loop.rest):
    return int(known[1])
  condition = program.computations.get(_named('condition', loop), ())
  if any(size for one in condition if one.kind != 'parameter' for _, size in _ARRAY.findall(one.shape)):
    return None
  limit = max((value for one in condition if (value := _constant(one)) is not None), default=0)
  return -(-limit // _step(program, loop)) or None


def _step(program: Program, loop: Instruction) -> int:
  """By how much a round moves the counter that the condition reads; 1 where the text does not say.

  Products that wait for parts of other devices take two parts in a round, and count in twos.
  """
  body = {one.name: one for one in program.computations.get(_named('body', loop), ())}
  read = [re.search(r'index=(\d+)', one.rest) for one in program.computations.get(_named('condition', loop), ())]
  places = [int(found[1]) for found in read if found]
  tuples = [_operands(one) for one in body.values() if one.kind == 'tuple']
  if len(places) != 1 or not tuples or places[0] >= len(tuples[-1]):
    return 1
  moved = body.get(tuples[-1][places[0]])
  if moved is None or moved.kind != 'add':
    return 1
  values = [_constant(body[name]) for name in _operands(moved) if name in body]
  return max((value for value in values if value is not None), default=0) or 1


def _constant(instruction: Instruction) -> int | None:
  """The value of a constant that is one number from 0 on."""
  found = re.match(r'\d+(?=\))', instruction.rest) if instruction.kind == 'constant' else None
  return int(found[0]) if found else None


def _named(attribute: str, instruction: Instruction) -> str:
  found = re.search(rf'{attribute}=%?([\w.\-]+)', instruction.rest)
  return found[1] if found else ''


def _called(instruction: Instruction) -> Iterator[str]:
  for names in _CALLS.findall(instruction.rest):
    yield from (name.strip().lstrip('%') for name in names.split(','))


def _size(instruction: Instruction, shapes: dict[str, str]) -> float:
  """Bytes of the larger side of a transfer on a device."""
  out = _bytes(instruction.shape)
  if instruction.kind == 'send':  # (what is sent, a number, a token)
    return out[0]
  if instruction.kind in ('all-gather-start', 'collective-permute-start'):  # (what goes in, what comes out, ...)
    return max(out)
  return max(sum(out), sum(sum(_bytes(shapes.get(name, ''))) for name in _operands(instruction)))


def _operands(instruction: Instruction) -> list[str]:
  return re.findall(r'%([\w.\-]+)', instruction.rest.partition(')')[0])


def _sizes(shape: str) -> list[int]:
  """Of the axes of an array."""
  found = _ARRAY.search(shape)
  return [int(size) for size in found[2].split(',') if size] if found else []


def _bytes(shape: str) -> Sequence[float]:
  """Of each array of a shape, which may be a tuple."""
  return [
    BYTES[name] * math.prod(int(size) for size in sizes.split(',') if size)
    for name, sizes in _ARRAY.findall(shape)
    if name in BYTES
  ] or [0.0]
