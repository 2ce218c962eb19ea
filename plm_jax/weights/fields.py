"""Fields of a Hugging Face config.json: what each may hold, and what its absence stands for.

The `FIELDS` of an architecture list every attribute of the config class of transformers, in one of three roles:

    used   `size`, `layers`, `whole`, `number`, `rate`, `flag`, `choice`, ...: `read_config` makes a setting of it
    fixed  the trunk computes what this value stands for; a file with another one is refused by the name of the field
    inert  no number that the trunk or its heads compute depends on it

A used or fixed field that the file lacks has the default of transformers. What stands in no list is no attribute of
transformers either, or was one of an older version without effect on numbers, and is left alone.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from plm_jax.config import values
from plm_jax.core.errors import shown

REQUIRED = object()  # in place of a default: a file without the field is refused
INERT = object()  # in place of a default: nobody reads the field
_MOST_SIZE, _MOST_LAYERS = 2**24, 2**12  # beyond any release; a larger number is a mistake, and shapes of it overflow


class Field(NamedTuple):
  """One field.

  Attributes:
    says: what a value must be, for messages: 'an integer from 1 to 4096'.
    holds: whether a value is that.
    default: what the absence of the field stands for.
    also: another name of the field (`attribute_map` of transformers).
  """

  says: str
  holds: Callable[[Any], bool]
  default: Any = REQUIRED
  also: str | None = None


Fields = Mapping[str, Field]


def whole(default: Any = REQUIRED, *, least: int = 0, most: int = _MOST_SIZE, also: str | None = None) -> Field:
  """An integer within bounds; null as well where the default is None."""
  null = ' or null' if default is None else ''
  return Field(
    f'an integer from {least} to {most}{null}',
    lambda value: (value is None and default is None) or (_is_int(value) and least <= value <= most),
    default,
    also,
  )


def size(default: Any = REQUIRED, *, also: str | None = None) -> Field:
  """The length of an axis."""
  return whole(default, least=1, also=also)


def layers(default: Any = REQUIRED, *, also: str | None = None) -> Field:
  """A number of blocks, groups or heads."""
  return whole(default, least=1, most=_MOST_LAYERS, also=also)


def number(default: Any = REQUIRED, *, least: float = 0, above: float = -math.inf, most: float = math.inf) -> Field:
  """A finite number from `least` on, 0 where nothing is said, and above another; null where the default is None."""
  null = ' or null' if default is None else ''
  start = f'from {least:g}' if above < least else f'above {above:g}'
  end = ' on' if most == math.inf and above < least else '' if most == math.inf else f' to {most:g}'
  return Field(
    f'a number {start}{end}{null}',
    lambda value: (
      (value is None and default is None) or (_is_number(value) and least <= value <= most and value > above)
    ),
    default,
  )


def rate(default: Any = REQUIRED) -> Field:
  """A rate of dropout (`types.PartRate`)."""
  return number(default)._replace(
    says='a number from 0 on and below 1', holds=lambda value: _is_number(value) and 0 <= value < 1
  )


def epsilon(default: Any = REQUIRED) -> Field:
  """What a norm adds to a variance (`types.Epsilon`)."""
  return number(default, least=values.SMALLEST, most=1)


def std(default: Any = REQUIRED) -> Field:
  """The standard deviation of initial values (`types.Std`)."""
  return number(default, most=100)


def flag(default: bool) -> Field:
  """True or false."""
  return Field('true or false', lambda value: isinstance(value, bool), default)


def choice(default: Any, choices: Sequence[Any]) -> Field:
  """One of several values."""
  return Field(f'one of {", ".join(map(shown, choices))}', lambda value: _is_one_of(value, choices), default)


def fixed(value: Any, *equal: Any) -> Field:
  """What the trunk computes: `value`, the default of transformers, or one of those that stand for the same."""
  return choice(value, (value, *equal))._replace(
    says=f'{" or ".join(map(shown, (value, *equal)))}, the only form that can be read'
  )


def inert() -> Field:
  """Anything: no number depends on it."""
  return Field('anything', lambda value: True, INERT)


def token_id(default: int | None = None) -> Field:
  """The id of a special token; null, or -1, for none; a list where several end a text."""
  return Field(
    'the id of a token, a list of ids, or null',
    lambda value: value is None or all(map(_is_id, value if isinstance(value, list) else [value])),
    default,
  )


def block(inside: Fields) -> Field:
  """An object with fields of its own, or null; `inside` are those that are looked at."""
  known = ', '.join(f'{name} {field.says}' for name, field in inside.items())
  return Field(
    f'null or an object with {known}',
    lambda value: (
      value is None
      or (isinstance(value, dict) and all(field.holds(value[name]) for name, field in inside.items() if name in value))
    ),
    None,
  )


def complete(fields: Fields, config: Mapping[str, Any]) -> dict[str, Any]:
  """A config.json with every field in it.

  Args:
    fields: of the architecture.
    config: the content of the file.

  Returns:
    the content, with the default of each field of `fields` that it lacks, and without other names of fields.

  Raises:
    ValueError: a field is missing or holds another value than it may.
  """
  out = dict(config)
  for name, field in fields.items():
    if field.also in out:
      value = out.pop(field.also)
      if name in out and not _same(out[name], value):
        raise ValueError(f'{field.also} is {shown(value)}, and {name}, the same field, is {shown(out[name])}')
      out[name] = value
    if name not in out and field.default is REQUIRED:
      raise ValueError(f'{name} is missing, {field.says}')
    if name in out and not field.holds(out[name]):
      raise ValueError(f'{name} is {shown(out[name])}, and must be {field.says}')
    if field.default is not INERT:
      out.setdefault(name, field.default)
  return out


def check_multiple(config: Mapping[str, Any], whole_size: str, parts: str) -> None:
  """Raises ValueError where one field is not a multiple of another, such as the width of the number of heads."""
  if config[whole_size] % config[parts]:
    raise ValueError(f'{whole_size} {config[whole_size]} is not a multiple of {parts} {config[parts]}')


def check_decoder_start(config: Mapping[str, Any], names: Collection[str], *, eos: int) -> None:
  """Raises ValueError where the head of a task reads a decoder that does not start with what ends a text.

  The adapters give a decoder the text behind its own last token (`adapters/texts.both_sides`).

  Args:
    config: complete.
    names: of the tensors.
    eos: the default of `eos_token_id`.
  """
  start, end = config['decoder_start_token_id'], eos if config['eos_token_id'] is None else config['eos_token_id']
  if start != end and not {'classification_head.dense.bias', 'qa_outputs.bias'}.isdisjoint(names):
    raise ValueError(
      f'decoder_start_token_id is {start!r}, and eos_token_id {end!r}: the head of a task can be read where its '
      f'decoder starts with the token that ends a text. decoder_start_token_id {end!r} in config.json lets it be read, '
      'with other numbers than it was trained with: train it again from there'
    )


def _is_int(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
  if isinstance(value, float):
    return math.isfinite(value) and values.in_float32(value)
  return _is_int(value) and abs(value) < 2**53


def _is_id(value: Any) -> bool:
  return _is_int(value) and -1 <= value < _MOST_SIZE


def _same(a: Any, b: Any) -> bool:
  """Whether two values of a JSON file are the same one: 1, 1.0 and true are three."""
  number_of = isinstance(a, int | float) and not isinstance(a, bool)
  return a == b and (type(a) is type(b) or (number_of and not isinstance(b, bool)))


def _is_one_of(value: Any, choices: Sequence[Any]) -> bool:
  return any(_same(value, choice) for choice in choices)


# what they call an activation -> its name here (layers/mlp.py)
ACTIVATIONS: Mapping[str, str] = MappingProxyType(
  {
    'gelu': 'gelu_erf',
    'gelu_python': 'gelu_erf',
    'gelu_new': 'gelu_tanh',
    'gelu_pytorch_tanh': 'gelu_tanh',
    'gelu_python_tanh': 'gelu_tanh',
    'gelu_fast': 'gelu_tanh',
    'gelu_accurate': 'gelu_tanh',
    'relu': 'relu',
    'silu': 'silu',
    'swish': 'silu',
    'tanh': 'tanh',
    'quick_gelu': 'gelu_sigmoid',
    'relu2': 'relu_squared',
    'relu6': 'relu6',
    'leaky_relu': 'leaky_relu',
    'mish': 'mish',
    'hardswish': 'hard_swish',
    'sigmoid': 'sigmoid',
    'linear': 'linear',
  }
)


def their_activation(name: str) -> str:
  """What they call one of our activations."""
  return 'gelu_pytorch_tanh' if name == 'gelu_tanh' else next(key for key, own in ACTIVATIONS.items() if own == name)


def activation(default: str, *, also: str | None = None) -> Field:
  """A name of `ACTIVATIONS`."""
  return choice(default, tuple(ACTIVATIONS))._replace(also=also)


# What every config class has, with the values that leave a model as it is.
COMMON: Fields = MappingProxyType(
  {
    'vocab_size': size(),
    'tie_word_embeddings': flag(True),
    'pad_token_id': token_id(),
    'bos_token_id': token_id(),
    'eos_token_id': token_id(),
    **{
      name: inert()
      for name in (
        'architectures', 'chunk_size_feed_forward', 'dtype', 'id2label', 'label2id', 'num_labels', 'output_attentions',
        'output_hidden_states', 'problem_type', 'return_dict', 'transformers_version', 'use_cache',
      )
    },
    # of older versions, which changed numbers
    'pruned_heads': fixed({}, None),
    'quantization_config': fixed(None),
    'per_layer_config': fixed(None, {}),
    'tie_encoder_decoder': fixed(False),
    'cross_attention_hidden_size': fixed(None),
  }
)  # fmt: skip

# What encoders and decoders without a second stack have.
ONE_STACK: Fields = MappingProxyType(
  {**COMMON, 'is_encoder_decoder': fixed(False), 'add_cross_attention': fixed(False)}
)

ENCODER: Fields = MappingProxyType({**ONE_STACK, 'is_decoder': fixed(False)})
