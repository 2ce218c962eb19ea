"""One door to the parameters of every kind of folder, which reads what is asked for and nothing else."""

import pathlib
from typing import Any

import numpy as np
import pytest

from plm_jax import checkpoint, weights
from plm_jax.checkpoint import CheckpointError, Checkpoints, tensor_files
from plm_jax.config import build
from plm_jax.core import param_paths
from plm_jax.core.types import Execution
from plm_jax.io import files, run_paths
from plm_jax.text import byte_bpe
from plm_jax.weights import WeightsError, convert, release, shapes
from tests import tiny

BLOCK = {'name': 'bert', 'variant': 'tiny', 'overrides': {}}


def make_params(seed: int = 0) -> dict[str, Any]:
  """Build parameters of `BLOCK` as in a run."""
  trunk = build.make('models', BLOCK, vocab_size=tiny.VOCAB.size)
  draw = np.random.default_rng(seed)
  leaves = {path: draw.standard_normal(shape, np.float32) for path, shape in shapes.shapes(trunk).items()}
  return {'trunk': param_paths.nested(leaves)}


def make_run(folder: pathlib.Path, *states: dict[str, Any], objective: dict[str, Any] | None = None) -> pathlib.Path:
  """Write a run folder with a step for each state, without scores."""
  run = run_paths.RunFolder(folder)
  files.make_folder(run.vocab)
  files.write_json(run.config, {'model': BLOCK, 'objective': objective})
  files.write_json(run.vocab / 'vocab.json', {'size': tiny.VOCAB.size})
  with Checkpoints(run.checkpoints, keep=9) as saved:
    for step, params in enumerate(states, start=1):
      saved.save(step, {'params': params, 'step': np.asarray(step, np.int32)})
  return folder


@pytest.fixture
def published(tmp_path: pathlib.Path) -> pathlib.Path:
  trunk = build.make('models', BLOCK, vocab_size=tiny.VOCAB.size)
  weights.save(tmp_path / 'published', trunk, make_params())
  return tmp_path / 'published'


def assert_same(params: checkpoint.Params, expected: Any) -> None:
  found, wanted = params.arrays(), param_paths.flat(expected)
  assert found.keys() == wanted.keys() == params.keys()
  for path, leaf in wanted.items():
    assert params[path].shape == leaf.shape
    np.testing.assert_array_equal(found[path], leaf)
    np.testing.assert_array_equal(params[path].read(None), leaf)


def test_every_kind_of_folder_opens_alike(published: pathlib.Path, tmp_path: pathlib.Path) -> None:
  expected = make_params()
  convert.import_release(published, tmp_path / 'imported')
  run = make_run(tmp_path / 'run', expected)
  for folder, vocab in (
    (published, published),
    (tmp_path / 'imported', tmp_path / 'imported' / 'vocab'),
    (run, run / 'vocab'),
  ):
    opened = weights.open(folder)
    assert opened.vocab == vocab
    assert opened.heads == ()
    assert opened.model.vocab_size == tiny.VOCAB.size
    assert opened.trunk(Execution(layers='loop')).execution.layers == 'loop'
    assert opened.trunk().NAME == 'bert'
    assert_same(opened.params, expected)
    stacked = 'trunk/layers/query/kernel'
    np.testing.assert_array_equal(opened.params[stacked].read(1), opened.params[stacked].read(None)[1])
    assert opened.params.tree('trunk/layers/query').keys() == {'kernel', 'bias'}
    with pytest.raises(ValueError, match=r"'mlm'.*trunk"):
      opened.params.arrays('mlm')


def test_parameters_that_were_saved_alone_say_nothing_of_their_model(tmp_path: pathlib.Path) -> None:
  checkpoint.save_params(tmp_path, {'vectors': np.arange(3.0, dtype=np.float32)})
  opened = weights.open(tmp_path)
  assert_same(opened.params, {'vectors': np.arange(3.0, dtype=np.float32)})
  with pytest.raises(WeightsError, match='Hugging Face'):
    opened.trunk()


def test_only_what_is_asked_for_is_read(
  published: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
  convert.import_release(published, tmp_path / 'imported')
  read, asked = tensor_files.Container.read, []

  def spy(self: tensor_files.Container, name: str) -> np.ndarray:
    asked.append(name)
    return read(self, name)

  monkeypatch.setattr(tensor_files.Container, 'read', spy)
  for folder, name in ((published, 'encoder.layer.1.'), (tmp_path / 'imported', 'query/kernel@1')):
    opened = weights.open(folder)
    assert opened.trunk() is not None and opened.params['trunk/token_embed/table'].shape
    assert asked == []
    opened.params['trunk/layers/query/kernel'].read(1)
    assert len(asked) == 1 and name in asked[0]
    asked.clear()


def test_a_folder_is_looked_at_only_when_something_is_asked_for(published: pathlib.Path) -> None:
  (published / release.SINGLE).write_bytes(b'')
  opened = weights.open(published)
  assert opened.vocab == published
  with pytest.raises(WeightsError, match='cut short'):
    assert opened.params


def test_steps_of_a_run(tmp_path: pathlib.Path) -> None:
  states = [make_params(seed) for seed in (1, 2)]
  run = make_run(tmp_path, *states)
  for step, expected in ((1, states[0]), ('newest', states[1]), (None, states[1])):
    assert_same(weights.open(run, step=step).params, expected)
  np.testing.assert_array_equal(
    weights.load(run)[1]['token_embed']['table'], states[1]['trunk']['token_embed']['table']
  )
  with pytest.raises(CheckpointError, match='best'):
    assert weights.open(run, step='best').params


def test_parts_of_a_run_with_two_trunks(tmp_path: pathlib.Path) -> None:
  own = make_params(1)['trunk']
  shared = own.pop('token_embed')
  second = {**make_params(2)['trunk'], 'token_embed': shared}
  delta = {'table': np.full_like(shared['table'], 2)}
  heads = {'mlm': {'bias': np.zeros(3, np.float32)}, 'rtd': {'bias': np.ones(1, np.float32)}}
  state = {'trunk': own, 'generator': second, 'delta': delta, **heads}
  run = make_run(tmp_path, state, objective={'name': 'rtd', 'generator': BLOCK})
  assert_same(weights.open(run).params, state)
  table = {'table': shared['table'] + 2}
  assert_same(weights.open(run, part='trunk').params, {'trunk': {**own, 'token_embed': table}, 'rtd': heads['rtd']})
  opened = weights.open(run, part='generator')
  assert opened.heads == ('mlm',)
  assert_same(opened.params, {'trunk': second, 'mlm': heads['mlm']})
  with pytest.raises(WeightsError, match='generator'):
    weights.load(make_run(tmp_path / 'other', make_params()), part='generator')


@pytest.mark.parametrize(
  ('name', 'adapter', 'start'),
  [
    ('t5', {'name': 'sequence', 'start': None}, 'pad'),  # what the adapter reads as its own
    ('bart', {'name': 'sequence', 'start': None}, 'pad'),
    ('bart', {'name': 'lora', 'inner': {'name': 'sequence', 'start': 'bos'}}, 'bos'),
    ('gpt', {'name': 'sequence', 'start': None}, None),
    ('bart', {'name': 'classify', 'classes': 2}, None),
  ],
)
def test_a_decoder_starts_with_the_token_that_its_adapter_trained_with(
  name: str, adapter: dict[str, Any], start: str | None, tmp_path: pathlib.Path
) -> None:
  run = run_paths.RunFolder(tmp_path / 'run')
  vocab = byte_bpe.train(['a text of some words'] * 4, size=280)
  files.make_folder(run.root)
  vocab.save(run.vocab)
  files.write_json(run.config, {'model': {'name': name, 'variant': 'tiny'}, 'objective': None, 'adapter': adapter})
  ids = {'pad': vocab.pad_id, 'bos': vocab.bos_id, None: None}
  assert len(set(ids.values())) == 3
  assert weights.open(run.root).token_ids.get('decoder_start_token_id') == ids[start]
