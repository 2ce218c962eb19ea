"""Parameters of a folder in Hugging Face's form, through the same interface as those of a run."""

import functools
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plm_jax.checkpoint import Params
from plm_jax.io import files, model_folders
from plm_jax.text import published
from plm_jax.weights import task_heads
from plm_jax.weights.adapted import Adapted
from plm_jax.weights.reader import Reader
from plm_jax.weights.release import TOKEN_IDS, Release
from plm_jax.weights.run_weights import Model, Weights

# fields of config.json that configure generation, if there is no generation_config.json
GENERATION = (
  'do_sample', 'num_beams', 'early_stopping', 'length_penalty', 'temperature', 'top_k', 'top_p', 'no_repeat_ngram_size',
  'max_new_tokens', 'min_new_tokens', 'num_return_sequences', 'repetition_penalty', 'encoder_repetition_penalty',
  'typical_p', 'guidance_scale', 'num_beam_groups', 'max_length', 'min_length', 'max_time', 'stop_strings', 'min_p',
  'top_h', 'epsilon_cutoff', 'eta_cutoff', 'bad_words_ids', 'renormalize_logits', 'remove_invalid_values',
  'exponential_decay_length_penalty', 'suppress_tokens', 'begin_suppress_tokens', 'sequence_bias', 'token_healing',
  'watermarking_config', 'encoder_no_repeat_ngram_size', 'penalty_alpha', 'dola_layers', 'diversity_penalty',
  'constraints', 'force_words_ids', 'forced_decoder_ids',
)  # fmt: skip


class Published(Weights):
  """An open folder in Hugging Face's form.

  Attributes:
    adapted: whether the folder is a PEFT adapter of a model.
    reader: the correspondence of its tensors to our parameters; building it checks all names and shapes.
  """

  def __init__(self, folder: Path, *, architecture: str | None):
    super().__init__(folder, step=None, part=None)
    self.adapted = files.is_file(folder / model_folders.PEFT)
    self.vocab = next((place for place in model_folders.tokenizer_places(folder) if published.find(place)), folder)
    self._architecture = architecture

  @functools.cached_property
  def reader(self) -> Reader:
    return Reader(Adapted(self.folder) if self.adapted else Release(self.folder), architecture=self._architecture)

  @functools.cached_property
  def model(self) -> Model:
    return Model(self.reader.model, self.reader.vocab_size)

  @functools.cached_property
  def params(self) -> Params:
    """Open `Weights.params`: `Params.arrays` in float32, single leaves in the files' dtype."""
    leaves = self.reader.leaves()

    def read(names: Collection[str]) -> dict[str, np.ndarray]:
      return {name: np.asarray(leaves[name].read(None), np.float32, order='C') for name in names}

    return Params(leaves, where=str(self.folder), read=read)

  @property
  def to_run(self) -> Params:
    """Return `params`: there are no parameters of wrappers."""
    return self.params

  @functools.cached_property
  def token_ids(self) -> dict[str, int | None]:
    """Read the token ids from config.json, with the defaults of its class."""
    fields = self.reader.architecture.module.FIELDS
    defaults = {name: fields[name].default for name in TOKEN_IDS if name in fields}
    defaults = {name: value for name, value in defaults.items() if isinstance(value, int)}
    config = self.reader.source.config
    ids = defaults | {name: value for name, value in config.items() if name in TOKEN_IDS}
    if config.get('force_bos_token_to_be_generated'):  # older BART files, as transformers reads them
      ids['forced_bos_token_id'] = ids.get('bos_token_id')
    return ids

  @property
  def generation(self) -> dict[str, Any]:
    """Read the generation fields of config.json."""
    config = self.reader.source.config
    return {name: config[name] for name in GENERATION if config.get(name) is not None}

  @functools.cached_property
  def labels(self) -> tuple[str, ...]:
    """Read the class names from config.json; empty if it has none."""
    task = self.reader.task_head
    named = task is not None and task.adapter in task_heads.NAMED
    return task_heads.labels_of(self.reader.source.config) if named else ()

  @functools.cached_property
  def adapter(self) -> Mapping[str, Any]:
    """Derive the adapter block from the tensors and config.json."""
    task, config = self.reader.task_head, self.reader.source.config
    return {} if task is None else task_heads.to_adapter(task, self.reader.shapes, config, self.labels)

  @property
  def heads(self) -> tuple[str, ...]:
    """Return the names of the heads, in the order of the architecture."""
    return self.reader.heads
