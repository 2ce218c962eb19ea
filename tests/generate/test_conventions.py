"""Prompts as their tokenizer gives them, and what a folder says of texts: ends, forced tokens, other settings."""

import inspect
import json
import logging
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, processors

from plm_jax.commands import generate as command
from plm_jax.generate import constraints as rules
from plm_jax.generate import conventions, settings
from plm_jax.inference import continued, opened
from plm_jax.text import tokenizer
from plm_jax.weights import convert, folders
from tests.generate import test_decode

WORDS = ('in', 'the', 'morning', 'Anna', 'is', 'here', 'one', 'two')
SPECIALS = ('<pad>', '<s>', '</s>', '<unk>', '<mask>', '<extra_id_1>', '<extra_id_0>', '<end>')
FLAGS = {'start': None, 'first': None, 'last': None}
TEMPLATES = {'nothing': '$A', 'llama': '<s> $A', 't5': '$A </s>', 'bart': '<s> $A </s>', 'mbart': '$A </s> <end>'}


def write_tokenizer(folder, template: str) -> None:
  """A byte-level tokenizer of whole words, as published: without a word of ours beside it."""
  folder.mkdir(parents=True, exist_ok=True)
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  ids = {token: number for number, token in enumerate([*SPECIALS, *alphabet])}
  made = tokenizers.Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=None))
  made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
  made.decoder = tokenizers.decoders.ByteLevel()
  made.add_special_tokens(list(SPECIALS))
  if template != '$A':
    special = [(token, ids[token]) for token in SPECIALS if token in template.split()]
    made.post_processor = processors.TemplateProcessing(
      single=template, pair=f'{template} $B:1', special_tokens=special
    )
  made.enable_truncation(4)
  made.save(str(folder / 'tokenizer.json'))
  roles = {'pad_token': '<pad>', 'bos_token': '<s>', 'eos_token': '</s>', 'unk_token': '<unk>', 'mask_token': '<mask>'}
  roles['tokenizer_class'] = 'PreTrainedTokenizerFast'
  (folder / 'tokenizer_config.json').write_text(json.dumps(roles))


@pytest.mark.parametrize('kind', ['causal', 'encoder-decoder'])
@pytest.mark.parametrize('template', TEMPLATES)
def test_a_prompt_has_the_ids_of_the_tokenizer(template, kind, tmp_path):
  transformers = pytest.importorskip('transformers')
  write_tokenizer(tmp_path, TEMPLATES[template])
  vocab = tokenizer.load(tmp_path)
  special = conventions.tokens(vocab, {'eos_token_id': [2, 7]}, FLAGS, {}, kind=kind)
  theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
  for text in ('In the morning Anna is here', 'Anna <extra_id_0> </s>'):
    expected = theirs(text, truncation=False).input_ids
    if kind == 'causal' and template != 'nothing' and expected[-1] in (2, 7) and template != 'llama':
      expected = expected[:-1]  # the end that the tokenizer adds, not the one that the text has
    found = conventions.prompt(text, conventions.Encoder(vocab, tmp_path, special, kind=kind, published=True))
    assert found == expected


def test_where_the_settings_of_a_folder_come_from(tmp_path):
  write_tokenizer(tmp_path, '$A')
  vocab, ids = tokenizer.load(tmp_path), {'eos_token_id': 5, 'decoder_start_token_id': 3, 'forced_eos_token_id': 2}

  def tokens(**flags):
    found = conventions.read(tmp_path, ids, kind='encoder-decoder', rows=8)
    return conventions.tokens(vocab, found, FLAGS | flags, {}, kind='encoder-decoder')

  assert tokens() == conventions.Tokens(start=3, ends=(5,), first=None, last=(2,), mask=4)
  made = {'eos_token_id': [2, 7], 'bos_token_id': 1, 'forced_bos_token_id': 6, 'forced_eos_token_id': [7, 2]}
  (tmp_path / conventions.FILE).write_text(json.dumps(made))
  assert tokens() == conventions.Tokens(start=1, ends=(2, 7), first=6, last=(7, 2), mask=4)
  assert tokens(first='<mask>', start='<pad>', last='</s>')[:4] == (0, (2, 7), 4, (2,))
  (tmp_path / conventions.FILE).write_text(json.dumps({'eos_token_id': None}))
  assert tokens().ends == ()
  for name, odd in (('eos_token_id', '2'), ('forced_bos_token_id', [1]), ('eos_token_id', [True])):
    (tmp_path / conventions.FILE).write_text(json.dumps({name: odd}))
    with pytest.raises(ValueError, match=f'generation_config.json: {name}'):
      tokens()


@pytest.mark.parametrize(
  ('kind', 'found', 'name'),
  [
    ('encoder-decoder', {'decoder_start_token_id': 8}, 'decoder_start_token_id'),
    ('encoder-decoder', {'bos_token_id': 8}, 'bos_token_id'),
    ('causal', {'forced_bos_token_id': 99_999}, 'forced_bos_token_id'),
    ('causal', {'forced_eos_token_id': [2, 8]}, 'forced_eos_token_id'),
  ],
)
def test_no_text_begins_or_ends_with_a_token_that_the_model_does_not_have(kind, found, name, tmp_path):
  (tmp_path / conventions.FILE).write_text(json.dumps(found))
  conventions.read(tmp_path, {}, kind=kind, rows=10**5)
  with pytest.raises(ValueError, match=f'generation_config.json: {name}.* 7'):
    conventions.read(tmp_path, {}, kind=kind, rows=8)
  with pytest.raises(ValueError, match=f'^config.json: {name}'):
    conventions.read(tmp_path / 'none', found, kind=kind, rows=8)


def test_an_end_that_cannot_come_is_said(tmp_path, caplog):
  """Small models are often saved with the ids of large ones, which nothing is made of."""
  with caplog.at_level(logging.INFO):
    conventions.read(tmp_path, {'eos_token_id': 50_256, 'bos_token_id': 50_256}, kind='causal', rows=8)
  assert all('7' in message for message in caplog.messages) and len(caplog.messages) == 2


def test_a_run_names_its_tokens(tmp_path):
  write_tokenizer(tmp_path, '$A')
  vocab = tokenizer.load(tmp_path)
  objective = {'start': 'eos', 'end': None}
  assert conventions.tokens(vocab, {'eos_token_id': 2}, FLAGS, objective, kind='encoder-decoder').start == 2
  own = conventions.tokens(vocab, {}, FLAGS, {'start': '<s>', 'end': '<end>', 'mask': '<extra_id_0>'}, kind='prefix')
  assert (own.start, own.ends, own.mask) == (1, (7,), 6)
  assert conventions.tokens(vocab, {}, FLAGS, {'start': 'pad'}, kind='prefix').start == 0


def test_what_is_not_followed_is_named(caplog):
  found = {'num_beams': 4, 'length_penalty': 2.0, 'early_stopping': True, 'no_repeat_ngram_size': 3, 'use_cache': True}
  found |= {'repetition_penalty': 1.2, 'typical_p': 1.0, 'suppress_tokens': [4], 'temperature': 0.6, 'bos_token_id': 1}
  flags = vars(command._parser().parse_args(['--prompt=a']))
  with caplog.at_level(logging.WARNING):
    conventions.warn(found, flags)
  asked, odd = caplog.messages
  assert asked.endswith('--method=beam --beams=4 --early_stop=true --length_penalty=2.0 --no_repeat=3')
  assert odd.endswith(': repetition_penalty=1.2, suppress_tokens=[4]')
  caplog.clear()
  given = ['--method=beam', '--beams=4', '--early_stop=true', '--length_penalty=2', '--no_repeat=3']
  conventions.warn({'repetition_penalty': 1.0, 'eos_token_id': [1, 2]}, flags)
  conventions.warn(
    {name: found[name] for name in list(found)[:5]}, vars(command._parser().parse_args(['--prompt=a', *given]))
  )
  assert not caplog.messages


@pytest.mark.parametrize(
  ('found', 'flags', 'said'),
  [
    ({'do_sample': True, 'top_p': 0.9}, [], ['--method=sample --top_k=50 --top_p=0.9']),
    ({'do_sample': True, 'top_p': 0.9}, ['--method=sample', '--top_p=0.9', '--top_k=50'], []),
    ({'do_sample': True, 'top_k': 0}, ['--method=sample'], []),
    ({'num_beams': 4, 'length_penalty': 1.0}, ['--method=beam'], []),
    ({'num_beams': 4}, ['--method=beam', '--beams=2'], ['--beams=4']),
    ({'num_beams': 5}, ['--method=beam'], ['--beams=5']),
    ({'do_sample': True, 'top_k': 9, 'num_beams': 4}, ['--method=sample', '--top_k=9'], [': num_beams=4']),
    ({'num_beams': 4, 'num_return_sequences': 2}, ['--method=beam'], [': num_return_sequences=2']),
  ],
)
def test_what_the_flags_do_by_themselves_is_not_asked_for(caplog, found, flags, said):
  """transformers takes 50 for a `top_k` that a folder lacks; 4 beams are the default here."""
  with caplog.at_level(logging.WARNING):
    conventions.warn(found, vars(command._parser().parse_args(['--prompt=a', *flags])))
  assert len(caplog.messages) == len(said)
  assert all(message.endswith(end) for message, end in zip(caplog.messages, said, strict=True))


@pytest.mark.parametrize('found', [{'num_beams': '4'}, {'temperature': [1]}, {'early_stopping': 'yes'}])
def test_a_setting_that_is_no_number_is_named(tmp_path, found):
  (tmp_path / 'generation_config.json').write_text(json.dumps(found))
  with pytest.raises(ValueError, match=rf'generation_config\.json: {next(iter(found))}.*number'):
    conventions.read(tmp_path, {}, kind='causal', rows=9)


def test_every_key_of_transformers_has_a_place():
  transformers = pytest.importorskip('transformers')
  config = transformers.GenerationConfig()
  source = inspect.getsource(transformers.GenerationConfig.__init__)
  names = {name for name in vars(config) if not name.startswith('_')}
  assert names == {name for name in names if name in source or name == 'transformers_version'}
  placed = {*conventions.FLAGS, *conventions._TOKENS, *conventions._INERT, *conventions._MISSING}
  assert names <= placed, names - placed
  assert set(folders.GENERATION) == {*conventions.FLAGS, *conventions._MISSING, 'do_sample'}


def test_masks_and_sentinels_are_shown(tmp_path):
  write_tokenizer(tmp_path, '$A')
  vocab = tokenizer.load(tmp_path)
  ids = vocab.encode('<s><extra_id_0> Anna<mask></s><pad>', specials=True)
  assert conventions.decode(ids, vocab) == '<extra_id_0> Anna<mask>'


def test_each_of_several_tokens_ends_a_text():
  whole = np.asarray(test_decode.run_gpt2().tokens)
  ends = tuple(int(row[place]) for row, place in zip(whole, (2, 4, 5), strict=True))
  made = test_decode.run_gpt2(eos_id=list(ends))
  for row, tokens, length in zip(whole, np.asarray(made.tokens), np.asarray(made.lengths), strict=True):
    first = next(place for place, token in enumerate(row) if token in ends)
    assert length == first + 1 and tokens[:length].tolist() == row[:length].tolist() and not tokens[length:].any()
  beam = test_decode.run_gpt2(eos_id=ends, method='beam', beams=3)
  for tokens, length in zip(np.asarray(beam.tokens), np.asarray(beam.lengths), strict=True):
    assert not set(tokens[: length - 1].tolist()) & set(ends)


def test_several_last_tokens_leave_each_of_them():
  constraints = rules.Constraints(3, last_id=(4, 6), eos_id=(1, 2), min_new=1)
  texts, before = jnp.zeros((1, 3), jnp.int32), jnp.zeros((1, 1), jnp.int32)
  given = texts, before, constraints, jnp.array([3])
  first, last = (rules.allow(jnp.zeros((1, 8)), jnp.int32(made), *given)[0] for made in (0, 2))
  assert np.flatnonzero(np.isfinite(first)).tolist() == [0, 3, 4, 5, 6, 7]
  assert np.flatnonzero(np.isfinite(last)).tolist() == [4, 6]


@pytest.fixture(scope='module')
def bart(tmp_path_factory):
  """A random BART saved by its own library, with settings of generation that differ from the defaults."""
  torch = pytest.importorskip('torch')
  transformers = pytest.importorskip('transformers')
  folder = tmp_path_factory.mktemp('bart')
  write_tokenizer(folder, TEMPLATES['bart'])
  sizes = {f'{side}_{what}': count for side in ('encoder', 'decoder') for what, count in
           (('layers', 1), ('attention_heads', 2), ('ffn_dim', 16))}  # fmt: skip
  config = transformers.BartConfig(vocab_size=264, d_model=16, max_position_embeddings=32, **sizes, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, decoder_start_token_id=2)  # fmt: skip
  torch.manual_seed(0)
  model = transformers.BartForConditionalGeneration(config)
  for parameter in model.parameters():
    torch.nn.init.normal_(parameter, std=0.4)
  model.generation_config = transformers.GenerationConfig(
    decoder_start_token_id=1, bos_token_id=1, eos_token_id=[2, 7], pad_token_id=0, forced_bos_token_id=5,
    forced_eos_token_id=7, max_new_tokens=6,
  )  # fmt: skip
  model.eval().save_pretrained(folder)
  return folder


def theirs_of(folder, text: str) -> list[int]:
  import torch
  import transformers

  model = transformers.BartForConditionalGeneration.from_pretrained(folder)
  ids = transformers.AutoTokenizer.from_pretrained(folder)(text, truncation=False).input_ids
  return model.generate(torch.tensor([ids]))[0].tolist()


def ours_of(folder, text: str) -> list[int]:
  model = opened.open(folder)
  ((written,),) = continued.write(model, [text], {**settings.DEFAULTS, 'max_new': 6})
  return [model.special.start, *written.ids]


def test_a_release_makes_the_texts_of_its_settings_and_an_export_keeps_them(bart, tmp_path):
  expected = theirs_of(bart, 'Anna')
  assert expected[:2] == [1, 5] and len(expected) > 3
  assert ours_of(bart, 'Anna') == expected
  convert.import_release(bart, tmp_path / 'import')
  assert ours_of(tmp_path / 'import', 'Anna') == expected
  convert.export(tmp_path / 'import', tmp_path / 'export')
  kept, before = (json.loads((folder / conventions.FILE).read_text()) for folder in (tmp_path / 'export', bart))
  assert kept == before
  assert theirs_of(tmp_path / 'export', 'Anna') == expected


OLD = {'num_beams': 4, 'length_penalty': 2.0, 'no_repeat_ngram_size': 3, 'early_stopping': True, 'max_length': 142}


@pytest.fixture
def old_bart(bart, tmp_path):
  """The same as it was saved before there was a generation_config.json."""
  folder = tmp_path / 'old'
  shutil.copytree(bart, folder)
  (folder / conventions.FILE).unlink()
  fields = {'force_bos_token_to_be_generated': True, 'bos_token_id': 5, 'task_specific_params': {'a': {'num_beams': 6}}}
  (folder / 'config.json').write_text(json.dumps(json.loads((folder / 'config.json').read_text()) | fields | OLD))
  return folder


def test_settings_of_an_older_release_stand_in_its_config(old_bart, tmp_path, caplog):
  transformers = pytest.importorskip('transformers')
  theirs = transformers.BartForConditionalGeneration.from_pretrained(old_bart).generation_config
  convert.import_release(old_bart, tmp_path / 'import')
  convert.export(tmp_path / 'import', tmp_path / 'export')
  for folder in (old_bart, tmp_path / 'import', tmp_path / 'export'):
    model = opened.open(folder)
    assert {name: model.generation[name] for name in OLD} == {name: getattr(theirs, name) for name in OLD} == OLD
    assert model.generation['forced_bos_token_id'] == theirs.forced_bos_token_id == 5
    caplog.clear()
    with caplog.at_level(logging.WARNING):
      conventions.warn(model.generation, vars(command._parser().parse_args(['--prompt=a'])))
    asked, odd = caplog.messages
    assert asked.endswith('--method=beam --beams=4 --early_stop=true --length_penalty=2.0 --no_repeat=3')
    assert odd.endswith(': max_length=142')
    assert ours_of(folder, 'Anna')[1] == 5
  made = transformers.BartForConditionalGeneration.from_pretrained(tmp_path / 'export').generation_config
  known, expected = ({**one.to_diff_dict(), '_from_model_config': None, 'use_cache': None} for one in (made, theirs))
  assert known == expected
