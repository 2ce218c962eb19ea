"""Special tokens around a text in the input of a published model."""

from collections.abc import Callable, Mapping
from typing import Any

from plm_jax.text import spec as specs

BERT = ('cls A sep', 'cls A sep B:1 sep:1')
ROBERTA = ('cls A sep', 'cls A sep sep B sep')
T5 = ('A eos', 'A eos B eos')
XLNET = ('A sep cls:2', 'A sep B:1 sep:1 cls:2')
LANGUAGE = 'en_XX'  # of the texts where the settings name none
LANGUAGE_ROWS: dict[str, Callable[[str], tuple[str, str]]] = {
  'mbart': lambda language: (f'A eos {language}', f'A B eos {language}'),
  'mbart50': lambda language: (f'{language} A eos', f'{language} A B eos'),
}


def with_row(spec: dict[str, Any], row: tuple[str, str] | None, roles: Mapping[str, str]) -> dict[str, Any]:
  """The same with the special tokens of a row, where the vocabulary has them."""
  if row is None:
    return spec
  ids = specs.token_ids(spec)
  known = dict(specs.guess_roles(ids, decided=roles)) | dict(roles)
  for role, other in specs.STAND_INS:
    if role not in known and other in known:
      known[role] = known[other]

  def parts(form: str) -> list[tuple[int | str, int]]:
    split = [(name, int(number or 0)) for name, _, number in (part.partition(':') for part in form.split())]
    return [(name if name in ('A', 'B') else ids[known.get(name, name)], number) for name, number in split]

  try:
    single, pair = map(parts, row)
  except KeyError:  # a vocabulary without one of them
    return spec
  return specs.with_template(spec, single, pair)
