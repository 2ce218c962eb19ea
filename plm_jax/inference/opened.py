"""An open folder: a network with its parameters, its vocabulary, and the task it was trained for."""

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import tokenizers

from plm_jax import checkpoint, config, weights
from plm_jax.checkpoint import CheckpointError, Step
from plm_jax.config import build, one_part, signatures
from plm_jax.core import errors, types
from plm_jax.core.errors import ConfigError
from plm_jax.core.trunk import longest_row
from plm_jax.core.types import Execution, PyTree
from plm_jax.generate import conventions
from plm_jax.io import checksums, files, other_forms
from plm_jax.io.run_paths import RunFolder
from plm_jax.text import probe, tokenizer
from plm_jax.text.tokenizer import Vocab
from plm_jax.training.parts import Settings, make_template, reads_second
from plm_jax.weights import Part, Weights, sentences


class Read(NamedTuple):
  """A tokenised text, special tokens included."""

  ids: list[int]  # of its tokens
  types: list[int]  # token type of each token, as the tokenizer gives it
  before: int  # number of special tokens before the text
  after: int  # number of special tokens after the text
  unknown: Mapping[int, str] = MappingProxyType({})  # position in `ids` -> the word there, for unknown tokens


@dataclasses.dataclass(frozen=True)
class Opened:
  """An open folder. Parameters are read on first use."""

  folder: Path  # a run, a converted checkpoint, or a model in Hugging Face's format
  step: Step  # checkpoint of a run, see `weights.open`
  settings: Settings  # the config of a run, or of one of its tasks; empty for other folders
  vocab: Vocab  # of the model
  tokenizer: Path  # the folder of the vocabulary
  execution: Execution  # dtype and kernels of the computation
  part: str | None  # task of a multi-task run
  layout: str | None  # layout of examples of a folder that is no run; None takes that of its tokenizer

  @functools.cached_property
  def weights(self) -> Weights:
    return weights.open(self.folder, step=self.step, part=self.part)

  @functools.cached_property
  def recipe(self) -> sentences.Recipe | None:
    """Return how the folder makes sentence vectors, if it specifies it."""
    if self.settings:
      recipe = sentences.of_objective(self.trunk, self.weights.params, self.task)
      return None if recipe is None or recipe.modes == ('mean',) else recipe
    return sentences.read(self.folder, width=self.trunk.hidden_dim)

  @property
  def similarity(self) -> str:
    """Return how sentence vectors are compared."""
    return self.task.get('similarity_of') or sentences.similarity(self.folder)

  @functools.cached_property
  def resolved(self) -> Settings:
    """Resolve the config of a run, or raise ConfigError."""
    return self.settings if self.part else config.resolve(self.settings)

  @functools.cached_property
  def task(self) -> Settings:
    """Return the inner block of the objective or adapter, or {}."""
    inner = build.unwrapped(self.settings)
    return inner.get('objective') or inner.get('adapter') or {}

  @property
  def adapted(self) -> bool:
    """Return True for a run with an adapter around no objective."""
    return bool(self.settings) and not build.unwrapped(self.settings).get('objective')

  @functools.cached_property
  def trunk(self) -> nn.Module:
    """Build the trunk without reading parameters; raise ConfigError if unspecified."""
    self._check_rows(self.weights)
    try:
      return self.weights.trunk(self.execution)
    except CheckpointError as error:
      raise ConfigError(f'{self.folder}: {error}') from error

  @functools.cached_property
  def loaded(self) -> tuple[nn.Module, PyTree]:
    """Load {'trunk': ..., <head>: ...} on the device, or raise ConfigError."""
    return self._load(self.part or 'trunk')

  @functools.cached_property
  def filler(self) -> tuple[nn.Module, PyTree]:
    """Load the network that fills blanks: the run's generator, else `loaded`."""
    return self._load('generator') if self.task.get('generator') else self.loaded

  def _load(self, part: Part) -> tuple[nn.Module, PyTree]:
    source = weights.open(self.folder, step=self.step, part=part)
    self._check_rows(source)
    try:
      return source.trunk(self.execution), weights.placed(source.to_run)
    except CheckpointError as error:
      raise ConfigError(f'{self.folder}: {error}') from error

  def _check_rows(self, source: Weights) -> None:
    """Raise ConfigError if the tokenizer has more ids than the token table."""
    rows = source.model.vocab_size if self.published else self.vocab.size
    if self.vocab.size > rows:
      raise ConfigError(
        f'{self.tokenizer}: the tokenizer has {self.vocab.size} ids, but the token table of the model has {rows} rows. '
        'Download the tokenizer of this model'
      )

  @property
  def params(self) -> PyTree:
    return self.network[1]

  @property
  def network(self) -> tuple[nn.Module, PyTree]:
    trunk, params = self.loaded
    return trunk, params['trunk']

  @property
  def kind(self) -> str:
    return self.trunk.ATTENTION

  @property
  def limit(self) -> int | None:
    """Return the number of learned positions, the longest sequence; None without them."""
    return longest_row(self.trunk)

  @functools.cached_property
  def generation(self) -> dict[str, Any]:
    """Read the generation settings of the folder, see `conventions.read`."""
    with errors.stage('generate'):
      rows, fields = self.weights.model.vocab_size, {**self.weights.token_ids, **self.weights.generation}
      return conventions.read(self.tokenizer, fields, kind=self.kind, rows=rows)

  @functools.cached_property
  def special(self) -> conventions.Tokens:
    return self.special_with()

  def special_with(
    self, *, start: str | None = None, first: str | None = None, last: str | None = None
  ) -> conventions.Tokens:
    """Return special tokens by role, overridden by name; ConfigError for unknown names."""
    named = {'start': start, 'first': first, 'last': last}
    with errors.stage('generate'):
      return conventions.tokens(self.vocab, self.generation, named, self.task, kind=self.kind)

  @functools.cached_property
  def marked(self) -> tokenizers.Tokenizer:
    """Load the tokenizer with the special tokens it adds."""
    with errors.stage('vocab'):
      return tokenizer.marked(self.tokenizer, template=self._template)

  @functools.cached_property
  def _template(self) -> types.Template | None:
    """Build the special tokens around a text of one of several tasks."""
    return make_template(self.settings, self.vocab) if self.part else None

  @property
  def prompts(self) -> tuple[Vocab, Path]:
    return self.vocab, self.tokenizer

  @functools.cached_property
  def encoder(self) -> conventions.Encoder:
    """Return the function from a prompt to its ids."""
    with errors.stage('vocab'):
      template = self._template if self.prompts[0] is self.vocab else None
      return conventions.Encoder(
        *self.prompts, self.special, kind=self.kind, published=self.published, template=template
      )

  @property
  def published(self) -> bool:
    """Return True if the tokenizer was written by another library."""
    return not self.settings

  def read(self, texts: Sequence[str]) -> list[Read]:
    """Tokenise texts; raise ConfigError for a network of two vocabularies."""
    if reads_second(self.settings):
      raise ConfigError(f'{self.folder} reads texts in a separate vocabulary (second_vocab): name another folder')
    bare = self.marked.post_processor is None
    results = []
    with probe.using():
      encodings = self.marked.encode_batch(list(texts))
    for text, encoding in zip(texts, encodings, strict=True):
      unknown = self._unknown(text, encoding)
      if bare:  # run of an older version: its tokenizer adds no special tokens
        ids = with_ends(encoding.ids, self.vocab)
        around = (len(ids) - len(encoding.ids)) // 2
        unknown = {position + around: word for position, word in unknown.items()}
        results.append(Read(ids, [0] * len(ids), around, around, unknown))
        continue
      inside = [position for position, special in enumerate(encoding.special_tokens_mask) if not special]
      before, after = (inside[0], len(encoding.ids) - inside[-1] - 1) if inside else (len(encoding.ids), 0)
      results.append(Read(encoding.ids, encoding.type_ids, before, after, unknown))
    return results

  def _unknown(self, text: str, encoding: tokenizers.Encoding) -> dict[int, str]:
    """Find the unknown words of a text by position."""
    spans = {
      position: encoding.offsets[position] for position, token in enumerate(encoding.ids) if token == self.vocab.unk_id
    }
    words = {position: self.vocab.normalise(text[slice(*span)]) for position, span in spans.items()}
    return {position: word for position, word in words.items() if word}


def with_ends(ids: list[int], vocab: types.Vocab) -> list[int]:
  """Add [CLS] and [SEP] around ids if the vocabulary has both."""
  return ids if vocab.cls_id is None or vocab.sep_id is None else [vocab.cls_id, *ids, vocab.sep_id]


def open(
  folder: str | os.PathLike[str],
  *,
  step: Step = None,
  part: str | None = None,
  settings: Settings | None = None,
  execution: Execution = Execution(),
  layout: str | None = None,
) -> Opened:
  """Open a folder with a model.

  Args:
    part: task of a multi-task run, opened as a run of that task alone.
    settings: the config of the run, if already read; None reads it.
    layout: layout of examples, if the folder is no run.

  Raises:
    ConfigError: the folder, its model or its vocabulary is missing, or the run has no such step or task.
  """
  if problem := other_forms.explain(folder):
    raise ConfigError(problem)
  path = files.path(folder)
  if settings is None:
    try:
      content = checksums.read_json(RunFolder(path).config, default={})
    except ValueError as error:
      raise ConfigError(f'{RunFolder(path).config}: not JSON: {error}.') from error
    is_run = isinstance(content, dict) and 'model' in content
    settings = config.load(str(RunFolder(path).config)) if is_run else {}
  if part is not None:
    settings = one_part.settings_of(
      config.resolve(settings) if settings else {}, part, where=f'{folder}, part={part!r}'
    )
  if layout is not None:
    if settings:
      raise ConfigError(f'{folder}: layout={layout}: a run keeps the layout that it was trained with; remove layout')
    errors.check_choice('layout', 'layout', layout, signatures.names('data.rows.layouts'))
  if step is not None and not settings:
    raise ConfigError(f'{folder}: step={step}: only a run has steps, and this is a single model; remove step')
  if step is not None and files.is_folder(RunFolder(path).checkpoints):
    try:
      checkpoint.check_there(RunFolder(path).checkpoints, step)
    except CheckpointError as error:
      raise ConfigError(f'{folder}: {error}') from error
  vocab_folder = weights.open(path).vocab
  if not settings and not tokenizer.exists(vocab_folder):
    raise ConfigError(f'{folder} has no tokenizer: fetch its files as well (tokenizer.json, vocab.txt or spiece.model)')
  with errors.stage('vocab'):
    vocab = tokenizer.load(vocab_folder)
  return Opened(path, step, settings, vocab, vocab_folder, execution, part, layout)
