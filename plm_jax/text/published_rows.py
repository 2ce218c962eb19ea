"""Special tokens around a text, and around two, in the input of a published model.

In a form such as 'cls A sep B:1 sep:1', the number after a colon is a token type; names that are no role are tokens.
"""

from collections.abc import Callable, Mapping
from typing import Any

from plm_jax.text import spec as specs

BERT = ('cls A sep', 'cls A sep B:1 sep:1')
ROBERTA = ('cls A sep', 'cls A sep sep B sep')
T5 = ('A eos', 'A eos B eos')
XLNET = ('A sep cls:2', 'A sep B:1 sep:1 cls:2')
LANGUAGE = 'en_XX'  # default language of texts
LANGUAGE_ROWS: dict[str, Callable[[str], tuple[str, str]]] = {
  'mbart': lambda language: (f'A eos {language}', f'A B eos {language}'),
  'mbart50': lambda language: (f'{language} A eos', f'{language} A B eos'),
}


def with_row(spec: dict[str, Any], row: tuple[str, str] | None, roles: Mapping[str, str]) -> dict[str, Any]:
  """Add the special tokens of a form, if the vocabulary has them."""
  if row is None:
    return spec
  ids = specs.token_ids(spec)
  named = dict(specs.guess_roles(ids, decided=roles)) | dict(roles)
  for role, other in specs.STAND_INS:
    if role not in named and other in named:
      named[role] = named[other]

  def parts(form: str) -> list[tuple[int | str, int]]:
    split = [(name, int(type_id or 0)) for name, _, type_id in (part.partition(':') for part in form.split())]
    return [(name if name in ('A', 'B') else ids[named.get(name, name)], type_id) for name, type_id in split]

  try:
    single, pair = map(parts, row)
  except KeyError:  # the vocabulary lacks a token
    return spec
  return specs.with_template(spec, single, pair)
