"""The command: what was trained here goes to Hugging Face and back, its tokenizer included."""

import functools
import json
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from plm_jax import weights
from plm_jax.cli.command import run
from plm_jax.commands import convert, train
from plm_jax.core import param_paths
from plm_jax.core.trunk import longest_row
from plm_jax.text import tokenizer
from plm_jax.training import loop, parts
from tests import runs, tiny
from tests.weights import published

pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TOLERANCE = 1e-5
TEXTS = ('Anna went to the kitchen.', 'Where is the <mask>? 我在这里', ' two  blanks\nand a line')
NO_LENGTH = {name: size for name, size in runs.SIZES.items() if name != 'max_length'}


class Run(NamedTuple):
  """A run to train.

  Attributes:
    kind: of `runs.settings`.
    changes: to it.
    theirs: the class of Hugging Face that its folder names.
    head: whose logits are compared; None is the output matrix alone.
    words: of the command that exports it.
  """

  kind: str
  changes: Mapping[str, Any]
  theirs: str
  head: str | None = None
  words: tuple[str, ...] = ()


def _model(name: str, variant: str, sizes: Mapping[str, Any] = runs.SIZES, **fields: Any) -> dict[str, Any]:
  return {'name': name, 'variant': variant, 'overrides': {**sizes, **fields}}


_RTD = {
  'model': _model('bert', 'electra-small', embed_dim=16),
  'objective': {'name': 'rtd', 'generator': _model('bert', 'electra-small-generator', embed_dim=16, hidden_dim=16)},
}
_SENTINELS = {'extra': tuple(f'<extra_id_{number}>' for number in range(20))}
_DENOISE = {'name': 'denoise_seq2seq', 'where': {'name': 'exact_spans'}}
_T5 = {'vocab': _SENTINELS, 'objective': _DENOISE}
_BART = {**_DENOISE, 'edit': {'name': 'collapse_to_mask'}, 'target': 'text', 'start': 'eos', 'append_eos': False}
RUNS = {
  'bert': Run('mlm', {'model': _model('bert', 'bert-base', vocab_multiple=64)}, 'BertForMaskedLM', 'mlm'),
  'gpt2': Run('causal_lm', {'model': _model('gpt', 'gpt2', vocab_multiple=64)}, 'GPT2LMHeadModel'),
  't5': Run('mlm', {'model': _model('t5', 't5-small', NO_LENGTH), **_T5}, 'T5ForConditionalGeneration'),
  't5-v1_1': Run('mlm', {'model': _model('t5', 't5-v1_1-small', NO_LENGTH), **_T5}, 'T5ForConditionalGeneration'),
  'bart': Run('mlm', {'model': _model('bart', 'bart-base'), 'objective': _BART}, 'BartForConditionalGeneration'),
  'electra': Run('mlm', _RTD, 'ElectraForPreTraining', 'rtd'),
  'electra-generator': Run('mlm', _RTD, 'ElectraForMaskedLM', 'mlm', ('--part=generator',)),
  'xlnet': Run('permutation_lm', {}, 'XLNetLMHeadModel', 'lm'),
  'fine-tuned': Run('classify', {'model': _model('bert', 'bert-base')}, 'BertForSequenceClassification', 'head'),
}
FAST = (('bert', 'scan'),)
CASES = [
  pytest.param(name, layers, marks=() if (name, layers) in FAST else pytest.mark.slow)
  for name in RUNS
  for layers in ('scan', 'loop')
]


@functools.cache
def write_data(folder: pathlib.Path) -> pathlib.Path:
  return runs.write_data(folder)


@pytest.fixture(scope='module')
def data(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
  return write_data(tmp_path_factory.mktemp('data'))


def command(*words: object) -> int:
  return run(lambda: convert.main(list(map(str, words))))


@pytest.mark.parametrize(('name', 'layers'), CASES)
def test_what_was_trained_here_is_read_by_theirs(
  name: str, layers: str, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  own = RUNS[name]
  short = {'steps': 2, 'eval_every': 2, 'save_every': 2, 'execution': {'layers': layers}, 'log': ()}
  settings = runs.settings(own.kind, data, **{**short, **own.changes})
  assert loop.train(settings, tmp_path / 'run').result['finished']
  assert command('export', tmp_path / 'run', tmp_path / 'hf', *own.words) == 0

  about = json.loads((tmp_path / 'hf' / 'config.json').read_text())
  assert about['architectures'] == [own.theirs]
  model, report = getattr(transformers, own.theirs).from_pretrained(tmp_path / 'hf', output_loading_info=True)
  assert not {part: keys for part, keys in report.items() if keys}
  part = 'generator' if own.words else 'trunk'
  trunk, params = weights.load(tmp_path / 'run', part=part)
  states, logits = published.states_of_theirs(model.eval())
  assert tiny.worst(published.states_of_ours(trunk, params), states) < TOLERANCE
  if logits is not None:
    ours = published.logits_of_ours(trunk, params, own.head)
    assert tiny.worst(ours, logits) < TOLERANCE

  vocab = tokenizer.load(tmp_path / 'run' / 'vocab')
  form = parts.make_template(settings, vocab)
  assert form is not None and len(form.single) > 1
  for kind in (transformers.AutoTokenizer, transformers.PreTrainedTokenizerFast):
    theirs = kind.from_pretrained(tmp_path / 'hf')
    assert len(theirs) == vocab.size
    assert (theirs.mask_token_id, theirs.pad_token_id) == (vocab.mask_id, vocab.pad_id)
    for text in TEXTS:
      ids = vocab.encode(text, specials=True)
      assert theirs(text, add_special_tokens=False)['input_ids'] == ids
      assert theirs(text)['input_ids'] == [n for part, _ in form.single for n in (ids if part == 'A' else [part])]
      assert theirs.decode(vocab.encode(text)) == text
    if (longest := longest_row(trunk)) is not None:
      cut = theirs('a ' * 2 * longest, truncation=True, return_tensors='pt')
      assert cut['input_ids'].shape == (1, longest)
      assert model(**cut) is not None
  assert about['pad_token_id'] == vocab.pad_id

  assert command('import', tmp_path / 'hf', tmp_path / 'ours') == 0
  assert tokenizer.load(tmp_path / 'ours' / 'vocab').digest == vocab.digest
  first, again = weights.load(tmp_path / 'hf')[1], weights.load(tmp_path / 'ours')[1]
  jax.tree.map(np.testing.assert_array_equal, first, again)
  found = param_paths.flat(again)
  for path, leaf in param_paths.flat(params).items():
    if path in found:
      np.testing.assert_array_equal(found[path], leaf[: len(found[path])] if path.endswith('/table') else leaf)
  assert len(found) >= len(param_paths.flat(params))
  if own.kind == 'classify':
    names = dict(enumerate(runs.CLASSES))
    assert model.config.id2label == names and weights.open(tmp_path / 'ours').labels == runs.CLASSES

  if part == 'trunk':  # what `init_from` takes is the same whatever the folder
    starts = [weights.open(tmp_path / folder).params.tree('trunk') for folder in ('hf', 'ours')]
    jax.tree.map(np.testing.assert_array_equal, *starts)

  assert command('export', tmp_path / 'ours', tmp_path / 'back', '--shard=0.00005') == 0
  assert len(list((tmp_path / 'back').glob('*.safetensors'))) > 1
  once_more, report = type(model).from_pretrained(tmp_path / 'back', output_loading_info=True)
  assert not {part: keys for part, keys in report.items() if keys}
  assert published.equal(once_more.state_dict(), model.state_dict())
  assert (tmp_path / 'back' / 'tokenizer.json').read_bytes() == (tmp_path / 'hf' / 'tokenizer.json').read_bytes()
  assert json.loads((tmp_path / 'back' / 'config.json').read_text())['pad_token_id'] == vocab.pad_id


@pytest.mark.slow
def test_fine_tuning_starts_from_a_published_folder(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  short = {'steps': 2, 'eval_every': 2, 'save_every': 2, 'log': ()}
  bert = {'model': _model('bert', 'bert-base')}
  assert loop.train(runs.settings('mlm', data, **short, **bert), tmp_path / 'run').result['finished']
  assert command('export', tmp_path / 'run', tmp_path / 'hf') == 0
  assert command('import', tmp_path / 'hf', tmp_path / 'ours') == 0
  file = runs.write_config(tmp_path / 'classify.json', runs.settings('classify', data, **short, **bert))
  results = {}
  for source in ('run', 'hf', 'ours'):
    flags = [f'--config={file}', f'--workdir={tmp_path / f"from_{source}"}']
    flags.append(f'--config.init_from={json.dumps([{"source": str(tmp_path / source)}])}')
    flags += [f'--config.vocab.path={tmp_path / source}{"" if source == "hf" else "/vocab"}']
    assert train.main(flags) == 0
    results[source] = json.loads((tmp_path / f'from_{source}' / 'result.json').read_text())['metrics']
  same = {name: value for name, value in results['run'].items() if name not in runs.SPEED}
  for source in ('hf', 'ours'):
    assert {name: value for name, value in results[source].items() if name not in runs.SPEED} == same


def test_a_run_of_before_says_how_its_rows_are_framed(tmp_path: pathlib.Path) -> None:
  """Export a tokenizer.json without post-processor, which the config determines."""
  folder = runs.conftest.ROOT / 'tests' / 'fixtures' / 'bert_mlm' / 'run'
  assert command('export', folder, tmp_path / 'hf', '--step=newest') == 0
  theirs, vocab = transformers.AutoTokenizer.from_pretrained(tmp_path / 'hf'), tokenizer.load(folder / 'vocab')
  ids = vocab.encode(TEXTS[0])
  assert theirs(TEXTS[0])['input_ids'] == [vocab.cls_id, *ids, vocab.sep_id]
  assert theirs(TEXTS[0], TEXTS[0])['token_type_ids'] == [0] * (len(ids) + 2) + [1] * (len(ids) + 1)
