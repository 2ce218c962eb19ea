"""Released pickles of networks that transformers has no class for: ULMFiT's language models and CoVe's encoder.

fwd_wt103.h5, bwd_wt103.h5, lstm_wt103.pth    ULMFiT (fastai), with itos_*.pkl, the words by id, in the same folder
wmtlstm-*.pth                                 CoVe (salesforce/cove), with one file of word vectors in the same folder

Not tried with the released files: the tests save LSTMs of PyTorch under the names of fastai's and CoVe's code.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from plm_jax.checkpoint import in_memory
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.config import build
from plm_jax.io import files
from plm_jax.text import words
from plm_jax.weights import shapes, word_vectors
from plm_jax.weights.bilm import Bilm
from plm_jax.weights.forms import torch

_ROLES = {'unk': ('_unk_', 'xxunk'), 'pad': ('_pad_', 'xxpad'), 'bos': ('xbos', 'xxbos')}


@contextlib.contextmanager
def opened(file: Path) -> Iterator[Bilm]:
  """Read a network and its words; raise WeightsError for other content."""
  state = {name: tensor.float().numpy() for name, tensor in torch.state(file).items()}
  try:
    block, vocab, arrays = (_cove if 'weight_ih_l0' in state else _ulmfit)(file, state)
    trunk = build.make('models', block, vocab_size=vocab.size)
    expected = {f'trunk/{path}': shape for path, shape in shapes.shapes(trunk).items()}
  except (LookupError, ValueError) as error:
    raise WeightsError(f'{file} is no network of ULMFiT or CoVe ({error}): fetch it again') from error
  if wrong := [path for path, shape in expected.items() if arrays[path].shape != shape]:
    raise WeightsError(
      f'{file}: {wrong[0]} has shape {arrays[wrong[0]].shape} instead of {expected[wrong[0]]}: fetch it again'
    )
  yield Bilm(block, in_memory(arrays, where=str(file)), vocab)


def _gates(array: np.ndarray) -> np.ndarray:
  """Split gates, in our order: [4 f, n] -> [n, 4, f]."""
  split = array.reshape(4, -1, *array.shape[1:])
  return np.moveaxis(split, -1, 0) if array.ndim == 2 else split


def _ulmfit(file: Path, state: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], words.Vocab, dict[str, np.ndarray]]:
  ordered = sorted(state, key=lambda name: name.endswith('_raw'))  # the weights before dropout replace those after it
  short = {re.sub(r'^0\.|\.module|_raw$', '', name): state[name] for name in ordered}
  table, depth = short['encoder.weight'], sum(name.endswith('weight_ih_l0') for name in short)
  if not np.array_equal(short.get('1.decoder.weight', table), table):
    raise ValueError('its output differs from its token table')
  arrays = {
    'trunk/token_embed/table': table,
    'trunk/output_bias/bias': short.get('1.decoder.bias', np.zeros(len(table))),
  }
  for layer in range(depth):
    weight, bias = (f'rnns.{layer}.{kind}_{{}}_l0' for kind in ('weight', 'bias'))
    parts = {'input/kernel': weight.format('ih'), 'recurrent': weight.format('hh'), 'bias': bias.format('ih')}
    parts['recurrent_bias'] = bias.format('hh')
    arrays |= {f'trunk/lstm_{layer}/{ours}': _gates(short[theirs]) for ours, theirs in parts.items()}
  tokens = _itos(file.parent)
  roles = {role: name for role, names in _ROLES.items() for name in names if name in tokens}
  sizes = {'hidden_dim': table.shape[1], 'num_layers': depth, 'mlp_dim': short['rnns.0.weight_hh_l0'].shape[1]}
  return {'name': 'awd_lstm', 'variant': 'ulmfit', 'overrides': sizes}, words.of_list(tokens, roles), arrays


def _itos(folder: Path) -> list[str]:
  found = files.listing(folder, 'itos*.pkl')
  if len(found) != 1:
    raise WeightsError(f'{folder} needs one file itos_*.pkl, the words of the model: fetch it into this folder')
  tokens = torch.plain(found[0])
  if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
    raise WeightsError(f'{found[0]} is no list of words: fetch it again')
  first = {token: index for index, token in reversed(list(enumerate(tokens)))}
  return [token if first[token] == index else f'{token} \0{index}' for index, token in enumerate(tokens)]


def _cove(file: Path, state: Mapping[str, np.ndarray]) -> tuple[dict[str, Any], words.Vocab, dict[str, np.ndarray]]:
  found = [path for path in files.listing(file.parent) if word_vectors.is_vectors(path)]
  if len(found) != 1:
    raise WeightsError(f'{file.parent} needs one file of word vectors (glove.840B.300d.txt): fetch it into this folder')
  vectors, roles = word_vectors.read(found[0]), words.SPECIALS['all']
  rows = [row for row, word in enumerate(vectors.words) if word not in roles.values()]
  vocab = words.of_list([*roles.values(), *(vectors.words[row] for row in rows)], roles)
  table = np.pad(vectors.vectors[rows], ((len(roles), 0), (0, 0)))
  depth, width = sum(name.startswith('weight_hh') for name in state) // 2, state['weight_hh_l0'].shape[1]
  arrays = {'trunk/token_embed/table': table}
  names = {'kernel': 'weight_ih', 'recurrent': 'weight_hh', 'bias': 'bias_ih', 'recurrent_bias': 'bias_hh'}
  for layer in range(depth):
    for ours, theirs in names.items():
      pair = [_gates(state[f'{theirs}_l{layer}{end}']) for end in ('', '_reverse')]
      arrays[f'trunk/lstm_{layer}/gates/{ours}'] = np.stack(pair, axis=int(ours == 'kernel'))
  sizes = {'word_dim': table.shape[1], 'hidden_dim': 2 * width, 'num_layers': depth}
  return {'name': 'cove', 'variant': 'cove', 'overrides': sizes}, vocab, arrays
