"""Settings next to a `tokenizer.json`, applied as the classes of transformers do when they load it."""

from collections.abc import Iterator, Mapping
from typing import Any

from plm_jax.text import published_files
from plm_jax.text import spec as specs
from plm_jax.text.published_files import SETTINGS, TOKENIZER
from plm_jax.text.published_rows import LANGUAGE, LANGUAGE_ROWS, with_row
from plm_jax.text.spec import Spec


def as_loaded(spec: dict[str, Any], settings: Spec) -> dict[str, Any]:
  """Modify a `tokenizer.json` as transformers does when it loads it.

  Classes of models build some parts from tokenizer_config.json, with the defaults of the class for missing settings. If
  the class is that of no model, the `tokenizer.json` is unchanged. Raises ValueError if a part that is to be built has
  another kind, or the file contradicts the settings.
  """
  named, model_type = settings.get('tokenizer_class'), settings.get('model_type')
  if named in published_files.AS_IT_IS or (named and model_type in published_files.NO_CLASS):
    return spec
  family = published_files.family_of(settings)
  if family in published_files.BERTS:
    return _with_part(spec, 'normalizer', published_files.bert_normalizer(settings), named)
  if family in (*published_files.ROBERTAS, *published_files.GPTS, 'deberta', 'gptneox'):
    level = {'type': 'ByteLevel', 'add_prefix_space': settings.get('add_prefix_space', False)}
    return _with_part(spec, 'pre_tokenizer', level, named)
  if family in LANGUAGE_ROWS:
    language = settings.get('src_lang') or LANGUAGE
    if language not in specs.token_ids(spec):
      raise ValueError(f'has src_lang {language!r} in {SETTINGS[-1]}, but no such token in {TOKENIZER}')
    return with_row(spec, LANGUAGE_ROWS[family](language), published_files.names_of(settings))
  _check_pieces(spec, settings, family)
  return spec


def _with_part(spec: dict[str, Any], name: str, part: Spec, named: str | None) -> dict[str, Any]:
  """Replace a normaliser's or pre-tokenizer's settings; keep others if unnamed."""
  present = spec[name] if isinstance(spec[name], Mapping) else {}
  if present.get('type') == part['type']:
    return {**spec, name: {**present, **part}}
  if named:
    raise ValueError(
      f'has the {name} {present.get("type")}, which {named} of transformers 5 replaces by {part["type"]}: to keep it, '
      f'set "tokenizer_class": "PreTrainedTokenizerFast" in {SETTINGS[-1]}'
    )
  return spec


def _check_pieces(spec: Spec, settings: Spec, family: str) -> None:
  """Raise ValueError if a `tokenizer.json` of pieces contradicts its settings."""
  parts = list(_parts([spec['normalizer'], spec['pre_tokenizer']]))
  kinds = {part['type'] for part in parts}
  blanks = [part for part in parts if part['type'] == 'Metaspace']
  prefixed = [part.get('prepend_scheme') != 'never' and part.get('add_prefix_space', True) for part in blanks]
  expected = {
    'do_lower_case': (('albert', 'xlnet', 'debertav2'), 'Lowercase' in kinds),
    'keep_accents': (('albert',), 'StripAccents' not in kinds),
    'split_by_punct': (('debertav2',), 'Punctuation' in kinds),
    'add_prefix_space': (('llama', 'codellama', 'xlmroberta', 'camembert'), 'Prepend' in kinds or any(prefixed)),
  }
  for flag, (families, value) in expected.items():
    if family in families and settings.get(flag, value) != value and (blanks or 'Prepend' in kinds):
      raise ValueError(
        f'has {flag} {str(not value).lower()} in {SETTINGS[-1]}, but {TOKENIZER} has {str(value).lower()}: correct the '
        'setting, or save the tokenizer again with transformers'
      )


def _parts(part: Any) -> Iterator[Spec]:
  """Yield all parts of a normaliser or a pre-tokenizer, nested ones included."""
  if isinstance(part, Mapping) and isinstance(part.get('type'), str):
    yield part
  for inner in part.values() if isinstance(part, Mapping) else part if isinstance(part, list) else ():
    yield from _parts(inner)
