"""Heads of tasks: classes of transformers are read into the adapter that computes the same, and written again."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import pytest

from plm_jax import files, paths, weights
from plm_jax.adapters.texts import read_text
from plm_jax.plugins import build
from plm_jax.weights import convert
from tests import tiny
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
  'DebertaV2': published.CASES['deberta-v2-mlm'].fields,
  'XLNet': published.CASES['xlnet-lm'].fields,
  'OpenAIGPT': published.CASES['gpt'].fields,
  'GPT2': published.CASES['gpt2'].fields,
  'Llama': published.CASES['llama-3.1'].fields,
  'Glm': published.CASES['glm'].fields,
  'Glm4': published.CASES['glm4'].fields,
  'Bart': published.CASES['distilbart'].fields,
  'MBart': published.CASES['mbart'].fields,
  'T5': published.CASES['t5'].fields,
  'MT5': published.CASES['mt5'].fields,
}
# the adapter, and the classes whose heads it has: families of the same head behind the first are slow
KINDS = {
  'classify': (
    'ForSequenceClassification',
    ('Bert', 'Roberta', 'XLNet', 'Llama', 'Bart'),
    ('XLMRoberta', 'Camembert', 'Albert', 'DistilBert', 'Electra', 'Deberta', 'DebertaV2', 'OpenAIGPT', 'GPT2', 'Glm',
     'Glm4', 'T5', 'MT5'),
  ),
  'tag': (
    'ForTokenClassification',
    ('Bert', 'T5'),
    ('Roberta', 'XLMRoberta', 'Camembert', 'Albert', 'DistilBert', 'Electra', 'Deberta', 'DebertaV2', 'XLNet', 'GPT2',
     'Llama', 'Glm', 'Glm4', 'MT5'),
  ),
  'span': (
    'ForQuestionAnswering',
    ('Bert', 'Llama', 'MBart'),
    ('Roberta', 'XLMRoberta', 'Camembert', 'Albert', 'DistilBert', 'Electra', 'Deberta', 'DebertaV2', 'GPT2', 'Bart',
     'T5', 'MT5'),
  ),
  'choose': (
    'ForMultipleChoice',
    ('Roberta', 'Electra'),
    ('Bert', 'XLMRoberta', 'Camembert', 'Albert', 'DistilBert', 'DebertaV2', 'XLNet'),
  ),
}  # fmt: skip
CASES = [
  pytest.param(family, kind, adapter, marks=[pytest.mark.slow] * (family in others))
  for adapter, (kind, first, others) in KINDS.items()
  for family in (*first, *others)
] + [pytest.param('XLNet', 'ForQuestionAnsweringSimple', 'span', marks=[pytest.mark.slow])]


def make_model(family: str, kind: str, **more: Any) -> Any:
  """Theirs, with every parameter drawn."""
  torch.manual_seed(1)
  fields = {'vocab_size': 61, **SIZES[family], 'pad_token_id': SIZES[family].get('pad_token_id', 0), **more}
  if kind in NAMED:
    fields['id2label'] = CLASSES
  if family in ('T5', 'MT5'):
    fields |= {'eos_token_id': EOS, 'decoder_start_token_id': EOS}
  if kind == 'ForMultipleChoice' and family == 'Electra':
    fields |= {'summary_type': 'first', 'summary_use_proj': True, 'summary_activation': 'gelu'}
  config = getattr(transformers, f'{family}Config')(**fields)
  model = getattr(transformers, f'{family}{kind}')(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.1 * torch.randn_like(parameter))
  return model


def make_batch(*, options: bool = False, left: bool = False) -> dict[str, np.ndarray]:
  """Rows of unequal lengths, each with its end; with `options`, of several sequences; padding to the right or left."""
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
  """Their logits; for answers those of start and end, [b, l, 2]."""
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


def read(folder: pathlib.Path, batch: Mapping[str, np.ndarray]) -> Ours:
  """The adapter that a folder names, with exactly the parameters that it needs from there."""
  opened = weights.open(folder)
  task = build.make('adapters', dict(opened.adapter), trunk=opened.trunk(), vocab=tiny.VOCAB)
  rows = np.zeros(len(batch['tokens']), np.int32)
  spans = {'start': rows, 'end': rows, 'context': np.ones_like(batch['tokens'])}
  more = {'label': rows, 'labels': np.zeros_like(batch['tokens']), 'row_weight': rows + 1.0}
  example = task.prepare(jax.random.key(0), {**batch, **more, **spans})
  wanted = jax.eval_shape(lambda key: task.model.init(key, **example.inputs), jax.random.key(0))
  params = {path: opened.params[path].read(None) for path in paths.flat(nn.unbox(wanted['params']))}
  out = jax.jit(lambda params: task.model.apply({'params': params}, **example.inputs))(paths.nested(params))
  return Ours(opened.adapter, np.asarray(out[0] if isinstance(out, tuple) else out))


def worst(ours: np.ndarray, theirs: np.ndarray, batch: Mapping[str, np.ndarray], kind: str) -> float:
  """The largest difference, on real tokens alone where each has outputs."""
  if kind in ('ForSequenceClassification', 'ForMultipleChoice'):
    return tiny.worst(ours, theirs)
  real = batch['segment_ids'][..., None] > 0
  return tiny.worst(np.where(real, ours, 0), np.where(real, theirs, 0))


@pytest.mark.parametrize(('family', 'kind', 'adapter'), CASES)
def test_a_head_is_read_and_written(family: str, kind: str, adapter: str, tmp_path: pathlib.Path) -> None:
  model = make_model(family, kind)
  model.save_pretrained(tmp_path / 'theirs')
  batch = make_batch(options=kind == 'ForMultipleChoice', left=family == 'XLNet')
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
  weights.save(tmp_path / 'saved', trunk, params, adapter=adapter)
  for folder in ('export', 'saved'):
    again, report = type(model).from_pretrained(tmp_path / folder, output_loading_info=True)
    assert not {part: keys for part, keys in report.items() if keys}
    assert published.equal(again.state_dict(), model.state_dict())
    assert again.config.architectures == [type(model).__name__]
  exported = type(model).from_pretrained(tmp_path / 'export').eval()
  assert exported.config.id2label == model.config.id2label
  np.testing.assert_array_equal(outputs_of_theirs(exported, batch), expected)
