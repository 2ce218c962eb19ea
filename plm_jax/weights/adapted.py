"""Tensors of a base model with the LoRA updates of a PEFT folder merged into them.

A matrix W [outputs, inputs] becomes W + s B A, where s is alpha / r, or alpha / sqrt(r) with `use_rslora`. The adapter
also holds trained biases and modules that are saved whole (`modules_to_save`). They replace those of the base.
"""

import logging
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plm_jax.checkpoint import tensor_files
from plm_jax.core.errors import WeightsError
from plm_jax.io import files, model_folders
from plm_jax.weights.release import Release

TENSORS = 'adapter_model.safetensors'
BEFORE = 'base_model.model.'  # prefix of every name
# suffix of a class name in transformers -> PEFT's name of the task
TASKS = {
  'ForSequenceClassification': 'SEQ_CLS', 'ForTokenClassification': 'TOKEN_CLS',
  'ForQuestionAnswering': 'QUESTION_ANS', 'ForCausalLM': 'CAUSAL_LM', 'LMHeadModel': 'CAUSAL_LM',
  'ForConditionalGeneration': 'SEQ_2_SEQ_LM',
}  # fmt: skip
log = logging.getLogger(__name__)
_PROMPTS = (
  'PREFIX_TUNING', 'PROMPT_TUNING', 'P_TUNING', 'MULTITASK_PROMPT_TUNING', 'ADAPTION_PROMPT', 'CPT', 'CARTRIDGE',
)  # fmt: skip
# fields that change the sum W + s B A, by their value without effect
_OTHERS = (
  'use_dora', 'use_qalora', 'use_bdlora', 'alora_invocation_tokens', 'layer_replication', 'trainable_token_indices',
  'target_parameters', 'arrow_config', 'kasa_config', 'velora_config', 'monteclora_config',
)  # fmt: skip
# fields that are read -> their kind
_FIELDS: Mapping[str, Any] = {
  'lora_alpha': int | float, 'alpha_pattern': dict, 'modules_to_save': list | str, 'auto_mapping': dict,
  'task_type': str,
}  # fmt: skip
_INITS = ('pissa', 'olora', 'corda', 'loftq', 'lora_ga')  # initialisations that change the base as well
_UNTIED = ('SEQ_CLS', 'TOKEN_CLS', 'QUESTION_ANS', 'FEATURE_EXTRACTION')  # tasks without logits over the vocabulary
_OUTPUTS = r'(^|\.)(classifier|score|out_proj)\.weight$'  # one row per class
_OUTPUT_TABLE = r'(^|\.)(lm_head|decoder|vocab_projector|lm_loss)\.weight$'  # one row per token
_CONV1D = re.compile(r'(.*\.)?(c_attn|c_proj|c_fc)\.weight')  # of GPT and GPT-2: [inputs, outputs]
_WRAPPED = re.compile(r'\.(base_layer|modules_to_save(\.default)?)(?=\.)')
_FACTOR = re.compile(
  r'(?P<module>.*)\.lora_(?P<part>A|B|embedding_A|embedding_B)(\.(default\.)?(?P<kind>weight|bias))?'
)


class Update(NamedTuple):
  """Names of the factors of one matrix in the adapter, and their scale."""

  a: str
  b: str
  scale: float
  embedding: bool


class Adapted(Release):
  """The tensors of a base model by name, as PEFT merges an adapter into them; errors are WeightsErrors."""

  def __init__(self, folder: Path):
    base = model_folders.base_of(folder)
    self._adapter, self._about = folder, model_folders.read_object(folder / model_folders.PEFT)
    _check(folder, self._about)
    if not isinstance(model_folders.config_of(base).get('model_type'), str):
      raise WeightsError(
        f"{folder}: its base model {base} is not in Hugging Face's format. `plm-jax convert export {base} NEW` writes "
        f'it; then set base_model_name_or_path in {model_folders.PEFT} to NEW'
      )
    super().__init__(base)
    self._tensors = tensor_files.Container(folder / TENSORS)
    self._whole: dict[str, str] = {}  # name -> name in the adapter
    self._updates: dict[str, Update] = {}
    self._read_names()
    self.config = self._with_task(self.config)
    log.info('%s: an adapter merged into %s', folder, base)

  def _read_names(self) -> None:
    """Find the tensor that each tensor of the adapter belongs to."""
    factors: dict[str, dict[str, str]] = {}
    whole: dict[str, str] = {}
    for name in sorted(self._tensors.tensors):
      short = name.removeprefix(BEFORE)
      if found := _FACTOR.fullmatch(short):
        kind = '' if found['kind'] in (None, 'weight') else '.bias'
        factors.setdefault(found['module'], {})[found['part'] + kind] = name
      elif '.original_module.' not in short:
        whole[_WRAPPED.sub('', short)] = name
    for module, parts in factors.items():
      ends = ('embedding_A', 'embedding_B') if 'embedding_A' in parts else ('A', 'B')
      base = self._base_name(f'{module}.weight')
      if base is None:
        outputs = re.search(f'{_OUTPUTS}|{_OUTPUT_TABLE}', f'{module}.weight')  # a head that the base lacks
        raise self._error(f'{module!r} is not in the base model', _merge(self._about, self._adapter) if outputs else '')
      shapes = [self._tensors.tensors[parts[end]].shape for end in ends if end in parts]
      if not set(parts) <= {*ends, 'B.bias'} or len(shapes) < 2:
        raise self._error(f'{module!r} has only {", ".join(sorted(parts))}', 'fetch the file again')
      if any(len(shape) != 2 for shape in shapes) or not 0 < shapes[0][0] == shapes[1][1]:  # [r, inputs], [outputs, r]
        raise self._error(f'A {shapes[0]} and B {shapes[1]} of {module!r} have no common rank', 'fetch the file again')
      shape = shapes[1][0], shapes[0][1]
      if sorted(shape) != sorted(super().shape(base)):
        raise self._error(f'the update of {base!r} has shape {shape}, the base {super().shape(base)}')
      update = Update(parts[ends[0]], parts[ends[1]], self._scale(module, parts[ends[0]]), ends[0] != 'A')
      self._updates[base] = update
      if 'B.bias' in parts:
        self._updates[self._base_name(f'{module}.bias') or ''] = update._replace(a='', b=parts['B.bias'])
    prefix = self._prefix(factors, whole)
    for short, name in whole.items():
      self._whole[self._base_name(short) or short.removeprefix(prefix)] = name
    self._separate_tables()

  def _error(self, problem: str, fix: str = '') -> WeightsError:
    other = f'they are of different models. Correct base_model_name_or_path in {self._adapter / model_folders.PEFT}'
    return WeightsError(f'{self._adapter / TENSORS}: {problem}: {fix or other}')

  def _separate_tables(self) -> None:
    """Separate tied tables of which one was trained, or raise WeightsError."""
    named = str((self._about.get('auto_mapping') or {}).get('base_model_class'))  # of an adapter without a task
    task = self._about.get('task_type') or next((task for end, task in TASKS.items() if named.endswith(end)), None)
    if not self.config.get('tie_word_embeddings', True) or task in _UNTIED or (not task and named.endswith('Model')):
      return
    rows = self.config.get('vocab_size')
    if any(update.embedding and super(Adapted, self).shape(name)[0] == rows for name, update in self._updates.items()):
      raise WeightsError(
        f'{self._adapter}: it updates token embeddings that the output shares, which one matrix cannot express: train '
        'an adapter of other modules'
      )
    if self._about.get('ensure_weight_tying'):
      return
    if output := next((name for name in self._whole if re.search(_OUTPUT_TABLE, name)), None):
      shared = [name for name in self._whole if name != output and self.shape(name) == self.shape(output)]
      if not any(np.array_equal(self.read(name), self.read(output)) for name in shared):
        self.config = {**self.config, 'tie_word_embeddings': False}
      return
    saved = tuple(f'.{module}.weight' for module in self._about.get('modules_to_save') or ())
    if any(
      f'.{name}'.endswith(saved) and len(self.shape(name)) == 2 and self.shape(name)[0] == rows for name in self._whole
    ):
      raise WeightsError(
        f'{self._adapter}: its token embeddings were trained apart from the output, which shares those of the base: '
        f'{_merge(self._about, self._adapter)}'
      )

  def _base_name(self, name: str) -> str | None:
    """Find a tensor in the base, whose prefix may differ ('bert.')."""
    if super().__contains__(name):
      return name
    ends = [own for own in super().__iter__() if name.endswith(f'.{own}') or own.endswith(f'.{name}')]
    return max(ends, key=len, default=None) if '.' in name else None

  def _prefix(self, factors: Mapping[str, Any], whole: Mapping[str, str]) -> str:
    """Return the prefix that only names of the adapter have."""
    for name in (*(f'{module}.weight' for module in factors), *whole):
      own = self._base_name(name)
      if own is not None:
        return name.removesuffix(own) if name.endswith(own) else ''
    return ''

  def _scale(self, module: str, a: str) -> float:
    rank = self._tensors.tensors[a].shape[0]
    patterns = self._about.get('alpha_pattern') or {}
    try:
      alpha = next((float(patterns[key]) for key in patterns if re.match(rf'(.*\.)?({key})$', module)), None)
    except (re.error, TypeError, ValueError) as error:
      raise WeightsError(f'{self._adapter / model_folders.PEFT}: alpha_pattern: {error}: fetch it again') from error
    default = self._about.get('lora_alpha')
    alpha = alpha if alpha is not None else 8.0 if default is None else float(default)
    return alpha / (math.sqrt(rank) if self._about.get('use_rslora') else rank)

  def _with_task(self, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json of the class that the adapter was trained in."""
    ends = [end for end, task in TASKS.items() if task == self._about.get('task_type')]
    classes = config.get('architectures')
    if ends and not any(str(name).endswith(tuple(ends)) for name in (classes if isinstance(classes, list) else ())):
      config = {**config, 'architectures': [f'Model{ends[0]}']}
    classes_here = [self.shape(name)[0] for name in self._whole if re.search(_OUTPUTS, name)]
    if classes_here and len(config.get('id2label') or ()) not in (0, classes_here[-1]):  # names of another head
      config = {key: value for key, value in config.items() if key != 'id2label'}
    tables = [name for name in self._whole if super(Adapted, self).__contains__(name)]
    grown = {super(Adapted, self).shape(name)[:1]: self.shape(name)[0] for name in tables if self.shape(name)}
    rows: Any = config.get('vocab_size')
    rows = grown.get((rows,), rows)
    return {**config, 'vocab_size': rows} if 'vocab_size' in config else dict(config)

  def __contains__(self, name: object) -> bool:
    return name in self._whole or super().__contains__(name)

  def __iter__(self) -> Iterator[str]:
    return iter(dict.fromkeys([*super().__iter__(), *self._whole]))

  def shape(self, name: str) -> tuple[int, ...]:
    return self._tensors.tensors[self._whole[name]].shape if name in self._whole else super().shape(name)

  def where(self, name: str) -> str:
    update = f' with its update in {self._tensors.file}' if name in self._updates else ''
    return (
      f'{self._tensors.file}, tensor {self._whole[name]!r}' if name in self._whole else super().where(name) + update
    )

  def read(self, name: str) -> np.ndarray:
    """Read one tensor with its update."""
    tensor = self._tensors.read(self._whole[name]) if name in self._whole else super().read(name)
    if (update := self._updates.get(name)) is None:
      return tensor
    b = np.asarray(self._tensors.read(update.b), np.float32)
    if update.a:  # [outputs, r] [r, inputs]
      b = b @ np.asarray(self._tensors.read(update.a), np.float32)
      swapped = self.config.get('model_type') in ('gpt2', 'openai-gpt') and _CONV1D.fullmatch(name)
      b = b.T if update.embedding or swapped else b
    if b.shape != tensor.shape:
      raise self._error(f'the update of {name!r} has shape {b.shape}, the base {tensor.shape}')
    return np.asarray(tensor, np.float32) + np.float32(update.scale) * b


def _check(folder: Path, about: Mapping[str, Any]) -> None:
  if wrong := [name for name, kind in _FIELDS.items() if not isinstance(about.get(name), kind | None)]:
    raise WeightsError(
      f'{folder / model_folders.PEFT}: {wrong[0]} is {about[wrong[0]]!r}, which PEFT does not write: fetch it again'
    )
  kind = about.get('peft_type')
  if kind in _PROMPTS:
    raise WeightsError(
      f'{folder}: PEFT method {kind} adds vectors to every layer or text, which is not supported. Train adapter '
      f"'prefix' over the base model, or open that alone: {about.get('base_model_name_or_path')}"
    )
  init = str(about.get('init_lora_weights')).lower()
  odd = [name for name in _OTHERS if about.get(name)] + [init for start in _INITS if init.startswith(start)]
  if kind != 'LORA' or odd:
    what = f'PEFT method {kind}' if kind != 'LORA' else f'LoRA with {odd[0]}'
    raise WeightsError(f'{folder}: {what} is not supported: {_merge(about, folder)}')
  if not files.is_file(folder / TENSORS):
    if not files.is_file(folder / 'adapter_model.bin'):
      raise WeightsError(f'{folder}: {TENSORS} is missing: fetch it')
    raise WeightsError(
      f'{folder} has only adapter_model.bin, a pickle that can execute code. If you trust it, in Python: '
      f"`{_loaded(about, folder)}.save_pretrained('{folder}')` adds {TENSORS}"
    )


def _merge(about: Mapping[str, Any], folder: Path) -> str:
  loaded = _loaded(about, folder)
  return f"merge it: `{loaded}.merge_and_unload().save_pretrained('NEW')`, and copy the tokenizer to NEW"


def _loaded(about: Mapping[str, Any], folder: Path) -> str:
  """Return the call of PEFT that loads an adapter with its base."""
  other = '' if about.get('auto_mapping') else 'ForFeatureExtraction'
  end = next((end for end, task in TASKS.items() if task == about.get('task_type')), other)
  end = 'ForSeq2SeqLM' if end == 'ForConditionalGeneration' else end
  tensors = tensor_files.Container(folder / TENSORS).tensors if files.is_file(folder / TENSORS) else {}
  outputs = [tensor.shape[0] for name, tensor in tensors.items() if re.search(_OUTPUTS, name)]
  labels = f', num_labels={outputs[0]}' if outputs else ''
  return f"peft.AutoPeftModel{end}.from_pretrained('{folder}'{labels})"
