"""Settings next to a `tokenizer.json`, applied as the classes of transformers do when they load it."""

from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.text import spec as specs
from plm_jax.text.published_files import (
  AS_IT_IS,
  BERTS,
  GPTS,
  NO_CLASS,
  ROBERTAS,
  SETTINGS,
  TOKENIZER,
  bert_normalizer,
  family_of,
  names_of,
)
from plm_jax.text.published_rows import LANGUAGE, LANGUAGE_ROWS, with_row
from plm_jax.text.spec import Spec


def as_loaded(spec: dict[str, Any], settings: Spec) -> dict[str, Any]:
  """A `tokenizer.json` as transformers loads it: classes of models build some parts of it by tokenizer_config.json.

  What the settings do not name has the default of the class. A folder whose class is that of no model has its
  `tokenizer.json` as it is.

  Raises:
    ValueError: it has another part in the place of one that is built, or does other than the settings say.
  """
  named, model_type = settings.get('tokenizer_class'), settings.get('model_type')
  if named in AS_IT_IS or (named and model_type in NO_CLASS):
    return spec
  family = family_of(settings)
  if family in BERTS:
    return _with_part(spec, 'normalizer', bert_normalizer(settings), named)
  if family in (*ROBERTAS, *GPTS, 'deberta', 'gptneox'):
    level = {'type': 'ByteLevel', 'add_prefix_space': settings.get('add_prefix_space', False)}
    return _with_part(spec, 'pre_tokenizer', level, named)
  if family in LANGUAGE_ROWS:
    language = settings.get('src_lang') or LANGUAGE
    if language not in specs.token_ids(spec):
      raise ValueError(f'has src_lang {language!r} ({SETTINGS[-1]}), which is no token of its {TOKENIZER}')
    return with_row(spec, LANGUAGE_ROWS[family](language), names_of(settings))
  _check_pieces(spec, settings, family)
  return spec


def _with_part(spec: dict[str, Any], name: str, part: Spec, named: str | None) -> dict[str, Any]:
  """The same with these settings of a normaliser or a pre-tokenizer; another kind stays where no class is named."""
  own = spec[name] if isinstance(spec[name], Mapping) else {}
  if own.get('type') == part['type']:
    return {**spec, name: {**own, **part}}
  if named:
    raise ValueError(
      f'has a {TOKENIZER} with the {name} {own.get("type")}, in whose place {named} has {part["type"]} '
      f'(transformers 5; version 4 keeps it): to have {TOKENIZER} as it is, write "tokenizer_class": '
      f'"PreTrainedTokenizerFast" into {SETTINGS[-1]}'
    )
  return spec


def _check_pieces(spec: Spec, settings: Spec, family: str) -> None:
  """Raises a ValueError where a `tokenizer.json` of pieces does other than the settings that are named beside it."""
  parts = list(_parts([spec['normalizer'], spec['pre_tokenizer']]))
  kinds = {part['type'] for part in parts}
  blanks = [part for part in parts if part['type'] == 'Metaspace']
  first = [part.get('prepend_scheme') != 'never' and part.get('add_prefix_space', True) for part in blanks]
  done = {
    'do_lower_case': (('albert', 'xlnet', 'debertav2'), 'Lowercase' in kinds),
    'keep_accents': (('albert',), 'StripAccents' not in kinds),
    'split_by_punct': (('debertav2',), 'Punctuation' in kinds),
    'add_prefix_space': (('llama', 'codellama', 'xlmroberta', 'camembert'), 'Prepend' in kinds or any(first)),
  }
  for flag, (families, there) in done.items():
    if family in families and settings.get(flag, there) != there and (blanks or 'Prepend' in kinds):
      raise ValueError(
        f'has {flag} {str(not there).lower()} in {SETTINGS[-1]}, and its {TOKENIZER} does otherwise: say '
        f'{str(there).lower()} there, or save the tokenizer again with transformers'
      )


def _parts(part: Any) -> Iterator[Spec]:
  """All parts of a normaliser or a pre-tokenizer, those inside others included."""
  if isinstance(part, Mapping) and isinstance(part.get('type'), str):
    yield part
  for inner in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
    yield from _parts(inner)
