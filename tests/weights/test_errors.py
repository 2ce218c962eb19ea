"""Folders that are not sound: one message that names the file, the tensor and the fix, and nothing is written."""

import contextlib
import errno
import functools
import json
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np
import pytest
import safetensors.numpy

import plm_jax
from plm_jax import checkpoint, weights
from plm_jax.checkpoint import CheckpointError, tensor_files
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.cli.command import FAILED, WRONG_USAGE, run
from plm_jax.commands import convert
from plm_jax.core import param_paths
from plm_jax.core.errors import ConfigError, RunError
from plm_jax.core.types import PyTree
from plm_jax.io import checksums
from plm_jax.weights import release, shapes
from tests import tiny

SHARD = 20_000
QUERY = 'bert.encoder.layer.1.attention.self.query.weight'
TABLE = 'bert.embeddings.word_embeddings.weight'


@functools.cache
def make_model() -> tuple[nn.Module, PyTree]:
  trunk = tiny.make_trunk('bert', num_types=2)
  draw = np.random.default_rng(0)
  leaves = {path: draw.standard_normal(shape, np.float32) for path, shape in shapes.shapes(trunk).items()}
  return trunk, param_paths.nested(leaves)


def write_tokenizer(folder: pathlib.Path, size: int) -> None:
  """Write a tokenizer.json of `size` ids, the last of them an added token."""
  vocab = {f'word{number}': number for number in range(size - 1)}
  added = [{'id': size - 1, 'content': '[MASK]', 'special': True}]
  (folder / release.TOKENIZER).write_text(json.dumps({'model': {'vocab': vocab}, 'added_tokens': added}))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
  """Provide a sound folder of one file, with a tokenizer."""
  path = tmp_path / 'published'
  weights.save(path, *make_model())
  write_tokenizer(path, tiny.VOCAB.size)
  return path


def split(folder: pathlib.Path) -> None:
  """Split one file into several."""
  source = release.Release(folder)
  plans = {}
  for name in source:
    tensor = source.read(name)
    plans[name] = tensor_files.Plan(tensor.dtype, tensor.shape, lambda tensor=tensor: iter([tensor]))
  release.write(folder, source.config, plans, shard=SHARD)


def file_of(folder: pathlib.Path, name: str) -> pathlib.Path:
  index = folder / release.INDEX
  return folder / (json.loads(index.read_text())['weight_map'][name] if index.is_file() else release.SINGLE)


def change_tensors(folder: pathlib.Path, change: Callable[[dict[str, np.ndarray]], object], file: str = '') -> None:
  path = folder / (file or release.SINGLE)
  tensors = dict(safetensors.numpy.load_file(path))
  change(tensors)
  safetensors.numpy.save_file(tensors, path)


def change_json(folder: pathlib.Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
  content = json.loads((folder / name).read_text())
  change(content)
  (folder / name).write_text(json.dumps(content))


def change_header(folder: pathlib.Path, change: Callable[[dict[str, Any]], object]) -> None:
  data = (folder / release.SINGLE).read_bytes()
  size = int.from_bytes(data[:8], 'little')
  header = json.loads(data[8 : 8 + size])
  change(header)
  text = json.dumps(header).encode()
  (folder / release.SINGLE).write_bytes(len(text).to_bytes(8, 'little') + text + data[8 + size :])


# Ways to damage a folder ---------------------------------------------------------------------------------------------


def lose_tensor(folder: pathlib.Path) -> None:
  change_tensors(folder, lambda tensors: tensors.pop(QUERY))


def lose_tensor_of_shards(folder: pathlib.Path) -> None:
  split(folder)
  change_tensors(folder, lambda tensors: tensors.pop(QUERY), file_of(folder, QUERY).name)
  change_json(folder, release.INDEX, lambda index: index['weight_map'].pop(QUERY))


def lose_tensor_of_a_shard(folder: pathlib.Path) -> None:
  split(folder)
  change_tensors(folder, lambda tensors: tensors.pop(QUERY), file_of(folder, QUERY).name)


def lose_shard(folder: pathlib.Path) -> None:
  split(folder)
  file_of(folder, QUERY).unlink()


def lose_weight_map(folder: pathlib.Path) -> None:
  split(folder)
  change_json(folder, release.INDEX, lambda index: index.pop('weight_map'))


def leave_the_folder(folder: pathlib.Path) -> None:
  split(folder)
  change_json(folder, release.INDEX, lambda index: index['weight_map'].update({QUERY: '../published.safetensors'}))


def lose_part_of_a_head(folder: pathlib.Path) -> None:
  def change(tensors: dict[str, np.ndarray]) -> None:
    tensors['cls.predictions.bias'] = np.zeros(tiny.VOCAB.size, np.float32)

  change_tensors(folder, change)


def reshape_tensor(folder: pathlib.Path) -> None:
  change_tensors(folder, lambda tensors: tensors.update({QUERY: tensors[QUERY][:-1]}))


def change_vocabulary(folder: pathlib.Path) -> None:
  change_json(folder, release.CONFIG, lambda config: config.update(vocab_size=70))


def add_tokens(folder: pathlib.Path) -> None:
  write_tokenizer(folder, tiny.VOCAB.size + 1)


def cut(share: float) -> Callable[[pathlib.Path], None]:
  def damage(folder: pathlib.Path) -> None:
    data = (folder / release.SINGLE).read_bytes()
    (folder / release.SINGLE).write_bytes(data[: int(share * len(data))])

  return damage


def empty(folder: pathlib.Path) -> None:
  (folder / release.SINGLE).write_bytes(b'')


def spoil_header(folder: pathlib.Path) -> None:
  data = (folder / release.SINGLE).read_bytes()
  (folder / release.SINGLE).write_bytes(data[:8] + b'[' + data[9:])


def list_header(folder: pathlib.Path) -> None:
  (folder / release.SINGLE).write_bytes((2).to_bytes(8, 'little') + b'[]')


def rename_dtype(folder: pathlib.Path) -> None:
  change_header(folder, lambda header: header[QUERY].update(dtype='F8_E4M3'))


def stretch_header(folder: pathlib.Path) -> None:
  change_header(folder, lambda header: header[QUERY].update(shape=[32, 33]))


def pickle(folder: pathlib.Path) -> None:
  (folder / release.SINGLE).rename(folder / 'pytorch_model.bin')


def several_pickles(folder: pathlib.Path) -> None:
  (folder / release.SINGLE).unlink()
  (folder / 'pytorch_model.bin.index.json').write_text('{}')


def nothing(folder: pathlib.Path) -> None:
  (folder / release.SINGLE).unlink()


def cut_config(folder: pathlib.Path) -> None:
  (folder / release.CONFIG).write_text((folder / release.CONFIG).read_text()[:-9])


def cut_tokenizer(folder: pathlib.Path) -> None:
  (folder / release.TOKENIZER).write_text('{"model": ')


def lose_config(folder: pathlib.Path) -> None:
  (folder / release.CONFIG).unlink()


def unknown_model(folder: pathlib.Path) -> None:
  change_json(folder, release.CONFIG, lambda config: config.update(model_type='mamba'))


def lose_size(folder: pathlib.Path) -> None:
  change_json(folder, release.CONFIG, lambda config: config.pop('hidden_size'))


def other_positions(folder: pathlib.Path) -> None:
  change_json(folder, release.CONFIG, lambda config: config.update(position_embedding_type='relative_key'))


class Damage(NamedTuple):
  """A way to damage a folder, and parts of its message: the file, the tensor, the fix."""

  do: Callable[[pathlib.Path], None]
  says: tuple[str, ...]


DAMAGES: Mapping[str, Damage] = {
  'a tensor is missing': Damage(lose_tensor, ('published/model.safetensors', QUERY, 'missing', 'fetch')),
  'a tensor is missing of several files': Damage(
    lose_tensor_of_shards, ('published/model.safetensors.index.json', QUERY, 'missing', 'fetch')
  ),
  'a tensor is not where the index says': Damage(
    lose_tensor_of_a_shard, (r'published/model-0000\d-of-0000\d.safetensors', QUERY, 'fetch')
  ),
  'a file is missing': Damage(lose_shard, ('index.json', r'model-0000\d-of', 'fetch')),
  'an index without its map': Damage(lose_weight_map, ('index.json.*weight_map', 'fetch')),
  'an index that leaves the folder': Damage(leave_the_folder, ('index.json', QUERY, r'\.\./published')),
  'part of a head': Damage(
    lose_part_of_a_head, ('published/model.safetensors', 'cls.predictions.transform.dense.weight', 'missing')
  ),
  'a wrong shape': Damage(
    reshape_tensor, ('published/model.safetensors', QUERY, r'\(31, 32\).*\(32, 32\)', 'config.json', 'fetch')
  ),
  'another vocabulary': Damage(
    change_vocabulary, ('published/model.safetensors', TABLE, r'\(61, 32\).*\(70, 32\)', 'vocab_size.*70')
  ),
  'a larger tokenizer': Damage(
    add_tokens, ('published/tokenizer.json.* 61', TABLE, '61 rows', 'resize_token_embeddings')
  ),
  'cut within a tensor': Damage(cut(0.7), ('published/model.safetensors.*cut short', "tensor '", 'fetch')),
  'cut within the header': Damage(cut(0.01), ('published/model.safetensors.*cut short', 'header', 'fetch')),
  'an empty file': Damage(empty, ('published/model.safetensors.*cut short', '0 bytes', 'fetch')),
  'a header that is no JSON': Damage(spoil_header, ('published/model.safetensors', 'fetch')),
  'a header that is no object': Damage(list_header, ('published/model.safetensors', 'JSON object')),
  'a type of numbers that is not read': Damage(rename_dtype, ('published/model.safetensors', QUERY, 'F8_E4M3')),
  'a shape beside its bytes': Damage(stretch_header, ('published/model.safetensors', QUERY, r'\(32, 33\)', 'bytes')),
  'a pickle': Damage(pickle, ('published.*pytorch_model.bin',)),
  'several pickles': Damage(several_pickles, ('pytorch_model.bin',)),
  'no weights': Damage(nothing, ('published.*model.safetensors', 'fetch')),
  'a damaged config.json': Damage(cut_config, ('published/config.json', 'fetch')),
  'a damaged tokenizer.json': Damage(cut_tokenizer, ('published/tokenizer.json', 'fetch')),
  'no config.json': Damage(lose_config, ('config.json',)),
  'an unknown model_type': Damage(unknown_model, ('published/config.json', "model_type.*'mamba'", 'bert, ')),
  'a config.json without a size': Damage(lose_size, ('published/config.json', 'hidden_size')),
  'a structure of another paper': Damage(other_positions, ('published/config.json', 'relative_key')),
}


def tree_of(folder: pathlib.Path) -> dict[str, bytes]:
  return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob('*')) if file.is_file()}


def command(*words: object, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
  """Run the command line; return (exit code, stderr)."""
  code = run(lambda: convert.main(list(map(str, words))))
  return code, capsys.readouterr().err


@pytest.mark.parametrize('name', DAMAGES)
def test_damage_is_named_and_nothing_is_written(
  name: str, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  DAMAGES[name].do(folder)
  before = tree_of(tmp_path)
  with pytest.raises(WeightsError) as caught:
    weights.load(folder)
  code, said = command('import', folder, tmp_path / 'ours', capsys=capsys)
  for part in DAMAGES[name].says:
    assert re.search(part, str(caught.value))
    assert re.search(part, said)
  assert code == WRONG_USAGE
  assert 'Traceback' not in said
  assert tree_of(tmp_path) == before
  assert [path.name for path in tmp_path.iterdir()] == [folder.name]


def test_the_folder_is_sound_before_it_is_damaged(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  split(folder)
  assert len(list(folder.glob('*.safetensors'))) > 2
  assert command('import', folder, tmp_path / 'ours', capsys=capsys)[0] == 0
  np.testing.assert_array_equal(
    weights.load(tmp_path / 'ours')[1]['token_embed']['table'], make_model()[1]['token_embed']['table']
  )


def test_a_tokenizer_that_is_not_read_is_said_at_once_and_its_weights_are_used(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  content = json.loads((folder / release.TOKENIZER).read_text())
  ids = {
    {'word0': '[PAD]', 'word1': '[UNK]'}.get(token, token): one for token, one in content['model']['vocab'].items()
  }
  model = {'type': 'WordPiece', 'unk_token': '[UNK]', 'continuing_subword_prefix': '##', 'vocab': ids}
  content |= {'model': {**model, 'max_input_chars_per_word': 100, 'dropout': 0.1}}
  content['added_tokens'][0] |= dict.fromkeys(('single_word', 'lstrip', 'rstrip', 'normalized'), False)
  (folder / release.TOKENIZER).write_text(json.dumps(content))
  code, said = command('import', folder, tmp_path / 'ours', capsys=capsys)
  assert code == 0
  with pytest.raises(ConfigError) as first_use:
    plm_jax.load(tmp_path / 'ours')
  assert 'model.dropout' in str(first_use.value)
  assert str(first_use.value) in said
  np.testing.assert_array_equal(
    weights.load(tmp_path / 'ours')[1]['token_embed']['table'], make_model()[1]['token_embed']['table']
  )
  del content['model']['dropout']
  (folder / release.TOKENIZER).write_text(json.dumps({**content, 'pre_tokenizer': {'type': 'BertPreTokenizer'}}))
  code, said = command('import', folder, tmp_path / 'ours', '--force', capsys=capsys)
  assert code == 0 and str(first_use.value) not in said


def test_an_import_is_not_imported_again(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  assert command('import', folder, tmp_path / 'ours', capsys=capsys)[0] == 0
  code, said = command('import', tmp_path / 'ours', tmp_path / 'again', capsys=capsys)
  assert code == WRONG_USAGE and str(tmp_path / 'ours') in said
  assert not (tmp_path / 'again').exists()


@pytest.mark.parametrize('flag', ['--step=3', '--part=kinds', '--part=trunk'])
def test_flags_of_runs_are_refused_where_there_is_none(
  flag: str, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  assert command('import', folder, tmp_path / 'ours', capsys=capsys)[0] == 0
  for words in (('import', folder), ('export', tmp_path / 'ours'), ('export', tmp_path / 'ours', '--form=own')):
    code, said = command(*words, tmp_path / 'out', flag, capsys=capsys)
    assert code == WRONG_USAGE and not (tmp_path / 'out').exists()
    assert re.search(rf'{flag}: {words[1]} is not a run with checkpoints: remove {flag[:6]}', said)


@pytest.mark.parametrize(
  ('words', 'said'),
  [
    (('import', '--heads=none'), '--heads=none.*convert import'),
    (('import', '--form=peft'), '--form=peft.*convert import'),
    (('export', '--form=peft', '--heads=mlm'), '--heads=mlm.*--form=peft'),
    (('export', '--form=own', '--architecture=bert'), '--architecture=bert.*--form=own'),
  ],
)
def test_flags_that_would_do_nothing_are_refused(
  words: tuple[str, ...], said: str, folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  code, told = command(words[0], folder, tmp_path / 'out', *words[1:], capsys=capsys)
  assert code == WRONG_USAGE and re.search(said, told) and not (tmp_path / 'out').exists()


def test_a_start_from_a_damaged_folder_is_refused_alike(folder: pathlib.Path) -> None:
  lose_tensor(folder)
  with pytest.raises(ConfigError, match=rf'model.safetensors.*{QUERY}'):
    assert weights.open(folder).params


# While something is written ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
  """From the second file of tensors on there is no room."""
  write, written = tensor_files.write, []

  def write_one(file: pathlib.Path, plans: Mapping[str, tensor_files.Plan]) -> None:
    if written:
      raise OSError(errno.ENOSPC, 'No space left on device')
    written.append(file)
    write(file, plans)

  with monkeypatch.context() as patch:
    patch.setattr(tensor_files, 'write', write_one)
    yield
  assert written


def test_a_full_disk_leaves_what_was_there(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
  assert command('import', folder, tmp_path / 'ours', capsys=capsys)[0] == 0
  assert command('export', tmp_path / 'ours', tmp_path / 'back', capsys=capsys)[0] == 0
  before = tree_of(tmp_path)
  for words in (('import', folder, tmp_path / 'ours'), ('export', tmp_path / 'ours', tmp_path / 'back')):
    for target in (words[2], tmp_path / 'new'):
      with full_disk(monkeypatch):
        code, said = command(*words[:2], target, '--force', f'--shard={SHARD / 1e9}', capsys=capsys)
      assert (code, tree_of(tmp_path)) == (WRONG_USAGE, before)
      assert f'{target} cannot be written' in said and 'No space left' in said
  assert not (tmp_path / 'new').exists()


def test_what_a_killed_conversion_left_is_removed(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  (tmp_path / 'ours.partial').mkdir()
  (tmp_path / 'ours.partial' / 'params-00001.safetensors').write_bytes(b'half')
  assert command('import', folder, tmp_path / 'ours', capsys=capsys)[0] == 0
  assert sorted(path.name for path in tmp_path.iterdir()) == ['ours', folder.name]
  assert weights.load(tmp_path / 'ours')


def test_only_conversions_are_replaced(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  other, ours, back = tmp_path / 'other', tmp_path / 'ours', tmp_path / 'back'
  other.mkdir()
  (other / 'notes.txt').write_text('mine')
  assert command('import', folder, ours, capsys=capsys)[0] == 0
  refused = [
    ('import', folder, other, '--force'), ('export', ours, other, '--force'), ('import', folder, folder, '--force'),
    ('export', ours, ours, '--force'), ('import', folder, ours), ('import', folder, other / 'notes.txt'),
    ('import', tmp_path / 'nowhere', back), ('import', ours, back), ('export', other, back), ('export', folder),
    ('export', ours, back, '--step=last'), ('export', ours, back, '--architecture=gpt'), ('turn', ours, back),
    ('import', folder, back, '--architecture=nothing'), ('import', folder, back, '--shard=0'),
  ]  # fmt: skip
  before = tree_of(tmp_path)
  for words in refused:
    code, said = command(*words, capsys=capsys)
    assert (code, tree_of(tmp_path)) == (WRONG_USAGE, before), words
    assert said and 'Traceback' not in said
  assert not back.exists()
  assert command('import', folder, ours, '--force', capsys=capsys)[0] == 0


# Parameters of ours --------------------------------------------------------------------------------------------------


def test_a_damaged_import_is_refused(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  ours, back = tmp_path / 'ours', tmp_path / 'back'
  assert command('import', folder, ours, capsys=capsys)[0] == 0
  file = ours / 'params-00001.safetensors'
  sound = file.read_bytes()
  file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
  with pytest.raises(CheckpointError, match=r'params-00001\.safetensors .*import again'):
    weights.load(ours)
  code, said = command('export', ours, back, capsys=capsys)
  assert code == FAILED and 'params-00001.safetensors' in said
  file.write_bytes(sound)
  (ours / checkpoint.INDEX).write_text('{}')
  with pytest.raises(CheckpointError, match=r'params\.index\.json'):
    weights.load(ours)
  (ours / 'model.json').unlink()
  with pytest.raises(WeightsError, match=r'model\.json'):
    weights.load(ours)
  assert not back.exists()


def test_flipped_bits_of_an_import_are_found(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  ours = tmp_path / 'ours'
  assert command('import', folder, ours, capsys=capsys)[0] == 0
  draw = np.random.default_rng(0)

  def read() -> None:
    opened = weights.open(ours)
    assert opened.model and opened.params and opened.token_ids
    checksums.check_all(opened.vocab)  # as `tokenizer.load` does

  for file in sorted(file for file in ours.rglob('*') if file.is_file()):
    sound = file.read_bytes()
    for place in draw.integers(len(sound), size=12):
      damaged = bytearray(sound)
      damaged[place] ^= 1 << draw.integers(8)
      file.write_bytes(damaged)
      try:
        read()
        assert file.name == checksums.SUMS  # a name in it: the others are as they were
      except RunError as error:
        assert str(ours) in str(error)
    file.write_bytes(sound)
  read()


def test_an_import_of_other_sizes_than_its_model_is_refused(
  folder: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  ours = tmp_path / 'ours'
  assert command('import', folder, ours, capsys=capsys)[0] == 0
  (ours / checksums.SUMS).unlink()  # as earlier versions wrote it
  assert weights.load(ours)
  sound = (ours / 'model.json').read_bytes()
  for name, size in {'num_layers': 3, 'hidden_dim': 48, 'mlp_dim': 65, 'max_length': 33, 'num_types': 3}.items():
    change_json(ours, 'model.json', lambda about, size={name: size}: about['model']['overrides'].update(size))
    with pytest.raises(WeightsError, match=r'model\.json.*trunk/.*import again'):
      weights.load(ours)
    (ours / 'model.json').write_bytes(sound)


INVALID: tuple[tuple[str, tuple[str, ...], Any], ...] = (
  *(('model.json', ('vocab_size',), value) for value in (-5, 0, 0.5, True, None, 'x', [], 10**12)),
  *(('model.json', (name,), 5) for name in ('model', 'heads', 'labels', 'token_ids', 'adapter')),
  ('model.json', ('heads',), 'x'),
  ('model.json', ('labels',), [5]),
  ('model.json', ('token_ids', 'pad_token_id'), 'x'),
  ('model.json', ('model', 'variant'), 'x'),
  ('model.json', ('model', 'name'), 5),
  ('model.json', ('model', 'overrides', 'num_heads'), 5),
  *(('params.index.json', ('sha256',), value) for value in (5, [], ['ab'], [[5, 'x']], None)),
  *(('params.index.json', ('leaves',), value) for value in (5, [], ['ab'], None)),
)


@pytest.mark.parametrize(('name', 'keys', 'value'), INVALID, ids=str)
def test_invalid_values_of_an_import_without_checksums_are_named(
  name: str, keys: tuple[str, ...], value: Any, folder: pathlib.Path, tmp_path: pathlib.Path,
  capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
  ours = tmp_path / 'ours'
  assert command('import', folder, ours, capsys=capsys)[0] == 0
  (ours / checksums.SUMS).unlink()

  def change(content: Any) -> None:
    for key in keys[:-1]:
      content = content[key]
    content[keys[-1]] = value

  change_json(ours, name, change)
  with pytest.raises((WeightsError, CheckpointError), match=rf'(?s){name}.*import again'):
    weights.load(ours)
  assert command('export', ours, tmp_path / 'back', capsys=capsys)[0] != 0 and not (tmp_path / 'back').exists()


def test_parameters_that_are_missing_or_of_another_shape_are_not_saved(tmp_path: pathlib.Path) -> None:
  trunk, params = make_model()
  leaves = param_paths.flat(params)
  missing = {path: leaf for path, leaf in leaves.items() if path != 'layers/query/kernel'}
  with pytest.raises(WeightsError, match=r"'trunk/layers/query/kernel'.*\b1\b"):
    weights.save(tmp_path / 'saved', trunk, param_paths.nested(missing))
  wrong = leaves | {'layers/mlp/up/kernel': leaves['layers/mlp/up/kernel'][:, :-1]}
  with pytest.raises(WeightsError, match=r"'trunk/layers/mlp/up/kernel'.*\[2, 31, 64\].*\[2, 32, 64\]"):
    weights.save(tmp_path / 'saved', trunk, param_paths.nested(wrong))
  with pytest.raises(WeightsError, match='trunk/extra'):
    weights.save(tmp_path / 'saved', trunk, {'trunk': {**params, 'extra': np.zeros(3, np.float32)}})
  assert not list(tmp_path.iterdir())


def test_what_is_no_folder_of_weights_is_named(tmp_path: pathlib.Path) -> None:
  with pytest.raises(WeightsError, match=rf'{tmp_path} .*Hugging Face'):
    weights.load(tmp_path)


def test_saving_again_leaves_no_tensor_of_before(folder: pathlib.Path) -> None:
  split(folder)
  weights.save(folder, *make_model())
  assert [file.name for file in folder.glob('model*')] == [release.SINGLE]


@pytest.mark.parametrize(
  'damage',
  [
    {'added_tokens': [{'content': '[PAD]'}]},
    {'added_tokens': [{'content': [{}], 'id': 0}]},
    {'added_tokens': [-1]},
    {'added_tokens': {}},
    {'model': {'vocab': {'e': 'x'}}},
    {'model': {'vocab': {'e': True}}},
    {'model': {'vocab': '\0'}},
    {'model': {'vocab': [['e', 0.0], 'x']}},
    {'model': []},
  ],
)
def test_a_tokenizer_of_other_kinds_of_values_is_named(damage, tmp_path):
  content = {'model': {'vocab': {'a': 0}}, 'added_tokens': [{'content': '[CLS]', 'id': 1}], **damage}
  (tmp_path / release.TOKENIZER).write_text(json.dumps(content))
  with pytest.raises(WeightsError, match=r'tokenizer\.json .*fetch it again'):
    release.check_tokenizer(tmp_path, 2, where='model')


@pytest.mark.parametrize('value', [np.nan, -np.inf])
def test_numbers_that_are_not_finite_are_not_imported(
  folder: pathlib.Path, tmp_path: pathlib.Path, value: float
) -> None:
  def change(tensors: dict[str, np.ndarray]) -> None:
    tensors[QUERY] = tensors[QUERY].copy()
    tensors[QUERY][-1, -1] = value

  change_tensors(folder, change)
  with pytest.raises(ConfigError, match=rf'{re.escape(QUERY)}.*not finite.*fetch'):
    convert.main(['import', str(folder), str(tmp_path / 'imported')])
  with pytest.raises(WeightsError, match='not finite'):
    weights.load(folder)
