"""Folders of Hugging Face are read and written: the same states, the same tensors, no name missing or left over."""

import functools
import pathlib
from typing import Any

import jax
import numpy as np
import pytest

from plm_jax import convert, weights
from plm_jax.types import PyTree
from tests import tiny
from tests.weights import published

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TOLERANCE = 1e-5
MODEL_TYPES = {model_type for architecture in weights.architectures() for model_type in architecture.module.MODEL_TYPES}
# which of their configs have a class of their own here; the others are RoBERTa by another name
SAME_AS_ROBERTA = {'xlm-roberta', 'camembert'}


def known(name: str) -> str:
  """The case, where its architecture can be read; llama and its like are skipped until then."""
  model_type = published.make_model(name).config.model_type
  if model_type not in MODEL_TYPES:
    pytest.skip(f'{model_type} is not among weights/')
  return name


@functools.cache
def folder_of(name: str, root: pathlib.Path) -> pathlib.Path:
  return published.save(name, root / name)


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp('releases')


def gelu_of(model: Any) -> Any:
  exact = (getattr(model.config, 'hidden_act', None) or getattr(model.config, 'activation', 'gelu')) == 'gelu'
  return functools.partial(jax.nn.gelu, approximate=not exact)


def assert_same(a: PyTree, b: PyTree) -> None:
  assert jax.tree.structure(a) == jax.tree.structure(b)
  jax.tree.map(np.testing.assert_array_equal, a, b)


def assert_read_by_theirs(folder: pathlib.Path, model: Any) -> None:
  """Their class takes the folder: nothing missing, nothing left over, every tensor as in `model`."""
  again, report = type(model).from_pretrained(folder, output_loading_info=True)
  assert not {name: keys for name, keys in report.items() if keys}
  assert published.equal(again.state_dict(), model.state_dict())


@pytest.mark.parametrize('name', published.CASES)
def test_round_trip(name: str, root: pathlib.Path, tmp_path: pathlib.Path) -> None:
  model, source = published.make_model(known(name)), folder_of(name, root)
  trunk, params = weights.load(source)
  states, logits = published.states_of_theirs(model)
  assert tiny.worst(published.states_of_ours(trunk, params), states) < TOLERANCE
  heads = published.CASES[name].heads
  assert set(heads) <= set(params)
  if logits is not None:
    ours = published.logits_of_ours(trunk, params, heads[0] if heads else None, gelu=gelu_of(model))
    assert tiny.worst(ours, logits) < TOLERANCE

  weights.save(tmp_path / 'saved', trunk, params)
  assert_read_by_theirs(tmp_path / 'saved', model)
  convert.import_release(source, tmp_path / 'imported')
  again, read = weights.load(tmp_path / 'imported')
  assert again == trunk
  assert_same(read, params)
  convert.export(tmp_path / 'imported', tmp_path / 'exported')
  assert_read_by_theirs(tmp_path / 'exported', model)


def test_every_model_type_has_a_case() -> None:
  tried = {published.make_model(name).config.model_type for name in published.CASES}
  assert tried >= MODEL_TYPES - SAME_AS_ROBERTA
