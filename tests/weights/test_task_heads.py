"""Heads of tasks: classes of transformers are read into the adapter that computes the same, and written again."""

import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax import config, weights
from plm_jax.checkpoint import Checkpoints
from plm_jax.config import build
from plm_jax.core import param_paths
from plm_jax.core.types import Task
from plm_jax.io import files, run_paths
from plm_jax.weights import WeightsError, convert
from tests import conftest, tiny
from tests.weights import published

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TOLERANCE = 1e-5
EOS, CLASSES = 2, {0: 'no', 1: 'perhaps', 2: 'yes'}
OPTIONS, LENGTHS = 3, (11, 4, 7)
NAMED = ('ForSequenceClassification', 'ForTokenClassification')
SIZES: Mapping[str, Mapping[str, Any]] = {
  'Bert': published.CASES['bert-mlm'].fields,
  'Roberta': published.CASES['roberta-mlm'].fields,
  'XLMRoberta': published.CASES['xlm-roberta'].fields,
  'Camembert': published.CASES['camembert'].fields,
  'Albert': published.CASES['albert-groups'].fields,
  'DistilBert': published.CASES['distilbert-mlm'].fields,
  'Electra': published.CASES['electra-body'].fields,
  'Deberta': published.CASES['deberta-mlm'].fields,
  'ModernBert': published.CASES['modernbert-mlm'].fields | {'classifier_pooling': 'mean'},
  'MPNet': published.CASES['mpnet-mlm'].fields,
  'Ernie': published.CASES['ernie-pretraining'].fields,
  'DebertaV2': published.CASES['deberta-v2-mlm'].fields,
  'XLNet': published.CASES['xlnet-lm'].fields,
  'OpenAIGPT': published.CASES['gpt'].fields,
  'GPT2': published.CASES['gpt2'].fields,
  'Llama': published.CASES['llama-3.1'].fields,
  'Glm': published.CASES['glm'].fields,
  'Glm4': published.CASES['glm4'].fields,
  'Mistral': published.CASES['mistral'].fields,
  'Qwen2': published.CASES['qwen2'].fields,
  'Qwen3': published.CASES['qwen3'].fields,
  'Gemma': published.CASES['gemma'].fields,
  'Olmo2': published.CASES['olmo2'].fields,
  'SmolLM3': published.CASES['smollm3'].fields,
  'GPTNeoX': published.CASES['gpt-neox'].fields,
  'OPT': published.CASES['opt-350m'].fields,
  'Bart': published.CASES['distilbart'].fields,
  'MBart': published.CASES['mbart'].fields,
  'T5': published.CASES['t5'].fields,
  'MT5': published.CASES['mt5'].fields,
}
# the adapter, and the classes whose heads it has: families of the same head behind the first are slow
KINDS = {
  'classify': (
    'ForSequenceClassification',
    ('Bert', 'Roberta', 'XLNet', 'Llama', 'Bart', 'ModernBert'),
    ('XLMRoberta', 'Camembert', 'Albert', 'DistilBert', 'Electra', 'Deberta', 'DebertaV2', 'OpenAIGPT', 'GPT2', 'Glm',
     'Mistral', 'Qwen2', 'Qwen3', 'Gemma', 'Olmo2', 'SmolLM3', 'GPTNeoX', 'OPT', 'Glm4', 'T5', 'MT5', 'MBart',
     'MPNet', 'Ernie'),
  ),
  'tag': (
    'ForTokenClassification',
    ('Bert', 'T5'),
    ('Roberta', 'XLMRoberta', 'Camembert', 'Albert', 'DistilBert', 'Electra', 'Deberta', 'DebertaV2', 'XLNet', 'GPT2',
     'Llama', 'Mistral', 'Qwen2', 'Qwen3', 'Gemma', 'SmolLM3', 'GPTNeoX', 'Glm', 'Glm4', 'MT5', 'MPNet', 'Ernie'),
  ),
  'span': (
    'ForQuestionAnswering',
    ('Bert', 'Llama', 'MBart'),
    ('Roberta', 'XLMRoberta', 'Camembert', 'Albert', 'DistilBert', 'Electra', 'Deberta', 'DebertaV2', 'GPT2', 'Bart',
     'Mistral', 'Qwen2', 'Qwen3', 'SmolLM3', 'GPTNeoX', 'OPT', 'T5', 'MT5'),
  ),
  'choose': (
    'ForMultipleChoice',
    ('Roberta', 'Electra'),
    ('Bert', 'XLMRoberta', 'Camembert', 'Albert', 'DistilBert', 'DebertaV2', 'XLNet', 'ModernBert', 'MPNet',
     'Ernie'),
  ),
}  # fmt: skip
CASES = [
  pytest.param(family, kind, adapter, marks=[pytest.mark.slow] * (family in others))
  for adapter, (kind, first, others) in KINDS.items()
  for family in (*first, *others)
] + [pytest.param('XLNet', 'ForQuestionAnsweringSimple', 'span', marks=[pytest.mark.slow])]


def make_model(family: str, kind: str, **more: Any) -> Any:
  """Build their model with random parameters."""
  torch.manual_seed(1)
  fields = {'vocab_size': 61, **SIZES[family], 'pad_token_id': SIZES[family].get('pad_token_id', 0), **more}
  if kind in NAMED:
    fields['id2label'] = CLASSES
  if family in ('T5', 'MT5'):
    fields |= {'eos_token_id': EOS, 'decoder_start_token_id': EOS} | more
  if kind == 'ForMultipleChoice' and family == 'Electra':
    fields |= {'summary_type': 'first', 'summary_use_proj': True, 'summary_activation': 'gelu'}
  config = getattr(transformers, f'{family}Config')(**fields)
  model = getattr(transformers, f'{family}{kind}')(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  return model


def make_batch(*, options: bool = False, left: bool = False) -> dict[str, np.ndarray]:
  """Build sequences of unequal lengths, padded to the right or left."""
  rows = len(LENGTHS) * (OPTIONS if options else 1)
  lengths = np.resize(LENGTHS, rows)
  segments = (np.arange(max(LENGTHS)) < lengths[:, None]).astype(np.int32)
  tokens = np.random.default_rng(0).integers(7, 61, segments.shape) * segments
  tokens[np.arange(rows), lengths - 1] = EOS
  if left:
    tokens, segments = tokens[:, ::-1], segments[:, ::-1]
    tokens = np.where(tokens == EOS, 9, tokens)
    tokens[:, -1] = EOS
  batch = {'tokens': tokens.astype(np.int32), 'segment_ids': np.ascontiguousarray(segments)}
  shape = (len(LENGTHS), OPTIONS, -1) if options else (rows, -1)
  return {name: value.reshape(shape) for name, value in batch.items()}


def outputs_of_theirs(model: Any, batch: Mapping[str, np.ndarray]) -> np.ndarray:
  """Compute their logits.

  For answers those of start and end, [b, l, 2].
  """
  given = {name: torch.tensor(value).long() for name, value in batch.items()}
  with torch.no_grad():
    out = model(given['tokens'], attention_mask=given['segment_ids'])
  if 'start_logits' in out:
    return np.stack([out.start_logits.numpy(), out.end_logits.numpy()], axis=-1)
  return out.logits.numpy()


class Ours(NamedTuple):
  """A folder read into an adapter: its block, and what it computes of a batch."""

  block: Mapping[str, Any]
  outputs: np.ndarray


def inputs_of(task: Task, batch: Mapping[str, np.ndarray]) -> dict[str, Any]:
  """Select the inputs of a task model from a batch."""
  rows = np.zeros(len(batch['tokens']), np.int32)
  spans = {'start': rows, 'end': rows, 'context': np.ones_like(batch['tokens'])}
  more = {'label': rows, 'classes': rows[:, None], 'labels': np.zeros_like(batch['tokens']), 'row_weight': rows + 1.0}
  return task.prepare(jax.random.key(0), {**batch, **more, **spans}).inputs


def shapes_of(task: Task, inputs: Mapping[str, Any]) -> dict[str, Any]:
  """Path -> shape of the parameters of its model."""
  made = jax.eval_shape(lambda key: task.model.init(key, **inputs), jax.random.key(0))
  return {path: leaf.shape for path, leaf in param_paths.flat(nn.unbox(made['params'])).items()}


def outputs_of_ours(task: Task, params: Mapping[str, np.ndarray], inputs: Mapping[str, Any]) -> np.ndarray:
  """Compute a head from parameters by path."""
  out = jax.jit(lambda params: task.model.apply({'params': params}, **inputs))(param_paths.nested(dict(params)))
  found = np.asarray(out[0] if isinstance(out, tuple) else out)
  return found[..., 0] if found.shape[-1] == 1 and found.ndim == 3 else found  # of options: f32[b, k, 1]


def read(folder: pathlib.Path, batch: Mapping[str, np.ndarray]) -> Ours:
  """Build the adapter of a folder with exactly the parameters that it needs."""
  opened = weights.open(folder)
  task = build.make('adapters', dict(opened.adapter), trunk=opened.trunk(), vocab=tiny.VOCAB)
  inputs = inputs_of(task, batch)
  params = {path: opened.params[path].read(None) for path in shapes_of(task, inputs)}
  return Ours(opened.adapter, outputs_of_ours(task, params, inputs))


def worst(ours: np.ndarray, theirs: np.ndarray, batch: Mapping[str, np.ndarray], kind: str) -> float:
  """Compute the largest difference, on real tokens only."""
  if kind in ('ForSequenceClassification', 'ForMultipleChoice'):
    return tiny.worst(ours, theirs)
  real = batch['segment_ids'][..., None] > 0
  return tiny.worst(np.where(real, ours, 0), np.where(real, theirs, 0))


@pytest.mark.turns
@pytest.mark.parametrize(('family', 'kind', 'adapter'), CASES)
def test_a_head_is_read_and_written(family: str, kind: str, adapter: str, tmp_path: pathlib.Path) -> None:
  batch = make_batch(options=kind == 'ForMultipleChoice', left=family == 'XLNet')
  check_both_ways(make_model(family, kind), batch, kind, adapter, tmp_path)


@pytest.mark.parametrize(
  ('problem', 'message'), [('regression', 'the head has 3 outputs'), ('multilabel', "'multilabel', and must be")]
)
def test_a_problem_type_that_does_not_fit_is_named(problem: str, message: str, tmp_path: pathlib.Path) -> None:
  model = make_model('Bert', 'ForSequenceClassification')  # of three classes
  model.save_pretrained(tmp_path / 'theirs')
  about = json.loads((tmp_path / 'theirs' / 'config.json').read_text())
  (tmp_path / 'theirs' / 'config.json').write_text(json.dumps({**about, 'problem_type': problem}))
  with pytest.raises(WeightsError, match=rf'problem_type is .*{message}'):
    weights.open(tmp_path / 'theirs').adapter  # noqa: B018


@pytest.mark.parametrize(
  ('family', 'kind', 'adapter', 'start'),
  [
    ('T5', 'ForSequenceClassification', 'classify', 0),  # its default: the padding token
    ('T5', 'ForQuestionAnswering', 'span', 0),
    pytest.param('MT5', 'ForSequenceClassification', 'classify', 0, marks=pytest.mark.slow),
    pytest.param('Bart', 'ForSequenceClassification', 'classify', 5, marks=pytest.mark.slow),
    ('MBart', 'ForSequenceClassification', 'classify', None),  # its decoder starts with the language, after </s>
    pytest.param('MBart', 'ForQuestionAnswering', 'span', None, marks=pytest.mark.slow),
  ],
)
def test_a_decoder_starts_and_is_read_as_its_class_does(
  family: str, kind: str, adapter: str, start: int | None, tmp_path: pathlib.Path
) -> None:
  batch = make_batch()
  if family == 'MBart':
    batch['tokens'] = np.where(batch['tokens'] == EOS, 9, batch['tokens'])
    batch['tokens'][np.arange(len(LENGTHS)), np.array(LENGTHS) - 2] = EOS
  else:  # Bart's class shifts by its start as well
    assert (batch['tokens'] == EOS).sum() == len(LENGTHS)
  more = {} if start is None else {'decoder_start_token_id': start}
  model = make_model(family, kind, **more)
  check_both_ways(model, batch, kind, adapter, tmp_path)
  if start is not None:
    assert weights.open(tmp_path / 'import').trunk().config.label_start == start
    assert json.loads((tmp_path / 'export' / 'config.json').read_text())['decoder_start_token_id'] == start


def check_both_ways(
  model: Any, batch: Mapping[str, np.ndarray], kind: str, adapter: str, tmp_path: pathlib.Path
) -> None:
  model.save_pretrained(tmp_path / 'theirs')
  expected = outputs_of_theirs(model, batch)
  ours = read(tmp_path / 'theirs', batch)
  assert ours.block['name'] == adapter
  assert worst(ours.outputs, expected, batch, kind) < TOLERANCE

  convert.import_release(tmp_path / 'theirs', tmp_path / 'import')
  opened = weights.open(tmp_path / 'import')
  assert opened.labels == (tuple(CLASSES.values()) if kind in NAMED else ())
  assert opened.adapter == ours.block
  convert.export(tmp_path / 'import', tmp_path / 'export')
  trunk, params = weights.load(tmp_path / 'theirs')
  weights.save(tmp_path / 'saved', trunk, params, adapter=adapter, tokenizer=tmp_path / 'theirs')
  written = json.loads((tmp_path / 'saved' / 'config.json').read_text())
  assert written.get('pad_token_id') == model.config.pad_token_id
  for folder in ('export', 'saved'):
    again, report = type(model).from_pretrained(tmp_path / folder, output_loading_info=True)
    assert not {part: keys for part, keys in report.items() if keys}
    assert published.equal(again.state_dict(), model.state_dict())
    assert again.config.architectures == [type(model).__name__]
  try:
    weights.save(tmp_path / 'guessed', trunk, params)
  except WeightsError as error:
    assert repr(adapter) in str(error)
  else:
    guessed = type(model).from_pretrained(tmp_path / 'guessed')  # tensors of rows and of options have the same names
    assert published.equal(guessed.state_dict(), model.state_dict())
  exported = type(model).from_pretrained(tmp_path / 'export').eval()
  assert exported.config.id2label == model.config.id2label
  assert worst(outputs_of_theirs(exported, batch), expected, batch, kind) < 1e-6  # ALBERT's activation has another name


def test_an_end_that_depends_on_the_start(tmp_path: pathlib.Path) -> None:
  """Compare XLNet's answer head: starts, ends after each start, and answerability."""
  starts, ends = 2, 3
  model = make_model('XLNet', 'ForQuestionAnswering', start_n_top=starts, end_n_top=ends)
  model.save_pretrained(tmp_path)
  batch = make_batch(left=True)
  whole = batch['tokens'].shape[1] - 1  # the row's last token stands for the row
  text = (batch['segment_ids'] > 0) & (np.arange(whole + 1) < whole)
  given = {name: torch.tensor(value).long() for name, value in batch.items()}
  with torch.no_grad():
    theirs = model(
      given['tokens'],
      attention_mask=given['segment_ids'],
      p_mask=torch.tensor(~text).float(),
      cls_index=torch.full((len(text),), whole),
    )
  opened = weights.open(tmp_path)
  task = build.make('adapters', dict(opened.adapter), trunk=opened.trunk(), vocab=tiny.VOCAB)
  inputs = inputs_of(task, batch)
  params = param_paths.nested({path: opened.params[path].read(None) for path in shapes_of(task, inputs)})

  def apply(method: str | None = None, **inputs: Any) -> Any:
    return task.model.apply({'params': params}, method=method, **inputs)

  scores, hidden = apply(**inputs)
  start = jax.nn.softmax(np.where(text, scores[..., 0], -np.inf))
  likeliest, first = jax.lax.top_k(start, starts)
  assert (np.asarray(first) == theirs.start_top_index.numpy()).all()
  assert tiny.worst(likeliest, theirs.start_top_log_probs.numpy()) < TOLERANCE  # probabilities, by that name
  end = apply('ends', hidden=hidden, states=np.take_along_axis(np.asarray(hidden), np.asarray(first)[..., None], 1))
  behind, last = jax.lax.top_k(jax.nn.softmax(np.where(text[:, None], end, -np.inf)), ends)  # [b, starts, ends]
  assert (np.asarray(last) == theirs.end_top_index.numpy().reshape(-1, ends, starts).swapaxes(1, 2)).all()
  expected = theirs.end_top_log_probs.numpy().reshape(-1, ends, starts).swapaxes(1, 2)
  assert tiny.worst(behind, expected) < TOLERANCE
  state = np.einsum('bl,bld->bd', start, hidden)
  none = apply('impossible', whole=hidden[:, whole], state=state)
  assert tiny.worst(none, theirs.cls_logits.numpy()) < TOLERANCE


# Runs ----------------------------------------------------------------------------------------------------------------

BERT = {'name': 'bert', 'variant': 'bert-base', 'overrides': tiny.SIZES}
ROBERTA = {'name': 'bert', 'variant': 'roberta-base', 'overrides': tiny.SIZES}
CLASSIFY = {'name': 'classify', 'classes': 3}
TAG = {'name': 'tag', 'tags': ('O', 'B-x', 'I-x')}


def block_of(model: str, variant: str, **overrides: Any) -> dict[str, Any]:
  """Build the model block of a tiny trunk."""
  known = build.import_file(f'models.{model}').CONFIGS[variant].__dataclass_fields__
  sizes = {name: size for name, size in {**tiny.SIZES, **overrides}.items() if name in known}
  return {'name': model, 'variant': variant, 'overrides': sizes}


def write_run(
  folder: pathlib.Path,
  block: Mapping[str, Any],
  adapter: Mapping[str, Any],
  batch: Mapping[str, np.ndarray],
  names: tuple[str, ...] = (),
) -> np.ndarray:
  """Write a run folder with random parameters; return outputs of its head."""
  trunk = build.make('models', block, vocab_size=61)
  task = build.make('adapters', adapter, trunk=trunk, vocab=tiny.VOCAB)
  inputs, draw = inputs_of(task, batch), np.random.default_rng(0)
  params = {
    path: draw.normal(size=shape, scale=0.3).astype(np.float32) for path, shape in shapes_of(task, inputs).items()
  }
  run = run_paths.RunFolder(folder)
  files.make_folder(run.vocab)
  files.write_json(run.config, {'model': block, 'objective': None, 'adapter': adapter})
  files.write_json(run.data, {'class_names': names} if names else {})
  files.write_json(run.vocab / 'vocab.json', {'size': 61})
  with Checkpoints(run.checkpoints, keep=1) as saved:
    saved.save(1, {'params': param_paths.nested(params), 'step': np.asarray(1, np.int32)})
  return outputs_of_ours(task, params, inputs)


RUNS = {
  'bert-rows': ('BertForSequenceClassification', BERT, CLASSIFY),
  'bert-several': ('BertForSequenceClassification', BERT, {**CLASSIFY, 'several': True}),
  'bert-number': ('BertForSequenceClassification', BERT, {'name': 'classify', 'kind': 'regression'}),
  'bert-tokens': ('BertForTokenClassification', BERT, TAG),
  'bert-answers': ('BertForQuestionAnswering', BERT, {'name': 'span'}),
  'bert-options': ('BertForMultipleChoice', BERT, {'name': 'choose'}),
  'roberta-pooled': ('RobertaForSequenceClassification', ROBERTA, CLASSIFY),
  'roberta-options': ('RobertaForMultipleChoice', ROBERTA, {'name': 'choose'}),
  'gpt2-tokens': ('GPT2ForTokenClassification', block_of('gpt', 'gpt2'), TAG),
  'llama-answers': ('LlamaForQuestionAnswering', block_of('llama', 'llama-7b', num_kv_heads=2), {'name': 'span'}),
  't5-rows': (
    'T5ForSequenceClassification',
    block_of('t5', 't5-small'),
    {**CLASSIFY, 'hidden': tiny.SIZES['hidden_dim']},
  ),
  't5-v1_1-answers': ('T5ForQuestionAnswering', block_of('t5', 't5-v1_1-small'), {'name': 'span'}),
}
# config of a classification -> the class of theirs with its head
SHIPPED = {
  'bert/glue.py:sst2': 'BertForSequenceClassification',
  'bert/glue.py:stsb': 'BertForSequenceClassification',
  'bert/glue.py:sst2,ltr': 'OpenAIGPTForSequenceClassification',
  'bert/superglue.py:boolq': 'BertForSequenceClassification',
  'roberta/glue.py:mnli': 'RobertaForSequenceClassification',
  'albert/fine_tune.py:sst2': 'AlbertForSequenceClassification',
  'electra/glue.py:sst2,two_layers': 'ElectraForSequenceClassification',
  'deberta/glue.py:sst2': 'DebertaForSequenceClassification',
  'deberta/glue.py:sst2,v3-base': 'DebertaV2ForSequenceClassification',
  'xlnet/fine_tune.py:sst2': 'XLNetForSequenceClassification',
  'xlnet/fine_tune.py:race': 'XLNetForMultipleChoice',
  'gpt/classify.py:sst2': 'OpenAIGPTForSequenceClassification',
  'bart/glue.py:mnli': 'BartForSequenceClassification',
  'finetune/classify.py': 'BertForSequenceClassification',
}
QUICK_SHIPPED = ('xlnet/fine_tune.py:sst2', 'xlnet/fine_tune.py:race', 'electra/glue.py:sst2,two_layers')


def shipped(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
  """Build the model and adapter blocks of a config in tiny sizes."""
  settings = config.resolve(config.load(str(conftest.ROOT / 'experiments' / name)))
  model, adapter = settings['model'], dict(settings['adapter'])
  known = build.import_file(f'models.{model["name"]}').CONFIGS[model['variant']].__dataclass_fields__
  sizes = {**tiny.SIZES, 'mlp_dim': 4 * tiny.SIZES['hidden_dim']}  # the one width of theirs for GPT
  small = {field: size for field, size in sizes.items() if field in known}
  if adapter.get('hidden'):
    adapter['hidden'] = small['hidden_dim']
  if adapter.get('kind') == 'class':
    adapter['classes'] = 3  # `RUNS` names as many
  return {**model, 'overrides': {**(model['overrides'] or {}), **small}}, adapter


SLOW_RUNS = {'bert-number', 'bert-answers', 'roberta-options', 'gpt2-tokens', 't5-v1_1-answers'}


@pytest.mark.parametrize('name', [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_RUNS)) for name in RUNS])
def test_a_run_is_exported_as_the_class_of_its_adapter(name: str, tmp_path: pathlib.Path) -> None:
  theirs, block, adapter = RUNS[name]
  check_export(tmp_path, theirs, block, adapter, names=('good', 'bad', 'neither') if adapter == CLASSIFY else ())


@pytest.mark.parametrize(
  'name', [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK_SHIPPED)) for name in SHIPPED]
)
def test_a_shipped_config_is_exported_as_the_class_of_its_head(name: str, tmp_path: pathlib.Path) -> None:
  check_export(tmp_path, SHIPPED[name], *shipped(name))


def check_export(
  tmp_path: pathlib.Path, theirs: str, block: Mapping[str, Any], adapter: Mapping[str, Any], names: tuple[str, ...] = ()
) -> None:
  """Check that an exported run has the same logits and class names."""
  left = theirs.startswith('XLNet')  # it reads the last token of a row, padding or not
  batch = make_batch(options=adapter['name'] == 'choose', left=left)
  ours = write_run(tmp_path / 'run', block, adapter, batch, names)
  convert.export(tmp_path / 'run', tmp_path / 'out', step='newest')
  about = files.read_json(tmp_path / 'out' / 'config.json')
  assert about['architectures'] == [theirs]
  found = getattr(transformers, theirs).from_pretrained(tmp_path / 'out', output_loading_info=True)
  model, report = found[0].eval(), found[1]
  assert not {part: keys for part, keys in report.items() if keys}
  model.config.pad_token_id, model.config.eos_token_id = 0, EOS  # the vocabulary of the run has no names for them
  model.config.decoder_start_token_id = EOS
  assert worst(ours, outputs_of_theirs(model, batch), batch, theirs[theirs.index('For') :]) < TOLERANCE
  wanted = adapter.get('tags') or names
  if wanted:
    assert model.config.id2label == dict(enumerate(wanted)) and model.config.label2id[wanted[1]] == 1
  kinds = {'class': 'single_label_classification', 'regression': 'regression'}
  kinds |= {'class': 'multi_label_classification'} if adapter.get('several') else {}
  expected = kinds[adapter.get('kind', 'class')] if adapter['name'] == 'classify' else None
  assert about.get('problem_type') == expected


REFUSED = {
  'mean': (BERT, {**CLASSIFY, 'pool': 'mean'}, r"adapter 'classify'.*(.|\n)*adapter\.pool=mean"),
  'lower layer': (BERT, {**CLASSIFY, 'layer': 1}, r'adapter\.layer=1'),
  'several layers': (BERT, {**TAG, 'layers': (-2, -1), 'join': 'sum'}, r'adapter\.layers='),
  'a layer too many': (BERT, {**CLASSIFY, 'hidden': 8}, r'adapter\.hidden=0'),
  'another width': (block_of('bert', 'distilbert-base'), {**CLASSIFY, 'hidden': 8}, r'adapter\.hidden'),
  'a layer too few': (block_of('bert', 'distilbert-base'), CLASSIFY, r"adapter\.hidden=32, adapter\.activation='relu'"),
  'crf': (BERT, {**TAG, 'crf': True}, r'adapter\.crf=True'),
  'lstm': (BERT, {**TAG, 'lstm_layers': 1, 'lstm_dim': 8}, r'adapter\.lstm_layers=1'),
  'conditional end': (BERT, {'name': 'span', 'end': 'conditional'}, r'adapter\.end=conditional'),
  'bias': (block_of('gpt', 'gpt2'), CLASSIFY, r'head/bias.*adapter\.bias=False'),
  'no class': (block_of('deberta', 'deberta-base'), {'name': 'choose'}, "adapter 'choose'"),
  'no pooler': (
    block_of('bert', 'roberta-base', pooler='first'),
    {'name': 'choose'},
    r"pooler.*model\.overrides\.pooler='tanh'",
  ),
  'another adapter': (BERT, {'name': 'similarity', 'classes': 2}, "adapter 'similarity'"),
}


@pytest.mark.turns
@pytest.mark.parametrize('name', REFUSED)
def test_another_head_is_refused_by_name_and_the_trunk_alone_goes_out(name: str, tmp_path: pathlib.Path) -> None:
  block, adapter, said = REFUSED[name]
  batch = make_batch(options=adapter['name'] == 'choose')
  swapped = {f'swapped_{key}': value for key, value in batch.items()} if adapter['name'] == 'similarity' else {}
  write_run(tmp_path / 'run', block, adapter, {**batch, **swapped})
  with pytest.raises(WeightsError, match=said) as error:
    convert.export(tmp_path / 'run', tmp_path / 'out', step='newest')
  assert '--heads=none' in str(error.value) and not (tmp_path / 'out').exists()
  convert.export(tmp_path / 'run', tmp_path / 'out', step='newest', heads=[])
  assert 'For' not in files.read_json(tmp_path / 'out' / 'config.json')['architectures'][0]
