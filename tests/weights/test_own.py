"""Trunks that were made here are read by the classes of Hugging Face: no name missing or left over, the same logits."""

import dataclasses
import functools
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax import weights
from plm_jax.checkpoint import in_memory
from plm_jax.checkpoint.tensor_files import WeightsError
from plm_jax.config import build
from plm_jax.core import param_paths
from plm_jax.core.types import PyTree
from plm_jax.training import step
from plm_jax.weights import shapes, writer
from tests import tiny
from tests.weights import published

pytestmark = pytest.mark.turns

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TOLERANCE = 1e-5


class Own(NamedTuple):
  """A trunk that no folder was read for, with the heads of an objective.

  Attributes:
    model: a file of `models/`.
    variant: of it.
    overrides: beside the sizes.
    objective: whose heads it has; None has none.
    kind: the class of theirs.
  """

  model: str
  variant: str
  overrides: Mapping[str, Any]
  objective: str | None
  kind: str


OWN = {
  'bert': Own('bert', 'bert-base', {}, 'mlm', 'BertForMaskedLM'),
  'bert padded': Own('bert', 'bert-base', {'vocab_multiple': 8}, 'sentence_pair', 'BertForPreTraining'),
  'roberta': Own('bert', 'roberta-base', {'num_types': 0, 'vocab_multiple': 8}, 'mlm', 'RobertaForMaskedLM'),
  'distilbert': Own('bert', 'distilbert-base', {}, 'mlm', 'DistilBertForMaskedLM'),
  'electra': Own('bert', 'electra-small', {}, 'rtd', 'ElectraForPreTraining'),
  'albert': Own('albert', 'albert-base-v2', {}, 'mlm', 'AlbertForMaskedLM'),
  'deberta': Own('deberta', 'deberta-base', {}, 'emd_mlm', 'DebertaForMaskedLM'),
  'deberta-v3': Own('deberta', 'deberta-v3-base', {}, 'mlm', 'DebertaV2ForMaskedLM'),
  'modernbert': Own(
    'modernbert', 'modernbert-base', {'window': 4, 'vocab_multiple': 8}, 'mlm', 'ModernBertForMaskedLM'
  ),
  'mpnet': Own('bert', 'mpnet-base', {'num_types': 0, 'vocab_multiple': 8}, 'mlm', 'MPNetForMaskedLM'),
  'ernie': Own('bert', 'ernie-2.0-base-en', {}, 'mlm', 'ErnieForMaskedLM'),
  'xlnet': Own('xlnet', 'xlnet-base', {}, 'permutation_lm', 'XLNetLMHeadModel'),
  'gpt': Own('gpt', 'gpt', {'vocab_multiple': 8, 'mlp_dim': 128}, 'causal_lm', 'OpenAIGPTLMHeadModel'),
  'gpt2': Own('gpt', 'gpt2', {'vocab_multiple': 8}, 'causal_lm', 'GPT2LMHeadModel'),
  'gpt2 untied': Own('gpt', 'gpt2', {'tied': False}, 'causal_lm', 'GPT2LMHeadModel'),
  'bart': Own('bart', 'bart-base', {}, None, 'BartForConditionalGeneration'),
  't5': Own('t5', 't5-small', {}, None, 'T5ForConditionalGeneration'),
  't5-v1_1': Own('t5', 't5-v1_1-small', {}, None, 'T5ForConditionalGeneration'),
}
SETTINGS = {'rtd': {'sampling': 'uniform'}}


@functools.cache
def make_own(name: str) -> tuple[nn.Module, PyTree]:
  """Build (trunk, parameters as in a run), with random leaves."""
  own = OWN[name]
  config = build.import_file(f'models.{own.model}').CONFIGS[own.variant]
  fields = {field.name for field in dataclasses.fields(config)}
  sizes = {field: value for field, value in tiny.SIZES.items() if field in fields}
  block = {'name': own.model, 'variant': own.variant, 'overrides': sizes | own.overrides}
  trunk = build.make('models', block, vocab_size=tiny.VOCAB.size)
  if own.objective is None:
    leaves = shapes.shapes(trunk)
    tree = {
      'trunk': param_paths.nested({path: jax.ShapeDtypeStruct(shape, np.float32) for path, shape in leaves.items()})
    }
  else:
    settings = {'name': own.objective, **SETTINGS.get(own.objective, {})}
    task = build.make('objectives', settings, trunk=trunk, vocab=tiny.VOCAB)
    batch = tiny.make_batch() | (tiny.make_pairs() if own.objective == 'sentence_pair' else {})
    tree = step.abstract_params(task, tiny.spec(batch))
  draw = np.random.default_rng(0)
  return trunk, jax.tree.map(lambda leaf: 0.3 * draw.standard_normal(leaf.shape, np.float32), tree)


@pytest.mark.parametrize('name', OWN)
def test_what_was_made_here_is_read_by_theirs(name: str, tmp_path: pathlib.Path) -> None:
  trunk, params = make_own(name)
  weights.save(tmp_path / 'saved', trunk, params)
  kind = getattr(transformers, OWN[name].kind)
  model, report = kind.from_pretrained(tmp_path / 'saved', output_loading_info=True)
  assert not {part: keys for part, keys in report.items() if keys}
  own, heads = params['trunk'], sorted(set(params) - {'trunk'})
  states, logits = published.states_of_theirs(model.eval())
  assert tiny.worst(published.states_of_ours(trunk, own), states) < TOLERANCE
  first = next((head for head in ('mlm', 'rtd', 'lm') if head in heads), None)
  ours = published.logits_of_ours(trunk, {**own, **params}, first)
  assert tiny.worst(ours, logits) < TOLERANCE

  again, read = weights.load(tmp_path / 'saved')
  parts = {path.split('/')[0] for path in shapes.shapes(again)}
  assert set(read) - parts == set(heads)
  for path, leaf in param_paths.flat({**own, **{head: params[head] for head in heads}}).items():
    found = param_paths.flat(read)[path]
    np.testing.assert_array_equal(found, leaf[: len(found)] if path.endswith('/table') else leaf)
  assert tiny.worst(published.states_of_ours(again, read), states) < TOLERANCE


@pytest.mark.parametrize(('end', 'forced'), [(2, 2), (5, None)])
def test_a_text_that_is_cut_ends_with_no_token_of_the_published_vocabulary(
  end: int, forced: int | None, tmp_path: pathlib.Path
) -> None:
  trunk, params = make_own('bart')
  ids = {'pad_token_id': 1, 'eos_token_id': end, 'decoder_start_token_id': 3}
  writer.save_leaves(tmp_path / 'saved', trunk, in_memory(params), token_ids=ids)
  theirs = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / 'saved')
  assert theirs.config.forced_eos_token_id == forced


@pytest.mark.parametrize(('name', 'warned'), [('t5', False), ('t5-v1_1', True)])
def test_an_output_matrix_that_theirs_may_tie_is_warned_of(
  name: str, warned: bool, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  trunk, params = make_own(name)
  with caplog.at_level('WARNING', 'plm_jax'):
    weights.save(tmp_path / 'saved', trunk, params)
  assert ('lm_head' in caplog.text) == warned
  model = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / 'saved')
  table, output = params['trunk']['token_embed']['table'], model.lm_head.weight.detach().numpy()
  np.testing.assert_array_equal(output, params['trunk']['output']['table'] if warned else table)
  model.tie_weights()
  np.testing.assert_array_equal(model.lm_head.weight.detach().numpy(), table)  # what the warning is about


@pytest.mark.parametrize('name', ['t5-encoder', 'mt5-encoder', 't5-tokens'])
def test_ids_of_special_tokens_go_out_with_an_encoder_alone(
  name: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  """Write a config.json without a decoder."""
  source, ids = published.save(name.replace('tokens', 'encoder'), tmp_path / 'source'), {'pad_token_id': 5}
  trunk, params = weights.load(source)
  leaves = in_memory({'trunk': params})
  if name == 't5-tokens':
    head = {'kernel': np.zeros((trunk.hidden_dim, 3), np.float32), 'bias': np.zeros(3, np.float32)}
    leaves = in_memory({'trunk': params, 'head': head})
  ids |= {'eos_token_id': 7, 'bos_token_id': 9}
  with caplog.at_level('WARNING', 'plm_jax'):
    writer.save_leaves(tmp_path / 'saved', trunk, leaves, token_ids=ids)
    weights.save(tmp_path / 'again', trunk, params)
  assert not caplog.messages
  theirs = transformers.AutoConfig.from_pretrained(tmp_path / 'saved')
  assert {key: getattr(theirs, key) for key in ids} == ids
  assert weights.open(tmp_path / 'saved').token_ids.items() >= ids.items()
  assert not theirs.is_encoder_decoder


def test_a_head_without_a_place_is_refused(tmp_path: pathlib.Path) -> None:
  trunk, params = make_own('gpt2')
  with pytest.raises(WeightsError, match=r'Gpt.*mlm(.|\n)*gpt: '):
    weights.save(tmp_path / 'saved', trunk, params | {'mlm': {'bias': np.zeros(3, np.float32)}})
  assert not list(tmp_path.iterdir())


def test_a_form_that_cannot_hold_the_trunk_is_refused(tmp_path: pathlib.Path) -> None:
  trunk, params = make_own('roberta')
  with pytest.raises(WeightsError, match='position'):
    weights.save(tmp_path / 'saved', trunk, params, architecture='bert')
  with pytest.raises(WeightsError, match=r"'gpt'.*Bert"):
    weights.save(tmp_path / 'saved', trunk, params, architecture='gpt')
