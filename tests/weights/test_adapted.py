"""PEFT folders: an adapter is merged into its base as PEFT does, or refused with a fix."""

import json
import pathlib
import shutil
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from plm_jax import weights
from plm_jax.core.errors import WeightsError
from plm_jax.io import model_folders
from plm_jax.weights import convert

torch = pytest.importorskip('torch')
peft = pytest.importorskip('peft')
transformers = pytest.importorskip('transformers')

BERT = {
  'vocab_size': 40, 'hidden_size': 16, 'num_hidden_layers': 2, 'num_attention_heads': 2, 'intermediate_size': 32,
  'max_position_embeddings': 32,
}  # fmt: skip
GPT = {'vocab_size': 40, 'n_embd': 16, 'n_layer': 2, 'n_head': 2, 'n_positions': 32, 'pad_token_id': 0}
TOKENS = np.random.RandomState(0).randint(5, 40, (2, 7))


class Case(NamedTuple):
  """Family and kinds of the base and of the class with the adapter, its settings, and our head."""

  family: str
  base: str
  kind: str
  lora: dict[str, Any]
  head: str = ''


CASES = {
  'every layer': Case('Bert', 'Model', 'ForSequenceClassification', {
    'task_type': 'SEQ_CLS', 'target_modules': 'all-linear', 'bias': 'all', 'lora_alpha': 7,
    'rank_pattern': {'query': 2}, 'alpha_pattern': {'key': 3},
  }, 'classify'),
  'a pattern': Case('Bert', 'ForMaskedLM', 'ForTokenClassification', {
    'task_type': 'TOKEN_CLS', 'use_rslora': True, 'target_modules': r'.*\.(query|value)', 'bias': 'lora_only',
  }, 'tag'),
  'one layer': Case('Bert', 'Model', 'ForQuestionAnswering', {
    'task_type': 'QUESTION_ANS', 'target_modules': ['query', 'dense'], 'layers_to_transform': [1],
  }, 'span'),
  'embeddings': Case('Bert', 'Model', 'Model', {
    'task_type': 'FEATURE_EXTRACTION', 'target_modules': ['query', 'word_embeddings'], 'modules_to_save': ['pooler'],
  }),
  'no task': Case('Bert', 'ForMaskedLM', 'ForMaskedLM', {'target_modules': ['query']}),
  'biases of updates': Case('Roberta', 'ForMaskedLM', 'ForSequenceClassification', {
    'task_type': 'SEQ_CLS', 'target_modules': 'all-linear', 'lora_bias': True,
  }, 'classify'),
  'Conv1D': Case('GPT2', 'LMHeadModel', 'LMHeadModel', {
    'task_type': 'CAUSAL_LM', 'target_modules': 'all-linear', 'fan_in_fan_out': True,
  }),
  'Conv1D with a head': Case('GPT2', 'LMHeadModel', 'ForSequenceClassification', {
    'task_type': 'SEQ_CLS', 'target_modules': ['c_attn', 'c_proj'],
  }, 'classify'),
  'whole tables': Case('Llama', 'ForCausalLM', 'ForCausalLM', {
    'task_type': 'CAUSAL_LM', 'target_modules': 'all-linear', 'modules_to_save': ['embed_tokens', 'lm_head'],
  }),
}  # fmt: skip
OTHERS = {  # keywords of the adapter's config, and its message
  'IA3': (peft.IA3Config, {'target_modules': ['key'], 'feedforward_modules': []}, 'IA3.*num_labels=2'),
  'DoRA': (peft.LoraConfig, {'target_modules': ['query'], 'use_dora': True}, 'use_dora'),
  'PiSSA': (peft.LoraConfig, {'target_modules': ['query'], 'init_lora_weights': 'pissa'}, 'pissa'),
  'prompts': (peft.PromptTuningConfig, {'num_virtual_tokens': 2}, "PROMPT_TUNING.*adapter 'prefix'.*base"),
}


def save(case: Case, folder: pathlib.Path, config: Any) -> Any:
  """Write a base and an adapter of random numbers; return PEFT's model of both."""
  torch.manual_seed(0)
  make = getattr(transformers, f'{case.family}Config')
  sizes = GPT if case.family == 'GPT2' else {**BERT, 'max_position_embeddings': 40, 'pad_token_id': 1}
  base = getattr(transformers, f'{case.family}{case.base}')(make(**sizes, tie_word_embeddings=case.family != 'Llama'))
  base.save_pretrained(folder / 'base')
  of_task = getattr(transformers, f'{case.family}{case.kind}')
  labels = {'num_labels': 3} if case.head in ('classify', 'tag') else {}
  model = peft.get_peft_model(of_task.from_pretrained(folder / 'base', **labels), config)
  for parameter in model.parameters():
    if parameter.requires_grad:
      parameter.data += 0.3 * torch.randn_like(parameter)
  model.save_pretrained(folder / 'adapter')
  again = of_task.from_pretrained(folder / 'base', **labels)
  return peft.PeftModel.from_pretrained(again, folder / 'adapter').eval()


@pytest.mark.parametrize('name', CASES)
def test_an_adapter_gives_the_states_of_peft(name: str, tmp_path: pathlib.Path) -> None:
  case = CASES[name]
  model = save(case, tmp_path, peft.LoraConfig(r=4, **case.lora))
  opened = weights.open(tmp_path / 'adapter')
  assert opened.adapter.get('name', '') == case.head
  trunk, params = weights.load(tmp_path / 'adapter')
  ours = trunk.apply({'params': params}, tokens=jnp.asarray(TOKENS), segment_ids=jnp.ones(TOKENS.shape, int))
  with torch.no_grad():
    theirs = model(input_ids=torch.tensor(TOKENS), output_hidden_states=True).hidden_states[-1]
  np.testing.assert_allclose(ours['hidden'], theirs, atol=1e-5)
  if case.head:
    head = params['head'].get('out', params['head'])
    theirs = model.merge_and_unload().state_dict().values()
    np.testing.assert_array_equal(head['kernel'].T, list(theirs)[-1 - ('bias' in head)])


def test_the_base_may_be_beside_its_adapter(tmp_path: pathlib.Path) -> None:
  save(CASES['every layer'], tmp_path, peft.LoraConfig(r=4, **CASES['every layer'].lora))
  one = shutil.copytree(tmp_path / 'base', tmp_path / 'one')
  for file in (tmp_path / 'adapter').iterdir():
    shutil.copy(file, one / file.name)
  about = json.loads((one / model_folders.PEFT).read_text())
  for named in ('bert-base-cased', '.', None):
    (one / model_folders.PEFT).write_text(json.dumps({**about, 'base_model_name_or_path': named}))
    for path, array in weights.open(tmp_path / 'adapter').params.each():
      np.testing.assert_array_equal(weights.open(one).params[path].read(None), array)
  config = json.loads((one / 'config.json').read_text())  # of a head with other classes
  (one / 'config.json').write_text(json.dumps({**config, 'id2label': {'0': 'no', '1': 'yes'}}))
  convert.import_release(one, tmp_path / 'ours')
  assert weights.open(tmp_path / 'ours').adapter['classes'] == 3


def test_a_base_that_is_not_here_is_named(tmp_path: pathlib.Path) -> None:
  save(CASES['no task'], tmp_path, peft.LoraConfig(r=4, **CASES['no task'].lora))
  shutil.move(tmp_path / 'base', tmp_path / 'moved')
  with pytest.raises(WeightsError, match=rf'{tmp_path}/base.*not a folder here.*base_model_name_or_path'):
    weights.open(tmp_path / 'adapter')
  about = json.loads((tmp_path / 'adapter' / model_folders.PEFT).read_text())
  about['base_model_name_or_path'] = '../moved'
  (tmp_path / 'adapter' / model_folders.PEFT).write_text(json.dumps(about))
  assert weights.open(tmp_path / 'adapter').heads == ('mlm',)


EDITS = {
  'a number': ({'lora_alpha': 'x'}, "lora_alpha is 'x', which PEFT does not write"),
  'patterns': ({'alpha_pattern': ['query']}, 'alpha_pattern is .*PEFT does not write'),
  'a pattern': ({'alpha_pattern': {'(': 3}}, 'alpha_pattern: missing .*fetch it again'),
  'a class': ({'auto_mapping': 'BertModel'}, 'auto_mapping is'),
  'a list': (None, 'adapter_config.json is not a JSON object'),
}  # fmt: skip


@pytest.mark.parametrize('name', EDITS)
def test_a_damaged_config_is_named(name: str, tmp_path: pathlib.Path) -> None:
  save(CASES['no task'], tmp_path, peft.LoraConfig(r=4, **CASES['no task'].lora))
  file, (edit, message) = tmp_path / 'adapter' / model_folders.PEFT, EDITS[name]
  file.write_text('[]' if edit is None else json.dumps({**json.loads(file.read_text()), **edit}))
  with pytest.raises(WeightsError, match=message):
    weights.load(tmp_path / 'adapter')


def renamed(old: str, new: str) -> Any:
  return lambda tensors: {name.replace(old, new): array for name, array in tensors.items()}


def reshaped(part: str, change: Any) -> Any:
  return lambda tensors: {
    name: np.ascontiguousarray(change(array)) if f'lora_{part}.' in name else array for name, array in tensors.items()
  }


SAME = 'they are of different models. Correct base_model_name_or_path in .*adapter_config.json'
TENSORS = {
  'of another family': (renamed('.query.', '.q_proj.'), rf"q_proj' is not in the base model: {SAME}"),
  'of more layers': (renamed('.layer.1.', '.layer.7.'), rf"layer.7.*' is not in the base model: {SAME}"),
  'wider inputs': (
    reshaped('A', lambda a: np.concatenate([a, a], 1)), rf'shape \(16, 32\), the base \(16, 16\): {SAME}',
  ),
  'two ranks': (reshaped('B', lambda b: b[:, :3]), r'A \(4, 16\) and B \(16, 3\) of .* have no common rank: fetch'),
  'no rank': (reshaped('A', lambda a: a[0, 0]), r'A \(1,\) and B .* have no common rank: fetch'),
  'rank 0': (
    lambda tensors: reshaped('A', lambda a: a[:0])(reshaped('B', lambda b: b[:, :0])(tensors)), 'have no common rank',
  ),
  'half of a pair': (lambda tensors: {n: a for n, a in tensors.items() if 'lora_B' not in n}, 'has only A: fetch'),
  'not a number': (reshaped('B', lambda b: b * np.nan), r'with its update in .*safetensors has values .*not finite'),
}  # fmt: skip


@pytest.mark.parametrize('name', TENSORS)
def test_an_adapter_of_another_base_is_named_in_one_line(
  name: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
  save(CASES['no task'], tmp_path, peft.LoraConfig(r=4, **CASES['no task'].lora))
  file, (edit, message) = tmp_path / 'adapter' / 'adapter_model.safetensors', TENSORS[name]
  safetensors.numpy.save_file(edit(safetensors.numpy.load_file(file)), file)
  with pytest.raises(WeightsError, match=message), caplog.at_level('INFO'):
    convert.import_release(tmp_path / 'adapter', tmp_path / 'new')
  assert 'merged' not in caplog.text or name == 'not a number'
  assert not (tmp_path / 'new').exists()


@pytest.mark.parametrize('name', OTHERS)
def test_other_methods_are_refused_with_a_fix_that_works(name: str, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
  make, settings, message = OTHERS[name]
  task = {'task_type': 'SEQ_CLS' if name == 'IA3' else 'FEATURE_EXTRACTION'}
  kind = 'ForSequenceClassification' if name == 'IA3' else 'Model'
  model = save(Case('Bert', 'Model', kind, {}), tmp_path, make(**task, **settings))
  with pytest.raises(WeightsError, match=message) as caught:
    weights.load(tmp_path / 'adapter')
  if name == 'prompts':
    return
  monkeypatch.chdir(tmp_path)
  exec(str(caught.value).split('`')[1], {'peft': peft})  # noqa: S102 (the fix of our own message)
  trunk, params = weights.load('NEW')
  ours = trunk.apply({'params': params}, tokens=jnp.asarray(TOKENS), segment_ids=jnp.ones(TOKENS.shape, int))
  with torch.no_grad():
    theirs = model(input_ids=torch.tensor(TOKENS), output_hidden_states=True).hidden_states[-1]
  np.testing.assert_allclose(ours['hidden'], theirs, atol=1e-5)


# family, class, modules saved whole, whether two tokens are added, and whether PEFT has to merge them
TABLES = {
  'output': ('GPT2', 'LMHeadModel', ['lm_head'], False, False),
  'both': ('GPT2', 'LMHeadModel', ['wte', 'lm_head'], False, False),
  'output of a masked model': ('Bert', 'ForMaskedLM', ['predictions'], False, False),
  'added tokens': ('GPT2', 'LMHeadModel', None, True, False),
  'input': ('GPT2', 'LMHeadModel', ['wte'], False, True),
  'input of a masked model': ('Bert', 'ForMaskedLM', ['word_embeddings'], False, True),
}


@pytest.mark.parametrize('name', TABLES)
def test_tied_tables_trained_apart_are_those_of_peft(name: str, tmp_path: pathlib.Path, monkeypatch: Any) -> None:
  family, kind, saved, grown, refused = TABLES[name]
  cls = getattr(transformers, f'{family}{kind}')
  torch.manual_seed(0)
  cls(getattr(transformers, f'{family}Config')(**(GPT if family == 'GPT2' else BERT))).save_pretrained(
    tmp_path / 'base'
  )

  def base() -> Any:
    model = cls.from_pretrained(tmp_path / 'base')
    if grown:
      model.resize_token_embeddings(42)
    return model

  modules = ['c_attn'] if family == 'GPT2' else ['query']
  model = peft.get_peft_model(base(), peft.LoraConfig(r=2, target_modules=modules, modules_to_save=saved))
  for parameter in model.parameters():
    if parameter.requires_grad:
      parameter.data += 0.3 * torch.randn_like(parameter)
  model.save_pretrained(tmp_path / 'adapter')
  peft.PeftModel.from_pretrained(base(), tmp_path / 'adapter').merge_and_unload().save_pretrained(tmp_path / 'merged')
  ours = tmp_path / 'adapter'
  if refused:
    with pytest.raises(WeightsError, match=r'trained apart from the output.*AutoPeftModel\.from') as caught:
      weights.load(ours)
    monkeypatch.chdir(tmp_path)
    exec(str(caught.value).split('`')[1], {'peft': peft})  # noqa: S102 (the fix of our own message)
    ours = tmp_path / 'NEW'
  found, expected = (dict(weights.open(folder).params.each()) for folder in (ours, tmp_path / 'merged'))
  assert found.keys() == expected.keys()
  for path, array in expected.items():
    np.testing.assert_allclose(found[path], array, atol=1e-6)
