"""Parameters of a run folder, of a converted checkpoint, or saved alone, each read from disk when it is used."""

import functools
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

import flax.linen as nn

from plm_jax import checkpoint
from plm_jax.checkpoint import Params, Step, frozen, in_memory
from plm_jax.checkpoint.init_from import Entry
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.config import build, one_part, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.param_paths import SCALE, nested
from plm_jax.core.types import Execution
from plm_jax.io import checksums, files, run_paths
from plm_jax.weights import derived_leaves, release, shapes

MODEL = files.IMPORT
TRUNKS = ('trunk', 'generator')  # of a run of replaced token detection
# content of `MODEL`: types, and of what is inside
_TYPES: dict[str, tuple[type, tuple[type, ...]]] = {
  'model': (dict, (str, dict)), 'vocab_size': (int, ()), 'heads': (list, (str,)), 'labels': (list, (str,)),
  'token_ids': (dict, (int, list, NoneType)), 'adapter': (dict, (object,)),
}  # fmt: skip
Part = str  # one of `TRUNKS`, or a task of a multi-task run


class Model(NamedTuple):
  """The model that parameters belong to."""

  block: Mapping[str, Any]  # of a config: name, variant, overrides
  vocab_size: int  # number of ids of the vocabulary


class Weights:
  """An open folder of weights.

  Its model and its parameters are read from disk when they are used.

  Attributes:
    folder: path of the folder.
    vocab: the folder of its vocabulary or tokenizer, which may not exist.
    step: which step of a run.
    part: one of two trunks, or one task of a multi-task run; None is all parameters by the names in the run.
  """

  def __init__(self, folder: Path, *, step: Step, part: Part | None):
    self.folder = folder
    self.vocab = run_paths.RunFolder(folder).vocab
    self.step = step
    self.part = part

  @functools.cached_property
  def _settings(self) -> Mapping[str, Any]:
    file = run_paths.RunFolder(self.folder).config
    return checksums.read_json(file) if files.is_file(file) else {}

  @functools.cached_property
  def _about(self) -> dict[str, Any]:
    """Read what a converted checkpoint is; raise WeightsError if invalid."""
    about = checksums.read_json(self.folder / MODEL)
    if not isinstance(about, dict):
      raise ValueError(f'{MODEL} is not an object')
    for name, (kind, inside) in _TYPES.items():
      value = about.get(name, kind())
      items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
      is_valid = type(value) is kind and all(isinstance(item, inside) for item in items)
      if not is_valid or (kind is int and not 0 < value < 2**31):
        raise WeightsError(f'{self.folder / MODEL}: {name}={errors.shown(value)} is not valid: import again')
    return about

  @functools.cached_property
  def task(self) -> str | None:
    """Return the selected task of a multi-task run, or raise ConfigError."""
    tasks = one_part.names(self._settings) if self.part else ()
    if self.part is None or (self.part in TRUNKS and self.part not in tasks):
      return None
    errors.check_choice(f'part={self.part}', 'part', self.part, tasks or TRUNKS, place=str(self.folder))
    return self.part

  def check_one(self) -> None:
    """Raise ConfigError for several task heads of which none is selected."""
    if self.task is None and one_part.has_heads(self._settings):
      raise ConfigError(
        f'{self.folder} {one_part.left_open(self._settings)} (--part=NAME), or export no head (--heads=none)'
      )

  @functools.cached_property
  def model(self) -> Model:
    """Read which model the parameters belong to.

    Raises:
      WeightsError: the folder does not specify it, or the run has no such part.
    """
    try:
      if files.is_file(self.folder / checkpoint.INDEX):
        return Model(self._about['model'], self._about['vocab_size'])
      settings = build.unwrapped(checksums.read_json(run_paths.RunFolder(self.folder).config))
      vocab = checksums.read_json(self.vocab / 'vocab.json')
      second = self.part == 'generator' and self.task is None
      block = (settings['objective'] or {}).get('generator') if second else settings['model']
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
      raise WeightsError(
        f'{self.folder} is no folder of weights ({error}): name a Hugging Face folder (config.json with a model_type), '
        'a run folder or a converted checkpoint'
      ) from error
    if block is None:
      raise WeightsError(
        f'{run_paths.RunFolder(self.folder).config}: the objective of this run has no generator; leave out part'
      )
    return Model(block, vocab['size'])

  @functools.cached_property
  def params(self) -> Params:
    """Open the parameters: 'trunk/...' and '<head>/...' -> leaf.

    A leaf is read when it is used. Updates of a wrapper (LoRA) are merged into them.

    Raises:
      CheckpointError: none, or damaged ones.
      WeightsError: the run has no such part, or its wrapper cannot be expressed by parameters alone.
    """
    return derived_leaves.without_scales(self._of_part(self._folded(grafted=False)))

  @functools.cached_property
  def to_run(self) -> Params:
    """Open the parameters as `params`, with those that wrappers add to layers.

    The wrappers 'bottleneck' and 'prefix' add such parameters. Parameters that are saved in 8 bits stay so, with their
    scales.
    """
    return self._of_part(self._folded(grafted=True))

  @functools.cached_property
  def in_8_bits(self) -> bool:
    """Check whether parameters are saved in 8 bits."""
    return files.is_file(self.folder / checkpoint.INDEX) and any(
      f'{path}{SCALE}' in self.as_saved for path in self.as_saved
    )

  def _of_part(self, everything: Params) -> Params:
    if self.part is None or self.task or files.is_file(self.folder / checkpoint.INDEX):
      return everything
    leaves = (
      derived_leaves.generator(everything, self.trunk())
      if self.part == 'generator'
      else derived_leaves.first_trunk(everything)
    )
    return Params(leaves, where=str(self.folder))

  @functools.cached_property
  def as_saved(self) -> Params:
    """Open the saved parameters, without merging those of a wrapper.

    Frozen parameters come from where `init_from` took them. One task of several has the trunk and its own parameters,
    by their names in a single-task run.

    Raises:
      CheckpointError: none, damaged ones, or a changed source of frozen parameters.
    """
    task, saved = self.task, self._all_saved()
    if task is None:
      return saved
    named = {one_part.path_of(self._settings, task, path): leaf for path, leaf in saved.items()}
    return Params({path: leaf for path, leaf in named.items() if path is not None}, where=str(self.folder))

  def _all_saved(self) -> Params:
    saved = checkpoint.open_params(self.folder, step=self.step)
    inside = run_paths.RunFolder(self.folder).checkpoints
    steps = inside if files.is_folder(inside) else self.folder
    if not frozen.read(steps):
      return saved
    settings = self._settings if steps == inside else {}
    from plm_jax.weights import folders  # a source may be a folder of any kind

    entries = [Entry.read(fields) for fields in settings.get('init_from', ())]
    sources = [(entry, folders.open(entry.source, step=entry.step).params) for entry in entries]
    return Params({**frozen.leaves(steps, sources), **saved}, where=str(self.folder))

  @functools.cached_property
  def _adapter(self) -> Mapping[str, Any]:
    return one_part.adapter_of(self._settings, self.task) if self.task else self._settings.get('adapter') or {}

  @property
  def wrapper(self) -> Mapping[str, Any]:
    """Return the adapter block if it wraps another task, else {}."""
    return self._adapter if signatures.literal(f'adapters.{self._adapter.get("name")}', 'ADDS') else {}

  def _folded(self, *, grafted: bool) -> Params:
    """Merge a wrapper's updates; raise WeightsError if parameters cannot express them."""
    self._check_one_trunk()
    saved = self.as_saved
    adds = {signatures.literal(f'adapters.{name}', 'ADDS'): name for name in signatures.names('adapters')}
    present = sorted({path.partition('/')[0] for path in saved} & (adds.keys() - {None}))
    if not present:
      return saved
    name, wrapper = present[0], adds[present[0]]
    if self.wrapper.get('name') != wrapper:
      raise WeightsError(
        f'{self.folder} has parameters {name!r} of adapter {wrapper!r}, but no config.json with its settings: name the '
        'folder of the run'
      )
    module, own = build.import_file(f'adapters.{wrapper}'), {}
    others = {path: leaf for path, leaf in saved.items() if not path.startswith(f'{name}/')}
    if signatures.literal(f'adapters.{wrapper}', 'ALONE'):
      pass
    elif signatures.has(f'adapters.{wrapper}', 'fold'):
      own = derived_leaves.with_updates(saved, name, functools.partial(module.fold, settings=self.wrapper))
    elif grafted:
      own = dict(in_memory(nested(module.grafts(saved.arrays(name)))))
    else:
      raise WeightsError(
        f'{self.folder} was trained with adapter {wrapper!r}, without which its trunk gives other results: open the '
        'run itself, with plm_jax.load or --workdir of plm-jax evaluate, predict or generate'
      )
    return Params({**others, **own}, where=str(self.folder))

  def _check_one_trunk(self) -> None:
    """Raise WeightsError for several trunks of which none is selected."""
    trunks = one_part.own_trunks(self._settings)
    if self.task is None and trunks:
      part, wrapper = next(iter(trunks.items()))
      raise WeightsError(
        f'{self.folder} has one trunk per task: adapter {wrapper!r} was trained for task {part!r} only. Name a task, '
        f'part=NAME: {", ".join(one_part.names(self._settings))}'
      )

  @functools.cached_property
  def token_ids(self) -> dict[str, int | None]:
    """Return fields of a Hugging Face config.json such as pad_token_id -> id."""
    if files.is_file(self.folder / MODEL):
      return self._about.get('token_ids', {})
    settings = build.unwrapped(checksums.read_json(run_paths.RunFolder(self.folder).config))
    ids = release.token_ids(self.vocab)
    fields: dict[str, int | None] = {f'{role}_token_id': ids.get(role) for role in ('pad', 'bos', 'eos')}
    block = settings.get('objective') or self.adapter
    start = block.get('start')
    if start is None and 'start' in block and self._is_encoder_decoder():
      start = 'pad'  # as in adapters/answers.py
    return fields | ({'decoder_start_token_id': ids[start]} if start in ids else {})

  def _is_encoder_decoder(self) -> bool:
    model = self.model
    return build.make('models', dict(model.block), vocab_size=model.vocab_size).ATTENTION == 'encoder-decoder'

  @property
  def generation(self) -> dict[str, Any]:
    """Return the generation fields of a published config.json (`GENERATION`); else empty."""
    return {}

  @functools.cached_property
  def adapter(self) -> Mapping[str, Any]:
    """Return the block of the head's adapter; {} if unknown or none."""
    if files.is_file(self.folder / MODEL):
      return self._about.get('adapter') or {}
    return build.unwrapped({'adapter': self._adapter}).get('adapter') or {}

  @property
  def objective(self) -> Mapping[str, Any]:
    """Return the block of the objective of a run, else {}."""
    return build.unwrapped(self._settings).get('objective') or {} if 'model' in self._settings else {}

  @functools.cached_property
  def labels(self) -> tuple[str, ...]:
    """Return the class names of a classification head by index; else empty."""
    if files.is_file(self.folder / MODEL):
      return tuple(self._about.get('labels', ()))
    if 'tags' in self.adapter:
      return tuple(self.adapter['tags'])
    file = run_paths.RunFolder(self.folder).data
    names = checksums.read_json(file, default={}).get('class_names', ()) if self.adapter else ()
    names = names.get(self.task, ()) if isinstance(names, dict) else names
    return tuple(names)

  @property
  def heads(self) -> tuple[str, ...]:
    """Return the names of all parameters that are not of the trunk."""
    return tuple(sorted({path.partition('/')[0] for path in self.to_run} - {'trunk'}))

  def trunk(self, execution: Execution = Execution()) -> nn.Module:
    """Build the trunk, computing as `execution` specifies.

    Raises:
      WeightsError: its sizes differ from the converted parameters, or it reads through a second encoder.
    """
    second = files.is_folder(run_paths.RunFolder(self.folder).second_vocab)
    if second and any(path.startswith('trunk/source/') for path in self.params):
      raise WeightsError(
        f'{self.folder} reads a second vocabulary through its own encoder, which a trunk alone lacks: open the run, '
        'with plm_jax.load or --workdir of plm-jax evaluate, predict or generate'
      )
    try:
      trunk = build.make('models', dict(self.model.block), vocab_size=self.model.vocab_size, execution=execution)
    except (ValueError, KeyError, TypeError) as error:
      if not files.is_file(self.folder / MODEL):
        raise
      raise WeightsError(f'{self.folder / MODEL} has no valid model ({error}): import again') from error
    if files.is_file(self.folder / checkpoint.INDEX):
      own = {f'trunk/{path}': shape for path, shape in shapes.shapes(trunk).items()}
      for path, leaf in self.params.items():
        if path.startswith('trunk/') and own.get(path) != leaf.shape:
          raise WeightsError(
            f'{self.folder / MODEL}: shape {own.get(path, "none")} expected for {path}, the files have {leaf.shape}: '
            'import again'
          )
    return trunk
