"""Fields of a Hugging Face config.json: accepted values and defaults.

The `FIELDS` of an architecture list every attribute of the config class of transformers, in one of three roles:

    used   `size`, `layers`, `whole`, `number`, `rate`, `flag`, `choice`, ...: `read_config` makes a setting of it
    fixed  the trunk computes what this value stands for; a file with another value raises an error that names the field
    inert  no number that the trunk or its heads compute depends on it

A used or fixed field that is missing in the file has the default of transformers. Fields that are not listed are no
attributes of transformers, or of an older version without effect on numbers, and are ignored.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

from plm_jax.config import values
from plm_jax.core.errors import shown

REQUIRED = object()  # instead of a default: the field must be present
INERT = object()  # instead of a default: the field is never read
_MOST_SIZE, _MOST_LAYERS = 2**24, 2**12  # larger than in any checkpoint, small enough for shapes not to overflow


class Field(NamedTuple):
  """One field."""

  says: str  # what a value must be, for messages: 'an integer from 1 to 4096'
  holds: Callable[[Any], bool]  # checks a value
  default: Any = REQUIRED  # the value of a missing field
  also: str | None = None  # another name of the field (`attribute_map` of transformers)


Fields = Mapping[str, Field]


def whole(default: Any = REQUIRED, *, least: int = 0, most: int = _MOST_SIZE, also: str | None = None) -> Field:
  """Describe an integer within bounds, or null if the default is None."""
  null = ' or null' if default is None else ''
  return Field(
    f'an integer from {least} to {most}{null}',
    lambda value: (value is None and default is None) or (_is_int(value) and least <= value <= most),
    default,
    also,
  )


def size(default: Any = REQUIRED, *, also: str | None = None) -> Field:
  """Describe the length of an axis."""
  return whole(default, least=1, also=also)


def layers(default: Any = REQUIRED, *, also: str | None = None) -> Field:
  """Describe a number of blocks, groups or heads."""
  return whole(default, least=1, most=_MOST_LAYERS, also=also)


def number(default: Any = REQUIRED, *, least: float = 0, above: float = -math.inf, most: float = math.inf) -> Field:
  """Describe a finite number, null if that is default; `above` is exclusive."""
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
  """Describe a dropout rate (`types.PartRate`)."""
  return number(default)._replace(
    says='a number from 0 on and below 1', holds=lambda value: _is_number(value) and 0 <= value < 1
  )


def epsilon(default: Any = REQUIRED) -> Field:
  """Describe the epsilon that a norm adds to a variance (`types.Epsilon`)."""
  return number(default, least=values.SMALLEST, most=1)


def std(default: Any = REQUIRED) -> Field:
  """Describe the standard deviation of initial values (`types.Std`)."""
  return number(default, most=100)


def flag(default: bool) -> Field:
  """Describe a boolean."""
  return Field('true or false', lambda value: isinstance(value, bool), default)


def choice(default: Any, choices: Sequence[Any]) -> Field:
  """Describe one of several values."""
  return Field(f'one of {", ".join(map(shown, choices))}', lambda value: _is_one_of(value, choices), default)


def list_of(choices: Sequence[Any]) -> Field:
  """Describe null or a list of some values, one for each layer."""
  return Field(
    f'null or a list of {", ".join(map(shown, choices))}',
    lambda value: value is None or (isinstance(value, list) and all(_is_one_of(part, choices) for part in value)),
    None,
  )


def fixed(value: Any, *equal: Any) -> Field:
  """Describe the only supported value (the default) and its equivalents."""
  return choice(value, (value, *equal))._replace(
    says=f'{" or ".join(map(shown, (value, *equal)))}, the only supported value'
  )


def inert() -> Field:
  """Describe a field without effect on numbers."""
  return Field('anything', lambda value: True, INERT)


def token_id(default: int | None = None) -> Field:
  """Describe a special token's id: -1, null for none; lists end texts."""
  return Field(
    'the id of a token, a list of ids, or null',
    lambda value: value is None or all(map(_is_id, value if isinstance(value, list) else [value])),
    default,
  )


def block(inside: Fields) -> Field:
  """Describe null or an object; `inside` are the fields that are checked."""
  description = ', '.join(f'{name} {field.says}' for name, field in inside.items())
  return Field(
    f'null or an object with {description}',
    lambda value: (
      value is None
      or (isinstance(value, dict) and all(field.holds(value[name]) for name, field in inside.items() if name in value))
    ),
    None,
  )


def complete(fields: Fields, config: Mapping[str, Any]) -> dict[str, Any]:
  """Check a complete config.json, and fill in the defaults of `fields`.

  Alternative names are replaced by the main ones.

  Raises:
    ValueError: a field is missing or has an invalid value.
  """
  out = dict(config)
  for name, field in fields.items():
    if field.also in out:
      value = out.pop(field.also)
      if name in out and not _same(out[name], value):
        raise ValueError(
          f'{field.also} and {name} are one field, but are {shown(value)} and {shown(out[name])}: remove one'
        )
      out[name] = value
    if name not in out and field.default is REQUIRED:
      raise ValueError(f'{name} is missing: it must be {field.says}')
    if name in out and not field.holds(out[name]):
      raise ValueError(f'{name} is {shown(out[name])}, and must be {field.says}')
    if field.default is not INERT:
      out.setdefault(name, field.default)
  return out


def named(config: Any, names: Mapping[str, str]) -> dict[str, Any]:
  """Build fields from our config by `names`, their field -> ours."""
  ours = dataclasses.asdict(config)
  return {name: ours[own] for name, own in names.items()}


def check_multiple(config: Mapping[str, Any], whole_size: str, parts: str) -> None:
  """Raise ValueError unless one field is a multiple of another."""
  if config[whole_size] % config[parts]:
    raise ValueError(f'{whole_size} {config[whole_size]} must be a multiple of {parts} {config[parts]}')


def label_start(config: Mapping[str, Any], names: Collection[str], *, eos: int) -> dict[str, Any]:
  """Return the override for a labelling decoder that starts without EOS.

  It is empty for others: the adapters give a decoder the text after its own last token (`adapters/texts.both_sides`).
  """
  start, end = config['decoder_start_token_id'], eos if config['eos_token_id'] is None else config['eos_token_id']
  has_head = not {'classification_head.dense.bias', 'qa_outputs.bias'}.isdisjoint(names)
  return {'label_start': start} if has_head and start not in (end, None) else {}


def _is_int(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
  if isinstance(value, float):
    return math.isfinite(value) and values.in_float32(value)
  return _is_int(value) and abs(value) < 2**53


def _is_id(value: Any) -> bool:
  return _is_int(value) and -1 <= value < _MOST_SIZE


def _same(a: Any, b: Any) -> bool:
  """Compare two JSON values; 1, 1.0 and true are different."""
  number_of = isinstance(a, int | float) and not isinstance(a, bool)
  return a == b and (type(a) is type(b) or (number_of and not isinstance(b, bool)))


def _is_one_of(value: Any, choices: Sequence[Any]) -> bool:
  return any(_same(value, choice) for choice in choices)


# their name of an activation -> ours (layers/mlp.py)
ACTIVATIONS: Mapping[str, str] = {
  'gelu': 'gelu_erf', 'gelu_python': 'gelu_erf', 'gelu_new': 'gelu_tanh', 'gelu_pytorch_tanh': 'gelu_tanh',
  'gelu_python_tanh': 'gelu_tanh', 'gelu_fast': 'gelu_tanh', 'gelu_accurate': 'gelu_tanh', 'relu': 'relu',
  'silu': 'silu', 'swish': 'silu', 'tanh': 'tanh', 'quick_gelu': 'gelu_sigmoid', 'relu2': 'relu_squared',
  'relu6': 'relu6', 'leaky_relu': 'leaky_relu', 'mish': 'mish', 'hardswish': 'hard_swish', 'sigmoid': 'sigmoid',
  'linear': 'linear',
}  # fmt: skip


def their_activation(name: str) -> str:
  """Return their name of one of our activations."""
  return 'gelu_pytorch_tanh' if name == 'gelu_tanh' else next(key for key, own in ACTIVATIONS.items() if own == name)


def activation(default: str, *, also: str | None = None) -> Field:
  """Describe a name of `ACTIVATIONS`."""
  return choice(default, tuple(ACTIVATIONS))._replace(also=also)


# Fields of every config class; fixed ones have the values that do not change a model.
COMMON: Fields = {
    'vocab_size': size(),
    'tie_word_embeddings': flag(True),
    'pad_token_id': token_id(),
    'bos_token_id': token_id(),
    'eos_token_id': token_id(),
    **dict.fromkeys(
      ('architectures', 'chunk_size_feed_forward', 'dtype', 'id2label', 'label2id', 'num_labels', 'output_attentions',
       'output_hidden_states', 'problem_type', 'return_dict', 'transformers_version', 'use_cache'),
      inert(),
    ),
    # fields of older versions that changed numbers
    'pruned_heads': fixed({}, None),
    'quantization_config': fixed(None),
    'per_layer_config': fixed(None, {}),
    'tie_encoder_decoder': fixed(False),
    'cross_attention_hidden_size': fixed(None),
  }  # fmt: skip

# Fields of encoders and of decoders without a second stack.
ONE_STACK: Fields = {**COMMON, 'is_encoder_decoder': fixed(False), 'add_cross_attention': fixed(False)}

ENCODER: Fields = {**ONE_STACK, 'is_decoder': fixed(False)}
