"""One word in several texts: cosines from `encode`, 1 for a table, and errors."""

import itertools
import pathlib

import numpy as np
import pytest

import plm_jax
from plm_jax.commands import vectors
from plm_jax.core.errors import ConfigError
from plm_jax.inference import nearest, polysemy, projection
from plm_jax.inference.model import Model
from plm_jax.text import words
from plm_jax.training import loop
from plm_jax.weights import word_vectors
from plm_jax.weights.word_vectors import WordVectors
from tests import runs

pytestmark = pytest.mark.turns

TEXTS = ('Anna is in the garden.', 'The garden was old, and the gardener too.', 'In spring a garden ( garden )')


@pytest.fixture(scope='module')
def bert(data: pathlib.Path) -> Model:
  return trained(runs.settings('mlm', data, steps=2, save_every=2, eval_every=2), data / 'bert')


@pytest.fixture(scope='module')
def table(data: pathlib.Path) -> Model:
  text = (data / 'corpus' / 'train.txt').read_text()
  words.train([text], size=400, min_frequency=1).save(data / 'words')
  settings = runs.settings(
    'mlm',
    data,
    steps=2,
    save_every=2,
    eval_every=2,
    vocab={'name': 'words', 'path': str(data / 'words')},
    model={'name': 'static', 'overrides': {'hidden_dim': 8}},
    objective={'name': 'skipgram', 'update': 'rows'},
    optim={'name': 'sgd', 'decay': 0.0},
  )
  return trained(settings, data / 'static')


def trained(settings, folder: pathlib.Path) -> Model:
  assert loop.train(settings, folder).exit_code == 0
  return plm_jax.load(folder)


def test_cosines_are_those_of_encode(bert):
  found = bert.encode(list(TEXTS), layer='all', pool='none')
  own = []
  for text, one in zip(TEXTS, found, strict=True):
    ends = np.cumsum([len(name) for name in one.tokens[1:-1]])  # a letter of a name is a byte of the text
    start = text.index('garden')
    inside = [place for place, end in enumerate(ends, start=1) if start < end <= start + len('garden')]
    assert ends[inside[-1] - 1] == start + len('garden')
    own.append(one.vectors[inside].mean(axis=0))
  uses = polysemy.look(bert.folder, 'Garden', TEXTS)
  assert uses.static is None and uses.cosines.shape == (3, 3, 3)
  for layer, (one, other) in itertools.product(range(3), itertools.combinations(range(3), 2)):
    a, b = own[one][layer], own[other][layer]
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert uses.cosines[layer, one, other] == pytest.approx(cosine, abs=1e-5) and cosine < 0.999


def test_a_table_has_one_vector_for_all_uses(table, bert, tmp_path, capsys):
  alone = polysemy.look(table.folder, 'garden', TEXTS)
  assert alone.cosines == pytest.approx(np.ones((1, 3, 3)), abs=1e-6)
  flags = ['--word=garden', *(f'--text={text}' for text in TEXTS[:2]), f'--out={tmp_path / "uses.png"}']
  for beside in (table.folder.folder, write(tmp_path / 'v.txt', ('garden', 'old'), np.eye(2))):
    assert vectors.main(['polysemy', f'--workdir={bert.folder.folder}', f'--beside={beside}', *flags]) == 0
    last = [line for line in capsys.readouterr().out.splitlines() if 'static' in line]
    assert len(last) == 1 and '1.0000' in last[0]
    assert (tmp_path / 'uses.png').read_bytes()[:4] == b'\x89PNG'
    (tmp_path / 'uses.png').unlink()


def test_words_that_are_not_there(table, bert, tmp_path):
  with pytest.raises(ConfigError, match=r"text 2\b.*'Anna'.*'The garden"):
    polysemy.look(bert.folder, 'Anna', TEXTS)
  with pytest.raises(ConfigError, match=r"text 1\b.*'gard'"):
    polysemy.look(bert.folder, 'gard', TEXTS)
  with pytest.raises(ConfigError, match=r'\b1 text\b.*two'):
    polysemy.look(bert.folder, 'garden', TEXTS[:1])
  with pytest.raises(ConfigError, match=r"'qoph'.*static"):
    polysemy.look(table.folder, 'qoph', ('a qoph', 'the qoph'))
  other = nearest.Table(word_vectors.read(write(tmp_path / 'v.txt', ('gardens', 'old'), np.eye(2))))
  with pytest.raises(ConfigError, match=r"'garden'.*\b2\b"):
    polysemy.look(bert.folder, 'garden', TEXTS, table=other)
  with pytest.raises(ConfigError, match=r"model\.name='static'"):
    vectors.main(
      ['polysemy', f'--workdir={bert.folder.folder}', f'--beside={bert.folder.folder}', '--word=a', '--text=a']
    )


def test_a_map_is_that_of_scikit_learn(tmp_path, capsys):
  decomposition = pytest.importorskip('sklearn.decomposition')
  draw = np.random.default_rng(0)
  names, rows = tuple('abcdefg'), draw.normal(size=(7, 5)).astype(np.float32)
  file = write(tmp_path / 'v.txt', names, rows)
  found = projection.project(nearest.Table(word_vectors.read(file)), [*names[:6], 'a'])
  model = decomposition.PCA(2)
  theirs = model.fit_transform(rows[:6] / np.linalg.norm(rows[:6], axis=1, keepdims=True))
  assert found.words == list(names[:6]) and np.abs(found.places) == pytest.approx(np.abs(theirs), abs=1e-5)
  assert found.share == pytest.approx(tuple(model.explained_variance_ratio_), abs=1e-5)
  assert all(axis[np.abs(axis).argmax()] > 0 for axis in found.places.T)
  assert vectors.main(['project', f'--file={file}', '--words=a,b,c,d', f'--out={tmp_path / "map.png"}']) == 0
  assert (tmp_path / 'map.png').read_bytes()[:4] == b'\x89PNG'
  assert len(capsys.readouterr().out.splitlines()) == 5
  for asked, said in (('a,b,a', r'\b2 different words'), ('a,b,aa', r"'aa'.*\b7\b")):
    with pytest.raises(ConfigError, match=said):
      vectors.main(['project', f'--file={file}', f'--words={asked}', f'--out={tmp_path / "none.png"}'])
  assert not (tmp_path / 'none.png').exists()


def test_words_with_dollars_are_drawn_as_they_are(tmp_path):
  projection.draw(projection.Map(['$_{$', 'b', 'c'], np.eye(3, 2), (0.6, 0.4)), tmp_path / 'map.png')
  polysemy.draw(polysemy.Uses('$_{$', np.ones((2, 2, 2)), None), tmp_path / 'uses.png')
  assert all((tmp_path / name).read_bytes().startswith(b'\x89PNG') for name in ('map.png', 'uses.png'))


def write(file: pathlib.Path, names: tuple[str, ...], rows: np.ndarray) -> pathlib.Path:
  word_vectors.write(file, WordVectors(names, rows.astype(np.float32)), form='word2vec')
  return file
