"""SentencePiece model files (`spiece.model`, `tokenizer.model`), read as the content of a `tokenizer.json`.

The file is a protocol buffer, `ModelProto` of sentencepiece_model.proto (github.com/google/sentencepiece). The fields
that determine ids are read, without the library itself. Normalisation is that of the file, in its order: its table of
characters, white space at the ends and in runs, a space before the text, ▁ for spaces.
"""

import base64
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from tokenizers import normalizers

from plm_jax.text.spec import BLANK, MARKS, SEPARATE, Spec

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
UNIGRAM, BPE = 1, 2  # types of models
MAX_BYTES = 2**28  # of a file; the largest published one has 16 MB
NEVER = 100.0  # subtracted from the score of a piece that must not be chosen

# message -> (field, number, type, default); a capitalised type is a message, 'pieces' is repeated
_MESSAGES: dict[str, list[tuple[str, int, str, str]]] = {
  'SentencePiece': [('piece', 1, 'string', ''), ('score', 2, 'float', '0'), ('type', 3, 'int32', '1')],
  'TrainerSpec': [
    ('model_type', 3, 'int32', '1'), ('treat_whitespace_as_suffix', 24, 'bool', 'false'),
    ('byte_fallback', 35, 'bool', 'false'), ('unk_id', 40, 'int32', '0'), ('bos_id', 41, 'int32', '1'),
    ('eos_id', 42, 'int32', '2'), ('pad_id', 43, 'int32', '-1'),
  ],
  'NormalizerSpec': [
    ('precompiled_charsmap', 2, 'bytes', ''), ('add_dummy_prefix', 3, 'bool', 'true'),
    ('remove_extra_whitespaces', 4, 'bool', 'true'),
  ],
  'ModelProto': [
    ('pieces', 1, 'SentencePiece', ''), ('trainer_spec', 2, 'TrainerSpec', ''),
    ('normalizer_spec', 3, 'NormalizerSpec', ''),
  ],
}  # fmt: skip


class Piece(NamedTuple):
  """A piece of a model: its text, its score, and its type."""

  text: str
  score: float
  type: int = CONTROL


class Model(NamedTuple):
  """The content of a model file."""

  pieces: tuple[Piece, ...]  # in the order of their ids
  algorithm: int  # `UNIGRAM` or `BPE`
  byte_fallback: bool  # characters without a piece are spelt in bytes
  unk_id: int  # id of unknown text
  charsmap: bytes  # table that normalises characters, empty for none
  prefix: bool  # a space is added before a text
  strip: bool  # white space is removed at the ends, and runs of it become one space
  named: dict[str, int]  # role -> id, of the roles in the file ('bos', 'eos', 'pad', 'unk')


def read(content: bytes) -> Model:
  """Parse a model file; raise ValueError for other files or kinds."""
  proto = _proto()()
  try:
    proto.ParseFromString(content)
  except message.DecodeError:
    raise ValueError('is damaged: it is no SentencePiece model') from None
  trainer, normalizer = proto.trainer_spec, proto.normalizer_spec
  if not proto.pieces:
    raise ValueError('is damaged: it is no SentencePiece model')
  if trainer.model_type not in (UNIGRAM, BPE):
    raise ValueError('has a SentencePiece model that is neither unigram nor BPE, which is not supported')
  if trainer.treat_whitespace_as_suffix:
    raise ValueError('has treat_whitespace_as_suffix, which is not supported')
  pieces = tuple(Piece(text=piece.piece, score=piece.score, type=piece.type) for piece in proto.pieces)
  unknown = next((index for index, piece in enumerate(pieces) if piece.type == UNKNOWN), None)
  if unknown is None:
    raise ValueError('is damaged: its SentencePiece model has no unknown piece')
  ids = {'bos': trainer.bos_id, 'eos': trainer.eos_id, 'pad': trainer.pad_id}
  return Model(
    pieces=pieces,
    algorithm=trainer.model_type,
    byte_fallback=trainer.byte_fallback,
    unk_id=unknown,
    charsmap=normalizer.precompiled_charsmap,
    prefix=normalizer.add_dummy_prefix,
    strip=normalizer.remove_extra_whitespaces,
    named={'unk': unknown} | {role: index for role, index in ids.items() if 0 <= index < len(pieces)},
  )


def with_controls(content: bytes, names: Sequence[str]) -> bytes:
  """Append control pieces to a model file; the rest is unchanged."""
  proto = _proto()()
  proto.ParseFromString(content)
  for name in names:
    proto.pieces.add(piece=name, score=0.0, type=CONTROL)
  return proto.SerializeToString()


def spec(model: Model, *, first: Sequence[Spec] = ()) -> dict[str, Any]:
  """Build a `tokenizer.json` that gives the ids of a model.

  The normalisers `first` come before those of the model.
  """
  added = [_added(index, piece) for index, piece in enumerate(model.pieces) if piece.type in (CONTROL, UNKNOWN, UNUSED)]
  prepend = [{'type': 'Prepend', 'prepend': BLANK}] if model.prefix else []
  return {
    'version': '1.0',
    'added_tokens': added,
    'normalizer': {'type': 'Sequence', 'normalizers': [*first, *_normalizers(model), *prepend, _replace(' ', BLANK)]},
    'pre_tokenizer': _pre_tokenizer(model),
    'decoder': {
      'type': 'Sequence',
      'decoders': [
        _replace(BLANK, ' '),
        {'type': 'ByteFallback'},
        {'type': 'Fuse'},
        *([{'type': 'Strip', 'content': ' ', 'start': 1, 'stop': 0}] if model.prefix else []),
      ],
    },
    'model': _unigram(model) if model.algorithm == UNIGRAM else _bpe(model),
  }


def _pre_tokenizer(model: Model) -> dict[str, Any]:
  """Build the splits: at ▁ unless pieces span words, around BPE symbols."""
  split = not any(BLANK in piece.text[1:] for piece in model.pieces)
  blanks = {'type': 'Metaspace', 'replacement': BLANK, 'prepend_scheme': 'never', 'split': split}
  symbols = sorted((piece.text for piece in _symbols(model)), key=len, reverse=True)
  if not symbols:
    return blanks
  cut = {
    'type': 'Split',
    'pattern': {'Regex': '|'.join(map(re.escape, symbols))},
    'behavior': 'Isolated',
    'invert': False,
  }
  return {'type': 'Sequence', 'pretokenizers': [cut, blanks]}


def _symbols(model: Model) -> list[Piece]:
  """Return the user-defined symbols of a BPE model, which no merge makes."""
  return [piece for piece in model.pieces if piece.type == USER_DEFINED and model.algorithm == BPE]


def _normalizers(model: Model) -> Iterator[dict[str, Any]]:
  """Yield the normalisers before the space before a text."""
  if model.charsmap:
    yield from _characters(model.charsmap)
  if model.strip:
    yield {'type': 'Replace', 'pattern': {'Regex': rf'\A +|[ {BLANK}]+\z'}, 'content': ''}
    yield {'type': 'Replace', 'pattern': {'Regex': ' {2,}'}, 'content': ' '}


def _characters(charsmap: bytes) -> list[dict[str, Any]]:
  """Build the normalisers of a table of characters.

  Precompiled reads a letter with marks by the form of the letter alone. So marks are read apart, and joined afterwards.
  """
  read = normalizers.Precompiled(charsmap).normalize_str
  table = {'type': 'Precompiled', 'precompiled_charsmap': base64.b64encode(charsmap).decode()}
  if read('e\u0301') != '\u00e9':
    return [table]
  apart, separate, dotted, iota = '\ufdd0', '\ufdd1', '\ufdd2', '\ufdd3'  # of no text
  cuts = [{**_replace('', sign), 'pattern': {'Regex': cut}} for cut, sign in ((SEPARATE, separate), (MARKS, apart))]
  parts = [*cuts, table, _replace(apart, ''), {'type': 'NFC'}, _replace(separate, '')]
  if read('I') != 'i':
    return parts
  # lower case of several letters is not applied to letters with marks
  held = [_replace('I\u0307', dotted), _replace('\u0345', iota)]
  return [*held, *parts[:-2], _replace(dotted, '\u0130'), _replace(iota, '\u0345'), *parts[-2:]]


def _replace(old: str, new: str) -> dict[str, Any]:
  return {'type': 'Replace', 'pattern': {'String': old}, 'content': new}


def _added(index: int, piece: Piece) -> dict[str, Any]:
  flags = {'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False, 'special': True}
  return {'id': index, 'content': piece.text, **flags}


def _unigram(model: Model) -> dict[str, Any]:
  """Build the scores.

  A user-defined symbol has a score that no other segmentation of it reaches (unigram_model.cc, EncodeOptimized).
  """
  most = max((piece.score for piece in model.pieces if piece.type == NORMAL), default=0.0)
  vocab = [
    [piece.text, len(piece.text.encode()) * most - 0.1 if piece.type == USER_DEFINED else piece.score]
    for piece in model.pieces
  ]
  return {'type': 'Unigram', 'unk_id': model.unk_id, 'vocab': vocab, 'byte_fallback': model.byte_fallback}


def _bpe(model: Model) -> dict[str, Any]:
  ids = {piece.text: index for index, piece in enumerate(model.pieces) if piece.type == NORMAL}
  merges: list[list[str]] = []
  for text in sorted(ids, key=lambda text: (-model.pieces[ids[text]].score, ids[text])):
    splits = [(text[:cut], text[cut:]) for cut in range(1, len(text))]
    valid = [split for split in splits if split[0] in ids and split[1] in ids]
    merges += map(list, sorted(valid, key=lambda split: (ids[split[0]], ids[split[1]])))
  return {
    'type': 'BPE',
    'dropout': None,
    'unk_token': model.pieces[model.unk_id].text,
    'continuing_subword_prefix': None,
    'end_of_word_suffix': None,
    'fuse_unk': True,
    'byte_fallback': model.byte_fallback,
    'ignore_merges': any(len(piece.text) > 1 for piece in _symbols(model)),  # symbols are matched whole
    'vocab': {piece.text: index for index, piece in enumerate(model.pieces)},
    'merges': merges,
  }


@functools.cache
def _proto() -> Any:
  """Build the class of `ModelProto`, with the fields that are read."""
  field = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(name='plm_jax/spm.proto', package='plm_jax.spm', syntax='proto2')
  for name, fields in _MESSAGES.items():
    message_type = file.message_type.add(name=name)
    for key, field_number, kind, default in fields:
      entry = message_type.field.add(name=key, number=field_number, label=field.LABEL_OPTIONAL)
      if kind in _MESSAGES:
        entry.type, entry.type_name = field.TYPE_MESSAGE, f'.plm_jax.spm.{kind}'
        entry.label = field.LABEL_REPEATED if key == 'pieces' else field.LABEL_OPTIONAL
      else:
        entry.type, entry.default_value = field.Type.Value(f'TYPE_{kind.upper()}'), default
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(pool.FindMessageTypeByName('plm_jax.spm.ModelProto'))
