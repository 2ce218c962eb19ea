"""A plan: the estimates of a run on a topology, as plain data and as text."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from plm_jax.config import signatures
from plm_jax.core import sharding
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Vocab
from plm_jax.io import files
from plm_jax.planning import compile as compiling
from plm_jax.planning import search as searching
from plm_jax.planning import topology as topologies
from plm_jax.planning.topology import Topology
from plm_jax.training.parts import Settings

BY = {'cycles': "the compiler's cycles", 'links': 'the bytes over the links'}


def plan(
  settings: Settings,
  vocab: Vocab,
  topology: Topology,
  *,
  state_only: bool = False,
  search: bool = False,
  header: str = '',
  row: str = '',
  epoch_tokens: float | None = None,
) -> dict[str, Any]:
  """Estimate memory, communication and time of a run on a topology.

  Args:
    vocab: of the run, or `stand_in.Words`.
    state_only: estimate without compiling.
    search: if a step does not fit, search for the cheapest change with which all fit.
    header: docstring of the config, whose estimate is repeated.
    row: name of the config in experiments/slices.json, whose compiled figures are used without compiling.
    epoch_tokens: tokens in an epoch; None reads them from the header.

  Raises:
    ConfigError: the run could not start on these devices, or the compiler is not installed.
  """
  devices = None if state_only else topologies.describe(topology)
  run_parts = compiling.make(settings, vocab, topology, devices)
  result: dict[str, Any] = {
    'topology': topology.name,
    'accelerator_type': topologies.accelerator_type(topology),
    'chips': topology.devices // topology.chip.devices,
    'slices': topology.slices,
    'devices': topology.devices,
    'kind': topology.chip.kind,
    'mesh': dict(run_parts.layout.mesh.shape),
    'rules': settings['sharding']['rules'],
    'rows_per_device': run_parts.rows,
    'accumulate': settings['accumulate'],
    'limit_gib': topology.chip.memory,
    'state': compiling.state(run_parts),
    'header': _estimate(header),
  }
  step = _stored(row, result) if state_only else compiling.compiled_train(run_parts, settings)
  tokens = epoch_tokens or _epoch_tokens(header)
  result |= compiling.hours(run_parts, settings, topology, step, tokens)
  result |= {'without_cycles': step.get('without_cycles'), 'cycles_from': step.get('from', 'compiled now')}
  if not settings['steps'] and tokens:
    result['epochs'] = f'{settings["epochs"]:g} epochs of {tokens:,.0f} tokens'
  if state_only:
    return result
  result['train'] = step
  result['evaluate'] = {name: compiling.compiled_evaluation(run_parts, settings, name) for name in settings['eval']}
  if 'tflop' in result['train']:
    result['redundancy'] = result['train']['tflop'] * topology.devices / result['tflop_per_step']
  if result['train']['fits']:
    result['noise'] = compiling.noise(run_parts, result['train'])
  if search and not all(step['fits'] for step in (result['train'], *result['evaluate'].values())):
    result['search'] = _searched(settings, vocab, topology, devices, result)
  return result


def counted(plan: Mapping[str, Any]) -> dict[str, Any]:
  """Select the figures of a plan that need no compiler."""
  same = {key: plan[key] for key in ('mesh', 'rules', 'accumulate', 'limit_gib')}
  return {**same, 'rows': plan['rows_per_device'], 'state_gib': round(plan['state']['gib'], 3)}


def _stored(row: str, plan: Mapping[str, Any]) -> dict[str, Any]:
  """Return compiled figures stored for the same counted figures, or {}."""
  file = signatures.ROOT.parent / 'experiments' / 'slices.json'
  known: dict[str, Any] = files.read_json(file) if files.is_file(file) else {'rows': {}}
  stored = known['rows'].get(row, {})
  if counted(plan).items() <= stored.items() and 'sent_gib' in stored:
    sent = {kind: {'gib': gib} for kind, gib in stored['sent_gib'].items()}
    return {**stored, 'collectives': sent, 'from': f'stored in experiments/slices.json, libtpu {known["libtpu"]}'}
  return {}


def _epoch_tokens(header: str) -> float | None:
  """Read "An epoch has about 0.8 billion tokens" from a docstring."""
  match = re.search(r'An epoch has about ([\d.]+) (million|billion) tokens', ' '.join(header.split()))
  return float(match[1]) * {'million': 1e6, 'billion': 1e9}[match[2]] if match else None


def _searched(
  settings: Settings, vocab: Vocab, topology: Topology, devices: Sequence[Any] | None, result: Mapping[str, Any]
) -> dict[str, Any]:
  """Run `search.search` and report its change, with all that were tried."""
  first = [_gib(step) for step in (result['train'], *result['evaluate'].values())]

  def changed(change: searching.Change) -> compiling.AbstractRun:
    return compiling.make(searching.applied(settings, change), vocab, topology, devices)

  def state(change: searching.Change) -> float:
    try:
      return compiling.state(changed(change))['gib']
    except ConfigError:  # the slices do not divide this mesh
      return math.inf

  def needs(change: searching.Change) -> searching.Needs:
    run_parts, own_settings = changed(change), searching.applied(settings, change)
    gib = 0.0
    for compiled, name in enumerate(('', *own_settings['eval']), start=1):
      step = (
        compiling.compiled_evaluation(run_parts, own_settings, name)
        if name
        else compiling.compiled_train(run_parts, own_settings)
      )
      gib = max(gib, _gib(step) or 2 * topology.chip.memory)
      if not step['fits']:
        return searching.Needs(gib=gib, fits=False, compiled=compiled)
    return searching.Needs(gib=gib, fits=True, compiled=compiled)

  def choices(change: searching.Change) -> list[searching.Candidate]:
    rows = settings['data']['batch_size'] // settings['accumulate'] // sharding.row_places(changed(change).layout.mesh)
    return searching.candidates(searching.applied(settings, change), rows=rows, taken=result['train']['attention'])

  outcome = searching.search(
    settings,
    limit=topology.chip.memory,
    state=state,
    needs=needs,
    choices=choices,
    first=None if None in first else max(gib for gib in first if gib is not None),
    devices=topology.devices,
  )
  tried = [{'flags': searching.flags(change), 'needed_gib': needed} for change, needed in outcome.tried]
  return {'flags': None if outcome.change is None else searching.flags(outcome.change), 'tried': tried}


def _gib(step: Mapping[str, Any]) -> float | None:
  return step['peak_gib'] if step['fits'] else step['needed_gib']


def _estimate(header: str) -> str:
  """Extract the hardware and time paragraph of a config's docstring."""
  start = header.find('Hardware:')
  if start < 0:
    return ''
  rest = header[start:].split('\n\n')[0].split('\nExpect')[0]
  return ' '.join(rest.split())


def text(plan: Mapping[str, Any]) -> str:
  """Write a plan as text."""
  mesh, state = plan['mesh'], plan['state']
  slices = f' in {plan["slices"]} slices' if plan['slices'] > 1 else ''
  accumulated = f', {plan["accumulate"]} times per step' if plan['accumulate'] > 1 else ''
  name = f', {plan["accelerator_type"]}' if plan.get('accelerator_type') else ''
  lines = [
    f'devices     {plan["devices"]} x {plan["kind"]} ({plan["topology"]}{name}{slices}), {plan["limit_gib"]} GiB each',
    f'mesh        {" x ".join(f"{name}={size}" for name, size in mesh.items())}, rules {plan["rules"]}; '
    f'{plan["rows_per_device"]} rows per device at once{accumulated}',
    f'state       {state["gib"]:.2f} GiB per device, {state["even_gib"]:.2f} if sharded evenly',
  ]
  if state['whole_gib'] >= 0.005:  # smaller ones are biases and scales
    lines.append(
      f'            {state["whole_gib"]:.2f} GiB in {state["whole_arrays"]} arrays not sharded over all devices:'
    )
  for item in (item for item in state['whole'] if item['gib'] >= 2**-10):
    lines.append(f'              {item["gib"]:.2f} GiB, in {item["parts"]} shards: {item["array"]} {item["shape"]}')
  lines += [f'            {line}' for line in state['axes']]
  if state['gib'] > plan['limit_gib']:
    lines.append('            DOES NOT FIT: the state alone exceeds the memory of a device')
  if 'train' in plan:
    lines += _step('train', plan['train'], plan['limit_gib'])
    for name, step in plan['evaluate'].items():
      lines += _step('evaluation', step, plan['limit_gib'], of=f'{name} ')
  if plan.get('noise') is not None:
    lines.append(noise_line(**plan['noise']))
  lines.append(f'work        {plan["tflop_per_step"]:,.1f} TFLOP per step, counted without recomputation')
  if 'redundancy' in plan:
    lines.append(redundancy_line(plan['redundancy'], plan['train']))
  lines += _times(plan)
  lost = plan['lost_minutes']
  lines.append(
    f'a lost chip costs at most {lost:,.1f} minutes of work ({lost / 60 * plan["chips"]:,.1f} chip hours) and a '
    'restart; more if a checkpoint takes over 5 % of save_minutes'
  )
  if plan['header']:
    lines.append(f'the config  {plan["header"]}')
  if 'search' in plan:
    for item in plan['search']['tried']:
      lines.append(f'tried       {item["needed_gib"]:.2f} GiB: {item["flags"]}')
    lines.append(f'fits with   {plan["search"]["flags"] or "none of these changes; use more devices"}')
  return '\n'.join(lines)


def _times(plan: Mapping[str, Any]) -> list[str]:
  """Write the time of a step and of the run."""

  def line(name: str, figures: Mapping[str, float], factor: float = 1.0) -> str:
    scaled = {key: figure * factor for key, figure in figures.items()}
    words = {key: short(figure) for key, figure in scaled.items()}
    shares = ', '.join(f'{word} at {key}' for key, word in words.items() if key not in BY)
    others = ', '.join(f'{word} by {BY[key]}' for key, word in words.items() if key in BY)
    return f'{name:11} {shares} of the peak{"; " * bool(others)}{others}'

  lines = [line('step, ms', plan['seconds_per_step'], 1e3)]
  if 'hours' in plan:
    lines.append(line('hours', plan['hours']) + (f' ({plan["epochs"]})' if 'epochs' in plan else ''))
    lines.append(line('chip hours', plan['hours'], plan['chips']) + '; price: cloud.google.com/tpu/pricing')
  if 'cycles' not in plan['seconds_per_step']:
    return [*lines, '            cycles are unknown: the step may take far longer than at 40 % of the peak']
  runs = plan['without_cycles']
  silent = 'not counted' if runs is None else ', '.join(f'{count} {name}' for name, count in runs.items()) or 'none'
  by = plan['largest']
  largest = f'a lower bound, by {BY[by]}' if by in BY else f'an assumption, {by} of the peak'
  return [
    *lines,
    f'            the largest is {largest}; runs without cycles come on top of cycles ({silent}), as do',
    f'            transfers that do not overlap; cycles {plan["cycles_from"]}, not measured',
  ]


def short(figure: float) -> str:
  """Write a number with one decimal, or with two digits below 1."""
  return f'{figure:,.1f}' if figure >= 1 else f'{figure:.2g}'


def noise_line(share: float, open_loops: int, step_open_loops: int) -> str:
  """Write the noise's share of cycles, with its direction of error.

  A loop of unknown length counts as one round; those of the step include those of the noise.
  """
  others = step_open_loops > open_loops
  bound = 'about ' if others and open_loops else 'at most ' if others else 'at least ' if open_loops else ''
  line = f'noise       {bound}{100 * share:.1f} % of the step, by the cycles that the compiler estimates'
  if bound:
    line += f' (loops of unknown length counted as one round: noise {open_loops}, step {step_open_loops})'
  return line


def redundancy_line(factor: float, step: Mapping[str, Any]) -> str:
  """Write the ratio of computed to counted operations, and its causes."""
  line = f'redundancy  all devices compute {factor:.2f} times that, by the products in the program'
  missing = [f'{step["silent_kernels"]} runs of kernels without an estimate'] * (step['silent_kernels'] > 0)
  missing += [f'further rounds of {step["open_loops"]} loops of unknown length'] * (step['open_loops'] > 0)
  if missing:
    line += f', without {" and ".join(missing)}'
  return (
    f'{line};\n            1 means no repeated work; remat=full adds about a third; '
    'more is computed on several devices or not counted'
  )


def _step(name: str, step: Mapping[str, Any], limit: float, *, of: str = '') -> list[str]:
  """Write the compiler's report, with transfers of at least 1 MiB."""
  if step['fits']:
    verdict = f'fits: {step["peak_gib"]:.2f} of {limit} GiB at most'
  elif step['needed_gib'] is None:
    verdict = f'DOES NOT FIT into {limit} GiB: {step["message"]}'
  else:
    verdict = f'DOES NOT FIT: needs {step["needed_gib"]:.2f} of {limit} GiB'
  lines = [f'{name:11} {of}{verdict}', *(f'            {line}' for line in step['attention'])]
  for kind, item in sorted(step.get('collectives', {}).items(), key=lambda pair: -pair[1]['gib']):
    lines.append(f'            {kind}: {item["operations"]} operations run {item["runs"]} times, {item["gib"]:.2f} GiB')
  for item in (item for item in step.get('largest', ()) if item['gib'] >= 2**-10):
    lines.append(
      f'              {item["gib"]:.3f} GiB in {item["runs"]} runs: {item["kind"]} of {item["source"][-90:]}'
    )
  if 'unread' in step:
    lines.append(
      f'            transfers and redundancy are unknown: this jax cannot read the program ({step["unread"][:80]})'
    )
  return lines
