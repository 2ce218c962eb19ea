"""Pretrained checkpoints with a task head: `plm_jax.load` returns what transformers computes."""

import itertools
import json
import pathlib
import random
import re
from typing import Any

import numpy as np
import pytest

import plm_jax
from plm_jax import config
from plm_jax.commands import fill, heads
from plm_jax.core.errors import ConfigError
from plm_jax.inference.model import Model
from plm_jax.io.run_paths import RunFolder
from plm_jax.training import evaluate_saved
from plm_jax.weights import convert
from tests import conftest, runs
from tests.data import small
from tests.weights import published

torch = pytest.importorskip('torch')
transformers = pytest.importorskip('transformers')

NAMES = ('no', 'perhaps', 'yes')
TEXTS = ['Anna is here.', ('In the garden', 'Boris found the clock.'), 'a', 'Anna </s> is <mask>.']
WORDS = ['Anna', 'is', 'in', 'the', 'unlikely', 'garden', '.']
STORY = conftest.story(random.Random(0))
POSITIONS = 64
SIZES = {
  'Bert': 'bert-mlm', 'Roberta': 'roberta-mlm', 'Deberta': 'deberta-mlm', 'DebertaV2': 'deberta-v2-mlm', 'GPT2': 'gpt2',
  'Llama': 'llama', 'Glm': 'glm', 'Glm4': 'glm4',
}  # fmt: skip
# special tokens around one text and around two
AROUND = {
  'Bert': ('<s> $A </s>', '<s> $A </s> $B:1 </s>:1'),
  'Roberta': ('<s> $A </s>', '<s> $A </s> </s> $B </s>'),
  'GPT2': None,
  'Llama': ('<s> $A', '<s> $A <s> $B'),
  'Glm': ('[gMASK] <sop> $A', '[gMASK] <sop> $A $B'),
  'Glm4': ('[gMASK] <sop> $A', '[gMASK] <sop> $A $B'),
}
OTHERS = ('Roberta', 'Deberta', 'DebertaV2', 'GPT2', 'Llama')


def families(*others: str) -> Any:
  """Mark the families: BERT is fast, others are slow."""
  return pytest.mark.parametrize('family', ['Bert', *(pytest.param(name, marks=pytest.mark.slow) for name in others)])


def save(family: str, kind: str, data: pathlib.Path, folder: pathlib.Path, **fields: Any) -> tuple[Any, Any]:
  """Write a random model with a tokenizer; return both, by transformers."""
  torch.manual_seed(0)
  sizes = {'max_position_embeddings': POSITIONS + 2 * (family == 'Roberta'), 'n_positions': POSITIONS}
  sizes |= {'vocab_size': runs.VOCAB_SIZE, 'bos_token_id': 0, 'pad_token_id': 1, 'eos_token_id': 2}
  config = getattr(transformers, f'{family}Config')(**{**published.CASES[SIZES[family]].fields, **sizes, **fields})
  model = getattr(transformers, f'{family}{kind}')(config).eval()
  with torch.no_grad():
    for parameter in model.parameters():
      parameter.add_(0.2 * torch.randn_like(parameter))
  model.save_pretrained(folder)
  tokenizer = make_tokenizer(data / 'vocab' / 'tokenizer.json', AROUND.get(family, AROUND['Bert']))
  tokenizer.save_pretrained(folder)
  return model, tokenizer


def make_tokenizer(file: pathlib.Path, around: tuple[str, str] | None) -> Any:
  """Build a tokenizer with RoBERTa's ids.

  Special tokens surround texts, except for GPT-2.
  """
  from tokenizers import Tokenizer, processors

  spec, ids = json.loads(file.read_text()), {'<s>': 0, '<pad>': 1, '</s>': 2}
  spec['model']['vocab'] |= ids
  for token in spec['added_tokens']:
    token['id'] = ids.get(token['content'], token['id'])
  made = Tokenizer.from_str(json.dumps(spec))
  made.post_processor = processors.ByteLevel(trim_offsets=False)
  roles = {'bos_token': '<s>', 'eos_token': '</s>', 'pad_token': '<pad>', 'mask_token': '<mask>'}
  if around:
    single, pair = around
    begins = [token for token in ('[gMASK]', '<sop>') if token in single]
    made.add_special_tokens(begins)
    special = [(token, made.token_to_id(token)) for token in ('<s>', '</s>', *begins)]
    made.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    roles |= {'cls_token': '<s>', 'sep_token': '</s>'}
  inputs = ['input_ids', 'token_type_ids', 'attention_mask']
  return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **roles)


def outputs(model: Any, encoded: Any, *names: str) -> list[np.ndarray]:
  """Compute their model's outputs for an example."""
  row = {'input_ids': encoded['input_ids'], 'attention_mask': encoded['attention_mask']}
  if getattr(model.config, 'type_vocab_size', 0) > 1:
    row['token_type_ids'] = encoded['token_type_ids']
  with torch.no_grad():
    out = model(**{name: torch.tensor([value]) for name, value in row.items()})
  return [out[name][0].double() for name in names or ('logits',)]


def shares(logits: Any) -> list[float]:
  return torch.softmax(torch.as_tensor(logits), dim=-1).tolist()


def imported(folder: pathlib.Path) -> Model:
  """Convert a pretrained checkpoint with its tokenizer."""
  convert.import_release(folder, folder / 'import')
  return plm_jax.load(folder / 'import', batch_size=2)


@families(*OTHERS)
def test_classes_are_those_of_transformers(family: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  theirs, tokenizer = save(family, 'ForSequenceClassification', data, tmp_path, id2label=dict(enumerate(NAMES)))
  ours = plm_jax.load(tmp_path, batch_size=2)
  expected = [shares(outputs(theirs, tokenizer(*[text] if isinstance(text, str) else text))[0]) for text in TEXTS]
  for text, found, probabilities in zip(TEXTS, map(ours.classify, TEXTS), expected, strict=True):
    assert list(found['probabilities']) == list(NAMES), text
    np.testing.assert_allclose(list(found['probabilities'].values()), probabilities, atol=2e-5)
    assert found['label'] == NAMES[int(np.argmax(probabilities))]
  singles = [text for text in TEXTS if isinstance(text, str)]
  assert [one['label'] for one in ours.classify(singles)] == [ours.classify(text)['label'] for text in singles]
  cut = tokenizer(STORY, truncation=True, max_length=POSITIONS)
  assert len(tokenizer(STORY)['input_ids']) > POSITIONS
  found = ours.classify(STORY)['probabilities'].values()
  if family in ('Bert', 'Roberta', 'GPT2'):  # the others have no learned positions
    np.testing.assert_allclose(list(found), shares(outputs(theirs, cut)[0]), atol=2e-5)
  if family == 'Bert':
    assert imported(tmp_path).classify(singles) == ours.classify(singles)


@families('Roberta')
def test_values_are_those_of_transformers(family: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  theirs, tokenizer = save(family, 'ForSequenceClassification', data, tmp_path, num_labels=1)
  (found,) = plm_jax.load(tmp_path).classify([('Anna', 'Boris')])
  assert found == {'value': pytest.approx(outputs(theirs, tokenizer('Anna', 'Boris'))[0].item(), abs=2e-5)}


@families(*OTHERS)
def test_tags_are_those_of_transformers(family: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  theirs, tokenizer = save(family, 'ForTokenClassification', data, tmp_path, id2label=dict(enumerate(NAMES)))
  ours = plm_jax.load(tmp_path)
  words = [*WORDS, '</s>']  # a special token is one word
  ids = [tokenizer(f' {word}', add_special_tokens=False)['input_ids'] for word in words]
  frame = [] if family == 'GPT2' else [tokenizer.cls_token_id]
  row = [*frame, *itertools.chain(*ids), *([tokenizer.sep_token_id] if frame else [])]
  encoded = {'input_ids': row, 'attention_mask': [1] * len(row), 'token_type_ids': [0] * len(row)}
  first = len(frame) + np.cumsum([0, *map(len, ids)])[:-1]
  expected = np.array(shares(outputs(theirs, encoded)[0]))[first]
  assert max(map(len, ids)) > 1
  found = ours.tag([words])[0]
  assert [one['word'] for one in found] == words
  assert [one['tag'] for one in found] == [NAMES[label] for label in expected.argmax(axis=1)]
  np.testing.assert_allclose([one['probability'] for one in found], expected.max(axis=1), atol=2e-5)
  assert [one['tag'] for one in ours.tag(' '.join(words))] == [one['tag'] for one in found]


@families('Roberta', 'GPT2', 'Llama')
def test_a_text_is_tagged_as_it_is_written(family: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  theirs, tokenizer = save(family, 'ForTokenClassification', data, tmp_path, id2label=dict(enumerate(NAMES)))
  ours, text = plm_jax.load(tmp_path), ' "Anna" is in the unlikely garden.\n\nIs (she)?'
  encoded = tokenizer(text, return_offsets_mapping=True)
  expected = np.array(shares(outputs(theirs, encoded)[0]))
  found = ours.tag(text, as_written=True)
  assert [one['word'] for one in found] == re.findall(r'\w+|[^\w\s]', text)
  for one in found:
    assert text[one['start'] : one['end']] == one['word']
    if one['tag'] is not None:  # its first token may be that of the word before
      covers = [k for k, (a, b) in enumerate(encoded['offset_mapping']) if a < one['end'] and b > one['start']]
      assert one['probability'] == pytest.approx(expected[covers[0]].max(), abs=2e-5)
      assert one['tag'] == NAMES[int(expected[covers[0]].argmax())]
  assert [one['tag'] for one in ours.tag([text, 'a'], as_written=True)[0]] == [one['tag'] for one in found]
  spaced = ours.tag(text)
  assert [one['probability'] for one in spaced] != [one['probability'] for one in found]
  with pytest.raises(ConfigError, match='as_written=True is for strings'):
    ours.tag([WORDS], as_written=True)


@pytest.mark.parametrize('family', ['Glm', 'Glm4'])
def test_tags_of_glm4_are_those_of_transformers(family: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  names, rows = dict(enumerate(NAMES)), runs.VOCAB_SIZE + 2
  theirs, tokenizer = save(family, 'ForTokenClassification', data, tmp_path, id2label=names, vocab_size=rows)
  ids = [tokenizer(f' {word}', add_special_tokens=False)['input_ids'] for word in WORDS]
  row = [*tokenizer.convert_tokens_to_ids(['[gMASK]', '<sop>']), *itertools.chain(*ids)]
  first = 2 + np.cumsum([0, *map(len, ids)])[:-1]
  expected = np.array(shares(outputs(theirs, {'input_ids': row, 'attention_mask': [1] * len(row)})[0]))[first]
  assert tokenizer(' '.join(WORDS))['input_ids'][:2] == row[:2]
  found = plm_jax.load(tmp_path).tag([WORDS])[0]
  assert [one['tag'] for one in found] == [NAMES[label] for label in expected.argmax(axis=1)]
  np.testing.assert_allclose([one['probability'] for one in found], expected.max(axis=1), atol=2e-5)


@families(*OTHERS)
def test_answers_are_those_of_transformers(family: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  theirs, tokenizer = save(family, 'ForQuestionAnswering', data, tmp_path)
  question, context = 'Who?', STORY[:80]
  encoded = tokenizer(question, context, return_offsets_mapping=True)
  assert len(encoded['input_ids']) <= POSITIONS
  start, end = outputs(theirs, encoded, 'start_logits', 'end_logits')
  inside = [place for place, side in enumerate(encoded.sequence_ids()) if side == 1]
  sums = {(i, j): (start[i] + end[j]).item() for i in inside for j in inside if i <= j < i + 30}
  listed = sorted(sums, key=lambda pair: -sums[pair])[:20]  # n_best
  best = listed[:3]
  spans = [(encoded['offset_mapping'][i][0], encoded['offset_mapping'][j][1]) for i, j in best]
  found = plm_jax.load(tmp_path).answer(question, context, best=3)
  assert [one['text'] for one in found['best']] == [context[slice(*span)].strip() for span in spans]
  assert [one['end'] for one in found['best']] == [last for _, last in spans]
  probabilities = shares([sums[pair] for pair in listed])[:3]
  np.testing.assert_allclose([one['probability'] for one in found['best']], probabilities, atol=5e-5)


@families('Roberta', 'DebertaV2')
def test_choices_are_those_of_transformers(family: str, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  theirs, tokenizer = save(family, 'ForMultipleChoice', data, tmp_path)
  options = ['down in the garden.', 'the moon.', 'a']
  rows = [tokenizer('Anna sat', option) for option in options]
  logits = [outputs(theirs, {name: [row[name]] for name in row})[0].item() for row in rows]
  found = plm_jax.load(tmp_path).choose('Anna sat', options)
  np.testing.assert_allclose(found['probabilities'], shares(logits), atol=2e-5)
  assert (found['option'], found['number']) == (options[int(np.argmax(logits))], int(np.argmax(logits)))


def test_a_long_text_is_read_in_windows(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  save('Bert', 'ForQuestionAnswering', data, tmp_path)
  found = plm_jax.load(tmp_path).answer('Who?', STORY, best=20)['best']
  assert all(STORY[one['start'] : one['end']] == one['text'] for one in found)
  assert len(found) == 20


@pytest.mark.parametrize('count', [1, 3])
def test_several_classes_are_those_of_transformers(count: int, data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  fields = {'problem_type': 'multi_label_classification', 'id2label': dict(enumerate(NAMES[:count]))}
  theirs, tokenizer = save('Bert', 'ForSequenceClassification', data, tmp_path / 'many', **fields)
  rows = [{'text': text, 'labels': [NAMES[number % count]] * (number < 4)} for number, text in enumerate(WORDS)]
  small.write_rows(tmp_path / 'rows.jsonl', rows)
  for model in (plm_jax.load(tmp_path / 'many'), imported(tmp_path / 'many')):
    for row, found in zip(rows, model.classify([row['text'] for row in rows]), strict=True):
      (logits,) = outputs(theirs, tokenizer(row['text']))
      np.testing.assert_allclose(list(found['probabilities'].values()), torch.sigmoid(logits), atol=2e-5)
      assert found['labels'] == [name for name, logit in zip(NAMES, logits, strict=False) if logit > 0]
  # the loss that transformers computes of the same labels
  given = config.load('experiments/finetune/several_labels.py')
  given['data'] |= {'path': str(tmp_path / 'rows.jsonl'), 'split': 'train', 'cache': str(tmp_path / 'cache')}
  given['data'] |= {'length': 32, 'buckets': (), 'batch_size': 8}
  given |= {'adapter': {'name': 'classify', 'several': True, 'classes': count}}
  given['eval'] = {'validation': {'data': {'split': 'train'}}}
  evaluate_saved.evaluate_folder(config.resolve(given), tmp_path / 'many', folder=RunFolder(tmp_path / 'out'))
  measured = json.loads((tmp_path / 'out' / 'evaluations.jsonl').read_text())
  losses = []
  for row in rows:
    encoded = {key: torch.tensor([value]) for key, value in tokenizer(row['text']).items()}
    labels = torch.tensor([[float(name in row['labels']) for name in NAMES[:count]]])
    losses.append(theirs(**encoded, labels=labels).loss.item())
  assert measured['validation/loss'] == pytest.approx(np.mean(losses), rel=1e-5)


def test_what_a_release_cannot_be_asked(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  save('Bert', 'ForSequenceClassification', data, tmp_path / 'classes')
  with pytest.raises(ConfigError, match=r"'classify'.*encode, classify.*\btag\b"):
    plm_jax.load(tmp_path / 'classes').tag('a')
  save('Bert', 'ForSequenceClassification', data, tmp_path / 'strange')
  strange = make_tokenizer(data / 'vocab' / 'tokenizer.json', ('</s> $A:1 <s>', '</s> $A:1 $B <s>'))
  strange.save_pretrained(tmp_path / 'strange')
  with pytest.raises(ConfigError, match=r'sentence types.* layout=(\w+)$') as said:
    plm_jax.load(tmp_path / 'strange').classify('a')
  named = str(said.value).rpartition('=')[2]
  assert len(plm_jax.load(tmp_path / 'strange', layout=named).classify('a')['probabilities']) == 2
  with pytest.raises(ConfigError, match=r"^layout: unknown layout 'plane'.*plain"):
    plm_jax.load(tmp_path / 'strange', layout='plane')


@pytest.mark.parametrize(('family', 'layout'), [('Llama', 'begin'), ('GPT2', 'bare'), ('Roberta', 'roberta')])
def test_an_evaluation_reads_rows_as_the_tokenizer_writes_them(
  family: str, layout: str, data: pathlib.Path, tmp_path: pathlib.Path
) -> None:
  names = {'id2label': dict(enumerate(NAMES)), 'label2id': {name: number for number, name in enumerate(NAMES)}}
  theirs, tokenizer = save(family, 'ForSequenceClassification', data, tmp_path / 'release', **names)
  rows = [
    {'text': text, 'label': NAMES[number % 3]}
    for number, text in enumerate(conftest.story(random.Random(1)).split('. '))
  ]
  small.write_rows(tmp_path / 'rows.jsonl', rows)
  out = tmp_path / 'out.jsonl'
  given = config.load('experiments/finetune/classify.py')
  given['data'] |= {
    'path': str(tmp_path / 'rows.jsonl'),
    'split': 'train',
    'cache': str(tmp_path / 'cache'),
    'buckets': (),
  }
  given['data'] |= {'length': 64}
  given['eval'] = {'validation': {'data': {'split': 'train'}}}
  evaluate_saved.evaluate_folder(
    config.resolve(given), tmp_path / 'release', predictions=evaluate_saved.Output(out, None)
  )
  for row, line in zip(rows, out.read_text().splitlines(), strict=True):
    expected = shares(outputs(theirs, tokenizer(row['text']))[0])
    np.testing.assert_allclose(json.loads(line)['probability'], expected, atol=2e-5)


def test_blanks_and_heads_of_a_release(
  data: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
  theirs, tokenizer = save('Bert', 'ForMaskedLM', data, tmp_path)
  text = 'Anna is in the <mask> .'
  encoded = tokenizer(text)
  (place,) = [number for number, one in enumerate(encoded['input_ids']) if one == tokenizer.mask_token_id]
  best = int(np.argmax(outputs(theirs, encoded)[0][place]))
  assert fill.main([f'--weights={tmp_path}', f'--text={text}', '--top=1']) == 0
  assert tokenizer.decode([best]).strip() in capsys.readouterr().out
  assert heads.main([f'--weights={tmp_path}', f'--text={text}', f'--out={tmp_path / "heads.png"}']) == 0
  assert (tmp_path / 'heads.png').stat().st_size > 5_000
  for command in (fill, heads):
    with pytest.raises(ConfigError, match=r'--workdir=.*Hugging Face.*--weights'):
      command.main([f'--workdir={tmp_path}', f'--text={text}'])
    with pytest.raises(ConfigError, match=r'--workdir.*--config'):
      command.main([f'--workdir={tmp_path}', f'--weights={tmp_path}', f'--text={text}'])


def test_a_class_that_reads_the_token_before_the_end(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  save('Llama', 'ForSequenceClassification', data, tmp_path, pad_token_id=2)
  make_tokenizer(data / 'vocab' / 'tokenizer.json', ('<s> $A </s>', '<s> $A </s> $B </s>')).save_pretrained(tmp_path)
  with pytest.raises(ConfigError, match=r'token 2\b.*pad'):
    plm_jax.load(tmp_path).classify('a')


def test_a_tokenizer_of_more_ids_than_the_model_has_rows(data: pathlib.Path, tmp_path: pathlib.Path) -> None:
  """Reject a tokenizer with more ids than the model.

  The folder has no `tokenizer.json`, so ids are known after reading its other files.
  """
  save('GPT2', 'LMHeadModel', data, tmp_path)
  spec = json.loads((tmp_path / 'tokenizer.json').read_text())
  (tmp_path / 'tokenizer.json').unlink()
  vocab = spec['model']['vocab'] | {token['content']: token['id'] for token in spec['added_tokens']}
  (tmp_path / 'vocab.json').write_text(json.dumps(vocab))
  pairs = [pair if isinstance(pair, str) else ' '.join(pair) for pair in spec['model']['merges']]
  (tmp_path / 'merges.txt').write_text('\n'.join(pairs))
  assert plm_jax.load(tmp_path).generate('Anna', max_new=2)
  roles = tmp_path / 'tokenizer_config.json'
  roles.write_text(json.dumps(json.loads(roles.read_text()) | {'additional_special_tokens': ['<new>']}))
  with pytest.raises(ConfigError, match=rf'{len(vocab) + 1} ids.*\b{len(vocab)}\b'):
    plm_jax.load(tmp_path).generate('Anna', max_new=2)
