"""The Python of docs/guide/weights.md on a release of every family, called as it stands there and compiled."""

import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from plm_jax import weights
from plm_jax.weights import table
from tests import tiny
from tests.weights import published

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

MODEL_TYPES = {kind: name for name, module in table.architectures() for kind in module.MODEL_TYPES}
del MODEL_TYPES['ltgbert']  # has no class in transformers
# one case of each, the smallest
CASES = {
  'bert': 'bert-pretraining', 'roberta': 'roberta-mlm', 'albert': 'albert-pretraining', 'xlnet': 'xlnet-lm',
  'distilbert': 'distilbert-mlm', 'electra': 'electra-discriminator', 'deberta': 'deberta-v2-mlm', 'gpt': 'gpt2',
  'openai_gpt': 'gpt', 'bart': 'bart', 'mbart': 'mbart', 't5': 't5', 'mt5': 'mt5', 'llama': 'llama', 'glm4': 'glm4',
  'modernbert': 'modernbert-mlm', 'mpnet': 'mpnet-mlm', 'ernie': 'ernie-pretraining',
  'llama_relatives': 'qwen3', 'gpt_neox': 'gpt-neox', 'opt': 'opt-350m',
}  # fmt: skip


def inputs_of(trunk: Any, tokens: jax.Array) -> dict[str, jax.Array]:
  segment_ids = (tokens > 0).astype(int)
  if 'tokens' in trunk.INPUTS:
    return {'tokens': tokens, 'segment_ids': segment_ids}
  sides = ('encoder', 'decoder')
  return {f'{side}_tokens': tokens for side in sides} | {f'{side}_segment_ids': segment_ids for side in sides}


def test_every_architecture_is_tried() -> None:
  assert CASES.keys() == set(MODEL_TYPES.values())


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[pytest.mark.slow] * (name not in ('albert', 'bert'))) for name in CASES]
)
def test_the_readme_runs_as_it_stands_and_compiled(name: str, tmp_path: pathlib.Path) -> None:
  case = CASES[name]
  trunk, params = weights.load(published.save(case, tmp_path / 'FOLDER'))
  tokens = jnp.array([[9, 7, 12, 10, 0, 0]])
  out = trunk.apply({'params': params}, **inputs_of(trunk, tokens))
  compiled = jax.jit(trunk.apply)({'params': params}, **inputs_of(trunk, tokens))
  assert tiny.worst(out['hidden'], compiled['hidden']) < 1e-5
  assert out['layers'].shape[1:] == (1, 6, trunk.config.hidden_dim)
  states, _ = published.states_of_theirs(published.make_model(case))
  rows = jnp.asarray(published.draw_tokens())
  given = inputs_of(trunk, rows)
  if 'decoder_tokens' in given:
    given['decoder_tokens'] = rows[:, ::-1]
  assert tiny.worst(trunk.apply({'params': params}, **given)['hidden'], states) < 1e-5
  host = jax.tree.map(np.asarray, params)  # as `Params.tree` of `weights.open` gives them
  assert tiny.worst(trunk.apply({'params': host}, **inputs_of(trunk, tokens))['hidden'], out['hidden']) < 1e-6
  weights.save(tmp_path / 'COPY', trunk, params)
  type(published.make_model(case)).from_pretrained(tmp_path / 'COPY')


def test_load_places_what_it_reads(tmp_path: pathlib.Path) -> None:
  """Load onto one device, another one, or sharded over several.

  The host never has a second copy of all parameters.
  """
  folder = published.save('bert-pretraining', tmp_path)
  params = weights.load(folder)[1]
  assert all(isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))
  last = jax.devices()[-1]
  assert weights.load(folder, device=last)[1]['token_embed']['table'].devices() == {last}
  mesh = jax.make_mesh((len(jax.devices()),), ('data',))
  everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
  placed = weights.load(folder, device=everywhere)[1]
  assert placed['mlm']['bias'].sharding == everywhere
  jax.tree.map(np.testing.assert_array_equal, placed, params)


def test_leaves_are_read_some_at_a_time(tmp_path: pathlib.Path) -> None:
  opened = weights.open(published.save('bert-pretraining', tmp_path))
  sizes: list[int] = []
  read = opened.params._read

  def spy(names: Any) -> Any:
    sizes.append(sum(4 * int(np.prod(opened.params[name].shape)) for name in names))
    return read(names)

  opened.params._read = spy
  most = 8_000
  found = dict(opened.params.each(most))
  largest = max(array.nbytes for array in found.values())
  assert len(sizes) > 3 and max(sizes) <= max(most, largest)
  assert list(found) == list(opened.params)
