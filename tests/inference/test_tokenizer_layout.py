"""Rows with the special tokens of a tokenizer's own file: mBART's with a language, from text to logits and back."""

import json
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import tokenizers

import plm_jax
from plm_jax.commands import convert, train
from plm_jax.data.rows import framing
from plm_jax.data.rows.layouts import tokenizer as layout
from plm_jax.text.tokenizer import assemble
from tests import conftest
from tests.data import small
from tests.text import test_published
from tests.weights import published

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

TEXTS = ['Anna is here.', ('In the garden', 'Boris found the clock.'), 'a']
NAMES = ('no', 'perhaps', 'yes')


@pytest.fixture(scope='module')
def pieces() -> bytes:
  draw = random.Random(1)
  return test_published.train([conftest.story(draw) for _ in range(60)], size=200)


def save(folder: pathlib.Path, pieces: bytes, name: str, kind: str = 'ForSequenceClassification') -> Any:
  """Write a tiny random mBART that reads Romanian; return it."""
  about = {'tokenizer_class': f'{name}Tokenizer', 'src_lang': 'ro_RO'}
  test_published.write(folder, {'sentencepiece.bpe.model': pieces, 'tokenizer_config.json': about})
  sizes = published.CASES['mbart'].fields | {'vocab_size': len(transformers.AutoTokenizer.from_pretrained(folder))}
  torch.manual_seed(0)
  names = {'id2label': dict(enumerate(NAMES)), 'label2id': {name: number for number, name in enumerate(NAMES)}}
  fields = {**sizes, 'init_std': 0.3, 'max_position_embeddings': 64, **names}
  model = getattr(transformers, f'MBart{kind}')(transformers.MBartConfig(**fields)).eval()
  model.save_pretrained(folder)
  return model


def same(theirs: Any, ours: Any, folder: pathlib.Path, texts: list[Any]) -> None:
  """Compare probabilities of texts, by a folder's tokenizer of transformers and by ours."""
  tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
  for text in texts:
    with torch.no_grad():
      given = tokenizer(*[text] if isinstance(text, str) else text, return_tensors='pt')
      expected = torch.softmax(theirs(**given).logits, dim=-1)[0].tolist()
    (found,) = ours.classify([text])
    np.testing.assert_allclose(list(found['probabilities'].values()), expected, atol=2e-5)


@pytest.mark.parametrize('name', ['MBart', 'MBart50'])
def test_classes_of_mbart_are_those_of_transformers(name: str, pieces: bytes, tmp_path: pathlib.Path) -> None:
  theirs = save(tmp_path / 'theirs', pieces, name)
  same(theirs, plm_jax.load(tmp_path / 'theirs'), tmp_path / 'theirs', TEXTS)
  assert convert.main(['import', str(tmp_path / 'theirs'), str(tmp_path / 'import')]) == 0
  same(theirs, plm_jax.load(tmp_path / 'import'), tmp_path / 'theirs', TEXTS)


@pytest.mark.parametrize(
  'kind', ['ForConditionalGeneration', pytest.param('ForSequenceClassification', marks=pytest.mark.slow)]
)
def test_a_fine_tuned_mbart_goes_out_as_the_class(kind: str, pieces: bytes, tmp_path: pathlib.Path) -> None:
  save(tmp_path / 'theirs', pieces, 'MBart', kind)
  small.write_rows(tmp_path / 'rows.jsonl', [{'text': f'Anna {n}', 'label': NAMES[n % 3]} for n in range(12)])
  given = ['--config=experiments/finetune/classify.py', f'--workdir={tmp_path / "run"}', '--config.epochs=1']
  given += [f'--config.model.from={tmp_path / "theirs"}', f'--config.data.path={tmp_path / "rows.jsonl"}']
  given += [f'--config.data.cache={tmp_path / "cache"}', '--config.data.batch_size=4', '--config.data.length=24']
  given += ['--config.data.buckets=()', f'--config.adapter.hidden={published.CASES["mbart"].fields["d_model"]}']
  assert train.main([*given, '--config.adapter.activation=tanh']) == 0
  assert convert.main(['export', str(tmp_path / 'run'), str(tmp_path / 'out')]) == 0
  theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / 'out').eval()
  assert type(theirs).__name__ == 'MBartForSequenceClassification'
  for folder in (tmp_path / 'run', tmp_path / 'out'):
    same(theirs, plm_jax.load(folder), tmp_path / 'out', ['Anna is here.', 'a'])


@pytest.mark.parametrize(
  'form', ['{e} $A {b}|{e} $A $B {b}', '{b} $A|{b} $A:0 {e}:0 {e}:0 $B:1', '$A {e}:2|$A {b} $B:1 {e}:2']
)
def test_any_special_tokens_around_texts(form: str, tiny_vocab: Any) -> None:
  own = _with_processor(tiny_vocab, form)
  template = framing.template(*(layout.make(vocab=own, fields=number) for number in (1, 2)))
  assert template == framing.written(own.marked)
  (_, first), (before, _), (_, last) = layout.make(vocab=own, fields=3).frames
  assert not before and (first, last) == tuple(end for _, end in layout.make(vocab=own, fields=2).frames)


def test_types_of_no_layout_are_refused(tiny_vocab: Any) -> None:
  with pytest.raises(ValueError, match=r'types.*data\.layout'):
    layout.make(vocab=_with_processor(tiny_vocab, '$A {e}|$A:1 {e}:1 $B {e}'), fields=2)
  with pytest.raises(ValueError, match=r'no special tokens.*data\.layout'):
    layout.make(vocab=tiny_vocab, fields=1)


def _with_processor(vocab: Any, form: str) -> Any:
  """Return the vocabulary with a post-processor of one text and of two."""
  names = {'e': vocab.token(vocab.eos_id), 'b': vocab.token(vocab.bos_id)}
  made = tokenizers.Tokenizer.from_str(vocab.content)
  single, pair = form.format(**names).split('|')
  special = [(name, vocab.id(name)) for name in dict.fromkeys(names.values())]
  made.post_processor = tokenizers.processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
  return assemble(json.loads(made.to_str()), roles=vocab.roles)
