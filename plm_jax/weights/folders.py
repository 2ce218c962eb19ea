"""The one door to parameters: a release in Hugging Face's form, a run, an import, or parameters that were saved alone.

`open` finds out which kind of folder it is and returns `Weights`, which reads the rest when it is asked for.
"""

import functools
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from plm_jax import checkpoint
from plm_jax.checkpoint import Leaf, Params, Step, frozen, in_memory
from plm_jax.checkpoint.init_from import Entry
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.config import build, one_part, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.param_paths import SCALE, nested
from plm_jax.core.types import Execution, PyTree
from plm_jax.io import checksums, files, run_paths
from plm_jax.weights import release, shapes, task_heads
from plm_jax.weights.reader import Reader
from plm_jax.weights.release import TOKEN_IDS, Release
from plm_jax.weights.table import TOKENS

MODEL = files.IMPORT
TRUNKS = ('trunk', 'generator')  # of a run of replaced token detection
Part = str  # one of `TRUNKS`, or a task of a run of several
# A leaf of the trunk alone -> the two whose sum it is in a run that trains a generator as well, of which the second is
# what the trunk has of its own (DeBERTa-v3's gradient-disentangled table).
SUMS: Mapping[str, tuple[str, str]] = MappingProxyType({TOKENS: ('generator/token_embed/table', 'delta/table')})

# fields of config.json that say how texts are made, where there is no generation_config.json
GENERATION = (
  'do_sample', 'num_beams', 'early_stopping', 'length_penalty', 'temperature', 'top_k', 'top_p', 'no_repeat_ngram_size',
  'max_new_tokens', 'min_new_tokens', 'num_return_sequences', 'repetition_penalty', 'encoder_repetition_penalty',
  'typical_p', 'guidance_scale', 'num_beam_groups', 'max_length', 'min_length', 'max_time', 'stop_strings', 'min_p',
  'top_h', 'epsilon_cutoff', 'eta_cutoff', 'bad_words_ids', 'renormalize_logits', 'remove_invalid_values',
  'exponential_decay_length_penalty', 'suppress_tokens', 'begin_suppress_tokens', 'sequence_bias', 'token_healing',
  'watermarking_config', 'encoder_no_repeat_ngram_size', 'penalty_alpha', 'dola_layers', 'diversity_penalty',
  'constraints', 'force_words_ids', 'forced_decoder_ids',
)  # fmt: skip


class Model(NamedTuple):
  """What a trunk is made of.

  Attributes:
    block: of a config: name, variant, overrides.
    vocab_size: ids of the vocabulary.
  """

  block: Mapping[str, Any]
  vocab_size: int


class Weights:
  """An open folder of weights. Its model and its parameters are read from disk when they are asked for.

  Attributes:
    folder: where it is.
    vocab: the folder of its vocabulary or tokenizer, which may not exist.
    step: which step of a run.
    part: which trunk of a run that trains two, or which task of one that learned several; None is all parameters by
      the names that the run has.
  """

  def __init__(self, folder: Path, *, step: Step, part: Part | None):
    self.folder = folder
    self.vocab = run_paths.RunFolder(folder).vocab
    self.step = step
    self.part = part

  @functools.cached_property
  def _whole(self) -> Mapping[str, Any]:
    """The config of a run as it stands in its folder; empty where there is none."""
    file = run_paths.RunFolder(self.folder).config
    return checksums.read_json(file) if files.is_file(file) else {}

  @functools.cached_property
  def task(self) -> str | None:
    """The task that is opened of a run that learned several.

    Raises:
      ConfigError: it learned no such task.
    """
    known = one_part.names(self._whole) if self.part else ()
    if self.part is None or (self.part in TRUNKS and self.part not in known):
      return None
    errors.check_choice(f'part={self.part}', 'part', self.part, known or TRUNKS, place=str(self.folder))
    return self.part

  def check_one(self) -> None:
    """Raises ConfigError where the heads are those of several tasks, and none of these is opened."""
    if self.task is None and one_part.has_heads(self._whole):
      raise ConfigError(f'{self.folder} {one_part.left_open(self._whole)}, --part=NAME; --heads=none leaves them out')

  @functools.cached_property
  def model(self) -> Model:
    """The model that the parameters belong to.

    Raises:
      WeightsError: the folder does not say, or the run has no such part.
    """
    try:
      if files.is_file(self.folder / checkpoint.INDEX):
        about = checksums.read_json(self.folder / MODEL)
        return Model(about['model'], about['vocab_size'])
      settings = build.unwrapped(checksums.read_json(run_paths.RunFolder(self.folder).config))
      vocab = checksums.read_json(self.vocab / 'vocab.json')
      second = self.part == 'generator' and self.task is None
      block = (settings['objective'] or {}).get('generator') if second else settings['model']
    except (OSError, KeyError, TypeError, AttributeError, ValueError) as error:
      raise WeightsError(
        f'{self.folder} is neither a Hugging Face folder (config.json with a model_type) nor a run folder nor an '
        f'import: {error}'
      ) from error
    if block is None:
      raise WeightsError(f'{run_paths.RunFolder(self.folder).config}: the objective of this run has no generator')
    return Model(block, vocab['size'])

  @functools.cached_property
  def params(self) -> Params:
    """The parameters: 'trunk/...' and '<head>/...' -> a leaf that is read when it is asked for.

    What a wrapper (LoRA) added to parameters is in them.

    Raises:
      CheckpointError: none, or damaged ones.
      WeightsError: the run has no such part, or was trained with a wrapper that parameters alone cannot express.
    """
    return _without_scales(self._of_part(self._folded(grafted=False)))

  @functools.cached_property
  def to_run(self) -> Params:
    """As `params`, with what layers of the trunk read beside their own parameters (wrappers 'bottleneck', 'prefix').

    Parameters that are saved in 8 bits are so here, each with its scales beside it.
    """
    return self._of_part(self._folded(grafted=True))

  @functools.cached_property
  def in_8_bits(self) -> bool:
    """Whether parameters are saved in 8 bits."""
    return files.is_file(self.folder / checkpoint.INDEX) and any(
      f'{path}{SCALE}' in self.as_saved for path in self.as_saved
    )

  def _of_part(self, everything: Params) -> Params:
    if self.part is None or self.task or files.is_file(self.folder / checkpoint.INDEX):
      return everything
    leaves = _generator(everything, self.trunk()) if self.part == 'generator' else _first_trunk(everything)
    return Params(leaves, where=str(self.folder))

  @functools.cached_property
  def as_saved(self) -> Params:
    """The parameters as they are saved, those of a wrapper apart, and frozen ones from where `init_from` had them.

    Of one task of several they are those of the trunk and its own, by the names that it has alone.

    Raises:
      CheckpointError: none, damaged ones, or a source that is not what it was.
    """
    task, saved = self.task, self._all_saved()
    if task is None:
      return saved
    named = {one_part.path_of(self._whole, task, path): leaf for path, leaf in saved.items()}
    return Params({path: leaf for path, leaf in named.items() if path is not None}, where=str(self.folder))

  def _all_saved(self) -> Params:
    saved = checkpoint.open_params(self.folder, step=self.step)
    inside = run_paths.RunFolder(self.folder).checkpoints
    steps = inside if files.is_folder(inside) else self.folder
    if not frozen.read(steps):
      return saved
    settings = self._whole if steps == inside else {}
    entries = [Entry.read(fields) for fields in settings.get('init_from', ())]
    sources = [(entry, open(entry.source, step=entry.step).params) for entry in entries]
    return Params({**frozen.leaves(steps, sources), **saved}, where=str(self.folder))

  @functools.cached_property
  def _adapter(self) -> Mapping[str, Any]:
    """The adapter of a run as its config has it, or that of its task that is opened; empty where there is none."""
    return one_part.adapter_of(self._whole, self.task) if self.task else self._whole.get('adapter') or {}

  @property
  def wrapper(self) -> Mapping[str, Any]:
    """The adapter of a run that wraps another task, as its config has it; empty where there is none."""
    return self._adapter if _wraps(self._adapter) else {}

  def _folded(self, *, grafted: bool) -> Params:
    """Saved parameters with what a wrapper added to them; with `grafted` also what it put beside them.

    Raises:
      WeightsError: no config says how, or parameters alone do not express it and `grafted` is not asked for, or it is
        added for one of several tasks.
    """
    for part, wrapper in one_part.own_trunks(self._whole).items() if self.task is None else ():
      raise WeightsError(
        f'{self.folder} was trained with adapter {wrapper!r} for its task {part!r} alone, and each task has a trunk of '
        f'its own: name one of {", ".join(one_part.names(self._whole))}, part=NAME'
      )
    saved = self.as_saved
    adds = {signatures.literal(f'adapters.{name}', 'ADDS'): name for name in signatures.names('adapters')}
    present = sorted({path.partition('/')[0] for path in saved} & (adds.keys() - {None}))
    if not present:
      return saved
    name, wrapper = present[0], adds[present[0]]
    if self.wrapper.get('name') != wrapper:
      raise WeightsError(
        f'{self.folder} has parameters {name!r} of adapter {wrapper!r}, and no config.json that says how they are '
        'used: name the folder of the run'
      )
    module, own = build.import_file(f'adapters.{wrapper}'), {}
    others = {path: leaf for path, leaf in saved.items() if not path.startswith(f'{name}/')}
    if signatures.literal(f'adapters.{wrapper}', 'ALONE'):
      pass
    elif signatures.has(f'adapters.{wrapper}', 'fold'):
      own = _fold(saved, name, functools.partial(module.fold, settings=self.wrapper))
    elif grafted:
      own = dict(in_memory(nested(module.grafts(saved.arrays(name)))))
    else:
      raise WeightsError(
        f'{self.folder} was trained with adapter {wrapper!r}, and its trunk alone computes something else: '
        'open the run itself, with plm_jax.load or --workdir of plm-jax evaluate, plm-jax predict and plm-jax generate'
      )
    return Params({**others, **own}, where=str(self.folder))

  @functools.cached_property
  def token_ids(self) -> dict[str, int | None]:
    """Fields of config.json in Hugging Face's form, such as pad_token_id -> id."""
    if files.is_file(self.folder / MODEL):
      return checksums.read_json(self.folder / MODEL).get('token_ids', {})
    settings = build.unwrapped(checksums.read_json(run_paths.RunFolder(self.folder).config))
    ids = release.token_ids(self.vocab)
    found: dict[str, int | None] = {f'{role}_token_id': ids.get(role) for role in ('pad', 'bos', 'eos')}
    task = settings.get('objective') or self.adapter
    start = task.get('start')
    if start is None and 'start' in task and self._is_encoder_decoder():
      start = 'pad'  # as adapters read it (adapters/answers.py)
    return found | ({'decoder_start_token_id': ids[start]} if start in ids else {})

  def _is_encoder_decoder(self) -> bool:
    model = self.model
    return build.make('models', dict(model.block), vocab_size=model.vocab_size).ATTENTION == 'encoder-decoder'

  @property
  def generation(self) -> dict[str, Any]:
    """Fields of a config.json in Hugging Face's form that say how texts are made (`GENERATION`); of a release only.

    An import has them in a generation_config.json beside its tokenizer.
    """
    return {}

  @functools.cached_property
  def adapter(self) -> Mapping[str, Any]:
    """The block of the adapter that computes the head, as a config has it; empty where there is none, or not known."""
    if files.is_file(self.folder / MODEL):
      return checksums.read_json(self.folder / MODEL).get('adapter', {})
    return build.unwrapped({'adapter': self._adapter}).get('adapter') or {}

  @functools.cached_property
  def labels(self) -> tuple[str, ...]:
    """Names of the classes of a head that classifies, in the order of their numbers; else empty."""
    if files.is_file(self.folder / MODEL):
      return tuple(checksums.read_json(self.folder / MODEL).get('labels', ()))
    if 'tags' in self.adapter:
      return tuple(self.adapter['tags'])
    file = run_paths.RunFolder(self.folder).data
    names = checksums.read_json(file, default={}).get('class_names', ()) if self.adapter else ()
    names = names.get(self.task, ()) if isinstance(names, dict) else names
    return tuple(names)

  @property
  def heads(self) -> tuple[str, ...]:
    """What there is beside the trunk, by name."""
    return tuple(sorted({path.partition('/')[0] for path in self.to_run} - {'trunk'}))

  def trunk(self, execution: Execution = Execution()) -> nn.Module:
    """The trunk, which computes as `execution` says.

    Raises:
      WeightsError: it has other sizes than the parameters of an import, or another encoder reads for it.
    """
    second = files.is_folder(run_paths.RunFolder(self.folder).second_vocab)
    if second and any(path.startswith('trunk/source/') for path in self.params):
      raise WeightsError(
        f'{self.folder} reads texts of a second vocabulary through an encoder that no other model has, and its trunk '
        'alone computes something else: open the run itself, with plm_jax.load or --workdir of plm-jax evaluate, '
        'plm-jax predict and plm-jax generate, or begin another run with it (init_from)'
      )
    trunk = build.make('models', dict(self.model.block), vocab_size=self.model.vocab_size, execution=execution)
    if files.is_file(self.folder / checkpoint.INDEX):
      own = {f'trunk/{path}': shape for path, shape in shapes.shapes(trunk).items()}
      for path, leaf in self.params.items():
        if path.startswith('trunk/') and own.get(path) != leaf.shape:
          raise WeightsError(
            f'{self.folder / MODEL} gives {path} the shape {own.get(path, "of nothing")}, and the files have '
            f'{leaf.shape}: import again'
          )
    return trunk


class Published(Weights):
  """A folder in Hugging Face's form.

  Attributes:
    reader: how its tensors correspond to our parameters; making it checks all names and shapes.
  """

  def __init__(self, folder: Path, *, architecture: str | None):
    super().__init__(folder, step=None, part=None)
    self.vocab = folder
    self._architecture = architecture

  @functools.cached_property
  def reader(self) -> Reader:
    return Reader(Release(self.folder), architecture=self._architecture)

  @functools.cached_property
  def model(self) -> Model:
    """As in `Weights`, from config.json."""
    return Model(self.reader.model, self.reader.vocab_size)

  @functools.cached_property
  def params(self) -> Params:
    """As in `Weights`; `Params.arrays` are float32, single leaves have the dtype of the release."""
    leaves = self.reader.leaves()

    def read(names: Collection[str]) -> dict[str, np.ndarray]:
      return {name: np.asarray(leaves[name].read(None), np.float32, order='C') for name in names}

    return Params(leaves, where=str(self.folder), read=read)

  @property
  def to_run(self) -> Params:
    """The parameters: a release has nothing beside them."""
    return self.params

  @functools.cached_property
  def token_ids(self) -> dict[str, int | None]:
    """As in `Weights`, from config.json, with the defaults of its class for what it lacks."""
    known = self.reader.architecture.module.FIELDS
    defaults = {name: known[name].default for name in TOKEN_IDS if name in known}
    defaults = {name: value for name, value in defaults.items() if isinstance(value, int)}
    config = self.reader.source.config
    found = defaults | {name: value for name, value in config.items() if name in TOKEN_IDS}
    if config.get('force_bos_token_to_be_generated'):  # of older BARTs, which transformers follows
      found['forced_bos_token_id'] = found.get('bos_token_id')
    return found

  @property
  def generation(self) -> dict[str, Any]:
    """As in `Weights`."""
    config = self.reader.source.config
    return {name: config[name] for name in GENERATION if config.get(name) is not None}

  @functools.cached_property
  def labels(self) -> tuple[str, ...]:
    """As in `Weights`, from config.json; empty where it names none."""
    task = self.reader.task_head
    named = task is not None and task.adapter in task_heads.NAMED
    return task_heads.labels_of(self.reader.source.config) if named else ()

  @functools.cached_property
  def adapter(self) -> Mapping[str, Any]:
    """As in `Weights`, from the tensors and config.json."""
    task, config = self.reader.task_head, self.reader.source.config
    return {} if task is None else task_heads.to_adapter(task, self.reader.shapes, config, self.labels)

  @property
  def heads(self) -> tuple[str, ...]:
    """As in `Weights`, in the order of the architecture."""
    return self.reader.heads


def open(
  folder: str | os.PathLike[str],
  *,
  step: Step = None,
  part: Part | None = None,
  architecture: str | None = None,
) -> Weights:
  """Opens a folder of weights.

  Args:
    folder: one in Hugging Face's form, a run folder, what `plm-jax convert import` wrote, or what
      `checkpoint.save_params` wrote (which says nothing of its model).
    step: of a run: a number, 'newest' or 'best'; None is the best where steps have scores, else the newest.
    part: of a run that trains two trunks (replaced token detection): the 'trunk' as it is used alone, or the
      'generator'; of one that learned several tasks, one of them with its own head. None gives all parameters by the
      names that the run has.
    architecture: a file of `architectures/`, where the config.json of a release leaves it open.

  Returns:
    `Weights`; what is wrong with the folder is found when its model or its parameters are asked for.

  Raises:
    WeightsError: it is a folder of PEFT, which has no model.
  """
  path = files.path(folder)
  if release.is_release(path):
    if part is not None:
      errors.check_choice(f'part={part}', 'part', part, TRUNKS, place=f'{path}, which is no run')
    return Published(path, architecture=architecture)
  if files.is_file(path / release.PEFT):
    raise WeightsError(
      f"{path} is a folder of PEFT: updates of a model that is elsewhere. Name the run of adapter 'lora' that it was "
      'written from, or what `plm-jax convert export RUN FOLDER` writes, the whole model'
    )
  return Weights(path, step=step, part=part)


def load(
  folder: str | os.PathLike[str],
  *,
  step: Step = None,
  part: Part = 'trunk',
  execution: Execution = Execution(),
  device: jax.Device | jax.sharding.Sharding | None = None,
) -> tuple[nn.Module, PyTree]:
  """The trunk of a folder and its parameters, all on a device: the short form of `open`.

  Args:
    folder: a Hugging Face folder, a run folder, or a folder written by `plm-jax convert import`.
    step: of a run folder; None is the best where one was kept, else the newest.
    part: 'generator' is the second trunk of a run folder of replaced token detection; see `open`.
    execution: how the trunk computes.
    device: where every leaf is placed, or how it is cut; None is the default device.

  Returns:
    (trunk, parameters): nested dicts of float32 arrays on the device (int8 with their scales where they are saved in
    8 bits), those of the trunk and, beside them, a head by its name ('mlm', 'rtd', 'head') where the folder has one;
    `trunk.apply({'params': parameters}, ...)` leaves heads alone.

  Raises:
    WeightsError: an architecture that is not known, or a tensor that is missing, damaged or of another shape.
    CheckpointError: damaged parameters of a run or an import.
  """
  opened = open(folder, step=step, part=part)
  trunk = opened.trunk(execution)
  params = placed(opened.to_run, device=device)
  return trunk, {**params['trunk'], **{name: tree for name, tree in params.items() if name != 'trunk'}}


def placed(params: Params, *, device: jax.Device | jax.sharding.Sharding | None = None) -> PyTree:
  """All parameters as nested dicts of arrays on a device; the host never holds a second copy of all of them."""
  return nested({path: jax.device_put(_to_compute(array), device) for path, array in params.each()})


def _to_compute(array: np.ndarray) -> np.ndarray:
  """An array as a trunk computes with it: float32, or int8 where it is saved in 8 bits."""
  return array if array.dtype == np.int8 else np.asarray(array, np.float32)


def _wraps(adapter: Mapping[str, Any]) -> bool:
  """Whether the block of an adapter names one that wraps another task."""
  return bool(signatures.literal(f'adapters.{adapter.get("name")}', 'ADDS'))


def _fold(saved: Params, name: str, fold: Callable[..., np.ndarray]) -> dict[str, Leaf]:
  """Those leaves to which a wrapper added something, with that.

  Args:
    saved: all leaves.
    name: of the wrapper's, such as 'lora'.
    fold: of the wrapper's file, with its settings.
  """
  added: dict[str, dict[str, Leaf]] = {}
  for path in saved:
    if path.startswith(f'{name}/'):
      place, _, part = path.removeprefix(f'{name}/').rpartition('/')
      kernel = f'{place}/kernel'
      added.setdefault(kernel if kernel in saved else f'{place}/table', {})[part] = saved[path]

  def whole(kernel: Leaf, parts: Mapping[str, Leaf]) -> Leaf:
    def read(layer: int | None) -> np.ndarray:
      return fold(kernel.read(layer), {part: leaf.read(layer) for part, leaf in parts.items()})

    return Leaf(kernel.shape, read)

  return {path: whole(saved[path], parts) for path, parts in added.items()}


def _without_scales(params: Params) -> Params:
  """The parameters in float32, where some are saved in 8 bits with their scales beside them."""
  scales = {path: leaf for path, leaf in params.items() if path.removesuffix(SCALE) in params and path.endswith(SCALE)}
  if not scales:
    return params

  def whole(numbers: Leaf, scale: Leaf) -> Leaf:
    return Leaf(numbers.shape, lambda layer: numbers.read(layer).astype(np.float32) * scale.read(layer))

  leaves = {path: leaf for path, leaf in params.items() if path not in scales}
  leaves |= {path.removesuffix(SCALE): whole(leaves[path.removesuffix(SCALE)], leaf) for path, leaf in scales.items()}
  return Params(leaves, where=params.where)


def _generator(params: Params, trunk: nn.Module) -> dict[str, Leaf]:
  """The second of two trunks that were trained together, with what it shares and its own head.

  Raises:
    WeightsError: there is none.
  """
  if not any(path.startswith('generator/') for path in params):
    raise WeightsError('this run has no parameters of a generator')
  leaves = {}
  for path in shapes.shapes(trunk):
    leaf = params.get(f'generator/{path}') or params.get(f'trunk/{path}')
    if leaf is not None:
      leaves[f'trunk/{path}'] = leaf
  return leaves | {path: leaf for path, leaf in params.items() if path.startswith('mlm/')}


def _first_trunk(params: Params) -> dict[str, Leaf]:
  """The first trunk with its heads; of a run without a second one, everything."""
  second = any(path.startswith('generator/') for path in params)
  of_second = ('generator/', 'mlm/', *(own for _, own in SUMS.values()))
  return {path: leaf for path, leaf in params.with_sums(SUMS).items() if not (second and path.startswith(of_second))}
