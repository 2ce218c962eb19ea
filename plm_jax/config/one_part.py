"""A run of several tasks as the run of one of them, a part: settings and parameters as that task alone would have.

What asks, scores or exports a part takes both from here, and knows nothing of the others. An adapter or an objective
whose parts have heads of their own states `adapters_by_part(settings)`, of its own block: part -> the adapter that
computes it by itself, with 'trunk/...' and what stands under its name, as 'cola/head/kernel', for parameters; or
`objectives_by_part(settings)`, where that is an objective. Where one adapter reads rows of several sources, a part is
the rows of one of them.
"""

from collections.abc import Mapping
from typing import Any

from plm_jax.config import build, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError

Settings = Mapping[str, Any]
_OF_MIXTURE = ('split', 'length', 'batch_size')  # what a part of the data has from what holds it


def names(settings: Settings) -> tuple[str, ...]:
  """Return the tasks of a multi-task run; none for one task."""
  return tuple(_heads(settings) or (_parts_of_data(settings) if _task(settings)[0] else ()))


def has_heads(settings: Settings) -> bool:
  """Return whether each task of a run has its own head.

  None of them can then be used without the name of its part.
  """
  return bool(_heads(settings))


def own_trunks(settings: Settings) -> dict[str, str]:
  """Return each task's wrapper that changes the trunk, which is then separate."""
  blocks = {part: block.get('name', '') for part, block in _heads(settings).items()}
  return {part: name for part, name in blocks.items() if signatures.literal(f'adapters.{name}', 'ADDS')}


def left_open(settings: Settings) -> str:
  """Return the end of a message for a run without a part."""
  known = names(settings)
  return f'trained the parts {", ".join(known)}: name one' if known else ''


def settings_of(settings: Settings, part: str | None, *, where: str = 'part') -> dict[str, Any]:
  """Return the config of one part, or of the whole run.

  Raises ConfigError: there is no such part.

  Args:
    settings: a complete config.
    part: one of `names`.
    where: what the user wrote, such as '--part=cola'.
  """
  if part is None:
    return dict(settings)
  if not (known := names(settings)):
    raise ConfigError(f'{where}: this run has no parts, which one of several tasks has: leave it out')
  errors.check_choice(where, 'part', part, known, place='this run')
  evaluations = {
    name: {**block, 'data': _rows_of(block['data'], part), 'scores': _scores_of(settings, block, part)}
    for name, block in settings['eval'].items()
    if part in (block['data'].get('parts') or ())
  }
  return {
    **settings,
    **_task_of(settings, part),
    'data': _rows_of(settings['data'], part),
    'eval': evaluations,
    'best': _best_of(settings, part, evaluations),
  }


def adapter_of(settings: Settings, part: str) -> Settings:
  """Return a part's adapter inside the wrappers; empty for an objective."""
  return _task_of(settings, part)['adapter'] or {}


def _task_of(settings: Settings, part: str) -> dict[str, Any]:
  """Return the blocks 'adapter' and 'objective' of a part; one is None."""
  heads = _heads(settings)
  if not heads:
    return {'adapter': settings['adapter'], 'objective': None}
  inside = next(block for block in _task(settings) if block)

  def replaced(block: Settings) -> dict[str, Any]:
    return dict(heads[part]) if block == inside else {**block, 'inner': replaced(block['inner'])}

  outer = settings.get('adapter') or inside
  folder = signatures.folder_of('adapters | objectives', heads[part].get('name', '')) if outer == inside else 'adapters'
  return {'adapter': None, 'objective': None, build.singular(folder): replaced(outer)}


def path_of(settings: Settings, part: str, path: str) -> str | None:
  """Return a parameter's path in a run of one part.

  'cola/head/kernel', part 'cola'    'head/kernel'
  'cola/head/kernel', part 'mnli'    None
  """
  first, _, rest = path.partition('/')
  if first == 'trunk' or not _heads(settings) or first not in _parts_of_data(settings):
    return path
  return rest if first == part else None


def _task(settings: Settings) -> tuple[Settings | None, Settings | None]:
  """Return the adapter and the objective inside the wrappers; one is None."""
  inside = build.unwrapped(settings)
  return inside.get('adapter'), inside.get('objective')


def _heads(settings: Settings) -> Mapping[str, Settings]:
  """Return the blocks of separate parts, by part."""
  for folder, block in zip(('adapters', 'objectives'), _task(settings), strict=True):
    module = f'{folder}.{(block or {}).get("name")}'
    if block and signatures.has(module, 'adapters_by_part'):
      return build.import_file(module).adapters_by_part(block)
    if block and signatures.has(module, 'objectives_by_part'):
      return build.import_file(module).objectives_by_part(block)
  return {}


def _parts_of_data(settings: Settings) -> Mapping[str, Settings]:
  return (settings.get('data') or {}).get('parts') or {}


def _rows_of(block: Settings, part: str) -> dict[str, Any]:
  return {**{key: block[key] for key in _OF_MIXTURE if key in block}, **block['parts'][part]}


def _best_of(settings: Settings, part: str, evaluations: Settings) -> tuple[str, str] | None:
  """Return `best` of a part: 'validation/cola/loss' of 'cola' gives 'validation/loss'."""
  metric, direction = settings['best'] or ('', '')
  evaluation, _, name = metric.partition('/')
  if evaluation not in evaluations or not (own := name.removeprefix(f'{part}/')) or (_heads(settings) and own == name):
    return None
  return f'{evaluation}/{own}', direction


def _scores_of(settings: Settings, evaluation: Settings, part: str) -> list[str] | None:
  """Return the scores of a part; None for those of its adapter."""
  if not _heads(settings):
    return evaluation.get('scores')
  if (named := evaluation.get('scores')) is not None:
    return [name.removeprefix(f'{part}/') for name in named if name.startswith(f'{part}/')]
  own = next((block.get('scores') or {} for block in _task(settings) if block), {}).get(part)
  return None if own is None else list(own)
