"""ELMo's published files, against a forward pass written from the equations of bilm/model.py."""

import copy
import json
import pathlib
import sys
from typing import Any

import numpy as np
import pytest

import plm_jax
from plm_jax import weights
from plm_jax.commands import convert
from plm_jax.core.errors import ConfigError
from plm_jax.io import files
from plm_jax.weights import bilm
from plm_jax.weights.convert import import_bilm

h5py = pytest.importorskip('h5py', reason='needs the extra hdf5: bash launch/setup.sh hdf5')

OPTIONS = {
  'bidirectional': True,
  'char_cnn': {
    'activation': 'relu',
    'embedding': {'dim': 4},
    'filters': [[1, 3], [2, 4], [3, 5]],
    'max_characters_per_token': 50,
    'n_characters': 262,
    'n_highway': 2,
  },
  'lstm': {
    'cell_clip': 0.4, 'dim': 7, 'n_layers': 2, 'proj_clip': 0.3, 'projection_dim': 6, 'use_skip_connections': True,
  },
}  # fmt: skip
WORDS = ['</S>', '<S>', '<UNK>', 'the', 'cat', '.', '!!!MAXTERMID']
TEXTS = ['the cat saw Zoë .', 'the ' + 'x' * 60]
CELL = 'RNN_0/RNN/MultiRNNCell/Cell1/LSTMCell'


def make_numbers(options: dict[str, Any] = OPTIONS) -> dict[str, np.ndarray]:
  """Sample the datasets of a file."""
  draw = np.random.default_rng(0)
  of = lambda *shape: draw.normal(0, 0.6, shape).astype(np.float32)  # noqa: E731
  characters, lstm = options['char_cnn'], options['lstm']
  e, f, p = characters['embedding']['dim'], lstm['dim'], lstm['projection_dim']
  wide = sum(count for _, count in characters['filters'])
  made = {'char_embed': of(261, e), 'CNN_proj/W_proj': of(wide, p), 'CNN_proj/b_proj': of(p)}
  for number, (width, count) in enumerate(characters['filters']):
    made |= {f'CNN/W_cnn_{number}': of(1, width, e, count), f'CNN/b_cnn_{number}': of(count)}
  for number in range(characters['n_highway']):
    for part in ('carry', 'transform'):
      made |= {f'CNN_high_{number}/W_{part}': of(wide, wide), f'CNN_high_{number}/b_{part}': of(wide)}
  for direction in range(2):
    for number in range(lstm['n_layers']):
      cell = f'RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell'
      made |= {f'{cell}/W_0': of(2 * p, 4 * f), f'{cell}/B': of(4 * f), f'{cell}/W_P_0': of(f, p)}
  return made


def write(folder: pathlib.Path, numbers: dict[str, np.ndarray], options: Any = OPTIONS) -> pathlib.Path:
  """Write the published files, with a vocabulary."""
  folder.mkdir(exist_ok=True)
  (folder / 'elmo_options.json').write_text(json.dumps(options))
  (folder / 'vocab.txt').write_text('\n'.join(WORDS) + '\n')
  with h5py.File(folder / 'elmo_weights.hdf5', 'w') as file:
    for name, array in numbers.items():
      file.create_dataset(name, data=array)
  return folder


# bilm/model.py in numpy: one sentence, one step at a time -------------------------------------------------------------


def sigmoid(x: np.ndarray) -> np.ndarray:
  return 1 / (1 + np.exp(-x))


def characters_of(word: str | int) -> list[int]:
  """Compute the ids of bilm/data.py, one higher as its Batcher returns them.

  An integer is the id of <S> or </S>.
  """
  code = [word] if isinstance(word, int) else list(word.encode()[:48])
  ids = [258, *code, 259]
  return [number + 1 for number in ids + [260] * (50 - len(ids))]


def embed(numbers: dict[str, np.ndarray], word: str | int) -> np.ndarray:
  """Compute the vector of a word: `_build_word_char_embeddings`."""
  table = np.concatenate([np.zeros((1, 4)), numbers['char_embed'].astype(np.float64)])
  x = table[characters_of(word)]  # [50, e]
  out = []
  for number, (width, _) in enumerate(OPTIONS['char_cnn']['filters']):
    kernel = numbers[f'CNN/W_cnn_{number}'][0].astype(np.float64)
    found = [np.einsum('we,wek->k', x[at : at + width], kernel) for at in range(50 - width + 1)]
    out.append(np.maximum(np.max(found, axis=0) + numbers[f'CNN/b_cnn_{number}'], 0))
  x = np.concatenate(out)
  for number in range(OPTIONS['char_cnn']['n_highway']):
    part = {name: numbers[f'CNN_high_{number}/{name}'] for name in ('W_carry', 'b_carry', 'W_transform', 'b_transform')}
    carry = sigmoid(x @ part['W_carry'] + part['b_carry'])
    x = carry * np.maximum(x @ part['W_transform'] + part['b_transform'], 0) + (1 - carry) * x
  return x @ numbers['CNN_proj/W_proj'] + numbers['CNN_proj/b_proj']


def lstm(numbers: dict[str, np.ndarray], cell: str, inputs: list[np.ndarray]) -> list[np.ndarray]:
  """Run TensorFlow's LSTMCell with a projection and both clips, from zeros."""
  c, h = np.zeros(7), np.zeros(6)
  out = []
  for x in inputs:
    i, j, f, o = np.split(np.concatenate([x, h]) @ numbers[f'{cell}/W_0'] + numbers[f'{cell}/B'], 4)
    c = np.clip(sigmoid(f + 1) * c + sigmoid(i) * np.tanh(j), -0.4, 0.4)
    h = np.clip((sigmoid(o) * np.tanh(c)) @ numbers[f'{cell}/W_P_0'], -0.3, 0.3)
    out.append(h)
  return out


def layers_of(numbers: dict[str, np.ndarray], text: str) -> np.ndarray:
  """Compute all layers of a sentence between <S> and </S>: [l, 3, 12]."""
  read = [embed(numbers, word) for word in (256, *text.split(), 257)]
  both = []
  for direction in range(2):
    x = read[::-1] if direction else read
    rows = [x]
    for number in range(2):
      out = lstm(numbers, f'RNN_{direction}/RNN/MultiRNNCell/Cell{number}/LSTMCell', x)
      x = [a + b for a, b in zip(x, out, strict=True)] if number else out
      rows.append(x)
    both.append(np.array([row[::-1] if direction else row for row in rows]))  # [3, l + 2, 6]
  return np.concatenate(both, axis=-1)[:, 1:-1].swapaxes(0, 1)


# The import -----------------------------------------------------------------------------------------------------------


def test_an_import_encodes_as_the_equations_say(tmp_path: pathlib.Path) -> None:
  numbers = make_numbers()
  source = write(tmp_path / 'bilm', numbers)
  assert convert.main(['import', str(source), str(tmp_path / 'imported')]) == 0
  model = plm_jax.load(tmp_path / 'imported')
  found = model.encode(TEXTS, layer='all', pool='none')
  for text, one in zip(TEXTS, found, strict=True):
    expected = layers_of(numbers, text)
    assert (expected.shape, len(one.tokens)) == ((len(text.split()), 3, 12), len(text.split()))
    np.testing.assert_allclose(one.vectors, expected, atol=1e-5, rtol=0)
    # both clips are met, so that they are compared
    assert (np.abs(np.abs(expected[:, 1]) - 0.3) < 1e-6).any()


def test_the_published_test_model_has_its_published_vectors(
  tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  caplog.set_level('INFO')
  fixture = pathlib.Path(__file__).parents[1] / 'fixtures' / 'elmo'
  import_bilm(fixture, tmp_path / 'imported')
  assert 'their vectors differ by design' in caplog.text
  model, published = plm_jax.load(tmp_path / 'imported'), np.load(fixture / 'first_sentences.npz')
  for index, one in enumerate(model.encode(published['sentences'].tolist(), layer='all', pool='none')):
    np.testing.assert_allclose(one.vectors[:, -1], published[f'expected_{index}'], atol=2e-6, rtol=0)


def test_words_are_read_alike_without_a_vocabulary(tmp_path: pathlib.Path) -> None:
  source = write(tmp_path / 'bilm', make_numbers())
  import_bilm(source, tmp_path / 'with')
  (source / 'vocab.txt').unlink()
  import_bilm(source, tmp_path / 'without')
  known, unknown = (plm_jax.load(tmp_path / name) for name in ('with', 'without'))
  np.testing.assert_array_equal(known.encode(TEXTS), unknown.encode(TEXTS))
  assert [weights.open(tmp_path / name).model.vocab_size for name in ('with', 'without')] == [6, 3]


def test_every_part_is_a_leaf_and_no_number_is_left_over(tmp_path: pathlib.Path) -> None:
  numbers = make_numbers()
  import_bilm(write(tmp_path / 'bilm', numbers), tmp_path / 'imported')
  opened = weights.open(tmp_path / 'imported')
  assert opened.trunk().config.projection_clip == 0.3  # and its shapes are those of the files
  sizes = sum(leaf.size for leaf in opened.params.arrays().values())
  assert sizes == sum(array.size for array in numbers.values()) + 4  # the row where no word is
  with bilm.opened(tmp_path / 'bilm') as read:
    leaf = read.leaves['trunk/layers/bias']
    np.testing.assert_array_equal(leaf.read(None)[1], leaf.read(1))


def test_no_word_is_predicted(tmp_path: pathlib.Path) -> None:
  import_bilm(write(tmp_path / 'bilm', make_numbers()), tmp_path / 'imported')
  model = plm_jax.load(tmp_path / 'imported')
  with pytest.raises(ConfigError, match=r'^score\b'):
    model.score('the cat')


# Files that are refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('place', 'value', 'message'),
  [
    ('char_cnn', None, r'options\.json: char_cnn .*activation, filters'),
    ('char_cnn.activation', 'gelu', r"char_cnn\.activation.*'gelu'.*'relu'"),
    ('char_cnn.activation', 'tanh', r"char_cnn\.activation.*'tanh'.*'relu'"),
    ('char_cnn.filters', [[1, 3], [3, 5]], r'char_cnn\.filters.*\[width, count\].*1, 2'),
    ('char_cnn.filters', [], r'filters.*\(\).*1 to 50'),
    ('char_cnn.embedding', {}, r'char_cnn\.embedding.*\{\}.*dim'),
    ('char_cnn.max_characters_per_token', 40, r'max_characters_per_token.*40.*50'),
    ('char_cnn.n_characters', 60, r'char_cnn\.n_characters.*60.*262, 261'),
    ('char_cnn.n_highway', 3, r"'CNN_high_2/W_carry'.*elmo_options\.json"),
    ('char_cnn.n_highway', 1, r"'CNN_high_1/W_carry'.*elmo_options\.json"),
    ('lstm.use_skip_connections', False, r'lstm\.use_skip_connections.*False.*True'),
    ('lstm.cell_clip', None, r'lstm\.cell_clip.*None.* 0'),
    ('lstm.proj_clip', 0, r'lstm\.proj_clip.*0'),
    ('lstm.dim', 8, r"dataset 'RNN_0/.*/W_0' .*float32\[12, 28\].*\[12, 32\].*elmo_options"),
    ('lstm.projection_dim', 10**12, r'lstm\.projection_dim.*10+.*from 1 to'),
    ('lstm.n_layers', 1, r"'RNN_0/.*/Cell1/LSTMCell/B'"),
  ],
)
def test_options_that_contradict_the_weights_or_the_network(
  tmp_path: pathlib.Path, place: str, value: Any, message: str
) -> None:
  options: Any = copy.deepcopy(OPTIONS)
  *above, last = place.split('.')
  (options[above[0]] if above else options)[last] = value
  with pytest.raises(ConfigError, match=message):
    import_bilm(write(tmp_path / 'bilm', make_numbers(), options), tmp_path / 'imported')
  assert not (tmp_path / 'imported').exists()


@pytest.mark.parametrize(
  ('name', 'value', 'message'),
  [
    (f'{CELL}/W_P_0', None, r"'RNN_0/.*/Cell1/LSTMCell/W_P_0'"),
    ('char_embed', np.zeros((262, 4), np.float32), r"'char_embed'.*float32\[262, 4\].*\[261, 4\]"),
    ('char_embed', np.zeros((261, 4), np.int32), r"'char_embed'.*int32\[261, 4\].*\[261, 4\]"),
    ('softmax/W', np.zeros((6, 6), np.float32), r"'softmax/W'"),
  ],
)
def test_weights_that_are_not_those_of_the_options(
  tmp_path: pathlib.Path, name: str, value: np.ndarray | None, message: str
) -> None:
  numbers = make_numbers()
  if value is None:
    del numbers[name]
  else:
    numbers[name] = value
  with pytest.raises(ConfigError, match=message):
    import_bilm(write(tmp_path / 'bilm', numbers), tmp_path / 'imported')


def test_numbers_of_another_file_are_not_read(tmp_path: pathlib.Path) -> None:
  numbers = make_numbers()
  array = numbers.pop('CNN_proj/b_proj')
  source = write(tmp_path / 'bilm', numbers)
  (tmp_path / 'other').write_bytes(array.tobytes())
  with h5py.File(source / 'elmo_weights.hdf5', 'a') as file:
    outside = [(str(tmp_path / 'other'), 0, array.nbytes)]
    file.create_dataset('CNN_proj/b_proj', array.shape, np.float32, external=outside)
  with pytest.raises(ConfigError, match=r"'CNN_proj/b_proj'.*compressed"):
    import_bilm(source, tmp_path / 'imported')
  with h5py.File(source / 'elmo_weights.hdf5', 'a') as file, h5py.File(tmp_path / 'linked', 'w') as other:
    del file['CNN_proj/b_proj']
    other['b'] = array
    file['CNN_proj/b_proj'] = h5py.ExternalLink(str(tmp_path / 'linked'), 'b')
  with pytest.raises(ConfigError, match=r"'CNN_proj/b_proj'.*missing"):
    import_bilm(source, tmp_path / 'imported')


@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', ['char_embed', 'CNN_high_0/b_carry', f'{CELL}/W_0'])
def test_numbers_that_are_not_finite(tmp_path: pathlib.Path, name: str, value: float) -> None:
  numbers = make_numbers()
  numbers[name].flat[-1] = value
  with pytest.raises(ConfigError, match=rf"elmo_weights\.hdf5.*'{name}'.*not finite.*fetch"):
    import_bilm(write(tmp_path / 'bilm', numbers), tmp_path / 'imported')
  assert not (tmp_path / 'imported').exists()


def test_options_without_weights(tmp_path: pathlib.Path) -> None:
  source = write(tmp_path / 'bilm', make_numbers())
  (source / 'elmo_weights.hdf5').unlink()
  with pytest.raises(ConfigError, match=r'elmo_options\.json.*\*\.hdf5.*\*\.h5.*fetch'):
    convert.main(['import', str(source), str(tmp_path / 'imported')])
  (source / 'config.json').write_text('{}')  # it is a folder in Hugging Face's form
  with pytest.raises(ConfigError, match=r'model\.safetensors'):
    convert.main(['import', str(source), str(tmp_path / 'imported')])


@pytest.mark.parametrize('content', [b'', b'no HDF5 file', None])
def test_a_file_that_is_damaged(tmp_path: pathlib.Path, content: bytes | None) -> None:
  source = write(tmp_path / 'bilm', make_numbers())
  file = source / 'elmo_weights.hdf5'
  file.write_bytes(file.read_bytes()[:4000] if content is None else content)
  with pytest.raises(ConfigError, match=r'elmo_weights\.hdf5 .*fetch it again'):
    import_bilm(source, tmp_path / 'imported')


def test_folders_and_vocabularies_that_are_refused(tmp_path: pathlib.Path) -> None:
  source = write(tmp_path / 'bilm', make_numbers())
  (source / 'vocab.txt').write_text('the\ncat\n')
  with pytest.raises(ConfigError, match=r'vocab\.txt.*<S>, </S>, <UNK>'):
    import_bilm(source, tmp_path / 'imported')
  (source / 'vocab.txt').write_bytes(b'\xff\xfe')
  with pytest.raises(ConfigError, match=r'vocab\.txt is UTF-16.*-t UTF-8'):
    import_bilm(source, tmp_path / 'imported')
  (source / 'vocab.txt').write_bytes('<S>\n</S>\n<UNK>\ncafé\n'.encode('latin-1'))
  said = r'vocab\.txt: line 4 .*`iconv -f latin1 -t utf-8'
  with pytest.raises(ConfigError, match=said):
    import_bilm(source, tmp_path / 'imported')
  files.copy(source / 'elmo_weights.hdf5', source / 'more.h5')
  with pytest.raises(ConfigError, match=r'elmo_weights\.hdf5.*more\.h5'):
    import_bilm(source, tmp_path / 'imported')


def test_h5py_that_is_not_installed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
  source = write(tmp_path / 'bilm', make_numbers())
  monkeypatch.setitem(sys.modules, 'h5py', None)
  with pytest.raises(ConfigError, match=r'h5py.*launch/setup\.sh hdf5'):
    import_bilm(source, tmp_path / 'imported')
