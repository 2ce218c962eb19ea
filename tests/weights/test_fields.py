"""config.json, field by field: what transformers knows of an architecture is used, fixed or without effect on numbers.

Each attribute of a config class of transformers is changed away from what it was: either the model that transformers
then makes agrees with ours, or the folder is refused by the name of the field.
"""

import functools
import json
import pathlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from plm_jax import weights
from plm_jax.cli.command import WRONG_USAGE, run
from plm_jax.config import build
from plm_jax.layers import mlp
from plm_jax.models import bert
from plm_jax.weights import WeightsError, fields, release, table
from tests import tiny
from tests.weights import published

TOLERANCE = 1e-5
# model_type -> a case, with a head where the family has one
CASES = {
  'bert': 'bert-pretraining', 'roberta': 'roberta-mlm', 'xlm-roberta': 'xlm-roberta', 'camembert': 'camembert',
  'albert': 'albert-pretraining', 'distilbert': 'distilbert-mlm', 'electra': 'electra-generator',
  'deberta': 'deberta-mlm', 'deberta-v2': 'deberta-v2-mlm', 'openai-gpt': 'gpt', 'gpt2': 'gpt2', 'xlnet': 'xlnet-lm',
  'bart': 'bart', 'mbart': 'mbart', 't5': 't5', 'mt5': 'mt5', 'llama': 'llama', 'glm': 'glm', 'glm4': 'glm4',
  'modernbert': 'modernbert-mlm', 'mpnet': 'mpnet-mlm', 'ernie': 'ernie-pretraining',
  'mistral': 'mistral', 'qwen2': 'qwen2', 'qwen3': 'qwen3', 'gemma': 'gemma', 'olmo2': 'olmo2', 'smollm3': 'smollm3',
  'gpt_neox': 'gpt-neox', 'opt': 'opt',
}  # fmt: skip
FIELDS = {kind: module.FIELDS for _, module in table.architectures() for kind in module.MODEL_TYPES}
del FIELDS['ltgbert']  # has no class in transformers
# another value of a field, where its type does not say one
OTHERS: Mapping[str, tuple[Any, ...]] = {
  'id2label': ({0: 'a', 1: 'b', 2: 'c'},), 'label2id': ({'a': 0, 'b': 1},), 'architectures': (['Other'],),
  'transformers_version': ('1.0',), 'problem_type': ('regression',), 'dtype': ('float32',), 'pruned_heads': ({0: [1]},),
  'quantization_config': ({'quant_method': 'gptq', 'bits': 4},), 'per_layer_config': ({'0': {'layer_norm_eps': 0.5}},),
  'pos_att_type': (['c2p'], ['p2c'], 'p2c|c2p', None), 'norm_rel_ebd': ('layer_norm', 'none'),
  'hidden_act': ('relu', 'silu', 'gelu_new', 'quick_gelu', 'prelu'), 'activation': ('silu', 'gelu_new'),
  'conv_act': ('gelu', 'tanh'),
  'afn': ('gelu', 'relu', 'silu'), 'activation_function': ('gelu', 'relu', 'silu'),
  'ff_activation': ('gelu', 'relu', 'silu'), 'pooler_hidden_act': ('gelu', 'tanh'),
  'position_embedding_type': ('relative_key',), 'attn_type': ('uni',),
  'feed_forward_proj': ('relu', 'gated-gelu', 'gated-silu'),
  'rope_parameters': ({'rope_type': 'default', 'rope_theta': 500.0},),
  'layer_types': (['sliding_attention', 'full_attention', 'full_attention'], ['sliding_attention'] * 3),
  'no_rope_layers': ([1, 1, 0], [0, 0, 0]),
  'rope_scaling': ({'rope_type': 'yarn', 'factor': 2.0},), 'hidden_size': (32,), 'dim': (32,), 'n_embd': (32,),
  'd_model': (32,), 'head_dim': (16,), 'd_head': (16,), 'num_attention_heads': (1,), 'num_hidden_groups': (3,),
}  # fmt: skip


# What another value changes of the tensors' names and shapes, which say it themselves.
IN_THE_TENSORS = {'legacy', 'id2label', 'label2id', 'num_labels'}


def others(name: str, value: Any) -> Iterator[Any]:
  """Yield other values of a field."""
  if name in OTHERS:
    yield from (other for other in OTHERS[name] if other != value)
  elif isinstance(value, bool):
    yield not value
  elif isinstance(value, int):
    yield value + 1
  elif isinstance(value, float):
    yield 0.5 * value + 0.25
  elif isinstance(value, str):
    yield 'other'
  else:
    yield 3


@functools.cache
def folder_of(kind: str, root: pathlib.Path) -> pathlib.Path:
  return published.save(CASES[kind], root / kind)


def config_of(folder: pathlib.Path) -> dict[str, Any]:
  return json.loads((folder / release.CONFIG).read_text())


def write_config(folder: pathlib.Path, config: Mapping[str, Any]) -> None:
  (folder / release.CONFIG).write_text(json.dumps(config))


def beside(folder: pathlib.Path, target: pathlib.Path, config: Mapping[str, Any]) -> pathlib.Path:
  """Link the same tensors with another config.json."""
  target.mkdir(exist_ok=True)
  if not (target / release.SINGLE).exists():
    (target / release.SINGLE).symlink_to(folder / release.SINGLE)
  write_config(target, config)
  return target


@pytest.fixture(scope='module')
def root(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return tmp_path_factory.mktemp('releases')


# Bounds --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
  ('kind', 'change', 'said'),
  [
    ('llama', {'rope_parameters': {'rope_type': 'linear', 'factor': 0}}, 'factor.* 1'),
    ('llama', {'rope_scaling': {'rope_type': 'llama3', 'factor': 0.5}}, 'factor.* 1'),
    ('llama', {'rope_parameters': {'rope_type': 'default', 'rope_theta': 0}}, 'rope_theta.* 1.*null'),
    ('llama', {'rope_parameters': {'rope_type': 'default', 'rope_theta': 0.5}}, 'rope_theta.* 1'),
    ('glm4', {'rms_norm_eps': 1e30}, 'rms_norm_eps.*1e.30.*1.17549e-38 to 1'),
    ('bert', {'layer_norm_eps': 0}, 'layer_norm_eps.* 0'),
    ('gpt2', {'initializer_range': 1e300}, 'initializer_range.*1e.300.*0 to 100'),
    ('bart', {'dropout': 1.0}, 'dropout.*1.0.* 0 .* 1'),
  ],
)
def test_numbers_have_the_bounds_of_our_own_settings(kind: str, change: dict[str, Any], said: str) -> None:
  module = next(module for _, module in table.architectures() if kind in module.MODEL_TYPES)
  variants = {'llama': 'llama-7b', 'glm4': 'glm-4-9b-0414', 'bert': 'bert-base', 'gpt2': 'gpt2', 'bart': 'bart-base'}
  trunk = build.make('models', {'name': module.MODEL, 'variant': variants[kind]}, vocab_size=32)
  theirs = module.write_config(trunk, ())
  module.read_config(theirs, ())
  with pytest.raises(ValueError, match=said):
    module.read_config(theirs | change, ())


@pytest.mark.parametrize(
  ('kind', 'change', 'said'),
  [
    ('t5', {'relative_attention_max_distance': 4}, 'relative_attention_max_distance.*4.* relative_attention_num_'),
    ('mt5', {'relative_attention_num_buckets': 300}, 'relative_attention_max_distance.*_buckets.*300'),
    ('glm4', {'partial_rotary_factor': 0.1}, 'partial_rotary_factor.*0.1.*even'),
  ],
)
def test_fields_that_do_not_go_together_are_named(
  kind: str, change: Mapping[str, Any], said: str, root: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  pytest.importorskip('transformers')
  folder = folder_of(kind, root)
  about = config_of(folder)
  if 'rope_parameters' in about and 'partial_rotary_factor' in change:
    about['rope_parameters'] = {**about['rope_parameters'], **change}
  odd = beside(folder, tmp_path / 'odd', about | change)
  with pytest.raises(WeightsError, match=f'odd/config.json: .*{said}'):
    weights.open(odd).trunk()


# What transformers knows ---------------------------------------------------------------------------------------------


def attributes(kind: str) -> dict[str, Any]:
  """Map public attributes of the config class, and others that are read, to values."""
  model = published.make_model(CASES[kind])
  known = {name: value for name, value in vars(model.config).items() if not name.startswith('_')}
  ours = {name: field.default for name, field in FIELDS[kind].items()}
  return {name: known.get(name, ours.get(name)) for name in sorted({*known, *ours})}


@pytest.mark.parametrize('kind', CASES)
def test_every_attribute_of_their_class_has_a_role(kind: str) -> None:
  pytest.importorskip('transformers')
  assert not attributes(kind).keys() - FIELDS[kind].keys()


def test_activations_are_those_of_transformers() -> None:
  torch = pytest.importorskip('torch')
  activations = pytest.importorskip('transformers').activations
  x = np.linspace(-30, 30, 2001).astype(np.float32)
  for theirs, ours in fields.ACTIVATIONS.items():
    expected = activations.ACT2FN[theirs](torch.tensor(x)).numpy()
    np.testing.assert_allclose(mlp.ACTIVATIONS[ours](x), expected, rtol=1e-5, atol=1e-6, err_msg=theirs)


@pytest.mark.parametrize(
  ('kind', 'variant', 'head'),
  [('roberta', 'roberta-base', 'lm_head.'), ('electra', 'electra-small', 'generator_predictions.')],
)
def test_a_head_with_gelu_in_any_case_needs_a_body_with_it(kind: str, variant: str, head: str) -> None:
  module = next(one.module for one in table.architectures() if one.name == kind)
  theirs = module.write_config(bert.make(vocab_size=24, variant=variant), ()) | {'hidden_act': 'relu'}
  module.read_config(theirs, ())
  with pytest.raises(ValueError, match=r"hidden_act.*'relu'"):
    module.read_config(theirs, (f'{head}dense.weight',))
  trunk = bert.make(vocab_size=24, variant=variant, overrides={'activation': 'relu'})
  with pytest.raises(ValueError, match='gelu_erf'):
    module.write_config(trunk, ('mlm',))


def test_every_architecture_is_walked() -> None:
  assert CASES.keys() == FIELDS.keys()


def is_fixed(field: fields.Field) -> bool:
  return field.says.endswith('the only supported value')


@pytest.mark.parametrize('kind', CASES)
def test_a_fixed_field_is_refused_by_name(kind: str, root: pathlib.Path) -> None:
  pytest.importorskip('transformers')
  source = folder_of(kind, root)
  tried = 0
  for name, value in attributes(kind).items():
    for other in others(name, value) if is_fixed(FIELDS[kind][name]) else ():
      folder = beside(source, root / f'{kind}-fixed', config_of(source) | {name: other})
      with pytest.raises(WeightsError, match=rf'config.json: {name} '):
        weights.load(folder)
      tried += 1
  assert tried > 3


@pytest.mark.parametrize('kind', CASES)
def test_an_inert_field_changes_nothing_in_transformers(kind: str) -> None:
  pytest.importorskip('transformers')
  base = published.make_model(CASES[kind])
  states, logits = published.states_of_theirs(base)
  for name, value in attributes(kind).items():
    if FIELDS[kind][name].default is not fields.INERT or name in IN_THE_TENSORS:
      continue
    for other in others(name, None if value is fields.INERT else value):
      model = changed(kind, name, other)
      if model is None:  # of older versions, or refused by transformers
        continue
      model.load_state_dict(base.state_dict())
      found, scores = published.states_of_theirs(model)
      np.testing.assert_allclose(found, states, atol=TOLERANCE, err_msg=name)
      np.testing.assert_allclose(scores, logits, atol=TOLERANCE, err_msg=name)


def changed(kind: str, name: str, value: Any) -> Any:
  """Build a random model with one field changed.

  None if transformers refuses it.
  """
  import torch

  try:
    model = published.build(CASES[kind], **{name: value})
    published.states_of_theirs(model)
  except Exception:  # noqa: BLE001, whatever they raise
    return None
  torch.manual_seed(1)
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  return model


USED = [
  (kind, name)
  for kind in CASES
  for name, field in FIELDS[kind].items()
  if field.default is not fields.INERT and not is_fixed(field)
]


@pytest.mark.slow
@pytest.mark.parametrize(('kind', 'name'), USED)
def test_a_used_field_agrees_with_transformers_or_is_refused_by_name(
  kind: str, name: str, tmp_path: pathlib.Path
) -> None:
  pytest.importorskip('transformers')
  for number, other in enumerate(others(name, attributes(kind).get(name))):
    model = changed(kind, name, other)
    if model is None:
      continue
    folder = tmp_path / str(number)
    model.save_pretrained(folder)
    try:
      trunk, params = weights.load(folder)
    except WeightsError as error:
      assert name in str(error), (name, other, str(error))
      continue
    states, logits = published.states_of_theirs(model)
    assert tiny.worst(published.states_of_ours(trunk, params), states) < TOLERANCE, (name, other)
    heads = published.CASES[CASES[kind]].heads
    found = published.logits_of_ours(trunk, params, heads[0] if heads else None)
    assert tiny.worst(found, logits) < TOLERANCE, (name, other)


# What nobody knows ---------------------------------------------------------------------------------------------------

WRONG = ('12', None, [3], {}, -1, 0, 1.5, 10**9, 10**30, float('nan'), float('inf'), True, '', 'x' * 300)
MUTATED = 200


def mutations() -> list[tuple[str, str, Any]]:
  """Sample (model_type, field, value)."""
  every = [(kind, name, value) for kind in CASES for name in FIELDS[kind] for value in WRONG]
  return random.Random(0).sample(every, MUTATED)


@pytest.mark.parametrize('kind', CASES)
def test_values_of_every_wrong_kind_end_in_one_line(
  kind: str, root: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  pytest.importorskip('transformers')
  source = folder_of(kind, root)
  whole = weights.open(source).trunk()
  run(lambda: int(not weights.open(source).params))  # what the log says once is said
  capsys.readouterr()
  for _, name, value in (each for each in mutations() if each[0] == kind):
    folder = beside(source, root / f'{kind}-wrong', config_of(source) | {name: value})

    def read(folder: pathlib.Path = folder) -> int:
      opened = weights.open(folder)
      # what is taken all the same leaves the sizes as they are: other sizes do not fit the tensors
      assert opened.params and opened.trunk().vocab_size == whole.vocab_size
      return 0

    code = run(read)
    said = capsys.readouterr().err
    assert 'Traceback' not in said
    assert (code, bool(said)) in ((0, False), (WRONG_USAGE, True)), (name, value, said)
    if code:
      assert said.count('\n') == 1 and release.CONFIG in said and len(said) < 600, (name, value, said)


@pytest.mark.parametrize(
  'content', ['[]', 'null', '"bert"', '{"model_type": 3}', '{"model_type": ["bert"]}', '{"a": 1']
)
def test_a_file_of_another_kind_ends_in_one_line(content: str, tmp_path: pathlib.Path) -> None:
  (tmp_path / release.CONFIG).write_text(content)
  with pytest.raises(WeightsError, match=r'config\.json'):
    weights.load(tmp_path)
