"""Export of the updates of a LoRA run as PEFT reads them: `adapter_config.json` and `adapter_model.safetensors`.

    base = AutoModelForSequenceClassification.from_pretrained(BASE)   # the source in `init_from` of the run
    model = peft.PeftModel.from_pretrained(base, FOLDER)

PEFT has a pair of matrices per linear layer: `lora_A.weight` [r, inputs] and `lora_B.weight` [outputs, r], and adds
(alpha / r) B A. If one of their layers joins several of ours (GPT-2's c_attn), our pairs are concatenated, and rank and
alpha are multiplied by their number. A head is written whole (`modules_to_save`).
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plm_jax.checkpoint import Params, Step, tensor_files
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.core.errors import ConfigError
from plm_jax.core.trunk import longest_row
from plm_jax.core.types import HEADS, Template
from plm_jax.io import checksums, files, model_folders, run_paths
from plm_jax.weights import class_heads, folders, release, table, writer
from plm_jax.weights.adapted import BEFORE, TASKS, TENSORS
from plm_jax.weights.folders import Weights
from plm_jax.weights.table import Architecture, Entry

log = logging.getLogger(__name__)


class Update(NamedTuple):
  """The update of one of our matrices, in one layer: its entry, A [i, r] and B [r, o]."""

  entry: Entry
  a: np.ndarray
  b: np.ndarray


def export(
  source: Path, target: Path, *, architecture: str | None = None, step: Step = 'best', template: Template | None = None
) -> None:
  """Write the updates and the head of a LoRA run for PEFT.

  The arguments are those of `convert.export`.

  Raises:
    ConfigError: the run is not one of adapter 'lora'.
    WeightsError: something that it trained cannot be expressed in this form.
    CheckpointError: the parameters are damaged.
  """
  opened = folders.open(source, step=step)
  if opened.wrapper.get('name') != 'lora':
    raise ConfigError(f"--form=peft: {source} is not a run of adapter 'lora': --form=release exports the whole model")
  trunk, saved = opened.trunk(), opened.as_saved
  heads = sorted(opened.heads)
  if unsupported := set(heads) - {'head'}:
    raise WeightsError(
      f'--form=peft: PEFT has no {", ".join(sorted(unsupported))}; --form=release exports the whole model'
    )
  chosen, names, config = writer.published_form(trunk, opened.params, architecture, adapter=opened.adapter)
  kind = config['architectures'][0]
  bare = kind.endswith('Model') and not kind.endswith('LMHeadModel')  # names have no prefix without a head
  entries = {
    entry.ours: entry._replace(theirs=entry.theirs.removeprefix(chosen.module.PREFIX) if bare else entry.theirs)
    for entry in table.entries_of(chosen, trunk, names)
  }
  # missing in the base model of PEFT
  of_class = {entry.ours for entry in class_heads.of_task(chosen.module.HEADS, chosen.module.tasks(trunk), names)}
  trained = _trained_whole(opened, entries) - of_class
  base = _check_base(opened, {path: leaf for path, leaf in saved.items() if path not in of_class | trained})
  modules = _modules(saved, entries, chosen)
  whole = {
    entry.theirs: table.to_theirs(entry, opened.params[path].read(None))
    for path, entry in entries.items()
    if path in of_class | trained
  }
  saved_whole = {entry.theirs.partition('.')[0] for path, entry in entries.items() if path in of_class}
  saved_whole |= {entries[path].theirs.rpartition('.')[0] for path in trained}
  tensors = {name: array for module, updates in modules.items() for name, array in _pair(module, updates).items()}
  tensors |= {f'{BEFORE}{name}': array for name, array in whole.items()}
  about = _about(modules, sorted(saved_whole), kind, opened.wrapper, base)
  with release.making(target) as partial:
    tensor_files.write(partial / TENSORS, {name: table.plan_of(array) for name, array in tensors.items()})
    typed, longest = getattr(chosen.module, 'TYPED', False), longest_row(trunk)
    release.copy_tokenizer(opened.vocab, partial, template=template, types=typed, longest=longest)
    files.write_json(partial / model_folders.PEFT, about)
    release.put_in_place(partial, target, mark=model_folders.PEFT)
  count = sum(array.size for array in tensors.values())
  log.info(f'{target}: {len(modules)} modules, {count:,} numbers; their base model is {base or "unknown"}')


def _trained_whole(opened: Weights, entries: Mapping[str, Entry]) -> set[str]:
  """Return the trunk parameters trained whole; raise WeightsError for others."""
  paths = {pattern for pattern in opened.wrapper.get('trained') or () if pattern not in HEADS}
  if any(path not in entries or entries[path].stacked for path in paths):
    raise WeightsError(
      f'--form=peft: adapter.trained={opened.wrapper["trained"]} trained other parameters of the trunk, which PEFT '
      'cannot store; --form=release exports the whole model'
    )
  return paths


def _check_base(opened: Weights, saved: Collection[str]) -> str:
  """Find the base model in `init_from` of the run; empty if unknown.

  Raises:
    WeightsError: parameters of the trunk did not come from there: PEFT's base model would lack them.
  """
  settings = checksums.read_json(run_paths.RunFolder(opened.folder).config)
  sources = {entry['source'] for entry in settings.get('init_from') or () if entry.get('to', 'trunk') in ('', 'trunk')}
  base = sources.pop() if len(sources) == 1 else ''
  if base and files.is_folder(files.path(base)):
    base_params = folders.open(base).params
    if missing := [path for path in saved if path.startswith('trunk/') and path not in base_params]:
      raise WeightsError(
        f'--form=peft: the base model {base} has no {", ".join(missing[:3])}, so PEFT would initialise it at random; '
        '--form=release exports the whole model'
      )
  return base


def _modules(saved: Params, entries: Mapping[str, Entry], architecture: Architecture) -> dict[str, list[Update]]:
  """Map linear layers to our updates; raise WeightsError for other layers."""
  modules: dict[str, list[Update]] = {}
  for path in sorted({path.rpartition('/')[0] for path in saved if path.startswith('lora/')}):
    entry = entries.get(f'{path.removeprefix("lora/")}/kernel')
    if entry is None or not entry.theirs.endswith('.weight') or entry.form not in ('linear', 'matrix'):
      theirs = 'no tensor' if entry is None else f'{entry.theirs}, which is no linear layer'
      raise WeightsError(
        f'--form=peft: for the update of {path.removeprefix("lora/")} {architecture.name} has {theirs}; --form=release '
        'exports the whole model'
      )
    a, b = saved[f'{path}/a'], saved[f'{path}/b']
    for layer in range(a.shape[0]) if entry.stacked else [None]:
      factors = np.asarray(a.read(layer), np.float32), np.asarray(b.read(layer), np.float32)
      name = (entry.theirs if layer is None else entry.name(layer)).removesuffix('.weight')
      modules.setdefault(name, []).append(Update(entry, factors[0], factors[1].reshape(len(factors[1]), -1)))
  return modules


def _pair(module: str, updates: Sequence[Update]) -> dict[str, np.ndarray]:
  """Build A [k r, inputs] and B [outputs, k r]."""
  # two updates of a joined layer      A  a1^T     B  b1^T  0
  #                                       a2^T        0     b2^T
  joined = updates[0].entry.part
  outputs = updates[0].b.shape[1] if joined is None else joined.total * joined.groups
  rank = updates[0].b.shape[0]
  b = np.zeros((outputs, rank * len(updates)), np.float32)
  for i, update in enumerate(updates):
    columns = b[:, i * rank : (i + 1) * rank]
    target = columns if update.entry.part is None else table.section(columns, update.entry.part._replace(axis=0))
    target[...] = update.b.T.reshape(target.shape)
  a = np.concatenate([update.a.T for update in updates])
  return {f'{BEFORE}{module}.lora_A.weight': a, f'{BEFORE}{module}.lora_B.weight': b}


def _about(
  modules: Mapping[str, Sequence[Update]], whole: Sequence[str], kind: str, wrapper: Mapping[str, Any], base: str
) -> dict[str, Any]:
  joined = {module: len(updates) for module, updates in modules.items()}
  usual = min(joined.values())
  unusual = {module: count for module, count in joined.items() if count != usual}
  return {
    'peft_type': 'LORA',
    'task_type': next((task for end, task in TASKS.items() if kind.endswith(end)), None),
    'base_model_name_or_path': base,
    'inference_mode': True,
    'r': usual * wrapper['rank'],
    'lora_alpha': usual * wrapper['alpha'],
    'lora_dropout': wrapper['dropout'],
    'rank_pattern': {module: count * wrapper['rank'] for module, count in unusual.items()},
    'alpha_pattern': {module: count * wrapper['alpha'] for module, count in unusual.items()},
    'target_modules': list(modules),
    'modules_to_save': list(whole) or None,
    'fan_in_fan_out': next(iter(modules.values()))[0].entry.form == 'matrix',  # GPT-2 stores [inputs, outputs]
    'bias': 'none',
    'use_rslora': False,
    'use_dora': False,
    'init_lora_weights': True,
  }
