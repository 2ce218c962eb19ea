"""Sources of `init_from`: pretrained parameters, their vocabularies, and the classes of their heads."""

import dataclasses
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import flax.linen as nn
import numpy as np

from plm_jax import weights
from plm_jax.checkpoint import init_from, saved_steps
from plm_jax.checkpoint.init_from import Entry
from plm_jax.checkpoint.params import VECTOR_FILES, Params, in_memory
from plm_jax.checkpoint.saved_steps import Step
from plm_jax.config import build
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import PyTree, Source, Vocab
from plm_jax.io import files
from plm_jax.io.run_paths import RunFolder
from plm_jax.runs import history, run_folder
from plm_jax.text import matching, tokenizer
from plm_jax.training.parts import Parts
from plm_jax.weights import task_heads, word_vectors

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]


def check_sources(init_from: Iterable[Mapping[str, Any]]) -> None:
  """Raise ConfigError if a source of `init_from` does not exist."""
  for entry in init_from:
    if not files.exists(files.path(entry['source'])):
      raise ConfigError(
        f'init_from: there is no {entry["source"]}: name a run folder, one with saved parameters, or a file of word '
        f'vectors, {VECTOR_FILES}'
      )


def unfinished(init_from: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
  """Find runs of `init_from` that ended before their last step.

  An entry that names the number of a step is intended. Returns source -> [step that is read, steps of the run].
  """
  found = {}
  for entry in init_from:
    folder, step = RunFolder.at(entry['source']), Entry.read(entry).step
    settings = {} if isinstance(step, int) or not files.is_folder(folder.checkpoints) else run_folder.begun(folder)
    if settings and not run_folder.read_result(folder).get('finished'):
      found[entry['source']] = [saved_steps.choose(folder.checkpoints, step), history.total(settings)]
  return found


def init_params_from(
  settings: Settings, parts: Parts, params: PyTree, *, names: Sequence[str] = ()
) -> tuple[PyTree, init_from.Report]:
  """Replace the parameters that `init_from` names, and report which ones.

  `names` are those of the classes that are trained on. Raises CheckpointError, ValueError: see
  `checkpoint.init_from.initialise`.
  """
  entries = []
  for entry in settings['init_from']:
    of_head = not f'{entry["to"]}/'.startswith('trunk/')
    if entry.get('fitting') and of_head and (reason := _unlike(entry['source'], settings, parts, names)):
      log.info(f'init_from: {entry["to"]} of {entry["source"]} is left out, and new here: {reason}')
    else:
      entries.append(entry)
  return init_from.initialise(
    params,
    entries,
    open_params=partial(_open_source, vocab=parts.vocab),
    position_rows=parts.trunk.position_rows,
    sums=weights.SUMS,
    same_tokens=partial(_same_tokens, vocab=parts.vocab),
    vocab_size=_vocab_size,
    width_key=partial(_width_key, trunk=parts.trunk),
  )


def _width_key(source: str, path: str, *, trunk: nn.Module) -> str | None:
  """Return the key of word vectors' width; None for other sources."""
  if not word_vectors.is_vectors(source):
    return None
  if path.startswith('trunk/vectors/'):  # of adapter `scalar_mix`
    return 'adapter.vectors'
  names = [field.name for field in dataclasses.fields(trunk.config)]
  return f'model.overrides.{next((name for name in ("embed_dim", "word_dim") if name in names), "hidden_dim")}'


def _vocab_size(source: str) -> int | None:
  """Return a source's vocabulary size; None unless it has exactly one."""
  if word_vectors.is_vectors(source):
    return None
  opened = weights.open(source)
  if not tokenizer.exists(opened.vocab) or tokenizer.exists(RunFolder(opened.folder).second_vocab):
    return None
  return tokenizer.load(opened.vocab).size


def has_new_tokens(entry: Entry, vocab: Vocab, *, rows: int) -> bool:
  """Check for tokens that a source with `rows` of tokens lacks."""
  if 'same_tokens' in entry.resizes:
    return bool((_same_tokens(entry.source, vocab=vocab).rows < 0).any())
  return min(rows, _vocab_size(entry.source) or rows) < vocab.size


def _same_tokens(source: str, *, vocab: Vocab) -> init_from.SameTokens:
  """Map each token of a vocabulary to its row in a source.

  The log reports how many are shared. Raises ConfigError if the source has no vocabulary.
  """
  folder = weights.open(source).vocab
  if not tokenizer.exists(folder):
    raise ConfigError(f"resize='same_tokens': {source} has no vocabulary, so its rows have no words.")
  old = tokenizer.load(folder)
  rows = matching.rows_of(vocab, old)
  new = [vocab.token(number) for number, row in enumerate(rows) if row < 0]
  few = f': {", ".join(new[:10])}{" ..." if len(new) > 10 else ""}' if new else ''
  log.info(
    f'{source}: {len(rows) - len(new):,} of {len(rows):,} tokens are among its {old.size:,}; {len(new):,} are new and '
    f'start from the mean{few}'
  )
  return init_from.SameTokens(rows, old.size)


def _open_source(source: str, *, step: Step, vocab: Vocab) -> Params:
  if word_vectors.is_vectors(source):
    return in_memory({'table': word_vectors.for_vocab(files.path(source), vocab).vectors}, where=source)
  return weights.open(source, step=step).params.with_sums(weights.SUMS)


def source_digest(entry: Mapping[str, Any], vocab: Vocab) -> str:
  """Return the hex SHA-256 of what an `init_from` entry reads.

  It covers the parameters, the vocabulary and the classes that decide where they go. Raises CheckpointError,
  ValueError: as `init_params_from`.
  """
  source, digest = entry['source'], hashlib.sha256()
  for path, array in _open_source(source, step=Entry.read(entry).step, vocab=vocab).each():
    digest.update(f'{path} {array.dtype} {array.shape}'.encode())
    digest.update(np.ascontiguousarray(array).tobytes())
  if not word_vectors.is_vectors(source):
    opened = weights.open(source)
    digest.update((tokenizer.load(opened.vocab).digest if tokenizer.exists(opened.vocab) else '').encode())
    digest.update(repr(tuple(opened.labels) if entry.get('fitting') else ()).encode())
  return digest.hexdigest()


def _unlike(source: str, settings: Settings, parts: Parts, names: Sequence[str]) -> str:
  """Return why a head does not fit this task, or ''."""
  opened, adapter = weights.open(source), build.unwrapped(settings)['adapter']
  theirs, ours = (task_heads.named(labels) for labels in (opened.labels, parts.task.class_names or names))
  if theirs != ours:
    known, own = (', '.join(labels) or 'without names' for labels in (opened.labels, parts.task.class_names or names))
    return f'its classes are {known}, and those of the data {own}'
  return task_heads.unlike(opened.adapter, adapter)


def check_classes(source: str, labels: Sequence[str], sources: Mapping[str, Source]) -> None:
  """Raise ValueError if evaluations and the head of `source` order classes differently."""
  theirs = task_heads.named(labels)
  for name, rows in sources.items():
    if not theirs or not rows.names or theirs == task_heads.named(rows.names):
      continue
    said = f'eval.{name}.data: its classes are {", ".join(rows.names)}, and those of {source} {", ".join(labels)}'
    if set(theirs) & set(task_heads.named(rows.names)) or len(theirs) != len(rows.names):
      raise ValueError(f"{said}: number the data the same way, in a copy with a labels.json in the model's order")
    log.warning(f'{said}, which are taken for the same in this order')


def check_vocab_of(entry: Mapping[str, Any], vocab: Vocab, second_vocab: Vocab | None = None) -> None:
  """Log vocabulary ids of a run that a source does not have.

  Word vectors know words, and an entry with resize='same_tokens' matches tokens by their text. Raises ValueError: the
  other ids do not mean the same.
  """
  source = entry['source']
  if word_vectors.is_vectors(source) or 'same_tokens' in Entry.read(entry).resizes:
    return
  opened = weights.open(source)
  kept = {'': (vocab, opened.vocab), ' of the second vocabulary': (second_vocab, RunFolder(opened.folder).second_vocab)}
  for which, (own, folder) in kept.items():
    if own is None or not tokenizer.exists(folder):
      continue
    added = tokenizer.check_compatible(own, tokenizer.load(folder))
    if added:
      few = f'{", ".join(added[:10])}{" ..." if len(added) > 10 else ""}'
      log.info(f'{len(added)} tokens{which} are new since {source}: {few}')
