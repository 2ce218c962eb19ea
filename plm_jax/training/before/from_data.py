"""Settings that a config leaves to the user's data: splits, fields, classes and the layout of examples.

A config of `experiments/finetune/` has None for `data.split`, `data.label`, `data.layout` and `adapter.classes`, and ()
for `data.fields` and `adapter.tags`. Before anything else is made, `filled` inspects the data and fills them in, and
what `new_parameters.py` finds. So `config.json` is complete, and a run that resumes does not inspect the data again.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from plm_jax import config
from plm_jax.cli import signals
from plm_jax.config import build, signatures
from plm_jax.core import errors
from plm_jax.core.errors import ConfigError
from plm_jax.core.types import Labels, Vocab
from plm_jax.data.corpora import sources, splits
from plm_jax.data.rows import first_row, framing
from plm_jax.io import checksums, files, model_folders
from plm_jax.io.files import Where
from plm_jax.io.run_paths import RunFolder
from plm_jax.text import tokenizer
from plm_jax.training.before import new_parameters
from plm_jax.training.parts import make_vocab

log = logging.getLogger(__name__)

Settings = Mapping[str, Any]
# Layouts that tokenizers of releases write around a text, in the order in which they are tried.
PUBLISHED = ('bert', 'roberta', 'xlnet', 'plain', 'begin', 'text', 'glm4', 'bare')
OWN = 'tokenizer'  # what the file of the tokenizer writes, if it is none of these
NAMED = ('bert', 'roberta', 'xlnet')  # layouts of one family of models, which another does not read


def filled(settings: Settings, kept: Settings | None = None, *, model: Where | None = None) -> dict[str, Any]:
  """Fill in everything that the settings leave to the data.

  Raises ConfigError: the data do not say, or a run that begins asks for rows of another layout than that of its model.

  Args:
    kept: those that the run was begun with, where it was: it keeps what it found then.
    model: the folder of the network that reads the rows, where it is not the one that the settings begin with.
  """
  made, source = _with_splits(settings), _trunk_source(settings) if model is None else str(model)
  if _may_be_open(settings['data'], 'fields'):
    with errors.stage('data'), signals.raising():
      _fill_data(made, kept or {})
  if any(block.get('layout', '') is None for block in config.of_data(made).values()):
    _fill_layout(made, kept or {}, source)
  if not kept:
    _check_layout(made, source)
  if made['adapter'] is not None:
    made['adapter'] = _with_classes(made['adapter'], made, (kept or {}).get('adapter') or {})
  return made if model is not None else new_parameters.with_new(made, kept or {})


def _may_be_open(block: Settings, key: str) -> bool:
  """Return whether a key may be left to the data."""
  return key in (signatures.literal(f'data.{block["name"]}', 'FROM_DATA') or ())


def _with_splits(settings: Settings) -> dict[str, Any]:
  """Remove the evaluations of `left_out`, and log their names."""
  lacking = left_out(settings)
  for name, split in lacking.items():
    log.info(f'eval.{name} is left out: {settings["eval"][name]["data"]["path"]} has no split {split!r}')
  return {**settings, 'eval': {name: block for name, block in settings['eval'].items() if name not in lacking}}


def left_out(settings: Settings) -> dict[str, str]:
  """Return optional evaluations, except that of `best`, with splits the data lack."""
  judge = (settings['best'] or ('',))[0].partition('/')[0]
  found = {}
  for name, block in settings['eval'].items():
    lacking = _lacking(block['data'], block['optional'] or (), where=f'eval.{name}.data')
    if lacking and name != judge:
      found[name] = lacking[0]
  return found


def _lacking(block: Settings, optional: Sequence[str], *, where: str) -> Sequence[str]:
  """Return the optional splits of a block that local data lack."""
  path, split = block.get('path'), block.get('split')
  if path is None or split is None or not optional:
    return ()
  with errors.stage(where):
    asked = splits.parse(split, path=path)
  try:
    known = sources.splits_of(path)
  except FileNotFoundError:
    return ()  # said where the rows are read
  return [] if known is None else [part.name for part in asked if part.name in optional and part.name not in known]


def _fill_data(made: dict[str, Any], kept: Settings) -> None:
  """Fill in open splits, and the fields of labels and texts."""
  own, before = made['data'], kept.get('data') or {}
  left = [name for name in ('split', 'label') if own[name] is None]
  if not left and all(block['data'].get('split', '') is not None for block in made['eval'].values()):
    return
  training, judged_by = sources.training_and_held_out(own['path'])
  found = {'split': own['split'] or before.get('split') or training}
  records = sources.open_source(own['path'], split=found['split'], cache=own['cache'], max_bytes=own['max_bytes'])
  records = first_row.with_fields(records)
  found['label'] = own['label'] or before.get('label') or first_row.find_label(records, own['kind'])
  if not own['fields']:
    known = 'fields' in before  # also none: earlier versions left known ones of options to their kind
    found['fields'] = before['fields'] if known else list(first_row.find_fields(records, own['kind'], found['label']))
  if own['kind'] == 'words':
    found['words'] = before.get('words') or (
      'script' if first_row.holds_offsets(records, found['label']) else own['words']
    )
  made['data'] = {**own, **found}
  evaluations = {}
  for name, block in made['eval'].items():
    data = block['data']
    if data['name'] == own['name']:
      split = data['split'] or kept.get('eval', {}).get(name, {}).get('data', {}).get('split') or judged_by
      same = {key: value for key, value in found.items() if key != 'split' and not data[key]}
      data = {**data, **same, 'split': split} | ({'words': found['words']} if 'words' in found else {})
    evaluations[name] = {**block, 'data': data}
  made['eval'] = evaluations
  texts = ', '.join(made['data']['fields']) or 'those of published sets'
  log.info(f'data: split {found["split"]!r}, texts in {texts}, labels in {found["label"]!r} of {own["path"]}')
  if own['split'] is None and '[' in judged_by:
    log.info(f'data: no file to judge by: evaluations read {judged_by!r}, a tenth of the rows, drawn once for all')


def _with_classes(adapter: Settings, made: Settings, kept: Settings) -> dict[str, Any]:
  """Fill in classes, tags or relations of an adapter, even wrapped."""
  if isinstance(inner := adapter.get('inner'), Mapping):
    return {**adapter, 'inner': _with_classes(inner, made, kept.get('inner') or {})}
  for key, bare in (('classes', None), ('tags', []), ('relations', [])):
    if key in adapter and adapter[key] == bare and adapter.get('kind', 'class') == 'class':
      return {**adapter, key: kept.get(key) or _found_in_data(key, made['data'], adapter['name'])}
  return dict(adapter)


def _found_in_data(key: str, block: Settings, adapter: str) -> int | list[str]:
  with errors.stage('data'), signals.raising():
    labels = build.look(block) or Labels()
  count = max(labels.classes, len(labels.names))
  if count < 2:
    raise ConfigError(
      f'adapter.{key}: {block.get("path", block["name"])} has {count or "no"} class{"" if count == 1 else "es"} in '
      f'{block.get("label", "its rows")!r}, and adapter {adapter!r} tells two or more apart: look at data.label'
    )
  names = [*labels.names, *map(str, range(len(labels.names), count))]
  shown = ', '.join(names[:20]) + (', ...' if count > 20 else '')
  log.info(f'adapter.{key}: {count} classes in the data: {shown}')
  return count if key == 'classes' else names


def _fill_layout(made: dict[str, Any], kept: Settings, source: str | None) -> None:
  """Fill in the layout that the model was trained with."""
  found = (kept.get('data') or {}).get('layout') or _layout_of_source(made, source)
  made['data'] = {**made['data'], 'layout': made['data']['layout'] or found}
  blocks = {name: block['data'] for name, block in made['eval'].items()}
  for name, data in blocks.items():
    if data.get('layout', '') is None:
      made['eval'] = {**made['eval'], name: {**made['eval'][name], 'data': {**data, 'layout': found}}}
  log.info(f'data.layout: {found!r}')


def _layout_of_source(settings: Settings, source: str | None) -> str:
  """Return the layout of the trunk's folder, else the vocabulary's."""
  if source is not None:
    begun = checksums.read_json(RunFolder.at(source).config, default={})
    block = begun.get('data') or {}
    if block and _may_be_open(block, 'layout') and block.get('layout'):
      return block['layout']
    if 'model' not in begun:
      return layout_of_release(source, texts=_texts(settings['data']))
    if found := layout_of(source):
      return found
  vocab = make_vocab(settings)
  return 'plain' if vocab.cls_id is None or vocab.sep_id is None else 'bert'


def layout_of_release(folder: str, *, texts: int, key: str = '--config.data.layout=') -> str:
  """Return the layout that the tokenizer of a folder writes.

  Raises ConfigError: no layout is that of the tokenizer, or its class for tasks reads other places of such rows.

  Args:
    texts: in a row; two need the layout of a pair.
    key: how a layout is named, for messages.
  """
  theirs = model_folders.config_of(model_folders.base_of(model_folders.main_folder(files.path(folder))))
  found = layout_of(folder, bare=True) or layout_of(folder, texts=texts, bare=True)
  if found is None and theirs.get('type_vocab_size') in (None, 0, 1) and theirs.get('model_type') != 'xlnet':
    found = layout_of(folder, texts=texts, bare=True, kinds=False)  # the model reads none, as GPT-2
  if found is None:
    vocab, styles = tokenizer.load(_tokenizer_of(folder) or files.path(folder)), build.files_of('data.rows.layouts')
    fitting = [name for name in (OWN, 'plain', *PUBLISHED) if _frames(styles[name], vocab, texts) is not None]
    if fitting[0] != OWN:
      raise ConfigError(
        f'data.layout: the tokenizer of {folder} sets sentence types as no layout does ({", ".join(PUBLISHED)}). '
        f'Name the one that comes closest: {key}{fitting[0]}'
      )
    found = OWN
  classifies = any(str(name).endswith('ForSequenceClassification') for name in theirs.get('architectures') or ())
  place, pad = _tokenizer_of(folder), theirs.get('pad_token_id')
  if not classifies or theirs.get('is_encoder_decoder') or place is None or pad is None:
    return found
  last = framing.written(tokenizer.marked(place)).single[-1][0]
  if last == pad:
    raise ConfigError(
      f'data.layout: the tokenizer of {folder} ends texts with the token {last}, which pads rows as well, so that '
      f'{theirs["architectures"][0]} reads the token before it, which no layout does. Without that token: '
      f'{key}begin or {key}bare'
    )
  return found


def _texts(block: Settings) -> int:
  """Return an example's number of texts; two need a pair's layout."""
  if 'form' in block:
    return 1
  return 2 if block.get('kind') in ('spans', 'options') else min(len(block.get('fields') or ()) or 2, 2)


def _check_layout(settings: Settings, source: str | None) -> None:
  """Raise ConfigError if the layout differs from that of pre-training."""
  block = settings['data']
  asked = block.get('layout')
  if source is None or asked not in NAMED:
    return
  own, texts = _trained_on(source, texts=_texts(block))
  place = _tokenizer_of(source)
  if own not in NAMED or own == asked or place is None:
    return
  with errors.stage('data.layout'):
    vocab = tokenizer.load(place)
  styles = build.files_of('data.rows.layouts')
  if _frames(styles[asked], vocab, texts) != _frames(styles[own], vocab, texts):
    raise ConfigError(
      f'data.layout={asked!r}: {source} was trained on rows of layout {own!r}, and reads {texts} texts in a row '
      f'otherwise: --config.data.layout={own}, or None, which takes that of the folder'
    )


def _trained_on(source: str, *, texts: int) -> tuple[str | None, int]:
  """Return the layout of a model's training examples.

  The second value is the number of texts for which it is known. Returns None for a layout that is not known; `texts`
  or, where nothing is known of several, 1.
  """
  begun = checksums.read_json(RunFolder.at(source).config, default={})
  if 'model' not in begun:
    return layout_of(source, texts=texts, bare=True), texts
  block = begun.get('data') or {}
  if block.get('layout') in NAMED:
    return block['layout'], min(texts, _texts(block))
  known = texts if _pairs_texts(begun, source) else 1
  return layout_of(source, texts=known), known


def _pairs_texts(begun: Settings, source: str) -> bool:
  """Return whether a run was pre-trained on pairs of texts."""
  place, objective = _tokenizer_of(source), begun.get('objective')
  if place is None or not objective:
    return False
  with errors.stage('data.layout'):
    vocab = tokenizer.load(place)
    rows = build.template('data', begun['data'], vocab=vocab)
    return rows is None and build.template('objectives', objective, vocab=vocab, rows=None) is not None


def _frames(style: Any, vocab: Vocab, texts: int) -> Any:
  try:
    return style.make(vocab=vocab, fields=texts).frames
  except ValueError:
    return None


def _trunk_source(settings: Settings) -> str | None:
  """Return the folder of the trunk's parameters, if any."""
  found = [entry['source'] for entry in settings['init_from'] if entry.get('to', 'trunk') in ('', 'trunk')]
  return found[-1] if found and files.is_folder(files.path(found[-1])) else None


def layout_of(folder: str, *, texts: int = 2, bare: bool = False, kinds: bool = True) -> str | None:
  """Return the layout that the tokenizer of a folder writes, if known.

  Args:
    folder: a run, an import or a release.
    texts: 1 compares rows of one text alone, 2 those of a pair as well.
    bare: a tokenizer that writes no special token means it; that of an older run does not say what it writes.
    kinds: compares the sentence types of tokens as well.
  """
  place = _tokenizer_of(folder)
  if place is None:
    return None
  with errors.stage('data.layout'):
    vocab, theirs = tokenizer.load(place), framing.written(tokenizer.marked(place))
  styles = build.files_of('data.rows.layouts')
  for name in PUBLISHED if bare else PUBLISHED[:-1]:
    try:
      template = framing.template(*(styles[name].make(vocab=vocab, fields=number) for number in (1, 2)))
    except (ValueError, KeyError):  # a token that the vocabulary does not have
      continue
    pairs = zip((template.single, template.pair)[:texts], (theirs.single, theirs.pair)[:texts], strict=True)
    if all(ours == other or (not kinds and _tokens(ours) == _tokens(other)) for ours, other in pairs):
      return name
  return None


def _tokens(parts: Sequence[tuple[int | str, int]]) -> list[int | str]:
  return [token for token, _ in parts]


def _tokenizer_of(folder: str) -> Path | None:
  return next((one for one in model_folders.tokenizer_places(folder) if tokenizer.exists(one)), None)
