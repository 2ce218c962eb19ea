"""Operations and transfers of a compiled program, parsed from its text with loops multiplied out."""

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
# layouts contain parentheses, as {1,0:T(8,128)}: the operation is the first word with "(" after the shape
_INSTRUCTION = re.compile(
  r'\s+(?:ROOT )?%?(?P<name>[\w.\-]+) = (?P<shape>\([^=]*?\)|\S+) (?P<kind>[\w\-]+)\((?P<rest>.*)'
)
_CALLS = re.compile(r'(?:calls|to_apply|branch_computations|called_computations)=\{?(%?[\w.\-]+(?:, ?%?[\w.\-]+)*)\}?')
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_KERNEL = 'custom_call_target="tpu_custom_call"'
_ARRAY = re.compile(r'\b([a-z]\w*)\[([\d,]*)\]')


class Instruction(NamedTuple):
  """A line of a computation: `name = shape kind(operands), attributes`."""

  name: str
  kind: str
  shape: str
  rest: str


class Program(NamedTuple):
  """The computations of a module by name, and the name of the entry."""

  computations: dict[str, list[Instruction]]
  entry: str


class Collective(NamedTuple):
  """A transfer between devices."""

  kind: str  # of `KINDS`, or such a kind with 'between slices': the part of it over the slow network
  # per device and run: of the inputs or the outputs, whichever is more; between slices, of the data that the device
  # sends to others
  bytes: float
  runs: int  # per call of the program
  shape: str  # of the outputs
  source: str  # the function in the program's source

  @property
  def total(self) -> float:
    """Return the bytes per device in a call of the program."""
    return self.bytes * self.runs


def read(text: str) -> Program:
  """Parse the computations of a module.

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
    elif inside and (match := _INSTRUCTION.match(line)):
      computations[inside].append(Instruction(**match.groupdict()))
  if not entry:
    raise ValueError('the text of the program has no ENTRY computation')
  return Program(computations, entry)


def runs(program: Program) -> collections.Counter[str]:
  """Count runs of each computation per call; open loops count one round."""
  counts: collections.Counter[str] = collections.Counter()

  def visit(name: str, times: int) -> None:
    counts[name] += times
    for instruction in program.computations.get(name, ()):
      if instruction.kind == 'while':
        visit(_named('body', instruction), times * (_rounds(program, instruction) or 1))
      elif instruction.kind in ('call', 'fusion', 'async-start', 'conditional') or instruction.kind.endswith('-start'):
        for called in _called(instruction):
          visit(called, times)

  visit(program.entry, 1)
  return counts


def open_loops(text: str) -> int:
  """Count the loops of unknown length; `runs` counts one round of each."""
  program = read(text)
  counts = runs(program)
  return sum(
    instruction.kind == 'while' and _rounds(program, instruction) is None
    for name, instructions in program.computations.items()
    if counts[name]
    for instruction in instructions
  )


def collectives(text: str) -> list[Collective]:
  """List the transfers of a program, by decreasing bytes.

  A transfer that overlaps a loop occurs in its start, its rounds and its end, all with one channel: the occurrence that
  runs least counts. Sums of several arrays on one channel, as those of `shard_map`, count each.

  Args:
    text: `compiled.as_text()`.

  Raises:
    ValueError: the text is not that of a program.
  """
  program = read(text)
  counts = runs(program)
  # (sent to a slice, channel) -> occurrences
  by_channel: dict[tuple[bool, str], list[Collective]] = collections.defaultdict(list)
  for name, instructions in program.computations.items():
    shapes = {instruction.name: instruction.shape for instruction in instructions}
    for instruction in instructions:
      kind = _kind(instruction)
      if kind is None or not counts[name]:
        continue
      source = re.search(r'op_name="([^"]*)"', instruction.rest)
      transfer = Collective(
        kind, _size(instruction, shapes), counts[name], instruction.shape, source[1] if source else instruction.name
      )
      channel = re.search(r'channel_id=(\d+)', instruction.rest)
      by_channel[instruction.kind == 'send', channel[1] if channel else instruction.name].append(transfer)
  transfers: list[Collective] = []
  for candidates in by_channel.values():
    least = min(transfer.runs for transfer in candidates)
    transfers += {transfer.shape: transfer for transfer in candidates if transfer.runs == least}.values()
  return sorted(transfers, key=lambda transfer: -transfer.total)


def _kind(instruction: Instruction) -> str | None:
  """Return the kind of a transfer, or None.

  It is None for other instructions, and for those that only end or receive a transfer. Slices send through their hosts,
  in steps of the original collective, whose name is an attribute.
  """
  if instruction.kind == 'send':
    between = re.search(r'_xla_megascale_transfer_type="(\w+)"', instruction.rest)
    return f'{between[1].lower().replace("_", "-")} between slices' if between else None
  kind = instruction.kind.removesuffix('-start')
  return kind if kind in KINDS else None


def by_kind(transfers: Iterable[Collective]) -> dict[str, tuple[int, int, float]]:
  """Sum (operations, runs, bytes on a device) per kind."""
  table: dict[str, tuple[int, int, float]] = {}
  for transfer in transfers:
    operations, times, size = table.get(transfer.kind, (0, 0, 0.0))
    table[transfer.kind] = operations + 1, times + transfer.runs, size + transfer.total
  return table


def cycles(text: str) -> int | None:
  """Sum the cycles that the TPU compiler estimates for a call.

  Loops are multiplied out; a loop of `open_loops` counts as one round. The result is None without estimates. Cycles
  compare programs for one chip and are not a time: what `without_cycles` counts adds nothing.
  """
  program = read(text)
  counts = runs(program)
  estimates = [
    counts[name] * int(cost[1])
    for name, instructions in program.computations.items()
    for instruction in instructions
    if (cost := _CYCLES.search(instruction.rest))
  ]
  return sum(estimates) if estimates else None


def without_cycles(text: str) -> dict[str, int]:
  """Count the runs of expensive instructions without estimated cycles."""
  program = read(text)
  counts = runs(program)
  fused: set[str] = set()
  for instructions in program.computations.values():
    fused.update(*(_called(instruction) for instruction in instructions if instruction.kind == 'fusion'))
  found: collections.Counter[str] = collections.Counter()
  for name in program.computations.keys() - fused:
    for instruction in program.computations[name] if counts[name] else ():
      if not _CYCLES.search(instruction.rest):
        kinds = _kinds(program, instruction)
        labels = [f'{kind}s' for kind in ('gather', 'scatter', 'sort') if kind in kinds]
        labels += ['kernels'] * (_KERNEL in instruction.rest) + ['transfers'] * (_kind(instruction) is not None)
        found.update(dict.fromkeys(labels, counts[name]))
  return {label: found[label] for label in ('kernels', 'transfers', 'gathers', 'scatters', 'sorts') if found[label]}


def _kinds(program: Program, instruction: Instruction) -> set[str]:
  """Collect the kinds of an instruction and of its fused ones."""
  inner = (one for name in _called(instruction) for one in program.computations.get(name, ()))
  return {instruction.kind}.union(*(_kinds(program, one) for one in inner if instruction.kind == 'fusion'))


def operations(text: str) -> tuple[float, int]:
  """Count the operations of the products in a call, per device.

  A loop of `open_loops` counts as one round, as every loop does in `compiled.cost_analysis()`.

  Returns:
    The operations, and the runs of kernels without a cost estimate.
  """
  program = read(text)
  counts = runs(program)
  total, silent = 0.0, 0
  for name, instructions in program.computations.items():
    shapes = {instruction.name: instruction.shape for instruction in instructions}
    for instruction in instructions if counts[name] else ():
      if instruction.kind in ('dot', 'convolution'):
        total += counts[name] * 2 * _products(instruction, shapes)
      elif _KERNEL in instruction.rest:
        estimate = re.search(r'"cost_estimate":\{"flops":"(\d+)"', instruction.rest)
        total += counts[name] * int(estimate[1]) if estimate else 0
        silent += 0 if estimate else counts[name]
  return total, silent


def _products(instruction: Instruction, shapes: Mapping[str, str]) -> int:
  """Count the multiplications of a dot or a convolution."""
  names = [name for name in _operands(instruction) if name in shapes]
  if len(names) < 2:
    raise ValueError(f'the text of the program lacks the operands of {instruction.name}')
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
  positions = [
    _pairs(of_left[axis], of_right[axis], of_out[axis], words, int(axis)) for axis in of_left if axis.isdigit()
  ]
  return of_out['b'] * of_out['f'] * of_right['i'] * math.prod(positions)


def _pairs(left: int, right: int, out: int, words: Mapping[str, str], axis: int) -> int:
  """Count the pairs of window and input positions along an axis.

  Padding and dilation do not count. Batched products are convolutions whose window covers one input position per output
  position.
  """

  def value(name: str, default: str) -> str:
    return words[name].split('x')[axis] if name in words else default

  stride, between, spacing = (int(value(name, '1')) for name in ('stride', 'lhs_dilate', 'rhs_dilate'))
  before = int(value('pad', '0_0').split('_')[0])
  positions = (y * stride - before + k * spacing for y in range(out) for k in range(right))
  return sum(position % between == 0 and 0 <= position // between < left for position in positions)


def _rounds(program: Program, loop: Instruction) -> int | None:
  """Return the rounds of a loop, or None.

  They are the trip count if the compiler found it, else the largest constant that the condition compares its counter
  with. A condition that reads arrays has no counter: it depends on the data.
  """
  if trip_count := re.search(r'known_trip_count\D*(\d+)', loop.rest):
    return int(trip_count[1])
  condition = program.computations.get(_named('condition', loop), ())
  if any(
    size
    for instruction in condition
    if instruction.kind != 'parameter'
    for _, size in _ARRAY.findall(instruction.shape)
  ):
    return None
  limit = max((value for instruction in condition if (value := _constant(instruction)) is not None), default=0)
  return -(-limit // _step(program, loop)) or None


def _step(program: Program, loop: Instruction) -> int:
  """Return the increment of a loop's counter; 1 if unknown.

  Products that wait for parts of other devices take two parts per round and count in twos.
  """
  body = {instruction.name: instruction for instruction in program.computations.get(_named('body', loop), ())}
  read = [
    re.search(r'index=(\d+)', instruction.rest)
    for instruction in program.computations.get(_named('condition', loop), ())
  ]
  counters = [int(match[1]) for match in read if match]
  tuples = [_operands(instruction) for instruction in body.values() if instruction.kind == 'tuple']
  if len(counters) != 1 or not tuples or counters[0] >= len(tuples[-1]):
    return 1
  update = body.get(tuples[-1][counters[0]])
  if update is None or update.kind != 'add':
    return 1
  values = [_constant(body[name]) for name in _operands(update) if name in body]
  return max((value for value in values if value is not None), default=0) or 1


def _constant(instruction: Instruction) -> int | None:
  """Return the value of a constant non-negative scalar, or None."""
  match = re.match(r'\d+(?=\))', instruction.rest) if instruction.kind == 'constant' else None
  return int(match[0]) if match else None


def _named(attribute: str, instruction: Instruction) -> str:
  match = re.search(rf'{attribute}=%?([\w.\-]+)', instruction.rest)
  return match[1] if match else ''


def _called(instruction: Instruction) -> Iterator[str]:
  for names in _CALLS.findall(instruction.rest):
    yield from (name.strip().lstrip('%') for name in names.split(','))


def _size(instruction: Instruction, shapes: dict[str, str]) -> float:
  """Return the bytes of a transfer's larger side on a device."""
  out = _bytes(instruction.shape)
  if instruction.kind == 'send':  # (data, an integer, a token)
    return out[0]
  if instruction.kind in ('all-gather-start', 'collective-permute-start'):  # (inputs, outputs, ...)
    return max(out)
  return max(sum(out), sum(sum(_bytes(shapes.get(name, ''))) for name in _operands(instruction)))


def _operands(instruction: Instruction) -> list[str]:
  return re.findall(r'%([\w.\-]+)', instruction.rest.partition(')')[0])


def _sizes(shape: str) -> list[int]:
  match = _ARRAY.search(shape)
  return [int(size) for size in match[2].split(',') if size] if match else []


def _bytes(shape: str) -> Sequence[float]:
  """Compute the bytes of each array of a shape or tuple."""
  return [
    BYTES[name] * math.prod(int(size) for size in sizes.split(',') if size)
    for name, sizes in _ARRAY.findall(shape)
    if name in BYTES
  ] or [0.0]
