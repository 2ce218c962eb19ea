"""Arguments of the methods of `Model`: one text or a list, checked."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from plm_jax.core.errors import ConfigError
from plm_jax.io import files

Result = TypeVar('Result')


def each(
  name: str,
  argument: Any,
  compute: Callable[[Sequence[Any]], list[Result]],
  *,
  is_single: Callable[[Any], bool] = lambda argument: isinstance(argument, str),
  is_text: Callable[[Any], bool] = lambda text: isinstance(text, str),
) -> Any:
  """Compute one result or a list; raise ConfigError for other arguments."""
  alone = is_single(argument)
  texts = [argument] if alone else argument
  if not is_list(texts):
    raise ConfigError(f'{name}: expected a text or a list of texts, got {type(argument).__name__}')
  for index, text in enumerate(texts):
    if not is_text(text):
      raise ConfigError(f'{name}: text {index} of the list is {type(text).__name__}, expected a text: {text!r}')
    if not all(map(files.is_unicode, _strings(text))):
      raise ConfigError(f'{name}: text {index} has half a character (a lone surrogate): {text!a}')
  results = compute(list(texts)) if len(texts) else []
  return results[0] if alone else results


def _strings(value: Any) -> Iterator[str]:
  if isinstance(value, str):
    yield value
  elif isinstance(value, list | tuple):
    for item in value:
      yield from _strings(item)


def is_list(value: Any) -> bool:
  array = isinstance(value, np.ndarray) and value.ndim > 0
  return array or (isinstance(value, Sequence) and not isinstance(value, str | bytes))


def is_row(row: Any) -> bool:
  return isinstance(row, str) or (isinstance(row, tuple) and all(isinstance(text, str) for text in row))


def is_fields(row: Any) -> bool:
  return isinstance(row, str) or (
    isinstance(row, tuple) and all(isinstance(field, str) or is_words(field) for field in row)
  )


def is_words(words: Any) -> bool:
  return isinstance(words, list | tuple) and all(isinstance(word, str) for word in words)


def count(name: str, value: Any) -> int:
  if not isinstance(value, int) or isinstance(value, bool) or value < 1:
    raise ConfigError(f'{name}={value!r}: expected an integer from 1 on')
  return value
