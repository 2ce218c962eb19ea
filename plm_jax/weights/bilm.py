"""ELMo's published files (allenai/bilm-tf): `options.json`, HDF5 weights and optionally `vocab.txt`.

The names are those of bilm/training.py, `dump_weights`; the meaning of the numbers is that of bilm/model.py:

    char_embed                                          [261, e]         our row 0, for no word, is missing
    CNN/W_cnn_i, b_cnn_i                                [1, i+1, e, k]   filters over i + 1 characters
    CNN_high_i/W_carry, b_carry, W_transform, b_transform                of gate and transform
    CNN_proj/W_proj, b_proj                             [sum of k, p]
    RNN_d/RNN/MultiRNNCell/Celli/LSTMCell/W_0, B        [2 p, 4 f]       of [x; h]; d is 0 forward, 1 backward
    RNN_d/RNN/MultiRNNCell/Celli/LSTMCell/W_P_0         [f, p]

TensorFlow's LSTM has its gates in the order input, cell, forget, output, and adds 1 to the forget gate.

The softmax is not in these files, so no word can be predicted. The vocabulary only numbers the words of that softmax:
without one, every word is still read by its characters.
"""

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from plm_jax.checkpoint import Leaf
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.config import build
from plm_jax.core import errors
from plm_jax.core.types import Template
from plm_jax.io import files
from plm_jax.models.elmo import Config, Elmo
from plm_jax.text import chars, words
from plm_jax.text.tokenizer import Vocab
from plm_jax.weights import fields, release, shapes

log = logging.getLogger(__name__)

OPTIONS, WEIGHTS, VOCAB = ('*options.json',), ('*.hdf5', '*.h5'), ('vocab*.txt',)  # names of the published files
TEMPLATE = Template((('A', 0),), (('A', 0), ('B', 0)))  # the network adds the words that begin and end a sentence
NO_WORD = '!!!MAXTERMID'  # the last line of a published vocabulary
GATES = (0, 2, 1, 3)  # indices of their gates in our order: input, forget, cell, output
FORGET = 2  # index of their forget gate
CHARACTERS = chars.PADDING + 1  # rows of our table

_CLIP = fields.number(above=0)
_FILTERS = fields.Field(
  'a list of [width, count] with the widths 1, 2, 3 and so on',
  lambda value: (
    isinstance(value, list)
    and all(isinstance(one, list) and len(one) == 2 and fields.size().holds(one[1]) for one in value)
    and [one[0] for one in value] == [*range(1, len(value) + 1)]
  ),
)
_EMBEDDING = fields.Field(
  'an object with dim, the width of the vector of a character',
  lambda value: isinstance(value, dict) and fields.size().holds(value.get('dim')),
)
FIELDS: Mapping[str, fields.Fields] = {
  'lstm': {
    'use_skip_connections': fields.fixed(True)._replace(default=fields.REQUIRED),
    'projection_dim': fields.size(),
    'dim': fields.size(),
    'n_layers': fields.layers(1),
    'cell_clip': _CLIP,
    'proj_clip': _CLIP,
  },
  'char_cnn': {
    'activation': fields.fixed('relu')._replace(default=fields.REQUIRED),
    'filters': _FILTERS,
    'n_highway': fields.whole(0, most=64),
    'embedding': _EMBEDDING,
    # training writes 261; users set 262 by hand before they use the files
    'n_characters': fields.choice(fields.REQUIRED, (CHARACTERS, CHARACTERS - 1)),
    'max_characters_per_token': fields.fixed(chars.SLOTS)._replace(default=fields.REQUIRED),
  },
}


class Bilm(NamedTuple):
  """An open folder of bilm's files."""

  block: Mapping[str, Any]  # the model block of a config
  leaves: Mapping[str, Leaf]  # our parameters by path; each is read when it is used
  vocab: Vocab  # the words of the softmax; without a file, the three special ones


def is_bilm(folder: Path) -> bool:
  """Check for options, with HDF5 weights or without Hugging Face's config.json."""
  return bool(_named(folder, OPTIONS)) and (bool(_named(folder, WEIGHTS)) or not files.exists(folder / release.CONFIG))


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Bilm]:
  """Read options and vocabulary; check names and shapes; the leaves read numbers.

  Raises:
    WeightsError: h5py is not installed, or an error in the files; the message names field, line or dataset.
  """
  options = _only(folder, OPTIONS)
  if not _named(folder, WEIGHTS):
    raise WeightsError(f'{folder} has {options.name}, but no weights ({" or ".join(WEIGHTS)}): fetch them')
  weights = _only(folder, WEIGHTS)
  vocab = _vocab(folder)
  with errors.stage(str(options)):
    overrides = _overrides(release.read_json(options))
    block = {'name': 'elmo', 'variant': 'elmo-original', 'overrides': overrides}
    trunk = build.make('models', block, vocab_size=vocab.size)
  with _file(weights) as file:
    with _reading(weights):
      datasets = _datasets(file, _shapes(trunk.config), where=f'{weights}, dataset', options=options)

    def read(name: str) -> np.ndarray:
      with _reading(weights):
        numbers = datasets[name][()]
      if not np.isfinite(numbers).all():
        raise WeightsError(f'{weights}, dataset {name!r} has values that are not finite: fetch the file again')
      return numbers

    yield Bilm(block, _leaves(trunk, read), vocab)


def _overrides(options: Mapping[str, Any]) -> dict[str, Any]:
  """Convert the options to our fields; raise ValueError for unsupported ones."""
  checked = {}
  for name, expected in FIELDS.items():
    if not isinstance(options.get(name), dict):
      raise ValueError(f'{name} is missing: it must be an object with {", ".join(expected)}')
    try:
      checked[name] = fields.complete(expected, options[name])
    except ValueError as error:
      raise ValueError(f'{name}.{error}') from error
  lstm, characters = checked['lstm'], checked['char_cnn']
  return {
    'hidden_dim': 2 * lstm['projection_dim'],
    'num_layers': lstm['n_layers'],
    'mlp_dim': lstm['dim'],
    'filters': [count for _, count in characters['filters']],
    'char_dim': characters['embedding']['dim'],
    'highway_layers': characters['n_highway'],
    'cell_clip': float(lstm['cell_clip']),
    'projection_clip': float(lstm['proj_clip']),
  }


def _shapes(c: Config) -> dict[str, tuple[int, ...]]:
  e, f, p, wide = c.char_dim, c.mlp_dim, c.projection_dim, sum(c.filters)
  datasets: dict[str, tuple[int, ...]] = {'char_embed': (CHARACTERS - 1, e)}
  for index, count in enumerate(c.filters):
    datasets |= {f'CNN/W_cnn_{index}': (1, index + 1, e, count), f'CNN/b_cnn_{index}': (count,)}
  for index in range(c.highway_layers):
    for part in ('carry', 'transform'):
      datasets |= {f'CNN_high_{index}/W_{part}': (wide, wide), f'CNN_high_{index}/b_{part}': (wide,)}
  datasets |= {'CNN_proj/W_proj': (wide, p), 'CNN_proj/b_proj': (p,)}
  for index in range(c.num_layers):
    for cell in _cells(index):
      datasets |= {f'{cell}/W_0': (2 * p, 4 * f), f'{cell}/B': (4 * f,), f'{cell}/W_P_0': (f, p)}
  return datasets


def _cells(layer: int) -> list[str]:
  return [f'RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell' for direction in range(2)]


def _leaves(trunk: Elmo, read: Callable[[str], np.ndarray]) -> dict[str, Leaf]:
  """Open our parameters; each read takes the datasets of one layer."""
  c = trunk.config
  names = {'projection/kernel': 'CNN_proj/W_proj', 'projection/bias': 'CNN_proj/b_proj'}
  for index in range(len(c.filters)):
    names |= {f'filters_{index + 1}/kernel': f'CNN/W_cnn_{index}', f'filters_{index + 1}/bias': f'CNN/b_cnn_{index}'}
  for index in range(c.highway_layers):
    ours, theirs = f'highway_{index}', f'CNN_high_{index}'
    names |= {f'{ours}/transform/kernel': f'{theirs}/W_transform', f'{ours}/transform/bias': f'{theirs}/b_transform'}
    names |= {f'{ours}/gate/kernel': f'{theirs}/W_carry', f'{ours}/gate_bias': f'{theirs}/b_carry'}

  def read_words(path: str, shape: tuple[int, ...], layer: int | None) -> np.ndarray:
    if path == 'character_embed/table':
      whole = np.pad(read('char_embed'), ((1, 0), (0, 0)))  # [261, e] -> [262, e]
    else:
      whole = read(names[path]).reshape(shape)  # filters: [1, i+1, e, k] -> [i+1, e, k]
    return whole if layer is None else whole[layer]

  def read_layers(part: str, layer: int | None) -> np.ndarray:
    if layer is None:
      return np.stack([read_layers(part, index) for index in range(c.num_layers)])

    def of(cell: str) -> np.ndarray:
      return _of_cell(lambda name: read(f'{cell}/{name}'), part, c)

    return np.stack([of(cell) for cell in _cells(layer)])

  leaves = {}
  for path, shape in shapes.shapes(trunk).items():
    start, _, rest = path.partition('/')
    whole = functools.partial(read_words, rest, shape) if start == 'words' else functools.partial(read_layers, rest)
    leaves[f'trunk/{path}'] = Leaf(shape, whole)
  return leaves


def _of_cell(read: Callable[[str], np.ndarray], part: str, c: Config) -> np.ndarray:
  if part == 'projection':
    return read('W_P_0')  # [f, p]
  if part == 'bias':
    # [4 f] -> [4, f], plus the 1 that TensorFlow adds to the forget gate
    bias = read('B').reshape(4, c.mlp_dim)
    bias[FORGET] += 1
    return bias[GATES, :]
  rows = slice(c.projection_dim) if part == 'input' else slice(c.projection_dim, None)  # of [x; h]
  # [p, 4 f] -> [p, 4, f], gates in our order
  return read('W_0')[rows].reshape(c.projection_dim, 4, c.mlp_dim)[:, GATES]


def _named(folder: Path, patterns: Sequence[str]) -> list[Path]:
  return [file for pattern in patterns for file in files.listing(folder, pattern) if files.is_file(file)]


def _only(folder: Path, patterns: Sequence[str]) -> Path:
  """Return the one file of that name; raise WeightsError for several."""
  matches = _named(folder, patterns)
  if len(matches) > 1:
    raise WeightsError(f'{folder} has {" and ".join(file.name for file in matches)}: leave one of them in the folder')
  return matches[0]


def _vocab(folder: Path) -> Vocab:
  """Read the different words of `vocab.txt`, or return the special ones."""
  special = tuple(words.SPECIALS['elmo'].values())
  if not _named(folder, VOCAB):
    log.info('%s has no %s: every word is unknown and read by its characters', folder, VOCAB[0])
    return words.of_list(special)
  file = _only(folder, VOCAB)
  with errors.stage(str(file)):
    lines = [line.strip() for line in files.read_utf8(file).split('\n')]
  tokens = tuple(dict.fromkeys(line for line in lines if line not in ('', NO_WORD)))
  if missing := [token for token in special if token not in tokens]:
    raise WeightsError(f'{file} has no {", ".join(missing)}: fetch it again, or remove it')
  return words.of_list(tokens)


@contextlib.contextmanager
def _file(path: Path) -> Iterator[Any]:
  try:
    import h5py
  except ModuleNotFoundError:
    raise WeightsError(
      f'{path} needs the package h5py, which is not installed: bash launch/setup.sh hdf5 (pip install -r '
      'requirements/hdf5.txt)'
    ) from None
  with _reading(path):
    file = h5py.File(path, 'r')
  with file:
    yield file


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[None]:
  """Convert errors of h5py for a damaged file to WeightsError."""
  try:
    yield
  except (OSError, RuntimeError, KeyError) as error:
    raise WeightsError(f'{path} is damaged or not HDF5 ({error}): fetch it again') from error


def _datasets(file: Any, shapes: Mapping[str, tuple[int, ...]], *, where: str, options: Path) -> dict[str, Any]:
  """Return checked datasets by name; raise WeightsError if they do not fit."""
  import h5py

  present: list[str] = []
  file.visititems(lambda name, item: present.append(name) if isinstance(item, h5py.Dataset) else None)
  for name, shape in shapes.items():
    if name not in present:
      raise WeightsError(f'{where} {name!r} is missing, but required by {options.name}: fetch both files again')
    item = file[name]
    if item.shape != shape or item.dtype.kind != 'f':
      raise WeightsError(
        f'{where} {name!r} is {item.dtype}{list(item.shape)}, but must be floats {list(shape)} by {options.name}: the '
        'two files belong to different models; fetch both again'
      )
    if item.external or item.is_virtual or item.id.get_storage_size() < item.nbytes:
      raise WeightsError(f'{where} {name!r} is incomplete or compressed: fetch the file again')
  if others := sorted(set(present) - shapes.keys()):
    raise WeightsError(
      f'{where} {others[0]!r} is not in the network of {options.name}: the two files belong to different models; fetch '
      'both again'
    )
  return {name: file[name] for name in shapes}
