"""Weights in msgpack of Flax and in pickles of PyTorch, against the models of transformers that they are made from."""

import contextlib
import io
import json
import pathlib
import shutil
import sys
from collections.abc import Callable
from typing import Any

import flax.serialization
import flax.traverse_util
import msgpack
import pytest

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


OBJECTS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
  'code': (lambda state: {**state, 'x': Runs()}, 'holds objects that are no tensors, which may run code'),
  'a number': (lambda state: {**state, 'x': 3}, "has 'x' of type int, but must be a state dict"),
  'a list': (lambda state: list(state.values()), 'has no tensors'),
  'a tensor': (lambda state: torch.ones(2), 'has no tensors'),
  'nothing': (lambda state: {}, 'has no tensors'),
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


def test_without_torch(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  folder = write_torch('bert-mlm', tmp_path / 'theirs')
  monkeypatch.setitem(sys.modules, 'torch', None)
  refused(folder, 'pytorch', lambda file: None, 'which is not installed: bash launch/setup.sh compare')
