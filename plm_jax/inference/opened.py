"""A folder whose model is asked something: its network with parameters, its vocabulary, and what it was trained for."""

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
from plm_jax.config import build, one_part
from plm_jax.core import errors, types
from plm_jax.core.errors import ConfigError
from plm_jax.core.trunk import longest_row
from plm_jax.core.types import Execution, PyTree
from plm_jax.generate import conventions
from plm_jax.io import checksums, files
from plm_jax.io.run_paths import RunFolder
from plm_jax.text import probe, tokenizer
from plm_jax.text.tokenizer import Vocab
from plm_jax.training.parts import Settings, make_template, reads_second
from plm_jax.weights import Part, Weights


class Read(NamedTuple):
  """A text as a network reads it, special tokens included.

  Attributes:
    ids: its tokens.
    types: of its tokens, as the tokenizer gives them.
    before: how many special tokens stand before the text.
    after: how many stand behind it.
    unknown: place in `ids` -> the word there, for unknown tokens.
  """

  ids: list[int]
  types: list[int]
  before: int
  after: int
  unknown: Mapping[int, str] = MappingProxyType({})


@dataclasses.dataclass(frozen=True)
class Opened:
  """An open folder. Parameters are read when they are first asked for.

  Attributes:
    folder: a run, an import, or one in Hugging Face's form.
    step: of a run, see `weights.open`.
    settings: the config of a run, of one task of several where one is opened; empty for others.
    vocab: of the model.
    tokenizer: the folder of the vocabulary.
    execution: how the network computes.
    part: which task of a run that learned several.
  """

  folder: Path
  step: Step
  settings: Settings
  vocab: Vocab
  tokenizer: Path
  execution: Execution
  part: str | None

  @functools.cached_property
  def weights(self) -> Weights:
    """The folder as `weights.open` gives it."""
    return weights.open(self.folder, step=self.step, part=self.part)

  @functools.cached_property
  def resolved(self) -> Settings:
    """The config of a run with every default; raises a ConfigError where it cannot be read by this version."""
    return self.settings if self.part else config.resolve(self.settings)

  @functools.cached_property
  def task(self) -> Settings:
    """The block of the objective or the adapter inside any wrapper of a run; empty for others."""
    inner = build.unwrapped(self.settings)
    return inner.get('objective') or inner.get('adapter') or {}

  @property
  def adapted(self) -> bool:
    """Whether a run was trained with an adapter, other than one around an objective."""
    return bool(self.settings) and not build.unwrapped(self.settings).get('objective')

  @functools.cached_property
  def trunk(self) -> nn.Module:
    """The network without its parameters, which are not read for it.

    Raises:
      ConfigError: the folder does not say what it is.
    """
    self._check_rows(self.weights)
    try:
      return self.weights.trunk(self.execution)
    except CheckpointError as error:
      raise ConfigError(f'{self.folder}: {error}') from error

  @functools.cached_property
  def loaded(self) -> tuple[nn.Module, PyTree]:
    """The trunk, and all parameters on the device: {'trunk': ..., <head>: ...}; what a wrapper added is in them.

    Raises:
      ConfigError: they are missing or damaged.
    """
    return self._load(self.part or 'trunk')

  @functools.cached_property
  def filler(self) -> tuple[nn.Module, PyTree]:
    """What fills blanks: as `loaded`, of the generator where one was trained with it (replaced token detection)."""
    return self._load('generator') if self.task.get('generator') else self.loaded

  def _load(self, part: Part) -> tuple[nn.Module, PyTree]:
    found = weights.open(self.folder, step=self.step, part=part)
    self._check_rows(found)
    try:
      return found.trunk(self.execution), weights.placed(found.to_run)
    except CheckpointError as error:
      raise ConfigError(f'{self.folder}: {error}') from error

  def _check_rows(self, found: Weights) -> None:
    """Raises ConfigError where the tokenizer of a release has ids that its model has no rows for."""
    rows = found.model.vocab_size if self.published else self.vocab.size
    if self.vocab.size > rows:
      raise ConfigError(
        f'{self.tokenizer}: the tokenizer has {self.vocab.size} ids, and the token table of the model {rows} rows: it '
        'belongs to another model, or tokens were added to it. Fetch the tokenizer of this model'
      )

  @property
  def params(self) -> PyTree:
    """The parameters of the trunk."""
    return self.network[1]

  @property
  def network(self) -> tuple[nn.Module, PyTree]:
    """The trunk and its parameters."""
    trunk, params = self.loaded
    return trunk, params['trunk']

  @property
  def kind(self) -> str:
    """The attention of the trunk."""
    return self.trunk.ATTENTION

  @property
  def limit(self) -> int | None:
    """Most tokens of a row: the learned positions of the network; None where it has none."""
    return longest_row(self.trunk)

  @functools.cached_property
  def generation(self) -> dict[str, Any]:
    """The settings of generation that the folder has, see `conventions.read`."""
    with errors.stage('generate'):
      rows, fields = self.weights.model.vocab_size, {**self.weights.token_ids, **self.weights.generation}
      return conventions.read(self.tokenizer, fields, kind=self.kind, rows=rows)

  @functools.cached_property
  def special(self) -> conventions.Tokens:
    """Special tokens by role, as the folder has them."""
    return self.special_with()

  def special_with(
    self, *, start: str | None = None, first: str | None = None, last: str | None = None
  ) -> conventions.Tokens:
    """Special tokens by role; a token that is named comes before that of the folder.

    Raises:
      ConfigError: there is no such token.
    """
    named = {'start': start, 'first': first, 'last': last}
    with errors.stage('generate'):
      return conventions.tokens(self.vocab, self.generation, named, self.task, kind=self.kind)

  @functools.cached_property
  def marked(self) -> tokenizers.Tokenizer:
    """The tokenizer with the special tokens that it writes around a text."""
    with errors.stage('vocab'):
      return tokenizer.marked(self.tokenizer, template=self._template)

  @functools.cached_property
  def _template(self) -> types.Template | None:
    """What stands around a text of one task of several, whose rows need not be those that the tokenizer writes."""
    return make_template(self.settings, self.vocab) if self.part else None

  @property
  def prompts(self) -> tuple[Vocab, Path]:
    """The vocabulary of texts that are to be continued, and its folder."""
    return self.vocab, self.tokenizer

  @functools.cached_property
  def encoder(self) -> conventions.Encoder:
    """Ids of texts that are to be continued."""
    with errors.stage('vocab'):
      own = self._template if self.prompts[0] is self.vocab else None
      return conventions.Encoder(*self.prompts, self.special, kind=self.kind, published=self.published, template=own)

  @property
  def published(self) -> bool:
    """Whether the tokenizer is one of another library."""
    return not self.settings

  def read(self, texts: Sequence[str]) -> list[Read]:
    """Texts as their network reads them: as the tokenizer of the folder writes them, special tokens included.

    Raises:
      ConfigError: a run that reads texts in another vocabulary than it writes.
    """
    if reads_second(self.settings):
      raise ConfigError(f'{self.folder} reads texts in a vocabulary of their own (second_vocab): name another folder')
    bare = self.marked.post_processor is None
    found = []
    with probe.using():
      reads = self.marked.encode_batch(list(texts))
    for text, read in zip(texts, reads, strict=True):
      unknown = self._unknown(text, read)
      if bare:  # of an older run
        ids = with_ends(read.ids, self.vocab)
        around = (len(ids) - len(read.ids)) // 2
        unknown = {place + around: word for place, word in unknown.items()}
        found.append(Read(ids, [0] * len(ids), around, around, unknown))
        continue
      inside = [place for place, special in enumerate(read.special_tokens_mask) if not special]
      before, after = (inside[0], len(read.ids) - inside[-1] - 1) if inside else (len(read.ids), 0)
      found.append(Read(read.ids, read.type_ids, before, after, unknown))
    return found

  def _unknown(self, text: str, read: tokenizers.Encoding) -> dict[int, str]:
    """The unknown words of a text by their places."""
    spans = {place: read.offsets[place] for place, one in enumerate(read.ids) if one == self.vocab.unk_id}
    words = {place: self.vocab.normalise(text[slice(*span)]) for place, span in spans.items()}
    return {place: word for place, word in words.items() if word}


def with_ends(ids: list[int], vocab: types.Vocab) -> list[int]:
  """The ids of a text as its model read them in training: between [CLS] and [SEP] where the vocabulary has both."""
  return ids if vocab.cls_id is None or vocab.sep_id is None else [vocab.cls_id, *ids, vocab.sep_id]


def open(
  folder: str | os.PathLike[str],
  *,
  step: Step = None,
  part: str | None = None,
  settings: Settings | None = None,
  execution: Execution = Execution(),
) -> Opened:
  """Opens a folder: a run, an import, or one in Hugging Face's form with its tokenizer.

  Args:
    folder: which one.
    step: of a run, see `weights.open`.
    part: one task of a run that learned several, which is opened as a run of that task alone.
    settings: the config of the run, where it is known; None reads it.
    execution: how the network computes.

  Raises:
    ConfigError: there is no such folder, no model or no vocabulary in it, or no such step or task.
  """
  path = files.path(folder)
  if not files.is_folder(path):
    raise ConfigError(f"{folder}: there is no such folder; name a run, an import, or one in Hugging Face's form")
  if settings is None:
    about = _read_json(RunFolder(path).config)
    is_run = isinstance(about, dict) and 'model' in about
    if not about and not files.is_file(path / files.IMPORT):
      weights.open(path)  # says what a folder of PEFT lacks
      raise ConfigError(
        f'{folder} has no model: it is no run (config.json, vocab and checkpoints), no import of `'
        f"plm-jax convert import` ({files.IMPORT} and parameters), and no folder in Hugging Face's form (config.json "
        'with a model_type, safetensors and a tokenizer)'
      )
    settings = config.load(str(RunFolder(path).config)) if is_run else {}
  if part is not None:
    settings = one_part.settings_of(
      config.resolve(settings) if settings else {}, part, where=f'{folder}, part={part!r}'
    )
  if step is not None and not settings:
    raise ConfigError(f'{folder}: step={step}: only a run has steps, and this is a model alone: leave it out')
  if step is not None and files.is_folder(RunFolder(path).checkpoints):
    try:
      checkpoint.check_there(RunFolder(path).checkpoints, step)
    except CheckpointError as error:
      raise ConfigError(f'{folder}: {error}') from error
  own = RunFolder(path).vocab
  own = own if files.is_folder(own) else path
  with errors.stage('vocab'):
    vocab = tokenizer.load(own)
  return Opened(path, step, settings, vocab, own, execution, part)


def _read_json(file: Path) -> Any:
  """The content of a `config.json`; a RunError where that of a run was changed, a ConfigError where it is no JSON."""
  try:
    return checksums.read_json(file, default={})
  except ValueError as error:
    raise ConfigError(f'{file}: not JSON: {error}.') from error
