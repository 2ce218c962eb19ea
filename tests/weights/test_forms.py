"""Weights in msgpack of Flax and in pickles of PyTorch, against the models of transformers that they are made from."""

import contextlib
import io
import json
import pathlib
import pickle
import re
import shutil
import sys
from collections.abc import Callable
from typing import Any

import flax.serialization
import flax.traverse_util
import msgpack
import numpy as np
import pytest
import tensorstore

from plm_jax import weights
from plm_jax.cli.command import run
from plm_jax.commands import convert
from tests import tiny
from tests.weights import published

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

FLAX = (
  'bert-pretraining', 'bert-mlm', 'bert-body', 'bert-rows', 'roberta-mlm', 'albert-pretraining', 'distilbert-mlm',
  'electra-discriminator', 'electra-generator', 'gpt2', 'gpt2-body', 'bart', 'mbart', 't5', 't5-v1_1', 't5-encoder',
  'mt5', 'llama', 'llama-tied',
)  # fmt: skip
FAST = ('bert-pretraining', 'gpt2', 't5')


def flax_tree(model: Any) -> dict[str, Any]:
  """Rename parameters as modeling_flax_pytorch_utils.py of transformers 4 does, which has no tied ones."""
  embeddings = {f'{name}.weight' for name, part in model.named_modules() if isinstance(part, torch.nn.Embedding)}
  norms = {f'{name}.weight' for name, part in model.named_modules() if isinstance(part, torch.nn.LayerNorm)}
  tree, seen = {}, set()
  for name, tensor in model.state_dict().items():
    *path, last = name.split('.')
    array = tensor.numpy()
    if tensor.data_ptr() in seen or name.endswith(('position_ids', 'token_type_ids')):
      continue
    seen.add(tensor.data_ptr())
    if name in embeddings:
      last = 'embedding'
    elif name in norms:
      last = 'scale'
    elif last == 'weight' and array.ndim == 2:
      last, array = 'kernel', array.T
    tree[*path, last] = array
  return tree


def write_flax(name: str, folder: pathlib.Path) -> pathlib.Path:
  model = published.make_model(name)
  model.config.save_pretrained(folder)
  config = json.loads((folder / 'config.json').read_text())
  (folder / 'config.json').write_text(json.dumps({**config, 'architectures': [type(model).__name__]}))
  tree = flax.traverse_util.unflatten_dict(flax_tree(model))
  (folder / 'flax_model.msgpack').write_bytes(flax.serialization.to_bytes(tree))
  return folder


def write_torch(name: str, folder: pathlib.Path) -> pathlib.Path:
  model = published.make_model(name)
  published.save(name, folder)
  (folder / 'model.safetensors').unlink()
  torch.save(model.state_dict(), folder / 'pytorch_model.bin')
  return folder


def command(*words: object) -> int:
  return run(lambda: convert.main(list(map(str, words))))


def check(name: str, folder: pathlib.Path, target: pathlib.Path) -> None:
  """Compare states and logits of an imported folder with theirs."""
  assert command('import', folder, target) == 0
  trunk, params = weights.load(target)
  states, logits = published.states_of_theirs(published.make_model(name))
  assert tiny.worst(published.states_of_ours(trunk, params), states) < 2e-6
  heads = published.CASES[name].heads
  if logits is not None:
    assert tiny.worst(published.logits_of_ours(trunk, params, heads[0] if heads else None), logits) < 2e-6


@pytest.mark.parametrize('name', [pytest.param(n, marks=() if n in FAST else pytest.mark.slow) for n in FLAX])
def test_flax(name: str, tmp_path: pathlib.Path) -> None:
  check(name, write_flax(name, tmp_path / 'theirs'), tmp_path / 'new')


def test_flax_in_several_files(tmp_path: pathlib.Path) -> None:
  folder = write_flax('gpt2', tmp_path / 'theirs')
  (folder / 'flax_model.msgpack').unlink()
  tree = flax_tree(published.make_model('gpt2'))
  weight_map = {}
  for index, part in enumerate((list(tree)[:20], list(tree)[20:]), start=1):
    file = folder / f'flax_model-0000{index}-of-00002.msgpack'
    content = flax.serialization.to_bytes(flax.traverse_util.unflatten_dict({key: tree[key] for key in part}))
    file.write_bytes(content)
    weight_map |= {'/'.join(key): file.name for key in part}
  (folder / 'flax_model.msgpack.index.json').write_text(json.dumps({'metadata': {}, 'weight_map': weight_map}))
  check('gpt2', folder, tmp_path / 'new')
  refused(folder, '00001-of-00002', lambda file: file.unlink(), 'which is missing: fetch that file')


def test_arrays_in_chunks(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  monkeypatch.setattr(flax.serialization, 'MAX_CHUNK_SIZE', 200)
  check('gpt2', write_flax('gpt2', tmp_path / 'theirs'), tmp_path / 'new')


def refused(folder: pathlib.Path, name: str, damage: Callable[[pathlib.Path], Any], message: str) -> None:
  """Damage a file of a copy of a folder, and import it: one line, and nothing is left."""
  copy = folder.with_name('copy')
  shutil.rmtree(copy, ignore_errors=True)
  shutil.copytree(folder, copy)
  (file,) = (file for file in copy.iterdir() if name in file.name)
  damage(file)
  before = sorted(copy.parent.iterdir())
  out = io.StringIO()
  with contextlib.redirect_stderr(out):
    assert command('import', copy, copy.with_name('bad')) == 2
  last = out.getvalue().strip().split('\n')[-1]
  assert message in last and len(last.replace(str(copy), '')) <= 240, last
  assert sorted(copy.parent.iterdir()) == before


def _array(shape: list[int], dtype: str = 'float32', size: int = 4) -> msgpack.ExtType:
  return msgpack.ExtType(1, msgpack.packb((shape, dtype, b'\0' * size)))


BOMBS = {
  'a list': msgpack.packb({'a': [[]] * 2**16}),
  'a list that is not there': b'\x81\xa1a\xdd\xff\xff\xff\xff',
  'maps in maps': b'\x81\xa1a' * 4000,
  'a large shape': msgpack.packb({'a': _array([2**40])}),
  'a negative shape': msgpack.packb({'a': _array([-1])}),
  'objects': msgpack.packb({'a': _array([1], 'O', 8)}),
  'another object': msgpack.packb({'a': msgpack.ExtType(7, b'x')}),
  'no map': msgpack.packb(3),
}


@pytest.mark.parametrize('name', BOMBS)
def test_msgpack_of_other_content(name: str, tmp_path: pathlib.Path) -> None:
  (tmp_path / 'm').mkdir()
  (tmp_path / 'm' / 'config.json').write_text('{"model_type": "bert"}')
  (tmp_path / 'm' / 'flax_model.msgpack').write_bytes(BOMBS[name])
  refused(tmp_path / 'm', 'msgpack', lambda file: None, 'is damaged or no msgpack of Flax')


def test_half_a_file(tmp_path: pathlib.Path) -> None:
  folder = write_flax('bert-mlm', tmp_path / 'theirs')
  refused(folder, 'msgpack', cut, 'is damaged or no msgpack of Flax')
  refused(folder, 'config', lambda file: file.unlink(), 'no config.json with a "model_type"')
  folder = write_torch('bert-mlm', tmp_path / 'pickled')
  refused(folder, 'pytorch', cut, 'is damaged or cut short: fetch it again')


def cut(file: pathlib.Path) -> None:
  file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


WRAPPED: dict[str, Callable[[dict[str, Any]], Any]] = {
  'state_dict': lambda state: {'state_dict': state, 'epoch': 3},
  'model': lambda state: {'model': state, 'optimizer': {'lr': 1.0}},
  'model_state_dict': lambda state: {'model_state_dict': state, 'epoch': 3},
  'DataParallel': lambda state: {f'module.{name}': tensor for name, tensor in state.items()},
  'half precision': lambda state: {name: tensor.bfloat16() for name, tensor in state.items()},
}


@pytest.mark.parametrize('name', ['bert-mlm', *WRAPPED])
def test_pickles(name: str, tmp_path: pathlib.Path) -> None:
  folder = write_torch('bert-mlm', tmp_path / 'theirs')
  file = folder / 'pytorch_model.bin'
  if name == 'half precision':
    torch.save(WRAPPED[name](torch.load(file)), file)
    assert command('import', folder, tmp_path / 'new') == 0
    return
  if name in WRAPPED:  # another name, and the format before zip
    torch.save(WRAPPED[name](torch.load(file)), folder / 'best.pt', _use_new_zipfile_serialization=name == 'model')
    file.unlink()
  check('bert-mlm', folder if name != 'model' else folder / 'best.pt', tmp_path / 'new')


def test_pickles_in_several_files(tmp_path: pathlib.Path) -> None:
  folder = write_torch('t5', tmp_path / 'theirs')
  state = torch.load(folder / 'pytorch_model.bin')
  (folder / 'pytorch_model.bin').unlink()
  weight_map = {}
  for index, part in enumerate((list(state)[:9], list(state)[9:]), start=1):
    file = folder / f'pytorch_model-0000{index}-of-00002.bin'
    torch.save({name: state[name] for name in part}, file)
    weight_map |= dict.fromkeys(part, file.name)
  (folder / 'pytorch_model.bin.index.json').write_text(json.dumps({'metadata': {}, 'weight_map': weight_map}))
  check('t5', folder, tmp_path / 'new')
  refused(folder, '00002-of-00002', lambda file: file.unlink(), 'which is missing: fetch that file')


class Runs:
  def __reduce__(self) -> Any:
    return (print, ('code of a file runs',))


def itself() -> dict[str, Any]:
  content: dict[str, Any] = {}
  content['state_dict'] = content
  return content


OBJECTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
  'code': (lambda state: {**state, 'x': Runs()}, 'holds objects that are no tensors, which may run code'),
  'a number': (lambda state: {**state, 'x': 3}, "has 'x' of type int, but must be a state dict"),
  'a list': (lambda state: list(state.values()), 'has no tensors'),
  'a tensor': (lambda state: torch.ones(2), 'has no tensors'),
  'nothing': (lambda state: {}, 'has no tensors'),
  'numbered': (lambda state: {0: state['cls.predictions.bias']}, 'has no tensors'),
  'itself': (lambda state: state | {'model': itself()}, "has 'state_dict' of type dict"),
  'sparse': (lambda state: {**state, 'x': torch.ones(2, 2).to_sparse()}, "has 'x' of type Tensor"),
  'repeated': (lambda state: {'x': torch.ones(1).expand(2**40)}, "has 'x' of type Tensor"),
}


@pytest.mark.parametrize('name', OBJECTS)
def test_objects_that_are_no_tensors(name: str, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]) -> None:
  change, message = OBJECTS[name]
  folder = write_torch('bert-mlm', tmp_path / 'theirs')
  file = folder / 'pytorch_model.bin'
  torch.save(change(torch.load(file)), file)
  refused(folder, 'pytorch', lambda file: None, message)
  assert 'code of a file' not in capfd.readouterr().out


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n', 'is damaged or cut short: fetch it again'),
    (b'', 'is damaged or cut short: fetch it again'),
    (pickle.dumps({'x': np.ones(3)}), 'holds objects that are no tensors'),
  ],
  ids=['a pointer', 'empty', 'numpy'],
)
def test_files_that_are_not_pytorchs_are_named_in_one_line(
  content: bytes, message: str, tmp_path: pathlib.Path, recwarn: pytest.WarningsRecorder
) -> None:
  folder = write_torch('bert-mlm', tmp_path / 'theirs')
  refused(folder, 'pytorch', lambda file: file.write_bytes(content), message)
  assert not [warning for warning in recwarn if 'pickle protocol' in str(warning.message)]


def test_without_torch(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  folder = write_torch('bert-mlm', tmp_path / 'theirs')
  monkeypatch.setitem(sys.modules, 'torch', None)
  refused(folder, 'pytorch', lambda file: None, 'which is not installed: bash launch/setup.sh compare')


def t5x_name(name: str) -> str:
  """Convert a name of transformers to T5X's, of t5x/examples/t5/network.py."""
  alone = {
    'shared.weight': 'token_embedder.embedding', 'lm_head.weight': 'decoder.logits_dense.kernel',
    'encoder.final_layer_norm.weight': 'encoder.encoder_norm.scale',
    'decoder.final_layer_norm.weight': 'decoder.decoder_norm.scale',
  }  # fmt: skip
  if name in alone:
    return alone[name]
  side, _, index, _, sub, *rest = name.split('.')
  if 'relative_attention_bias' in name:
    return f'{side}.relpos_bias.rel_embedding'
  start = f'{side}.layers_{index}'
  own = 'attention' if side == 'encoder' else 'self_attention'
  matrix = {'q': 'query', 'k': 'key', 'v': 'value', 'o': 'out'}
  if rest[0] == 'layer_norm':
    parts = ('self_attention', 'cross_attention', 'mlp') if side == 'decoder' else ('attention', 'mlp')
    return f'{start}.pre_{parts[int(sub)]}_layer_norm.scale'
  if rest[0] == 'DenseReluDense':
    return f'{start}.mlp.{rest[1]}.kernel'
  return f'{start}.{"encoder_decoder_attention" if rest[0] == "EncDecAttention" else own}.{matrix[rest[1]]}.kernel'


def write_t5x(name: str, folder: pathlib.Path, *, scanned: bool = False) -> pathlib.Path:
  """Write TensorStore's folders in T5X's layout; `scanned` as scalable_t5 stacks layers, with an axis of heads."""
  model = published.make_model(name)
  tree: dict[str, np.ndarray] = {}
  for key, tensor in model.state_dict().items():
    if key.endswith('embed_tokens.weight') or (key == 'lm_head.weight' and name == 't5'):
      continue
    theirs = t5x_name(key)
    tree[theirs] = tensor.numpy() if tensor.ndim == 1 or theirs.endswith('.embedding') else tensor.numpy().T
  if scanned:
    heads = model.config.num_heads
    stacks: dict[str, list[np.ndarray]] = {}
    for key in [key for key in tree if '.layers_' in key]:
      side = key.split('.')[0]
      array = tree.pop(key)
      if key.endswith('out.kernel'):
        array = array.reshape(heads, -1, array.shape[-1])
      elif 'attention.' in key:
        array = array.reshape(len(array), heads, -1)
      stacks.setdefault(re.sub(r'layers_\d+', side, key), []).append(array)
    tree |= {key: np.stack(arrays, axis=1) for key, arrays in stacks.items()}
  for key, array in tree.items():
    place = {'driver': 'file', 'path': str(folder / f'target.{key}')}
    chunks = [-(-size // 2) if axis == 0 else size for axis, size in enumerate(array.shape)]
    about = {'chunks': chunks, 'compressor': {'id': 'gzip'}, 'dtype': '<f4', 'shape': array.shape}
    spec = {'driver': 'zarr', 'kvstore': place, 'metadata': about}
    tensorstore.open(spec, create=True).result().write(array).result()
  (folder / 'checkpoint').write_bytes(flax.serialization.to_bytes({'version': 3, 'optimizer': {}}))
  return folder


@pytest.mark.parametrize(('name', 'scanned'), [('t5', False), ('t5-v1_1', False), ('t5-v1_1', True), ('byt5', False)])
def test_t5x(name: str, scanned: bool, tmp_path: pathlib.Path) -> None:
  check(name, write_t5x(name, tmp_path / 'theirs', scanned=scanned), tmp_path / 'new')


def edit(then: Callable[[pathlib.Path], object] = bool, **changes: Any) -> Callable[[pathlib.Path], None]:
  def change(place: pathlib.Path) -> None:
    about = json.loads((place / '.zarray').read_text())
    (place / '.zarray').write_text(json.dumps(about | changes))
    then(place)

  return change


def test_damaged_t5x(tmp_path: pathlib.Path) -> None:
  folder = write_t5x('t5', tmp_path / 'theirs')
  query, norm = 'target.encoder.layers_0.attention.query.kernel', 'target.decoder.layers_1.pre_mlp_layer_norm.scale'
  refused(folder, query, lambda place: (place / '1.0').unlink(), 'is missing, a part of a parameter')
  refused(folder, query, lambda place: cut(place / '0.0'), 'is damaged')
  refused(folder, query, lambda place: (place / '.zarray').write_text('{}'), 'has no valid .zarray')
  refused(folder, query, lambda place: (place / '.zarray').write_text('{'), 'cannot be read')
  for change in ({'dimension_separator': 3}, {'shape': [-16, 16]}, {'dtype': '<i4'}, {'dtype': 4}):
    refused(folder, query, edit(**change), 'has no valid .zarray')
  scanned = write_t5x('t5-v1_1', tmp_path / 'scanned', scanned=True)
  norm_of_all = 'target.encoder.encoder.pre_mlp_layer_norm.scale'
  refused(scanned, norm_of_all, edit(shape=[8], chunks=[8], then=lambda place: (place / '0').touch()), 'is missing')
  refused(folder, norm, shutil.rmtree, 'is missing')
  refused(folder, 'target.encoder.relpos_bias', shutil.rmtree, 'is no encoder and decoder of T5X')
