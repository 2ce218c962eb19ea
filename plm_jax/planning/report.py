"""A plan: what is known of a run on a topology, as plain data and as text."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Vocab
from plm_jax.planning import compile as compiling
from plm_jax.planning import search as searching
from plm_jax.planning import topology as topologies
from plm_jax.planning.topology import Topology
from plm_jax.training.parts import Settings


def plan(
  settings: Settings,
  vocab: Vocab,
  topology: Topology,
  *,
  state_only: bool = False,
  search: bool = False,
  header: str = '',
) -> dict[str, Any]:
  """What is known of a run on a topology.

  Args:
    settings: of the run.
    vocab: of the run, or `stand_in.Words`.
    topology: of the devices.
    state_only: only what is counted; nothing is compiled.
    search: where a step does not fit, look for the cheapest change with which all do.
    header: docstring of the config, of which the estimate is repeated.

  Raises:
    ConfigError: the run could not begin on these devices, or there is no compiler for them.
  """
  devices = None if state_only else topologies.describe(topology)
  made = compiling.make(settings, vocab, topology, devices)
  limit = topology.chip.memory
  found: dict[str, Any] = {
    'topology': topology.name,
    'slices': topology.slices,
    'devices': topology.devices,
    'kind': topology.chip.kind,
    'mesh': dict(made.layout.mesh.shape),
    'rules': settings['sharding']['rules'],
    'rows_per_device': made.rows,
    'accumulate': settings['accumulate'],
    'limit_gib': limit,
    'state': compiling.state(made),
    **compiling.hours(made, settings, topology),
    'header': _estimate(header),
  }
  if state_only:
    return found
  found['train'] = compiling.compiled_train(made, settings)
  found['evaluate'] = {name: compiling.compiled_evaluation(made, settings, name) for name in settings['eval']}
  if 'tflop' in found['train']:
    found['redundancy'] = found['train']['tflop'] * topology.devices / found['tflop_per_step']
  if found['train']['fits']:
    found['noise'] = compiling.noise(made, found['train'])
  if search and not all(step['fits'] for step in (found['train'], *found['evaluate'].values())):
    found['search'] = _searched(settings, vocab, topology, devices, found)
  return found


def _searched(
  settings: Settings, vocab: Vocab, topology: Topology, devices: Sequence[Any] | None, found: Mapping[str, Any]
) -> dict[str, Any]:
  """The change of `search.search` in words, with what was tried."""
  first = [_gib(step) for step in (found['train'], *found['evaluate'].values())]

  def changed(change: searching.Change) -> compiling.Made:
    return compiling.make(searching.applied(settings, change), vocab, topology, devices)

  def state(change: searching.Change) -> float:
    try:
      return compiling.state(changed(change))['gib']
    except ConfigError:  # slices that this mesh does not divide
      return math.inf

  def needs(change: searching.Change) -> searching.Needs:
    made, own = changed(change), searching.applied(settings, change)
    gib = 0.0
    for compiled, name in enumerate(('', *own['eval']), start=1):
      step = compiling.compiled_evaluation(made, own, name) if name else compiling.compiled_train(made, own)
      gib = max(gib, _gib(step) or 2 * topology.chip.memory)
      if not step['fits']:
        return searching.Needs(gib, False, compiled)
    return searching.Needs(gib, True, compiled)

  def choices(change: searching.Change) -> list[searching.Candidate]:
    rows = settings['data']['batch_size'] // settings['accumulate'] // sharding.row_places(changed(change).layout.mesh)
    return searching.candidates(searching.applied(settings, change), rows=rows, taken=found['train']['attention'])

  result = searching.search(
    settings,
    limit=topology.chip.memory,
    state=state,
    needs=needs,
    choices=choices,
    first=None if None in first else max(gib for gib in first if gib is not None),
    devices=topology.devices,
  )
  tried = [{'flags': searching.flags(change), 'needed_gib': needed} for change, needed in result.tried]
  return {'flags': None if result.change is None else searching.flags(result.change), 'tried': tried}


def _gib(step: Mapping[str, Any]) -> float | None:
  """GiB that a step needs; None where the compiler does not say."""
  return step['peak_gib'] if step['fits'] else step['needed_gib']


def _estimate(header: str) -> str:
  """The paragraph of a config's docstring that says on what it ran, or would run, and for how long."""
  start = header.find('Hardware:')
  if start < 0:
    return ''
  rest = header[start:].split('\n\n')[0].split('\nExpect')[0]
  return ' '.join(rest.split())


# Words ---------------------------------------------------------------------------------------------------------------


def text(found: Mapping[str, Any]) -> str:
  """A plan for a reader."""
  mesh, state = found['mesh'], found['state']
  slices = f' in {found["slices"]} slices' if found['slices'] > 1 else ''
  accumulated = f', {found["accumulate"]} times a step' if found['accumulate'] > 1 else ''
  lines = [
    f'devices     {found["devices"]} x {found["kind"]} ({found["topology"]}{slices}), {found["limit_gib"]} GiB each',
    f'mesh        {" x ".join(f"{name}={size}" for name, size in mesh.items())}, rules {found["rules"]}; '
    f'{found["rows_per_device"]} rows a device at once{accumulated}',
    f'state       {state["gib"]:.2f} GiB a device, {state["even_gib"]:.2f} if all were cut evenly',
  ]
  if state['whole_gib'] >= 0.005:  # else they are biases and scales
    lines.append(
      f'            {state["whole_gib"]:.2f} GiB in {state["whole_arrays"]} arrays that are not cut over all devices:'
    )
  for one in (one for one in state['whole'] if one['gib'] >= 2**-10):
    lines.append(f'              {one["gib"]:.2f} GiB, cut into {one["parts"]}: {one["array"]} {one["shape"]}')
  lines += [f'            {line}' for line in state['axes']]
  if state['gib'] > found['limit_gib']:
    lines.append('            DOES NOT FIT: the state alone is more than the memory of a device')
  if 'train' in found:
    lines += _step('train', found['train'], found['limit_gib'])
    for name, step in found['evaluate'].items():
      lines += _step('evaluation', step, found['limit_gib'], of=f'{name} ')
  if found.get('noise') is not None:
    lines.append(noise_line(**found['noise']))
  lines.append(f'work        {found["tflop_per_step"]:,.1f} TFLOP a step, counted, without what is computed again')
  if 'redundancy' in found:
    lines.append(redundancy_line(found['redundancy'], found['train']))
  if hours := found.get('hours'):
    shares = ', '.join(f'{one:,.1f} at {share}' for share, one in hours.items())
    lines.append(f'hours       {shares} of the peak')
  if found['header']:
    lines.append(f'the config  {found["header"]}')
  if 'search' in found:
    for one in found['search']['tried']:
      lines.append(f'tried       {one["needed_gib"]:.2f} GiB: {one["flags"]}')
    lines.append(f'fits with   {found["search"]["flags"] or "no change that was tried; take more devices"}')
  return '\n'.join(lines)


def noise_line(share: float, open_loops: int, step_open_loops: int) -> str:
  """The share of the noise, and which way it may be wrong: a loop of unknown length counts as one round.

  Args:
    share: of the step's cycles.
    open_loops: loops of unknown length in the noise.
    step_open_loops: likewise in the step, which has those of the noise as well.
  """
  others = step_open_loops > open_loops
  bound = 'about ' if others and open_loops else 'at most ' if others else 'at least ' if open_loops else ''
  line = f'noise       {bound}{100 * share:.1f} % of the step, by the cycles that the compiler estimates'
  if bound:
    line += f' (loops of unknown length counted as one round: noise {open_loops}, step {step_open_loops})'
  return line


def redundancy_line(factor: float, step: Mapping[str, Any]) -> str:
  """How many times the counted operations all devices compute together, and what is in that.

  Args:
    factor: of 'redundancy'.
    step: the training step, see `compile.compiled_train`.
  """
  line = f'redundancy  all devices compute {factor:.2f} times that, by the products in the program'
  missing = [f'{step["silent_kernels"]} runs of kernels that do not say theirs'] * (step['silent_kernels'] > 0)
  missing += [f'more than a round of {step["open_loops"]} loops of unknown length'] * (step['open_loops'] > 0)
  if missing:
    line += f', without {" and ".join(missing)}'
  return (
    f'{line};\n            1 is no work twice, remat=full adds about a third, '
    'more is computed on several devices or is not counted'
  )


def _step(name: str, step: Mapping[str, Any], limit: float, *, of: str = '') -> list[str]:
  """What the compiler says of a step, with the transfers of which a device sends a MiB or more."""
  if step['fits']:
    verdict = f'fits: {step["peak_gib"]:.2f} of {limit} GiB at most'
  elif step['needed_gib'] is None:
    verdict = f'DOES NOT FIT into {limit} GiB: {step["message"]}'
  else:
    verdict = f'DOES NOT FIT: needs {step["needed_gib"]:.2f} of {limit} GiB'
  lines = [f'{name:11} {of}{verdict}', *(f'            {line}' for line in step['attention'])]
  for kind, one in sorted(step.get('collectives', {}).items(), key=lambda pair: -pair[1]['gib']):
    lines.append(f'            {kind}: {one["operations"]} operations run {one["runs"]} times, {one["gib"]:.2f} GiB')
  for one in (one for one in step.get('largest', ()) if one['gib'] >= 2**-10):
    lines.append(f'              {one["gib"]:.3f} GiB in {one["runs"]} runs: {one["kind"]} of {one["source"][-90:]}')
  if 'unread' in step:
    lines.append(
      '            what it sends and how often it computes is unknown: this jax cannot read the program '
      f'({step["unread"][:80]})'
    )
  return lines
