"""T5 1.0 and 1.1, mT5 and ByT5 of T5X: a zarr folder of TensorStore for each parameter, next to the file `checkpoint`.

Layers are separate (`target.encoder.layers_0.attention.query.kernel`) or scanned (`target.encoder.encoder...`, on axis
1). The configuration follows from names and shapes; a config.json in the folder overrides it. Not tried with a released
file: TensorStore wrote the folders of the tests, with the names of T5X's code (t5x/examples/t5, scalable_t5).
"""

import itertools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from plm_jax.checkpoint import Leaf
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.io import files, model_folders
from plm_jax.weights.release import CONFIG, Converted, copy_tokenizer

_SIDES = ('encoder', 'decoder')
_ATTENTION = {'query': 'q', 'key': 'k', 'value': 'v', 'out': 'o'}
_SUBLAYERS = {
  'attention': '0.SelfAttention', 'self_attention': '0.SelfAttention', 'encoder_decoder_attention': '1.EncDecAttention',
  'pre_attention_layer_norm': '0.layer_norm', 'pre_self_attention_layer_norm': '0.layer_norm',
  'pre_cross_attention_layer_norm': '1.layer_norm',
}  # fmt: skip
_ALONE = {
  'token_embedder/embedding': 'shared.weight',
  'decoder/logits_dense/kernel': 'lm_head.weight',
  'encoder/encoder_norm/scale': 'encoder.final_layer_norm.weight',
  'decoder/decoder_norm/scale': 'decoder.final_layer_norm.weight',
  **{
    f'{side}/relpos_bias/rel_embedding': f'{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight'
    for side in _SIDES
  },
}


def read(file: Path, folder: Path) -> Converted:
  """Find the parameters next to `file`; raise WeightsError for damaged ones."""
  source, leaves = file.parent, dict[str, Leaf]()
  for place in files.listing(source, 'target.*'):
    path, shape = place.name.removeprefix('target.').replace('.', '/'), _shape(place)
    found = re.fullmatch(r'(encoder|decoder)/(?:layers_(\d+)|\1)/(\w+)/(?:(\w+)/)?(kernel|scale)', path)
    if found is None or path in _ALONE:
      leaves[_ALONE.get(path, path)] = _leaf(place, shape, None)
      continue
    side, layer, part, matrix, _ = found.groups()
    last = '1' if side == 'encoder' else '2'
    end = _SUBLAYERS.get(part, f'{last}.layer_norm' if part == 'pre_mlp_layer_norm' else f'{last}.DenseReluDense')
    end += f'.{_ATTENTION.get(matrix, matrix)}' if matrix else ''
    for index in range((*shape, 0, 0)[1]) if layer is None else [int(layer)]:  # none of a shape without axis 1
      leaf = _leaf(place, shape, index if layer is None else None)
      leaves[f'{side}.block.{index}.layer.{end}.weight'] = leaf
  config = {**_config(source, {name: leaf.shape for name, leaf in leaves.items()}), **model_folders.config_of(source)}
  files.write_json(folder / CONFIG, config)
  copy_tokenizer(source, folder)
  return Converted(source, config, leaves)


def _shape(place: Path) -> tuple[int, ...]:
  """Read a shape; raise WeightsError if a chunk is missing."""
  about = model_folders.read(place / '.zarray')
  try:
    shape, separator = tuple(about['shape']), about.get('dimension_separator', '.')
    counts = [range(-(-size // chunk)) for size, chunk in zip(shape, about['chunks'], strict=True)]
    if min(shape, default=1) < 1 or separator not in ('.', '/') or not re.fullmatch('<f[248]|bfloat16', about['dtype']):
      raise ValueError(about)
  except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
    raise WeightsError(f'{place} has no valid .zarray of TensorStore: fetch the folder again') from error
  for chunk in itertools.product(*counts):
    name = separator.join(map(str, chunk)) or '0'
    if not files.is_file(place / name):  # TensorStore would read zeros
      raise WeightsError(f'{place / name} is missing, a part of a parameter: fetch the folder again')
  return shape


def _leaf(place: Path, shape: tuple[int, ...], layer: int | None) -> Leaf:
  """Open a parameter or scanned layer in transformers' layout."""
  own = shape if layer is None else (shape[0], *shape[2:])  # [d, n, ...] -> [d, ...]
  if len(own) == 3:  # [d, h, k] -> [d, h k], and of the output [h, k, d] -> [h k, d]
    own = (own[0] * own[1], own[2]) if '.out.' in place.name else (own[0], own[1] * own[2])
  turned = len(own) == 2 and not place.name.endswith('.embedding')

  def whole(_: int | None) -> np.ndarray:
    store = {'driver': 'zarr', 'kvstore': {'driver': 'file', 'path': str(files.local_path(place, what='SRC'))}}
    try:
      opened = tensorstore.open(store, open=True).result()
      array = (opened if layer is None else opened[:, layer]).read().result().reshape(own)
    except ValueError as error:
      raise WeightsError(f'{place} is damaged ({str(error)[:80]}): fetch the folder again') from error
    return array.T if turned else array

  return Leaf(own[::-1] if turned else own, whole)


def _config(source: Path, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
  try:
    (buckets, heads), (vocab_size, width) = shapes[_ALONE['encoder/relpos_bias/rel_embedding']], shapes['shared.weight']
    joined = shapes['encoder.block.0.layer.0.SelfAttention.q.weight'][0]
    gated = 'encoder.block.0.layer.1.DenseReluDense.wi_0.weight' in shapes
    mlp = shapes[f'encoder.block.0.layer.1.DenseReluDense.wi{"_0" * gated}.weight'][0]
  except (KeyError, ValueError) as error:
    raise WeightsError(f'{source} is no encoder and decoder of T5X: it has no {error}') from error
  queries = [name for name in shapes if name.endswith('SelfAttention.q.weight')]
  depth = {side: sum(name.startswith(f'{side}.') for name in queries) for side in _SIDES}
  return {
    'model_type': 't5',
    'architectures': ['T5ForConditionalGeneration'],
    'vocab_size': vocab_size,
    'd_model': width,
    'd_kv': joined // heads,
    'd_ff': mlp,
    'num_layers': depth['encoder'],
    'num_decoder_layers': depth['decoder'],
    'num_heads': heads,
    'relative_attention_num_buckets': buckets,
    'feed_forward_proj': 'gated-gelu' if gated else 'relu',
    'tie_word_embeddings': 'lm_head.weight' not in shapes,
    'pad_token_id': 0,
    'eos_token_id': 1,
    'decoder_start_token_id': 0,
  }
